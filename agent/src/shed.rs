//! Killing VMs whose tenants prefer that to unpredictable throttling: the paper's Section V.
//!
//! ```text
//!   extreme (every low-priority core at its floor, above the cap, the chassis says so)
//!      │ for kill_after, over two settled samples
//!      ▼
//!   first VM that may be killed ──Output──▶ asked ──Ok──▶ killed: wait until a sample shows it
//!                                            │  ▲
//!                                     failed ▼  │ retry_after, if it is extreme still
//!                                          again ──(tries used up, or permanent)──▶ gave up, an alarm
//! ```
//! A kill cannot be taken back. So nothing here is driven by a timer: every try needs a fresh sample that
//! shows too much. And it takes nothing from the hardware's protection: the server's own limit is set at the
//! latest when it would be without a lease, only that there may be nothing left for it to do.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use ballast_types::wire::{Alarm, AlarmId, Event, EventKind, VmKill};
use ballast_types::{ActionId, Instant, VmId};
use serde::{Deserialize, Serialize};

use crate::actuators::{ANSWER_WITHIN, ID_STRIDE};
use crate::{ActuatorError, ControlledVm, Output, Params};

/// The index in the number of a kill's action; no actuator has it.
const KILLS: u64 = ID_STRIDE - 1;
/// Settled samples above the cap in a row before a kill: one may be a meter's slip.
const RUN: u8 = 2;
/// Kills that the status remembers.
const REMEMBERED: usize = 16;

/// What has come of trying to kill a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Fate {
    // So many tries have failed; the next one is not before this.
    Again { tries: u8, at: Instant },
    Killed,
    // Could not be killed.
    GaveUp,
}

/// A kill that is not answered yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct KillRequest {
    id: ActionId,
    until: Instant,
    kill: VmKill,
}

/// Who was killed, who is next, and whether it is bad enough.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Shed {
    after: Option<Duration>,
    tries: u8,
    retry_after: Duration,
    serial: u64,
    /// Extreme since then, in every sample.
    since: Option<Instant>,
    /// And so many settled samples.
    run: u8,
    request: Option<KillRequest>,
    /// Of VMs of the present set.
    fates: BTreeMap<VmId, Fate>,
    last: VecDeque<VmKill>,
    kills: u64,
    killed_at: Option<Instant>,
    failures: u64,
}

impl Shed {
    pub(crate) fn new(params: &Params) -> Self {
        Self {
            // What cannot be done again is not pretended either.
            after: params.kill_after.filter(|_| params.dry_run.is_none()),
            tries: params.actuator_tries.max(1),
            retry_after: params.retry_after,
            serial: 0,
            since: None,
            run: 0,
            request: None,
            fates: BTreeMap::new(),
            last: VecDeque::new(),
            kills: 0,
            killed_at: None,
            failures: 0,
        }
    }

    pub(crate) fn is_kill(id: ActionId) -> bool {
        id.0 % ID_STRIDE == KILLS
    }

    /// Forgets the VMs that have left.
    pub(crate) fn keep(&mut self, there: impl Fn(&VmId) -> bool) {
        self.fates.retain(|vm, _| there(vm));
        self.request = self.request.take().filter(|request| there(&request.kill.vm));
    }

    /// Takes an answer; one to a superseded try is ignored.
    pub(crate) fn applied(
        &mut self,
        now: Instant,
        id: ActionId,
        result: Result<(), ActuatorError>,
        out: &mut VecDeque<Output>,
    ) {
        let Some(request) = self.request.take_if(|request| request.id == id) else { return };
        let Err(error) = result else {
            return self.died(now, request.kill, out);
        };
        self.failed(now, request.kill.vm, error, out);
    }

    fn died(&mut self, now: Instant, kill: VmKill, out: &mut VecDeque<Output>) {
        let VmKill { vm, power_w, cap_w, .. } = kill.clone();
        self.fates.insert(vm.clone(), Fate::Killed);
        self.kills = self.kills.saturating_add(1);
        self.killed_at = Some(now);
        self.run = 0;
        if self.last.len() == REMEMBERED {
            self.last.pop_front();
        }
        self.last.push_back(kill);
        let kind = EventKind::VmKilled { vm, power_w, cap_w };
        out.push_back(Output::Event(Event { at_ns: now, kind }));
    }

