//! What was used so far: decayed histograms, and the peaks of the last week's hours.

use super::bucket::{BUCKETS, UseBucket};
use super::{HOUR, UseWindow};

const HOURS: usize = 7 * 24;
/// Past this weight everything is divided by it: what is so much older than the newest counts for nothing.
const WEIGHT_MAX: f32 = (1u64 << 40) as f32;

/// Samples by bucket; they count half as much after each half-life. Not the old ones fade: the new ones weigh more.
#[derive(Clone, Debug)]
pub(super) struct Decayed {
    buckets: [f32; BUCKETS],
    total: f32,
    weight: f32,
    /// By so much the weight rises with each window.
    growth: f32,
    newest: Option<u64>,
}

impl Decayed {
    pub(super) fn new(half_life_h: f32) -> Self {
        let growth = libm::exp2f(1.0 / (half_life_h * HOUR as f32));
        Self { buckets: [0.0; BUCKETS], total: 0.0, weight: 1.0, growth, newest: None }
    }

    /// Adds samples, each with its count times `weigh` of its bucket.
    pub(super) fn add(&mut self, window: &UseWindow<'_>, weigh: impl Fn(UseBucket) -> f32) {
        match self.newest.map(|newest| window.number.saturating_sub(newest)) {
            None => {}
            Some(1) => self.weight *= self.growth,
            // Past so many windows the weight is more than the most in any case.
            Some(windows) => self.weight *= libm::powf(self.growth, windows.min(1 << 20) as f32),
        }
        self.newest = Some(window.number);
        if self.weight > WEIGHT_MAX {
            let by = 1.0 / self.weight;
            self.buckets.iter_mut().for_each(|bucket| *bucket *= by);
            self.total = self.buckets.iter().sum();
            self.weight = 1.0;
        }

        for (bucket, count) in window.samples {
            let weight = count * weigh(*bucket) * self.weight;
            self.buckets[bucket.index()] += weight;
            self.total += weight;
        }
    }

    /// Whether nothing counts.
    pub(super) fn is_empty(&self) -> bool {
        self.total <= 0.0
    }

    pub(super) fn mean(&self) -> f32 {
        let of = |(index, weight): (usize, &f32)| UseBucket::from_index(index).edge() * weight;
        self.buckets.iter().enumerate().map(of).sum::<f32>() / self.total.max(f32::MIN_POSITIVE)
    }

    /// The lowest buckets up to which these shares lie; the shares fall. Nothing where there is nothing.
    pub(super) fn quantiles<const N: usize>(&self, shares: [f32; N]) -> [UseBucket; N] {
        let mut found = [UseBucket::default(); N];
        if self.is_empty() {
            return found;
        }
        let (mut above, mut at) = (0.0, BUCKETS);
        for (share, quantile) in shares.into_iter().zip(&mut found) {
            // Sums of single precision: a bucket that has nothing is never taken.
            while at > 0
                && (self.buckets[at - 1] <= 0.0 || above + self.buckets[at - 1] <= (1.0 - share) * self.total)
            {
                above += self.buckets[at - 1];
                at -= 1;
            }
            *quantile = UseBucket::from_index(at.saturating_sub(1));
        }
        found
    }
}

/// The peak of every hour of the last week.
#[derive(Clone, Debug)]
pub(super) struct HourlyPeaks {
    /// By hour modulo a week; 0 also where nothing is known.
    peaks: [u8; HOURS],
    hour: u64,
}

impl HourlyPeaks {
    pub(super) const fn new() -> Self {
        Self { peaks: [0; HOURS], hour: 0 }
    }

    pub(super) fn add(&mut self, window: &UseWindow<'_>) {
        let hour = window.number / HOUR as u64;
        // What lies between was not seen.
        let passed = hour.saturating_sub(self.hour).min(HOURS as u64);
        (hour + 1 - passed..=hour).for_each(|hour| self.peaks[slot(hour)] = 0);
        self.hour = self.hour.max(hour);
        if let Some(peak) = window.peak() {
            let known = &mut self.peaks[slot(hour)];
            *known = (*known).max(peak.index() as u8);
        }
    }

    /// The peak of the last hours, this one with them.
    pub(super) fn last(&self, hours: usize) -> UseBucket {
        let peaks = (0..hours.min(HOURS) as u64).filter_map(|ago| self.hour.checked_sub(ago));
        bucket(peaks.map(|hour| self.peaks[slot(hour)]).max())
    }

    /// The peak of the whole week.
    pub(super) fn week(&self) -> UseBucket {
        bucket(self.peaks.iter().copied().max())
    }

    /// The peak of this hour: today, and on so many days before, where the window that comes next belongs to `next`.
    pub(super) fn of_hour(&self, next: u64, days: u64) -> UseBucket {
        let hour = next / HOUR as u64;
        let ago = (0..=days).filter_map(|day| hour.checked_sub(24 * day));
        // Of the eighth day there is the hour that is overwritten next.
        let there = ago.filter(|hour| *hour <= self.hour && self.hour - hour < HOURS as u64);
        bucket(there.map(|hour| self.peaks[slot(hour)]).max())
    }
}

const fn slot(hour: u64) -> usize {
    (hour % HOURS as u64) as usize
}

