//! The drains of a daemon: what was asked, what is under way, and what has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use axum::http::StatusCode;
use ballast_placement::drain::{Round, Site as _};
use ballast_placement::inventory::{NamedHost, NamedVm, Placed};
use ballast_placement::{HostState, Inventory};
use ballast_runtime::http::Refused;
use ballast_types::Instant;
use ballast_types::wire::DrainState;

use super::record::{Drain, DrainSpec};
use crate::config::DrainsConfig;
use crate::store::Record;

/// So many drains that are not under way are remembered, the newest.
const KEPT: usize = 50;
/// After somebody has cancelled a drain that began by itself, none begins so for so long.
const PAUSE: Duration = Duration::from_secs(3600);

pub(crate) struct MoveReport {
    /// It was told before, and nothing has changed.
    pub(crate) repeated: bool,
    /// The hosts whose agents are to hear of it.
    pub(crate) hosts: Vec<String>,
}

/// All drains, by their numbers; one at most is under way.
#[derive(Debug, Default)]
pub(crate) struct Drains {
    all: BTreeMap<u64, Drain>,
    /// Hosts that are not opened when a drain ends.
    closed: BTreeSet<String>,
}

impl Drains {
    pub(crate) fn of(drains: Vec<Drain>) -> Self {
        Self { all: drains.into_iter().map(|drain| (drain.id, drain)).collect(), ..Self::default() }
    }

    /// These hosts, and no others, stay closed when a drain ends.
    pub(crate) fn keep_closed(&mut self, hosts: BTreeSet<String>) {
        self.closed = hosts;
    }

    pub(crate) fn all(&self) -> impl DoubleEndedIterator<Item = &Drain> {
        self.all.values()
    }

    pub(crate) fn get(&self, id: u64) -> Result<&Drain, Refused> {
        self.all.get(&id).ok_or_else(|| unknown(id))
    }

    pub(crate) fn under_way(&self) -> Option<&Drain> {
        self.all().find(|drain| drain.state == DrainState::UnderWay)
    }

    /// The newest that was proposed without anybody asking, and waits for approval.
    pub(crate) fn waiting(&self) -> Option<u64> {
        let waits = |drain: &&Drain| drain.state == DrainState::Proposed && drain.spec.by_itself;
        self.all().rev().find(waits).map(|drain| drain.id)
    }

    /// The drain under way and those of its hosts whose next VM finds no room, if there are any.
    pub(crate) fn stuck(&self) -> Option<(u64, Vec<&str>)> {
        let drain = self.under_way()?;
        let hosts: Vec<&str> = drain.round.without_room().map(String::as_str).collect();
        (!hosts.is_empty()).then_some((drain.id, hosts))
    }

    /// Holds anew, after a start or a change by others, the room of the VMs that are on their way.
    pub(crate) fn recover(&mut self, now: Instant, inventory: &mut Inventory) {
        for drain in self.all.values_mut().filter(|drain| drain.state == DrainState::UnderWay) {
            drain.follow(inventory, |drain, inventory| drain.round.reconcile(now, inventory));
        }
    }

    /// A new drain, which waits for approval.
    pub(crate) fn propose(&mut self, spec: DrainSpec) -> (u64, Record) {
        let id = self.all.last_key_value().map_or(1, |(last, _)| last + 1);
        let round = Round::new(spec.order, Some(spec.limit));
        let drain =
            Drain { id, spec, state: DrainState::Proposed, ended: None, round, arrived: BTreeSet::new() };
        self.all.insert(id, drain.clone());
        let gone = self.forget();
        (id, Record { drains: vec![drain], gone_drains: gone, ..Record::default() })
    }

    /// Forgets the oldest that are not under way.
    fn forget(&mut self) -> Vec<u64> {
        let rest = self.all().filter(|drain| drain.state != DrainState::UnderWay).map(|drain| drain.id);
        let rest: Vec<u64> = rest.collect();
        let gone = rest[..rest.len().saturating_sub(KEPT)].to_vec();
        self.all.retain(|id, _| !gone.contains(id));
        gone
    }

