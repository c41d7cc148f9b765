//! The agent: what comes in, in which order it is looked at, what goes out.

use core::time::Duration;
use std::collections::VecDeque;

use ballast_types::wire::{Alert, Event, EventKind, RefusalReason};
use ballast_types::{Epoch, Instant, Machine, Seq, Watts, Why};

use crate::actuators::{Actuators, Goal};
use crate::control::Episode;
use crate::enforced::Enforced;
use crate::estimate::Estimate;
use crate::fleet::Fleet;
use crate::lease::Orders;
use crate::meter::Meter;
use crate::overdraw::Overdraw;
use crate::past::Past;
use crate::predictive::Predictive;
use crate::shed::Shed;
use crate::state::State;
use crate::throttle::{Class, Joining, Throttle};
use crate::{Found, Input, Output, Params, Policy, Vm};

/// How long a stopping agent waits for a message to answer with its last report: a little less than its
/// daemon goes on answering.
const SAY_WITHIN: Duration = Duration::from_millis(600);

/// How far the agent's stop has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// It stays.
    No,
    /// Reports say that it leaves. What it restricts stays until one has gone out, or until then: the
    /// chassis must not learn of the lift from the draw.
    Saying { until: Instant },
    /// Everything is lifted.
    Done,
}

/// The controller of one server.
#[derive(Clone, Debug)]
pub struct Agent {
    pub(crate) params: Params,
    pub(crate) state: State,
    pub(crate) orders: Orders,
    /// The cap in force, as of the last input or timer.
    pub(crate) cap: Option<Watts>,
    pub(crate) episode: Episode,
    pub(crate) meter: Meter,
    pub(crate) enforced: Enforced,
    pub(crate) overdraw: Overdraw,
    pub(crate) past: Past,
    pub(crate) throttle: Throttle,
    pub(crate) actuators: Actuators,
    pub(crate) fleet: Fleet,
    pub(crate) estimate: Estimate,
    pub(crate) predictive: Predictive,
    pub(crate) shed: Shed,
    /// The newest change that the meter may not show yet.
    pub(crate) changed_at: Option<Instant>,
    pub(crate) leaving: Leaving,
    pub(crate) refused: u64,
    pub(crate) out: VecDeque<Output>,
    scratch: Vec<u16>,
}

impl Agent {
    /// An agent that starts at `now` with what an earlier life left behind.
    ///
    /// A core of `found` that is not in `params` is none of its business.
    #[must_use]
    pub fn new(params: Params, found: Found, now: Instant) -> Self {
        let Found { memory, capped, server_limit, quotas } = found;
        let equal = params.equal();
        let slots = params.slots();
        let size = slots.len();
        let mut throttle = Throttle::new(slots, equal);
        let mut actuators = Actuators::new(&params);
        let mut low = Vec::new();
        // With `cpu-max` no core is ours.
        for (id, khz) in capped.into_iter().filter(|_| !params.floating()) {
            let Ok(core) = params.cores.binary_search_by_key(&id, |core| core.id) else {
                continue;
            };
            let ladder = &params.cores[core].ladder;
            let level = ladder.at_or_below(khz);
            let ours = ladder.khz(level) == khz && level < ladder.top();
            throttle.found(core, level);
            actuators.found(core, if ours { Goal::Pstate(khz) } else { Goal::Unknown });
            low.push(core as u16);
        }
        if server_limit {
            actuators.found(actuators.server(), Goal::Unknown);
        }
        // Until the VMs are told, what an earlier life had capped counts as low-priority: it was.
        low.sort_unstable();
        low.dedup();
        let cores = if equal { (0..size as u16).collect() } else { low };
        let class = Class { order: 0, user_facing: false, floor_percent: 0, cores };
        throttle.reclass(vec![class], Joining::Free);

        let orders = Orders::new(params.chassis_id.clone(), params.boot_id.clone(), memory, now);
        let mut agent = Self {
            state: State::Boot,
            cap: orders.cap(),
            orders,
            episode: Episode::new(&params, now),
            meter: Meter::new(params.sample_period, params.stale_after, now),
            enforced: Enforced::new(params.settle),
            overdraw: Overdraw::default(),
            past: Past::new(
                params.settle.saturating_sub(params.sample_period),
                params.sample_period,
            ),
            actuators,
            fleet: Fleet::new(size, now),
            estimate: Estimate::new(&params),
            predictive: Predictive::new(&params),
            shed: Shed::new(&params),
            changed_at: None,
            leaving: Leaving::No,
            refused: 0,
            out: VecDeque::new(),
            scratch: Vec::with_capacity(size),
            throttle,
            params,
        };
        if agent.params.floating() {
            agent.found_quotas(now, quotas);
        }
        agent.past.note(now, agent.throttle.levels());
        if agent.params.policy == Policy::None {
            agent.lift_all(now);
        }
        // What is capped at the top of its ladder or above is not restricted, only untidy.
        for core in (0..size).filter(|core| !agent.throttle.restricted(*core)) {
            agent.actuators.want(now, core, Goal::Lift, false, &mut agent.out);
        }
        agent
    }

