//! The hosts, what is free on each, and which VM is where.

mod hosts;
mod shortage;
mod slab;

use core::time::Duration;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::balance::Balance;
use crate::units::Totals;
use crate::{ChassisId, DomainId, ExpectedEnd, HostId, PlacementError, Resources, VmKey, VmRequest};
use ballast_types::Instant;
use ballast_types::survival::Curves;

pub use shortage::Shortage;
use slab::Slab;

/// One server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// The chassis that it stands in.
    pub chassis: ChassisId,
    /// What fails with it: a rack, a room.
    pub domain: DomainId,
    /// What the host has.
    pub capacity: Resources,
    /// What its VMs may take together: more or less than it has, where it is overcommitted or keeps something back.
    pub room: Resources,
    /// So many VMs it can have, whatever they take.
    pub max_vms: Option<u32>,
    /// A number that outlives a restart, such as a hash of its name: ties hash that instead of its id.
    pub label: Option<u64>,
}

impl Host {
    /// One whose VMs may take what it has, and whose fault domain is its chassis.
    pub const fn new(chassis: ChassisId, capacity: Resources) -> Self {
        let domain = DomainId(chassis.0);
        Self { chassis, domain, capacity, room: capacity, max_vms: None, label: None }
    }
}

/// Whether VMs may come to a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostState {
    /// They may.
    #[default]
    Open,
    /// They may not; those there stay.
    Cordoned,
    /// They may not, and those there are to leave.
    Draining,
}

/// A VM and its host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resident {
    /// As it was asked for, or resized, or predicted anew.
    pub vm: VmRequest,
    /// The host that it is on.
    pub host: HostId,
    /// When it came. Moves, changes, other rules and other hosts leave that as it is.
    pub since: Instant,
}

#[derive(Clone, Debug)]
struct HostRecord {
    host: Host,
    state: HostState,
    /// One that is gone has neither VMs nor room; its id is given to the next that comes.
    present: bool,
    /// What its VMs and its holds take: more than its room, where somebody else put VMs there.
    taken: Totals,
    free: Resources,
    /// The slots of its VMs, in no order.
    vms: Vec<u32>,
    /// For how many VMs that are not there room is held.
    held: u32,
}

impl HostRecord {
    /// VMs, and those for which room is held.
    fn guests(&self) -> u32 {
        self.vms.len() as u32 + self.held
    }

    fn is_open(&self) -> bool {
        self.present && self.state == HostState::Open
    }

    fn has_room(&self, requested: Resources) -> bool {
        self.free.hold(requested) && self.host.max_vms.is_none_or(|max| self.guests() < max)
    }
}

/// The inventory. Every change is checked whole before anything is changed.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    hosts: Vec<HostRecord>,
    /// Ids of hosts that are gone.
    vacant: Vec<HostId>,
    vms: Slab,
    /// Shared with whoever made them: they are large, and never change.
    curves: Arc<Curves>,
    /// What hosts offer: each size once, with how many hosts have it.
    sizes: Vec<(Resources, u32)>,
    /// Open hosts of every fault domain.
    domains: Vec<u32>,
    balance: Balance,
    room: Totals,
    /// Free on hosts that are open.
    open: Totals,
    /// Of all hosts that have a VM, or hold room for one.
    used_hosts: u32,
    used_room: Totals,
    allocated: Totals,
}

impl Cluster {
    /// Empty hosts, all open; their ids are their indices in the list.
    pub fn new(hosts: &[Host]) -> Self {
        let mut this = Self { hosts: Vec::with_capacity(hosts.len()), ..Self::default() };
        for host in hosts {
            this.add_host(host, HostState::Open);
        }
        this
    }

