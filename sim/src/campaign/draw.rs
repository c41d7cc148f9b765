//! A whole run from one number: chassis, load, parameters, and what goes wrong.

use core::time::Duration;

use ballast_agent_core::{Actuator, Policy};
use ballast_types::wire::SharePolicy;
use ballast_types::{
    Core, CoreId, Instant, KiloHertz, Ladder, OnExtreme, PowerModel, ServerId, VmClass, VmId, Watts,
};

use super::kind::Kind;
use super::{Case, Size};
use crate::plant::{
    Load, PlantSpec, Profile, SensorSpec, ServerSpec, SharedSpec, SupplySpec, VmLoad, peak_draw,
};
use crate::scenario::Scenario;
use crate::world::{Chance, Checks, Extent, FaultPlan};

/// One seed in so many is larger or longer.
const LARGE_EVERY: u64 = 50;
/// A usual chassis has no more cores, a large one no more than twice as many.
const CORES_MAX: u64 = 1024;
/// Faults begin no earlier, in seconds.
const FIRST_S: u64 = 1;
/// The load falls for good, and every fault that does not last ends, in seconds.
const FALLS_S: u64 = 60;
/// The same of a long run.
const LONG_FALLS_S: u64 = 510;
/// After that everything is given back within so many seconds.
const QUIET_S: u64 = 90;
/// After the fall every VM wants this share of its cores.
const CALM_LOAD: f64 = 0.05;
/// The calm load is at most this share of the limit.
const CALM_SHARE: f64 = 0.75;
/// With every batch core at its lowest frequency the load is at most this share of the limit.
const FLOOR_SHARE: f64 = 0.95;
/// Samples of the load that its peak is looked for in.
const SAMPLES: u32 = 240;

/// For so long agents that were told to stop may take to put everything back.
const STOPS_WITHIN: Duration = Duration::from_secs(2);

const NEVER: Instant = Instant::from_nanos(u64::MAX / 2);

/// A whole number from `low` to `high`, small ones as likely as large ones by their order of magnitude.
fn log_uniform(chance: &mut Chance, low: u64, high: u64) -> u64 {
    let (low_ln, high_ln) = (libm::log(low as f64), libm::log((high + 1) as f64));
    let drawn = libm::exp(low_ln + share(chance) * (high_ln - low_ln));
    (drawn as u64).clamp(low, high)
}

/// From 0 to 1.
fn share(chance: &mut Chance) -> f64 {
    chance.below(1 << 32) as f64 / (1u64 << 32) as f64
}

fn between(chance: &mut Chance, low: f64, high: f64) -> f64 {
    low + share(chance) * (high - low)
}

fn one_of<T: Copy>(chance: &mut Chance, values: &[T]) -> T {
    values[chance.below(values.len() as u64) as usize]
}

fn watts(w: f64) -> Watts {
    Watts::from_f64(w).unwrap_or(Watts::ZERO)
}

/// Draws the run of `seed`. With `only` nothing but that kind goes wrong, once, and lasts.
pub(super) fn case(seed: u64, only: Option<Kind>) -> Case {
    let (mut chance, mut case) = without_troubles(seed);
    let falls = case.scenario.quiet_from;
    case.scenario.checks.inversion = false;
    case.kinds = troubles(&mut chance, &mut case.scenario, only, falls);
    case
}

/// The run of `seed` with nothing that goes wrong, and the chance to draw what does.
pub(super) fn without_troubles(seed: u64) -> (Chance, Case) {
    let mut chance = Chance::new(seed, 0x5A);
    let size = match (seed.is_multiple_of(LARGE_EVERY), seed.is_multiple_of(2 * LARGE_EVERY)) {
        (false, _) => Size::Usual,
        (true, false) => Size::Larger,
        (true, true) => Size::Longer,
    };
    let falls_s = if size == Size::Longer { LONG_FALLS_S } else { FALLS_S };
    let falls = Instant::from_millis(falls_s * 1000);
    let end = falls + Duration::from_secs(QUIET_S);

    let plant = chassis(&mut chance, size, falls_s);
    let mut scenario = controllers(&mut chance, plant, seed, end);
    scenario.quiet_from = falls;

    // An agent that is down when all are stopped is up again soon: then it is stopped too.
    scenario.stops = vec![end, end + STOPS_WITHIN];
    (chance, Case { seed, size, kinds: Vec::new(), scenario })
}

