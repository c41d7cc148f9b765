//! A chassis's draw as loads of VMs, and what the policy means for their cores.

use std::sync::Arc;

use ballast_agent_core as agent;
use ballast_planner::Policy;
use ballast_types::{Core, CoreId, KiloHertz, Ladder, OnExtreme, ServerId, VmClass, VmId, Watts};

use super::{Demand, Draws, Options, Planned, ServerLoads};
use crate::load::{BATCH_BOUND, BatchSpec, Profile};
use crate::plant::{Load, PlantSpec, SensorSpec, ServerSpec, VmLoad};
use crate::rng::{Purpose, Stream};

/// Cores of one server: 2 packages of 20, of 1.2 to 2.4 GHz in steps of 100 MHz.
const CORES: u16 = 40;
const MAX: KiloHertz = KiloHertz::from_mhz(2400);
const STEP: KiloHertz = KiloHertz::from_mhz(100);
/// No draw is made of loads that are so many times as high.
const FACTOR_MAX: f64 = 1e6;
/// More work than any run has time for, in core-seconds.
const ENDLESS: f64 = 1e12;

/// Whom a VM works for, as the policy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    UserFacing,
    /// Non-user-facing, and not capped first: it counts as user-facing.
    CappedLast,
    First,
}

impl Kind {
    const ALL: [Self; 3] = [Self::UserFacing, Self::CappedLast, Self::First];

    /// Whether capping it counts as an event of user-facing VMs.
    pub(super) fn is_user_facing(self) -> bool {
        self != Self::First
    }
}

/// Something of each of [`Kind::ALL`].
type Each<T> = [T; 3];

#[derive(Clone, Debug)]
pub(super) struct Loads<'a> {
    planned: &'a Planned,
    options: &'a Options,
    measured: Option<&'a ServerLoads>,
    /// Of the others' load, what is capped first.
    first: f64,
    /// Which share of the dynamic power each kind has, where loads were not measured.
    shares: Each<f64>,
    servers: Vec<Server>,
}

#[derive(Clone, Debug)]
struct Server {
    /// How far its dynamic power lies from the mean at half load, as a share of it.
    lean: f64,
    cores: Each<u16>,
}

impl<'a> Loads<'a> {
    /// The servers of the chassis that drew `draws`, with cores for the highest of them.
    pub(super) fn new(draws: &'a Draws, planned: &'a Planned, options: &'a Options, seed: u64) -> Self {
        let chassis = &planned.chassis;
        let first = chassis.capped_first(planned.approach.treated);
        let split = |user_facing: f64, others: f64| [user_facing, others * (1.0 - first), others * first];
        let cores = split(chassis.beta, 1.0 - chassis.beta);
        let busy = split(
            chassis.beta * chassis.util_user_facing,
            (1.0 - chassis.beta) * chassis.util_non_user_facing,
        );

        let sum: f64 = busy.iter().sum();

        // Nobody is busy: then nothing can be shed, whatever the draw is.
        let shares = if sum > 0.0 { busy.map(|busy| busy / sum) } else { [1.0, 0.0, 0.0] };
        let measured = draws.loads();
        let mut all = Self { planned, options, measured, first, shares, servers: Vec::new() };
        let leans = all.leans(seed).into_iter();
        all.servers = leans.map(|lean| Server { lean, cores: [0; 3] }).collect();

        let mut needed = vec![[0.0_f64; 3]; all.servers.len()];
        let mut busiest = |unit: usize, draw: Watts| {
            for (most, busy) in needed.iter_mut().zip(all.busy(unit, draw)) {
                *most = core::array::from_fn(|kind| most[kind].max(f64::from(CORES) * busy[kind]));
            }
        };

        if measured.is_some() {
            (0..draws.len())
                .for_each(|unit| draws.get(unit).into_iter().for_each(|draw| busiest(unit, draw)));
        } else {
            busiest(0, draws.iter().max().unwrap_or(Watts::ZERO));
        }

        let wanted = cores.map(|share| f64::from(CORES) * chassis.alloc * share);
        for (server, needed) in all.servers.iter_mut().zip(needed) {
            // Classes that peak at different times may need more than there is: each gets its part.
            let most = needed.iter().sum::<f64>().max(f64::from(CORES));
            server.cores = fit(needed.map(|cores| cores * f64::from(CORES) / most), wanted);
        }

        all
    }

