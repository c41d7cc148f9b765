//! The server's own limit: whether the floor is not enough, and when that is certain.

use ballast_types::{Instant, Watts};

use super::Agent;
use crate::actuators::Goal;
use crate::meter::Sample;
use crate::state::State;

impl Agent {
    /// Whether the floor is enough, if that is where everything is.
    pub(super) fn judge_floor(&mut self, now: Instant, cap: Watts, sample: Sample) {
        let shedding = matches!(self.state, State::Shedding { .. });
        if shedding || !self.throttle.all_floored() {
            self.overdraw.reset();
        } else if self.is_settled(sample) {
            self.overdraw.sample(now, cap, sample.watts);
        }
    }

    /// Whether the server's own limit has to help, at the floor.
    pub(super) fn needs_limit(
        &self,
        now: Instant,
        cap: Watts,
        draw: Watts,
        over_since: Option<Instant>,
        probation: bool,
    ) -> bool {
        if self.orders.lease_end().is_none() {
            let above = self.fallback().is_none_or(|fallback| cap >= fallback || draw > fallback);
            return above
                && over_since.is_some_and(|at| probation || now.since(at) >= self.params.escalate_after);
        }
        let waits = self.kill_comes_first(now, over_since);
        let at_once = probation || (self.limits_at_once(now) && !waits);
        let shown = (at_once && self.overdraw.is_on()) || self.overdraw.lasts(now, cap);
        self.limits_itself() && shown
    }

    /// Whether the server may use its own limit and user-facing cores: the chassis orders that, or no lease is live.
    pub(super) fn limits_itself(&self) -> bool {
        self.orders.own_limit()
    }

    /// Whether one sample above the cap suffices for that: the chassis has seen the excess, or there is an emergency.
    pub(super) fn limits_at_once(&self, now: Instant) -> bool {
        self.limits_itself() && (self.orders.height_ppm().is_some() || self.orders.emergency(now))
    }

    /// Whether the draw at the floor exceeds the cap. Under an order of the chassis an excess within a meter's noise counts
    /// too, because the chassis has seen that the total is too high.
    pub(super) fn is_over_at_floor(&self, now: Instant, cap: Watts) -> bool {
        let newest = self.meter.newest(now).filter(|sample| sample.watts > cap && self.is_settled(*sample));
        self.overdraw.is_on() || (self.orders.height_ppm().is_some() && newest.is_some())
    }

    /// A VM whose tenant prefers to be killed gets that before the server's own limit, as long as that comes
    /// no later than it would without a word from the chassis.
    pub(super) fn kill_comes_first(&self, now: Instant, over_since: Option<Instant>) -> bool {
        self.may_kill() && over_since.is_none_or(|at| now.since(at) < self.params.escalate_after)
    }

    /// Sets the server's own limit, or follows the cap with it.
    pub(super) fn limit(&mut self, now: Instant, cap: Watts) {
        let Some(floor) = self.params.server_limit_floor else { return };
        // Without a lease the server may draw its fallback, even if the last cap was lower.
        let fallback = self.fallback().filter(|_| self.orders.lease_end().is_none()).unwrap_or(cap);
        let (server, watts) = (self.actuators.server(), cap.max(fallback).max(floor));
        // Without a meter it follows downward only.
        let raise = matches!(self.actuators.goal(server), Goal::Limit(set) if set < watts);
        if self.sighted() || !raise {
            self.actuators.request(now, server, Goal::Limit(watts), false, &mut self.out);
        }
    }

    /// Lifts the server's own limit; should the draw come back it is set again at once.
    pub(super) fn lift_limit(&mut self, now: Instant, cause: &'static str) {
        let server = self.actuators.server();
        self.actuators.request(now, server, Goal::Lift, false, &mut self.out);
        self.changed_at = Some(now);
        self.transition_to(now, State::Throttled { over_since: None, probation: true }, cause);
    }

    /// The floor was not enough.
    pub(super) fn escalate(&mut self, now: Instant, cap: Watts) {
        if self.params.server_limit_floor.is_none() || self.actuators.limit_requested() {
            return;
        }
        self.episode.limited(&self.tuning);
        self.overdraw.reset();
        self.limit(now, cap);
        self.changed_at = Some(now);
        if self.sighted() {
            self.transition_to(now, State::Shedding { under_since: None }, "the floor was not enough");
        }
    }
}