fn chassis(chance: &mut Chance, size: Size, falls_s: u64) -> PlantSpec {
    let servers = servers(chance, size, falls_s);
    let full: f64 = servers.iter().map(|s| s.model.full_w).sum();
    let fans = between(chance, 0.01, 0.04) * full;
    let noise_ppm = chance.below(10_001) as u32;
    let quantum = one_of(chance, &[Watts::from_milli(100), Watts::from_whole(1)]);
    let sensor = |lag, refresh| SensorSpec {
        lag: Duration::from_millis(lag),
        refresh: Duration::from_millis(refresh),
        noise_ppm,
        quantum,
    };

    let meter = sensor(50 + chance.below(350), one_of(chance, &[100, 200, 500]));
    let supply_meter = sensor(chance.below(200), one_of(chance, &[100, 200]));
    let mut plant = PlantSpec {
        servers,
        supplies: Vec::new(),
        shared: SharedSpec {
            fans_idle: watts(fans),
            fans_full: watts(fans * between(chance, 1.0, 2.5)),
            switch: watts(0.5 * fans),
        },
        meter,
        supply_meter,
        hardware_caps: true,
        budget: watts(2.0 * full),
    };

    // The supplies' loss depends on their rating, and the rating on the draw: a first guess, then again.
    let count = 2 + chance.below(3) as usize;
    plant.supplies = vec![SupplySpec::active(watts(1.3 * full / (count as f64 - 1.0))); count];
    let seconds = falls_s as f64;
    let peak_w = peak_draw(&plant, seconds, SAMPLES, false).as_f64();
    let floor_w = peak_draw(&plant, seconds, SAMPLES, true).as_f64() / FLOOR_SHARE;
    let calm_w = quiet_draw(&plant) / CALM_SHARE;
    let lowest_w = 1.03 * floor_w.max(calm_w);
    let budget_w = between(chance, lowest_w, (1.05 * peak_w).max(lowest_w));

    // Without one feed the others carry the budget, or only what must be carried.
    let left_w = if chance.happens(500_000) { 1.1 * budget_w } else { between(chance, lowest_w, budget_w) };
    plant.supplies = vec![SupplySpec::active(watts(left_w / (count as f64 - 1.0))); count];
    plant.budget = watts(budget_w);

    plant
}

/// Servers that are alike, or each is drawn.
fn servers(chance: &mut Chance, size: Size, falls_s: u64) -> Vec<ServerSpec> {
    let (servers, cores) = match size {
        Size::Larger => (65 + chance.below(64), 4 + chance.below(13)),
        _ => {
            let servers = log_uniform(chance, 1, 64);
            (servers, log_uniform(chance, 4, 64.min(CORES_MAX / servers)))
        }
    };

    let alike = chance.happens(500_000);
    let user_facing = between(chance, 0.0, 0.7);
    let usual = model(chance, cores);
    (0..servers as usize)
        .map(|n| {
            let (model, cores) = if alike {
                (usual, cores)
            } else {
                let cores = (cores / 2 + chance.below(cores.max(1))).max(4);
                (model(chance, cores), cores)
            };

            server(chance, n, model, cores, user_facing, falls_s)
        })
        .collect()
}

fn model(chance: &mut Chance, cores: u64) -> PowerModel {
    let idle_w = between(chance, 30.0, 60.0) + between(chance, 1.0, 2.0) * cores as f64;
    let full_w = idle_w + between(chance, 3.0, 6.0) * cores as f64;
    PowerModel::in_proportion(idle_w, full_w)
}

fn server(
    chance: &mut Chance,
    n: usize,
    model: PowerModel,
    cores: u64,
    user_facing: f64,
    falls_s: u64,
) -> ServerSpec {
    let mhz = KiloHertz::from_mhz;
    let ladder = Ladder::stepped(mhz(1200), mhz(2400), mhz(100));
    let ladder = ladder.expect("the floor is below the maximum");
    let mut vms = Vec::new();
    let mut next = 0;

    while next < cores {
        let size = (1 + chance.below(8)).min(cores - next);

        // Some cores belong to nobody.
        if chance.happens(900_000) {
            let is_user_facing = share(chance) < user_facing;
            let class = if is_user_facing { VmClass::UserFacing } else { VmClass::NonUserFacing };
            vms.push(VmLoad {
                vcpus: None,
                id: VmId::new(&format!("vm{}", vms.len())).expect("letters and digits are an id"),
                class,
                throttle_order: chance.below(2) as u8,
                cores: (next..next + size).map(|core| CoreId(core as u16)).collect(),
                on_extreme: OnExtreme::None,
                load: Load::Profile(load(chance, falls_s as f64)),
            });
        }

        next += size;
    }

    ServerSpec {
        id: ServerId::new(&format!("s{:03}", n + 1)).expect("letters and digits are an id"),
        model,
        sockets: 1 + u16::from(cores >= 16),
        cores: (0..cores).map(|c| Core { id: CoreId(c as u16), ladder: ladder.clone() }).collect(),
        vms,
    }
}

