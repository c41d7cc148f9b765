//! The constraints.

pub mod calibration;
pub mod estimate;
mod promise;
#[cfg(test)]
mod promise_tests;

use std::collections::{BTreeMap, HashMap};

use ballast_types::Instant;
pub use promise::{ALIKE_MIN, CpuPromise};

use crate::rule::{Ask, Event, Fit};
use crate::{Cluster, DeploymentId, DomainId, HostId, HostState, Resident, VmRequest};

/// The host has room for all that the VM asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Capacity;

impl Fit for Capacity {
    fn name(&self) -> &'static str {
        "capacity"
    }
    fn admits(&self, ask: &Ask<'_>, host: HostId) -> bool {
        ask.cluster.has_room(host, ask.vm.resources)
    }
    fn refusal(&self, ask: &Ask<'_>, host: HostId) -> Option<String> {
        let (requested, free) = (ask.vm.resources, ask.cluster.free(host));
        if self.admits(ask, host) {
            None
        } else if free.hold(requested) {
            Some(format!("{} VMs are here, and no more may be", ask.cluster.vms(host)))
        } else if free.extras.hold(requested.extras) {
            Some(format!("{requested} requested, {free} free"))
        } else {
            Some("too little is free of a resource beside cores and memory".to_owned())
        }
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
        let [left, came] = event.guests();
        left.into_iter().for_each(|(vm, host)| self.remove(vm, host));
        came.into_iter().for_each(|(vm, host)| self.add(vm, host));
    }
}

/// The VMs of a deployment are spread over fault domains, where they ask for that (`domain_skew`): none of the open domains
/// has so many more of them than another. Only VMs that ask count.
#[derive(Clone, Debug, Default)]
pub struct FaultDomains {
    /// VMs of a deployment in every domain that has one.
    counts: HashMap<DeploymentId, BTreeMap<DomainId, u32>>,
}

impl FaultDomains {
    /// How many the host's domain would have beyond the emptiest open one.
    fn excess(&self, ask: &Ask<'_>, host: HostId) -> u32 {
        let domain = ask.cluster.host(host).domain;
        let counts = ask.vm.deployment.and_then(|deployment| self.counts.get(&deployment));
        let Some(counts) = counts else { return 1 };
        let here = counts.get(&domain).copied().unwrap_or(0);
        if here == 0 {
            return 1;
        }

        let open = counts.iter().filter(|(domain, _)| ask.cluster.open_hosts_of(**domain) > 0);
        let (known, least) = open.fold((0, here), |(n, least), (_, count)| (n + 1, least.min(*count)));
        let least = if known < ask.cluster.open_domains() { 0 } else { least };

        here + 1 - least
    }

    fn asks(vm: &VmRequest) -> Option<DeploymentId> {
        vm.deployment.filter(|_| vm.domain_skew > 0)
    }

    fn add(&mut self, vm: &VmRequest, domain: DomainId) {
        if let Some(deployment) = Self::asks(vm) {
            *self.counts.entry(deployment).or_default().entry(domain).or_default() += 1;
        }
    }

    fn remove(&mut self, vm: &VmRequest, domain: DomainId) {
        let Some(deployment) = Self::asks(vm) else { return };
        let Some(counts) = self.counts.get_mut(&deployment) else { return };
        if let Some(count) = counts.get_mut(&domain) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&domain);
            }
        }
        if counts.is_empty() {
            self.counts.remove(&deployment);
        }
    }
}

impl Fit for FaultDomains {
    fn name(&self) -> &'static str {
        "fault-domains"
    }
    fn admits(&self, ask: &Ask<'_>, host: HostId) -> bool {
        ask.vm.domain_skew == 0 || self.excess(ask, host) <= u32::from(ask.vm.domain_skew)
    }
    fn refusal(&self, ask: &Ask<'_>, host: HostId) -> Option<String> {
        (!self.admits(ask, host)).then(|| {
            let (excess, skew) = (self.excess(ask, host), ask.vm.domain_skew);
            format!(
                "its fault domain would have {excess} VMs of its deployment more than the emptiest: at most \
                 {skew}"
            )
        })
    }
    fn retain(&self, ask: &Ask<'_>, hosts: &mut Vec<HostId>) {
        if ask.vm.domain_skew > 0 {
            hosts.retain(|host| self.admits(ask, *host));
        }
    }
    fn handle_event(&mut self, _now: Instant, cluster: &Cluster, event: &Event<'_>) {
        if let Event::HostChanged { host, before: Some(before) } = event
            && cluster.contains(*host)
            && before.domain != cluster.host(*host).domain
        {
            for Resident { vm, .. } in cluster.residents_of(*host) {
                self.remove(&vm, before.domain);
                self.add(&vm, cluster.host(*host).domain);
            }
        }

        let [left, came] = event.guests();
        left.into_iter().for_each(|(vm, host)| self.remove(vm, cluster.host(host).domain));
        came.into_iter().for_each(|(vm, host)| self.add(vm, cluster.host(host).domain));
    }
}
