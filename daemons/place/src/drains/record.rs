//! A drain, as it is written down.

use std::collections::BTreeSet;
use std::time::Duration;

use ballast_placement::Inventory;
use ballast_placement::drain::{DrainOrder, Round};
use ballast_types::Instant;
use ballast_types::wire::DrainState;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DrainSpec {
    pub(crate) hosts: Vec<String>,
    pub(crate) order: DrainOrder,
    pub(crate) limit: u32,
    pub(crate) move_time: Duration,
    /// Hosts open again once they are empty.
    pub(crate) reopen: bool,
    /// It has begun by itself: too few hosts were empty.
    pub(crate) by_itself: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Drain {
    pub(crate) id: u64,
    pub(crate) spec: DrainSpec,
    pub(crate) state: DrainState,
    pub(crate) ended: Option<Instant>,
    pub(crate) round: Round<String, String>,
    /// VMs that have arrived: whoever moves them may say so again.
    pub(crate) arrived: BTreeSet<String>,
}

impl Drain {
    /// Does something with it, and remembers which VMs have arrived by that.
    pub(crate) fn follow<T>(
        &mut self,
        inventory: &mut Inventory,
        act: impl FnOnce(&mut Self, &mut Inventory) -> T,
    ) -> T {
        let moves = self.round.moves().map(|(vm, its)| (vm.clone(), its.to.clone()));
        let moves: Vec<(String, String)> = moves.collect();
        let done = act(self, inventory);
        let there = moves.into_iter().filter(|(vm, to)| inventory.vm(vm).is_some_and(|vm| vm.host == to));
        self.arrived.extend(there.map(|(vm, _)| vm));
        done
    }
}
