//! The total is steered: by one height for the low-priority cores of all servers, and by ordering the servers' own
//! limits where that is not enough.

use ballast_types::wire::SharePolicy;
use ballast_types::{Instant, Watts};

use super::Chassis;
use crate::LiftRule;
use crate::height::{Range, Steps};
use crate::tuning::WIRE;

/// Floors that are estimated to be above the limit by this share are so, whatever a reading's noise.
const CLEARLY_PPM: u32 = 20_000;

/// Own limits stay ordered until the floors are this share under the limit.
const UNDER_PPM: u32 = 5_000;

impl Chassis {
    /// Whether the manager steers the total. By the paper's rules every server keeps under its own cap instead.
    pub(super) fn steers(&self) -> bool {
        self.params.lift_rule != LiftRule::Paper && self.params.shares != SharePolicy::Even
    }

    /// Whether servers keep under their caps now: by the paper's rules always, else when that is ordered.
    pub(super) fn holds_by_watts(&self) -> bool {
        !self.steers() || self.own_limits.is_some()
    }

    /// What the low-priority cores of the servers that take part can still do.
    pub(super) fn range(&self) -> Range {
        let reports = self.agents.iter().filter(|a| a.shares()).filter_map(|a| a.report.as_ref());
        reports.fold(Range::default(), |sum, report| Range {
            down: sum.down + report.sheddable_w.at_least_zero(),
            up: sum.up + report.restorable_w.at_least_zero(),
        })
    }

    /// Takes a draw in a capping event: moves the height, and orders the servers' own limits or no longer.
    pub(super) fn steer(&mut self, now: Instant, draw: Watts, measured: bool) {
        let (range, limit) = (self.range(), self.limit());
        let aim = if measured { self.set_point() } else { limit.ppm(self.params.alert_ppm) };
        let gain = if draw > limit { 1.0 } else { self.tuning.height_gain };
        let lag = self.tuning.shows_after + WIRE;
        self.height.note_spread((aim - draw).as_f64() / limit.as_f64().max(0.001));
        let noise = limit.ppm(self.params.noise_ppm);
        self.height.take(now, aim - draw, range, Steps { lag, gain, noise });

        let Some(floor) = self.event.as_ref().and_then(crate::event::CappingEvent::floor) else { return };
        let shown = self
            .height
            .floored_since()
            .is_some_and(|at| self.supplies.taken_at() >= at + self.tuning.shows_after + self.params.poll());
        let at_floor = range.down <= limit.ppm(UNDER_PPM);
        let never_fits = at_floor && floor > limit + limit.ppm(CLEARLY_PPM);
        let above_noise = floor > limit + limit.ppm(self.params.noise_ppm);
        let excess = self.detector.is_excess() && draw > limit;
        let needed = (excess && (never_fits || self.is_emergency())) || (shown && (excess || above_noise));
        let stays = self.own_limits.is_some() && floor >= limit - limit.ppm(UNDER_PPM);
        self.own_limits = (stays || needed).then(|| self.own_limits.unwrap_or(now));
        if self.own_limits.is_some() || self.is_emergency() {
            self.height.drop_to_floor(now);
        }
    }

    /// The height that server `i` is told; `None` where nothing is known of the total.
    pub(super) fn height_of(&self, now: Instant, i: usize) -> Option<u32> {
        let known = self.sees() || self.estimated(now).is_some();
        (self.steers() && known).then(|| self.height.ppm(self.agents[i].server.weight.unwrap_or(1)))
    }

    /// Whether servers are to hold their caps by their own limits.
    pub(super) fn orders_own_limits(&self) -> bool {
        self.event.is_some() && self.own_limits.is_some()
    }
}