    /// Seeded, with mean zero, within the imbalance.
    fn leans(&self, seed: u64) -> Vec<f64> {
        let servers = self.planned.chassis.servers as usize;
        let mut rng = Stream::new(seed, Purpose::Scenario, 0, 0);
        let raw: Vec<f64> = (0..servers).map(|_| 2.0 * rng.uniform() - 1.0).collect();
        let mean = raw.iter().sum::<f64>() / servers.max(1) as f64;
        let most = raw.iter().map(|lean| (lean - mean).abs()).fold(1.0, f64::max);
        raw.iter().map(|lean| (lean - mean) / most * self.options.imbalance).collect()
    }

    /// A server's dynamic power at a chassis draw, as a share of what full load takes; 0 to 1.
    fn load(&self, draw: Watts) -> f64 {
        let each = draw.per(self.planned.chassis.servers.into());
        self.planned.chassis.server.utilisation(each, 1.0).clamp(0.0, 1.0)
    }

    /// How busy each kind keeps every server, as shares of its cores, when the chassis draws `draw` in `unit`.
    fn busy(&self, unit: usize, draw: Watts) -> Vec<Each<f64>> {
        let load = self.load(draw);
        let Some(mut servers) = self.measured.and_then(|loads| loads.at(unit)) else {
            let even = |server: &Server| self.shares.map(|share| share * leaning(server.lean, load));
            return self.servers.iter().map(even).collect();
        };

        // A server without loads is idle; the draw is what was read, so all are busier or idler by one factor.
        servers.resize(self.servers.len(), [0.0; 2]);
        let all = load * servers.len() as f64;
        let sum =
            |factor: f64| servers.iter().map(|both| (factor * (both[0] + both[1])).min(1.0)).sum::<f64>();
        let (mut low, mut high) = (0.0, 1.0);
        while sum(high) < all && high < FACTOR_MAX {
            (low, high) = (high, 2.0 * high);
        }
        for _ in 0..40 {
            let middle = 0.5 * (low + high);
            if sum(middle) < all { low = middle } else { high = middle }
        }

        let kinds = |[user_facing, others]: [f64; 2]| {
            let factor = high.min(1.0 / (user_facing + others).max(f64::MIN_POSITIVE));
            [user_facing, others * (1.0 - self.first), others * self.first].map(|share| share * factor)
        };
        servers.into_iter().map(kinds).collect()
    }

    /// The plant under these draws: `(second, unit, draw)`, each until the next.
    pub(super) fn plant(&self, draws: &[(f64, usize, Watts)]) -> PlantSpec {
        let meter = SensorSpec { noise_ppm: self.options.meter_noise_ppm, ..SensorSpec::default() };
        let busy: Vec<_> = draws.iter().map(|(at, unit, draw)| (*at, self.busy(*unit, *draw))).collect();
        let mut servers: Vec<ServerSpec> = Vec::with_capacity(self.servers.len());
        for (n, server) in self.servers.iter().enumerate() {
            let id = ServerId::new(&format!("s{:02}", n + 1)).expect("a letter and digits");
            // Servers that are alike share their lines.
            let before = n
                .checked_sub(1)
                .filter(|before| self.measured.is_none() && self.servers[*before].lean == server.lean);
            let spec = match before {
                Some(before) => ServerSpec { id, ..servers[before].clone() },
                None => self.server(id, n, &busy),
            };
            servers.push(spec);
        }
        PlantSpec::lossless(servers, meter, self.planned.plan.budget)
    }

    fn server(&self, id: ServerId, number: usize, busy: &[(f64, Vec<Each<f64>>)]) -> ServerSpec {
        let server = &self.servers[number];
        let lines: Each<Arc<[(f64, f64)]>> = core::array::from_fn(|kind| {
            let point =
                |(at, busy): &(f64, Vec<Each<f64>>)| (*at, utilisations(server.cores, busy[number])[kind]);
            busy.iter().map(point).collect()
        });

        let mut vms = Vec::new();
        let mut used = 0;

        for (n, kind) in Kind::ALL.into_iter().enumerate() {
            let half = CORES / 2;

            // Cores of the two packages in turn.
            let cores: Vec<u16> = (used..used + server.cores[n]).map(|k| k / 2 + half * (k % 2)).collect();
            used += server.cores[n];

            if !cores.is_empty() {
                vms.push(self.vm(kind, cores, lines[n].clone()));
            }
        }

        let ladder = self.ladder();
        let core = |id| Core { id: CoreId(id), ladder: ladder.clone() };

        ServerSpec {
            id,
            model: self.planned.chassis.server,
            sockets: 2,
            cores: (0..CORES).map(core).collect(),
            vms,
        }
    }

