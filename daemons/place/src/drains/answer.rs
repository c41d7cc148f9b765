//! What is said of a drain.

use std::collections::{BTreeMap, BTreeSet};

use ballast_placement::drain::{DrainCounts, DrainPlan, DrainVm, Fate, Schedule, Site as _, plan, targets};
use ballast_placement::{Inventory, Resources};
use ballast_types::Instant;
use ballast_types::wire::{DrainAnswer, DrainHost, DrainMove, DrainState, DrainStatus, MoveState};

use super::record::{Drain, DrainSpec};
use crate::config::ORDERS;

/// A move that takes so many times as long as it should is late.
const LATE: f64 = 3.0;

/// What would happen, were this drained from now on.
pub(super) fn proposed(
    id: Option<u64>,
    spec: &DrainSpec,
    now: Instant,
    inventory: &mut Inventory,
) -> DrainAnswer {
    let move_s = spec.move_time.as_secs_f64();
    let by = Schedule { order: spec.order, limit: spec.limit as usize, takes_s: |_: Resources| move_s };
    let plan = plan(&*inventory, now, &spec.hosts, &by);
    let state = if id.is_some() { DrainState::Proposed } else { DrainState::DryRun };
    let answer = answer(id, state, spec, DrainCounts::default(), inventory, vec![], &plan);
    with_room(answer, &spec.hosts, now, inventory)
}

/// Says of the VMs that wait where each would go, were these hosts drained, too, and all VMs moved now; and which hosts do not
/// get empty by that.
fn with_room(
    mut answer: DrainAnswer,
    hosts: &[String],
    now: Instant,
    inventory: &mut Inventory,
) -> DrainAnswer {
    let mut waiting: Vec<&mut DrainMove> =
        answer.moves.iter_mut().filter(|it| it.state == MoveState::Waiting).collect();
    let vms: Vec<String> = waiting.iter().map(|it| it.vm_id.clone()).collect();
    let mut stuck = BTreeSet::new();
    for (it, to) in waiting.iter_mut().zip(targets(inventory, now, hosts, &vms)) {
        if to.is_none() {
            answer.without_room += 1;
            it.starts_in_s = None;
            stuck.insert(it.from.clone());
        }
        it.to = to;
    }
    answer.hosts.iter_mut().filter(|it| stuck.contains(&it.host)).for_each(|it| it.free_in_s = None);
    answer
}

/// A drain without its VMs, and without what is to be expected.
pub(super) fn brief(drain: &Drain, inventory: &Inventory) -> DrainAnswer {
    let nothing = DrainPlan { moves: vec![], hosts: vec![] };
    let counts = drain.round.counts();
    answer(Some(drain.id), drain.state, &drain.spec, counts, inventory, vec![], &nothing)
}

/// How far a drain under way is, in few words.
pub(crate) fn status(drain: &Drain, now: Instant) -> DrainStatus {
    let late = drain.round.moves().filter(|(_, its)| is_late(drain, its.since, now));
    DrainStatus {
        id: drain.id,
        late: late.count() as u64,
        due: drain.round.moves().count() as u64,
        waiting: drain.round.waiting() as u64,
        hosts_without_room: drain.round.without_room().count() as u64,
    }
}

fn is_late(drain: &Drain, since: Instant, now: Instant) -> bool {
    now.since(since).as_secs_f64() > LATE * drain.spec.move_time.as_secs_f64()
}

pub(super) fn of(drain: &Drain, now: Instant, inventory: &mut Inventory) -> DrainAnswer {
    if drain.state == DrainState::Proposed {
        return proposed(Some(drain.id), &drain.spec, now, inventory);
    }

    let move_s = drain.spec.move_time.as_secs_f64();
    let due = drain.round.moves().filter_map(|(vm, its)| {
        let guest = inventory.guest(now, vm)?;
        let took_s = now.since(its.since).as_secs_f64();
        Some(DrainMove {
            to: Some(its.to.clone()),
            state: MoveState::Due,
            starts_in_s: None,
            ends_in_s: (move_s - took_s).max(0.0),
            late: is_late(drain, its.since, now),
            ..moved(&guest)
        })
    });
    let due = due.collect();
    let plan = drain.round.plan(&*inventory, now, |_| move_s);
    let counts = drain.round.counts();
    let answer = answer(Some(drain.id), drain.state, &drain.spec, counts, inventory, due, &plan);
    // Those of its hosts that are not empty are drained already.
    with_room(answer, &[], now, inventory)
}

fn answer(
    id: Option<u64>,
    state: DrainState,
    spec: &DrainSpec,
    counts: DrainCounts,
    inventory: &Inventory,
    due: Vec<DrainMove>,
    plan: &DrainPlan<String, String>,
) -> DrainAnswer {
    let free_s: BTreeMap<&String, f64> = plan.hosts.iter().map(|(host, free_s)| (host, *free_s)).collect();
    let host = |host: &String| DrainHost {
        host: host.clone(),
        vms: inventory.host(host).map(|it| it.vms),
        free_in_s: free_s.get(host).copied(),
    };
    let planned = plan.moves.iter().map(|it| {
        let (state, starts_in_s, ends_in_s) = match it.fate {
            Fate::Moved { starts_s, ends_s } => (MoveState::Waiting, Some(starts_s), ends_s),
            Fate::Saved { ends_s } => (MoveState::EndsBefore, None, ends_s),
        };
        DrainMove { state, starts_in_s, ends_in_s, ..moved(&it.vm) }
    });
    let order = ORDERS.iter().find(|(_, order)| *order == spec.order).map_or("", |(word, _)| word);

    DrainAnswer {
        id,
        state,
        order: order.into(),
        limit: spec.limit,
        move_s: spec.move_time.as_secs_f64(),
        reopen: spec.reopen,
        scheduled: counts.scheduled,
        moved: counts.moved,
        saved: counts.saved,
        other: counts.ended_moving + counts.withdrawn,
        without_room: 0,
        hosts: spec.hosts.iter().map(host).collect(),
        moves: due.into_iter().chain(planned).collect(),
    }
}

fn moved(vm: &DrainVm<String, String>) -> DrainMove {
    DrainMove {
        vm_id: vm.vm.clone(),
        from: vm.host.clone(),
        to: None,
        state: MoveState::Waiting,
        cores: vm.resources.cores.cores(),
        memory_gb: vm.resources.memory.gb(),
        remaining_s: vm.remaining_s.map(f64::from),
        starts_in_s: None,
        ends_in_s: 0.0,
        late: false,
    }
}
