//! What an agent, and the placement daemon for all agents, tell of limits of VMs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::VmId;

/// What is done with limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitsMode {
    /// None are made.
    #[default]
    Off,
    /// They are shown.
    Recommend,
    /// They are set.
    Apply,
}

/// `GET /v1/limits` of an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// What the agent does with them.
    pub mode: LimitsMode,
    /// Every VM with a record of the last days.
    pub vms: BTreeMap<VmId, VmLimits>,
}

/// The limits of one VM, in [`Limits`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VmLimits {
    /// How many CPUs it has.
    pub cores: u16,
    /// The CPU time that it should be given; `None` where nothing is recommended.
    pub cpu_limit_cores: Option<f64>,
    /// Where that comes from.
    pub cpu: LimitAdvice,
    /// The memory that it should be given; `None` where nothing is recommended.
    pub memory_limit_mib: Option<u64>,
    /// Where that comes from.
    pub memory: LimitAdvice,
}

/// Where a limit comes from, and what the limits before it came to in the last seven days and today, in [`VmLimits`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LimitAdvice {
    /// The recommender, as `[limits]` names it.
    pub family: String,
    /// With what it is run.
    pub settings: String,
    /// Five-minute windows on record, in days.
    pub history_days: f64,
    /// The mean over days of 1 − P95 of the use / mean limit.
    pub slack: Option<f64>,
    /// The share of five-minute windows of which more than a twentieth was above the limit.
    pub overruns: Option<f64>,
    /// How often the limit became another.
    pub changes_per_day: Option<f64>,
    /// Whether it is in force.
    pub applied: bool,
    /// Why nothing is recommended, or what is recommended is not in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// `GET /v1/limits` of the placement daemon: what the agents have told lately, added up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FleetLimits {
    /// Of all servers that are listed below.
    pub total: LimitSums,
    /// Every server whose agent has told its limits in the last half hour; each VM's are told by the agent.
    pub servers: BTreeMap<String, LimitSums>,
    /// Why the agents of other servers have not.
    pub failing: BTreeMap<String, String>,
}

/// The limits of some VMs together, in [`FleetLimits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LimitSums {
    /// VMs with a record of the last two weeks.
    pub vms: u64,
    /// VMs with a recommended limit of CPU.
    pub cpu_vms: u64,
    /// How many cores these VMs have.
    pub cpu_cores: u64,
    /// The sum of their limits.
    pub cpu_limit_cores: f64,
    /// Those of them whose limit is in force.
    pub cpu_applied: u64,
    /// VMs with a recommended limit of memory.
    pub memory_vms: u64,
    /// The sum of these limits.
    pub memory_limit_mib: u64,
    /// Those of them whose limit is in force.
    pub memory_applied: u64,
}

impl LimitSums {
    /// What an agent has told, added up.
    pub fn of(limits: &Limits) -> Self {
        let mut sums = Self::default();
        for vm in limits.vms.values() {
            let has_cpu = u64::from(vm.cpu_limit_cores.is_some());
            sums += Self {
                vms: 1,
                cpu_vms: has_cpu,
                cpu_cores: has_cpu * u64::from(vm.cores),
                cpu_limit_cores: vm.cpu_limit_cores.unwrap_or(0.0),
                cpu_applied: u64::from(vm.cpu.applied),
                memory_vms: u64::from(vm.memory_limit_mib.is_some()),
                memory_limit_mib: vm.memory_limit_mib.unwrap_or(0),
                memory_applied: u64::from(vm.memory.applied),
            };
        }
        sums
    }
}

impl core::ops::AddAssign for LimitSums {
    fn add_assign(&mut self, other: Self) {
        self.vms += other.vms;
        self.cpu_vms += other.cpu_vms;
        self.cpu_cores += other.cpu_cores;
        self.cpu_limit_cores += other.cpu_limit_cores;
        self.cpu_applied += other.cpu_applied;
        self.memory_vms += other.memory_vms;
        self.memory_limit_mib = self.memory_limit_mib.saturating_add(other.memory_limit_mib);
        self.memory_applied += other.memory_applied;
    }
}

impl Limits {
    /// No answer is longer, in bytes.
    pub const BYTES_MAX: usize = 4 << 20;
}
