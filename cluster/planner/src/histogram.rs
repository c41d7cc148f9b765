//! Draws, counted.

use std::collections::BTreeMap;

use ballast_types::Watts;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HistogramError {
    /// Two histograms of different resolutions do not merge.
    #[error("a histogram of {theirs} steps does not merge into one of {ours} steps")]
    Resolution {
        /// Of the one merged into.
        ours: Watts,
        theirs: Watts,
    },
    /// A resolution that is no step.
    #[error("a resolution of {0} is not above 0 W")]
    NoStep(Watts),
}

/// How often each draw was read: all that planning needs of a fleet's history.
///
/// Exact at `resolution`: a reading counts at the nearest step, and halves go up. Merging is exact,
/// commutative and associative, so parts that were counted elsewhere give the same answer, bit for bit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    resolution: Watts,
    counts: BTreeMap<Watts, u64>,
    total: u64,
}

impl Histogram {
    pub fn new(resolution: Watts) -> Result<Self, HistogramError> {
        if resolution <= Watts::ZERO {
            return Err(HistogramError::NoStep(resolution));
        }
        Ok(Self { resolution, counts: BTreeMap::new(), total: 0 })
    }

    pub const fn resolution(&self) -> Watts {
        self.resolution
    }

    pub const fn readings(&self) -> u64 {
        self.total
    }

    pub fn add(&mut self, draw: Watts, times: u64) {
        if times == 0 {
            return;
        }
        let step = self.resolution.milli();
        let nearest = Watts::from_milli(draw.milli().saturating_add(step / 2).div_euclid(step) * step);
        let count = self.counts.entry(nearest).or_insert(0);
        *count = count.saturating_add(times);
        self.total = self.total.saturating_add(times);
    }

    /// Adds another one's readings. Their resolutions must be the same.
    pub fn merge(&mut self, other: &Self) -> Result<(), HistogramError> {
        if other.resolution != self.resolution {
            let (ours, theirs) = (self.resolution, other.resolution);
            return Err(HistogramError::Resolution { ours, theirs });
        }
        for (&draw, &times) in &other.counts {
            self.add(draw, times);
        }
        Ok(())
    }

    /// The draws with their counts, lowest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Watts, u64)> {
        self.counts.iter().map(|(&draw, &count)| (draw, count))
    }

    pub fn max(&self) -> Option<Watts> {
        self.counts.keys().next_back().copied()
    }

    pub fn mean(&self) -> Option<Watts> {
        let sum: i128 = self.iter().map(|(draw, n)| i128::from(draw.milli()) * i128::from(n)).sum();
        let mean = sum.checked_div(i128::from(self.total))?;
        i64::try_from(mean).ok().map(Watts::from_milli)
    }

    /// The draw that at most `above_ppm` millionths of the readings exceed: of `n` readings, highest first,
    /// number `⌊n · above_ppm / 10⁶⌋ + 1`. With 0 the highest draw; with all of them allowed, 0 W.
    pub fn exceeded_by(&self, above_ppm: u32) -> Option<Watts> {
        if self.total == 0 {
            return None;
        }
        let mut left = u128::from(self.total) * u128::from(above_ppm) / 1_000_000;
        for (draw, count) in self.iter().rev() {
            if u128::from(count) > left {
                return Some(draw);
            }
            left -= u128::from(count);
        }
        Some(Watts::ZERO)
    }

    /// `draw`, rounded up to a step.
    pub fn round_up(&self, draw: Watts) -> Watts {
        let step = self.resolution.milli();
        Watts::from_milli(draw.milli().saturating_add(step - 1).div_euclid(step) * step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(draws: &[i64]) -> Histogram {
        let mut histogram = Histogram::new(Watts::from_whole(1)).unwrap();
        for &w in draws {
            histogram.add(Watts::from_whole(w), 1);
        }
        histogram
    }

    #[test]
    fn a_reading_counts_at_the_nearest_step() {
        let mut histogram = Histogram::new(Watts::from_whole(5)).unwrap();
        for mw in [-2_500, 2_499, 2_500, 7_499, 7_500] {
            histogram.add(Watts::from_milli(mw), 1);
        }
        let steps: Vec<_> = histogram.iter().map(|(w, n)| (w.milli() / 1000, n)).collect();
        assert_eq!(steps, [(0, 2), (5, 2), (10, 1)]);
        assert_eq!(histogram.round_up(Watts::from_milli(5_001)), Watts::from_whole(10));
        assert_eq!(histogram.round_up(Watts::from_whole(5)), Watts::from_whole(5));
    }

    #[test]
    fn quantiles_count_from_the_top() {
        let histogram = of(&[10, 20, 30, 30, 50]);
        for (ppm, w) in [(0, 50), (199_999, 50), (200_000, 30), (600_000, 20), (800_000, 10), (999_999, 10)] {
            assert_eq!(histogram.exceeded_by(ppm), Some(Watts::from_whole(w)), "{ppm}");
        }
        assert_eq!(histogram.exceeded_by(1_000_000), Some(Watts::ZERO));
        assert_eq!(of(&[]).exceeded_by(0), None);
        assert_eq!(histogram.mean(), Some(Watts::from_whole(28)));
        assert_eq!(of(&[]).mean(), None);
    }

    #[test]
    fn only_like_resolutions_merge() {
        let mut watts = of(&[1]);
        let other = Histogram::new(Watts::from_whole(2)).unwrap();
        assert!(watts.merge(&other).is_err());
        assert!(Histogram::new(Watts::ZERO).is_err());
    }

    proptest! {
        #[test]
        fn parts_merge_to_the_same(draws in prop::collection::vec(0i64..500, 0..60), cut in 0usize..60) {
            let cut = cut.min(draws.len());
            let (mut one, mut other) = (of(&draws[cut..]), of(&draws[..cut]));
            let (first, second) = (one.clone(), other.clone());
            one.merge(&second).unwrap();
            other.merge(&first).unwrap();
            prop_assert_eq!(&one, &of(&draws));
            prop_assert_eq!(one, other);
        }

        #[test]
        fn a_quantile_is_what_sorting_says(draws in prop::collection::vec(0i64..50, 1..60),
            ppm in 0u32..1_000_000) {
            let mut sorted = draws.clone();
            sorted.sort_unstable_by(|a, b| b.cmp(a));
            let k = draws.len() * ppm as usize / 1_000_000;
            prop_assert_eq!(of(&draws).exceeded_by(ppm), Some(Watts::from_whole(sorted[k])));
        }
    }
}
