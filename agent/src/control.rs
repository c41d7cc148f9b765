//! The transitions: what a cap, a sample and a silence do.

use core::time::Duration;

use ballast_types::wire::{Alert, Level};
use ballast_types::{Epoch, Instant, Seq, Watts};

use crate::actuators::Goal;
use crate::agent::{Agent, Leaving};
use crate::lease::Accepted;
use crate::meter::Sample;
use crate::overdraw::clearly_over;
use crate::state::State;
use crate::throttle::Joining;
use crate::{Params, Policy, Steps};

/// The longest that the server's own limit stays on after the draw came under the target.
const LONGEST_HOLD: Duration = Duration::from_secs(30);
/// Samples above the cap in a row, while recovering, after which steps down are not enough.
const OVER_RUN: u8 = 2;
/// With the paper's steps: how much larger they are then.
const OVER_STEPS: usize = 4;
/// From the floor to free takes at least this long, whatever the number of cores and the room.
const RECOVERY: Duration = Duration::from_secs(4);
/// And so many steps at least, however slow the meter is.
const LEAST_STEPS: u128 = 8;
/// The part of the room that a step up may take: near the top a p-state is worth more than on average.
const STEP_INTO: f64 = 0.6;
/// A sample this part of a period early still counts as settled: 25 of 200 ms.
const SLACK: u32 = 8;

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
    /// What was drawn at the floor when it was set.
    drawn: Option<Watts>,
}

/// What a message orders, as far as it is about the cap.
#[derive(Clone, Copy, Debug)]
struct Order {
    message: (Epoch, Seq),
    /// It says that there is a capping event.
    alarmed: bool,
    /// The chassis draws more than it may, so a rise that no sample shows yet is guessed.
    guess: bool,
    /// It lowers the cap.
    lowers: bool,
}

impl Episode {
    /// The model has chosen p-states: they need no floor drop first.
    pub(crate) fn model_took_over(&mut self) {
        self.dropped = true;
    }

