//! Utilisation at a share of failures, and how sure that is: bias-corrected and accelerated bootstrap (Efron 1987).

use ballast_types::SplitMix64;

use super::Measured;

const RESAMPLES: usize = 2_000;
/// Shares of failures below this are as good as none.
const FLOOR: f64 = 1e-7;

/// Runs that stand for a share of all.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stratum {
    pub(super) share: f64,
    pub(super) runs: Vec<u64>,
}

/// What is interpolated along.
pub(super) fn log_failures(share: f64) -> f64 {
    libm::log(share.max(FLOOR))
}

/// What is kept to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// The share of scale-outs that fail, on average over runs.
    Share,
    PerRun,
}

/// One arm's runs, stratum by stratum; a run is one row of columns.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// Share and rows of each stratum; a row is failed share, failures and utilisation for every threshold.
    strata: Vec<(f64, Vec<Vec<[f64; 3]>>)>,
    thresholds: Vec<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct At {
    pub(super) utilisation: f64,
    /// As it is interpolated.
    pub(super) threshold: f64,
    pub(super) failures_per_run: f64,
    /// Whether the limit is kept there.
    pub(super) kept: bool,
    /// Whether the limit lies between two thresholds.
    pub(super) bracketed: bool,
}

impl Sample {
    /// `scaled`: the thresholds as they are interpolated, from the lowest.
    pub(super) fn new(strata: &[Stratum], measured: &[Measured], scaled: Vec<f64>) -> Self {
        let rows = |stratum: &Stratum| {
            let own = measured.iter().filter(|it| stratum.runs.contains(&it.run));
            let row = |it: &Measured| -> Vec<[f64; 3]> {
                it.tallies.iter().map(|t| [t.failed_share(), t.failed as f64, t.utilisation]).collect()
            };
            (stratum.share, own.map(row).collect())
        };
        Self { strata: strata.iter().map(rows).collect(), thresholds: scaled }
    }

    /// Means for every threshold; `weight` of a stratum's row.
    fn means(&self, weight: impl Fn(usize, usize) -> f64) -> Vec<[f64; 3]> {
        let mut means = vec![[0.0; 3]; self.thresholds.len()];
        for (k, (share, rows)) in self.strata.iter().enumerate() {
            let total: f64 = (0..rows.len()).map(|i| weight(k, i)).sum();
            for (i, row) in rows.iter().enumerate() {
                let w = share * weight(k, i) / total.max(f64::MIN_POSITIVE);
                if w > 0.0 {
                    means.iter_mut().zip(row).for_each(|(sum, it)| (0..3).for_each(|j| sum[j] += w * it[j]));
                }
            }
        }
        means
    }

    fn at(&self, means: &[[f64; 3]], measure: Measure, limit: f64) -> At {
        let level = |it: &[f64; 3]| match measure {
            Measure::Share => log_failures(it[0]),
            Measure::PerRun => log_failures(it[1]),
        };
        let goal = log_failures(limit);
        let point = |i: usize, kept| At {
            utilisation: means[i][2],
            threshold: self.thresholds[i],
            failures_per_run: means[i][1],
            kept,
            bracketed: false,
        };

        // The highest threshold that keeps the limit; failures rise with it, but for chance.
        let Some(low) = (0..means.len()).rev().find(|i| level(&means[*i]) <= goal) else {
            return point(0, false);
        };
        let Some(above) = means.get(low + 1) else { return point(low, true) };
        let share = (goal - level(&means[low])) / (level(above) - level(&means[low]));
        let between = |a: f64, b: f64| a + share * (b - a);
        At {
            utilisation: between(means[low][2], above[2]),
            threshold: between(self.thresholds[low], self.thresholds[low + 1]),
            failures_per_run: between(means[low][1], above[1]),
            kept: true,
            bracketed: true,
        }
    }

    pub(super) fn now(&self, measure: Measure, limit: f64) -> At {
        self.at(&self.means(|_, _| 1.0), measure, limit)
    }

