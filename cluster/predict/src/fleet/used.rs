//! What VMs do, half hour by half hour: the weeks that labels are told from, and the draws of servers.
//!
//! The VMs of a deployment do the same at the same time, but for a few percent of their own. Those that serve
//! people are busiest in the early afternoon, all of them: their users live in one place. There are no
//! weekends; after five days a VM does again what it did, on busier days more of it.

use std::collections::BTreeMap;

use ballast_types::{SplitMix64, VmClass};

use super::{Purpose, START_S, SyntheticFleet};
use crate::rng::Stream;
use ballast_usage::week::{DAY, HALF_HOURS, Week};

pub const HALF_HOUR_S: i64 = 1800;
/// The busiest half hour of who works for people, and how far a deployment's may lie from it.
const PEAK: (f64, f64) = (28.0, 3.0);
/// How much busier than usual a day may be: for all VMs together, and for one deployment.
const BUSIER: (f64, f64) = (0.05, 0.1);
/// How far a VM may be from its deployment in any half hour.
const OWN: f64 = 0.05;
/// The first stream of deployments' use, behind those of what workloads are like.
const USES: u64 = 1 << 42;

#[derive(Clone, Debug)]
pub struct Uses {
    seed: u64,
    /// By deployment: five days with a P95 of 1.
    days: Vec<[f32; HALF_HOURS]>,
    /// The deployment of each VM, and its P95 as a share of its cores.
    vms: Vec<(u32, f64)>,
}

#[derive(Clone, Copy, Debug)]
pub struct Use<'a> {
    days: &'a [f32; HALF_HOURS],
    p95: f64,
    seed: u64,
    deployment: u64,
    vm: u64,
}

impl Uses {
    pub fn of(fleet: &SyntheticFleet, seed: u64) -> Self {
        let mut uses = Self { seed, days: Vec::new(), vms: Vec::with_capacity(fleet.vms.len()) };
        let mut known: BTreeMap<&str, u32> = BTreeMap::new();
        for (vm, purpose) in fleet.vms.iter().zip(&fleet.purposes) {
            let number = *known.entry(&vm.deployment).or_insert_with(|| {
                let number = uses.days.len() as u32;
                uses.days.push(days(*purpose, &mut Stream::new(seed, USES + u64::from(number))));
                number
            });
            uses.vms.push((number, vm.p95_cpu.unwrap_or(100.0) / 100.0));
        }
        uses
    }

    /// The use of a VM, by its place in the fleet.
    pub fn vm(&self, place: usize) -> Use<'_> {
        let (deployment, p95) = self.vms[place];
        let days = &self.days[deployment as usize];
        Use { days, p95, seed: self.seed, deployment: u64::from(deployment), vm: place as u64 }
    }
}

impl Use<'_> {
    /// The share of its cores that it keeps busy in this half hour since the fleet's begin.
    pub fn at(&self, half_hour: u64) -> f64 {
        let (day, of) = (half_hour / DAY as u64, (half_hour % HALF_HOURS as u64) as usize);
        let off = |most: f64, what: u64, when: u64| 1.0 + most * (2.0 * chance(self.seed, what, when) - 1.0);
        let busier = off(BUSIER.0, 0, day) * off(BUSIER.1, 1 + self.deployment, day);
        let own = off(OWN, USES + self.vm, half_hour);
        (self.p95 * f64::from(self.days[of]) * busier * own).min(1.0)
    }

    /// Its mean, in percent of its cores.
    pub fn mean_percent(&self) -> f64 {
        let sum: f64 = self.days.iter().map(|of_p95| f64::from(*of_p95)).sum();
        (100.0 * self.p95 * sum / HALF_HOURS as f64).min(100.0)
    }

    /// What a labeller sees when its five days are over at this second.
    pub fn week(&self, until_s: i64) -> Week {
        let last = ((until_s - START_S) / HALF_HOUR_S) as u64;
        Week::new(core::array::from_fn(|n| {
            100.0 * self.at((last + n as u64).saturating_sub(HALF_HOURS as u64))
        }))
    }
}

/// Uniform in 0..1.
fn chance(seed: u64, what: u64, when: u64) -> f64 {
    let word = SplitMix64::finalise(SplitMix64::finalise(SplitMix64::finalise(seed) ^ what) ^ when);
    (word >> 11) as f64 / (1_u64 << 53) as f64
}

/// Five days with a P95 of 1.
fn days(purpose: Purpose, random: &mut Stream) -> [f32; HALF_HOURS] {
    let values = purpose.kind.days(random);
    let mut sorted = values;
    sorted.sort_by(f64::total_cmp);
    let p95 = sorted[HALF_HOURS * 95 / 100].max(f64::MIN_POSITIVE);
    let later = match purpose.class {
        VmClass::UserFacing => {
            let peak = (PEAK.0 + PEAK.1 * random.normal()) as usize % DAY;
            DAY + busiest(&values) - peak
        }
        VmClass::NonUserFacing => 0,
    };
    core::array::from_fn(|n| (values[(n + later) % HALF_HOURS] / p95) as f32)
}

/// The middle of the busiest two and a half hours of the typical day.
fn busiest(values: &[f64; HALF_HOURS]) -> usize {
    let around = |slot: usize| {
        let hours = (0..HALF_HOURS / DAY).flat_map(|day| (0..5).map(move |n| day * DAY + slot + n + DAY - 2));
        hours.map(|n| values[n % HALF_HOURS]).sum::<f64>()
    };
    (0..DAY).max_by(|a, b| around(*a).total_cmp(&around(*b))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Drift, Options, make};
    use crate::label::{Pattern, PatternOptions};

    fn fleet() -> SyntheticFleet {
        make(&Options { vms: 20_000, drift: Some(Drift::default()), ..Options::default() })
    }

    #[test]
    fn labels_are_wrong_as_the_labeller_is() {
        let fleet = fleet();
        let uses = Uses::of(&fleet, 1);
        let pattern = Pattern::new(PatternOptions::default());
        let mut told = [[0.0; 2]; 2];
        for (place, vm) in fleet.vms.iter().enumerate() {
            let Some(aged_s) = vm.aged_s().filter(|_| vm.class.is_some()) else { continue };
            let says = pattern.label(&uses.vm(place).week(aged_s)).user_facing;
            let is = fleet.purposes[place].class == VmClass::UserFacing;
            told[usize::from(is)][usize::from(says)] += 1.0;
        }
        let (recall, batch) =
            (told[1][1] / (told[1][0] + told[1][1]), told[0][0] / (told[0][0] + told[0][1]));
        // Timers and nightly jobs look like people; people hardly ever look like anything else.
        assert!(recall > 0.95 && (0.6..0.97).contains(&batch), "{told:?}");
    }

    #[test]
    fn use_has_its_p95_and_serves_people_by_day() {
        let fleet = fleet();
        let uses = Uses::of(&fleet, 1);
        let (mut day, mut night) = (0.0, 0.0);
        for place in (0..fleet.vms.len()).step_by(97) {
            let vm = uses.vm(place);
            let mut all: Vec<f64> = (0..20 * HALF_HOURS as u64).map(|n| vm.at(n)).collect();
            all.sort_by(f64::total_cmp);
            let (found, told) = (all[all.len() * 95 / 100], fleet.vms[place].p95_cpu.unwrap() / 100.0);
            assert!((0.85..1.15).contains(&(found / told)), "{found} {told} {:?}", fleet.purposes[place]);
            if fleet.purposes[place].class == VmClass::UserFacing {
                day += vm.at(28);
                night += vm.at(8);
            }
        }
        assert!(day > 1.5 * night, "{day} {night}");
    }
}
