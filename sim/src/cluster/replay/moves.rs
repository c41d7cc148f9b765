//! Hosts that are drained, and VMs on their way.

use std::collections::{BTreeMap, BTreeSet};

use ballast_placement::{HostId, HostState, PlacementError, Scheduler, VmKey};
use ballast_types::Instant;

use super::outcome::Drained;
use super::plan::Moving;

/// Moves VMs off hosts that are drained.
///
/// A VM on its way is on its old host until the move ends. Its room on the new one is held.
#[derive(Debug)]
pub(super) struct Moves {
    moving: Moving,
    sources: BTreeMap<HostId, Source>,
    /// By the time at which a move ends: the old host.
    ends: BTreeSet<(u64, HostId)>,
    /// The old host of every VM that is on its way.
    on_the_way: BTreeMap<VmKey, HostId>,
    drained: Drained,
}

/// A host that is or was drained.
#[derive(Debug, Default)]
struct Source {
    since_ms: u64,
    /// It was empty, and that was counted.
    emptied: bool,
    /// It opens once it is empty.
    opens: bool,
    /// Who is still to be moved; the last one goes first.
    waiting: Vec<VmKey>,
    under_way: Option<Move>,
}

#[derive(Clone, Copy, Debug)]
struct Move {
    vm: VmKey,
    to: HostId,
    since_ms: u64,
    ends_ms: u64,
    cores: f64,
}

impl Moves {
    pub(super) fn new(moving: Moving) -> Self {
        Self {
            moving,
            sources: BTreeMap::new(),
            ends: BTreeSet::new(),
            on_the_way: BTreeMap::new(),
            drained: Drained::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn under_way(&self) -> u64 {
        self.on_the_way.len() as u64
    }

    /// When the next move ends.
    pub(super) fn next_ms(&self) -> Option<u64> {
        self.ends.first().map(|(at_ms, _)| *at_ms)
    }

    /// Drains hosts from now on, until they are empty where `opens` says so; those that are drained already are.
    pub(super) fn drain(
        &mut self,
        at_ms: u64,
        hosts: &[HostId],
        opens: bool,
        scheduler: &mut Scheduler,
    ) -> Result<(), PlacementError> {
        let mut new = BTreeSet::new();
        for host in hosts {
            scheduler.cluster().check(*host)?;
            if scheduler.cluster().state(*host) != HostState::Draining {
                scheduler.set_state(*host, HostState::Draining)?;
                let source = self.sources.entry(*host).or_default();
                (source.since_ms, source.emptied, source.opens) = (at_ms, false, opens);
                new.insert(*host);
            } else if let Some(source) = self.sources.get_mut(host) {
                source.opens &= opens;
            }
        }

        self.drained.hosts += new.len() as u64;
        for host in new {
            let mut found = scheduler.cluster().residents_of(host);
            found.sort_by_key(|there| (there.vm.resources.cores, there.vm.resources.memory));
            // Who is on the way is moved as it is.
            let stay = found.iter().map(|there| there.vm.id).filter(|vm| !self.on_the_way.contains_key(vm));
            if let Some(source) = self.sources.get_mut(&host) {
                source.waiting.extend(stay);
            }
        }

        Ok(())
    }

    /// Opens hosts again. What is on its way goes on; nobody else is moved.
    pub(super) fn open(&mut self, hosts: &[HostId], scheduler: &mut Scheduler) -> Result<(), PlacementError> {
        for host in hosts {
            scheduler.set_state(*host, HostState::Open)?;
            if let Some(source) = self.sources.get_mut(host) {
                source.waiting.clear();
            }
        }
        Ok(())
    }

    /// A VM has ended: its move ends with it.
    pub(super) fn ended(&mut self, at_ms: u64, vm: VmKey) {
        if let Some(from) = self.on_the_way.remove(&vm) {
            self.arrive(at_ms, from);
        }
    }

    /// Ends the moves whose time has come; says whether there were any.
    pub(super) fn finish(&mut self, at_ms: u64, scheduler: &mut Scheduler) -> bool {
        let before = self.drained.moved;
        while let Some((ends_ms, from)) = self.ends.first().copied().filter(|end| end.0 <= at_ms) {
            let Some(Move { vm, to, .. }) = self.arrive(ends_ms, from) else { break };
            self.on_the_way.remove(&vm);
            let moved = scheduler.migrate(Instant::from_millis(ends_ms), vm, to);
            debug_assert!(moved.is_ok(), "{moved:?}");
            self.drained.moved += 1;
            if let Some(next) = self.sources.get_mut(&to)
                && scheduler.cluster().state(to) == HostState::Draining
            {
                next.waiting.push(vm);
            }
        }
        self.drained.moved > before
    }

    /// The move that is under way from there ends, and so does what was held for it.
    fn arrive(&mut self, at_ms: u64, from: HostId) -> Option<Move> {
        let done = self.sources.get_mut(&from)?.under_way.take()?;
        self.ends.remove(&(done.ends_ms, from));
        self.drained.held_core_h += done.cores * (at_ms - done.since_ms) as f64 / 3_600_000.0;
        Some(done)
    }

    /// Starts what can be started, and sees which hosts have become empty.
    pub(super) fn start(&mut self, at_ms: u64, scheduler: &mut Scheduler) {
        let hosts: Vec<HostId> = self.sources.keys().copied().collect();
        for from in hosts {
            let Some(source) = self.sources.get_mut(&from) else { continue };
            if source.under_way.is_none()
                && let Some(started) = source.next(at_ms, from, self.moving, scheduler)
            {
                source.under_way = Some(started);
                self.ends.insert((started.ends_ms, from));
                self.on_the_way.insert(started.vm, from);
            }

            let cluster = scheduler.cluster();

            let is_empty = cluster.vms(from) == 0 && cluster.held(from) == 0;
            if !source.emptied && cluster.state(from) == HostState::Draining && is_empty {
                source.emptied = true;
                self.drained.emptied += 1;
                let took_s = (at_ms - source.since_ms) as f64 / 1e3;
                self.drained.longest_s = self.drained.longest_s.max(took_s);
                if source.opens {
                    let opened = scheduler.set_state(from, HostState::Open);
                    debug_assert!(opened.is_ok(), "{opened:?}");
                }
            }
        }
    }

    pub(super) fn drained(&self, scheduler: &Scheduler) -> Drained {
        let here = |(host, source): (&HostId, &Source)| {
            let waits =
                |vm: &&VmKey| scheduler.cluster().resident(**vm).is_some_and(|there| there.host == *host);
            source.waiting.iter().filter(waits).count() as u64
        };
        let waiting: u64 = self.sources.iter().map(here).sum();
        Drained { left: waiting + self.on_the_way.len() as u64, ..self.drained }
    }
}

impl Source {
    /// The first one that waits and finds a host: that is held for it now.
    fn next(&mut self, at_ms: u64, from: HostId, moving: Moving, scheduler: &mut Scheduler) -> Option<Move> {
        for place in (0..self.waiting.len()).rev() {
            let vm = self.waiting[place];
            let there = scheduler.cluster().resident(vm);
            let Some(there) = there.filter(|there| there.host == from) else {
                self.waiting.remove(place);
                continue;
            };

            let now = Instant::from_millis(at_ms);

            if let Ok(to) = scheduler.start_move(now, vm) {
                self.waiting.remove(place);
                let size = there.vm.resources;
                let ends_ms = at_ms.saturating_add(moving.takes_ms(size));
                return Some(Move { vm, to, since_ms: at_ms, ends_ms, cores: size.cores.cores() });
            }
        }

        None
    }
}
