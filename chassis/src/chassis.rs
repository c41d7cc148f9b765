//! The machine: what comes in is handed to the module that knows it; timers are kept here.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use ballast_types::wire::{ChassisState, Event, EventKind, SharePolicy, Slot};
use ballast_types::{ActionId, Epoch, Instant, Machine, ServerId, Watts, Why};

use crate::crosscheck::Crosscheck;
use crate::episode::{Episode, State, Trigger};
use crate::escalation::Escalation;
use crate::shared::Shared;
use crate::shares::Shares;
use crate::slots::Agent;
use crate::supplies::{Outcome, Supplies};
use crate::{Input, Ledger, Output, Params, Poll};

/// The controller of one chassis.
///
/// Desired state goes out, answers come in; see [`crate`] for the parts.
#[derive(Debug)]
pub struct Chassis {
    pub(crate) params: Params,
    pub(crate) epoch: Epoch,
    pub(crate) state: State,
    pub(crate) supplies: Supplies,
    pub(crate) crosscheck: Crosscheck,
    pub(crate) shared: Shared,
    pub(crate) shares: Shares,
    pub(crate) agents: Vec<Agent>,
    pub(crate) escalation: Escalation,
    /// Since when the draw plus what would come back is under the lift threshold.
    pub(crate) calm_since: Option<Instant>,
    /// When the next server is told `watch` after an episode.
    pub(crate) release_at: Instant,
    /// When the estimate is looked at again, while blind.
    pub(crate) estimate_at: Instant,
    /// Heartbeats are counted from here.
    pub(crate) beat_from: Instant,
    /// The operator's lower budget.
    pub(crate) budget: Option<Watts>,
    pub(crate) budget_refused: Option<Watts>,
    /// Whether some agent has answered in this life.
    pub(crate) answered: bool,
    pub(crate) rival: Option<Epoch>,
    pub(crate) left: bool,
    pub(crate) alerts: u64,
    pub(crate) refused: u64,
    recorded: Option<Ledger>,
    index: BTreeMap<ServerId, usize>,
    last_action: ActionId,
    outputs: VecDeque<Output>,
}

impl Chassis {
    /// A manager at its start: takes the next epoch, adopts the ledger's out-of-band caps and budget.
    /// Its first output is the new ledger.
    #[must_use]
    pub fn new(params: Params, ledger: Ledger, now: Instant) -> Self {
        let Ledger { epoch, budget_w, out_of_band, shared_w } = ledger;
        let capped =
            |id: &ServerId| out_of_band.iter().rev().find(|(s, _)| s == id).map(|&(_, w)| w);
        let highest = params.budget.per(params.servers.len() as u64);
        let agents: Vec<_> = (params.servers.iter())
            .map(|s| Agent::new(s.clone(), capped(&s.id), highest, now))
            .collect();
        let index: BTreeMap<_, _> =
            agents.iter().enumerate().map(|(i, a)| (a.server.id.clone(), i)).collect();
        let mut strangers: Vec<_> =
            out_of_band.iter().filter(|(s, _)| !index.contains_key(s)).cloned().collect();
        strangers.sort();
        strangers.dedup_by(|a, b| a.0 == b.0);
        let mut chassis = Self {
            epoch: epoch.next(),
            state: State::Boot,
            supplies: Supplies::new(&params.supply_rated, params.trip_time, now),
            crosscheck: Crosscheck::default(),
            shared: Shared::new(params.shared_floor, shared_w, params.budget),
            shares: Shares::default(),
            escalation: Escalation::new(strangers, params.out_of_band_hold),
            agents,
            calm_since: None,
            release_at: now,
            estimate_at: now,
            beat_from: now,
            budget: budget_w.filter(|&b| b > Watts::ZERO && b < params.budget),
            budget_refused: None,
            answered: false,
            rival: None,
            left: false,
            alerts: 0,
            refused: 0,
            recorded: None,
            index,
            last_action: ActionId(0),
            outputs: VecDeque::new(),
            params,
        };
        chassis.record();
        chassis.share_out(now);
        if chassis.agents.iter().any(|a| a.out_of_band.watts().is_some()) {
            chassis.move_by(
                now,
                Trigger::Reached(Episode::new(now)),
                "the ledger holds out-of-band caps",
            );
            chassis.note_caps(now, "the ledger holds out-of-band caps");
            chassis.agents.iter_mut().for_each(|a| a.unreleased = true);
        }
        chassis
    }

