//! Gradient boosting, to compare the tables with.
//!
//! * The logarithm of the remaining lifetime, as LAVA learns it (arXiv 2412.09840, section 3 and appendix B): each VM that
//!   ended is there with eight uptimes. What it says is nearest to a geometric mean; it is one time, no distribution.
//! * Hazards of doublings of uptime: a row for each doubling that a VM began, with whether it ended in it.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use ballast_forest::{
    BoostOptions, EarlyStopping, Ensemble, FeatureTable, TableError, Target, TrainError, train_boosted,
};
use ballast_types::survival::{BINS, HORIZON_S, SurvivalCurve, bin_of};
use thiserror::Error;

use super::counts::{LifetimeSpan, SHRINKAGE};
use super::data::Lifetimes;
use super::feature::Column;

/// No more VMs than this are learnt from: every second, third and so on is.
const MAX_VMS: usize = 150_000;
const ROUNDS: u32 = 300;
/// Uptimes of a VM that are learnt from, as eighths of its lifetime: 0, 12.5 % and so on.
const UPTIMES: u8 = 8;
/// The first period is of 64 s, each later one a doubling.
const PERIODS: usize = BINS / 4;
/// A period that fewer VMs began says what the one before it says.
const MIN_BEGUN: usize = 100;

#[derive(Clone, Copy, Debug)]
pub struct BoostedOptions {
    pub seed: u64,
    /// They change no result.
    pub threads: NonZeroUsize,
}

/// Why nothing was learnt.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum BoostedError {
    #[error(transparent)]
    Table(#[from] TableError),
    #[error(transparent)]
    Train(#[from] TrainError),
}

struct Examples {
    columns: Vec<Vec<f32>>,
    groups: Vec<u32>,
}

struct Encoder<'a> {
    lifetimes: &'a Lifetimes,
    /// Of each column, of each category.
    numbers: Vec<Vec<f32>>,
}

/// Boosted hazards, as a curve for each row.
pub struct BoostedHazards<'a> {
    encoder: Encoder<'a>,
    ensemble: Ensemble,
    last_period: usize,
    root: [f64; BINS],
}

/// Boosted logarithms of remaining lifetimes.
pub struct BoostedLogarithm<'a> {
    encoder: Encoder<'a>,
    ensemble: Ensemble,
}

impl<'a> Encoder<'a> {
    /// Sizes and hours count as they are; other categories are told by the mean logarithm of their lifetimes.
    fn new(lifetimes: &'a Lifetimes, rows: &[u32], until_s: i64) -> Self {
        let logarithm = |row: &u32| log10_hours(lifetimes.known_by(*row, until_s).middle_s());
        let mean = rows.iter().map(logarithm).sum::<f64>() / rows.len().max(1) as f64;
        let numbers = lifetimes.columns().iter().enumerate().map(|(place, column)| {
            let names = lifetimes.names(place);
            if matches!(column, Column::Cores | Column::BatchVms | Column::BatchDoublings | Column::Hour) {
                return names
                    .iter()
                    .map(|name| name.trim_end_matches('+').parse().unwrap_or(f32::NAN))
                    .collect();
            }

            let mut sums = vec![(SHRINKAGE * mean, SHRINKAGE); names.len()];
            for row in rows {
                let sum = &mut sums[lifetimes.value(*row, place) as usize];
                (sum.0, sum.1) = (sum.0 + logarithm(row), sum.1 + 1.0);
            }
            sums.into_iter().map(|(sum, count)| (sum / count) as f32).collect()
        });
        let numbers = numbers.collect();
        Self { lifetimes, numbers }
    }

    fn push(&self, examples: &mut Examples, row: u32, more: f32) {
        for (place, numbers) in self.numbers.iter().enumerate() {
            examples.columns[place].push(numbers[self.lifetimes.value(row, place) as usize]);
        }
        examples.columns[self.numbers.len()].push(more);
        examples.groups.push(self.lifetimes.group(row));
    }

    fn features(&self, row: u32, more: f32) -> Vec<f32> {
        let number =
            |(place, numbers): (usize, &Vec<f32>)| numbers[self.lifetimes.value(row, place) as usize];
        self.numbers.iter().enumerate().map(number).chain([more]).collect()
    }

    fn none(&self) -> Examples {
        Examples { columns: vec![Vec::new(); self.numbers.len() + 1], groups: Vec::new() }
    }

    fn train(
        mut examples: Examples,
        target: Target<'_>,
        options: BoostedOptions,
    ) -> Result<Ensemble, BoostedError> {
        // Numbered anew: a group has the number of a row at most.
        let mut numbers = BTreeMap::new();
        for group in &mut examples.groups {
            let next = numbers.len() as u32;
            *group = *numbers.entry(*group).or_insert(next);
        }

        let how = BoostOptions {
            rounds: ROUNDS,
            early_stopping: Some(EarlyStopping { hold_out: 0.15, patience: 20 }),
            groups: Some(&examples.groups),
            ..BoostOptions::default()
        };
        let table = FeatureTable::from_columns(examples.columns)?;
        Ok(train_boosted(&table, target, None, &how, options.seed, options.threads)?)
    }
}

