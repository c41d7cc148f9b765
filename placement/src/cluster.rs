//! The hosts, what is free on each, and which VM is where.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::units::Totals;
use crate::{ChassisId, HostId, PlacementError, Resources, VmKey, VmRequest};
use ballast_types::Instant;

/// One server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// The chassis that it stands in.
    pub chassis: ChassisId,
    /// Cores and memory that the host has in all.
    pub capacity: Resources,
}

/// A cluster with less than one in so many of its cores or its memory free is full.
const FULL: u64 = 100;

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

/// A resident, and where it stands in its host's list. A slot that is free has nobody.
#[derive(Clone, Copy, Debug)]
struct Slot {
    resident: Resident,
    position: u32,
}

/// What is kept of a host.
#[derive(Clone, Debug)]
struct HostRecord {
    host: Host,
    state: HostState,
    /// What its VMs and its holds take: more than it has, where somebody else put VMs there.
    taken: Totals,
    free: Resources,
    /// The slots of its VMs, in no order.
    vms: Vec<u32>,
    /// For how many VMs that are not there room is held.
    held: u32,
}

impl HostRecord {
    /// VMs, and those for which room is held.
    fn guests(&self) -> usize {
        self.vms.len() + self.held as usize
    }

    /// Room for what is requested, once `given` is no longer taken.
    fn holds(&self, requested: Resources, given: Resources) -> bool {
        let taken = self.taken - given + requested;
        taken.milli_cores <= u64::from(self.host.capacity.cores.milli())
            && taken.memory_kb <= self.host.capacity.memory.kb()
    }
}

/// Why VMs found no host, though each of them has hosts that are large enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shortage {
    /// The open hosts that could take the VMs have too few cores together.
    Cores,
    /// The open hosts that could take the VMs have too little memory together.
    Memory,
    /// There is enough of both, but not where it is needed.
    Fragmentation,
}

impl Shortage {
    /// For people.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Cores => "too few cores",
            Self::Memory => "too little memory",
            Self::Fragmentation => "fragmentation",
        }
    }
}

/// The inventory. Every change is checked whole before anything is changed.
#[derive(Clone, Debug)]
pub struct Cluster {
    hosts: Vec<HostRecord>,
    /// Which slot a VM has.
    places: HashMap<VmKey, u32>,
    slots: Vec<Slot>,
    /// Slots without a VM.
    vacant: Vec<u32>,
    /// What hosts can have: each size once.
    sizes: Vec<Resources>,
    capacity: Totals,
    /// Free on hosts that are open.
    open: Totals,
    /// Of all hosts that have a VM, or hold room for one.
    used_hosts: u32,
    used_capacity: Totals,
    allocated: Totals,
}

impl Cluster {
    /// Empty hosts, all open; their ids are their indices in the list.
    pub fn new(hosts: &[Host]) -> Self {
        let record = |host: &Host| HostRecord {
            host: *host,
            state: HostState::Open,
            taken: Totals::default(),
            free: host.capacity,
            vms: Vec::new(),
            held: 0,
        };

        let mut sizes: Vec<Resources> = Vec::new();
        for host in hosts {
            if !sizes.contains(&host.capacity) {
                sizes.push(host.capacity);
            }
        }

        let capacity = hosts.iter().fold(Totals::default(), |sum, host| sum + host.capacity);

        Self {
            hosts: hosts.iter().map(record).collect(),
            places: HashMap::new(),
            slots: Vec::new(),
            vacant: Vec::new(),
            sizes,
            capacity,
            open: capacity,
            used_hosts: 0,
            used_capacity: Totals::default(),
            allocated: Totals::default(),
        }
    }

