//! A month of VM deployments with the paper's statistics.
//!
//! Source: Kumbhare et al., arXiv 2010.15388, Section IV-A and Table I. The table gives shares per bin; what it
//! leaves open was chosen: values are uniform in a bin (lifetimes log-uniform), the last one ends at 2160 h.

use ballast_placement::{MemoryKb, MilliCores, Resources, VmKey};
use ballast_types::table_one::{CORES, DEPLOYMENT_VMS, P95_QUARTERS};
use ballast_types::{Utilisation, VmClass};

use crate::rng::{Purpose, Stream};

const HOUR_MS: f64 = 3_600_000.0;

/// Share, and the least and the greatest lifetime in hours.
const HOURS: [(f64, f64, f64); 7] = [
    (0.52, 1.0, 1.0),
    (0.05, 2.0, 2.0),
    (0.10, 3.0, 5.0),
    (0.09, 6.0, 10.0),
    (0.07, 11.0, 25.0),
    (0.08, 26.0, 720.0),
    (0.09, 721.0, 2160.0),
];
/// Nothing that still lives came earlier than this.
const LONGEST_HOURS: f64 = 2160.0;
/// The share of cores that user-facing VMs take.
const USER_FACING: f64 = 0.4;

/// One VM, as it is. What a scheduler is told of it is a prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClusterVm {
    pub id: VmKey,
    pub cores: u16,
    /// How long it lives, in milliseconds.
    pub lifetime_ms: u64,
    pub class: VmClass,
    /// The 95th percentile of its CPU utilisation.
    pub p95: Utilisation,
    /// What chance has in store for those who predict it, each uniform in 0..1: the same for all of them, and for
    /// all VMs of a deployment, since a model that is wrong about a workload is wrong about each of its VMs.
    pub luck: [f64; 4],
}

impl ClusterVm {
    /// What it takes. The paper's cluster knows cores only.
    pub fn resources(&self) -> Resources {
        Resources::new(MilliCores::from_cores(self.cores), MemoryKb::ZERO)
    }
}

/// VMs that are asked for together, all or none.
#[derive(Clone, Debug, PartialEq)]
pub struct Deployment {
    /// When, in milliseconds from the start of what is looked at.
    pub at_ms: u64,
    pub vms: Vec<ClusterVm>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// VMs that are there at the start with what is left of their lives, in the order in which they came.
    pub residents: Vec<ClusterVm>,
    pub deployments: Vec<Deployment>,
}

impl Workload {
    /// All VMs in the order in which they come.
    pub(super) fn vms(&self) -> impl Iterator<Item = &ClusterVm> {
        self.residents.iter().chain(self.deployments.iter().flat_map(|deployment| &deployment.vms))
    }

    /// So many days of deployments that come at random times (Poisson), as often as takes the share `load` of
    /// `cores` on average. Residents are who is left of a past of the same kind, so that nothing has to
    /// settle.
    pub fn generate(seed: u64, cores: u32, load: f64, days: u16) -> Self {
        let mut chance = Stream::new(seed, Purpose::Cluster, 0, 0);
        let vm_core_hours = mean(&CORES.map(|(share, cores)| (share, f64::from(cores))))
            * mean(&HOURS.map(|(share, low, high)| (share, log_mean(low, high))));
        let vms = mean(&DEPLOYMENT_VMS.map(|(share, low, high)| (share, f64::from(low + high) / 2.0)));
        let gap_hours = vms * vm_core_hours / (load * f64::from(cores));
        let end_hours = 24.0 * f64::from(days);
        let (mut residents, mut deployments) = (Vec::new(), Vec::new());
        let mut at_hours = -LONGEST_HOURS;
        let mut next = 0;

        loop {
            at_hours += gap_hours * chance.exponential();
            if at_hours >= end_hours {
                return Self { residents, deployments };
            }
            let vms = deployment(&mut chance, &mut next);

            if at_hours < 0.0 {
                let left = vms.into_iter().filter_map(|vm| {
                    let past = (-at_hours * HOUR_MS) as u64;
                    let lifetime_ms = vm.lifetime_ms.checked_sub(past).filter(|left| *left > 0)?;
                    Some(ClusterVm { lifetime_ms, ..vm })
                });

                residents.extend(left);
            } else {
                deployments.push(Deployment { at_ms: (at_hours * HOUR_MS) as u64, vms });
            }
        }
    }
}

