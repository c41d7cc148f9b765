//! The chassis steers: it tells how high the low-priority cores of all servers may run.

use ballast_types::{Epoch, Instant, Seq};

use super::Agent;
use crate::state::State;

impl Agent {
    /// The low-priority cores to this height, in parts per million of the way from their floor to free. What slows
    /// user-facing work is lifted, unless the chassis orders it.
    pub(super) fn follow_height(&mut self, now: Instant, message: (Epoch, Seq), height_ppm: u32) {
        if !self.limits_itself() && matches!(self.state, State::Shedding { .. }) {
            self.lift_limit(now, "the chassis no longer orders the server's own limit");
        }
        match self.state {
            State::Blind { floored_since: None } => return self.floor_all(now, Some(message), "blind"),
            State::Blind { .. } => return,
            _ => {}
        }

        let (above, user_facing) = (self.throttle.span(), self.throttle.user_facing_span());
        let share = f64::from(height_ppm.min(1_000_000)) / 1e6;
        // At most the number of p-states of all cores.
        let height = user_facing + (share * (above - user_facing) as f64) as usize;
        let lowered = self.limits_itself() && self.throttle.user_facing_restricted();
        if lowered && self.throttle.all_floored() && height <= user_facing {
            return;
        }
        self.throttle.step_up_to(height);
        let drop = (!self.episode.has_dropped() && self.throttle.any_restricted()).then_some(message);
        if drop.is_some() {
            self.episode.drop_is_used();
        }
        self.write(now, drop);

        // Without low-priority cores it is at its floor once that is asked for.
        let held = self.throttle.any_restricted() || self.limits_itself();
        let floored = held && self.throttle.all_floored();
        let to = match self.state {
            State::Boot | State::Blind { .. } | State::Shedding { .. } => return,
            State::Throttled { .. } if floored => return,
            _ if floored => State::Throttled { over_since: None, probation: false },
            State::Uncapped if !self.throttle.any_restricted() => return,
            _ => State::Recovering { over_run: 0 },
        };
        self.transition_to(now, to, "the height that the chassis tells");
    }
}