fn bucket(peak: Option<u8>) -> UseBucket {
    UseBucket::from_index(usize::from(peak.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(share: f32) -> UseBucket {
        UseBucket::of(share).unwrap()
    }

    #[test]
    fn the_papers_ten_samples_weighted_by_load() {
        // Nine samples at a tenth, one at all: by load the one is more than half.
        let samples = [(share(0.1), 9.0), (share(1.0), 1.0)];
        let mut loads = Decayed::new(12.0);
        loads.add(&UseWindow { number: 0, samples: &samples }, UseBucket::edge);
        let mut counts = Decayed::new(12.0);
        counts.add(&UseWindow { number: 0, samples: &samples }, |_| 1.0);

        assert_eq!(loads.quantiles([0.9]), [share(1.0)]);
        assert_eq!(counts.quantiles([0.95, 0.9, 0.5]), [share(1.0), share(0.1), share(0.1)]);
    }

    /// The vectors of VPA's own tests of its histogram, in tenths: a sample of 1 with weight 1, of 2 with weight 2, ….
    #[test]
    fn percentiles_and_decay_are_those_of_vpa() {
        let samples = [1.0f32, 2.0, 3.0, 4.0].map(|value| (share(value / 10.0), value));
        let mut decayed = Decayed::new(1.0);
        decayed.add(&UseWindow { number: 0, samples: &samples }, |_| 1.0);
        for (percentile, value) in [
            (0.1, 1.0),
            (0.2, 2.0),
            (0.3, 2.0),
            (0.4, 3.0),
            (0.5, 3.0),
            // VPA's is 0.6, exactly where a bucket ends: in single precision that may count as the next one.
            (0.599, 3.0),
            (0.7, 4.0),
            (0.8, 4.0),
            (0.9, 4.0),
            (1.0, 4.0),
        ] {
            assert_eq!(decayed.quantiles([percentile]), [share(value / 10.0)], "{percentile}");
        }

        // After 20 half-lives of an hour a thousandfold weight counts for less than a thousandth, and after 101 for nothing.
        for (hours, weight, percentile, value) in
            [(20, 1000.0, 0.999, 0.1), (20, 1000.0, 1.0, 0.2), (101, 1.0, 0.999_999, 0.1)]
        {
            let mut decayed = Decayed::new(1.0);
            decayed.add(&UseWindow { number: 0, samples: &[(share(0.2), weight)] }, |_| 1.0);
            decayed.add(&UseWindow { number: hours * HOUR as u64, samples: &[(share(0.1), 1.0)] }, |_| 1.0);
            assert_eq!(decayed.quantiles([percentile]), [share(value)], "{hours} {percentile}");
        }
    }

    #[test]
    fn growing_weights_are_the_definition() {
        // w = 2^(-age / half-life), summed anew each time.
        let (half_life_h, mut word) = (0.5, 7u64);
        let mut decayed = Decayed::new(half_life_h);
        let mut all: Vec<(u64, UseBucket)> = Vec::new();
        for number in (0..3000u64).filter(|number| number % 7 != 3) {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bucket = UseBucket::from_index((word >> 33) as usize % BUCKETS);
            all.push((number, bucket));
            decayed.add(&UseWindow { number, samples: &[(bucket, 1.0)] }, |_| 1.0);

            let weight =
                |at: u64| libm::exp2(-((number - at) as f64) / (f64::from(half_life_h) * HOUR as f64));
            let total: f64 = all.iter().map(|(at, _)| weight(*at)).sum();
            let below = |bucket: UseBucket, or_at: bool| {
                let counts = |other: &UseBucket| *other < bucket || or_at && *other == bucket;
                all.iter().filter(|(_, other)| counts(other)).map(|(at, _)| weight(*at)).sum::<f64>() / total
            };
            for share in [0.98f32, 0.9, 0.5] {
                let [found] = decayed.quantiles([share]);
                assert!(below(found, true) >= f64::from(share) - 1e-4, "{number} {share}");
                assert!(below(found, false) < f64::from(share) + 1e-4, "{number} {share}");
            }
        }
    }

    #[test]
    fn peaks_are_those_of_a_list_also_over_gaps() {
        let mut word = 3u64;
        let (mut peaks, mut all) = (HourlyPeaks::new(), Vec::new());
        let mut number = 0u64;
        for _ in 0..4000 {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            number += if word >> 60 == 0 { 1 + (word >> 40) % 4000 } else { 1 };
            let bucket = UseBucket::from_index((word >> 33) as usize % BUCKETS);
            all.push((number / HOUR as u64, bucket));
            peaks.add(&UseWindow { number, samples: &[(bucket, 1.0)] });

            let now = number / HOUR as u64;
            let most = |is: &dyn Fn(u64) -> bool| {
                let there = all.iter().filter(|(hour, _)| now - hour < HOURS as u64 && is(*hour));
                there.map(|it| it.1).max().unwrap_or_default()
            };
            assert_eq!(peaks.last(24), most(&|hour| now - hour < 24));
            assert_eq!(peaks.week(), most(&|_| true));
            let next = (number + 1) / HOUR as u64;
            let same = |hour: u64| next >= hour && (next - hour).is_multiple_of(24) && next - hour <= 72;
            assert_eq!(peaks.of_hour(number + 1, 3), most(&same));
        }
    }
}
