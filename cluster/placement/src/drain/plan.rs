//! What is to be expected of a drain, before anything is done.

use std::collections::BTreeMap;

use ballast_types::Instant;

use super::order::{DrainOrder, DrainVm};
use super::site::Site;
use crate::{HostState, Resources};

/// What comes of a VM of a host that is drained, in seconds from the beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fate {
    /// It is moved.
    Moved {
        /// When its move begins.
        starts_s: f64,
        /// When it is on another host.
        ends_s: f64,
    },
    /// It ends before its turn: its move is saved.
    Saved {
        /// The end that is expected, before its turn.
        ends_s: f64,
    },
}

/// How moves are made.
#[derive(Clone, Copy, Debug)]
pub struct Schedule<T> {
    /// By which VMs go one after the other.
    pub order: DrainOrder,
    /// So many VMs may be on their way together, 1 at least.
    pub limit: usize,
    /// How long the move of a VM of this size takes, in seconds.
    pub takes_s: T,
}

/// Makes the moves of these VMs in time: a host sends one after the other, and whenever one may start, the first of those that
/// are left does. `busy` are moves under way, when they end and from which host. `ends_s` says when a VM ends, by its
/// place in the list, and `remaining_s` what is expected of it whenever a move may start: without it what the list
/// says stands. Hosts come in the order in which they are first named. Every VM is taken to find room.
pub fn schedule<V: Ord + Clone, H: Ord + Clone>(
    vms: &[DrainVm<V, H>],
    busy: &[(f64, H)],
    by: &Schedule<impl Fn(Resources) -> f64>,
    ends_s: impl Fn(usize) -> Option<f64>,
    remaining_s: Option<&dyn Fn(usize, f64) -> Option<f32>>,
) -> Vec<Fate> {
    let numbers = numbers(vms.iter().map(|vm| &vm.host).chain(busy.iter().map(|it| &it.1)));
    let hosts: Vec<u32> = vms.iter().map(|vm| numbers[&vm.host]).collect();
    let mut left_s: Vec<Option<f32>> = vms.iter().map(|vm| vm.remaining_s).collect();
    let sort = |queue: &mut Vec<usize>, left_s: &[Option<f32>]| {
        queue.sort_by_cached_key(|vm| by.order.key(0, hosts[*vm], left_s[*vm], &vms[*vm]));
    };

    // Among equals this order stays.
    let mut queue: Vec<usize> = (0..vms.len()).collect();
    queue.sort_by(|a, b| by.order.among_equals(&vms[*a].vm, &vms[*b].vm));
    sort(&mut queue, &left_s);

    let mut fates = vec![Fate::Saved { ends_s: 0.0 }; vms.len()];
    // When each move ends, and from which host it is.
    let mut moves: Vec<(f64, u32)> = busy.iter().map(|(ends_s, host)| (*ends_s, numbers[host])).collect();
    let mut at_s = 0.0;

    while !queue.is_empty() {
        moves.retain(|(ends_s, _)| *ends_s > at_s);
        if let Some(remaining_s) = remaining_s {
            queue.iter().for_each(|vm| left_s[*vm] = remaining_s(*vm, at_s));
            sort(&mut queue, &left_s);
        }

        // Who is looked at before the last slot is taken goes, has ended, or waits for its host.
        let mut looked = 0;
        let mut kept = Vec::new();
        for vm in &queue {
            if moves.len() >= by.limit.max(1) {
                break;
            }
            looked += 1;
            if let Some(ends_s) = ends_s(*vm).filter(|ends_s| *ends_s <= at_s) {
                fates[*vm] = Fate::Saved { ends_s };
            } else if moves.iter().any(|(_, from)| *from == hosts[*vm]) {
                kept.push(*vm);
            } else {
                let ends_s = at_s + (by.takes_s)(vms[*vm].resources).max(0.001);
                moves.push((ends_s, hosts[*vm]));
                fates[*vm] = Fate::Moved { starts_s: at_s, ends_s };
            }
        }
        queue.splice(..looked, kept);

        let next_s = moves.iter().map(|(ends_s, _)| *ends_s).min_by(f64::total_cmp);
        let Some(next_s) = next_s else { break };
        at_s = next_s;
    }

    fates
}

/// Hosts by number, in the order in which they are first named.
fn numbers<'a, H: Ord + Clone + 'a>(hosts: impl Iterator<Item = &'a H>) -> BTreeMap<H, u32> {
    let mut numbers = BTreeMap::new();
    for host in hosts {
        let next = numbers.len() as u32;
        numbers.entry(host.clone()).or_insert(next);
    }
    numbers
}

/// A VM in a [`DrainPlan`].
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedMove<V, H> {
    /// The VM as it is now.
    pub vm: DrainVm<V, H>,
    /// What is expected of it.
    pub fate: Fate,
}

/// What is to be expected of a drain.
#[derive(Clone, Debug, PartialEq)]
pub struct DrainPlan<V, H> {
    /// The VMs: those that are moved in the order of their moves, then those that end before.
    pub moves: Vec<PlannedMove<V, H>>,
    /// The hosts in the order in which they were named, and after how many seconds each is free.
    pub hosts: Vec<(H, f64)>,
}

impl<V, H> DrainPlan<V, H> {
    /// How many moves are saved.
    pub fn saved(&self) -> usize {
        self.moves.iter().filter(|it| matches!(it.fate, Fate::Saved { .. })).count()
    }
}

