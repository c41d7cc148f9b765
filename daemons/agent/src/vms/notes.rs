//! What the status says of VMs beside what the controller knows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ballast_runtime::lock;
use ballast_types::wire::{
    AgentStatus, Alarm, HeldPredictions, Limits, OverflowHour, RecordsStatus, Usage as UsageAnswer, VmCpuUse,
    VmPrediction, VmSpec,
};
use ballast_types::{VmClass, VmId};

#[derive(Default)]
struct VmNotes {
    specs: BTreeMap<VmId, VmSpec>,
    origins: BTreeMap<VmId, String>,
    alarms: Vec<Alarm>,
    predicted: BTreeMap<VmId, VmPrediction>,
    predictions: Option<HeldPredictions>,
    usage: Usage,
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

    pub(crate) fn usage(&self, tell: impl FnOnce(&mut Usage)) {
        tell(&mut lock(&self.0).usage);
    }

    /// What `GET /v1/usage` tells.
    pub(crate) fn usage_answer(&self, now_unix_s: u64) -> UsageAnswer {
        let said = lock(&self.0);
        UsageAnswer { now_unix_s, vms: said.usage.vms.clone(), hours: said.usage.hours.clone() }
    }

    /// What `GET /v1/limits` tells.
    pub(crate) fn limits(&self) -> Limits {
        lock(&self.0).usage.limits.clone()
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
        status.records = Some(said.usage.records.clone());
        status.predictions = said.predictions;
        status.alarms.extend(said.alarms.iter().chain(&said.usage.alarms).cloned());
    }
}
