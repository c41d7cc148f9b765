//! Half hours under a budget, with the real chassis manager and agents in virtual time.
//!
//! Every half hour whose draw could make the manager alert is run by itself: five seconds of calm, then fifteen of
//! the half hour's load, which stand for all of it. All others are uncapped. Every server has the VMs that were
//! placed there; its agent knows of them what it was told.

use core::time::Duration;
use std::ops::Range;
use std::sync::Arc;

use ballast_agent_core::Policy;
use ballast_sim::load::Profile;
use ballast_sim::plant::{Load, PlantSpec, SensorSpec, ServerSpec, VmLoad};
use ballast_sim::scenario::Scenario;
use ballast_sim::world::{Checks, Violation};
use ballast_types::{Core, CoreId, KiloHertz, Ladder, OnExtreme, PowerModel, ServerId, VmClass, VmId, Watts};
use serde::Serialize;

use super::CORES;
use super::placed::{KINDS, Need, Needs, classes, draw_w};

const LEAD_S: u32 = 5;
const LOAD_S: u32 = 15;
/// In the lead a chassis draws no more than this share of its budget.
const CALM: f64 = 0.9;
/// The manager alerts at this share of the budget; a meter's error is hardly ever twice its deviation.
const ALERT: f64 = 0.98;
const NOISE_PPM: u32 = 2_500;
/// Within this time an overload must be gone: the chassis manager's default.
const TRIP_S: f64 = 5.0;
/// Half hours that may be capped.
const CAPPED: f64 = 0.01;
/// User-facing core time that may be slowed: one VM of a hundred that the models miss, as often.
const SLOWED: f64 = 1e-4;

/// What half hours came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Measured {
    pub half_hours: u64,
    /// Of these, those in which anything was slowed.
    pub capped: u64,
    /// Cores' half hours, by kind: all, and those that were slowed.
    cores: [f64; KINDS],
    slowed: [f64; KINDS],
    /// The longest stretch above the budget, in seconds.
    pub over_budget_s_max: f64,
}

impl Measured {
    /// Half hours with capping, as a share of all.
    pub fn capped_rate(&self) -> f64 {
        self.capped as f64 / self.half_hours.max(1) as f64
    }

    /// User-facing core time that was slowed, as a share of all of it: by the truth.
    pub fn user_facing_slowed(&self) -> f64 {
        self.share_slowed(|_, is| is == VmClass::UserFacing)
    }

    fn share_slowed(&self, of: impl Fn(VmClass, VmClass) -> bool) -> f64 {
        let sum = |values: &[f64; KINDS]| -> f64 {
            let these = (0..KINDS).filter(|kind| {
                let (told, is) = classes(*kind);
                of(told, is)
            });
            these.map(|kind| values[kind]).sum()
        };
        sum(&self.slowed) / sum(&self.cores).max(f64::MIN_POSITIVE)
    }

    /// Whether VMs were slowed as seldom as was promised, user-facing ones by the truth.
    pub fn keeps(&self) -> bool {
        self.rare() && self.user_facing_slowed() <= SLOWED
    }

    /// The same as far as an operator sees it: by what was told.
    pub(super) fn keeps_as_told(&self) -> bool {
        self.rare() && self.share_slowed(|told, _| told == VmClass::UserFacing) <= SLOWED
    }

    fn rare(&self) -> bool {
        self.capped_rate() <= CAPPED && self.over_budget_s_max <= TRIP_S
    }
}

