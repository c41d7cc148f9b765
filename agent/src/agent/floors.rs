//! Down to the floor, class by class or all at once.

use ballast_types::{Epoch, Instant, Seq, Watts};

use super::Agent;
use crate::state::State;

impl Agent {
    pub(super) fn floor_next(&mut self, now: Instant, message: Option<(Epoch, Seq)>, cause: &'static str) {
        self.episode.drop_is_used();
        // User-facing cores need more than a sample above the cap.
        if !self.throttle.all_floored() {
            self.throttle.floor_next();
        }
        self.write(now, message);
        self.floored(now, cause);
    }

    pub(super) fn floor_all(&mut self, now: Instant, message: Option<(Epoch, Seq)>, cause: &'static str) {
        self.episode.drop_is_used();
        self.throttle.floor_all();
        self.write(now, message);
        self.floored(now, cause);
    }

    /// Every low-priority core is at its floor, and that was shown not to be enough: user-facing cores go
    /// down, no further than needed where the power model can tell.
    pub(super) fn lower_user_facing(&mut self, now: Instant, cap: Watts) {
        let fits = self.meter.newest(now).and_then(|sample| self.fitting(now, cap, sample));
        match fits.flatten() {
            Some(height) => self.throttle.step_up_to(height),
            None => self.throttle.floor_next(),
        }
        self.write(now, None);
    }

    /// The lowest that a model may go: user-facing cores are not its own to touch.
    pub(super) fn lowest_height(&self) -> usize {
        let proven =
            (self.overdraw.is_on() && self.limits_itself()) || self.throttle.user_facing_restricted();
        if proven && self.throttle.all_floored() { 0 } else { self.throttle.user_facing_span() }
    }

    fn floored(&mut self, now: Instant, cause: &'static str) {
        let since = self.throttle.all_floored().then_some(now);
        match &mut self.state {
            State::Boot | State::Shedding { .. } => {}
            State::Blind { floored_since } => *floored_since = floored_since.or(since),
            State::Throttled { over_since, .. } => *over_since = over_since.or(since),
            State::Uncapped | State::Recovering { .. } => {
                self.transition_to(now, State::Throttled { over_since: since, probation: false }, cause);
            }
        }
    }
}
