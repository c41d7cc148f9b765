//! Room that is held on a host for a VM that is not there yet.

use std::collections::{BTreeMap, BTreeSet};

use ballast_types::{Instant, number_id};

use crate::{HostId, VmKey, VmRequest};

number_id! {
    /// A hold; a number is never given twice.
    HoldId(u64)
}

/// What room is held for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// This VM is on its way: it is still elsewhere, and takes its room there too.
    Move(VmKey),
    /// What whoever has reserved it calls it.
    Reservation(String),
}

/// Room on a host. It counts in all sums as if the VM were there.
#[derive(Clone, Debug, PartialEq)]
pub struct Hold {
    /// What is to come. The id means nothing where no VM is on its way.
    pub vm: VmRequest,
    /// Where the room is.
    pub host: HostId,
    /// Why the room is held.
    pub purpose: Purpose,
    /// The room is held from then on.
    pub since: Instant,
    /// When it ends by itself.
    pub until: Option<Instant>,
}

/// All holds, by their numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holds {
    all: BTreeMap<HoldId, Hold>,
    ends: BTreeSet<(Instant, HoldId)>,
    moves: BTreeMap<VmKey, HoldId>,
    next: u64,
}

impl Holds {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (HoldId, &Hold)> {
        self.all.iter().map(|(id, hold)| (*id, hold))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Hold> {
        self.all.values_mut()
    }

    /// When the next one ends by itself.
    pub(crate) fn end(&self) -> Option<(Instant, HoldId)> {
        self.ends.first().copied()
    }

    /// The room that is held for a VM on its way.
    pub(crate) fn of_move(&self, vm: VmKey) -> Option<(HoldId, &Hold)> {
        let id = self.moves.get(&vm)?;
        Some((*id, self.all.get(id)?))
    }

    pub(crate) fn insert(&mut self, hold: Hold) -> HoldId {
        let id = HoldId(self.next);
        self.next += 1;
        self.ends.extend(hold.until.map(|until| (until, id)));
        if let Purpose::Move(vm) = hold.purpose {
            self.moves.insert(vm, id);
        }
        self.all.insert(id, hold);
        id
    }

    pub(crate) fn remove(&mut self, id: HoldId) -> Option<Hold> {
        let hold = self.all.remove(&id)?;
        if let Some(until) = hold.until {
            self.ends.remove(&(until, id));
        }
        if let Purpose::Move(vm) = hold.purpose {
            self.moves.remove(&vm);
        }
        Some(hold)
    }

    /// What is held for a VM on its way is now for this.
    pub(crate) fn change(&mut self, id: HoldId, after: &VmRequest) {
        if let Some(hold) = self.all.get_mut(&id) {
            hold.vm = *after;
        }
    }
}