fn deployment(chance: &mut Stream, next: &mut u64) -> Vec<ClusterVm> {
    let (_, low, high) = DEPLOYMENT_VMS[pick(chance, &DEPLOYMENT_VMS.map(|(share, ..)| share))];
    let count = low + (chance.uniform() * f64::from(high - low + 1)) as u16;
    let user_facing = chance.uniform() < USER_FACING;
    let class = if user_facing { VmClass::UserFacing } else { VmClass::NonUserFacing };
    // What runs on VMs of one deployment is the same, so a prediction of it is wrong for all of them or for none.
    let quarter = pick(chance, &P95_QUARTERS[usize::from(!user_facing)]);
    let luck = core::array::from_fn(|_| chance.uniform());
    let vm = |_| {
        let cores = made_cores(chance);
        let (_, low, high) = HOURS[pick(chance, &HOURS.map(|(share, ..)| share))];
        let hours = low * libm::pow(high / low, chance.uniform());
        let p95 = (quarter as f64 + chance.uniform()) / 4.0;
        *next += 1;

        ClusterVm {
            id: VmKey(*next),
            cores,
            lifetime_ms: (hours * HOUR_MS) as u64,
            class,
            p95: Utilisation::from_ratio(p95).unwrap_or(Utilisation::FULL),
            luck,
        }
    };

    (0..count).map(vm).collect()
}

pub fn made_cores(chance: &mut Stream) -> u16 {
    CORES[pick(chance, &CORES.map(|(share, _)| share))].1
}

pub(super) fn pick(chance: &mut Stream, shares: &[f64]) -> usize {
    pick_by(chance.uniform(), shares)
}

/// One of these, by a number from 0 to 1.
pub(super) fn pick_by(uniform: f64, shares: &[f64]) -> usize {
    let mut left = uniform;
    let found = shares.iter().position(|share| {
        left -= share;
        left < 0.0
    });
    found.unwrap_or(shares.len() - 1)
}

fn mean(of: &[(f64, f64)]) -> f64 {
    of.iter().map(|(share, value)| share * value).sum()
}

/// The mean of what is log-uniform between two ends.
fn log_mean(low: f64, high: f64) -> f64 {
    if high > low { (high - low) / libm::log(high / low) } else { low }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(name: &str, value: f64, expected: f64, tolerance: f64) {
        assert!((value - expected).abs() <= tolerance, "{name}: {value}, not {expected}");
    }

    #[test]
    fn shares_add_up_and_the_class_means_are_the_papers() {
        let shares = [CORES.map(|c| c.0), DEPLOYMENT_VMS.map(|v| v.0), HOURS.map(|h| h.0)];
        for of in shares {
            close("shares", of.iter().sum(), 1.0, 1e-9);
        }
        let mean = |of: [f64; 4]| (0..4).map(|b| of[b] * (b as f64 + 0.5) / 4.0).sum::<f64>();
        close("user-facing P95", mean(P95_QUARTERS[0]), 0.65, 0.001);
        close("other P95", mean(P95_QUARTERS[1]), 0.44, 0.001);
    }

    #[test]
    fn a_workload_has_the_tables_statistics_and_starts_in_balance() {
        let loads = [1, 2, 3, 4, 5, 6].map(|seed| Workload::generate(seed, 28_800, 0.65, 30));
        let vms: Vec<&ClusterVm> = loads.iter().flat_map(|l| &l.deployments).flat_map(|d| &d.vms).collect();
        let share = |f: &dyn Fn(&&&ClusterVm) -> bool| vms.iter().filter(f).count() as f64 / vms.len() as f64;
        close("one core", share(&|vm| vm.cores == 1), 0.33, 0.01);
        close("32 cores", share(&|vm| vm.cores == 32), 0.01, 0.003);
        close("one hour", share(&|vm| vm.lifetime_ms == 3_600_000), 0.52, 0.01);
        close("a month", share(&|vm| vm.lifetime_ms > 720 * 3_600_000), 0.09, 0.01);
        let mut deployments = loads.iter().flat_map(|l| &l.deployments);
        let is_like = |vm: &ClusterVm, first: &ClusterVm| {
            let apart = (vm.p95.ratio() - first.p95.ratio()).abs();
            (vm.luck, vm.class) == (first.luck, first.class) && apart <= 0.2501
        };
        assert!(deployments.all(|d| d.vms.iter().all(|vm| is_like(vm, &d.vms[0]))));
        let (mut facing, mut all) = (0.0, 0.0);

        for vm in &vms {
            all += f64::from(vm.cores);
            facing += f64::from(vm.cores) * f64::from(u8::from(vm.class == VmClass::UserFacing));
        }

        close("user-facing cores", facing / all, 0.4, 0.05);

        for load in &loads {
            let there: f64 = load.residents.iter().map(|vm| f64::from(vm.cores)).sum();
            close("resident share", there / 28_800.0, 0.65, 0.15);
        }

        let single = loads.iter().flat_map(|l| &l.deployments);
        let (one, count) = single.fold((0, 0), |(one, all), d| (one + u32::from(d.vms.len() == 1), all + 1));
        close("single VMs", f64::from(one) / f64::from(count), 0.39, 0.02);
    }

    #[test]
    fn the_same_seed_gives_the_same_load() {
        let of = |seed| Workload::generate(seed, 4800, 0.65, 3);
        assert_eq!(of(7), of(7));
        assert!(of(7) != of(8));
        assert!(of(7).deployments.is_sorted_by_key(|d| d.at_ms));
    }
}
