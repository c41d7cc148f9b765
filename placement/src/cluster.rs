//! The hosts, what is free on each, and which VM is where.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::units::Totals;
use crate::{ChassisId, HostId, PlacementError, Resources, VmKey, VmRequest};

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
}

/// What is kept of a host.
#[derive(Clone, Copy, Debug)]
struct HostRecord {
    host: Host,
    state: HostState,
    /// What its VMs take: more than it has, where somebody else put them there.
    taken: Totals,
    free: Resources,
    vms: u32,
}

impl HostRecord {
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
    residents: HashMap<VmKey, Resident>,
    /// What hosts can have: each size once.
    sizes: Vec<Resources>,
    capacity: Totals,
    /// Free on hosts that are open.
    open: Totals,
    /// Of all hosts that hold a VM.
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
            vms: 0,
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
            residents: HashMap::new(),
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
    /// What the VMs of a host take that is known to exist: more than it has, where they were observed there.
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
        self.hosts[host.0 as usize].vms
    }
    /// How many hosts hold a VM.
    pub fn used_hosts(&self) -> u32 {
        self.used_hosts
    }
    /// What the hosts that hold a VM have together.
    pub fn used_capacity(&self) -> Totals {
        self.used_capacity
    }
    /// What all VMs take.
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
        self.residents.get(&vm)
    }
    /// How many VMs there are.
    pub fn residents(&self) -> usize {
        self.residents.len()
    }
    /// The VMs of a host, by id. It looks at all VMs.
    pub fn residents_of(&self, host: HostId) -> Vec<Resident> {
        self.sorted(|resident| resident.host == host)
    }
    /// All VMs, by id.
    pub fn all(&self) -> Vec<Resident> {
        self.sorted(|_| true)
    }
    #[expect(clippy::disallowed_methods, reason = "sorted before anybody sees it")]
    fn sorted(&self, keep: impl Fn(&Resident) -> bool) -> Vec<Resident> {
        let mut found: Vec<_> = self.residents.values().filter(|r| keep(r)).copied().collect();
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
        if let Some(Resident { host, .. }) = self.residents.get(&vm.id) {
            return Err(PlacementError::AlreadyPlaced { vm: vm.id, host: *host });
        }
        self.check_size(vm.id, requested)
    }

    fn check_size(&self, vm: VmKey, requested: Resources) -> Result<(), PlacementError> {
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

    pub(crate) fn add(&mut self, vm: &VmRequest, host: HostId) -> Result<(), PlacementError> {
        self.check(host)?;
        self.check_request(vm)?;
        self.check_room(vm.id, vm.resources, host)?;
        self.observe(vm, host)
    }

    /// Adds a VM, whether or not there is room, and whatever its size.
    pub(crate) fn observe(&mut self, vm: &VmRequest, host: HostId) -> Result<(), PlacementError> {
        self.check(host)?;
        if let Some(Resident { host, .. }) = self.residents.get(&vm.id) {
            return Err(PlacementError::AlreadyPlaced { vm: vm.id, host: *host });
        }
        self.take(host, vm.resources);
        self.residents.insert(vm.id, Resident { vm: *vm, host });
        Ok(())
    }

    pub(crate) fn remove(&mut self, vm: VmKey) -> Result<Resident, PlacementError> {
        let resident = self.residents.remove(&vm).ok_or(PlacementError::NotPlaced { vm })?;
        self.give_back(resident.host, resident.vm.resources);
        Ok(resident)
    }

    /// Moves a VM; says what it was.
    pub(crate) fn migrate(&mut self, vm: VmKey, to: HostId) -> Result<Resident, PlacementError> {
        self.check(to)?;
        let before = self.placed(vm)?;
        if before.host != to {
            self.check_room(vm, before.vm.resources, to)?;
            self.give_back(before.host, before.vm.resources);
            self.take(to, before.vm.resources);
            self.residents.insert(vm, Resident { host: to, ..before });
        }
        Ok(before)
    }

    /// Makes a VM what `after` says, on its host; says what it was.
    pub(crate) fn change(&mut self, after: &VmRequest) -> Result<Resident, PlacementError> {
        let before = self.placed(after.id)?;
        let host = before.host;
        self.check_size(after.id, after.resources)?;
        let record = &self.hosts[host.0 as usize];
        // One that takes no more than before stays, however full its host was found.
        if !before.vm.resources.hold(after.resources) && !record.holds(after.resources, before.vm.resources) {
            let (vm, requested, free) = (after.id, after.resources, record.free);
            return Err(PlacementError::Full { vm, requested, host, free });
        }
        self.give_back(host, before.vm.resources);
        self.take(host, after.resources);
        self.residents.insert(after.id, Resident { vm: *after, host });
        Ok(before)
    }

    fn placed(&self, vm: VmKey) -> Result<Resident, PlacementError> {
        self.residents.get(&vm).copied().ok_or(PlacementError::NotPlaced { vm })
    }

    fn check_room(&self, vm: VmKey, requested: Resources, host: HostId) -> Result<(), PlacementError> {
        let free = self.free(host);
        if free.hold(requested) { Ok(()) } else { Err(PlacementError::Full { vm, requested, host, free }) }
    }

    fn take(&mut self, host: HostId, taken: Resources) {
        self.retake(host, |record| {
            record.taken += taken;
            record.vms += 1;
        });
        self.allocated += taken;
        let record = &self.hosts[host.0 as usize];
        if record.vms == 1 {
            self.used_hosts += 1;
            self.used_capacity += record.host.capacity;
        }
    }

    /// It was taken before.
    fn give_back(&mut self, host: HostId, given: Resources) {
        self.retake(host, |record| {
            record.taken -= given;
            record.vms -= 1;
        });
        self.allocated -= given;
        let record = &self.hosts[host.0 as usize];
        if record.vms == 0 {
            self.used_hosts -= 1;
            self.used_capacity -= record.host.capacity;
        }
    }

    /// Changes what is taken of a host, and what is free with it.
    fn retake(&mut self, host: HostId, change: impl FnOnce(&mut HostRecord)) {
        let record = &mut self.hosts[host.0 as usize];
        let before = record.free;
        change(record);
        record.free = record.host.capacity.less(record.taken);
        if record.state == HostState::Open {
            self.open -= before;
            self.open += record.free;
        }
    }
}