    /// The utilisation at the highest threshold.
    pub(super) fn ceiling(&self) -> f64 {
        self.means(|_, _| 1.0).last().map_or(f64::NAN, |it| it[2])
    }

    fn utilisation(&self, limit: f64, weight: impl Fn(usize, usize) -> f64) -> f64 {
        self.at(&self.means(weight), Measure::Share, limit).utilisation
    }

    fn sizes(&self) -> Vec<usize> {
        self.strata.iter().map(|it| it.1.len()).collect()
    }
}

/// How often every row of every stratum is drawn. Two samples of the same runs draw the same.
fn drawn(sizes: &[usize], seed: u64) -> Vec<Vec<f64>> {
    let draw = |(k, n): (usize, &usize)| {
        let mut random =
            SplitMix64::new(SplitMix64::finalise(seed ^ SplitMix64::finalise((k + sizes.len()) as u64)));
        let mut counts = vec![0.0; *n];
        for _ in 0..*n {
            counts[(random.draw() % *n as u64) as usize] += 1.0;
        }
        counts
    };
    sizes.iter().enumerate().map(draw).collect()
}

/// An estimate with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    pub(super) value: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

/// The utilisation of `first` at the limit, less that of `second` where there is one: on the same runs.
pub(super) fn interval(first: &Sample, second: Option<&Sample>, limit: f64) -> Interval {
    let of = |weights: &dyn Fn(&Sample) -> Vec<Vec<f64>>| {
        let one = |sample: &Sample| {
            let weights = weights(sample);
            sample.utilisation(limit, |k, i| weights[k][i])
        };
        one(first) - second.map_or(0.0, one)
    };
    let ones = |sample: &Sample| sample.sizes().iter().map(|n| vec![1.0; *n]).collect::<Vec<_>>();
    let value = of(&ones);

    let mut resampled: Vec<f64> =
        (0..RESAMPLES as u64).map(|seed| of(&|sample| drawn(&sample.sizes(), seed))).collect();
    resampled.sort_by(f64::total_cmp);

    // Without each run once. Runs of two samples with other strata are left out one after the other.
    let paired = second.is_none_or(|it| it.sizes() == first.sizes());
    let mut without = vec![];
    for (which, sample) in core::iter::once(first).chain(second).enumerate() {
        if which == 1 && paired {
            break;
        }
        for (k, n) in sample.sizes().into_iter().enumerate() {
            for i in 0..n {
                without.push(of(&|other| {
                    let mut weights = ones(other);
                    if paired || core::ptr::eq(other, sample) {
                        weights[k][i] = 0.0;
                    }
                    weights
                }));
            }
        }
    }
    let mean = without.iter().sum::<f64>() / without.len() as f64;
    let power = |p: i32| without.iter().map(|it| libm::pow(mean - it, f64::from(p))).sum::<f64>();
    let spread = libm::pow(power(2), 1.5);
    let acceleration = if spread > 0.0 { power(3) / (6.0 * spread) } else { 0.0 };

    let below = resampled.iter().filter(|it| **it < value).count() as f64;
    let equal = resampled.iter().filter(|it| **it == value).count() as f64;
    let bias = quantile(((below + 0.5 * equal) / RESAMPLES as f64).clamp(1e-3, 1.0 - 1e-3));
    let end = |z: f64| {
        let moved = bias + (bias + z) / (1.0 - acceleration * (bias + z));
        let share = 0.5 * libm::erfc(-moved / core::f64::consts::SQRT_2);
        resampled[((share * RESAMPLES as f64) as usize).min(RESAMPLES - 1)]
    };
    Interval { value, low: end(-1.959_964), high: end(1.959_964) }
}

/// The standard normal law's quantile, by bisection.
fn quantile(share: f64) -> f64 {
    let (mut low, mut high) = (-10.0, 10.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        let below = 0.5 * libm::erfc(-middle / core::f64::consts::SQRT_2) < share;
        (low, high) = if below { (middle, high) } else { (low, middle) };
    }
    0.5 * (low + high)
}