impl<'a> BoostedLogarithm<'a> {
    /// Learns from those of these rows that had ended by then.
    pub fn train(
        lifetimes: &'a Lifetimes,
        rows: &[u32],
        until_s: i64,
        options: BoostedOptions,
    ) -> Result<Self, BoostedError> {
        let encoder = Encoder::new(lifetimes, rows, until_s);
        let (mut examples, mut values) = (encoder.none(), Vec::new());
        for row in sampled(rows) {
            let known = lifetimes.known_by(row, until_s);
            for eighths in (0..UPTIMES).filter(|_| known.ended()) {
                let uptime_s = known.middle_s() * f32::from(eighths) / f32::from(UPTIMES);
                encoder.push(&mut examples, row, log10_hours(uptime_s) as f32);
                values.push(log10_hours((known.middle_s() - uptime_s).min(HORIZON_S)) as f32);
            }
        }

        let ensemble = Encoder::train(examples, Target::Values(&values), options)?;
        Ok(Self { encoder, ensemble })
    }

    /// The lifetime of a VM, for which one curve stands that falls in one bin.
    pub fn curve(&self, row: u32) -> SurvivalCurve {
        let mut said = [0.0];
        self.ensemble.predict(&self.encoder.features(row, log10_hours(0.0) as f32), &mut said);
        let lives_s = 3_600.0 * libm::pow(10.0, f64::from(said[0]));
        let mut hazards = [0.0; BINS];
        hazards[bin_of(lives_s as f32).min(BINS - 1)] = 1.0;
        SurvivalCurve::from_hazards(&hazards)
    }
}

impl<'a> BoostedHazards<'a> {
    /// Learns from these rows as they were known by then; `root` are the hazards of all, for the bins of a period.
    pub fn train(
        lifetimes: &'a Lifetimes,
        rows: &[u32],
        until_s: i64,
        root: &SurvivalCurve,
        options: BoostedOptions,
    ) -> Result<Self, BoostedError> {
        let encoder = Encoder::new(lifetimes, rows, until_s);
        let (mut examples, mut ends, mut begun) = (encoder.none(), Vec::new(), [0; PERIODS]);
        for row in sampled(rows) {
            let known: LifetimeSpan = lifetimes.known_by(row, until_s);
            let last = bin_of(known.middle_s()) / 4;
            // Whoever could not be seen for a whole period says nothing of it, ended or not.
            let seen = bin_of(lifetimes.seen_s(row, until_s)) / 4;
            for (period, begun) in begun.iter_mut().enumerate().take(seen.min(last + 1)) {
                encoder.push(&mut examples, row, period as f32);
                ends.push(u32::from(known.ended() && period == last));
                *begun += 1;
            }
        }

        let last_period = begun.iter().rposition(|count| *count >= MIN_BEGUN).unwrap_or(0);
        let target = Target::Classes { labels: &ends, classes: 2 };
        let ensemble = Encoder::train(examples, target, options)?;
        let shares = root.shares();
        let root = std::array::from_fn(|bin| 1.0 - f64::from(shares[bin + 1] / shares[bin]));
        Ok(Self { encoder, ensemble, last_period, root })
    }

    /// The curve of a VM: within a period it falls as the curve of all does.
    pub fn curve(&self, row: u32) -> SurvivalCurve {
        let mut hazards = self.root;
        for (period, bins) in hazards.chunks_mut(4).enumerate() {
            let mut said = [0.0; 2];
            let features = self.encoder.features(row, period.min(self.last_period) as f32);
            self.ensemble.predict(&features, &mut said);
            let of_all: f64 = bins.iter().map(|hazard| libm::log1p(-hazard)).sum();
            let times = libm::log1p(-f64::from(said[1]).min(0.999_999)) / of_all.min(-1e-9);
            bins.iter_mut().for_each(|hazard| *hazard = -libm::expm1(times * libm::log1p(-*hazard)));
        }
        SurvivalCurve::from_hazards(&hazards)
    }
}

/// At most [`MAX_VMS`] of these rows.
fn sampled(rows: &[u32]) -> impl Iterator<Item = u32> {
    rows.iter().copied().step_by(rows.len().div_ceil(MAX_VMS).max(1))
}

/// As LAVA has it: of hours, at least a second.
fn log10_hours(time_s: f32) -> f64 {
    libm::log10(f64::from(time_s.max(1.0)) / 3_600.0)
}