/// Load of one shape or another, that falls for good.
fn load(chance: &mut Chance, falls_s: f64) -> Profile {
    let (low, high) = (between(chance, 0.05, 0.4), between(chance, 0.4, 1.0));
    let mut points = match chance.below(4) {
        0 => vec![(0.0, high)],
        1 => vec![(0.0, low), (between(chance, 2.0, 0.5 * falls_s), high)],
        2 => {
            let (period, up) = (between(chance, 2.0, 30.0), between(chance, 0.2, 0.8));
            let count = (falls_s / period) as u32 + 1;
            let wave = |n: u32| {
                let at = f64::from(n) * period;
                [(at, low), (at + up * period, high)]
            };

            (0..count).flat_map(wave).collect()
        }
        _ => {
            let mut at = 0.0;
            let mut points = Vec::new();
            while at < falls_s {
                points.push((at, between(chance, low, high)));
                at += between(chance, 1.0, 10.0);
            }

            points
        }
    };

    points.retain(|(at, _)| *at < falls_s);
    points.push((falls_s, CALM_LOAD));

    Profile::Steps(points.into())
}

/// What the chassis draws after the load fell, in watts.
fn quiet_draw(plant: &PlantSpec) -> f64 {
    let mut calm = plant.clone();
    for vm in calm.servers.iter_mut().flat_map(|s| &mut s.vms) {
        vm.load = Load::Profile(Profile::Constant(CALM_LOAD));
    }
    peak_draw(&calm, 1.0, 1, false).as_f64()
}

/// The controllers: our policies more often than the paper's, configured for the meters that there are.
fn controllers(chance: &mut Chance, plant: PlantSpec, seed: u64, end: Instant) -> Scenario {
    // Chooses nothing any more; without it every seed would be another run.
    chance.below(2);
    let floating = chance.happens(150_000);
    let even = chance.happens(250_000);
    let meter = plant.meter;
    let length = (end + 2 * STOPS_WITHIN).since(Instant::ZERO);
    let mut scenario = Scenario::new(plant, Policy::Stepwise, seed, length);

    let refresh = meter.refresh.max(Duration::from_millis(200));
    for (agent, server) in scenario.agents.iter_mut().zip(&scenario.plant.servers) {
        agent.actuator = if floating { Actuator::CpuMax } else { Actuator::Pstate };
        agent.settle = meter.lag + refresh;
        agent.stale_after = Some(3 * refresh);
        agent.server_limit_floor = Some(hardware_floor(&server.model));
    }

    scenario.chassis.shares = if even { SharePolicy::Even } else { SharePolicy::CriticalFirst };

    for (slot, server) in scenario.chassis.servers.iter_mut().zip(&scenario.plant.servers) {
        // Some servers have no path.
        let floor = hardware_floor(&server.model);
        slot.out_of_band_floor = (!chance.happens(30_000)).then_some(floor);
    }

    scenario.checks = Checks::ORACLES;
    scenario
}

/// The lowest hardware cap that a server takes: what it draws at full load and a third of its frequency.
fn hardware_floor(model: &PowerModel) -> Watts {
    model.power(1.0, 1.0 / 3.0)
}

