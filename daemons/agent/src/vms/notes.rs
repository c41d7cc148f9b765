//! What the status says of VMs beside what the controller knows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ballast_runtime::lock;
use ballast_types::wire::{
    AgentStatus, Alarm, HeldPredictions, Limits, OverflowHour, RecordsStatus, Usage as UsageAnswer, VmCpuUse,
    VmLimits, VmPrediction, VmSpec,
};
use ballast_types::{VmClass, VmId};

use super::limits::{HeldCounts, LimitTarget, LimitsInForce};

#[derive(Default)]
struct VmNotes {
    specs: BTreeMap<VmId, VmSpec>,
    cpus: BTreeMap<VmId, usize>,
    origins: BTreeMap<VmId, String>,
    alarms: Vec<Alarm>,
    predicted: BTreeMap<VmId, VmPrediction>,
    predictions: Option<HeldPredictions>,
    usage: Usage,
    /// Which limits are in force, and why others are not.
    in_force: BTreeMap<VmId, LimitsInForce>,
    held: HeldCounts,
}

/// What is told of the VMs' use.
#[derive(Default)]
pub(crate) struct Usage {
    /// What became of the records.
    pub(crate) records: RecordsStatus,
    /// What is wrong with them.
    pub(crate) alarms: Vec<Alarm>,
    /// What VMs without a class seem to be, and why.
    pub(crate) advice: BTreeMap<VmId, (VmClass, String)>,
    /// What VMs used in the last days.
    pub(crate) vms: BTreeMap<VmId, VmCpuUse>,
    /// How often all of them used all that there is.
    pub(crate) hours: Vec<OverflowHour>,
    /// How much each should get.
    pub(crate) limits: Limits,
}

/// Where VMs come from, and what is wrong with them. The set of VMs writes it; its lock is held for a moment
/// only, so that neither the control
/// thread nor the list of VMs waits for cores that are being moved, nor for those who move them.
#[derive(Clone, Default)]
pub(crate) struct Notes(Arc<Mutex<VmNotes>>);

impl Notes {
    pub(super) fn replace(
        &self,
        specs: BTreeMap<VmId, VmSpec>,
        origins: BTreeMap<VmId, String>,
        alarms: Vec<Alarm>,
    ) {
        let mut said = lock(&self.0);
        (said.specs, said.origins, said.alarms) = (specs, origins, alarms);
    }

    /// What is predicted of VMs.
    pub(super) fn predict(&self, vms: BTreeMap<VmId, VmPrediction>, held: Option<HeldPredictions>) {
        let mut said = lock(&self.0);
        (said.predicted, said.predictions) = (vms, held);
    }

    /// Every VM as it was asked for, or found, when the last change was through.
    pub(crate) fn specs(&self) -> BTreeMap<VmId, VmSpec> {
        lock(&self.0).specs.clone()
    }

    /// How many CPUs every VM's use is told as a share of.
    pub(super) fn measure(&self, cpus: BTreeMap<VmId, usize>) {
        lock(&self.0).cpus = cpus;
    }

    /// The same, as it is now.
    pub(crate) fn measured_cpus(&self) -> BTreeMap<VmId, usize> {
        lock(&self.0).cpus.clone()
    }

    pub(crate) fn usage(&self, tell: impl FnOnce(&mut Usage)) {
        tell(&mut lock(&self.0).usage);
    }

    /// What `GET /v1/usage` tells.
    pub(crate) fn usage_answer(&self, now_unix_s: u64) -> UsageAnswer {
        let said = lock(&self.0);
        UsageAnswer { now_unix_s, vms: said.usage.vms.clone(), hours: said.usage.hours.clone() }
    }

    /// Which limits are in force, and how often those of memory were held.
    pub(super) fn limits_in_force(&self, in_force: BTreeMap<VmId, LimitsInForce>, held: HeldCounts) {
        let mut said = lock(&self.0);
        (said.in_force, said.held) = (in_force, held);
    }

    /// What every VM on record should get.
    pub(crate) fn limit_targets(&self) -> BTreeMap<VmId, LimitTarget> {
        let target = |(vm, it): (&VmId, &VmLimits)| {
            let millicores = it.cpu_limit_cores.map(|cores| (cores * 1000.0).round() as u32);
            let memory_bytes = it.memory_limit_mib.map(|mib| mib << 20);
            (vm.clone(), LimitTarget { millicores, memory_bytes })
        };
        lock(&self.0).usage.limits.vms.iter().map(target).collect()
    }

    /// What `GET /v1/limits` tells.
    pub(crate) fn limits(&self) -> Limits {
        let said = lock(&self.0);
        let mut limits = said.usage.limits.clone();
        for (vm, it) in &mut limits.vms {
            let Some(in_force) = said.in_force.get(vm) else { continue };
            for (advice, state) in [(&mut it.cpu, &in_force.cpu), (&mut it.memory, &in_force.memory)] {
                if let Some(state) = state {
                    advice.applied = state.is_ok();
                    advice.why = state.clone().err();
                }
            }
        }
        limits
    }

    #[cfg(test)]
    pub(super) fn alarms(&self) -> Vec<String> {
        lock(&self.0).alarms.iter().map(|alarm| alarm.message.clone()).collect()
    }

    pub(crate) fn add_to(&self, status: &mut AgentStatus) {
        let said = lock(&self.0);
        for vm in &mut status.vms {
            vm.origin = said.origins.get(&vm.vm).cloned();
            vm.predicted = said.predicted.get(&vm.vm).copied();
            (vm.advised_class, vm.advised_why) = said.usage.advice.get(&vm.vm).cloned().unzip();
        }
        let mut records = said.usage.records.clone();
        records.limits_held = said.held.iter().map(|(why, count)| ((*why).to_owned(), *count)).collect();
        status.records = Some(records);
        status.predictions = said.predictions;
        status.alarms.extend(said.alarms.iter().chain(&said.usage.alarms).cloned());
    }
}
