//! The breaker that the budget stands for: an inverse-time device.
//!
//! A breaker carries a little too much for long and far too much for a moment. How far it has gone
//! towards its trip is the *trip fraction*: at 1 it trips. With `x` = draw ÷ limit the fraction rises by
//! `1 / t(x)` a second while the draw is above the limit, and falls by 1/60 a second at or under it.
//! Between 1 and 1.01 it stands still: that is the meters' class, and no controller can tell.

use ballast_types::Instant;

use crate::plant::{WINDOW_S, WindowMean};

/// Points of the non-trip edge: draw ÷ limit, and for how many seconds that is carried. They stand for a
/// breaker of which nothing else is known.
const DEFAULT_POINTS: [(f64, f64); 5] =
    [(1.02, 60.0), (1.05, 20.0), (1.1, 10.0), (1.25, 6.0), (1.5, 4.0)];

/// Up to this share of the limit the fraction does not rise: the meters' class.
const METER_CLASS: f64 = 1.01;

/// At or under the limit the fraction falls from 1 to 0 in so many seconds.
const COOLING_S: f64 = 60.0;

/// How long a breaker carries an excess.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TripCurve {
    /// Excess (draw ÷ limit − 1), seconds, and the exponent from here to the next point.
    points: Vec<(f64, f64, f64)>,
}

impl Default for TripCurve {
    fn default() -> Self {
        let ends = DEFAULT_POINTS.windows(2).map(|pair| exponent(pair[0], pair[1]));
        let mut exponents: Vec<f64> = ends.collect();
        exponents.extend(exponents.last().copied());
        let points = DEFAULT_POINTS.iter().zip(exponents);
        Self { points: points.map(|((x, seconds), beta)| (x - 1.0, *seconds, beta)).collect() }
    }
}

/// `β` of `t(x) = t_i ((x − 1) / (x_i − 1))^−β` that leads from one point to the next.
fn exponent((x, seconds): (f64, f64), (next_x, next_seconds): (f64, f64)) -> f64 {
    libm::log(seconds / next_seconds) / libm::log((next_x - 1.0) / (x - 1.0))
}

impl TripCurve {
    /// Seconds for which the breaker carries `share` times its limit without a trip; infinite up to the
    /// limit. Below the first point that point's time counts, beyond the last one the curve goes on.
    pub(crate) fn seconds(&self, share: f64) -> f64 {
        let excess = share - 1.0;
        if excess <= 0.0 {
            return f64::INFINITY;
        }

        let below = self.points.iter().rev().find(|(x, ..)| excess >= *x);
        match below.or(self.points.first()) {
            None => f64::INFINITY,
            Some((x, seconds, _)) if excess < *x => *seconds,
            Some((x, seconds, beta)) => seconds * libm::pow(excess / x, -beta),
        }
    }
}

/// How far the breaker has gone towards its trip.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TripFraction {
    curve: TripCurve,
    now: f64,
    max: f64,
}

impl TripFraction {
    /// Takes the mean draw of the last `seconds`, against the limit that was in force; 1 or more is a trip.
    pub(crate) fn take(&mut self, mean_w: f64, limit_w: f64, seconds: f64) -> f64 {
        let share = if limit_w > 0.0 { mean_w / limit_w } else { f64::INFINITY };
        if share > METER_CLASS {
            self.now += seconds / self.curve.seconds(share);
        } else if share <= 1.0 {
            self.now = (self.now - seconds / COOLING_S).max(0.0);
        }
        self.max = self.max.max(self.now);
        self.now
    }

    /// The fraction now.
    pub(crate) fn now(&self) -> f64 {
        self.now
    }

    /// The highest fraction so far.
    pub(crate) fn max(&self) -> f64 {
        self.max
    }
}

/// The breaker over the chassis, as the true draw drives it.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    fraction: TripFraction,
    /// When the fraction last left 0.
    rises_since: Instant,
    window: WindowMean,
    /// Of the limits in a window the lowest counts.
    limit_w: f64,
    mean_w: f64,
}

impl Breaker {
    /// Takes one step of the plant; true when a window ends with it.
    pub(crate) fn step(&mut self, now: Instant, power_w: f64, limit_w: f64) -> bool {
        self.limit_w = if self.window.is_new() { limit_w } else { self.limit_w.min(limit_w) };
        let Some(mean_w) = self.window.step(power_w) else { return false };

        if self.fraction.now() == 0.0 {
            self.rises_since = now;
        }
        self.mean_w = mean_w;
        self.fraction.take(mean_w, self.limit_w, WINDOW_S);
        true
    }

    /// How far it has gone towards its trip.
    pub(crate) fn fraction(&self) -> &TripFraction {
        &self.fraction
    }

    /// Since when it has been on the way to its trip.
    pub(crate) fn rises_since(&self) -> Instant {
        self.rises_since
    }

    /// The mean draw of the last window, in watts.
    pub(crate) fn mean_w(&self) -> f64 {
        self.mean_w
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_goes_through_its_points_and_on_beyond_them() {
        let curve = TripCurve::default();
        for (x, seconds) in DEFAULT_POINTS {
            assert!((curve.seconds(x) - seconds).abs() < 1e-9, "{x}: {}", curve.seconds(x));
        }
        // Below the first point its time; between two the power law; beyond the last the last exponent.
        for (x, seconds) in [(1.001, 60.0), (1.015, 60.0), (1.07, 14.286), (2.0, 2.667)] {
            assert!((curve.seconds(x) - seconds).abs() < 1e-3, "{x}: {}", curve.seconds(x));
        }
        assert_eq!(curve.seconds(1.0), f64::INFINITY);
        assert_eq!(curve.seconds(0.5), f64::INFINITY);
    }

    #[test]
    fn an_excess_trips_after_its_time_and_calm_forgives_in_a_minute() {
        let mut trip = TripFraction::default();
        for _ in 0..99 {
            trip.take(1100.0, 1000.0, 0.1);
        }
        assert!(trip.now() < 1.0, "{}", trip.now());
        trip.take(1100.0, 1000.0, 0.1);
        trip.take(1100.0, 1000.0, 0.1);
        assert!(trip.now() >= 1.0, "{}", trip.now());
        for _ in 0..610 {
            trip.take(1000.0, 1000.0, 0.1);
        }
        assert_eq!(trip.now(), 0.0);
        assert!(trip.max() >= 1.0);
    }

    #[test]
    fn within_the_meters_class_the_fraction_stands_still() {
        let mut trip = TripFraction::default();
        trip.take(1250.0, 1000.0, 3.0);
        let half = trip.now();
        for _ in 0..1000 {
            trip.take(1009.9, 1000.0, 0.1);
        }
        assert_eq!(trip.now(), half);
        assert!((half - 0.5).abs() < 1e-9, "{half}");
    }

    #[test]
    fn a_limit_of_nothing_trips_at_once() {
        let mut trip = TripFraction::default();
        assert!(trip.take(1.0, 0.0, 0.1) >= 1.0);
    }
}