    /// Every core's p-states. Under full-server capping they end at its floor; otherwise the agents know how
    /// low each class may go.
    fn ladder(&self) -> Ladder {
        let policy = &self.planned.approach.policy;
        let (first, user_facing) = policy.floors();
        let lowest = match policy {
            Policy::FullServer { .. } => first,
            Policy::PerVm { .. } | Policy::Provisioned => first.min(user_facing).min(0.5),
        };
        // At least what was accepted, in whole kilohertz.
        let khz = libm::ceil(f64::from(MAX.get()) * lowest) as u32;
        let ladder = Ladder::stepped(KiloHertz::new(khz.clamp(1, MAX.get())), MAX, STEP);
        ladder.expect("a floor above 0 and not above the maximum")
    }

    fn vm(&self, kind: Kind, cores: Vec<u16>, line: Arc<[(f64, f64)]>) -> VmLoad {
        let (name, class) = match kind {
            Kind::First => ("batch", VmClass::NonUserFacing),
            Kind::UserFacing => ("user", VmClass::UserFacing),
            Kind::CappedLast => ("spared", VmClass::UserFacing),
        };

        let demand = Profile::Steps(line);
        let load = match (self.options.demand, kind) {
            (Demand::Closed, Kind::First | Kind::CappedLast) => Load::Batch(BatchSpec {
                work_core_s: ENDLESS,
                demand,
                frequency_bound: BATCH_BOUND,
                repeat: true,
            }),
            _ => Load::Profile(demand),
        };

        VmLoad {
            vcpus: None,
            id: VmId::new(name).expect("letters"),
            class,
            throttle_order: 0,
            cores: cores.into_iter().map(CoreId).collect(),
            on_extreme: OnExtreme::None,
            load,
        }
    }

    /// The kinds of all VMs, by server and then as specified.
    pub(super) fn kinds(&self) -> Vec<(usize, usize, Kind)> {
        let mut all = Vec::new();
        for (n, server) in self.servers.iter().enumerate() {
            let kinds = Kind::ALL.into_iter().zip(server.cores).filter(|(_, cores)| *cores > 0);
            all.extend(kinds.enumerate().map(|(vm, (kind, _))| (n, vm, kind)));
        }
        all
    }

    pub(super) fn agents(&self) -> agent::Policy {
        match self.planned.approach.policy {
            Policy::FullServer { .. } => agent::Policy::FullServer,
            Policy::PerVm { .. } => agent::Policy::Stepwise,
            Policy::Provisioned => agent::Policy::None,
        }
    }

    /// Tells an agent how low each class may go, as its config would (`[[class]]`, `[throttle]`).
    pub(super) fn set_floors(&self, agent: &mut agent::Params) {
        if let Policy::PerVm { .. } = self.planned.approach.policy {
            let (first, user_facing) = self.planned.approach.policy.floors();
            let percent = |floor: f64| libm::ceil(100.0 * floor - 1e-9) as u8;
            agent.floors.insert(0, percent(first));
            agent.user_facing_floor_percent = (user_facing < 1.0).then(|| percent(user_facing));
        }
    }
}

/// How busy each kind's cores are when it needs these shares of the server.
fn utilisations(cores: Each<u16>, shares: Each<f64>) -> Each<f64> {
    let needed = shares.map(|share| f64::from(CORES) * share);
    let room = cores.map(f64::from);
    let mut busy: Each<f64> = core::array::from_fn(|kind| needed[kind].min(room[kind]));

    // What one kind's cores cannot take, the next ones do: cores come whole.
    let mut left = needed.iter().sum::<f64>() - busy.iter().sum::<f64>();
    for kind in 0..busy.len() {
        let more = left.clamp(0.0, room[kind] - busy[kind]);
        busy[kind] += more;
        left -= more;
    }
    core::array::from_fn(|kind| if room[kind] > 0.0 { busy[kind] / room[kind] } else { 0.0 })
}

/// The load of a server that leans to one side, where the mean is `load`. It stays within 0 to 1, and the
/// mean of servers whose leans have mean zero stays what it was.
fn leaning(lean: f64, load: f64) -> f64 {
    load * (1.0 + lean * (1.0 - load))
}