/// What goes wrong, put into `scenario`; gives its kinds.
fn troubles(chance: &mut Chance, scenario: &mut Scenario, only: Option<Kind>, falls: Instant) -> Vec<Kind> {
    let mut allowed: Vec<_> = Kind::ALL.into_iter().filter(|_| chance.happens(250_000)).collect();
    if allowed.is_empty() {
        allowed.push(one_of(chance, &Kind::ALL));
    }
    let count = 1 + chance.below(8);

    // Often all of it hits the same few servers.
    let servers = scenario.plant.servers.len();
    let few = servers.min(1 + chance.below(3) as usize);
    let servers = if chance.happens(500_000) { few } else { servers };
    let extent = Extent { servers, supplies: scenario.plant.supplies.len() };
    let first = Instant::from_millis(FIRST_S * 1000);
    let room = falls.since(first);

    let mut kinds = Vec::new();
    let mut windows = Vec::new();
    let count = if only.is_some() { 1 } else { count };

    for _ in 0..count {
        let kind = only.unwrap_or_else(|| one_of(chance, &allowed));
        let lasts = only.is_some() || chance.happens(250_000);
        let from = first + chance.span(room / if only.is_some() { 3 } else { 1 });
        let length = Duration::from_millis(log_uniform(chance, 100, 20_000));
        let to = if lasts { NEVER } else { (from + length).min(falls) };

        match kind {
            Kind::WrongModel => wrong_model(chance, scenario),
            Kind::BudgetMoves => move_budget(chance, scenario, from, to.min(falls)),
            _ => {
                let until = to.min(falls + Duration::from_secs(QUIET_S));
                let drawn = kind.windows(chance, extent, from, until);
                windows.extend(drawn);
            }
        }

        kinds.push(kind);
    }

    scenario.faults = FaultPlan { windows };
    kinds.sort_unstable();
    kinds.dedup();

    kinds
}

/// Some server's agent has a model that is up to a fifth off.
fn wrong_model(chance: &mut Chance, scenario: &mut Scenario) {
    let server = chance.below(scenario.agents.len() as u64) as usize;
    let model = scenario.agents[server].model;
    let (idle, full) = (between(chance, 0.8, 1.2), between(chance, 0.8, 1.2));
    let idle_w = model.idle_w * idle;
    scenario.agents[server].model = PowerModel::in_proportion(idle_w, idle_w + model.dynamic_w() * full);
}

/// An operator lowers the budget, as far as the load at its floor still fits, and takes that back.
fn move_budget(chance: &mut Chance, scenario: &mut Scenario, from: Instant, to: Instant) {
    let seconds = FALLS_S as f64;
    let floor_w = peak_draw(&scenario.plant, seconds, SAMPLES, true).as_f64() / FLOOR_SHARE;
    let calm_w = quiet_draw(&scenario.plant) / CALM_SHARE;
    let budget_w = scenario.plant.budget.as_f64();
    let lower = between(chance, floor_w.max(calm_w).min(0.99 * budget_w), 0.99 * budget_w);
    scenario.budgets.push((from, Some(watts(lower))));
    scenario.budgets.push((to, None));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_its_seed_and_fits_at_its_floor() {
        for seed in 1..60 {
            let case = case(seed, None);
            let again = super::case(seed, None);
            assert_eq!(format!("{:?}", case.scenario), format!("{:?}", again.scenario));

            let plant = &case.scenario.plant;
            let cores: usize = plant.servers.iter().map(|s| s.cores.len()).sum();
            let servers = plant.servers.len();
            match case.size {
                Size::Larger => assert!(servers > 64),
                _ => assert!(servers <= 64 && cores <= 2 * CORES_MAX as usize, "{cores}"),
            }
            let floor = peak_draw(plant, FALLS_S as f64, SAMPLES, true);
            assert!(floor < plant.budget, "seed {seed}: {floor} at the floor of {}", plant.budget);
            assert!(case.kinds.len() <= 8 && !case.kinds.is_empty());
        }
    }

    #[test]
    fn one_kind_alone_lasts_to_the_end() {
        for kind in [Kind::AgentDown, Kind::MeterMissing, Kind::FeedLoss] {
            let case = case(7, Some(kind));
            assert_eq!(case.kinds, [kind]);
            let windows = &case.scenario.faults.windows;
            assert!(windows.len() == 1 && windows[0].to >= case.scenario.stops[0], "{windows:?}");
        }
    }

    #[test]
    fn sizes_are_drawn_over_their_whole_range() {
        let mut servers: Vec<_> =
            (1..400).map(|seed| case(seed, Some(Kind::Partition)).scenario.plant.servers.len()).collect();
        servers.sort_unstable();
        assert!(servers[0] == 1 && servers[200] < 16 && servers[390] > 40, "{servers:?}");
    }
}
