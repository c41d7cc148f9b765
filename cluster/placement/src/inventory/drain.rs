//! Hosts that are drained, by names.

use ballast_types::Instant;

use super::{HostSpec, Inventory};
use crate::drain::{DrainVm, Site, emptiest};
use crate::{HostId, HostState, VmKey};

impl Inventory {
    /// The hosts that are emptied with the least effort, so many at most: see [`emptiest`].
    pub fn emptiest(&self, count: usize) -> Vec<String> {
        emptiest(self.cluster(), count).into_iter().map(|host| self.host_name(host).to_owned()).collect()
    }

    fn drained(&self, it: &DrainVm<VmKey, HostId>) -> DrainVm<String, String> {
        DrainVm {
            vm: self.vms.name(it.vm.0).to_owned(),
            host: self.host_name(it.host).to_owned(),
            since: it.since,
            resources: it.resources,
            remaining_s: it.remaining_s,
        }
    }

    fn vm_key(&self, vm: &str) -> Option<VmKey> {
        self.vms.number(vm).map(VmKey)
    }
}

impl Site<String, String> for Inventory {
    fn guests(&self, now: Instant, host: &String) -> Vec<DrainVm<String, String>> {
        let Some(id) = self.find(host) else { return vec![] };
        let mut guests: Vec<_> = self.scheduler.guests(now, &id).iter().map(|it| self.drained(it)).collect();
        guests.sort_by(|a, b| a.vm.cmp(&b.vm));
        guests
    }

    fn guest(&self, now: Instant, vm: &String) -> Option<DrainVm<String, String>> {
        self.scheduler.guest(now, &self.vm_key(vm)?).map(|it| self.drained(&it))
    }

    fn target(&self, vm: &String) -> Option<String> {
        let host = self.scheduler.target(&self.vm_key(vm)?)?;
        Some(self.host_name(host).to_owned())
    }

    fn start_move(&mut self, now: Instant, vm: &String) -> Option<String> {
        let key = self.vm_key(vm)?;
        let host = Site::start_move(&mut self.scheduler, now, &key)?;
        Some(self.host_name(host).to_owned())
    }

    fn start_move_to(&mut self, now: Instant, vm: &String, to: &String) -> bool {
        let there = self.vm_key(vm).zip(self.find(to));
        there.is_some_and(|(vm, to)| Site::start_move_to(&mut self.scheduler, now, &vm, &to))
    }

    fn finish_move(&mut self, now: Instant, vm: &String, to: &String) -> bool {
        self.migrate(now, vm, to).is_ok()
    }

    fn cancel_move(&mut self, now: Instant, vm: &String) {
        if let Some(key) = self.vm_key(vm) {
            self.scheduler.cancel_move(now, key);
        }
    }

    fn state(&self, host: &String) -> Option<HostState> {
        self.find(host).map(|host| self.cluster().state(host))
    }

    fn set_state(&mut self, now: Instant, host: &String, state: HostState) {
        if let Some(before) = self.host(host).map(|host| host.spec.clone()) {
            // Nothing of it is new but the state, which any host can have.
            let _ = self.set_host(now, host, &HostSpec { state, ..before });
        }
    }

    fn is_empty(&self, host: &String) -> bool {
        self.find(host).is_none_or(|host| self.scheduler.is_empty(&host))
    }
}