    /// How many hosts there are.
    pub fn len(&self) -> usize {
        self.hosts.len()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }
    /// Every host's id.
    pub fn ids(&self) -> impl Iterator<Item = HostId> + Clone + use<> {
        (0..self.hosts.len() as u32).map(HostId)
    }
    /// A host that is known to exist.
    ///
    /// # Panics
    /// Where it does not; [`Cluster::check`] asks.
    pub fn host(&self, host: HostId) -> Host {
        self.hosts[host.0 as usize].host
    }
    /// What the VMs and holds of a host take that is known to exist: more than it has, where VMs were observed there.
    pub fn taken(&self, host: HostId) -> Totals {
        self.hosts[host.0 as usize].taken
    }
    /// What is left of a host that is known to exist.
    pub fn free(&self, host: HostId) -> Resources {
        self.hosts[host.0 as usize].free
    }
    /// Whether VMs may come to a host that is known to exist.
    pub fn state(&self, host: HostId) -> HostState {
        self.hosts[host.0 as usize].state
    }
    /// How many VMs a host has that is known to exist.
    pub fn vms(&self, host: HostId) -> u32 {
        self.hosts[host.0 as usize].vms.len() as u32
    }
    /// For how many VMs that are not there a host holds room that is known to exist.
    pub fn held(&self, host: HostId) -> u32 {
        self.hosts[host.0 as usize].held
    }
    /// How many hosts have a VM, or hold room for one.
    pub fn used_hosts(&self) -> u32 {
        self.used_hosts
    }
    /// What these hosts have together.
    pub fn used_capacity(&self) -> Totals {
        self.used_capacity
    }
    /// What all VMs and holds take.
    pub fn allocated(&self) -> Totals {
        self.allocated
    }
    /// What all hosts have together.
    pub fn capacity(&self) -> Totals {
        self.capacity
    }
    /// What is left on hosts that VMs may come to.
    pub fn open(&self) -> Totals {
        self.open
    }
    /// What there is too little of for VMs that found no host; every host is looked at. In this order:
    ///
    /// 1. what all open hosts together have less of than is asked for, or less than 1 %: such a cluster
    ///    is full, however the rest lies;
    /// 2. nothing, but pieces too small ([`Shortage::Fragmentation`]), where no host has the cores, or none the memory;
    /// 3. the resource of which the smaller share is free, where the hosts with room for the other have too little of
    ///    it: cores that are free where all memory is taken help nobody. Else it is pieces again.
    pub fn shortage(&self, vms: &[Resources]) -> Shortage {
        let asked = vms.iter().fold(Totals::default(), |sum, vm| sum + *vm);
        let hosts = || self.hosts.iter().filter(|host| host.state == HostState::Open);
        let whole = hosts().fold(Totals::default(), |sum, host| sum + host.host.capacity);
        let free = self.open;
        let is_short = |asked: u64, free: u64, whole: u64| asked > free || free.saturating_mul(FULL) < whole;
        if is_short(asked.milli_cores, free.milli_cores, whole.milli_cores) {
            return Shortage::Cores;
        }
        if is_short(asked.memory_kb, free.memory_kb, whole.memory_kb) {
            return Shortage::Memory;
        }

        let cores = vms.iter().map(|vm| vm.cores).min().unwrap_or_default();
        let memory = vms.iter().map(|vm| vm.memory).min().unwrap_or_default();
        let (has_cores, has_memory) =
            (|free: &Resources| free.cores >= cores, |free: &Resources| free.memory >= memory);
        let open = || hosts().map(|host| host.free);
        if !open().any(|free| has_cores(&free)) || !open().any(|free| has_memory(&free)) {
            return Shortage::Fragmentation;
        }

        let share = |part: u64, whole: u64| u128::from(part) * u128::from(whole);
        let cores_usable = open().filter(has_memory).map(|free| u64::from(free.cores.milli())).sum::<u64>();
        let memory_usable = open().filter(has_cores).map(|free| free.memory.kb()).sum::<u64>();
        let cores_are_scarcer =
            share(free.milli_cores, whole.memory_kb) <= share(free.memory_kb, whole.milli_cores);
        match cores_are_scarcer {
            true if asked.milli_cores > cores_usable => Shortage::Cores,
            false if asked.memory_kb > memory_usable => Shortage::Memory,
            _ => Shortage::Fragmentation,
        }
    }
    /// A VM and its host.
    pub fn resident(&self, vm: VmKey) -> Option<&Resident> {
        self.slot(vm).map(|slot| &self.slots[slot as usize].resident)
    }
    fn slot(&self, vm: VmKey) -> Option<u32> {
        self.places.get(&vm).copied()
    }
    /// How many VMs there are.
    pub fn residents(&self) -> usize {
        self.places.len()
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
        let mut found: Vec<_> = slots.map(|slot| self.slots[*slot as usize].resident).collect();
        found.sort_unstable_by_key(|r| r.vm.id);
        found
    }