/// What is to be expected, were these hosts drained from now on. Nothing is changed. It is taken for granted that every VM
/// finds room on another host when its turn comes.
pub fn plan<V: Ord + Clone, H: Ord + Clone>(
    site: &impl Site<V, H>,
    now: Instant,
    hosts: &[H],
    by: &Schedule<impl Fn(Resources) -> f64>,
) -> DrainPlan<V, H> {
    let vms: Vec<_> = hosts.iter().flat_map(|host| site.guests(now, host)).collect();
    planned(hosts, &vms, &[], by)
}

pub(super) fn planned<V: Ord + Clone, H: Ord + Clone>(
    hosts: &[H],
    vms: &[DrainVm<V, H>],
    busy: &[(f64, H)],
    by: &Schedule<impl Fn(Resources) -> f64>,
) -> DrainPlan<V, H> {
    // Who should have ended already may live on for any time, and is moved when its turn comes.
    let left_s = |vm: usize| vms[vm].remaining_s.map(f64::from).filter(|left_s| *left_s > 0.0);
    let fates = schedule(vms, busy, by, left_s, None);

    let ends_s = |fate: &Fate| match fate {
        Fate::Moved { ends_s, .. } | Fate::Saved { ends_s } => *ends_s,
    };
    let free_s = |host: &H| {
        let here = vms.iter().zip(&fates).filter(|(vm, _)| vm.host == *host);
        let moves = busy.iter().filter(|(_, from)| from == host).map(|(ends_s, _)| *ends_s);
        here.map(|(_, fate)| ends_s(fate)).chain(moves).fold(0.0, f64::max)
    };
    let hosts = hosts.iter().map(|host| (host.clone(), free_s(host))).collect();

    let all = vms.iter().cloned().zip(fates.iter().copied());
    let mut moves: Vec<_> = all.map(|(vm, fate)| PlannedMove { vm, fate }).collect();
    let start = |it: &PlannedMove<_, _>| match it.fate {
        Fate::Moved { starts_s, .. } => (false, starts_s),
        Fate::Saved { ends_s } => (true, ends_s),
    };
    moves.sort_by(|a, b| {
        let (a, b) = (start(a), start(b));
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
    });

    DrainPlan { moves, hosts }
}

/// Where these VMs would go, were these hosts drained and all of them moved now, one after the other; `None` for one that
/// finds no room. Afterwards all is as it was before.
pub fn targets<V: Ord + Clone, H: Ord + Clone>(
    site: &mut impl Site<V, H>,
    now: Instant,
    hosts: &[H],
    vms: &[V],
) -> Vec<Option<H>> {
    let before = closed(site, now, hosts);
    let mut held = Vec::new();
    let targets = vms.iter().map(|vm| hold(site, now, vm, &mut held)).collect();
    release(site, now, &held);
    before.iter().for_each(|(host, state)| site.set_state(now, host, *state));
    targets
}

/// Those of these hosts that can be emptied together as all is now: every VM of them has room on a host that is not drained
/// with it. Hosts that come first have room first; one that is left out takes VMs of those after it. Afterwards all is as it
/// was before.
pub fn emptiable<V: Ord + Clone, H: Ord + Clone>(
    site: &mut impl Site<V, H>,
    now: Instant,
    hosts: &[H],
) -> Vec<H> {
    let mut left = hosts.to_vec();
    loop {
        // With fewer hosts closed VMs go elsewhere: those that stay are tried anew.
        let good = emptied(site, now, &left);
        if good.len() == left.len() {
            return good;
        }
        left = good;
    }
}

/// Those of these hosts that become empty, one after the other; one that does not opens again.
fn emptied<V: Ord + Clone, H: Ord + Clone>(site: &mut impl Site<V, H>, now: Instant, hosts: &[H]) -> Vec<H> {
    let before = closed(site, now, hosts);
    let (mut held, mut good) = (Vec::new(), Vec::new());
    for (host, state) in &before {
        let kept = held.len();
        let guests = site.guests(now, host);
        if guests.iter().all(|guest| hold(site, now, &guest.vm, &mut held).is_some()) {
            good.push((*host).clone());
        } else {
            release(site, now, &held.split_off(kept));
            site.set_state(now, host, *state);
        }
    }
    release(site, now, &held);
    before.iter().for_each(|(host, state)| site.set_state(now, host, *state));
    good
}

/// Drains those of these hosts that exist, and says how they were before.
fn closed<'h, V, H: Ord>(
    site: &mut impl Site<V, H>,
    now: Instant,
    hosts: &'h [H],
) -> Vec<(&'h H, HostState)> {
    let before: Vec<_> = hosts.iter().filter_map(|host| Some((host, site.state(host)?))).collect();
    before.iter().for_each(|(host, _)| site.set_state(now, host, HostState::Draining));
    before
}

/// Where a VM that is to be moved now would go: its room is among those that are `held`, unless it was before.
fn hold<V: Ord + Clone, H: Ord + Clone>(
    site: &mut impl Site<V, H>,
    now: Instant,
    vm: &V,
    held: &mut Vec<V>,
) -> Option<H> {
    if let Some(to) = site.target(vm) {
        return Some(to);
    }
    let to = site.start_move(now, vm)?;
    held.push(vm.clone());
    Some(to)
}

/// The last first, as rules are told of other attempts.
fn release<V: Ord + Clone, H: Ord + Clone>(site: &mut impl Site<V, H>, now: Instant, held: &[V]) {
    held.iter().rev().for_each(|vm| site.cancel_move(now, vm));
}
