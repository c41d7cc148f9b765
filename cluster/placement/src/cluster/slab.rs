//! The VMs that are there, packed: 64 bytes each, and a number by which each is found at once.

use core::hash::BuildHasherDefault;
use std::collections::{BTreeMap, HashMap};

use ballast_types::survival::CurveId;
use ballast_types::{Instant, SplitMix64, Utilisation, VmClass};

use super::Resident;
use crate::{
    Demand, DeploymentId, ExpectedEnd, Extras, HostId, MemoryKb, MilliCores, Resources, TenantId, VmKey,
    VmRequest,
};

/// Keys are numbers of our own: nobody chooses them so that they collide.
#[derive(Clone, Copy, Debug, Default)]
struct NumberHasher(u64);

impl core::hash::Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = SplitMix64::finalise(self.0 ^ number);
    }
}

const KNOWN: u8 = 1;
const USER_FACING: u8 = 1 << 1;
const SPREAD: u8 = 1 << 2;
const DEPLOYMENT: u8 = 1 << 3;
const TENANT: u8 = 1 << 4;
const EXIT: u8 = 1 << 5;
const CURVE: u8 = 1 << 6;
const RARE: u8 = 1 << 7;

/// A resident in few bytes. What no flag says is there means nothing.
#[derive(Clone, Copy, Debug)]
struct Slot {
    id: VmKey,
    deployment: DeploymentId,
    tenant: TenantId,
    memory: MemoryKb,
    /// When the VM ends in nanoseconds, or the number of its curve.
    end: u64,
    since: Instant,
    cores: MilliCores,
    host: HostId,
    /// Where it stands in its host's list.
    position: u32,
    p95: Utilisation,
    domain_skew: u8,
    flags: u8,
}

/// What few VMs have.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rare {
    extras: Extras,
    demand: Option<Demand>,
}

/// All residents, each in a slot that keeps its number while the VM is there.
#[derive(Clone, Debug, Default)]
pub(super) struct Slab {
    numbers: HashMap<VmKey, u32, BuildHasherDefault<NumberHasher>>,
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    rare: BTreeMap<u32, Rare>,
}

impl Slab {
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(super) fn find(&self, vm: VmKey) -> Option<u32> {
        self.numbers.get(&vm).copied()
    }

    pub(super) fn get(&self, slot: u32) -> Resident {
        let Slot { id, deployment, tenant, memory, end, since, cores, host, p95, domain_skew, flags, .. } =
            self.slots[slot as usize];
        let is = |flag| flags & flag != 0;
        let rare = if is(RARE) { self.rare.get(&slot).copied().unwrap_or_default() } else { Rare::default() };
        let vm = VmRequest {
            id,
            deployment: is(DEPLOYMENT).then_some(deployment),
            tenant: is(TENANT).then_some(tenant),
            resources: Resources { cores, memory, extras: rare.extras },
            known: is(KNOWN),
            class: if is(USER_FACING) { VmClass::UserFacing } else { VmClass::NonUserFacing },
            p95,
            demand: rare.demand,
            end: match (is(EXIT), is(CURVE)) {
                (true, _) => Some(ExpectedEnd::At(Instant::from_nanos(end))),
                (_, true) => Some(ExpectedEnd::Curve(CurveId::new(end as u32))),
                _ => None,
            },
            spread: is(SPREAD),
            domain_skew,
        };
        Resident { vm, host, since }
    }

    pub(super) fn position(&self, slot: u32) -> u32 {
        self.slots[slot as usize].position
    }

    pub(super) fn set_position(&mut self, slot: u32, position: u32) {
        self.slots[slot as usize].position = position;
    }

    /// A slot for a VM that has none.
    pub(super) fn insert(&mut self, resident: &Resident) -> u32 {
        let slot = self.vacant.pop().unwrap_or(self.slots.len() as u32);
        if slot as usize == self.slots.len() {
            // A quarter more at a time: doubling could leave half of the memory unused.
            if self.slots.len() == self.slots.capacity() {
                self.slots.reserve_exact(self.slots.len() / 4 + 16);
            }
            self.slots.push(Slot::of(resident));
        }
        self.numbers.insert(resident.vm.id, slot);
        self.set(slot, resident);
        slot
    }

