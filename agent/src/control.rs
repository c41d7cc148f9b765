//! The transitions: what a cap, a sample and a silence do.

use core::time::Duration;

use ballast_types::wire::Level;
use ballast_types::{Epoch, Instant, Seq, Watts};

use crate::actuators::Goal;
use crate::agent::{Agent, Leaving};
use crate::meter::Sample;
use crate::state::State;
use crate::throttle::Joining;
use crate::{Params, Policy};

/// The longest that the server's own limit stays on after the draw came under the target.
const LONGEST_HOLD: Duration = Duration::from_secs(30);
/// Samples above the cap in a row, while recovering, from which on steps are larger.
///
/// Four cores a step match the trickle of recovery. When the cap falls within an episode there is no
/// second floor drop: twenty cores of twelve p-states would then take 24 s to the floor, longer than
/// any breaker waits. Four times the step makes it 6 s, and the chassis's emergency is quicker still.
const OVER_RUN: u8 = 2;
/// A sample this part of a period early still counts as settled: 25 of 200 ms.
const SLACK: u32 = 8;
/// How much larger.
const OVER_STEPS: usize = 4;

/// From the first cap to the lift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Episode {
    began: Instant,
    /// The floor drop, once per episode, is used.
    dropped: bool,
    /// How long the server's own limit stays on; doubles whenever it is set again.
    hold: Duration,
    /// It has been set.
    limited: bool,
}

impl Episode {
    /// The model has chosen p-states: they need no floor drop first.
    pub(crate) fn model_took_over(&mut self) {
        self.dropped = true;
    }

    pub(crate) fn new(params: &Params, began: Instant) -> Self {
        Self { began, dropped: false, hold: params.server_limit_hold, limited: false }
    }
}

impl Agent {
    /// The cap that this agent acts on; none when it only watches.
    pub(crate) fn acting_cap(&self) -> Option<Watts> {
        self.cap.filter(|_| self.acts())
    }

    fn acts(&self) -> bool {
        self.leaving != Leaving::Done && self.params.policy != Policy::None
    }

    /// Where a core joins that becomes low-priority.
    pub(crate) fn joining(&self) -> Joining {
        match (self.acting_cap(), self.state) {
            (None, _) => Joining::Free,
            (_, State::Shedding { .. }) => Joining::Floor,
            (_, State::Blind { floored_since: Some(_) }) => Joining::Floor,
            _ => Joining::Class,
        }
    }

    // ---- what the chassis says, and what its silence means ----

    /// A message was accepted.
    pub(crate) fn ordered(&mut self, now: Instant, message: (Epoch, Seq), level: Level) {
        self.cap_changed(now, "the chassis lifted the cap");
        if self.acting_cap().is_none() {
            return self.lift_if_granted(now);
        }
        if self.orders.emergency(now) {
            self.floor_all(now, Some(message), "emergency");
        } else {
            self.obey_cap(now, Some((message, level)));
        }
    }

    /// The cap may have changed by itself.
    pub(crate) fn cap_due(&mut self, now: Instant) {
        if self.orders.cap() != self.cap {
            self.cap_changed(now, "the lease ended");
            if self.state != State::Boot {
                self.obey_cap(now, None);
            }
        }
    }

    fn cap_changed(&mut self, now: Instant, cause: &'static str) {
        let (was, is) = (self.cap, self.orders.cap());
        if was == is {
            return;
        }
        self.cap = is;
        if was.is_none() {
            self.episode = Episode::new(&self.params, now);
        }
        if is.is_none() && self.acts() && self.sighted() {
            self.lift_all(now);
            self.go(now, State::Uncapped, cause);
        } else if let (Some(cap), true) = (self.acting_cap(), self.actuators.limit_wanted()) {
            self.limit(now, cap);
        }
    }

    /// Without a meter only a live lease lifts, not the mere absence of orders.
    fn lift_if_granted(&mut self, now: Instant) {
        if let State::Blind { floored_since } = &mut self.state
            && self.orders.uncapped_by_lease()
        {
            *floored_since = None;
            self.lift_all(now);
        }
    }

    /// There is a cap: floors what has to be floored without waiting for a sample.
    fn obey_cap(&mut self, now: Instant, order: Option<((Epoch, Seq), Level)>) {
        let Some(cap) = self.acting_cap() else { return };
        let message = order.map(|(message, _)| message);
        if matches!(self.state, State::Blind { floored_since: None }) {
            return self.floor_all(now, message, "blind");
        }
        let alarmed = order.is_some_and(|(_, level)| level >= Level::Cap);
        // A first message has no echo and so grants nothing but the fallback; in a calm chassis the
        // first sample, or the silence of the meter, is soon enough for that.
        if self.state == State::Boot && !alarmed {
            return;
        }
        let draw = |sample| if alarmed { self.worst_case(now, sample) } else { sample.watts };
        let over = self
            .predicts_over(now, cap)
            .unwrap_or_else(|| self.meter.current(now).is_none_or(|sample| draw(sample) > cap));
        if over && !self.episode.dropped && !matches!(self.state, State::Shedding { .. }) {
            self.floor_next(now, message, "above the cap");
        }
    }