/// Runs the half hours of all chassis under this budget, until more are capped than may be.
pub(super) fn replay(
    needs: &Needs,
    half_hours: Range<usize>,
    budget: Watts,
    seed: u64,
) -> Result<Measured, Violation> {
    let model = PowerModel::PAPER;
    let threshold_w = ALERT * budget.as_f64() / (1.0 + 2e-6 * f64::from(NOISE_PPM));
    let all = (0..needs.chassis()).flat_map(|chassis| half_hours.clone().map(move |half| (chassis, half)));
    let mut measured = Measured::default();
    let (mut hot, mut above) = (Vec::new(), 0);

    for (chassis, half_hour) in all {
        let servers = needs.servers(chassis, half_hour);
        measured.half_hours += 1;
        for need in servers {
            need.cores.iter().zip(&mut measured.cores).for_each(|(n, sum)| *sum += f64::from(*n));
        }
        let draw_w = draw_w(servers, &model);
        above += u64::from(draw_w > budget.as_f64());
        if draw_w >= threshold_w {
            hot.push((chassis, half_hour, draw_w));
        }
    }

    // What is above the budget is capped, or worse.
    let most = (CAPPED * measured.half_hours as f64) as u64;
    if above > most {
        measured.capped = above;
        return Ok(measured);
    }

    // The highest first: a broken promise shows soon.
    hot.sort_by(|a, b| b.2.total_cmp(&a.2));
    for (chassis, half_hour, draw_w) in hot {
        let seed = seed.wrapping_add(((half_hour as u64) << 32) + ((chassis as u64) << 16));
        let scenario = scenario(needs.servers(chassis, half_hour), draw_w, budget, seed);
        let report = scenario.run(&mut []).kept()?;
        let truth = report.truth();
        measured.over_budget_s_max = measured.over_budget_s_max.max(truth.over_budget_s_max);

        let mut capped = false;
        for vm in &truth.vms {
            let slowed = vm.throttled_core_s.total();
            capped |= slowed > 0.0;
            let kind = NAMES.iter().position(|name| vm.vm.as_str() == *name).unwrap_or(0);
            measured.slowed[kind] += slowed / f64::from(LOAD_S);
        }
        measured.capped += u64::from(capped);
        if measured.capped > most {
            break;
        }
    }

    Ok(measured)
}

const NAMES: [&str; KINDS] = ["user", "spared", "mistaken", "batch"];

fn scenario(servers: &[Need], draw_w: f64, budget: Watts, seed: u64) -> Scenario {
    let model = PowerModel::PAPER;
    let idle_w = servers.len() as f64 * model.static_w(1.0);
    let calm = ((CALM * budget.as_f64() - idle_w) / (draw_w - idle_w)).clamp(0.0, 1.0);
    let specs = servers.iter().enumerate().map(|(n, need)| server(n, need, calm)).collect();
    let meter = SensorSpec { noise_ppm: NOISE_PPM, ..SensorSpec::default() };
    let plant = PlantSpec::lossless(specs, meter, budget);
    let length = Duration::from_secs(u64::from(LEAD_S + LOAD_S));
    let mut scenario = Scenario::new(plant, Policy::Stepwise, seed, length);
    scenario.checks = Checks::NONE;
    scenario.chassis.shared_floor = Some(Watts::ZERO);

    scenario.limit_no_lower_than_hardware(&model);
    for agent in &mut scenario.agents {
        agent.floors.insert(0, 50);
    }
    scenario
}

fn server(number: usize, need: &Need, calm: f64) -> ServerSpec {
    let half = CORES as u16 / 2;
    let ladder =
        Ladder::stepped(KiloHertz::from_mhz(1200), KiloHertz::from_mhz(2400), KiloHertz::from_mhz(100));
    let ladder = ladder.expect("a floor above 0 and not above the maximum");
    let mut used = 0;
    let mut vms = Vec::new();

    for kind in (0..KINDS).filter(|kind| need.cores[*kind] > 0) {
        let cores = u16::from(need.cores[kind]);
        let busy = f64::from(need.busy[kind]) / f64::from(cores);
        let line: Arc<[(f64, f64)]> = [(0.0, calm * busy), (f64::from(LEAD_S), busy)].into();
        vms.push(VmLoad {
            vcpus: None,
            id: VmId::new(NAMES[kind]).expect("letters"),
            class: classes(kind).0,
            throttle_order: 0,
            // Of the two packages in turn.
            cores: (used..used + cores).map(|k| CoreId(k / 2 + half * (k % 2))).collect(),
            on_extreme: OnExtreme::None,
            load: Load::Profile(Profile::Steps(line)),
        });
        used += cores;
    }

    ServerSpec {
        id: ServerId::new(&format!("s{:02}", number + 1)).expect("a letter and digits"),
        model: PowerModel::PAPER,
        sockets: 2,
        cores: (0..CORES as u16).map(|id| Core { id: CoreId(id), ladder: ladder.clone() }).collect(),
        vms,
    }
}