    /// What it was made with.
    #[must_use]
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The cap in force, as of the last input or timer; `None` is uncapped.
    #[must_use]
    pub fn cap(&self) -> Option<Watts> {
        self.cap
    }

    /// What the server may draw when nobody says anything; `None` if nobody ever has.
    #[must_use]
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
        self.ordered(now, alert, &accepted);
        let report = self.report(now);
        self.out.push_back(Output::Report(report));
    }

    fn vms(&mut self, now: Instant, vms: Vec<Vm>) {
        self.account(now);
        if self.params.floating() {
            self.replace_floating(&vms);
        } else {
            self.fleet.replace(vms, &self.params.cores);
        }
        self.shed.keep(|vm| self.fleet.has(vm));
        if !self.params.equal() {
            let joining = self.joining();
            self.throttle.reclass(self.fleet.classes(&self.params.floors()), joining);
            self.past.note(now, self.throttle.levels());
            self.write(now, None);
            self.quotas_after_replace(now);
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
            self.go(now, State::Uncapped, "the agent stops");
        }
    }

    /// Has everything written that `throttle` changed, as one floor drop if a message caused it.
    pub(crate) fn write(&mut self, now: Instant, drop: Option<(Epoch, Seq)>) {
        let mut changed = core::mem::take(&mut self.scratch);
        self.throttle.take_changed(&mut changed);
        if !changed.is_empty() {
            self.changed_at = Some(now);
            self.past.note(now, self.throttle.levels());
            if let Some(message) = drop {
                self.actuators.begin_drop(message);
            }
            if self.params.floating() {
                self.write_quotas(now, &changed, drop.is_some());
            }
            let cores = if self.params.floating() { &[] } else { &changed[..] };
            for core in cores.iter().map(|core| usize::from(*core)) {
                let free = !self.throttle.restricted(core);
                let goal = if free { Goal::Lift } else { Goal::Pstate(self.throttle.khz(core)) };
                self.actuators.want(now, core, goal, drop.is_some(), &mut self.out);
            }
            self.actuators.end_drop();
            self.account(now);
        }
        self.scratch = changed;
    }

    /// Releases everything, the server's own limit first.
    pub(crate) fn lift_all(&mut self, now: Instant) {
        self.shed.calm();
        self.actuators.want(now, self.actuators.server(), Goal::Lift, false, &mut self.out);
        self.throttle.lift_all();
        self.write(now, None);
        self.lift_quotas(now);
        let cores = if self.params.floating() { 0 } else { self.throttle.len() };
        for core in 0..cores {
            self.actuators.want(now, core, Goal::Lift, false, &mut self.out);
        }
        self.actuators.hurry(now, &mut self.out);
    }

    /// Enters `to`; a change of name is an event.
    pub(crate) fn go(&mut self, now: Instant, to: State, cause: &'static str) {
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
            Input::Fast(fast) => self.fast(now, &fast),
            Input::Vms(vms) => self.vms(now, vms),
            Input::Applied { id, result } if Shed::asked_for(id) => {
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
