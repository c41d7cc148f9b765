//! The agent: what comes in, in which order it is looked at, what goes out.
//!
//! The parts know nothing of each other; what they do together stands in the files below.

mod floors;
mod height;
mod kills;
mod last_resort;
mod mechanism;
mod status;
mod stepwise;
mod supervisor;

use core::time::Duration;
use std::collections::VecDeque;

use ballast_types::wire::{Alert, Event, EventKind, RefusalReason};
use ballast_types::{Epoch, Instant, Machine, Seq, Watts, Why};
use serde::{Deserialize, Serialize};

use mechanism::{Mechanism, Pstates, Quotas};

use crate::actuators::{Actuators, Goal};
use crate::enforced::Enforced;
use crate::episode::Episode;
use crate::estimate::Estimate;
use crate::fleet::Fleet;
use crate::lease::Orders;
use crate::meter::Meter;
use crate::overdraw::Overdraw;
use crate::past::Past;
use crate::shed::Shed;
use crate::state::State;
use crate::throttle::Throttle;
use crate::{ControlledVm, Input, Output, Params, Policy, RecoveredState, Tuning};

/// How long a stopping agent waits for a message to answer with its last report: a little less than its
/// daemon goes on answering.
const SAY_WITHIN: Duration = Duration::from_millis(600);

/// How far the agent's stop has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Leaving {
    /// It stays.
    No,
    /// Reports say that it leaves. What it restricts stays until one has gone out, or until then: the
    /// chassis must not learn of the lift from the draw.
    Saying { until: Instant },
    /// Everything is lifted.
    Done,
}

/// The controller of one server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Agent {
    params: Params,
    tuning: Tuning,
    state: State,
    orders: Orders,
    /// The cap in force, as of the last input or timer.
    cap: Option<Watts>,
    episode: Episode,
    meter: Meter,
    enforced: Enforced,
    overdraw: Overdraw,
    past: Past,
    throttle: Throttle,
    actuators: Actuators,
    fleet: Fleet,
    estimate: Estimate,
    shed: Shed,
    /// The newest change that the meter may not show yet.
    changed_at: Option<Instant>,
    leaving: Leaving,
    refused: u64,
    out: VecDeque<Output>,
    scratch: Vec<u16>,
}

impl Agent {
    /// An agent that starts at `now` with what a previous instance left behind.
    ///
    /// A core of `recovered` that is not in `params` is none of its business.
    pub fn new(params: Params, recovered: RecoveredState, now: Instant) -> Self {
        let tuning = Tuning::default();
        Self::tuned(params, tuning, recovered, now)
    }

    /// The same with other numbers in its loop.
    pub fn tuned(params: Params, tuning: Tuning, recovered: RecoveredState, now: Instant) -> Self {
        let mut actuators = Actuators::new(&params);
        if recovered.server_limit {
            actuators.recover(actuators.server(), Goal::Unknown);
        }
        let units = params.units();
        let size = units.len();
        let memory = recovered.memory.clone();
        let orders = Orders::new(params.chassis_id.clone(), params.boot_id.clone(), memory, now);
        let mut agent = Self {
            tuning,
            state: State::Boot,
            cap: orders.cap(),
            orders,
            episode: Episode::new(&params, now),
            meter: Meter::new(params.sample_period, params.stale_after, now),
            enforced: Enforced::new(params.settle),
            overdraw: Overdraw::new(tuning),
            past: Past::new(params.settle.saturating_sub(params.sample_period), params.sample_period),
            actuators,
            fleet: Fleet::new(size, now),
            estimate: Estimate::new(&params),
            shed: Shed::new(&params),
            changed_at: None,
            leaving: Leaving::No,
            refused: 0,
            out: VecDeque::new(),
            scratch: Vec::with_capacity(size),
            throttle: Throttle::new(units, params.equal()),
            params,
        };

        agent.mechanism().adopt(&mut agent, now, recovered);
        agent.past.note(now, agent.throttle.levels());

        if agent.params.policy == Policy::None {
            agent.lift_all(now);
        }
        agent
    }

