//! The breaker that a budget stands for: an inverse-time device.
//!
//! A breaker carries a little too much for long and far too much for a moment. How far it has gone
//! towards its trip is the *trip fraction*: at 1 it trips. With `x` = draw ÷ limit, each second changes the fraction by
//!
//! | draw | change |
//! |---|---|
//! | x > 1.01 | 1 ÷ t(x) |
//! | 0.99 to 1.01 | 0, a meter's class |
//! | x < 0.99 | −1 ÷ t(√(2 − x²)), down to 0 |
//!
//! The heat of an element goes with x², so an element cools under the limit as fast as it heats above. A square
//! wave of equal halves whose root mean square is under the limit therefore does not trip. This stands for the
//! bimetal element of a thermal-magnetic breaker, which is the slowest to forget.

use core::time::Duration;

use serde::{Deserialize, Serialize};

/// An overload must be gone within this time.
pub const TRIP_TIME: Duration = Duration::from_secs(5);

/// The non-trip edge of a breaker of which nothing else is known: draw in parts per million of the limit,
/// and for how many milliseconds that is carried.
const USUAL: [(u32, u64); 5] =
    [(1_020_000, 60_000), (1_050_000, 20_000), (1_100_000, 10_000), (1_250_000, 6_000), (1_500_000, 4_000)];

/// Up to this share of the limit the fraction does not rise: meters of class 1 cannot tell.
pub const METER_CLASS: f64 = 1.01;

/// Down to this share of the limit the fraction does not fall.
const COOLS_BELOW: f64 = 0.99;

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

    /// Takes a draw of `share` times the limit that lasted for `seconds`; 1 or more is a trip. A share that is no
    /// number changes nothing.
    pub fn take(&mut self, share: f64, seconds: f64) -> f64 {
        if share > METER_CLASS {
            self.now += seconds / self.curve.seconds(share);
        } else if share < COOLS_BELOW {
            let mirrored = libm::sqrt(2.0 - share.max(0.0) * share.max(0.0));
            self.now = (self.now - seconds / self.curve.seconds(mirrored)).max(0.0);
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

    /// Takes `share` for `seconds` in steps of 10 ms.
    fn last(trip: &mut TripFraction, share: f64, seconds: f64) {
        for _ in 0..(seconds * 100.0).round() as u32 {
            trip.take(share, 0.01);
        }
    }

    #[test]
    fn a_constant_excess_trips_after_its_time() {
        let curve = TripCurve::default();
        for share in [1.011, 1.02, 1.05, 1.07, 1.1, 1.25, 1.5, 2.0] {
            let mut trip = TripFraction::default();
            last(&mut trip, share, curve.seconds(share) - 0.02);
            assert!((0.99..1.0).contains(&trip.now()), "{share}: {}", trip.now());
            last(&mut trip, share, 0.04);
            assert!(trip.now() >= 1.0, "{share}: {}", trip.now());
        }
        assert!(TripFraction::default().take(f64::INFINITY, 0.1) >= 1.0);
    }

    #[test]
    fn a_square_wave_whose_root_mean_square_is_under_the_limit_does_not_trip() {
        for low in [0.0, 0.3, 0.6, 0.9, 0.985, 0.995] {
            let high = f64::sqrt(1.999 - low * low);
            for half_s in [0.01, 0.1, 0.5, 1.0, 2.0] {
                let mut trip = TripFraction::default();
                for _ in 0..2000 {
                    last(&mut trip, high, half_s);
                    last(&mut trip, low, half_s);
                }
                assert!(
                    trip.max() <= half_s / trip.curve.seconds(high) + 1e-9,
                    "{low} {half_s}: {}",
                    trip.max()
                );
            }
        }
        // With a root mean square above the limit a wave does trip.
        let mut trip = TripFraction::default();
        for _ in 0..400 {
            last(&mut trip, 1.3, 0.1);
            last(&mut trip, 0.8, 0.1);
        }
        assert!(trip.max() >= 1.0, "{}", trip.max());
    }

    #[test]
    fn within_a_meters_class_the_fraction_stands_still() {
        let mut trip = TripFraction::default();
        trip.take(1.25, 3.0);
        for share in [0.99, 1.0, 1.01, f64::NAN] {
            trip.take(share, 1000.0);
        }
        assert!((trip.now() - 0.5).abs() < 1e-9, "{}", trip.now());
        assert!((trip.left_s(1.25) - 3.0).abs() < 1e-9);
        trip.take(0.95, 60.0);
        assert_eq!((trip.now(), trip.max() > 0.49), (0.0, true));
    }
}
