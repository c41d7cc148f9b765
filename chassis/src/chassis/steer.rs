//! Control of the total: the common height of all low-priority cores, and the order for the servers' own limits.

use core::time::Duration;

use ballast_types::wire::SharePolicy;
use ballast_types::{Instant, Watts};

use super::Chassis;
use crate::LiftRule;
use crate::event::CappingEvent;
use crate::height::{Range, Steps};
use crate::tuning::WIRE;

/// If the floors exceed the limit by more than this share, the order does not wait for a reading at the floor.
const CLEARLY_PPM: u32 = 20_000;

/// The order ends when the floors are below the limit by this share. Servers that can still shed less than this share are
/// at their floor.
const UNDER_PPM: u32 = 5_000;

/// After so long at the floor an excess is none from before.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3);

/// The share of the limit that low-priority cores are assumed to shed when the reports show no watts of theirs.
const UNREPORTED_PPM: u32 = 250_000;

impl Chassis {
    /// Whether the manager sets a common height. Otherwise each server keeps under its own cap, as in the paper.
    pub(super) fn steers(&self) -> bool {
        self.params.lift_rule != LiftRule::Paper && self.params.shares != SharePolicy::Even
    }

    /// When the manager ordered the servers' own limits; `None` without that order.
    pub(super) fn own_limits_since(&self) -> Option<Instant> {
        self.event.as_ref()?.own_limits_since
    }

    /// Whether caps in watts bind now: without a common height always, else with the order for own limits.
    pub(super) fn holds_by_watts(&self) -> bool {
        !self.steers() || self.own_limits_since().is_some()
    }

    /// What the low-priority cores of all servers in the split can still shed and restore.
    pub(super) fn range(&self) -> Range {
        let reports = self.agents.iter().filter(|a| a.shares()).filter_map(|a| a.report.as_ref());
        reports.fold(Range::default(), |sum, report| Range {
            down: sum.down + report.sheddable_w.at_least_zero(),
            up: sum.up + report.restorable_w.at_least_zero(),
        })
    }

    /// Follows a draw in a capping event: moves the height towards `aim`, and begins or ends the order for own limits.
    pub(super) fn steer(&mut self, now: Instant, draw: Watts, aim: Watts) {
        let (range, limit) = (self.range(), self.limit());
        let steps = Steps {
            lag: self.params.shows_after() + WIRE,
            gain: if draw > limit { 1.0 } else { self.tuning.height_gain },
            noise: limit.ppm(self.params.noise_ppm),
            unreported: limit.ppm(UNREPORTED_PPM),
        };
        self.height.take(now, aim - draw, range, steps);
        self.order_own_limits(now, draw, range);
        if self.own_limits_since().is_some() || self.is_emergency() {
            self.height.drop_to_floor(now);
        }
    }

    /// Begins or ends the order for own limits.
    pub(super) fn order_own_limits(&mut self, now: Instant, draw: Watts, range: Range) {
        let limit = self.limit();
        let at_floor = range.down <= limit.ppm(UNDER_PPM);
        if let Some(event) = &mut self.event {
            event.at_floor_since = at_floor.then(|| event.at_floor_since.unwrap_or(now));
        }
        let Some(floor) = self.event.as_ref().and_then(CappingEvent::floor) else { return };
        let floored_since = self.event.as_ref().and_then(|event| event.at_floor_since);
        let shown = self.is_shown(floored_since, self.params.shows_after());
        let needed = self.needs_own_limits(draw, floor, range);
        if let Some(event) = &mut self.event {
            if event.own_limits_since.is_none() {
                // Cores that are at their floor show what is drawn there. The servers' models may show less.
                event.floor_error = if shown { (draw - floor).at_least_zero() } else { Watts::ZERO };
            }
            let above = floor + event.floor_error >= limit - limit.ppm(UNDER_PPM);
            let stays = event.own_limits_since.is_some() && above;
            event.own_limits_since = (stays || needed).then(|| event.own_limits_since.unwrap_or(now));
        }
    }

    /// Whether the newest reading was taken so long after `since`, or later.
    fn is_shown(&self, since: Option<Instant>, after: Duration) -> bool {
        since.is_some_and(|at| self.supplies.taken_at() >= at + after)
    }

    /// Whether low-priority cores alone cannot hold the limit, where `floor` would be drawn with all of them at their floor.
    fn needs_own_limits(&self, draw: Watts, floor: Watts, range: Range) -> bool {
        let limit = self.limit();
        let floored_since = match self.steers() {
            true => self.height.floored_since(),
            false => self.event.as_ref().and_then(|event| event.at_floor_since),
        };
        let shown = self.is_shown(floored_since, self.params.polled_after());
        let noise = limit.ppm(self.params.noise_ppm);
        // The detector remembers what was drawn before the floor was reached.
        let lasts = self.is_shown(floored_since, self.params.polled_after() + FORGOTTEN_AFTER);
        let excess = self.detector.is_excess() && draw > if lasts { limit } else { limit + noise };

        let clearly_above = range.down <= limit.ppm(UNDER_PPM) && floor > limit + limit.ppm(CLEARLY_PPM);
        let above_noise = floor > limit + noise;
        (excess && (clearly_above || self.is_emergency())) || (shown && (excess || above_noise))
    }

    /// Whether servers use their own limits only by order: not with the paper's rule.
    pub(super) fn orders_own_limits(&self) -> bool {
        self.params.lift_rule != LiftRule::Paper
    }

    /// Whether the total is known: by the supplies, or by every server's report.
    pub(super) fn knows_total(&self, now: Instant) -> bool {
        self.sees() || self.estimated(now).is_some()
    }

    /// The height for server `i`, in parts per million.
    pub(super) fn height_of(&self, i: usize) -> u32 {
        self.height.ppm(self.agents[i].server.weight.unwrap_or(1))
    }
}
