//! The transitions: what a cap, a sample and a silence do.

use ballast_types::wire::{Alert, Level};
use ballast_types::{Epoch, Instant, Seq, Watts};

use super::{Agent, Leaving};
use crate::Policy;
use crate::episode::Episode;
use crate::meter::Sample;
use crate::state::State;
use crate::throttle::Joining;

/// What a message orders, as far as it is about the cap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    pub(super) message: (Epoch, Seq),
    /// It says that there is a capping event.
    pub(super) alarmed: bool,
    /// The chassis draws more than it may, so a rise that no sample shows yet is guessed.
    pub(super) guess: bool,
    /// It lowers the cap.
    pub(super) lowers: bool,
}

/// A sample this part of a period early still counts as settled: 25 of 200 ms.
const SLACK: u32 = 8;

impl Agent {
    /// Whether the chassis sets a common height: then only its messages move the cores, whatever the server's own cap.
    fn follows(&self) -> bool {
        self.orders.height_ppm().is_some()
    }

    /// The cap that this agent acts on; none when it only watches.
    pub(super) fn acting_cap(&self) -> Option<Watts> {
        self.cap.filter(|_| self.acts())
    }

    fn acts(&self) -> bool {
        self.leaving != Leaving::Done && self.params.policy != Policy::None
    }

    /// Where a core joins that becomes low-priority.
    pub(super) fn joining(&self) -> Joining {
        match (self.acting_cap(), self.state) {
            (None, _) => Joining::Free,
            (_, State::Shedding { .. }) => Joining::Floor,
            (_, State::Blind { floored_since: Some(_) }) => Joining::Floor,
            _ => Joining::Class,
        }
    }

    /// A message was accepted.
    pub(super) fn ordered(&mut self, now: Instant, alert: &Alert) {
        let before = self.cap;
        self.cap_changed(now, "the chassis lifted the cap");
        let Some(cap) = self.acting_cap() else { return self.lift_if_granted(now) };

        if !self.limits_itself() && matches!(self.state, State::Shedding { .. }) {
            self.lift_limit(now, "the chassis no longer orders the server's own limit");
        }

        let message = (alert.epoch, alert.seq);
        if self.orders.emergency(now) {
            self.floor_all(now, Some(message), "emergency");
        } else if let Some(height_ppm) = self.orders.height_ppm() {
            self.follow_height(now, message, height_ppm);
        } else {
            let guess = alert.chassis_power_w.is_none_or(|watts| watts > alert.chassis_limit_w);
            let alarmed = alert.level >= Level::Cap;
            let lowers = before.is_some_and(|before| cap < before);
            self.obey_cap(now, Some(Order { message, alarmed, guess, lowers }));
        }

        if let State::Throttled { over_since, .. } = self.state
            && self.limits_at_once(now)
            && self.is_over_at_floor(now, cap)
            && !self.kill_comes_first(now, over_since)
        {
            if self.throttle.nothing_left() {
                self.escalate(now, cap);
            } else {
                self.lower_user_facing(now, cap);
            }
        }
    }

    /// The cap may have changed by itself.
    pub(super) fn cap_due(&mut self, now: Instant) {
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
            self.overdraw.reset();
        }

