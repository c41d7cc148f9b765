//! Hosts that are drained, and VMs on their way, in time.

use std::collections::{BTreeMap, BTreeSet};

use ballast_placement::drain::{Round, Turn, emptiest};
use ballast_placement::{HostId, HostState, PlacementError, Scheduler, VmKey};
use ballast_types::Instant;

use super::outcome::Drained;
use super::plan::{Below, Drains, Moving};

/// Moves VMs off hosts that are drained, each for as long as its move takes.
#[derive(Debug)]
pub(super) struct Moves {
    moving: Moving,
    below: Option<Below>,
    round: Round<VmKey, HostId>,
    /// By the time at which a move ends, then by the old host.
    ends: BTreeSet<(u64, HostId, VmKey)>,
    timed: BTreeMap<VmKey, Timed>,
    drained: Drained,
}

#[derive(Clone, Copy, Debug)]
struct Timed {
    from: HostId,
    since_ms: u64,
    ends_ms: u64,
    cores: f64,
}

impl Moves {
    pub(super) fn new(moving: Moving, drains: Drains) -> Self {
        Self {
            moving,
            below: drains.below,
            round: Round::new(drains.order, drains.limit),
            ends: BTreeSet::new(),
            timed: BTreeMap::new(),
            drained: Drained::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn under_way(&self) -> u64 {
        self.timed.len() as u64
    }

    pub(super) fn next_ms(&self) -> Option<u64> {
        self.ends.first().map(|end| end.0)
    }

    /// Drains hosts from now on, until they are empty where `opens` says so; those that are drained already are.
    pub(super) fn drain(
        &mut self,
        at_ms: u64,
        hosts: &[HostId],
        opens: bool,
        scheduler: &mut Scheduler,
    ) -> Result<(), PlacementError> {
        hosts.iter().try_for_each(|host| scheduler.cluster().check(*host))?;
        let is_new = |host: &&HostId| {
            self.round.contains(host) || scheduler.cluster().state(**host) != HostState::Draining
        };
        let hosts: Vec<HostId> = hosts.iter().filter(is_new).copied().collect();
        self.round.drain(Instant::from_millis(at_ms), &hosts, opens, scheduler);
        Ok(())
    }

    /// Where too few hosts are empty, and none is drained, drains some; says whether it does.
    pub(super) fn watch(&mut self, at_ms: u64, scheduler: &mut Scheduler) -> Result<bool, PlacementError> {
        let Some(Below { empty_share, hosts }) = self.below.filter(|_| self.round.is_over()) else {
            return Ok(false);
        };
        let cluster = scheduler.cluster();
        let empty = cluster.len() - cluster.used_hosts() as usize;
        if empty as f64 >= empty_share * cluster.len() as f64 {
            return Ok(false);
        }
        let hosts = emptiest(cluster, hosts as usize);
        self.drain(at_ms, &hosts, true, scheduler)?;
        Ok(!hosts.is_empty())
    }

    /// Opens hosts again. What is on its way goes on; nobody else is moved.
    pub(super) fn open(
        &mut self,
        at_ms: u64,
        hosts: &[HostId],
        scheduler: &mut Scheduler,
    ) -> Result<(), PlacementError> {
        hosts.iter().try_for_each(|host| scheduler.cluster().check(*host))?;
        self.round.open(Instant::from_millis(at_ms), hosts, scheduler);
        Ok(())
    }

    /// A VM has ended: its move ends with it.
    pub(super) fn ended(&mut self, at_ms: u64, vm: VmKey) {
        self.round.ended(&vm);
        self.arrive(at_ms, vm);
    }

    /// Ends the moves whose time has come; says whether there were any.
    pub(super) fn finish(&mut self, at_ms: u64, scheduler: &mut Scheduler) -> bool {
        let mut any = false;
        while let Some((ends_ms, _, vm)) = self.ends.first().copied().filter(|end| end.0 <= at_ms) {
            self.arrive(ends_ms, vm);
            let moved = self.round.done(Instant::from_millis(ends_ms), &vm, scheduler);
            debug_assert!(moved.is_some(), "{vm} was not on its way");
            any = true;
        }
        any
    }

    /// The move of a VM ends, and so does what was held for it.
    fn arrive(&mut self, at_ms: u64, vm: VmKey) {
        if let Some(done) = self.timed.remove(&vm) {
            self.ends.remove(&(done.ends_ms, done.from, vm));
            self.drained.held_core_h += done.cores * (at_ms - done.since_ms) as f64 / 3_600_000.0;
        }
    }

    /// Starts what can be started, and sees which hosts have become empty.
    pub(super) fn start(&mut self, at_ms: u64, scheduler: &mut Scheduler) {
        let now = Instant::from_millis(at_ms);
        let Turn { started, emptied } = self.round.turn(now, scheduler);
        for (vm, its) in started {
            let Some(there) = scheduler.cluster().resident(vm) else { continue };
            let size = there.vm.resources;
            let ends_ms = at_ms.saturating_add(self.moving.takes_ms(size));
            let cores = size.cores.cores();
            self.timed.insert(vm, Timed { from: its.from, since_ms: at_ms, ends_ms, cores });
            self.ends.insert((ends_ms, its.from, vm));
        }
        for (_, since) in emptied {
            let took_s = now.since(since).as_millis() as f64 / 1e3;
            self.drained.longest_s = self.drained.longest_s.max(took_s);
        }
    }

    pub(super) fn drained(&self) -> Drained {
        let counts = self.round.counts();
        Drained {
            hosts: counts.hosts,
            emptied: counts.emptied,
            scheduled: counts.scheduled,
            moved: counts.moved,
            saved: counts.saved,
            left: (self.round.waiting() + self.timed.len()) as u64,
            ..self.drained
        }
    }
}