    /// What the throttle's cores or units are.
    fn mechanism(&self) -> &'static dyn Mechanism {
        if self.params.floating() { &Quotas } else { &Pstates }
    }

    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The cap in force, as of the last input or timer; `None` is uncapped.
    pub fn cap(&self) -> Option<Watts> {
        self.cap
    }

    /// Whether some manager's lease is live; without one the fallback holds.
    pub fn is_leased(&self) -> bool {
        self.orders.lease_end().is_some()
    }

    /// What the server may draw when nobody says anything; `None` if nobody ever has.
    pub fn fallback(&self) -> Option<Watts> {
        self.orders.memory().fallback_w
    }

    /// Handles everything that fell due by `now`.
    fn tick(&mut self, now: Instant) {
        self.orders.tick(now);
        self.actuators.tick(now, &mut self.out);
        if !matches!(self.state, State::Blind { .. }) && now >= self.meter.silent_at() {
            self.meter_lost(now);
        }
        self.cap_due(now);
        self.blind_due(now);
        if self.leave_due().is_some_and(|at| now >= at) {
            self.left(now);
        }
    }

    fn alert(&mut self, now: Instant, alert: &Alert) {
        if self.leaving != Leaving::No {
            return self.say_that_it_leaves(now, alert);
        }
        let accepted = match self.orders.take(now, alert) {
            Ok(accepted) => accepted,
            Err(reason) => return self.refuse(reason),
        };
        if accepted.remember {
            self.out.push_back(Output::Remember(self.orders.memory().clone()));
        }
        if accepted.new_epoch {
            self.enforced.restart();
        }
        self.enforced.message(now, alert.seq, accepted.cap);
        self.ordered(now, alert);
        let report = self.report(now);
        self.out.push_back(Output::Report(report));
    }

    fn vms(&mut self, now: Instant, vms: Vec<ControlledVm>) {
        self.account(now);
        self.mechanism().replace(self, vms);
        self.shed.keep(|vm| self.fleet.has(vm));
        if !self.params.equal() {
            let joining = self.joining();
            self.throttle.reclass(self.fleet.classes(&self.params.floors()), joining);
            self.past.note(now, self.throttle.levels());
            self.write(now, None);
            self.mechanism().replaced(self, now);
        }
        self.account(now);
    }

    /// Books what the VMs went through since the last change, and what they go through now.
    fn account(&mut self, now: Instant) {
        self.fleet.account(now, &self.throttle, self.actuators.limit_on());
    }

    /// The server's own limit may have come or gone.
    fn account_limit(&mut self, now: Instant) {
        if self.fleet.limited() != self.actuators.limit_on() {
            self.account(now);
        }
    }

    fn refuse(&mut self, reason: RefusalReason) {
        self.refused = self.refused.saturating_add(1);
        let refusal = self.orders.refusal(reason);
        self.out.push_back(Output::Refuse(refusal));
    }

    /// Obeys nobody any more; the report goes out before anything is lifted.
    fn say_that_it_leaves(&mut self, now: Instant, alert: &Alert) {
        if let Err(reason) = self.orders.hear(now, alert) {
            return self.refuse(reason);
        }
        let report = self.report(now);
        self.out.push_back(Output::Report(report));
        self.left(now);
    }

    fn leave(&mut self, now: Instant) {
        if self.leaving == Leaving::No {
            self.leaving = Leaving::Saying { until: now + SAY_WITHIN };
        }
    }

    /// When it lifts everything although nobody has asked for a last report.
    fn leave_due(&self) -> Option<Instant> {
        match self.leaving {
            Leaving::Saying { until } => Some(until),
            Leaving::No | Leaving::Done => None,
        }
    }

    fn left(&mut self, now: Instant) {
        if self.leaving == Leaving::Done {
            return;
        }
        self.leaving = Leaving::Done;
        self.lift_all(now);
        if !matches!(self.state, State::Boot | State::Blind { .. }) {
            self.transition_to(now, State::Uncapped, "the agent stops");
        }
    }

    /// Has everything written that `throttle` changed, as one floor drop if a message caused it.
    fn write(&mut self, now: Instant, drop: Option<(Epoch, Seq)>) {
        let mut changed = core::mem::take(&mut self.scratch);
        self.throttle.take_changed(&mut changed);
        if !changed.is_empty() {
            self.changed_at = Some(now);
            self.past.note(now, self.throttle.levels());
            if let Some(message) = drop {
                self.actuators.begin_drop(message);
            }
            self.mechanism().write(self, now, &changed, drop.is_some());
            self.actuators.end_drop();
            self.account(now);
        }
        self.scratch = changed;
    }

    /// Releases everything, the server's own limit first.
    fn lift_all(&mut self, now: Instant) {
        self.shed.reset();
        self.actuators.request(now, self.actuators.server(), Goal::Lift, false, &mut self.out);
        self.throttle.lift_all();
        self.write(now, None);
        self.mechanism().lift(self, now);
        self.actuators.retry_now(now, &mut self.out);
    }

    /// Enters `to`; a change of name is an event.
    fn transition_to(&mut self, now: Instant, to: State, cause: &'static str) {
        let (from, to_name) = (self.state.name(), to.name());
        self.state = to;
        if from != to_name {
            let kind = EventKind::AgentState { from, to: to_name, cause: cause.to_owned() };
            self.out.push_back(Output::Event(Event { at_ns: now, kind }));
        }
    }
}

impl Machine for Agent {
    type Input = Input;
    type Output = Output;

    fn handle_input(&mut self, now: Instant, input: Input) {
        self.tick(now);
        match input {
            Input::Alert(alert) => self.alert(now, &alert),
            Input::Power(reading) => {
                if let Some(sample) = self.meter.take(now, reading) {
                    self.sample(now, sample);
                }
            }
            Input::Usage(usage) => self.fleet.usage(now, &usage),
            Input::Vms(vms) => self.vms(now, vms),
            Input::Applied { id, result } if Shed::is_kill(id) => {
                self.shed.applied(now, id, result, &mut self.out);
            }
            Input::Applied { id, result } => {
                self.actuators.applied(now, id, result, &mut self.out);
            }
            Input::Leave => self.leave(now),
        }

        self.account_limit(now);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.tick(now);
        self.account_limit(now);
    }

    fn poll_timeout(&self) -> Option<(Instant, Why)> {
        let blind = matches!(self.state, State::Blind { .. });
        [
            self.orders.due().map(|at| (at, "the lease ends")),
            (!blind).then(|| (self.meter.silent_at(), "the meter is silent")),
            self.actuators.due().map(|at| (at, "an actuator is tried again")),
            self.blind_deadline().map(|at| (at, "blind at the floor")),
            self.leave_due().map(|at| (at, "the agent leaves")),
        ]
        .into_iter()
        .flatten()
        .min_by_key(|(at, _)| *at)
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.out.pop_front()
    }
}
