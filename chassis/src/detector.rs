//! Two questions about the draw, and a tool for each.
//!
//! *Is there an excess?* Readings are noisy, so one above the limit says little. A cumulative sum (CUSUM)
//! adds up how far readings lie above a reference, in standard deviations of their noise, and answers once
//! the sum is beyond a bound. Its false alarms are rare by construction: see the tests.
//!
//! *How urgent is it?* A breaker is an inverse-time device, so that is its trip fraction.
//!
//! | trip fraction | what is done while there is an excess |
//! |---|---|
//! | below 0.25 | servers are capped |
//! | 0.25 | every low-priority core to its floor |
//! | 0.5, or too little time is left for hardware | hardware caps |

use core::time::Duration;

use ballast_types::{Instant, TripCurve, TripFraction};
use serde::{Deserialize, Serialize};

/// A reference lies so many standard deviations under the mean that is to be found.
const HALF_SHIFT: f64 = 0.5;

/// The sum beyond which it is found. With [`HALF_SHIFT`] a draw that lies one standard deviation under
/// what is to be found is taken for it once in about 19 000 readings (an hour), and one that is there is
/// found after 18 readings, or after 2 if it is 3 standard deviations more.
const BOUND: f64 = 8.0;

/// The sum never runs up to more, so that the end of an excess is seen in time.
const HIGHEST: f64 = 2.0 * BOUND;

/// One reading so many standard deviations above the limit is enough.
const ALONE: f64 = 3.0;

/// No gap between readings counts for more.
const LONGEST_GAP: Duration = Duration::from_secs(1);

/// Finds a mean that lasts, in noise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Cusum {
    sum: f64,
    /// Found, until the sum is back at 0.
    on: bool,
    /// Both, without the newest reading.
    before: (f64, bool),
}

impl Cusum {
    /// Takes a reading that lies so many standard deviations above the mean that is to be found.
    fn take(&mut self, above: f64) {
        self.before = (self.sum, self.on);
        self.take_again(above);
    }

    /// The newest reading lies elsewhere than it was taken for.
    fn take_again(&mut self, above: f64) {
        let (sum, on) = self.before;
        self.sum = (sum + above + HALF_SHIFT).clamp(0.0, HIGHEST);
        self.on = self.sum >= BOUND || (on && self.sum > 0.0);
    }
}

/// What one reading is compared with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// The draw as a share of the limit.
    pub(crate) share: f64,
    /// The draw as a share of what the breaker is judged by: a limit that was lowered counts a little later.
    pub(crate) trip_share: f64,
    /// The share from which on the chassis is capped.
    pub(crate) threshold: f64,
    /// One standard deviation of the readings' noise, as a share of the limit.
    pub(crate) noise: f64,
}

impl Scale {
    fn sigma(&self) -> f64 {
        self.noise.max(1e-4)
    }

    fn above_threshold(&self) -> f64 {
        (self.share - self.threshold) / self.sigma()
    }

