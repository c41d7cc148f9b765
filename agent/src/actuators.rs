//! What was asked of the hardware, what it answered, and what is tried again.
//!
//! ```text
//!            want           Ok
//!   Idle ──────────▶ Waiting ──▶ Idle
//!                     │  ▲
//!           transient │  │ retry_after
//!           or 1 s    ▼  │
//!                    Retry ──(tries used up, or permanent)──▶ given up: counted, an alarm,
//!                                                             and a single try every 10 s
//! ```
//! Index `n` is core `n` of `Params::cores`, and the next one the server's own limit. With `cpu-max` the
//! limit comes first, and an index for every VM follows as it is wanted.

use core::fmt;
use core::time::Duration;
use std::collections::VecDeque;

use ballast_types::wire::{Alarm, AlarmId, Event, EventKind};
use ballast_types::{ActionId, CoreId, Epoch, Instant, KiloHertz, Seq, VmId, Watts};
use serde::{Deserialize, Serialize};

use crate::{ActuatorError, Output, Params};

/// An action that is not answered within this time has failed.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// What was given up is tried again this often: hardware is mended, and nobody is held for ever.
const RECOVER_AFTER: Duration = Duration::from_secs(10);
/// An action's number is a serial number times this, plus its index.
pub(crate) const ID_STRIDE: u64 = 1 << 20;

/// What is actuated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Target {
    /// A core's p-state.
    Core(CoreId),
    /// A VM's bandwidth.
    Vm(VmId),
    /// The server's own limit.
    Server,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Core(core) => write!(f, "core {core}"),
            Self::Vm(vm) => write!(f, "VM {vm}"),
            Self::Server => f.write_str("the server's own limit"),
        }
    }
}

/// What one actuator shall do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Goal {
    /// Nothing: the hardware is free.
    Lift,
    Pstate(KiloHertz),
    /// A VM's bandwidth, in thousandths of a core.
    Quota(u32),
    /// The server's own limit.
    Limit(Watts),
    /// A previous instance left something that is no p-state or quota of ours.
    Unknown,
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lift => f.write_str("be lifted"),
            Self::Pstate(khz) => write!(f, "be capped at {khz}"),
            Self::Quota(millicores) => {
                write!(f, "be limited to {}.{:03} cores", millicores / 1000, millicores % 1000)
            }
            Self::Limit(watts) => write!(f, "be limited to {watts}"),
            Self::Unknown => f.write_str("be read"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Phase {
    Idle,
    Waiting { id: ActionId, until: Instant },
    Retry { at: Instant },
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Request {
    goal: Goal,
    phase: Phase,
    tries: u8,
    /// The goal was given up, and counted.
    gave_up: bool,
    /// What the hardware really does is unknown, until it answers.
    stuck: bool,
    /// Its answer is part of the floor drop under way.
    of_drop: bool,
}

impl Request {
    const FREE: Self =
        Self { goal: Goal::Lift, phase: Phase::Idle, tries: 0, gave_up: false, stuck: false, of_drop: false };

    /// Nothing is on, asked for or in doubt.
    fn is_free(&self) -> bool {
        self.goal == Goal::Lift && self.phase == Phase::Idle && !self.stuck
    }
}

/// A floor drop on behalf of a message, until every core has answered.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Drop {
    message: (Epoch, Seq),
    cores: u16,
    left: u16,
}

/// Every actuator of the server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Actuators {
    targets: Vec<Target>,
    requests: Vec<Request>,
    server: usize,
    tries: u8,
    retry_after: Duration,
    serial: u64,
    /// Requests that are not idle.
    busy: usize,
    /// No request is due before this.
    due: Option<Instant>,
    drop: Option<Drop>,
    failures: u64,
}

impl Actuators {
    pub(crate) fn new(params: &Params) -> Self {
        let cores = if params.floating() { &[] } else { &params.cores[..] };
        let mut targets: Vec<_> = cores.iter().map(|core| Target::Core(core.id)).collect();
        targets.push(Target::Server);
        Self {
            requests: vec![Request::FREE; targets.len()],
            server: targets.len() - 1,
            targets,
            tries: params.actuator_tries.max(1),
            retry_after: params.retry_after,
            serial: 0,
            busy: 0,
            due: None,
            drop: None,
            failures: 0,
        }
    }

    /// Takes over what a previous instance left.
    pub(crate) fn recover(&mut self, index: usize, goal: Goal) {
        self.requests[index].goal = goal;
    }