/// Whole cores: what is needed, then what is wanted, as far as there are any.
fn fit(needed: Each<f64>, wanted: Each<f64>) -> Each<u16> {
    let mut left = CORES;
    let mut cores = needed.map(|cores| {
        let cores = (libm::ceil(cores - 1e-9).max(0.0) as u16).min(left);
        left -= cores;
        cores
    });
    for (cores, wanted) in cores.iter_mut().zip(wanted) {
        let more = (libm::round(wanted) as u16).saturating_sub(*cores).min(left);
        *cores += more;
        left -= more;
    }
    cores
}

#[cfg(test)]
mod tests {
    use ballast_planner::Treated;

    use super::*;
    use crate::plant::Plant;
    use crate::verify::tests::planned;

    #[test]
    fn whole_cores_are_needed_ones_first() {
        // The paper's chassis at its mean: 8 user-facing and 12 others of 20.4.
        assert_eq!(fit([5.3, 0.0, 5.2], [8.16, 0.0, 12.24]), [8, 0, 12]);
        assert_eq!(fit([20.2, 0.0, 19.8], [16.0, 0.0, 24.0]), [21, 0, 19]);
        assert_eq!(fit([16.0, 0.0, 12.0], [16.0, 0.0, 24.0]), [16, 0, 24]);
        assert_eq!(fit([0.0; 3], [0.0; 3]), [0, 0, 0]);
    }

    #[test]
    fn the_plant_draws_what_was_read() {
        for treated in [Treated::All, Treated::Internal] {
            for imbalance in [0.0, 0.6] {
                let mut planned = planned("minimal-impact", 3600);
                planned.approach.treated = treated;
                let options = Options { imbalance, ..Options::default() };
                for highest in [1400, 2000, 2557, 3100, 3236, 3719, 3720] {
                    let draws = [1344, 1400, highest].map(|w| Some(Watts::from_whole(w)));
                    let draws = Draws::new("c1", draws);
                    let loads = Loads::new(&draws, &planned, &options, 7);
                    for draw in draws.iter() {
                        let plant = Plant::new(loads.plant(&[(0.0, 0, draw)]), 1);
                        let off = (plant.power() - draw).milli().abs();
                        assert!(off <= 20, "{treated:?} {imbalance} {highest} {draw}: {off} mW");
                    }
                }
            }
        }
    }

    #[test]
    fn each_class_is_busy_where_it_was() {
        let mut planned = planned("minimal-impact", 3600);
        planned.chassis.servers = 3;
        let options = Options::default();
        // Server 1 serves users, server 2 works for others, and server 3 has both; in unit 1 nobody knows.
        let units = [[[0.6, 0.0], [f32::NAN; 2]], [[0.0, 0.9], [0.0; 2]], [[0.1, 0.2], [0.0; 2]]];
        let as_read = 3.0 * 112.0 + 198.0 * 1.8;
        for (unit, watts) in [(0, as_read), (0, as_read + 50.0), (0, as_read - 90.0), (1, 700.0)] {
            let draw = Watts::from_f64(watts).unwrap();
            let draws = Draws::new("c1", [Some(draw); 2]);
            let draws = draws.with_loads(ServerLoads::new(units.map(Vec::from)));
            let loads = Loads::new(&draws, &planned, &options, 7);
            let plant = Plant::new(loads.plant(&[(0.0, unit, draw)]), 1);
            let off = (plant.power() - draw).milli().abs();
            assert!(off <= 20, "{unit} {watts}: {off} mW");
            let busy = loads.busy(unit, draw);
            if unit == 0 {
                let zeros = (busy[0][2], busy[1][0]);
                assert!(zeros == (0.0, 0.0) && (busy[2][2] / busy[2][0] - 2.0).abs() < 1e-3, "{busy:?}");
            }
            assert_eq!(draws.peak(2).map(|load| (load.others * 10.0).round()), Some(11.0));
        }
    }

    #[test]
    fn servers_lean_within_the_imbalance_and_only_with_it() {
        let planned = planned("no-impact", 2500);
        let draws = Draws::new("c1", [Some(Watts::from_whole(2400))]);
        let of = |imbalance, seed| {
            let options = Options { imbalance, ..Options::default() };
            let loads = Loads::new(&draws, &planned, &options, seed);
            loads.servers.iter().map(|server| server.lean).collect::<Vec<_>>()
        };
        assert_eq!(of(0.0, 1), vec![0.0; 12]);
        let leans = of(0.5, 1);
        assert!(leans.iter().all(|lean| lean.abs() <= 0.5) && leans != of(0.5, 2));
        assert!(leans.iter().sum::<f64>().abs() < 1e-9);
        assert!(leans.iter().any(|lean| *lean > 0.2), "{leans:?}");
    }
}