    /// With the curves that its VMs' ends will name.
    #[must_use]
    pub fn with_curves(self, curves: Arc<Curves>) -> Self {
        Self { curves, ..self }
    }
    /// The curves that the VMs' ends name.
    pub fn curves(&self) -> &Curves {
        &self.curves
    }
    /// How much longer a VM is expected to live that came then; `None` where nothing is known of its end. One that has
    /// outlived a time that was told has nothing left; none has more left than it had as it came, wherever the clock has
    /// jumped.
    pub fn remaining(&self, now: Instant, since: Instant, end: Option<ExpectedEnd>) -> Option<Duration> {
        match end? {
            ExpectedEnd::At(exit) => Some(exit.since(now.max(since))),
            ExpectedEnd::Curve(id) => {
                self.curves.get(id)?;
                let left_s = self.curves.remaining_s(id, now.since(since).as_secs_f32());
                Some(Duration::from_secs_f32(left_s))
            }
        }
    }
    /// The share of the hosts' room that is left of cores or memory, whichever is scarcer: so many hosts could be empty, were
    /// VMs packed without a gap.
    pub fn bound_empty_ratio(&self) -> f64 {
        let (taken, room) = (self.allocated, self.room);
        let share = |taken: u64, room: u64| taken as f64 / room.max(1) as f64;
        let cores = share(taken.milli_cores, room.milli_cores);
        1.0 - cores.max(share(taken.memory_kb, room.memory_kb))
    }
    /// Other curves, and what is known of every VM's end by them.
    pub(crate) fn set_curves(
        &mut self,
        curves: Arc<Curves>,
        mut end: impl FnMut(&Resident) -> Option<ExpectedEnd>,
    ) {
        self.curves = curves;
        for mut resident in self.all() {
            resident.vm.end = end(&resident);
            if let Some(slot) = self.vms.find(resident.vm.id) {
                self.vms.set(slot, &resident);
            }
        }
    }