    /// The VM of a slot is now so. Where it stands in its host's list stays.
    pub(super) fn set(&mut self, slot: u32, resident: &Resident) {
        let rare = Rare { extras: resident.vm.resources.extras, demand: resident.vm.demand };
        let position = self.position(slot);
        let packed = &mut self.slots[slot as usize];
        let had = packed.flags & RARE != 0;
        *packed = Slot { position, ..Slot::of(resident) };

        if rare != Rare::default() {
            packed.flags |= RARE;
            self.rare.insert(slot, rare);
        } else if had {
            self.rare.remove(&slot);
        }
    }

    /// The slot of a VM has nobody any more.
    pub(super) fn remove(&mut self, vm: VmKey) {
        let Some(slot) = self.numbers.remove(&vm) else { return };
        let packed = &mut self.slots[slot as usize];
        if packed.flags & RARE != 0 {
            packed.flags &= !RARE;
            self.rare.remove(&slot);
        }
        self.vacant.push(slot);
    }
}

impl Slot {
    fn of(Resident { vm, host, since }: &Resident) -> Self {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        Self {
            id: vm.id,
            deployment: vm.deployment.unwrap_or_default(),
            tenant: vm.tenant.unwrap_or_default(),
            memory: vm.resources.memory,
            end: match vm.end {
                Some(ExpectedEnd::At(exit)) => exit.as_nanos(),
                Some(ExpectedEnd::Curve(curve)) => curve.index() as u64,
                None => 0,
            },
            since: *since,
            cores: vm.resources.cores,
            host: *host,
            position: 0,
            p95: vm.p95,
            domain_skew: vm.domain_skew,
            flags: flag(vm.known, KNOWN)
                | flag(vm.class == VmClass::UserFacing, USER_FACING)
                | flag(vm.spread, SPREAD)
                | flag(vm.deployment.is_some(), DEPLOYMENT)
                | flag(vm.tenant.is_some(), TENANT)
                | flag(matches!(vm.end, Some(ExpectedEnd::At(_))), EXIT)
                | flag(matches!(vm.end, Some(ExpectedEnd::Curve(_))), CURVE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back_whole_and_is_small() {
        assert_eq!(size_of::<Slot>(), 64);
        let bare = VmRequest::new(VmKey(7), Resources::ZERO);
        let rich = VmRequest {
            deployment: Some(DeploymentId(u64::MAX)),
            tenant: Some(TenantId(0)),
            resources: Resources { extras: Extras([1, 0, 0, u32::MAX]), ..bare.resources },
            known: true,
            class: VmClass::NonUserFacing,
            p95: Utilisation::IDLE,
            demand: Some(Demand { mean: 0.1, variance: 1e-9 }),
            end: Some(ExpectedEnd::At(Instant::from_nanos(u64::MAX))),
            spread: true,
            domain_skew: 3,
            ..VmRequest::new(VmKey(8), Resources::ZERO)
        };
        let curved = VmRequest { end: Some(ExpectedEnd::Curve(CurveId::new(u32::MAX))), ..bare };
        let resident = |vm| Resident { vm, host: HostId(3), since: Instant::from_nanos(5) };

        let mut slab = Slab::default();
        let slots = [bare, rich].map(|vm| slab.insert(&resident(vm)));
        assert_eq!(slots.map(|slot| slab.get(slot)), [resident(bare), resident(rich)]);
        assert_eq!((slab.find(VmKey(8)), slab.rare.len()), (Some(slots[1]), 1));

        // Nothing of a VM is left to the next one of its slot, nor to what it becomes.
        slab.remove(VmKey(8));
        assert_eq!((slab.find(VmKey(8)), slab.len(), slab.rare.len()), (None, 1, 0));
        let next = VmRequest { id: VmKey(9), ..bare };
        assert_eq!(slab.insert(&resident(next)), slots[1]);
        assert_eq!(slab.get(slots[1]), resident(next));
        slab.set(slots[0], &resident(VmRequest { id: VmKey(7), ..rich }));
        slab.set(slots[0], &resident(VmRequest { id: VmKey(7), ..curved }));
        assert_eq!(slab.get(slots[0]).vm.end, curved.end);
        slab.set(slots[0], &resident(bare));
        assert_eq!((slab.get(slots[0]), slab.rare.len()), (resident(bare), 0));
    }
}
