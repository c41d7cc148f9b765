//! Where the draw is kept in a capping event: so far under the limit that readings exceed the limit for the share of time
//! that the operator allows, and by 1 % at least.
//!
//! The distance follows the readings themselves (a stochastic approximation of their quantile, Robbins and Monro 1951):
//! a reading above the limit widens the distance, one below narrows it, in the ratio of the shares. So nothing has to be
//! known of how the load moves, how noisy the meters are, or how promptly cores follow.

use ballast_types::Watts;
use serde::{Deserialize, Serialize};

/// Shares of the limit.
const LEAST: f64 = 0.01;
const MOST: f64 = 0.05;

/// A reading above the limit widens the distance by this share of the limit.
const STEP: f64 = 0.002;

/// The distance between limit and set point, as a share of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SetPoint {
    distance: f64,
}

impl Default for SetPoint {
    fn default() -> Self {
        Self { distance: LEAST }
    }
}

impl SetPoint {
    /// Takes a reading in a capping event. `allowed`: the share of readings that may exceed the limit.
    pub(crate) fn take(&mut self, exceeds: bool, allowed: f64) {
        let step = if exceeds { STEP } else { -STEP * allowed / (1.0 - allowed) };
        self.distance = (self.distance + step).clamp(LEAST, MOST);
    }

    /// The set point under this limit.
    pub(crate) fn under(self, limit: Watts) -> Watts {
        // At most 50 000.
        limit - limit.ppm((self.distance * 1e6) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readings that lie evenly within `spread` of the set point; the share of those above the limit, once it is settled.
    fn share_above(spread: f64, allowed: f64) -> f64 {
        let limit = Watts::from_whole(1000);
        let mut set_point = SetPoint::default();
        let mut above = 0;
        for n in 0..20_000_u32 {
            // Every remainder comes as often, in no order.
            let offset = f64::from(n * 7919 % 1000) / 500.0 - 1.0;
            let draw = set_point.under(limit).as_f64() + 1000.0 * spread * offset;
            let exceeds = draw > 1000.0;
            set_point.take(exceeds, allowed);
            above += u32::from(exceeds && n >= 10_000);
        }
        f64::from(above) / 10_000.0
    }

    #[test]
    fn the_share_of_readings_above_the_limit_is_what_is_allowed() {
        for allowed in [0.01, 0.03, 0.1] {
            let share = share_above(0.03, allowed);
            assert!((share - allowed).abs() < 0.2 * allowed, "{allowed}: {share}");
        }
        assert_eq!(share_above(0.005, 0.03), 0.0, "1 % is kept even where nothing moves");
    }

    #[test]
    fn the_distance_is_bounded() {
        let (limit, mut set_point) = (Watts::from_whole(1000), SetPoint::default());
        for _ in 0..1000 {
            set_point.take(true, 0.03);
        }
        assert_eq!(set_point.under(limit), Watts::from_whole(950));
        for _ in 0..10_000 {
            set_point.take(false, 0.03);
        }
        assert_eq!(set_point.under(limit), Watts::from_whole(990));
    }
}