    /// The parameters.
    #[must_use]
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The least of the budget and what the supplies can carry.
    pub(crate) fn limit(&self) -> Watts {
        self.budget_in_force().min(self.supplies.capacity()).at_least_zero()
    }

    /// The configured budget, or the operator's lower one.
    pub(crate) fn budget_in_force(&self) -> Watts {
        self.budget.map_or(self.params.budget, |b| b.min(self.params.budget))
    }

    /// What the servers may share.
    ///
    /// What the servers do not see (fans, losses) grows with their load. A manager that sees the total
    /// corrects its estimate; one that is blind keeps under the alert threshold instead.
    #[must_use]
    pub fn sharable(&self) -> Watts {
        let limit = match self.state {
            State::Blind(_) => self.limit().ppm(self.params.alert_ppm),
            _ => self.limit(),
        };
        (limit - self.shared.watts()).at_least_zero()
    }

    /// Whether a capping episode is on: every server has a cap.
    #[must_use]
    pub fn is_capping(&self) -> bool {
        self.state.episode().is_some()
    }

    /// Which servers answer, in configured order.
    pub fn answering(&self) -> impl Iterator<Item = bool> {
        self.agents.iter().map(|a| a.slot == Slot::Managed)
    }

    /// The power supplies' total, if it is known.
    pub(crate) fn reading(&self, now: Instant) -> Option<Watts> {
        self.supplies.reading(now, self.params.blind_after())
    }

    /// Computes the shares anew; caps follow with the next messages.
    pub(crate) fn share_out(&mut self, now: Instant) {
        let sharable = self.sharable();
        self.shares.split(sharable, self.agents.len());
        let (mut absent, mut returning) = (Watts::ZERO, Watts::ZERO);
        let (mut present, mut answering) = (0, 0);
        for agent in &self.agents {
            let shares = agent.shares();
            present += usize::from(shares);
            match agent.reserve(self.shares.even) {
                Some(watts) if shares => returning += watts,
                Some(watts) => absent += watts,
                None => answering += 1,
            }
        }
        match self.params.shares {
            SharePolicy::Even => {
                self.shares.grant(sharable, absent + returning, answering);
                self.shares.welcome(sharable, absent, present);
            }
            SharePolicy::CriticalFirst => self.grant_critical_first(now, absent),
        }
    }

    /// What a server is granted.
    pub(crate) fn share(&self, agent: &Agent) -> Watts {
        match self.params.shares {
            _ if agent.is_dry() => self.shares.even,
            SharePolicy::Even if agent.is_returning() => self.shares.returning,
            SharePolicy::Even => self.shares.granted,
            SharePolicy::CriticalFirst => agent.share,
        }
    }

    /// Moves the state, and tells when its name changed.
    pub(crate) fn move_by(&mut self, now: Instant, trigger: Trigger, cause: &str) {
        let from = self.state.name();
        self.state = self.state.after(trigger);
        let to = self.state.name();
        if from != to {
            self.tell(now, EventKind::ChassisState { from, to, cause: cause.to_owned() });
            if from == ChassisState::Boot {
                self.start_heartbeats(now);
            }
        }
    }

    /// Something an operator may want to see.
    pub(crate) fn tell(&mut self, now: Instant, kind: EventKind) {
        self.outputs.push_back(Output::Event(Event { at_ns: now, kind }));
    }

    /// Something to be done.
    pub(crate) fn put(&mut self, output: Output) {
        self.outputs.push_back(output);
    }

    /// Writes the ledger, if it has changed.
    pub(crate) fn record(&mut self) {
        let mut out_of_band = self.escalation.strangers.clone();
        for agent in &self.agents {
            if let Some(watts) = agent.out_of_band.watts() {
                out_of_band.push((agent.server.id.clone(), watts));
            }
        }
        let shared_w = self.shared.remembered();
        let ledger = Ledger { epoch: self.epoch, budget_w: self.budget, out_of_band, shared_w };
        if self.recorded.as_ref() != Some(&ledger) {
            self.put(Output::Ledger(ledger.clone()));
            self.recorded = Some(ledger);
        }
    }

    /// The number of the next action.
    pub(crate) fn next_action(&mut self) -> ActionId {
        self.last_action = self.last_action.next();
        self.last_action
    }