    /// How many hosts there are.
    pub fn len(&self) -> usize {
        self.hosts.len() - self.vacant.len()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Every host's id, the lowest first.
    pub fn ids(&self) -> impl Iterator<Item = HostId> + Clone {
        let present = |id: &HostId| self.record(*id).present;
        (0..self.hosts.len() as u32).map(HostId).filter(present)
    }
    fn records(&self) -> impl Iterator<Item = &HostRecord> {
        self.hosts.iter().filter(|record| record.present)
    }
    fn record(&self, host: HostId) -> &HostRecord {
        &self.hosts[host.0 as usize]
    }
    fn record_mut(&mut self, host: HostId) -> &mut HostRecord {
        &mut self.hosts[host.0 as usize]
    }
    /// Whether there is such a host.
    pub fn contains(&self, host: HostId) -> bool {
        self.hosts.get(host.0 as usize).is_some_and(|record| record.present)
    }
    /// A host that is known to exist.
    ///
    /// # Panics
    /// Where there never was one; [`Cluster::check`] asks.
    pub fn host(&self, host: HostId) -> &Host {
        &self.record(host).host
    }
    /// What the VMs and holds of a host take that is known to exist: more than its room, where VMs were observed there.
    pub fn taken(&self, host: HostId) -> Totals {
        self.record(host).taken
    }
    /// What is left of the room of a host that is known to exist.
    pub fn free(&self, host: HostId) -> Resources {
        self.record(host).free
    }
    /// Whether a host that is known to exist has room for one more VM that takes so much.
    pub fn has_room(&self, host: HostId, requested: Resources) -> bool {
        self.record(host).has_room(requested)
    }
    /// Whether VMs may come to a host that is known to exist.
    pub fn state(&self, host: HostId) -> HostState {
        self.record(host).state
    }
    /// How many VMs a host has that is known to exist.
    pub fn vms(&self, host: HostId) -> u32 {
        self.record(host).vms.len() as u32
    }
    /// For how many VMs that are not there a host holds room that is known to exist.
    pub fn held(&self, host: HostId) -> u32 {
        self.record(host).held
    }
    /// How many hosts have a VM, or hold room for one.
    pub fn used_hosts(&self) -> u32 {
        self.used_hosts
    }
    /// What the VMs of these hosts may take together.
    pub fn used_capacity(&self) -> Totals {
        self.used_room
    }
    /// What all VMs and holds take.
    pub fn allocated(&self) -> Totals {
        self.allocated
    }
    /// What the VMs of all hosts may take together.
    pub fn capacity(&self) -> Totals {
        self.room
    }
    /// What is left on hosts that VMs may come to.
    pub fn open(&self) -> Totals {
        self.open
    }
    /// How many open hosts a fault domain has.
    pub fn open_hosts_of(&self, domain: DomainId) -> u32 {
        self.domains.get(domain.0 as usize).copied().unwrap_or(0)
    }
    /// How many fault domains have an open host.
    pub fn open_domains(&self) -> usize {
        self.domains.iter().filter(|hosts| **hosts > 0).count()
    }
    /// How the P95 load of VMs and holds is spread.
    pub fn balance(&self) -> &Balance {
        &self.balance
    }
    /// A VM and its host.
    pub fn resident(&self, vm: VmKey) -> Option<Resident> {
        self.vms.find(vm).map(|slot| self.vms.get(slot))
    }
    /// How many VMs there are.
    pub fn residents(&self) -> usize {
        self.vms.len()
    }
    /// The VMs of a host, by id.
    pub fn residents_of(&self, host: HostId) -> Vec<Resident> {
        self.sorted(&self.hosts[host.0 as usize..=host.0 as usize])
    }
    /// All VMs, by id.
    pub fn all(&self) -> Vec<Resident> {
        self.sorted(&self.hosts)
    }
    fn sorted(&self, hosts: &[HostRecord]) -> Vec<Resident> {
        let slots = hosts.iter().flat_map(|host| &host.vms);
        let mut found: Vec<_> = slots.map(|slot| self.vms.get(*slot)).collect();
        found.sort_unstable_by_key(|r| r.vm.id);
        found
    }

    /// Whether there is such a host.
    ///
    /// # Errors
    /// Where there is none.
    pub fn check(&self, host: HostId) -> Result<(), PlacementError> {
        let hosts = self.hosts.len();
        if self.contains(host) { Ok(()) } else { Err(PlacementError::UnknownHost { host, hosts }) }
    }

    /// Whether a VM could be placed, were the hosts empty.
    ///
    /// # Errors
    /// Where it is placed already, takes nothing, or is larger than every host.
    pub fn check_request(&self, vm: &VmRequest) -> Result<(), PlacementError> {
        self.check_new(vm.id)?;
        self.check_size(vm.id, vm.resources)
    }

    fn check_new(&self, vm: VmKey) -> Result<(), PlacementError> {
        match self.resident(vm) {
            Some(Resident { host, .. }) => Err(PlacementError::AlreadyPlaced { vm, host }),
            None => Ok(()),
        }
    }

    pub(crate) fn check_size(&self, vm: VmKey, requested: Resources) -> Result<(), PlacementError> {
        if requested.cores.milli() == 0 {
            return Err(PlacementError::Empty { vm });
        }
        let mut sizes = self.sizes.iter().map(|(size, _)| *size);
        if sizes.clone().any(|size| size.hold(requested)) {
            return Ok(());
        }
        // The one that comes nearest.
        let extras = |size: &Resources| size.extras.hold(requested.extras);
        let nearest = sizes
            .by_ref()
            .max_by_key(|s| (extras(s), s.cores.min(requested.cores), s.memory, s.cores, s.extras));
        Err(PlacementError::TooLarge { vm, requested, largest: nearest.unwrap_or_default() })
    }

    pub(crate) fn add(&mut self, vm: &VmRequest, host: HostId, since: Instant) -> Result<(), PlacementError> {
        self.check(host)?;
        self.check_request(vm)?;
        self.check_room(vm.id, vm.resources, host)?;
        self.observe(vm, host, since)
    }

    /// Adds a VM, whether or not there is room, and whatever its size.
    pub(crate) fn observe(
        &mut self,
        vm: &VmRequest,
        host: HostId,
        since: Instant,
    ) -> Result<(), PlacementError> {
        self.check(host)?;
        self.check_new(vm.id)?;
        let resident = Resident { vm: *vm, host, since };
        let slot = self.vms.insert(&resident);
        self.enter(slot, &resident);
        Ok(())
    }

    pub(crate) fn remove(&mut self, vm: VmKey) -> Result<Resident, PlacementError> {
        let (slot, resident) = self.placed(vm)?;
        self.leave(slot, &resident);
        self.vms.remove(vm);
        Ok(resident)
    }

    /// Moves a VM, into room that is held for it where `held` says so; says what it was.
    pub(crate) fn migrate(&mut self, vm: VmKey, to: HostId, held: bool) -> Result<Resident, PlacementError> {
        self.check(to)?;
        let (slot, before) = self.placed(vm)?;
        if held {
            self.release(&before.vm, to);
        } else if before.host != to {
            self.check_room(vm, before.vm.resources, to)?;
        }
        if before.host != to {
            self.turn(slot, &before, &Resident { host: to, ..before });
        }
        Ok(before)
    }

    /// Makes a VM what `after` says, on its host; says what it was.
    pub(crate) fn change(&mut self, after: &VmRequest) -> Result<Resident, PlacementError> {
        let (slot, before) = self.placed(after.id)?;
        // One that takes no more than before may take more than any host has, where it was found so.
        if !before.vm.resources.hold(after.resources) || after.resources.cores.milli() == 0 {
            self.check_size(after.id, after.resources)?;
        }
        self.check_change(&before.vm, after, before.host)?;
        self.turn(slot, &before, &Resident { vm: *after, ..before });
        Ok(before)
    }

    /// Holds room for a VM that is not there.
    pub(crate) fn hold(&mut self, vm: &VmRequest, host: HostId) -> Result<(), PlacementError> {
        self.check(host)?;
        self.check_size(vm.id, vm.resources)?;
        self.check_room(vm.id, vm.resources, host)?;
        self.hold_on(vm, host);
        Ok(())
    }

    /// Holds room, whether or not there is any.
    pub(crate) fn hold_on(&mut self, vm: &VmRequest, host: HostId) {
        self.record_mut(host).held += 1;
        self.occupy(host, vm);
    }

    /// Holds room for a VM as it is now instead of as it was.
    pub(crate) fn rehold(&mut self, before: &VmRequest, after: &VmRequest, host: HostId) {
        self.release(before, host);
        self.hold_on(after, host);
    }

    /// The room of a VM that is not there is no longer held.
    pub(crate) fn release(&mut self, held: &VmRequest, host: HostId) {
        self.record_mut(host).held -= 1;
        self.vacate(host, held);
    }

    /// Whether a host of a VM has room for what it becomes.
    pub(crate) fn check_change(
        &self,
        before: &VmRequest,
        after: &VmRequest,
        host: HostId,
    ) -> Result<(), PlacementError> {
        let record = self.record(host);
        let taken = record.taken - before.resources + after.resources;
        // One that takes no more than before stays, however full its host was found.
        if before.resources.hold(after.resources) || !taken.exceed(record.host.room) {
            return Ok(());
        }
        let (vm, requested, free) = (after.id, after.resources, record.free);
        Err(PlacementError::Full { vm, requested, host, free })
    }

    fn placed(&self, vm: VmKey) -> Result<(u32, Resident), PlacementError> {
        let slot = self.vms.find(vm).ok_or(PlacementError::NotPlaced { vm })?;
        Ok((slot, self.vms.get(slot)))
    }

    fn check_room(&self, vm: VmKey, requested: Resources, host: HostId) -> Result<(), PlacementError> {
        let HostRecord { free, host: Host { max_vms, .. }, .. } = *self.record(host);
        if self.has_room(host, requested) {
            return Ok(());
        }
        match max_vms {
            Some(max) if free.hold(requested) => Err(PlacementError::Crowded { vm, host, max }),
            _ => Err(PlacementError::Full { vm, requested, host, free }),
        }
    }

    /// The VM of a slot becomes another, here or elsewhere.
    fn turn(&mut self, slot: u32, before: &Resident, after: &Resident) {
        self.leave(slot, before);
        self.vms.set(slot, after);
        self.enter(slot, after);
    }

    /// The VM of a slot takes what it takes.
    fn enter(&mut self, slot: u32, Resident { vm, host, .. }: &Resident) {
        let list = &mut self.hosts[host.0 as usize].vms;
        self.vms.set_position(slot, list.len() as u32);
        list.push(slot);
        self.occupy(*host, vm);
    }

    /// The VM of a slot takes nothing any more.
    fn leave(&mut self, slot: u32, Resident { vm, host, .. }: &Resident) {
        let position = self.vms.position(slot);
        let list = &mut self.hosts[host.0 as usize].vms;
        list.swap_remove(position as usize);
        if let Some(moved) = list.get(position as usize) {
            self.vms.set_position(*moved, position);
        }
        self.vacate(*host, vm);
    }

    /// A host takes more: its new guest is counted already.
    fn occupy(&mut self, host: HostId, more: &VmRequest) {
        let record = self.record_mut(host);
        record.taken += more.resources;
        let (room, guests) = (record.host.room, record.guests());
        self.allocated += more.resources;
        if guests == 1 {
            self.count_used(room, true);
        }
        self.balance.add(more, host);
        self.weigh(host);
    }

    /// A host takes less: its old guest is not counted any more.
    fn vacate(&mut self, host: HostId, less: &VmRequest) {
        let record = self.record_mut(host);
        record.taken -= less.resources;
        let (room, guests) = (record.host.room, record.guests());
        self.allocated -= less.resources;
        if guests == 0 {
            self.count_used(room, false);
        }
        self.balance.remove(less, host);
        self.weigh(host);
    }

    /// What is free of a host, once it takes more or less.
    fn weigh(&mut self, host: HostId) {
        let record = self.record_mut(host);
        let before = record.free;
        record.free = record.host.room.less(record.taken);
        let (after, is_open) = (record.free, record.is_open());
        if is_open {
            self.open -= before;
            self.open += after;
        }
    }
}
