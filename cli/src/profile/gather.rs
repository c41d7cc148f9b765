//! What a meter shows of one setting: which values count, their mean, and how sure it is.

use core::time::Duration;

use ballast_types::{Instant, Watts};

/// Fresh values after a change that do not count yet: the first may still be a mean over both settings, the
/// second gives the server a moment to obey.
const SKIPPED: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Took {
    /// It says nothing of this setting alone.
    Early,
    Counted,
    /// It counts, and there are enough.
    Enough,
}

/// Gathers fresh values of one setting.
#[derive(Clone, Debug)]
pub(super) struct Gather {
    /// From here on values are of this setting, but for means that began before.
    shows_from: Instant,
    /// And the server has settled.
    settled_from: Instant,
    wanted: usize,
    skipped: u32,
    newest: Option<Instant>,
    /// Values and how often each was read: one that stands longer weighs more.
    values: Vec<(f64, f64)>,
}

impl Gather {
    /// For a setting that was made at `changed_at`; readings lag by `lag`, and the server settles within
    /// `settle`. The newest value of before is from `newest`.
    pub(super) fn new(
        changed_at: Instant,
        lag: Duration,
        settle: Duration,
        wanted: u32,
        newest: Option<Instant>,
    ) -> Self {
        let shows_from = changed_at + lag;
        let settled_from = shows_from + settle;
        let wanted = wanted as usize;
        Self { shows_from, settled_from, wanted, skipped: 0, newest, values: vec![] }
    }

    /// Takes one reading, whose value was made at `taken_at`.
    pub(super) fn take(&mut self, watts: Watts, taken_at: Instant) -> Took {
        let fresh = self.newest != Some(taken_at);
        self.newest = Some(taken_at);
        if let (false, Some((_, times))) = (fresh, self.values.last_mut()) {
            *times += 1.0;
            return Took::Counted;
        }
        if !fresh || taken_at < self.shows_from {
            return Took::Early;
        }
        if self.skipped < SKIPPED || taken_at < self.settled_from {
            self.skipped += 1;
            return Took::Early;
        }
        self.values.push((watts.as_f64(), 1.0));
        if self.values.len() >= self.wanted { Took::Enough } else { Took::Counted }
    }

    pub(super) fn newest(&self) -> Option<Instant> {
        self.newest
    }

    pub(super) fn count(&self) -> u32 {
        self.values.len() as u32
    }

    /// Their mean in watts.
    pub(super) fn mean(&self) -> f64 {
        let (sum, times) = self.sums(|w| w);
        sum / times
    }

    /// The standard error of the mean in watts: of values that do not depend on each other.
    pub(super) fn error(&self) -> f64 {
        let (mean, n) = (self.mean(), self.values.len() as f64);
        let (squares, times) = self.sums(|w| (w - mean) * (w - mean));
        let weights: f64 = self.values.iter().map(|(_, times)| times * times).sum();
        let variance = squares / times * n / (n - 1.0).max(1.0);
        (variance * weights).sqrt() / times
    }

    fn sums(&self, of: impl Fn(f64) -> f64) -> (f64, f64) {
        let values = self.values.iter();
        values.fold((0.0, 0.0), |(sum, all), (watts, times)| (sum + times * of(*watts), all + times))
    }

    /// The smallest step between two values in a row, in watts.
    pub(super) fn least_step(&self) -> Option<f64> {
        let steps = self.values.windows(2).map(|pair| (pair[0].0 - pair[1].0).abs());
        steps.filter(|step| *step > 0.0).min_by(f64::total_cmp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Instant = Instant::from_millis;

    fn gather(settle_ms: u64, wanted: u32) -> Gather {
        let lag = Duration::from_millis(200);
        Gather::new(MS(1000), lag, Duration::from_millis(settle_ms), wanted, Some(MS(900)))
    }

    #[test]
    fn what_may_be_of_the_setting_before_does_not_count() {
        use Took::{Counted, Early, Enough};
        let w = Watts::from_whole(300);
        let mut all = gather(0, 2);

        for (taken_ms, took) in [
            // Made before the change, once seen already; then within the lag; the mean over both; one more.
            (900, Early),
            (1100, Early),
            (1200, Early),
            (1200, Early),
            (1400, Early),
            (1600, Counted),
            (1600, Counted),
            (1800, Enough),
        ] {
            assert_eq!(all.take(w, MS(taken_ms)), took, "{taken_ms}");
        }

        // The server settles longer than two values take; a value that stands still does not make it.
        let mut all = gather(1000, 1);

        for (taken_ms, took) in [(1300, Early), (1500, Early), (2199, Early), (2200, Enough)] {
            assert_eq!(all.take(w, MS(taken_ms)), took, "{taken_ms}");
        }
    }

    #[test]
    fn a_value_that_stands_longer_weighs_more() {
        let mut all = gather(0, 100);
        let mut at = 1000;
        for (watts, reads) in [(1, 1), (1, 2), (200, 3), (206, 1)] {
            at += 200;
            for _ in 0..reads {
                all.take(Watts::from_whole(watts), MS(at));
            }
        }
        assert_eq!((all.count(), all.newest()), (2, Some(MS(1800))));
        assert_eq!((all.mean(), all.least_step()), (201.5, Some(6.0)));
    }

    #[test]
    fn the_error_is_that_of_the_mean() {
        let mut all = gather(0, 1000);
        for n in 0..402_u64 {
            let watts = if n % 2 == 0 { 198 } else { 202 };
            all.take(Watts::from_whole(watts), MS(1200 + 200 * n));
        }
        assert_eq!((all.count(), all.mean()), (400, 200.0));
        assert!((all.error() - 0.1).abs() < 1e-3, "{}", all.error());
        let mut one = gather(0, 1);
        for n in 0..3 {
            one.take(Watts::from_whole(200), MS(1200 + 200 * n));
        }
        assert_eq!((one.count(), one.error()), (1, 0.0));
    }
}