    /// Begins a drain that waits for approval.
    pub(crate) fn approve(
        &mut self,
        id: u64,
        now: Instant,
        inventory: &mut Inventory,
    ) -> Result<Record, Refused> {
        let drain = self.get(id)?;
        let conflict = |why: String| Err(Refused(StatusCode::CONFLICT, why));
        if drain.state != DrainState::Proposed {
            return conflict(format!(
                "drain {id} is {}: only one that is proposed can be approved",
                word(drain.state)
            ));
        }
        if let Some(other) = self.under_way() {
            let other = other.id;
            return conflict(format!("drain {other} is under way: wait until it is done, or cancel it"));
        }
        if drain.spec.hosts.iter().all(|host| inventory.host(host).is_none()) {
            return conflict(format!("drain {id}: none of its hosts is there any more"));
        }

        self.change(id, now, inventory, |drain, inventory| {
            drain.state = DrainState::UnderWay;
            let DrainSpec { hosts, reopen, .. } = &drain.spec;
            drain.round.drain(now, hosts, *reopen, inventory);
            vec![]
        })
    }

    /// Ends a drain: hosts are as they were, and no room is held.
    pub(crate) fn cancel(
        &mut self,
        id: u64,
        now: Instant,
        inventory: &mut Inventory,
    ) -> Result<Record, Refused> {
        let state = self.get(id)?.state;
        if !matches!(state, DrainState::Proposed | DrainState::UnderWay) {
            let why = format!(
                "drain {id} is {}: nothing is left to be cancelled; hosts open by PUT /v1/hosts/{{name}}",
                word(state)
            );
            return Err(Refused(StatusCode::CONFLICT, why));
        }
        self.change(id, now, inventory, |drain, inventory| {
            drain.round.cancel(now, inventory);
            (drain.state, drain.ended) = (DrainState::Cancelled, Some(now));
            vec![]
        })
    }

    /// Whoever moves VMs says that this one has arrived, or could not be moved: perhaps again, after a lost answer.
    pub(crate) fn told(
        &mut self,
        id: u64,
        vm: &str,
        arrived: bool,
        now: Instant,
        inventory: &mut Inventory,
    ) -> Result<(Record, MoveReport), Refused> {
        let drain = self.get(id)?;
        let vm = vm.to_owned();
        let told = match drain.round.on_the_way(&vm) {
            Some(its) => MoveReport { repeated: false, hosts: vec![its.from.clone(), its.to.clone()] },
            None => {
                repeated(drain, &vm, arrived)?;
                let host = inventory.vm(&vm).map(|vm| vm.host.to_owned());
                MoveReport { repeated: true, hosts: host.into_iter().collect() }
            }
        };
        let done = self.change(id, now, inventory, |drain, inventory| {
            if !arrived {
                drain.round.failed(now, &vm, inventory);
                return vec![];
            }
            let came = drain.round.done(now, &vm, inventory).map(|_| vm);
            came.into_iter().collect()
        })?;
        Ok((done, told))
    }

    /// Goes on with the drain that is under way; `None` where nothing is otherwise than before.
    pub(crate) fn step(&mut self, now: Instant, inventory: &mut Inventory) -> Option<Record> {
        let before = self.under_way()?.clone();
        let done = self.change(before.id, now, inventory, |_, _| vec![]).ok()?;
        (self.all.get(&before.id) != Some(&before)).then_some(done)
    }

