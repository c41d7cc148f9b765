//! What the status says of VMs beside what the controller knows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::lock;
use ballast_types::VmId;
use ballast_types::wire::AgentStatus;

#[derive(Default)]
struct Said {
    origins: BTreeMap<VmId, String>,
    alarms: Vec<String>,
}

/// Where VMs come from, and what is wrong with them. The set of VMs writes it; its lock is held for a moment
/// only, so that the control thread never waits for cores that are being moved.
#[derive(Clone, Default)]
pub(in crate::agent) struct Notes(Arc<Mutex<Said>>);

impl Notes {
    pub(super) fn replace(&self, origins: BTreeMap<VmId, String>, alarms: Vec<String>) {
        *lock(&self.0) = Said { origins, alarms };
    }

    #[cfg(test)]
    pub(super) fn alarms(&self) -> Vec<String> {
        lock(&self.0).alarms.clone()
    }

    /// Adds them to the status.
    pub(in crate::agent) fn add_to(&self, status: &mut AgentStatus) {
        let said = lock(&self.0);
        for vm in &mut status.vms {
            vm.origin = said.origins.get(&vm.vm).cloned();
        }
        status.alarms.extend_from_slice(&said.alarms);
    }
}
