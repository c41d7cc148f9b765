//! The draw of the whole server, as fast as RAPL and as right as the server's own meter.
//!
//! The meter is authoritative and late: what it shows is a mean over its refresh that ended its lag ago.
//! RAPL is prompt and sees only part of the server. So every meter reading is compared with RAPL's mean
//! over the very same stretch of time, and the regression through those pairs carries RAPL up to the server.

mod fused;
mod regression;

use core::time::Duration;
use std::collections::VecDeque;

use ballast_types::Instant;
use serde::{Deserialize, Serialize};

pub use fused::Fused;
pub(crate) use regression::Regression;

use crate::meter::Sample;

/// Windows that are kept: more than the longest lag and refresh, at the shortest period.
const KEPT: usize = 512;
/// Comparisons before the regression is used.
const MIN_POINTS: u32 = 8;
/// A level that is off is found again within so many readings (3 s at 200 ms).
const LEVEL_OVER: f64 = 16.0;
/// The slope needs more of them (30 s).
const SLOPE_OVER: f64 = 150.0;
/// Movement of 5 W of RAPL says as much of the slope as is believed before.
const PRIOR: f64 = 25.0;
/// The error is that of the last readings.
const ERROR_OVER: f64 = 32.0;
/// Above this share of the draw the regression is not believed: three times the noise of a bad meter (2 %).
const BELIEVED: f64 = 0.06;

/// One fast window.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Window {
    from: Instant,
    to: Instant,
    watts: f64,
}

/// The regression between RAPL and the meter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Fusion {
    /// From the end of the meter's averaging to its reading.
    lag: Duration,
    /// What the meter averages over.
    refresh: Duration,
    windows: VecDeque<Window>,
    regression: Regression,
    /// Mean square of what the regression missed the meter by, in W².
    error: f64,
    /// What the newest reading was above the regression.
    missed: f64,
    newest: f64,
}

impl Fusion {
    pub(crate) fn new(lag: Duration, refresh: Duration) -> Self {
        let windows = VecDeque::with_capacity(KEPT);
        let regression = Regression::new(LEVEL_OVER, SLOPE_OVER, PRIOR);
        Self { lag, refresh, windows, regression, error: 0.0, missed: 0.0, newest: 0.0 }
    }

    /// Takes a window of RAPL.
    pub(crate) fn window(&mut self, from: Instant, to: Instant, watts: f64) {
        let oldest = to.saturating_sub(self.lag + self.refresh.saturating_mul(3));
        while self.windows.len() >= KEPT || self.windows.front().is_some_and(|w| w.to < oldest) {
            self.windows.pop_front();
        }
        self.windows.push_back(Window { from, to, watts });
    }

    pub(crate) fn meter(&mut self, sample: Sample) {
        let to = sample.taken_at.saturating_sub(self.lag);
        let from = to.saturating_sub(self.refresh);
        let Some(rapl) = self.mean(from, to) else { return };
        let watts = sample.watts.as_f64();
        self.newest = watts;
        if self.regression.points() > 0 {
            let missed = watts - self.regression.at(rapl);
            let weight = 1.0 / f64::from(self.regression.points()).min(ERROR_OVER);
            self.error += weight * (missed * missed - self.error);
            self.missed = missed;
        }
        self.regression.add(rapl, watts);
    }

    /// RAPL's mean between two instants; `None` unless most of the time is covered.
    fn mean(&self, from: Instant, to: Instant) -> Option<f64> {
        let (mut joules, mut seconds) = (0.0, 0.0);
        for w in &self.windows {
            let shared = w.to.min(to).since(w.from.max(from)).as_secs_f64();
            joules += w.watts * shared;
            seconds += shared;
        }
        (seconds > 0.8 * to.since(from).as_secs_f64() && seconds > 0.0).then(|| joules / seconds)
    }

    /// Root mean square of what the regression missed the meter by, in watts: the meter's noise, and what
    /// moves without RAPL seeing it.
    pub(crate) fn error_w(&self) -> f64 {
        self.error.sqrt()
    }