    fn failed(&mut self, now: Instant, vm: VmId, error: ActuatorError, out: &mut VecDeque<Output>) {
        let before = match self.fates.get(&vm) {
            Some(Fate::Again { tries, .. }) => *tries,
            _ => 0,
        };
        let tries = before.saturating_add(1);
        if error == ActuatorError::Transient && tries < self.tries {
            self.fates.insert(vm, Fate::Again { tries, at: now + self.retry_after });
            return;
        }
        let message = gave_up(&vm);
        self.fates.insert(vm, Fate::GaveUp);
        self.failures = self.failures.saturating_add(1);
        out.push_back(Output::Event(Event { at_ns: now, kind: EventKind::Alarm { message } }));
    }

    /// It is not extreme any more, or nobody knows.
    pub(crate) fn reset(&mut self) {
        (self.since, self.run) = (None, 0);
    }

    /// A kill that nobody answered has failed.
    pub(crate) fn overdue(&mut self, now: Instant, out: &mut VecDeque<Output>) {
        if let Some(request) = self.request.take_if(|request| request.until <= now) {
            self.failed(now, request.kill.vm, ActuatorError::Transient, out);
        }
    }

    pub(crate) fn ask(&mut self, now: Instant, kill: VmKill, out: &mut VecDeque<Output>) {
        self.serial += 1;
        let id = ActionId(self.serial.wrapping_mul(ID_STRIDE).wrapping_add(KILLS));
        out.push_back(Output::KillVm { id, vm: kill.vm.clone() });
        self.request = Some(KillRequest { id, until: now + ANSWER_WITHIN, kill });
    }

    /// Extreme draw in one more sample, since then; whether that is long enough for a kill.
    pub(crate) fn extreme(&mut self, now: Instant, since: Instant, settled: bool) -> bool {
        let Some(after) = self.after else { return false };
        let since = *self.since.get_or_insert(since);
        self.run = if settled { self.run.saturating_add(1) } else { 0 };
        self.run >= RUN && now.since(since) >= after && self.request.is_none()
    }

    pub(crate) fn killed_at(&self) -> Option<Instant> {
        self.killed_at
    }

    /// Who is killed next of these, in their order.
    pub(crate) fn next(&self, now: Instant, vms: &[&ControlledVm]) -> Option<VmId> {
        // Whoever is tried again is waited for: no other VM dies for a slow one.
        let next = vms.iter().find_map(|vm| match self.fates.get(&vm.id) {
            None => Some((vm.id.clone(), now)),
            Some(Fate::Again { at, .. }) => Some((vm.id.clone(), *at)),
            Some(Fate::Killed | Fate::GaveUp) => None,
        });
        next.filter(|(_, at)| *at <= now).map(|(vm, _)| vm)
    }

    /// Whether one of these may be killed yet.
    pub(crate) fn may_kill(&self, vms: &[&ControlledVm]) -> bool {
        let tried = |vm: &ControlledVm| matches!(self.fates.get(&vm.id), Some(Fate::Killed | Fate::GaveUp));
        self.after.is_some() && vms.iter().any(|vm| !tried(vm))
    }

    /// Whether anybody may ever be killed.
    pub(crate) fn is_allowed(&self) -> bool {
        self.after.is_some()
    }

    /// Whether a VM was killed.
    pub(crate) fn killed(&self, vm: &VmId) -> bool {
        self.fates.get(vm) == Some(&Fate::Killed)
    }
    /// How many were, since the start.
    pub(crate) fn kills(&self) -> u64 {
        self.kills
    }
    /// The newest of them.
    pub(crate) fn last_kills(&self) -> Vec<VmKill> {
        self.last.iter().cloned().collect()
    }
    /// Kills given up.
    pub(crate) fn failures(&self) -> u64 {
        self.failures
    }
    /// One line for every VM that could not be killed.
    pub(crate) fn alarms(&self) -> impl Iterator<Item = Alarm> + '_ {
        let gave_up_on = self.fates.iter().filter(|(_, fate)| **fate == Fate::GaveUp);
        gave_up_on.map(|(vm, _)| Alarm::about(AlarmId::VmNotKilled, vm, gave_up(vm)))
    }
}

fn gave_up(vm: &VmId) -> String {
    format!("VM {vm} could not be killed")
}