    /// What the server may draw by now. The chassis alerts because it saw a rise that a sample from
    /// before the alert does not show: for every second that such a sample is old, its lag included,
    /// the server may have gone from idle to full load.
    fn worst_case(&self, now: Instant, sample: Sample) -> Watts {
        if sample.taken_at > self.episode.began {
            return sample.watts;
        }
        let lag = self.params.settle.saturating_sub(self.params.sample_period);
        let age = now.since(sample.taken_at).saturating_add(lag).as_secs_f64();
        let rise = Watts::from_f64(self.params.model.dynamic_w() * age).unwrap_or(Watts::MAX);
        sample.watts + rise
    }

    // ---- the floor ----

    fn floor_next(&mut self, now: Instant, message: Option<(Epoch, Seq)>, cause: &'static str) {
        self.episode.dropped = true;
        self.throttle.floor_next();
        self.write(now, message);
        self.floored(now, cause);
    }

    fn floor_all(&mut self, now: Instant, message: Option<(Epoch, Seq)>, cause: &'static str) {
        self.episode.dropped = true;
        self.throttle.floor_all();
        self.write(now, message);
        self.floored(now, cause);
    }

    fn floored(&mut self, now: Instant, cause: &'static str) {
        let since = self.throttle.all_floored().then_some(now);
        match &mut self.state {
            State::Boot | State::Shedding { .. } => {}
            State::Blind { floored_since } => *floored_since = floored_since.or(since),
            State::Throttled { over_since, .. } => *over_since = over_since.or(since),
            State::Uncapped | State::Recovering { .. } => {
                self.go(now, State::Throttled { over_since: since, probation: false }, cause);
            }
        }
    }

    // ---- the last resort ----

    /// Sets the server's own limit, or follows the cap with it.
    fn limit(&mut self, now: Instant, cap: Watts) {
        let Some(floor) = self.params.server_limit_floor else { return };
        let (server, watts) = (self.actuators.server(), cap.max(floor));
        // Without a meter it follows downward only.
        let raise = matches!(self.actuators.goal(server), Goal::Limit(set) if set < watts);
        if self.sighted() || !raise {
            self.actuators.want(now, server, Goal::Limit(watts), false, &mut self.out);
        }
    }

    /// The floor was not enough.
    fn escalate(&mut self, now: Instant, cap: Watts) {
        if self.params.server_limit_floor.is_none() || self.actuators.limit_wanted() {
            return;
        }
        if core::mem::replace(&mut self.episode.limited, true) {
            self.episode.hold = self.episode.hold.saturating_mul(2).min(LONGEST_HOLD);
        }
        self.limit(now, cap);
        self.changed_at = Some(now);
        if self.sighted() {
            self.go(now, State::Shedding { under_since: None }, "the floor was not enough");
        }
    }

    // ---- the meter ----

    fn sighted(&self) -> bool {
        !matches!(self.state, State::Boot | State::Blind { .. })
    }

    /// Three periods without a sample.
    pub(crate) fn meter_lost(&mut self, now: Instant) {
        self.shed.calm();
        self.go(now, State::Blind { floored_since: None }, "no power reading");
        if self.acting_cap().is_some() {
            self.floor_all(now, None, "blind");
        } else {
            self.lift_if_granted(now);
        }
    }

    /// When a blind server at its floor uses the last resort.
    pub(crate) fn blind_deadline(&self) -> Option<Instant> {
        let State::Blind { floored_since: Some(since) } = self.state else {
            return None;
        };
        let can = self.acting_cap().is_some()
            && self.params.server_limit_floor.is_some()
            && !self.actuators.limit_wanted();
        can.then(|| since + self.params.escalate_after)
    }

    pub(crate) fn blind_due(&mut self, now: Instant) {
        if let (Some(at), Some(cap)) = (self.blind_deadline(), self.cap)
            && now >= at
        {
            self.escalate(now, cap);
        }
    }

    /// A valid, fresh sample.
    pub(crate) fn sample(&mut self, now: Instant, sample: Sample) {
        self.enforced.sample(sample);
        self.predictive_meter(now, sample);
        if !self.sighted() {
            self.resume(now);
        }
        if let Some(cap) = self.acting_cap() {
            self.kill_if_extreme(now, cap, sample);
            self.control(now, cap, sample);
        }
    }