        if is.is_none() && self.acts() && self.sighted() {
            self.lift_all(now);
            self.transition_to(now, State::Uncapped, cause);
        } else if let Some(cap) = self.acting_cap()
            && self.actuators.limit_requested()
            && self.limits_itself()
        {
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

    /// There is a cap: lowers what has to be lowered without waiting for a sample.
    fn obey_cap(&mut self, now: Instant, order: Option<Order>) {
        let Some(cap) = self.acting_cap() else { return };
        let message = order.map(|order| order.message);
        if matches!(self.state, State::Blind { floored_since: None }) {
            return self.floor_all(now, message, "blind");
        }
        let alarmed = order.is_some_and(|order| order.alarmed);

        // A first message has no echo and so grants nothing but the fallback; in a calm chassis the
        // first sample, or the silence of the meter, is soon enough for that.
        if self.state == State::Boot && !alarmed {
            return;
        }
        let held = self.follows() || matches!(self.state, State::Shedding { .. });
        if held || !self.is_over(now, cap, order) {
            return;
        }
        if !self.episode.has_dropped() {
            self.floor_next(now, message, "above the cap");
        } else if order.is_none_or(|order| order.lowers) {
            self.fall(now, message, cap);
        }
    }

    pub(super) fn sighted(&self) -> bool {
        !matches!(self.state, State::Boot | State::Blind { .. })
    }

    /// Three periods without a sample.
    pub(super) fn meter_lost(&mut self, now: Instant) {
        self.shed.reset();
        self.transition_to(now, State::Blind { floored_since: None }, "no power reading");
        if self.acting_cap().is_some() {
            self.floor_all(now, None, "blind");
        } else {
            self.lift_if_granted(now);
        }
    }

    /// When a blind server at its floor uses the last resort.
    pub(super) fn blind_deadline(&self) -> Option<Instant> {
        let State::Blind { floored_since: Some(since) } = self.state else {
            return None;
        };
        let can = self.acting_cap().is_some()
            && self.params.server_limit_floor.is_some()
            && !self.actuators.limit_requested();
        can.then(|| since + self.params.escalate_after)
    }

    pub(super) fn blind_due(&mut self, now: Instant) {
        if let (Some(at), Some(cap)) = (self.blind_deadline(), self.cap)
            && now >= at
        {
            self.escalate(now, cap);
        }
    }

    /// A valid, fresh sample.
    pub(super) fn sample(&mut self, now: Instant, sample: Sample) {
        self.enforced.sample(sample);
        if !self.sighted() {
            self.resume(now);
        }
        if let Some(cap) = self.acting_cap() {
            self.judge_floor(now, cap, sample);
            self.kill_if_extreme(now, cap, sample);
            self.control(now, cap, sample);
        }
    }

    /// Whether a sample shows everything that was changed.
    pub(super) fn is_settled(&self, sample: Sample) -> bool {
        self.changed_at.is_none_or(|at| self.shows(sample, at))
    }

    /// The first sample after `Boot` or `Blind`.
    fn resume(&mut self, now: Instant) {
        let cause = "a power reading";
        let Some(cap) = self.acting_cap() else {
            self.lift_all(now);
            return self.transition_to(now, State::Uncapped, cause);
        };

        let limited = self.actuators.limit_requested();
        let to = if limited {
            State::Shedding { under_since: None }
        } else if !self.throttle.any_restricted() {
            State::Uncapped
        } else if self.throttle.all_floored() || self.episode.has_dropped() {
            State::Throttled { over_since: None, probation: false }
        } else {
            State::Recovering { over_run: 0 }
        };

        self.transition_to(now, to, cause);

        if limited {
            self.limit(now, cap);
        }
    }

    /// Whether a sample shows what a change at `at` did.
    pub(super) fn shows(&self, sample: Sample, at: Instant) -> bool {
        // A change follows its sample by the time that writing takes, so the sample that comes one
        // settle time later is early by as much. Without slack every step would wait one sample more.
        sample.taken_at + self.params.sample_period / SLACK >= at + self.params.settle
    }

    /// What the draw is kept under.
    pub(super) fn target(&self, cap: Watts) -> Watts {
        cap - cap.ppm(self.params.margin_ppm)
    }

    /// One step per sample.
    fn control(&mut self, now: Instant, cap: Watts, sample: Sample) {
        let draw = sample.watts;
        let over = draw > cap;

        // Where samples do not move the cores, they only judge whether to escalate.
        let by_samples = !self.follows();
        let target = self.target(cap);
        let (settled, floored) = (self.is_settled(sample), self.throttle.nothing_left());

        match self.state {
            State::Boot | State::Blind { .. } => {}
            State::Uncapped if over && by_samples => self.floor_next(now, None, "above the cap"),
            State::Uncapped => {}
            State::Throttled { over_since, probation } => {
                let over_since = over.then(|| over_since.unwrap_or(now)).filter(|_| floored);
                self.state = State::Throttled { over_since, probation };
                match (over, floored) {
                    _ if !settled || !(by_samples || (over && floored)) => {}
                    (true, false) if !self.throttle.all_floored() => {
                        self.floor_next(now, None, "above the cap");
                    }
                    (true, false) if self.overdraw.is_on() && self.limits_itself() => {
                        self.lower_user_facing(now, cap);
                    }
                    (true, false) => {}
                    (true, true) if self.needs_limit(now, cap, draw, over_since, probation) => {
                        self.escalate(now, cap);
                    }
                    (true, true) => {}

                    // Nothing can be lowered, and there is no room to raise.
                    (false, true) if !self.may_raise(now, draw, target) => {}
                    (false, _) => {
                        self.transition_to(now, State::Recovering { over_run: 0 }, "room under the cap");
                        if by_samples {
                            self.step(now, draw, target, 0);
                        }
                    }
                }
            }
            State::Recovering { .. } if over && !self.episode.has_dropped() && by_samples => {
                self.floor_next(now, None, "above the cap");
            }
            State::Recovering { .. } if over && self.throttle.all_floored() => {
                let to = State::Throttled { over_since: Some(now), probation: false };
                self.transition_to(now, to, "above the cap at the floor");
            }
            // The chassis lifts what it has ordered.
            State::Recovering { .. } | State::Shedding { .. } if !by_samples => {}
            State::Recovering { over_run } => self.recover(now, cap, sample, over_run),
            State::Shedding { under_since } => {
                let under_since = (draw < target).then(|| under_since.unwrap_or(now));
                self.state = State::Shedding { under_since };

                if under_since.is_some_and(|at| now.since(at) >= self.episode.hold()) {
                    self.lift_limit(now, "under the target for the hold time");
                }
            }
        }
    }
}
