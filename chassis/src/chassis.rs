//! The machine: what comes in is handed to the module that knows it, and then everything is looked at anew.

mod answers;
mod hardware;
mod identity;
mod messages;
mod plan;
mod polls;
mod reload;
mod status;
mod steer;

use core::time::Duration;
use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use ballast_types::wire::{ChassisState, Event, EventKind, Level, Slot};
use ballast_types::{ActionId, Instant, Machine, Seq, ServerId, Watts, Why};
use serde::{Deserialize, Serialize};

use crate::crosscheck::Crosscheck;
use crate::detector::Detector;
use crate::event::{CappingEvent, Integral};
use crate::height::{Height, Range};
use crate::lowered::Lowered;
use crate::set_point::SetPoint;
use crate::shared::Shared;
use crate::slots::Agent;
use crate::supplies::Supplies;
use crate::tuning::Tuning;
use crate::{Input, Ledger, Output, Params};
use hardware::Hardware;
use identity::Identity;

/// The controller of one chassis.
///
/// Desired state goes out, answers come in; see [`crate`] for the parts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Chassis {
    params: Params,
    tuning: Tuning,
    identity: Identity,
    supplies: Supplies,
    crosscheck: Crosscheck,
    shared: Shared,
    detector: Detector,
    integral: Integral,
    agents: Vec<Agent>,
    hardware: Hardware,
    event: Option<CappingEvent>,
    /// The common height of all low-priority cores. After an event it holds until the last server is released.
    height: Height,
    set_point: SetPoint,
    /// What is drawn by servers that report nothing: at once when it rises, slowly when it falls.
    unseen: Watts,
    /// Every agent that should answer has, by the last poll.
    all_heard: bool,
    /// Somebody gets less than it needs.
    lacking: bool,
    /// Whether some poll has given a reading yet.
    sighted: bool,
    blind: bool,
    /// What was told of the state, and why it may have changed since.
    published: ChassisState,
    cause: Cow<'static, str>,
    /// Facts have changed since the last plan.
    unplanned: bool,
    /// A poll has come since agents were last spoken to.
    polled: bool,
    /// Polls judged since the start.
    judgements: u64,
    /// When the next server is told `watch` after an event.
    release_at: Instant,
    /// When the estimate is looked at again, while blind.
    estimate_at: Instant,
    /// Heartbeats are counted from here.
    beat_from: Instant,
    /// When this machine was last moved; and, after a gap of its own, until when nobody is called silent.
    moved_at: Instant,
    grace_until: Instant,
    /// The operator's lower budget.
    budget: Option<Watts>,
    lowered: Lowered,
    budget_refused: Option<Watts>,
    left: bool,
    alerts: u64,
    refused: u64,
    recorded: Option<Ledger>,
    /// When the servers' highest draws alone are reason enough to write the ledger.
    highest_due: Instant,
    index: BTreeMap<ServerId, usize>,
    /// The highest number of a message to servers of earlier configurations.
    highest_seq: Seq,
    last_action: ActionId,
    outputs: VecDeque<Output>,
}

/// The agents of the configured servers, with their hardware caps and highest draws from the ledger.
fn agents(params: &Params, ledger: &Ledger, now: Instant) -> Vec<Agent> {
    let even = params.budget.per(params.servers.len() as u64);
    let agents = params.servers.iter().map(|server| {
        let capped = newest(&ledger.out_of_band, &server.id);
        let mut agent = Agent::new(server.clone(), capped, even, now);
        agent.highest = newest(&ledger.highest_w, &server.id).unwrap_or_default().at_least_zero();
        agent
    });
    agents.collect()
}

fn newest(entries: &[(ServerId, Watts)], id: &ServerId) -> Option<Watts> {
    entries.iter().rev().find(|(server, _)| server == id).map(|&(_, watts)| watts)
}

impl Chassis {
    /// A manager at its start: takes the next epoch, adopts the ledger's out-of-band caps and budget.
    /// Its first output is the new ledger.
    pub fn new(params: Params, ledger: Ledger, now: Instant) -> Self {
        let tuning = Tuning::default();
        Self::tuned(params, tuning, ledger, now)
    }

