//! How far the draw flickers: what the chassis adds up over its servers to know its own.

use core::time::Duration;

use serde::{Deserialize, Serialize};

/// The means whose deviation counts: a breaker does not see what is shorter.
const LENGTH: Duration = Duration::from_millis(100);
/// The running mean that they deviate from: 3 s of them.
const MEAN_OVER: f64 = 30.0;
/// The deviation is that of the last 15 s.
const SQUARE_OVER: f64 = 150.0;
/// Before so many of them nothing is said.
const MIN_MEANS: u32 = 20;
/// No deviation counts for more than this many usual ones.
const OUTLIER: f64 = 4.0;
/// The least that is usual, in watts: a load that stood still may begin to flicker.
const MIN_W: f64 = 0.3;
/// So many of them in a row, all to one side: the load has moved, and that is no flicker.
const MOVED: i8 = 3;

/// Deviation of 100 ms means from their running mean.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Flicker {
    /// Of the 100 ms under way: time, and joules.
    span: Duration,
    joules: f64,
    /// Means since the running mean began, and since the start.
    since: u32,
    means: u32,
    mean: f64,
    square: f64,
    /// Outliers in a row, with their sign.
    outliers: i8,
}

impl Flicker {
    /// Takes the draw of one window.
    pub(super) fn add(&mut self, length: Duration, watts: f64) {
        self.span += length;
        self.joules += watts * length.as_secs_f64();
        if self.span >= LENGTH {
            let mean = self.joules / self.span.as_secs_f64();
            (self.span, self.joules) = (Duration::ZERO, 0.0);
            self.take(mean);
        }
    }

    /// Cores were moved: what the draw does next is that, and no flicker.
    pub(super) fn moved(&mut self) {
        (self.span, self.joules, self.since) = (Duration::ZERO, 0.0, 0);
    }

    fn take(&mut self, watts: f64) {
        self.since = self.since.saturating_add(1);
        let n = f64::from(self.since);
        let missed = watts - self.mean;
        self.mean += missed / n.min(MEAN_OVER);

        if self.since == 1 {
            return;
        }
        self.means = self.means.saturating_add(1);

        // A mean of k values misses the next one by 1/k more than they deviate.
        let k = (n - 1.0).min(2.0 * MEAN_OVER - 1.0);
        let squared = missed * missed * k / (k + 1.0);
        let usual = OUTLIER * OUTLIER * self.square.max(MIN_W * MIN_W);
        let outlier = squared > usual;
        let sign = if missed < 0.0 { -1 } else { 1 };
        self.outliers = match self.outliers {
            _ if !outlier => 0,
            run if run.signum() == sign => run.saturating_add(sign),
            _ => sign,
        };

        if self.outliers.abs() >= MOVED {
            (self.since, self.mean, self.outliers) = (1, watts, 0);
            return;
        }

        let counted = if outlier { usual } else { squared };
        self.square += (counted - self.square) / f64::from(self.means).min(SQUARE_OVER);
    }

    /// Root mean square, in watts; `None` before enough is known.
    pub(super) fn rms_w(&self) -> Option<f64> {
        (self.means >= MIN_MEANS).then(|| self.square.sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_millis(50);

    /// A chassis once kept 10 % under its budget for ten seconds, because the load rose soon after the start.
    #[test]
    fn a_load_that_moves_soon_after_the_start_is_no_flicker() {
        let mut flicker = Flicker::default();
        for n in 0..60 {
            flicker.add(WINDOW, if n < 20 { 160.0 } else { 210.0 } + noise(n / 2));
        }
        let rms = flicker.rms_w().unwrap();
        assert!(rms < 3.0, "{rms}");
    }

    /// A fixed sequence that looks like noise of one standard deviation.
    fn noise(n: u32) -> f64 {
        let x = f64::from(n.wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 24);
        (x - 0.5) * 12.0f64.sqrt()
    }

    #[test]
    fn it_is_the_deviation_of_100_ms_means() {
        let mut flicker = Flicker::default();
        for n in 0..400 {
            // Both windows of one mean are alike.
            flicker.add(WINDOW, 200.0 + 5.0 * noise(n / 2));
            if n < 40 {
                assert_eq!(flicker.rms_w(), None);
            }
        }
        let rms = flicker.rms_w().unwrap();
        assert!((4.0..6.0).contains(&rms), "{rms}");
    }

    #[test]
    fn a_load_that_moves_and_cores_that_are_moved_are_no_flicker() {
        let mut flicker = Flicker::default();
        for n in 0..400 {
            flicker.add(WINDOW, 200.0 + noise(n / 2));
        }
        for n in 0..400 {
            if n == 200 {
                flicker.moved();
            }
            flicker.add(WINDOW, if n < 200 { 260.0 } else { 150.0 } + noise(n / 2));
        }
        let rms = flicker.rms_w().unwrap();
        assert!(rms < 2.5, "{rms}");
    }
}