    /// The server's place, if it is configured.
    pub(crate) fn place(&self, server: &ServerId) -> Option<usize> {
        self.index.get(server).copied()
    }

    /// Whether it still acts.
    pub(crate) fn acts(&self) -> bool {
        !self.left && self.state != State::Fenced
    }

    fn take_poll(&mut self, now: Instant, poll: &Poll) {
        let limit = self.limit();
        let outcome = self.supplies.take(now, poll);
        if let Outcome::Missing(_) = outcome {
            self.refused = self.refused.saturating_add(1);
        }
        if !self.acts() {
            return;
        }
        if let Outcome::Fresh(total) = outcome {
            let servers = self.reported(now);
            self.shared.compare(now, total, servers, self.limit());
            if servers.is_none() {
                let excess = self.state.episode().and_then(|episode| episode.excess);
                let stuck = excess.is_some_and(|it| now - it.since >= self.params.emergency_after);
                self.shared.correct(now, total, self.limit(), stuck);
            } else if self.recorded.as_ref().is_some_and(|l| l.shared_w != self.shared.remembered())
            {
                self.record();
            }
            self.share_out(now);
            self.move_by(now, Trigger::Sight { caps_on: self.caps_on() }, "a usable reading");
            self.cross_check(now, total);
            self.assess(now, self.judged(now, total), true);
            self.publish(now, true);
        } else if self.limit() != limit {
            self.limit_moved(now);
        }
    }

    fn take_budget(&mut self, now: Instant, budget: Option<Watts>) {
        self.budget_refused = budget.filter(|&b| b <= Watts::ZERO || b >= self.params.budget);
        if let Some(watts) = self.budget_refused {
            self.refused = self.refused.saturating_add(1);
            let message = format!(
                "budget_w = {watts} refused: it may only be lowered, to above 0 and below {}",
                self.params.budget
            );
            self.tell(now, EventKind::Alarm { message });
            return;
        }
        self.budget = budget;
        self.record();
        self.limit_moved(now);
    }

    /// Another limit takes effect at once, on the reading that there is.
    fn limit_moved(&mut self, now: Instant) {
        self.share_out(now);
        self.calm_since = None;
        if let Some(read) = self.reading(now) {
            self.begin_if_reached(now, self.judged(now, read));
        }
        self.publish(now, false);
    }

    /// Every timer, soonest first where equal.
    fn timers(&self) -> impl Iterator<Item = (Instant, Why)> {
        let sight = match self.state {
            State::Blind(_) => (self.estimate_at, "estimate"),
            _ => (self.supplies.seen_at() + self.params.blind_after(), "blind"),
        };
        let (speaks, silent_after) = (self.speaks(), self.silent_after());
        let agents = self.agents.iter().flat_map(move |a| {
            let message = (speaks && a.is_messaged()).then_some((a.next_at, "message"));
            let silence = (a.slot == Slot::Managed).then(|| (a.heard_at + silent_after, "silence"));
            let retry = a.out_of_band.again_at().map(|at| (at, "out-of-band retry"));
            [message, silence, retry].into_iter().flatten()
        });
        [Some(sight), self.releases().then_some((self.release_at, "release"))]
            .into_iter()
            .flatten()
            .chain(agents)
    }

    /// Without an answer for this long a server is silent; never zero.
    pub(crate) fn silent_after(&self) -> Duration {
        self.params.silent_after.max(self.params.poll())
    }
}

impl Machine for Chassis {
    type Input = Input;
    type Output = Output;

    fn handle_input(&mut self, now: Instant, input: Input) {
        match input {
            Input::Psu(poll) => self.take_poll(now, &poll),
            Input::Applied { id, result } => self.take_applied(now, id, result),
            _ if !self.acts() => {}
            Input::Answer { server, seq, answer } => self.take_answer(now, &server, seq, answer),
            Input::Budget(budget) => self.take_budget(now, budget),
            Input::Powered { server, on } => self.take_powered(now, &server, on),
            Input::Leave => self.leave(now),
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        if !self.acts() {
            return;
        }
        self.look(now);
        self.check_silence(now);
        self.release_due(now);
        self.send_due(now);
        self.retry_due(now);
    }

    fn poll_timeout(&self) -> Option<(Instant, Why)> {
        if !self.acts() {
            return None;
        }
        self.timers().min_by_key(|&(at, _)| at)
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }
}
