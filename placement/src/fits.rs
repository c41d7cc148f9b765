//! The constraints.

pub mod estimate;

use std::collections::HashMap;

use ballast_types::Instant;

use crate::rule::{Ask, Event, Fit};
use crate::{Cluster, DeploymentId, HostId, HostState, VmRequest};

/// The host has room for all that the VM asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Capacity;

impl Fit for Capacity {
    fn name(&self) -> &'static str {
        "capacity"
    }
    fn admits(&self, ask: &Ask<'_>, host: HostId) -> bool {
        ask.cluster.free(host).hold(ask.vm.resources)
    }
    fn refusal(&self, ask: &Ask<'_>, host: HostId) -> Option<String> {
        let (requested, free) = (ask.vm.resources, ask.cluster.free(host));
        (!free.hold(requested)).then(|| format!("{requested} requested, {free} free"))
    }
}

/// The host is open: neither cordoned nor draining.
#[derive(Clone, Copy, Debug, Default)]
pub struct Open;

impl Fit for Open {
    fn name(&self) -> &'static str {
        "open"
    }
    fn admits(&self, ask: &Ask<'_>, host: HostId) -> bool {
        ask.cluster.state(host) == HostState::Open
    }
    fn refusal(&self, ask: &Ask<'_>, host: HostId) -> Option<String> {
        match ask.cluster.state(host) {
            HostState::Open => None,
            HostState::Cordoned => Some("cordoned".to_owned()),
            HostState::Draining => Some("draining".to_owned()),
        }
    }
}

/// No two VMs of a deployment on one host, where the VM asks for that (`spread`).
#[derive(Clone, Debug, Default)]
pub struct AntiAffinity {
    /// VMs of a deployment on a host.
    counts: HashMap<(DeploymentId, HostId), u32>,
}

impl AntiAffinity {
    fn count(&self, ask: &Ask<'_>, host: HostId) -> u32 {
        match ask.vm.deployment {
            Some(deployment) if ask.vm.spread => self.counts.get(&(deployment, host)).copied().unwrap_or(0),
            _ => 0,
        }
    }
    fn add(&mut self, vm: &VmRequest, host: HostId) {
        if let Some(deployment) = vm.deployment {
            *self.counts.entry((deployment, host)).or_default() += 1;
        }
    }
    fn remove(&mut self, vm: &VmRequest, host: HostId) {
        let Some(deployment) = vm.deployment else { return };
        if let Some(count) = self.counts.get_mut(&(deployment, host)) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&(deployment, host));
            }
        }
    }
}

impl Fit for AntiAffinity {
    fn name(&self) -> &'static str {
        "anti-affinity"
    }
    fn admits(&self, ask: &Ask<'_>, host: HostId) -> bool {
        self.count(ask, host) == 0
    }
    fn refusal(&self, ask: &Ask<'_>, host: HostId) -> Option<String> {
        match self.count(ask, host) {
            0 => None,
            count => Some(format!("{count} of its deployment are here")),
        }
    }
    fn retain(&self, ask: &Ask<'_>, hosts: &mut Vec<HostId>) {
        if ask.vm.spread {
            hosts.retain(|host| self.admits(ask, *host));
        }
    }
    fn handle_event(&mut self, _now: Instant, _cluster: &Cluster, event: &Event<'_>) {
        match *event {
            Event::Placed { vm, host } | Event::Held { vm, host } => self.add(vm, host),
            Event::Ended { vm, host } | Event::Released { vm, host } => self.remove(vm, host),
            Event::Migrated { vm, from, to } => {
                self.remove(vm, from);
                self.add(vm, to);
            }
            Event::Resized { before, after, host } | Event::Repredicted { before, after, host } => {
                self.remove(before, host);
                self.add(after, host);
            }
            Event::Deadline => {}
        }
    }
}