    pub(crate) fn new(params: &Params, began: Instant) -> Self {
        Self { began, dropped: false, hold: params.server_limit_hold, limited: false, drawn: None }
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
    pub(crate) fn ordered(&mut self, now: Instant, alert: &Alert, accepted: &Accepted) {
        let before = self.cap;
        self.cap_changed(now, "the chassis lifted the cap");
        let Some(cap) = self.acting_cap() else { return self.lift_if_granted(now) };

        let message = (alert.epoch, alert.seq);
        if self.orders.emergency(now) {
            self.floor_all(now, Some(message), "emergency");
        } else {
            let guess = alert.chassis_power_w.is_none_or(|watts| watts > alert.chassis_limit_w);
            let alarmed = alert.level >= Level::Cap;
            let lowers = before.is_some_and(|before| cap < before);
            self.obey_cap(now, Some(Order { message, alarmed, guess, lowers }));
        }

        let answered =
            accepted.target.is_some_and(|target| self.overdraw.is_known(accepted.echo, target));
        let urgent = self.orders.emergency(now) && self.overdraw.is_on();
        if let State::Throttled { over_since, .. } = self.state
            && (answered || urgent)
            && !self.kill_comes_first(now, over_since)
        {
            if self.throttle.nothing_left() {
                self.escalate(now, cap);
            } else {
                self.lower_user_facing(now, cap);
            }
        }
    }

    /// A VM whose tenant prefers to be killed gets that before the server's own limit, as long as that comes
    /// no later than it would without a word from the chassis.
    fn kill_comes_first(&self, now: Instant, over_since: Option<Instant>) -> bool {
        let soon = |at| now.since(at) < self.params.escalate_after;
        self.may_kill() && over_since.is_none_or(soon)
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
            self.overdraw.reset();
        }
        if is.is_none() && self.acts() && self.sighted() {
            self.lift_all(now);
            self.go(now, State::Uncapped, cause);
        } else if let (Some(cap), true) = (self.acting_cap(), self.actuators.limit_wanted()) {
            let shedding = matches!(self.state, State::Shedding { .. });
            if shedding && self.episode.drawn.is_some_and(|drawn| cap >= drawn) {
                self.lift_limit(now, "the cap rose above what was drawn");
            } else {
                self.limit(now, cap);
            }
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
        let may_fall =
            !matches!(self.state, State::Shedding { .. }) && self.is_over(now, cap, order);
        if may_fall && !self.episode.dropped {
            self.floor_next(now, message, "above the cap");
        } else if may_fall && order.is_none_or(|order| order.lowers) && !self.predicts(now) {
            self.fall(now, message, cap);
        }
    }

    /// Whether the server may draw more than its cap by now.
    fn is_over(&self, now: Instant, cap: Watts, order: Option<Order>) -> bool {
        if let Some(over) = self.predicts_over(now, cap) {
            return over;
        }
        let guess = order.is_none_or(|order| order.guess);
        let sample = if guess { self.meter.current(now) } else { self.meter.newest(now) };
        let alarmed = order.is_some_and(|order| order.alarmed);
        sample.is_none_or(|sample| {
            let draw = if alarmed && guess { self.worst_case(now, sample) } else { sample.watts };
            draw > cap
        })
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

    /// The cap fell, or the load rose, within a capping event: in one write to what fits by the power model,
    /// or to the floor where that cannot tell. The paper has only its steps for that.
    fn fall(&mut self, now: Instant, message: Option<(Epoch, Seq)>, cap: Watts) {
        if self.params.steps == Steps::Paper {
            return;
        }
        let fits = self.meter.newest(now).and_then(|sample| self.fitting(now, cap, sample));
        match fits {
            None => self.floor_next(now, message, "above the cap"),
            Some(None) => {}
            Some(Some(height)) => {
                self.throttle.climb_to(height);
                self.write(now, message);
                let to = match self.state {
                    _ if !self.throttle.all_floored() => State::Recovering { over_run: 0 },
                    State::Throttled { .. } => return,
                    _ => State::Throttled { over_since: Some(now), probation: false },
                };
                self.go(now, to, "the p-states that fit by the power model");
            }
        }
    }

    /// The height at which the server draws its target by the power model, or `None` if it does already;
    /// no answer where the use of a core is not known.
    #[expect(clippy::option_option, reason = "cannot tell, and nothing to do, are two things")]
    fn fitting(&self, now: Instant, cap: Watts, sample: Sample) -> Option<Option<usize>> {
        let watts = |core: usize, level: usize| self.used_core_w(now, core, level);
        let known = self.throttle.throttled().all(|core| watts(core, 0).is_some());
        let at = |levels: &[u16]| -> f64 {
            let level = |core: usize| levels.get(core).copied().map_or(0, usize::from);
            self.throttle.throttled().filter_map(|core| watts(core, level(core))).sum()
        };
        let shown = self.past.shown(sample.taken_at, at).filter(|_| known)?;
        let room = (self.target(cap) - sample.watts).as_f64() + shown;
        if at(self.throttle.levels()) <= room {
            return Some(None);
        }
        let watts = |core: usize, level: usize| watts(core, level).unwrap_or(0.0);
        Some(Some(self.throttle.highest_fit(room, watts).max(self.lowest_height())))
    }

    fn used_core_w(&self, now: Instant, core: usize, level: usize) -> Option<f64> {
        let highest = self.past.highest(core).map_or(0, usize::from);
        let highest = highest.max(self.throttle.level(core));
        self.estimate.used_core_w(now, &self.throttle, &self.fleet, core, highest, level)
    }

    // ---- the floor ----

    fn floor_next(&mut self, now: Instant, message: Option<(Epoch, Seq)>, cause: &'static str) {
        self.episode.dropped = true;
        // User-facing cores need more than a sample above the cap.
        if !self.throttle.all_floored() {
            self.throttle.floor_next();
        }
        self.write(now, message);
        self.floored(now, cause);
    }

    /// Every low-priority core is at its floor, and that was shown not to be enough: user-facing cores go
    /// down, no further than needed where the power model can tell.
    fn lower_user_facing(&mut self, now: Instant, cap: Watts) {
        let fits = self.meter.newest(now).and_then(|sample| self.fitting(now, cap, sample));
        match fits.flatten() {
            Some(height) => self.throttle.climb_to(height),
            None => self.throttle.floor_next(),
        }
        self.write(now, None);
    }

    /// The lowest that a model may go: user-facing cores are not its own to touch.
    pub(crate) fn lowest_height(&self) -> usize {
        let proven = self.overdraw.is_on() || self.throttle.user_facing_restricted();
        if proven && self.throttle.all_floored() { 0 } else { self.throttle.user_facing_span() }
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

    /// Lifts the server's own limit; should the draw come back it is set again at once.
    fn lift_limit(&mut self, now: Instant, cause: &'static str) {
        let server = self.actuators.server();
        self.actuators.want(now, server, Goal::Lift, false, &mut self.out);
        self.changed_at = Some(now);
        self.go(now, State::Throttled { over_since: None, probation: true }, cause);
    }

    /// The floor was not enough.
    fn escalate(&mut self, now: Instant, cap: Watts) {
        if self.params.server_limit_floor.is_none() || self.actuators.limit_wanted() {
            return;
        }
        if core::mem::replace(&mut self.episode.limited, true) {
            self.episode.hold = self.episode.hold.saturating_mul(2).min(LONGEST_HOLD);
        }
        self.episode.drawn = self.overdraw.draw();
        self.overdraw.reset();
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
            self.judge_floor(now, cap, sample);
            self.kill_if_extreme(now, cap, sample);
            self.control(now, cap, sample);
        }
    }

    /// Whether the floor is enough, if that is where everything is.
    fn judge_floor(&mut self, now: Instant, cap: Watts, sample: Sample) {
        let shedding = matches!(self.state, State::Shedding { .. });
        if shedding || !self.throttle.all_floored() {
            self.overdraw.reset();
        } else if self.is_settled(sample) {
            self.overdraw.sample(now, cap, sample.watts);
        }
    }

    /// Whether a sample shows everything that was changed.
    fn is_settled(&self, sample: Sample) -> bool {
        self.changed_at.is_none_or(|at| self.shows(sample, at))
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

    /// What the draw is kept under.
    fn target(&self, cap: Watts) -> Watts {
        cap - cap.ppm(self.params.margin_ppm)
    }

    /// Whether the server's own limit has to help, at the floor.
    fn needs_limit(
        &self,
        now: Instant,
        cap: Watts,
        over_since: Option<Instant>,
        probation: bool,
    ) -> bool {
        if self.orders.lease_end().is_none() {
            let long = |at| probation || now.since(at) >= self.params.escalate_after;
            return over_since.is_some_and(long);
        }
        let waits = self.kill_comes_first(now, over_since);
        let at_once = probation || (self.orders.emergency(now) && !waits);
        (at_once && self.overdraw.is_on()) || self.overdraw.lasts(now, cap)
    }

    /// One step per sample.
    fn control(&mut self, now: Instant, cap: Watts, sample: Sample) {
        let draw = sample.watts;
        let over = draw > cap;
        // The model moves the cores a window at a time; samples then only judge whether to escalate.
        let predicts = self.predicts(now);
        let target = self.target(cap);
        let (settled, floored) = (self.is_settled(sample), self.throttle.nothing_left());

        match self.state {
            State::Boot | State::Blind { .. } => {}
            State::Uncapped => {
                if over && !predicts {
                    self.floor_next(now, None, "above the cap");
                }
            }
            State::Throttled { over_since, probation } => {
                let over_since = over.then(|| over_since.unwrap_or(now)).filter(|_| floored);
                self.state = State::Throttled { over_since, probation };
                match (over, floored) {
                    _ if !settled || (predicts && !(over && floored)) => {}
                    (true, false) if !self.throttle.all_floored() => {
                        self.floor_next(now, None, "above the cap");
                    }
                    (true, false) if self.overdraw.is_on() => self.lower_user_facing(now, cap),
                    (true, false) => {}
                    (true, true) if self.needs_limit(now, cap, over_since, probation) => {
                        self.escalate(now, cap);
                    }
                    (true, true) => {}
                    // Nothing can be lowered, and there is no room to raise.
                    (false, true) if !self.may_raise(now, draw, target) => {}
                    (false, _) => {
                        self.go(now, State::Recovering { over_run: 0 }, "room under the cap");
                        self.step(now, draw, target, 0);
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
            State::Recovering { over_run } if !predicts => {
                let paper = self.params.steps == Steps::Paper;
                let over_run = if over { over_run.saturating_add(1) } else { 0 };
                // What a late sample shows is known, so that nobody waits for it to settle.
                if !paper && clearly_over(draw, cap) {
                    self.fall(now, None, cap);
                } else if settled {
                    self.state = State::Recovering { over_run };
                    if !paper && over_run >= OVER_RUN {
                        self.fall(now, None, cap);
                    } else {
                        self.step(now, draw, target, over_run);
                    }
                }
            }
            State::Recovering { .. } => {}
            State::Shedding { under_since } => {
                let under_since = (draw < target).then(|| under_since.unwrap_or(now));
                self.state = State::Shedding { under_since };
                if under_since.is_some_and(|at| now.since(at) >= self.episode.hold) {
                    self.lift_limit(now, "under the target for the hold time");
                }
            }
        }
    }

    fn may_raise(&self, now: Instant, draw: Watts, target: Watts) -> bool {
        let held = self.orders.emergency(now) || self.orders.unsure(now);
        draw < target - self.params.deadband && !held
    }

    /// Cores up or down, or none inside the deadband.
    fn step(&mut self, now: Instant, draw: Watts, target: Watts, over_run: u8) {
        let least = usize::from(self.params.step_cores.max(1));
        let paper = self.params.steps == Steps::Paper;
        if draw > target {
            if self.throttle.all_floored() {
                // There is nothing to lower.
            } else if paper {
                let count = least.saturating_mul(if over_run >= OVER_RUN { OVER_STEPS } else { 1 });
                self.throttle.lower(count, count);
            } else {
                self.throttle.lower(self.step_size(now, (draw - target).as_f64()), least);
            }
            self.write(now, None);
            if self.throttle.any_restricted() && self.throttle.all_floored() {
                let to = State::Throttled { over_since: None, probation: false };
                self.go(now, to, "steps reached the floor");
            }
        } else if self.may_raise(now, draw, target) {
            let room = STEP_INTO * (target - draw).as_f64();
            let count = if paper { least } else { self.step_size(now, room) };
            self.throttle.raise(count, least);
            self.write(now, None);
        }
    }

    /// How many cores move by one p-state for so many watts: at least the paper's N, and at most what brings
    /// all of them from the floor to free in [`RECOVERY`].
    fn step_size(&self, now: Instant, watts: f64) -> usize {
        // A sample is up to a period old when it is read, and so is the change that it judges.
        let each = self.params.settle.saturating_add(self.params.sample_period);
        let steps = RECOVERY.as_nanos() / each.as_nanos().max(1);
        let steps = usize::try_from(steps.max(LEAST_STEPS)).unwrap_or(usize::MAX);
        let least = usize::from(self.params.step_cores.max(1));
        let most = self.throttle.span().div_ceil(steps).max(least);
        let all = |level: &dyn Fn(usize) -> usize| -> Option<f64> {
            self.throttle.throttled().map(|core| self.used_core_w(now, core, level(core))).sum()
        };
        let top = |core| self.throttle.ladder(core).top();
        let range = all(&top).zip(all(&|core| self.throttle.floor_level(core)));
        let each = range.map(|(top, floor)| (top - floor) / self.throttle.span().max(1) as f64);
        match each.filter(|each| *each > 0.0) {
            // The cast saturates.
            Some(each) => ((watts / each) as usize).clamp(least, most),
            None => most,
        }
    }
}