    /// The most that the server draws when RAPL counts `rapl` watts: the regression, raised by what the newest
    /// reading was above it. With `doubted`, by twice its error too, and before there are enough
    /// comparisons for a slope by the steepest that can be. `None` before the first comparison.
    fn bound(&self, rapl: f64, doubted: bool) -> Option<f64> {
        let drawn = match self.regression.points() {
            0 => return None,
            few if few < MIN_POINTS => self.regression.steepest(rapl),
            _ => self.regression.at(rapl),
        };
        let error = if doubted { 2.0 * self.error_w() } else { 0.0 };
        Some(drawn + self.missed.max(0.0) + error)
    }

    /// Why the regression is not to be believed, if it is not.
    pub(crate) fn doubt(&self) -> Option<&'static str> {
        if self.regression.points() < MIN_POINTS {
            return Some("too few meter readings to compare RAPL with");
        }
        (self.error_w() > BELIEVED * self.newest).then_some("RAPL and the meter disagree")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_types::Watts;

    const MS: fn(u64) -> Instant = Instant::from_millis;

    /// RAPL in 50 ms windows and a meter of 200 ms lag and refresh, for `seconds`.
    fn run(fusion: &mut Fusion, seconds: u64, rapl: impl Fn(u64) -> f64, truth: impl Fn(f64) -> f64) {
        for n in 0..seconds * 20 {
            let to = (n + 1) * 50;
            fusion.window(MS(n * 50), MS(to), rapl(n));
            if n >= 8 && n % 4 == 3 {
                let mean = (n - 7..n - 3).map(|k| truth(rapl(k))).sum::<f64>() / 4.0;
                let watts = Watts::from_f64(mean).unwrap();
                fusion.meter(Sample { watts, taken_at: MS(to) });
            }
        }
    }
    fn fusion() -> Fusion {
        Fusion::new(Duration::from_millis(200), Duration::from_millis(200))
    }

    #[test]
    fn rapl_is_carried_up_to_the_server_whatever_the_lag() {
        let mut f = fusion();
        assert!(f.doubt().is_some());
        // Steps of 40 W every 650 ms: a comparison of the wrong stretch would be off by tens of watts.
        run(&mut f, 60, |n| if (n / 13).is_multiple_of(2) { 100.0 } else { 140.0 }, |r| 70.0 + 1.06 * r);
        assert_eq!(f.doubt(), None);
        assert!((f.regression.at(100.0) - 176.0).abs() < 0.5, "{}", f.regression.at(100.0));
        assert!((f.regression.at(140.0) - 218.4).abs() < 0.5, "{}", f.regression.at(140.0));
        assert!(f.error_w() < 1.0, "{}", f.error_w());
    }

    #[test]
    fn a_rapl_that_does_not_see_the_load_is_doubted() {
        let mut f = fusion();
        let square = |n: u64| if (n / 40).is_multiple_of(2) { 0.0 } else { 80.0 };
        for n in 0..1200u64 {
            f.window(MS(n * 50), MS((n + 1) * 50), 100.0);
            if n % 4 == 3 {
                let watts = Watts::from_f64(180.0 + square(n)).unwrap();
                f.meter(Sample { watts, taken_at: MS((n + 1) * 50) });
            }
        }
        assert_eq!(f.doubt(), Some("RAPL and the meter disagree"));
    }

    #[test]
    fn stretches_that_were_not_watched_are_not_compared() {
        let mut f = fusion();
        f.window(MS(0), MS(50), 100.0);
        for n in 1..20 {
            f.meter(Sample { watts: Watts::from_whole(200), taken_at: MS(1000 * n) });
        }
        assert_eq!(f.regression.points(), 0);
    }

    #[test]
    fn windows_that_no_sample_shows_any_more_are_dropped() {
        let mut f = fusion();
        run(&mut f, 60, |_| 100.0, |r| r);
        // Lag and three refreshes are 800 ms: 16 windows of 50 ms, and the ones at both ends.
        assert!((16..=18).contains(&f.windows.len()), "{}", f.windows.len());
        // Shorter windows are dropped by their number.
        (0..10_000).for_each(|n| f.window(MS(60_000 + n), MS(60_000 + n), 100.0));
        assert!(f.windows.len() <= KEPT, "{}", f.windows.len());
    }
}