    /// The same, with numbers of its own for the control loop.
    pub fn tuned(params: Params, tuning: Tuning, ledger: Ledger, now: Instant) -> Self {
        let agents = agents(&params, &ledger, now);
        let Ledger { epoch, budget_w, out_of_band, shared_w, .. } = ledger;
        let index: BTreeMap<_, _> =
            agents.iter().enumerate().map(|(i, a)| (a.server.id.clone(), i)).collect();
        let mut unconfigured: Vec<_> =
            out_of_band.iter().filter(|(s, _)| !index.contains_key(s)).cloned().collect();
        unconfigured.sort();
        unconfigured.dedup_by(|a, b| a.0 == b.0);

        let mut chassis = Self {
            tuning,
            identity: Identity::new(epoch.next(), now),
            supplies: Supplies::of(&params, now),
            crosscheck: Crosscheck::default(),
            shared: Shared::new(params.shared_floor, shared_w, params.budget),
            detector: Detector::new(params.trip_curve.clone()),
            integral: Integral::default(),
            hardware: Hardware::new(&agents, unconfigured, params.out_of_band_hold, now),
            agents,
            event: None,
            height: Height::at(Range::default()),
            set_point: SetPoint::default(),
            unseen: Watts::ZERO,
            all_heard: false,
            lacking: false,
            sighted: false,
            blind: false,
            published: ChassisState::Boot,
            cause: "".into(),
            unplanned: true,
            polled: false,
            judgements: 0,
            release_at: now,
            estimate_at: now,
            beat_from: now,
            moved_at: now,
            grace_until: now,
            budget: budget_w.filter(|&b| b > Watts::ZERO && b < params.budget),
            lowered: Lowered::default(),
            budget_refused: None,
            left: false,
            alerts: 0,
            refused: 0,
            recorded: None,
            highest_due: now,
            index,
            highest_seq: Seq(0),
            last_action: ActionId(0),
            outputs: VecDeque::new(),
            params,
        };

        if chassis.caps_on() {
            chassis.cause = "the ledger holds hardware caps".into();
        }
        chassis.reconcile(now);

        chassis
    }

    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Whether a capping event is on: every server has a cap.
    pub fn is_capping(&self) -> bool {
        self.event.is_some()
    }

    /// Whether another manager rules the chassis.
    pub fn is_fenced(&self) -> bool {
        self.identity.is_fenced()
    }

    /// Which servers answer, in configured order.
    pub fn answering(&self) -> impl Iterator<Item = bool> {
        self.agents.iter().map(|a| a.slot == Slot::Managed)
    }

    /// The least of the budget and what the supplies can carry.
    fn limit(&self) -> Watts {
        self.budget_in_force().min(self.supplies.capacity()).at_least_zero()
    }

    /// The configured budget, or the operator's lower one.
    fn budget_in_force(&self) -> Watts {
        self.budget.map_or(self.params.budget, |b| b.min(self.params.budget))
    }

    /// The power supplies' total, if it is known.
    fn reading(&self, now: Instant) -> Option<Watts> {
        self.supplies.reading(now, self.params.blind_after())
    }

    fn state(&self) -> ChassisState {
        if self.identity.is_fenced() {
            ChassisState::Fenced
        } else if self.blind {
            ChassisState::Blind
        } else if self.caps_on() {
            ChassisState::HardwareCaps
        } else if self.event.is_some() {
            ChassisState::Alerting
        } else if self.sighted {
            ChassisState::Normal
        } else {
            ChassisState::Boot
        }
    }

    /// Whether it still acts.
    fn acts(&self) -> bool {
        !self.left && !self.identity.is_fenced()
    }

    /// Everything is looked at anew: who gets what, which hardware caps, what is written down, who is told.
    fn reconcile(&mut self, now: Instant) {
        if self.acts() {
            if core::mem::take(&mut self.unplanned) {
                self.plan(now);
            }
            self.order_hardware(now);

            // A hardware cap that is ordered anew is not certain any more.
            if core::mem::take(&mut self.unplanned) {
                self.plan(now);
            }
            self.record(now);
            self.release_due(now);
            self.speak(now);
        } else if !self.left {
            self.guard_supplies(now);
            self.ask(now);
            self.rule_again(now);
        }

        self.tell_state(now);
    }

    /// Tells when the state's name has changed.
    fn tell_state(&mut self, now: Instant) {
        let (from, to) = (self.published, self.state());
        if from == to {
            return;
        }
        self.published = to;
        let cause = self.cause.to_string();
        self.tell(now, EventKind::ChassisState { from, to, cause });
    }

    /// Something an operator may want to see.
    fn tell(&mut self, now: Instant, kind: EventKind) {
        self.outputs.push_back(Output::Event(Event { at_ns: now, kind }));
    }

    /// Writes the ledger, if it has changed. Highest draws creep up with the meters' noise: they go with
    /// what else is written, and alone once a minute at most.
    fn record(&mut self, now: Instant) {
        let known = self.recorded.as_ref().map(|ledger| ledger.highest_w.clone());
        let mut ledger = self.ledger(known.unwrap_or_default());
        self.shared.remember(ledger.shared_w);
        if self.recorded.as_ref() != Some(&ledger) || now >= self.highest_due {
            ledger.highest_w = self.highest_draws();
            self.highest_due = now + self.tuning.highest_every;
        }
        if self.recorded.as_ref() != Some(&ledger) {
            self.outputs.push_back(Output::Ledger(ledger.clone()));
            self.recorded = Some(ledger);
        }
    }