    /// The index of the server's own limit.
    pub(crate) fn server(&self) -> usize {
        self.server
    }
    /// The index of a VM; a new one if it has none.
    pub(crate) fn vm(&mut self, vm: &VmId) -> usize {
        if let Some(index) = self.index_of(vm) {
            return index;
        }
        let spare =
            |index: &usize| matches!(self.targets[*index], Target::Vm(_)) && self.requests[*index].is_free();
        match (0..self.requests.len()).find(spare) {
            Some(index) => {
                self.targets[index] = Target::Vm(vm.clone());
                self.requests[index] = Request::FREE;
                index
            }
            None => {
                self.targets.push(Target::Vm(vm.clone()));
                self.requests.push(Request::FREE);
                self.requests.len() - 1
            }
        }
    }
    /// The index of a VM that something was asked of.
    pub(crate) fn index_of(&self, vm: &VmId) -> Option<usize> {
        self.targets.iter().position(|target| matches!(target, Target::Vm(id) if id == vm))
    }
    /// The VMs whose bandwidth is limited, or meant to be lifted and not yet so.
    pub(crate) fn vms(&self) -> Vec<VmId> {
        let busy = self.targets.iter().zip(&self.requests).filter(|(_, request)| !request.is_free());
        let id = |target: &Target| match target {
            Target::Vm(id) => Some(id.clone()),
            _ => None,
        };
        busy.filter_map(|(target, _)| id(target)).collect()
    }
    /// What was last requested.
    pub(crate) fn goal(&self, index: usize) -> Goal {
        self.requests[index].goal
    }
    /// Whether the server's own limit is meant to be on.
    pub(crate) fn limit_requested(&self) -> bool {
        self.goal(self.server()) != Goal::Lift
    }
    /// Whether it is on, or may be: a lift that was given up may have left it on.
    pub(crate) fn limit_on(&self) -> bool {
        self.limit_requested() || self.stuck(self.server())
    }
    /// Whether a request was given up: what it does is unknown.
    pub(crate) fn stuck(&self, index: usize) -> bool {
        self.requests[index].stuck
    }
    /// Whether the hardware has done what was last requested.
    pub(crate) fn obeyed(&self, index: usize) -> bool {
        self.requests[index].phase == Phase::Idle && !self.requests[index].stuck
    }
    /// The same of every VM's bandwidth.
    pub(crate) fn vms_obeyed(&self) -> bool {
        (0..self.requests.len())
            .filter(|index| matches!(self.targets[*index], Target::Vm(_)))
            .all(|index| self.obeyed(index))
    }
    /// Actions given up after the last retry.
    pub(crate) fn failures(&self) -> u64 {
        self.failures
    }
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Starts to count the answers of a floor drop; one that is still under way is taken over.
    pub(crate) fn begin_drop(&mut self, message: (Epoch, Seq)) {
        let left = self.drop.map_or(0, |drop| drop.left);
        self.drop = Some(Drop { message, cores: left, left });
    }

    /// Closes a drop that had nothing to write.
    pub(crate) fn end_drop(&mut self) {
        self.drop = self.drop.filter(|drop| drop.left > 0);
    }

    /// Wants `goal` of `index`; nothing happens if that is so already.
    pub(crate) fn request(
        &mut self,
        now: Instant,
        index: usize,
        goal: Goal,
        of_drop: bool,
        out: &mut VecDeque<Output>,
    ) {
        if self.requests[index].goal == goal {
            return;
        }
        self.drop_answered(now, index, out);
        if let Some(drop) = self.drop.as_mut().filter(|_| of_drop) {
            drop.cores = drop.cores.saturating_add(1);
            drop.left = drop.left.saturating_add(1);
            self.requests[index].of_drop = true;
        }

        let it = &mut self.requests[index];
        it.goal = goal;
        it.tries = 0;
        it.gave_up = false;
        self.send(now, index, out);
    }

    /// Tries what was given up once more, at once.
    pub(crate) fn retry_now(&mut self, now: Instant, out: &mut VecDeque<Output>) {
        for index in 0..self.requests.len() {
            if self.requests[index].stuck && matches!(self.requests[index].phase, Phase::Retry { .. }) {
                self.send(now, index, out);
            }
        }
    }

    fn send(&mut self, now: Instant, index: usize, out: &mut VecDeque<Output>) {
        self.serial += 1;
        // The index is found again by the remainder.
        let id = ActionId(self.serial.wrapping_mul(ID_STRIDE).wrapping_add(index as u64));
        let until = now + ANSWER_WITHIN;
        let goal = self.requests[index].goal;
        self.set_phase(index, Phase::Waiting { id, until });
        self.wake(until);
        out.push_back(match (&self.targets[index], goal) {
            (Target::Core(core), Goal::Pstate(khz)) => Output::SetPstate { id, core: *core, khz },
            (Target::Core(core), _) => Output::Lift { id, core: *core },
            (Target::Vm(vm), Goal::Quota(millicores)) => Output::SetQuota { id, vm: vm.clone(), millicores },
            (Target::Vm(vm), _) => Output::LiftQuota { id, vm: vm.clone() },
            (Target::Server, Goal::Limit(watts)) => Output::SetServerLimit { id, watts },
            (Target::Server, _) => Output::LiftServerLimit { id },
        });
    }

    fn set_phase(&mut self, index: usize, phase: Phase) {
        let it = &mut self.requests[index];
        self.busy -= usize::from(it.phase != Phase::Idle);
        self.busy += usize::from(phase != Phase::Idle);
        it.phase = phase;
        if self.busy == 0 {
            self.due = None;
        }
    }

