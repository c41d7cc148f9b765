//! The paper's policy: to the floor, and back in steps; and what we do in one write where it has only steps.

use ballast_types::{Epoch, Instant, Seq, Watts, noise_above};

use super::Agent;
use super::supervisor::Order;
use crate::Steps;
use crate::meter::Sample;
use crate::state::State;

impl Agent {
    /// Whether the server may draw more than its cap by now.
    pub(super) fn is_over(&self, now: Instant, cap: Watts, order: Option<Order>) -> bool {
        // Where a lease ends by itself nobody has said that the chassis draws too much.
        let guess = order.is_some_and(|order| order.guess);
        let sample = if guess { self.meter.current(now) } else { self.meter.newest(now) };
        let alarmed = order.is_some_and(|order| order.alarmed);
        sample.is_none_or(|sample| {
            let draw = if alarmed && guess { self.worst_case(now, sample) } else { sample.watts };
            draw > cap
        })
    }

    /// A sample while cores are neither all at their floor nor all free.
    pub(super) fn recover(&mut self, now: Instant, cap: Watts, sample: Sample, over_run: u8) {
        let (draw, target) = (sample.watts, self.target(cap));
        let paper = self.params.steps == Steps::Paper;
        let over_run = if draw > cap { over_run.saturating_add(1) } else { 0 };
        // What a late sample shows is known, so that nobody waits for it to settle.
        if !paper && draw > cap + noise_above(cap) {
            self.fall(now, None, cap);
        } else if self.is_settled(sample) {
            self.state = State::Recovering { over_run };
            if !paper && over_run >= self.tuning.over_run {
                self.fall(now, None, cap);
            } else {
                self.step(now, draw, target, over_run);
            }
        }
    }

    /// What the server may draw by now. The chassis alerts because it saw a rise that a sample from
    /// before the alert does not show: for every second that such a sample is old, its lag included,
    /// the server may have gone from idle to full load.
    fn worst_case(&self, now: Instant, sample: Sample) -> Watts {
        if sample.taken_at > self.episode.began() {
            return sample.watts;
        }
        let lag = self.params.settle.saturating_sub(self.params.sample_period);
        let age = now.since(sample.taken_at).saturating_add(lag).as_secs_f64();
        let rise = Watts::from_f64(self.params.model.dynamic_w() * age).unwrap_or(Watts::MAX);
        sample.watts + rise
    }

    /// The cap fell, or the load rose, within a capping event: in one write to what fits by the power model,
    /// or to the floor where that cannot tell. The paper has only its steps for that.
    pub(super) fn fall(&mut self, now: Instant, message: Option<(Epoch, Seq)>, cap: Watts) {
        if self.params.steps == Steps::Paper {
            return;
        }
        let fits = self.meter.newest(now).and_then(|sample| self.fitting(now, cap, sample));
        match fits {
            None => self.floor_next(now, message, "above the cap"),
            Some(None) => {}
            Some(Some(height)) => {
                self.throttle.step_up_to(height);
                self.write(now, message);
                let floored = self.throttle.all_floored();
                let cause = "the p-states that fit by the power model";
                self.enter_by_height(now, floored, Some(now), cause);
            }
        }
    }

    /// The height at which the server draws its target by the power model, or `None` if it does already;
    /// no answer where the use of a core is not known.
    #[expect(clippy::option_option, reason = "cannot tell, and nothing to do, are two things")]
    pub(super) fn fitting(&self, now: Instant, cap: Watts, sample: Sample) -> Option<Option<usize>> {
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
        self.estimate.dynamic().used_core_w(&self.view(now), core, highest, level)
    }

    pub(super) fn may_raise(&self, now: Instant, draw: Watts, target: Watts) -> bool {
        let held = self.orders.emergency(now) || self.orders.unsure(now);
        draw < target - self.params.deadband && !held
    }

    /// Cores up or down, or none inside the deadband.
    pub(super) fn step(&mut self, now: Instant, draw: Watts, target: Watts, over_run: u8) {
        let least = usize::from(self.params.step_cores.max(1));
        let paper = self.params.steps == Steps::Paper;
        if draw > target {
            if self.throttle.all_floored() {
                // There is nothing to lower.
            } else if paper {
                let count = least.saturating_mul(if over_run >= self.tuning.over_run {
                    self.tuning.over_steps
                } else {
                    1
                });

                self.throttle.lower(count, count);
            } else {
                let over = (draw - target - self.params.deadband).as_f64();
                self.throttle.lower(self.step_size(now, over), least);
            }

            self.write(now, None);
            if self.throttle.any_restricted() && self.throttle.all_floored() {
                let to = State::Throttled { over_since: None, probation: false };
                self.transition_to(now, to, "steps reached the floor");
            }
        } else if self.may_raise(now, draw, target) {
            let room = self.tuning.step_into * (target - draw - self.params.deadband).as_f64();
            let count = if paper { least } else { self.step_size(now, room) };
            self.throttle.raise(count, least);
            self.write(now, None);
        }
    }

    /// How many cores move by one p-state for so many watts: at least the paper's N, and at most what brings
    /// all of them from the floor to free in time.
    fn step_size(&self, now: Instant, watts: f64) -> usize {
        let least = usize::from(self.params.step_cores.max(1));
        let most = self.throttle.span().div_ceil(self.params.recovery_steps()).max(least);
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