    /// What the next start is to know; `highest_w` are the servers' highest draws.
    fn ledger(&self, highest_w: Vec<(ServerId, Watts)>) -> Ledger {
        let mut out_of_band = self.hardware.unconfigured().to_vec();
        for agent in &self.agents {
            if let Some(watts) = agent.out_of_band.watts() {
                out_of_band.push((agent.server.id.clone(), watts));
            }
        }

        let (epoch, shared_w) = (self.identity.epoch(), self.shared.to_remember(self.limit()));
        Ledger { epoch, budget_w: self.budget, out_of_band, shared_w, highest_w }
    }

    /// The highest draw of every server that ever reported one.
    fn highest_draws(&self) -> Vec<(ServerId, Watts)> {
        let reported = self.agents.iter().filter(|a| a.highest > Watts::ZERO);
        reported.map(|a| (a.server.id.clone(), a.highest)).collect()
    }

    fn next_action(&mut self) -> ActionId {
        self.last_action = self.last_action.next();
        self.last_action
    }

    /// The server's index, if it is configured.
    fn position(&self, server: &ServerId) -> Option<usize> {
        self.index.get(server).copied()
    }

    /// One more input that cannot be used.
    fn refuse(&mut self) {
        self.refused = self.refused.saturating_add(1);
    }

    fn take_budget(&mut self, now: Instant, budget: Option<Watts>) {
        self.budget_refused = budget.filter(|&b| b <= Watts::ZERO || b >= self.params.budget);
        if let Some(watts) = self.budget_refused {
            self.refuse();
            let message = format!(
                "budget_w = {watts} refused: it may only be lowered, to above 0 and below {}",
                self.params.budget
            );
            self.tell(now, EventKind::Alarm { message });
            return;
        }
        let before = self.budget_in_force();
        self.budget = budget;
        if self.budget_in_force() < before {
            self.lowered.accepted(now, before, self.tuning.lowered_counts_after);
        }
        self.limit_moved(now);
    }

    /// The machine itself may have stood still: then answers wait in its inbox, and it is no sign of
    /// anybody's death that they have not been read.
    fn note_gap(&mut self, now: Instant) {
        if now - self.moved_at > self.params.poll() + self.params.poll() / 2 {
            self.grace_until = now + self.params.poll() / 2;
        }
        self.moved_at = now;
    }

    /// Without an answer for this long a server is silent; never zero.
    fn silent_after(&self) -> Duration {
        self.params.silent_after.max(self.params.poll())
    }

    /// Every timer, soonest first where equal.
    fn timers(&self) -> impl Iterator<Item = (Instant, Why)> {
        let sight = if self.blind { (self.estimate_at, "estimate") } else { (self.blind_at(), "blind") };
        let (speaks, silent_after, grace) = (self.speaks(), self.silent_after(), self.grace_until);
        let agents = self.agents.iter().flat_map(move |a| {
            let message = (speaks && a.is_messaged()).then_some((a.next_at, "message"));
            let silent_at = (a.heard_at + silent_after).max(grace);
            let silence = (a.slot == Slot::Managed).then_some((silent_at, "silence"));
            let retry = a.out_of_band.again_at().map(|at| (at, "hardware cap retry"));
            [message, silence, retry].into_iter().flatten()
        });
        [Some(sight), self.releases().then_some((self.release_at, "release"))]
            .into_iter()
            .flatten()
            .chain(agents)
    }
}

impl Machine for Chassis {
    type Input = Input;
    type Output = Output;

    fn handle_input(&mut self, now: Instant, input: Input) {
        self.note_gap(now);
        match input {
            Input::Psu(poll) => self.take_poll(now, &poll),
            Input::Applied { id, result } => self.take_applied(now, id, result),
            Input::Answer { server, seq, answer } => self.take_answer(now, &server, seq, answer),
            Input::Params(params) => self.take_params(now, *params),
            _ if !self.acts() => {}
            Input::Budget(budget) => self.take_budget(now, budget),
            Input::Powered { server, on } => self.take_powered(now, &server, on),
            Input::RecoveredCap { server, cap } => self.take_readback(now, &server, cap),
            Input::Leave => self.leave(now),
        }
        self.reconcile(now);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.note_gap(now);
        if self.acts() {
            self.look(now);
            self.check_silence(now);
            self.retry_due(now);
        }
        self.reconcile(now);
    }

    fn poll_timeout(&self) -> Option<(Instant, Why)> {
        if !self.acts() {
            return self.identity.ask_at().filter(|_| !self.left).map(|at| (at, "question"));
        }
        self.timers().min_by_key(|&(at, _)| at)
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }
}

/// The level of a message to a capped server.
const fn level(emergency: bool) -> Level {
    if emergency { Level::Emergency } else { Level::Cap }
}

#[cfg(test)]
mod tests;
