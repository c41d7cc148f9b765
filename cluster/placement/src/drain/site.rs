//! Where VMs are, and what is done to them.

use core::cmp::Reverse;

use ballast_types::Instant;

use super::order::DrainVm;
use crate::{Cluster, HostId, HostState, Resident, Scheduler, VmKey};

/// Hosts and VMs, as whoever drains hosts calls them.
pub trait Site<V, H> {
    /// The VMs of a host, by name.
    fn guests(&self, now: Instant, host: &H) -> Vec<DrainVm<V, H>>;
    /// A VM; `None` where it is not placed.
    fn guest(&self, now: Instant, vm: &V) -> Option<DrainVm<V, H>>;
    /// The host that holds room for a VM on its way.
    fn target(&self, vm: &V) -> Option<H>;
    /// Sends a VM on its way to the best host that has room, and holds it there; `None` where there is none.
    fn start_move(&mut self, now: Instant, vm: &V) -> Option<H>;
    /// Sends a VM on its way to this host; says whether there is room.
    fn start_move_to(&mut self, now: Instant, vm: &V, to: &H) -> bool;
    /// A VM on its way has arrived; says whether it could.
    fn finish_move(&mut self, now: Instant, vm: &V, to: &H) -> bool;
    /// A VM on its way stays where it is.
    fn cancel_move(&mut self, now: Instant, vm: &V);
    /// Whether VMs may come to a host; `None` where there is no such host.
    fn state(&self, host: &H) -> Option<HostState>;
    /// Opens, cordons or drains a host that exists.
    fn set_state(&mut self, now: Instant, host: &H, state: HostState);
    /// Whether a host that exists has no VM, and holds room for none.
    fn is_empty(&self, host: &H) -> bool;
}

impl Site<VmKey, HostId> for Scheduler {
    fn guests(&self, now: Instant, host: &HostId) -> Vec<DrainVm<VmKey, HostId>> {
        self.cluster().residents_of(*host).iter().map(|it| drained(self.cluster(), now, it)).collect()
    }

    fn guest(&self, now: Instant, vm: &VmKey) -> Option<DrainVm<VmKey, HostId>> {
        self.cluster().resident(*vm).map(|it| drained(self.cluster(), now, &it))
    }

    fn target(&self, vm: &VmKey) -> Option<HostId> {
        self.on_the_way(*vm)
    }

    fn start_move(&mut self, now: Instant, vm: &VmKey) -> Option<HostId> {
        Self::start_move(self, now, *vm).ok()
    }

    fn start_move_to(&mut self, now: Instant, vm: &VmKey, to: &HostId) -> bool {
        Self::start_move_to(self, now, *vm, *to).is_ok()
    }

    fn finish_move(&mut self, now: Instant, vm: &VmKey, to: &HostId) -> bool {
        self.migrate(now, *vm, *to).is_ok()
    }

    fn cancel_move(&mut self, now: Instant, vm: &VmKey) {
        Self::cancel_move(self, now, *vm);
    }

    fn state(&self, host: &HostId) -> Option<HostState> {
        self.cluster().contains(*host).then(|| self.cluster().state(*host))
    }

    fn set_state(&mut self, _: Instant, host: &HostId, state: HostState) {
        // Fails only where there is no such host.
        let _ = Self::set_state(self, *host, state);
    }

    fn is_empty(&self, host: &HostId) -> bool {
        self.cluster().vms(*host) == 0 && self.cluster().held(*host) == 0
    }
}

fn drained(cluster: &Cluster, now: Instant, resident: &Resident) -> DrainVm<VmKey, HostId> {
    let Resident { vm, host, since } = *resident;
    let remaining_s = cluster.remaining(now, since, vm.end).map(|left| left.as_secs_f32());
    DrainVm { vm: vm.id, host, since, resources: vm.resources, remaining_s }
}

/// The open hosts that are emptied with the least effort, so many at most: the most free cores, then the fewest VMs,
/// then the most free memory; a host that has no VM, or holds room for one, is none of them.
pub fn emptiest(cluster: &Cluster, count: usize) -> Vec<HostId> {
    let is_used = |host: &HostId| {
        cluster.state(*host) == HostState::Open && cluster.vms(*host) > 0 && cluster.held(*host) == 0
    };
    let mut hosts: Vec<HostId> = cluster.ids().filter(is_used).collect();
    hosts.sort_by_key(|host| {
        let free = cluster.free(*host);
        (Reverse(free.cores), cluster.vms(*host), Reverse(free.memory), *host)
    });
    hosts.truncate(count);
    hosts
}