    /// Whether a drain should begin by itself, by how many hosts are empty.
    pub(crate) fn is_due(&self, config: &DrainsConfig, now: Instant, inventory: &Inventory) -> bool {
        let Some(share) = config.empty_below else { return false };
        let waits = |drain: &Drain| match drain.state {
            DrainState::UnderWay => true,
            DrainState::Proposed => drain.spec.by_itself,
            DrainState::Cancelled => {
                // Either way: after a jump of the clock the end may be far ahead.
                let near = |ended: Instant| now.since(ended) < PAUSE && ended.since(now) < PAUSE;
                drain.spec.by_itself && drain.ended.is_some_and(near)
            }
            DrainState::Done | DrainState::DryRun => false,
        };
        let cluster = inventory.cluster();
        let empty = cluster.len() - cluster.used_hosts() as usize;
        (empty as f64) < share * cluster.len() as f64 && !self.all().any(waits)
    }

    /// Does something with a drain that is there, starts the moves that may start, and says what is to be written down;
    /// `act` says which VMs have moved.
    fn change(
        &mut self,
        id: u64,
        now: Instant,
        inventory: &mut Inventory,
        act: impl FnOnce(&mut Drain, &mut Inventory) -> Vec<String>,
    ) -> Result<Record, Refused> {
        let drain = self.all.get_mut(&id).ok_or_else(|| unknown(id))?;
        let before = states(inventory, &drain.spec.hosts);

        let moved = drain.follow(inventory, |drain, inventory| {
            drain.round.keep_closed(&self.closed);
            drain.round.reconcile(now, inventory);
            let moved = act(drain, inventory);
            drain.round.keep_closed(&self.closed);
            if drain.state == DrainState::UnderWay {
                drain.round.turn(now, inventory);
                if drain.round.is_over() {
                    (drain.state, drain.ended) = (DrainState::Done, Some(now));
                }
            }
            moved
        });

        let after = states(inventory, &drain.spec.hosts);
        let changed = before.into_iter().zip(after).filter(|(before, after)| before != after);
        let hosts = changed.filter_map(|(_, (name, _))| {
            let spec = inventory.host(&name)?.spec.clone();
            Some(NamedHost { name, spec })
        });
        let hosts = hosts.collect();
        let placed = |vm: &String| {
            let view = inventory.vm(vm)?;
            let vm = NamedVm { name: vm.clone(), spec: view.spec };
            Some(Placed { vm, host: view.host.to_owned(), since: view.since })
        };
        let vms = moved.iter().filter_map(placed).collect();
        let drains = vec![drain.clone()];
        Ok(Record { hosts, vms, drains, gone_drains: self.forget(), ..Record::default() })
    }
}

fn states(inventory: &Inventory, hosts: &[String]) -> Vec<(String, Option<HostState>)> {
    hosts.iter().map(|host| (host.clone(), inventory.state(host))).collect()
}

/// Whether the same was said before of a VM that is not on its way.
fn repeated(drain: &Drain, vm: &String, arrived: bool) -> Result<(), Refused> {
    let (id, waits) = (drain.id, drain.round.is_waiting(vm));
    let refused = |status, why| Err(Refused(status, format!("drain {id}{why}")));
    match (!waits && drain.arrived.contains(vm), arrived) {
        (true, true) => Ok(()),
        (true, false) => {
            refused(StatusCode::CONFLICT, format!(": VM {vm:?} has arrived, as was told before"))
        }
        (false, false) if waits => Ok(()),
        _ if drain.state != DrainState::UnderWay => {
            refused(StatusCode::CONFLICT, format!(" is {}: no VM is to be moved", word(drain.state)))
        }
        _ => refused(
            StatusCode::NOT_FOUND,
            format!(": VM {vm:?} is not to be moved now: its moves say which VMs are due"),
        ),
    }
}

fn unknown(id: u64) -> Refused {
    Refused(StatusCode::NOT_FOUND, format!("drain {id} is not known"))
}

/// As the wire has it.
fn word(state: DrainState) -> &'static str {
    match state {
        DrainState::DryRun => "dry-run",
        DrainState::Proposed => "proposed",
        DrainState::UnderWay => "under way",
        DrainState::Done => "done",
        DrainState::Cancelled => "cancelled",
    }
}