    /// The first sample after `Boot` or `Blind`.
    fn resume(&mut self, now: Instant) {
        let cause = "a power reading";
        let Some(cap) = self.acting_cap() else {
            self.lift_all(now);
            return self.go(now, State::Uncapped, cause);
        };
        let limited = self.actuators.limit_wanted();
        let to = if limited {
            State::Shedding { under_since: None }
        } else if !self.throttle.any_restricted() {
            State::Uncapped
        } else if self.throttle.all_floored() || self.episode.dropped {
            State::Throttled { over_since: None, probation: false }
        } else {
            State::Recovering { over_run: 0 }
        };
        self.go(now, to, cause);
        if limited {
            self.limit(now, cap);
        }
    }

    /// Whether a sample shows what a change at `at` did.
    pub(crate) fn shows(&self, sample: Sample, at: Instant) -> bool {
        // A change follows its sample by the time that writing takes, so the sample that comes one
        // settle time later is early by as much. Without slack every step would wait one sample more.
        sample.taken_at + self.params.sample_period / SLACK >= at + self.params.settle
    }

    /// One step per sample.
    fn control(&mut self, now: Instant, cap: Watts, sample: Sample) {
        let draw = sample.watts;
        let over = draw > cap;
        // The model moves the cores a window at a time; samples then only judge whether to escalate.
        let predicts = self.predicts(now);
        let target = cap - cap.ppm(self.params.margin_ppm);
        let settled = self.changed_at.is_none_or(|at| self.shows(sample, at));
        match self.state {
            State::Boot | State::Blind { .. } => {}
            State::Uncapped => {
                if over && !predicts {
                    self.floor_next(now, None, "above the cap");
                }
            }
            State::Throttled { over_since, probation } => {
                let floored = self.throttle.all_floored();
                let over_since = over.then(|| over_since.unwrap_or(now)).filter(|_| floored);
                self.state = State::Throttled { over_since, probation };
                let long = over_since
                    .is_some_and(|at| probation || now.since(at) >= self.params.escalate_after);
                match (over, floored) {
                    _ if !settled || (predicts && !(over && floored)) => {}
                    (true, false) => self.floor_next(now, None, "above the cap"),
                    (true, true) if long => self.escalate(now, cap),
                    (true, true) => {}
                    // Nothing can be lowered, and there is no room to raise.
                    (false, true) if !self.may_raise(now, draw, target) => {}
                    (false, _) => {
                        self.go(now, State::Recovering { over_run: 0 }, "room under the cap");
                        self.step(now, draw, target, 1);
                    }
                }
            }
            State::Recovering { .. } if over && !self.episode.dropped && !predicts => {
                self.floor_next(now, None, "above the cap");
            }
            State::Recovering { .. } if over && self.throttle.all_floored() => {
                let to = State::Throttled { over_since: Some(now), probation: false };
                self.go(now, to, "above the cap at the floor");
            }
            State::Recovering { over_run } => {
                if settled && !predicts {
                    let over_run = if over { over_run.saturating_add(1) } else { 0 };
                    self.state = State::Recovering { over_run };
                    let steps = if over_run >= OVER_RUN { OVER_STEPS } else { 1 };
                    self.step(now, draw, target, steps);
                }
            }
            State::Shedding { under_since } => {
                let under_since = (draw < target).then(|| under_since.unwrap_or(now));
                self.state = State::Shedding { under_since };
                if under_since.is_some_and(|at| now.since(at) >= self.episode.hold) {
                    let server = self.actuators.server();
                    self.actuators.want(now, server, Goal::Lift, false, &mut self.out);
                    self.changed_at = Some(now);
                    let to = State::Throttled { over_since: None, probation: true };
                    self.go(now, to, "under the target for the hold time");
                }
            }
        }
    }

    fn may_raise(&self, now: Instant, draw: Watts, target: Watts) -> bool {
        let held = self.orders.emergency(now) || self.orders.unsure(now);
        draw < target - self.params.deadband && !held
    }

    /// Cores up or down, or none inside the deadband.
    fn step(&mut self, now: Instant, draw: Watts, target: Watts, steps: usize) {
        if draw > target {
            self.throttle.lower(steps);
            self.write(now, None);
            if self.throttle.any_restricted() && self.throttle.all_floored() {
                let to = State::Throttled { over_since: None, probation: false };
                self.go(now, to, "steps reached the floor");
            }
        } else if self.may_raise(now, draw, target) {
            self.throttle.raise();
            self.write(now, None);
        }
    }
}