    /// Whether there is such a host.
    ///
    /// # Errors
    /// Where there is none.
    pub fn check(&self, host: HostId) -> Result<(), PlacementError> {
        let hosts = self.hosts.len();
        if (host.0 as usize) < hosts { Ok(()) } else { Err(PlacementError::UnknownHost { host, hosts }) }
    }

    /// Whether a VM could be placed, were the hosts empty.
    ///
    /// # Errors
    /// Where it is placed already, takes nothing, or is larger than every host.
    pub fn check_request(&self, vm: &VmRequest) -> Result<(), PlacementError> {
        let requested = vm.resources;
        self.check_new(vm.id)?;
        self.check_size(vm.id, requested)
    }

    fn check_new(&self, vm: VmKey) -> Result<(), PlacementError> {
        match self.resident(vm) {
            Some(Resident { host, .. }) => Err(PlacementError::AlreadyPlaced { vm, host: *host }),
            None => Ok(()),
        }
    }

    pub(crate) fn check_size(&self, vm: VmKey, requested: Resources) -> Result<(), PlacementError> {
        if requested.cores.milli() == 0 {
            return Err(PlacementError::Empty { vm });
        }
        if self.sizes.iter().any(|size| size.hold(requested)) {
            return Ok(());
        }
        let largest = self.sizes.iter().max_by_key(|s| (s.cores.min(requested.cores), s.memory));
        Err(PlacementError::TooLarge { vm, requested, largest: largest.copied().unwrap_or_default() })
    }

    /// Says whether VMs may come to a host.
    pub(crate) fn set_state(&mut self, host: HostId, state: HostState) -> Result<(), PlacementError> {
        self.check(host)?;
        let record = &mut self.hosts[host.0 as usize];
        match (record.state == HostState::Open, state == HostState::Open) {
            (true, false) => self.open -= record.free,
            (false, true) => self.open += record.free,
            _ => {}
        }
        record.state = state;
        Ok(())
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
        let vacant = Slot { resident: Resident { vm: *vm, host, since }, position: 0 };
        let slot = self.vacant.pop().unwrap_or(self.slots.len() as u32);
        match self.slots.get_mut(slot as usize) {
            Some(old) => *old = vacant,
            None => {
                // A quarter more at a time: doubling could leave half of the memory unused.
                if self.slots.len() == self.slots.capacity() {
                    self.slots.reserve_exact(self.slots.len() / 4 + 16);
                }
                self.slots.push(vacant);
            }
        }
        self.places.insert(vm.id, slot);
        self.take(slot);
        Ok(())
    }

    pub(crate) fn remove(&mut self, vm: VmKey) -> Result<Resident, PlacementError> {
        let slot = self.places.remove(&vm).ok_or(PlacementError::NotPlaced { vm })?;
        self.give_back(slot);
        self.vacant.push(slot);
        Ok(self.slots[slot as usize].resident)
    }

    /// Moves a VM, into room that is held for it where `held` says so; says what it was.
    pub(crate) fn migrate(&mut self, vm: VmKey, to: HostId, held: bool) -> Result<Resident, PlacementError> {
        self.check(to)?;
        let (slot, before) = self.placed(vm)?;
        if held {
            self.release(before.vm.resources, to);
        } else if before.host != to {
            self.check_room(vm, before.vm.resources, to)?;
        }
        if before.host != to {
            self.retake(slot, Resident { host: to, ..before });
        }
        Ok(before)
    }

    /// Makes a VM what `after` says, on its host; says what it was.
    pub(crate) fn change(&mut self, after: &VmRequest) -> Result<Resident, PlacementError> {
        let (slot, before) = self.placed(after.id)?;
        let host = before.host;
        self.check_size(after.id, after.resources)?;
        self.check_change(&before.vm, after, host)?;
        self.retake(slot, Resident { vm: *after, ..before });
        Ok(before)
    }

