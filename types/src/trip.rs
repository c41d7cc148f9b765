//! The breaker that a budget stands for: an inverse-time device.
//!
//! A breaker carries a little too much for long and far too much for a moment. How far it has gone
//! towards its trip is the *trip fraction*: at 1 it trips. With `x` = draw ÷ limit the fraction rises by
//! `1 / t(x)` a second while the draw is above the limit, and falls by 1/60 a second at or under it.

use core::time::Duration;

use serde::{Deserialize, Serialize};

/// An overload must be gone within this time.
pub const TRIP_TIME: Duration = Duration::from_secs(5);

/// The non-trip edge of a breaker of which nothing else is known: draw in parts per million of the limit,
/// and for how many milliseconds that is carried.
const USUAL: [(u32, u64); 5] =
    [(1_020_000, 60_000), (1_050_000, 20_000), (1_100_000, 10_000), (1_250_000, 6_000), (1_500_000, 4_000)];

/// At or under the limit the fraction falls from 1 to 0 in so many seconds.
const COOLING_S: f64 = 60.0;

/// One point of a [`TripCurve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TripPoint {
    /// The draw, in parts per million of the limit; above 1 000 000.
    pub draw_ppm: u32,
    /// For how long it is carried; above zero.
    pub carried: Duration,
}

/// How long a breaker carries an excess.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TripCurve {
    points: Vec<TripPoint>,
}

impl Default for TripCurve {
    fn default() -> Self {
        let point = |&(draw_ppm, ms): &(u32, u64)| TripPoint { draw_ppm, carried: Duration::from_millis(ms) };
        Self { points: USUAL.iter().map(point).collect() }
    }
}

impl TripCurve {
    /// A curve through these points of the non-trip edge.
    ///
    /// # Errors
    /// Says what is wrong with the points and what is allowed.
    pub fn new(points: Vec<TripPoint>) -> Result<Self, String> {
        let Some(first) = points.first() else { return Err("at least one point is needed".into()) };
        if first.draw_ppm <= 1_000_000 {
            return Err("every draw must be above 1, the limit".into());
        }
        if points.iter().any(|p| p.carried.is_zero()) {
            return Err("every time must be above zero".into());
        }
        if !points.windows(2).all(|w| w[0].draw_ppm < w[1].draw_ppm && w[0].carried > w[1].carried) {
            return Err("draws must rise from point to point, and times must fall".into());
        }
        Ok(Self { points })
    }

    /// Seconds for which the breaker carries `share` times its limit without a trip; infinite up to the
    /// limit.
    ///
    /// Between two points `t(x) = t_i ((x − 1) / (x_i − 1))^−β`, with the β that leads from one to the
    /// next. Below the first point that point's time counts, beyond the last one the curve goes on.
    pub fn seconds(&self, share: f64) -> f64 {
        let excess = share - 1.0;
        if excess <= 0.0 {
            return f64::INFINITY;
        }
        let below = self.points.iter().rposition(|p| excess >= p.excess());
        let Some(i) = below else {
            return self.points.first().map_or(f64::INFINITY, |p| p.carried.as_secs_f64());
        };
        let point = self.points[i];
        let beta = self.beta(i.min(self.points.len().saturating_sub(2)));
        point.carried.as_secs_f64() * libm::pow(excess / point.excess(), -beta)
    }

    /// The exponent between point `i` and the next; 1 where there is only one.
    fn beta(&self, i: usize) -> f64 {
        let (Some(a), Some(b)) = (self.points.get(i), self.points.get(i + 1)) else { return 1.0 };
        libm::log(a.carried.as_secs_f64() / b.carried.as_secs_f64()) / libm::log(b.excess() / a.excess())
    }
}

impl TripPoint {
    fn excess(self) -> f64 {
        f64::from(self.draw_ppm) / 1e6 - 1.0
    }
}

/// How far a breaker has gone towards its trip.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TripFraction {
    curve: TripCurve,
    now: f64,
    max: f64,
}

impl TripFraction {
    /// A breaker that is cold.
    pub fn new(curve: TripCurve) -> Self {
        Self { curve, now: 0.0, max: 0.0 }
    }

    /// Another curve; how far the breaker has gone stays.
    pub fn follow(&mut self, curve: TripCurve) {
        self.curve = curve;
    }

    /// Takes a draw of `share` times the limit, that lasted for `seconds`; 1 or more is a trip. From 1 up to
    /// `still` the fraction stands still.
    pub fn take(&mut self, share: f64, still: f64, seconds: f64) -> f64 {
        if share > still.max(1.0) {
            self.now += seconds / self.curve.seconds(share);
        } else if share <= 1.0 {
            self.now = (self.now - seconds / COOLING_S).max(0.0);
        }
        self.max = self.max.max(self.now);
        self.now
    }

    /// The fraction now.
    pub fn now(&self) -> f64 {
        self.now
    }

    /// The highest fraction so far.
    pub fn max(&self) -> f64 {
        self.max
    }

    /// Seconds until it trips, should the draw stay at `share` times the limit.
    pub fn left_s(&self, share: f64) -> f64 {
        (1.0 - self.now).max(0.0) * self.curve.seconds(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_goes_through_its_points_and_on_beyond_them() {
        let curve = TripCurve::default();
        for (ppm, ms) in USUAL {
            let (x, seconds) = (f64::from(ppm) / 1e6, ms as f64 / 1000.0);
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
    fn a_curve_must_fall() {
        let point = |draw_ppm, s| TripPoint { draw_ppm, carried: Duration::from_secs(s) };
        assert!(TripCurve::new(vec![]).is_err());
        assert!(TripCurve::new(vec![point(1_000_000, 5)]).is_err());
        assert!(TripCurve::new(vec![point(1_100_000, 0)]).is_err());
        assert!(TripCurve::new(vec![point(1_100_000, 5), point(1_200_000, 5)]).is_err());
        let one = TripCurve::new(vec![point(1_100_000, 5)]).expect("one point");
        assert!((one.seconds(1.2) - 2.5).abs() < 1e-9);
    }

    #[test]
    fn an_excess_trips_after_its_time_and_calm_forgives_in_a_minute() {
        let mut trip = TripFraction::default();
        for _ in 0..99 {
            trip.take(1.1, 1.01, 0.1);
        }
        assert!(trip.now() < 1.0, "{}", trip.now());
        trip.take(1.1, 1.01, 0.1);
        trip.take(1.1, 1.01, 0.1);
        assert!(trip.now() >= 1.0, "{}", trip.now());
        for _ in 0..610 {
            trip.take(1.0, 1.01, 0.1);
        }
        assert_eq!(trip.now(), 0.0);
        assert!(trip.max() >= 1.0);
    }

    #[test]
    fn what_is_told_to_stand_still_does() {
        let mut trip = TripFraction::default();
        trip.take(1.25, 1.01, 3.0);
        let half = trip.now();
        for _ in 0..1000 {
            trip.take(1.0099, 1.01, 0.1);
        }
        assert_eq!(trip.now(), half);
        assert!((half - 0.5).abs() < 1e-9, "{half}");
        assert!((trip.left_s(1.25) - 3.0).abs() < 1e-9);
        assert!(TripFraction::default().take(f64::INFINITY, 1.01, 0.1) >= 1.0);
    }
}
