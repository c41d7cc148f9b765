//! What really happened: exact, sampled at every step, seen by no controller.

use ballast_types::{ServerId, VmClass, VmId, Watts};
use serde::Serialize;

use crate::load::Latencies;

/// Core-seconds below the highest frequency, by what held them there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ByCause {
    /// A cap that software set on the core; or a quota that software set on the VM, for as long as it
    /// stopped a core that wanted to run.
    pub software: f64,
    /// A package limit (RAPL).
    pub rapl: f64,
    /// A limit of the slot, set out of band.
    pub out_of_band: f64,
    /// The alert of overloaded power supplies.
    pub supply: f64,
}

impl ByCause {
    pub fn total(&self) -> f64 {
        self.software + self.rapl + self.out_of_band + self.supply
    }

    pub(super) fn add(&mut self, cores: &Self, seconds: f64) {
        self.software += cores.software * seconds;
        self.rapl += cores.rapl * seconds;
        self.out_of_band += cores.out_of_band * seconds;
        self.supply += cores.supply * seconds;
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    sum: f64,
    cores: f64,
}

impl Mean {
    /// Adds a sum over so many cores.
    pub(super) fn add(&mut self, sum: f64, cores: f64) {
        self.sum += sum;
        self.cores += cores;
    }

    /// The mean over all that were added; 1 without a core.
    pub(super) fn over(all: impl Iterator<Item = Self>) -> f64 {
        let mut mean = Self::default();
        all.for_each(|one| mean.add(one.sum, one.cores));
        if mean.cores > 0.0 { mean.sum / mean.cores } else { 1.0 }
    }
}

/// What really happened since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Truth {
    pub elapsed_s: f64,
    /// The budget it is judged against.
    pub budget_w: Watts,
    /// The highest draw at the supplies' input.
    pub max_power_w: Watts,
    /// The mean draw at the supplies' input.
    pub mean_power_w: Watts,
    /// The longest unbroken stretch above the budget, in seconds.
    pub over_budget_s_max: f64,
    pub over_budget_s_total: f64,
    /// Core-seconds that cores of user-facing VMs were held below their highest frequency.
    pub user_facing_throttled_core_s: ByCause,
    /// The same for all other VMs.
    pub batch_throttled_core_s: ByCause,
    /// Seconds in which RAPL, a slot limit or a supply's alert held back at least one core.
    pub hardware_engaged_s: f64,
    /// Frequency of the non-user-facing VMs' cores as a share of the highest, over cores and time; times
    /// the share of its cores' time that a VM's quota leaves it.
    pub batch_frequency_ratio_mean: f64,
    pub batch_frequency_ratio_end: f64,
    /// Every VM, by server and then as specified.
    pub vms: Vec<VmTruth>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VmTruth {
    pub server: ServerId,
    pub vm: VmId,
    pub class: VmClass,
    pub cpu_s: f64,
    /// Core-seconds that its cores were held below their highest frequency.
    pub throttled_core_s: ByCause,
    /// Latencies of a queue's requests; empty for others.
    pub latency: Latencies,
    /// A queue's requests that went away unanswered.
    pub refused: u64,
    /// Batch work done, in core-seconds at the highest frequency. For a batch VM that follows a profile it
    /// is the demand that was met: what does not fit into a full core is lost.
    pub work_core_s: f64,
    pub jobs: u64,
    /// When it was killed, in seconds since the start; `null` while it lives.
    pub killed_at_s: Option<f64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    steps: u64,
    energy_j: f64,
    max_w: f64,
    over: u64,
    over_now: u64,
    over_max: u64,
    engaged: u64,
    batch_ratio: f64,
}

impl Sums {
    pub(super) fn add(&mut self, power_w: f64, budget_w: f64, engaged: bool, ratio: f64) {
        self.steps += 1;
        self.energy_j += power_w * super::STEP_S;
        self.max_w = self.max_w.max(power_w);
        if power_w > budget_w {
            self.over += 1;
            self.over_now += 1;
            self.over_max = self.over_max.max(self.over_now);
        } else {
            self.over_now = 0;
        }
        self.engaged += u64::from(engaged);
        self.batch_ratio += ratio;
    }

    pub(super) fn energy_j(&self) -> f64 {
        self.energy_j
    }

    pub(super) fn write(&self, truth: &mut Truth) {
        let seconds = |steps: u64| steps as f64 * super::STEP_S;
        let elapsed = seconds(self.steps);
        truth.elapsed_s = elapsed;
        truth.over_budget_s_max = seconds(self.over_max);
        truth.over_budget_s_total = seconds(self.over);
        truth.hardware_engaged_s = seconds(self.engaged);
        if self.steps > 0 {
            truth.max_power_w = Watts::from_f64(self.max_w).unwrap_or(Watts::MAX);
            truth.mean_power_w = Watts::from_f64(self.energy_j / elapsed).unwrap_or(Watts::MAX);
            truth.batch_frequency_ratio_mean = self.batch_ratio / self.steps as f64;
        }
    }
}