    /// Holds room for a VM that is not there.
    pub(crate) fn hold(&mut self, vm: &VmRequest, host: HostId) -> Result<(), PlacementError> {
        self.check(host)?;
        self.check_size(vm.id, vm.resources)?;
        self.check_room(vm.id, vm.resources, host)?;
        self.hold_on(vm.resources, host);
        Ok(())
    }

    fn hold_on(&mut self, room: Resources, host: HostId) {
        self.hosts[host.0 as usize].held += 1;
        self.occupy(host, room);
    }

    /// Holds room for a VM as it is now instead of as it was.
    pub(crate) fn rehold(&mut self, before: &VmRequest, after: &VmRequest, host: HostId) {
        self.release(before.resources, host);
        self.hold_on(after.resources, host);
    }

    /// So much room is no longer held.
    pub(crate) fn release(&mut self, held: Resources, host: HostId) {
        self.hosts[host.0 as usize].held -= 1;
        self.vacate(host, held);
    }

    /// Whether a host of a VM has room for what it becomes.
    pub(crate) fn check_change(
        &self,
        before: &VmRequest,
        after: &VmRequest,
        host: HostId,
    ) -> Result<(), PlacementError> {
        let record = &self.hosts[host.0 as usize];
        // One that takes no more than before stays, however full its host was found.
        if before.resources.hold(after.resources) || record.holds(after.resources, before.resources) {
            return Ok(());
        }
        let (vm, requested, free) = (after.id, after.resources, record.free);
        Err(PlacementError::Full { vm, requested, host, free })
    }

    fn placed(&self, vm: VmKey) -> Result<(u32, Resident), PlacementError> {
        let slot = self.slot(vm).ok_or(PlacementError::NotPlaced { vm })?;
        Ok((slot, self.slots[slot as usize].resident))
    }

    fn check_room(&self, vm: VmKey, requested: Resources, host: HostId) -> Result<(), PlacementError> {
        let free = self.free(host);
        if free.hold(requested) { Ok(()) } else { Err(PlacementError::Full { vm, requested, host, free }) }
    }

    /// The VM of a slot becomes another, here or elsewhere.
    fn retake(&mut self, slot: u32, after: Resident) {
        self.give_back(slot);
        self.slots[slot as usize].resident = after;
        self.take(slot);
    }

    /// The VM of a slot takes what it takes.
    fn take(&mut self, slot: u32) {
        let Slot { resident: Resident { vm, host, .. }, position } = &mut self.slots[slot as usize];
        let (taken, host) = (vm.resources, *host);
        let record = &mut self.hosts[host.0 as usize];
        *position = record.vms.len() as u32;
        record.vms.push(slot);
        self.occupy(host, taken);
    }

    /// The VM of a slot takes nothing any more.
    fn give_back(&mut self, slot: u32) {
        let Slot { resident: Resident { vm, host, .. }, position } = self.slots[slot as usize];
        let record = &mut self.hosts[host.0 as usize];
        record.vms.swap_remove(position as usize);
        if let Some(moved) = record.vms.get(position as usize) {
            self.slots[*moved as usize].position = position;
        }
        self.vacate(host, vm.resources);
    }

    /// A host takes more: its new guest is counted already.
    fn occupy(&mut self, host: HostId, more: Resources) {
        let record = &mut self.hosts[host.0 as usize];
        record.taken += more;
        self.allocated += more;
        if record.guests() == 1 {
            self.used_hosts += 1;
            self.used_capacity += record.host.capacity;
        }
        self.weigh(host);
    }

    /// A host takes less: its old guest is not counted any more.
    fn vacate(&mut self, host: HostId, less: Resources) {
        let record = &mut self.hosts[host.0 as usize];
        record.taken -= less;
        self.allocated -= less;
        if record.guests() == 0 {
            self.used_hosts -= 1;
            self.used_capacity -= record.host.capacity;
        }
        self.weigh(host);
    }

    /// What is free of a host, once it takes more or less.
    fn weigh(&mut self, host: HostId) {
        let record = &mut self.hosts[host.0 as usize];
        let before = record.free;
        record.free = record.host.capacity.less(record.taken);
        if record.state == HostState::Open {
            self.open -= before;
            self.open += record.free;
        }
    }
}
