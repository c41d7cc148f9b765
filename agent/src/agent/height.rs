//! The p-states that a common height of the chassis means on this server.

use ballast_types::{Epoch, Instant, Seq};

use super::Agent;
use crate::state::State;

impl Agent {
    /// Sets the low-priority cores to the height of a message, in parts per million of the way from their floor to free.
    pub(super) fn follow_height(&mut self, now: Instant, message: (Epoch, Seq), height_ppm: u32) {
        match self.state {
            State::Blind { floored_since: None } => return self.floor_all(now, Some(message), "blind"),
            State::Blind { .. } => return,
            _ => {}
        }

        let (above, user_facing) = (self.throttle.span(), self.throttle.user_facing_span());
        let share = f64::from(height_ppm.min(1_000_000)) / 1e6;
        // The product is at most the number of p-states of all cores.
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

        // A server without low-priority cores is at its floor as soon as the chassis orders its own limit.
        let restricted = self.throttle.any_restricted();
        let floored = (restricted || self.limits_itself()) && self.throttle.all_floored();
        match self.state {
            State::Boot | State::Shedding { .. } => {}
            State::Uncapped if !floored && !restricted => {}
            _ => self.enter_by_height(now, floored, None, "the height that the chassis sets"),
        }
    }

    /// Enters `Throttled` if every low-priority core is at its floor, else `Recovering`.
    pub(super) fn enter_by_height(
        &mut self,
        now: Instant,
        floored: bool,
        over_since: Option<Instant>,
        cause: &'static str,
    ) {
        let state = match self.state {
            _ if !floored => State::Recovering { over_run: 0 },
            State::Throttled { .. } => return,
            _ => State::Throttled { over_since, probation: false },
        };
        self.transition_to(now, state, cause);
    }
}
