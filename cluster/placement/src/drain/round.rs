//! What is under way: hosts that are drained, and VMs on their way from them.

use std::collections::BTreeMap;

use ballast_types::Instant;
use serde::{Deserialize, Serialize};

use super::moves::{DrainCounts, Move, Turn};
use super::order::DrainOrder;
use super::plan::{DrainPlan, Schedule, planned};
use super::site::Site;
use crate::{HostState, Resources};

/// Hosts that are drained together.
///
/// A VM on its way is on its old host until somebody says that it has arrived; its room on the new one is held. One that
/// finds no room waits, and is tried again at each turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round<V: Ord, H: Ord> {
    order: DrainOrder,
    /// So many VMs may be on their way together.
    limit: Option<u32>,
    hosts: BTreeMap<H, Source<V>>,
    /// Who is still to be moved, and from where.
    waiting: BTreeMap<V, Waiting<H>>,
    moves: BTreeMap<V, Move<H>>,
    /// Who is on the way from a host.
    busy: BTreeMap<H, V>,
    counts: DrainCounts,
    /// How often somebody was put before or behind all others, and how many hosts have come.
    turns: i64,
    next_host: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Source<V> {
    number: u32,
    since: Instant,
    before: HostState,
    reopens: bool,
    waiting: Vec<V>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Waiting<H> {
    from: H,
    turn: i64,
}

impl<V: Ord + Clone, H: Ord + Clone> Round<V, H> {
    /// Without hosts. No limit: only that every host sends one VM at a time.
    pub fn new(order: DrainOrder, limit: Option<u32>) -> Self {
        Self {
            order,
            limit,
            hosts: BTreeMap::new(),
            waiting: BTreeMap::new(),
            moves: BTreeMap::new(),
            busy: BTreeMap::new(),
            counts: DrainCounts::default(),
            turns: 0,
            next_host: 0,
        }
    }

    /// What came of it so far.
    pub fn counts(&self) -> DrainCounts {
        self.counts
    }

    /// The hosts that are not yet empty.
    pub fn hosts(&self) -> impl Iterator<Item = &H> {
        self.hosts.keys()
    }

    /// Whether this host is not yet empty.
    pub fn contains(&self, host: &H) -> bool {
        self.hosts.contains_key(host)
    }

    /// How many VMs wait for their turn.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The hosts that could send their next VM, were there room for it elsewhere: as the last turn left it.
    pub fn without_room(&self) -> impl Iterator<Item = &H> {
        let waits = |its: &Source<V>| !its.waiting.is_empty() && !self.is_full();
        let stuck = move |(host, its): &(&H, &Source<V>)| waits(its) && !self.busy.contains_key(host);
        self.hosts.iter().filter(stuck).map(|(host, _)| host)
    }

    /// Whether a VM waits for its turn.
    pub fn is_waiting(&self, vm: &V) -> bool {
        self.waiting.contains_key(vm)
    }

    /// The VMs on their way.
    pub fn moves(&self) -> impl Iterator<Item = (&V, &Move<H>)> {
        self.moves.iter()
    }

    /// A VM on its way.
    pub fn on_the_way(&self, vm: &V) -> Option<&Move<H>> {
        self.moves.get(vm)
    }

    /// What is to be expected of who still waits, from now on: as [`super::plan()`]. Hosts are those that are not yet empty.
    pub fn plan(
        &self,
        site: &impl Site<V, H>,
        now: Instant,
        takes_s: impl Fn(Resources) -> f64,
    ) -> DrainPlan<V, H> {
        let mut hosts: Vec<(u32, &H)> = self.hosts.iter().map(|(host, its)| (its.number, host)).collect();
        hosts.sort_unstable();
        let hosts: Vec<H> = hosts.into_iter().map(|(_, host)| host.clone()).collect();
        let guests = hosts.iter().flat_map(|host| site.guests(now, host));
        let waiting: Vec<_> = guests.filter(|guest| self.waiting.contains_key(&guest.vm)).collect();

        let ends = self.moves.iter().map(|(vm, its)| {
            let size = site.guest(now, vm).map_or(Resources::ZERO, |guest| guest.resources);
            let left_s = takes_s(size) - now.since(its.since).as_secs_f64();
            (left_s.max(0.0), its.from.clone())
        });
        let busy: Vec<(f64, H)> = ends.collect();
        let limit = self.limit.map_or(usize::MAX, |limit| limit as usize);
        planned(&hosts, &waiting, &busy, &Schedule { order: self.order, limit, takes_s })
    }

    /// Whether nothing is left to be done.
    pub fn is_over(&self) -> bool {
        self.hosts.is_empty() && self.moves.is_empty()
    }

    /// Drains hosts that exist from now on, after those of before. Where `reopens` says so they open again once they are empty. One
    /// that is drained already stays closed if anybody has said so.
    pub fn drain(&mut self, now: Instant, hosts: &[H], reopens: bool, site: &mut impl Site<V, H>) {
        self.reconcile(now, site);
        for host in hosts {
            if let Some(source) = self.hosts.get_mut(host) {
                source.reopens &= reopens;
                continue;
            }
            let Some(before) = site.state(host) else { continue };

            site.set_state(now, host, HostState::Draining);
            let source = Source { number: self.next_host, since: now, before, reopens, waiting: vec![] };
            self.next_host += 1;
            self.counts.hosts += 1;
            self.hosts.insert(host.clone(), source);
            self.schedule(now, host, site);
        }
    }

    /// Who is on a host and neither waits nor is on the way waits from now on.
    fn schedule(&mut self, now: Instant, host: &H, site: &impl Site<V, H>) {
        for guest in site.guests(now, host) {
            if !self.moves.contains_key(&guest.vm) && !self.waiting.contains_key(&guest.vm) {
                self.counts.scheduled += 1;
                self.wait(guest.vm, host, 0);
            }
        }
    }

    fn wait(&mut self, vm: V, from: &H, turn: i64) {
        if let Some(source) = self.hosts.get_mut(from) {
            source.waiting.push(vm.clone());
            self.waiting.insert(vm, Waiting { from: from.clone(), turn });
        }
    }

    /// A VM waits no longer; says whether it did.
    fn leave(&mut self, vm: &V) -> bool {
        let Some(Waiting { from, .. }) = self.waiting.remove(vm) else { return false };
        if let Some(source) = self.hosts.get_mut(&from) {
            source.waiting.retain(|other| other != vm);
        }
        true
    }

    /// A VM is on its way no longer.
    fn arrive(&mut self, vm: &V) -> Option<Move<H>> {
        let gone = self.moves.remove(vm)?;
        self.busy.remove(&gone.from);
        Some(gone)
    }

    /// Starts what can be started, and sees which hosts have become empty.
    pub fn turn(&mut self, now: Instant, site: &mut impl Site<V, H>) -> Turn<V, H> {
        let mut turn = Turn { started: vec![], emptied: vec![] };
        let hosts: Vec<H> = self.hosts.keys().cloned().collect();
        let together = if self.order.is_by_host() { 1 } else { hosts.len().max(1) };
        for batch in hosts.chunks(together) {
            self.start(now, batch, site, &mut turn);
            for host in batch {
                self.look(now, host, site, &mut turn);
            }
        }
        turn
    }

    fn is_full(&self) -> bool {
        self.limit.is_some_and(|limit| self.moves.len() >= limit as usize)
    }

    fn start(&mut self, now: Instant, batch: &[H], site: &mut impl Site<V, H>, turn: &mut Turn<V, H>) {
        if self.is_full() {
            return;
        }

        let mut queue = Vec::new();
        let (mut ended, mut elsewhere) = (vec![], vec![]);
        for host in batch.iter().filter(|host| !self.busy.contains_key(host)) {
            let Some(source) = self.hosts.get(host) else { continue };
            for vm in &source.waiting {
                let last = self.waiting.get(vm).map_or(0, |waiting| waiting.turn);
                match site.guest(now, vm) {
                    Some(guest) if guest.host == *host => {
                        let key = self.order.key(last, source.number, guest.remaining_s, &guest);
                        queue.push((key, guest));
                    }
                    Some(_) => elsewhere.push(vm.clone()),
                    None => ended.push(vm.clone()),
                }
            }
        }
        ended.iter().for_each(|vm| self.ended(vm));
        elsewhere.iter().for_each(|vm| self.withdraw(vm));

        queue
            .sort_by(|(a, vm), (b, other)| a.cmp(b).then_with(|| self.order.among_equals(&vm.vm, &other.vm)));
        for (_, guest) in queue {
            if self.is_full() {
                break;
            }
            if self.busy.contains_key(&guest.host) {
                continue;
            }
            if let Some(to) = site.start_move(now, &guest.vm) {
                self.leave(&guest.vm);
                let started = Move { from: guest.host.clone(), to, since: now };
                self.busy.insert(guest.host, guest.vm.clone());
                self.moves.insert(guest.vm.clone(), started.clone());
                turn.started.push((guest.vm, started));
            }
        }
    }

    /// Whether a host has become empty, or is drained no longer.
    fn look(&mut self, now: Instant, host: &H, site: &mut impl Site<V, H>, turn: &mut Turn<V, H>) {
        if site.state(host) != Some(HostState::Draining) {
            self.drop_host(host);
        } else if site.is_empty(host)
            && let Some(source) = self.drop_host(host)
        {
            self.counts.emptied += 1;
            if source.reopens {
                site.set_state(now, host, HostState::Open);
            }
            turn.emptied.push((host.clone(), source.since));
        }
    }

    /// Forgets a host, and who waits there.
    fn drop_host(&mut self, host: &H) -> Option<Source<V>> {
        let source = self.hosts.remove(host)?;
        for vm in &source.waiting {
            self.withdraw(vm);
        }
        Some(source)
    }

    fn withdraw(&mut self, vm: &V) {
        self.counts.withdrawn += u64::from(self.leave(vm));
    }

    /// A VM has ended: it waits no longer, and its move ends with it.
    pub fn ended(&mut self, vm: &V) {
        if self.leave(vm) {
            self.counts.saved += 1;
        } else if self.arrive(vm).is_some() {
            self.counts.ended_moving += 1;
        }
    }

    /// A VM has arrived; says where from and to. `None` where it is not on its way.
    pub fn done(&mut self, now: Instant, vm: &V, site: &mut impl Site<V, H>) -> Option<Move<H>> {
        let to = self.moves.get(vm)?.to.clone();
        if !site.finish_move(now, vm, &to) {
            self.failed(now, vm, site);
            return None;
        }
        let done = self.arrive(vm)?;
        self.arrived(vm, &to, site);
        Some(done)
    }

    /// A VM is on the host that it was sent to, which may be drained itself by now.
    fn arrived(&mut self, vm: &V, to: &H, site: &impl Site<V, H>) {
        self.counts.moved += 1;
        if site.state(to) == Some(HostState::Draining) && self.contains(to) {
            self.turns += 1;
            self.counts.scheduled += 1;
            let turn = if self.order.is_by_host() { -self.turns } else { 0 };
            self.wait(vm.clone(), to, turn);
        }
    }

    /// The move of a VM has failed: its room is released, and it is tried again after all others. Says whether it was on its way.
    pub fn failed(&mut self, now: Instant, vm: &V, site: &mut impl Site<V, H>) -> bool {
        let Some(failed) = self.arrive(vm) else { return false };
        site.cancel_move(now, vm);
        self.again(vm, &failed.from);
        true
    }

    /// A VM that was on its way waits again, after all others.
    fn again(&mut self, vm: &V, from: &H) {
        self.turns += 1;
        if self.contains(from) {
            self.wait(vm.clone(), from, self.turns);
        } else {
            self.counts.withdrawn += 1;
        }
    }

    /// Takes note of what others have done meanwhile, or of a new start: VMs that have ended, have come or are elsewhere. Where
    /// room is no longer held for a VM on its way it is held anew, or the VM waits again. Says whether anything is otherwise.
    pub fn reconcile(&mut self, now: Instant, site: &mut impl Site<V, H>) -> bool {
        let before = (self.counts, self.moves.len(), self.waiting.len(), self.hosts.len());

        let moves: Vec<(V, Move<H>)> = self.moves.iter().map(|(vm, it)| (vm.clone(), it.clone())).collect();
        for (vm, Move { from, to, .. }) in moves {
            match site.guest(now, &vm).map(|guest| guest.host) {
                None => self.ended(&vm),
                Some(host) if host == to => {
                    self.arrive(&vm);
                    self.arrived(&vm, &to, site);
                }
                Some(host) if host != from => {
                    site.cancel_move(now, &vm);
                    self.arrive(&vm);
                    self.counts.withdrawn += 1;
                }
                Some(_) if site.target(&vm).as_ref() == Some(&to) => {}
                Some(_) => {
                    site.cancel_move(now, &vm);
                    if !site.start_move_to(now, &vm, &to) {
                        self.arrive(&vm);
                        self.again(&vm, &from);
                    }
                }
            }
        }

        let hosts: Vec<H> = self.hosts.keys().cloned().collect();
        for host in hosts.iter().filter(|host| site.state(host) != Some(HostState::Draining)) {
            self.drop_host(host);
        }
        let waiting: Vec<(V, H)> =
            self.waiting.iter().map(|(vm, it)| (vm.clone(), it.from.clone())).collect();
        for (vm, from) in waiting {
            match site.guest(now, &vm) {
                None => self.ended(&vm),
                Some(guest) if guest.host != from => self.withdraw(&vm),
                Some(_) => {}
            }
        }
        // Others may put VMs on a host that is drained.
        let hosts: Vec<H> = self.hosts.keys().cloned().collect();
        hosts.iter().for_each(|host| self.schedule(now, host, site));

        before != (self.counts, self.moves.len(), self.waiting.len(), self.hosts.len())
    }

    /// These hosts stay closed when they are empty, or all of it ends: whoever says which hosts there are wants them so.
    pub fn keep_closed<'h>(&mut self, hosts: impl IntoIterator<Item = &'h H>)
    where
        H: 'h,
    {
        for host in hosts {
            if let Some(source) = self.hosts.get_mut(host) {
                (source.before, source.reopens) = (HostState::Draining, false);
            }
        }
    }

    /// Opens hosts again, by whoever does it: nobody else is moved from there. Who is on the way goes on.
    pub fn open(&mut self, now: Instant, hosts: &[H], site: &mut impl Site<V, H>) {
        for host in hosts {
            self.drop_host(host);
            site.set_state(now, host, HostState::Open);
        }
    }

    /// Ends all of it: hosts that are not yet empty are as they were before, nobody waits, and no room is held.
    pub fn cancel(&mut self, now: Instant, site: &mut impl Site<V, H>) {
        let moves: Vec<V> = self.moves.keys().cloned().collect();
        for vm in moves {
            site.cancel_move(now, &vm);
            self.arrive(&vm);
            self.counts.withdrawn += 1;
        }
        let hosts: Vec<H> = self.hosts.keys().cloned().collect();
        for host in hosts {
            if let Some(source) = self.drop_host(&host)
                && site.state(&host) == Some(HostState::Draining)
            {
                site.set_state(now, &host, source.before);
            }
        }
    }
}