    fn wake(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Takes an answer; one to a superseded action is ignored.
    pub(crate) fn applied(
        &mut self,
        now: Instant,
        id: ActionId,
        result: Result<(), ActuatorError>,
        out: &mut VecDeque<Output>,
    ) {
        let index = (id.0 % ID_STRIDE) as usize;
        let phase = self.requests.get(index).map(|it| it.phase);
        if !matches!(phase, Some(Phase::Waiting { id: waiting, .. }) if waiting == id) {
            return;
        }
        match result {
            Ok(()) => {
                let it = &mut self.requests[index];
                (it.tries, it.gave_up, it.stuck) = (0, false, false);
                self.set_phase(index, Phase::Idle);
                self.drop_answered(now, index, out);
            }
            Err(error) => self.failed(now, index, error, out),
        }
    }

    fn failed(&mut self, now: Instant, index: usize, error: ActuatorError, out: &mut VecDeque<Output>) {
        let it = &mut self.requests[index];
        it.tries = it.tries.saturating_add(1);
        let give_up = error == ActuatorError::Permanent || it.tries >= self.tries || it.gave_up;
        let at = now + if give_up { RECOVER_AFTER } else { self.retry_after };

        if give_up && !it.gave_up {
            it.gave_up = true;
            it.stuck = true;
            self.failures = self.failures.saturating_add(1);
            let message = self.alarm(index);
            out.push_back(Output::Event(Event { at_ns: now, kind: EventKind::Alarm { message } }));
            self.drop_answered(now, index, out);
        }

        self.set_phase(index, Phase::Retry { at });
        self.wake(at);
    }

    /// The target at `index` is no longer part of the floor drop; the last one completes it.
    fn drop_answered(&mut self, now: Instant, index: usize, out: &mut VecDeque<Output>) {
        if !core::mem::take(&mut self.requests[index].of_drop) {
            return;
        }
        let Some(drop) = &mut self.drop else { return };
        drop.left = drop.left.saturating_sub(1);
        if drop.left == 0 {
            let Drop { message: (epoch, seq), cores, .. } = *drop;
            self.drop = None;
            let kind = EventKind::FloorReached { epoch, seq, cores };
            out.push_back(Output::Event(Event { at_ns: now, kind }));
        }
    }

    /// Retries what is due, and fails what was not answered in time.
    pub(crate) fn tick(&mut self, now: Instant, out: &mut VecDeque<Output>) {
        if self.due.is_none_or(|due| now < due) {
            return;
        }
        self.due = None;
        for index in 0..self.requests.len() {
            match self.requests[index].phase {
                Phase::Waiting { until, .. } if until <= now => {
                    self.failed(now, index, ActuatorError::Transient, out);
                }
                Phase::Retry { at } if at <= now => self.send(now, index, out),
                Phase::Waiting { until: at, .. } | Phase::Retry { at } => self.wake(at),
                Phase::Idle => {}
            }
        }
    }

    fn alarm(&self, index: usize) -> String {
        format!("{} could not {}", self.targets[index], self.requests[index].goal)
    }

    /// One line for every actuator that does not obey.
    pub(crate) fn alarms(&self) -> Vec<Alarm> {
        let alarm = |index| Alarm::about(AlarmId::ActuatorFailing, &self.targets[index], self.alarm(index));
        (0..self.requests.len()).filter(|index| self.stuck(*index)).map(alarm).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_types::{BootId, ChassisId, ServerId};

    fn ms(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    /// No core, so that the server's own limit is the only target.
    fn actuators() -> (Actuators, VecDeque<Output>) {
        let ids = (ServerId::new("s").unwrap(), BootId::new("b").unwrap(), ChassisId::new("c").unwrap());
        (Actuators::new(&Params::defaults(ids.0, ids.1, ids.2, vec![])), VecDeque::new())
    }

    #[test]
    fn what_is_not_answered_fails_when_it_is_due_and_is_tried_again() {
        let (mut it, mut out) = actuators();
        let (server, goal) = (it.server(), Goal::Limit(Watts::from_whole(150)));
        it.request(ms(0), server, goal, false, &mut out);
        it.request(ms(0), server, goal, false, &mut out);
        assert_eq!((out.len(), it.due()), (1, Some(ms(1000))), "once");
        for (now, sent, due) in [(999, 1, 1000), (1000, 1, 1050), (1049, 1, 1050), (1050, 2, 2050)] {
            it.tick(ms(now), &mut out);
            assert_eq!((out.len(), it.due()), (sent, Some(ms(due))), "{now} ms");
        }
        let Some(Output::SetServerLimit { id, .. }) = out.pop_back() else { panic!("{out:?}") };
        assert!(!it.obeyed(server));
        it.applied(ms(1100), id, Ok(()), &mut out);
        assert_eq!((it.obeyed(server), it.due()), (true, None));
        it.tick(ms(9000), &mut out);
        assert_eq!(out.len(), 1, "nothing is under way");
    }
}