    /// The whole shift lies above the limit: at the limit itself there is no excess.
    fn above_limit(&self) -> f64 {
        (self.share - 1.0) / self.sigma() - 2.0 * HALF_SHIFT
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Detector {
    trip: TripFraction,
    high: Cusum,
    excess: Cusum,
    /// The newest reading lies beyond the limit by more than noise explains.
    far: bool,
    newest: Option<(Instant, f64)>,
}

impl Detector {
    pub(crate) fn new(curve: TripCurve) -> Self {
        let trip = TripFraction::new(curve);
        Self { trip, high: Cusum::default(), excess: Cusum::default(), far: false, newest: None }
    }

    /// Another breaker's curve; how far the breaker has gone stays.
    pub(crate) fn follow(&mut self, curve: TripCurve) {
        self.trip.follow(curve);
    }

    pub(crate) fn take(&mut self, now: Instant, scale: Scale) {
        self.high.take(scale.above_threshold());
        self.excess.take(scale.above_limit());
        self.judge(now, scale);
    }

    /// The limit has moved: the newest reading counts under the new one. What was summed up before stays, for a
    /// limit that moves every second must not hide an excess that takes several to find.
    pub(crate) fn take_again(&mut self, now: Instant, scale: Scale) {
        self.high.take_again(scale.above_threshold());
        self.excess.take_again(scale.above_limit());
        self.judge(now, scale);
    }

    fn judge(&mut self, now: Instant, scale: Scale) {
        let Scale { share, trip_share, .. } = scale;
        self.far = share > 1.0 + ALONE * scale.sigma();
        let gap = self.newest.map_or(Duration::ZERO, |(at, _)| (now - at).min(LONGEST_GAP));
        self.trip.take(trip_share, gap.as_secs_f64());
        self.newest = Some((now, trip_share));
    }

    /// Whether the draw has reached the threshold.
    pub(crate) fn is_high(&self) -> bool {
        self.high.on || self.far
    }

    /// Whether the draw is over the limit, noise or not.
    pub(crate) fn is_excess(&self) -> bool {
        self.excess.on || self.far
    }

    /// How far the breaker has gone towards its trip, by the readings.
    pub(crate) fn fraction(&self) -> f64 {
        self.trip.now()
    }

    /// Seconds until it trips, should the draw stay as it was last read.
    pub(crate) fn left_s(&self) -> f64 {
        self.newest.map_or(f64::INFINITY, |(_, share)| self.trip.left_s(share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Noise of one standard deviation, normal enough: the sum of twelve uniform numbers.
    fn noise(state: &mut u64) -> f64 {
        (0..12).fold(-6.0, |sum, _| {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            sum + (*state >> 33) as f64 / (1u64 << 31) as f64
        })
    }

    /// Readings until a draw of `mean` is taken for one at the threshold.
    fn until_high(mean: f64, seed: u64, most: u64) -> Option<u64> {
        let (mut detector, mut state) = (Detector::new(TripCurve::default()), seed);
        (1..=most).find(|n| {
            let share = mean + 0.01 * noise(&mut state);
            let scale = Scale { share, trip_share: share, threshold: 0.98, noise: 0.01 };
            detector.take(Instant::from_millis(200 * n), scale);
            detector.is_high()
        })
    }

    #[test]
    fn a_draw_under_the_threshold_is_seldom_taken_for_one_at_it() {
        let runs: Vec<u64> = (0..60).map(|seed| until_high(0.97, seed, 200_000).unwrap_or(200_000)).collect();
        let mean = runs.iter().sum::<u64>() / 60;
        assert!((8_000..60_000).contains(&mean), "a false alarm in {mean} readings");
        assert!((0..20).all(|seed| until_high(0.955, seed, 100_000).is_none()));
    }

    #[test]
    fn a_draw_at_the_threshold_is_found_in_seconds_and_a_leap_at_once() {
        let mean = |draw| {
            (0..200).map(|seed| until_high(draw, seed, 10_000).expect("found")).sum::<u64>() as f64 / 200.0
        };
        assert!(mean(0.98) < 22.0, "{}", mean(0.98));
        assert!(mean(1.0) < 5.0, "{}", mean(1.0));
        assert!(mean(1.05) < 1.2, "{}", mean(1.05));
    }

    #[test]
    fn an_excess_ends_when_it_has_ended() {
        let mut detector = Detector::new(TripCurve::default());
        let mut take = |n: u64, share: f64| {
            let scale = Scale { share, trip_share: share, threshold: 0.98, noise: 0.01 };
            detector.take(Instant::from_millis(200 * n), scale);
            detector.is_excess()
        };
        assert!(!(0..40).any(|n| take(n, 1.0)), "at the limit there is none");
        assert!((40..100).any(|n| take(n, 1.015)));
        assert!((100..110).all(|n| take(n, 1.015)));
        assert!((110..130).any(|n| !take(n, 0.985)), "and it is over within 4 s");
        assert!(take(131, 1.04), "one reading far beyond the limit is enough");
    }
}
