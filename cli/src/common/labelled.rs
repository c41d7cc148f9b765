//! Labelled weeks: what labellers learn from, and are scored by.

use std::num::NonZeroUsize;
use std::path::Path;

use anyhow::{Context, bail};
use ballast_predict::label::ensemble::{Apart, Learnt, apart, out_of_fold, wary_threshold};
use ballast_predict::label::generate::Generator;
use ballast_predict::label::{
    Compare, FirstDay, Reason, Series, autocorrelation_score, features, fourier_score,
};
use ballast_usage::week::Week;

use crate::common::weeks::{VmWeek, rows};

/// Labels that count as user-facing, and those that do not.
const POSITIVE: [&str; 2] = ["user-facing", "possibly-user-facing"];
const NEGATIVE: [&str; 2] = ["non-user-facing", "machine-generated"];
/// Thresholds of the baselines that keep 99 % of the user-facing weeks of a synthetic data set
/// (`criticality_synthetic`); `ballast-lab experiment labels` scores them on two generators that did not choose them.
pub const ACF: f64 = 1.4358;
pub const FFT: f64 = 0.3565;
/// Draws of all learning.
const SEED: u64 = 1;

pub struct Labelled {
    weeks: Vec<Week>,
    /// Each week's features, or why there are none: they take longer than everything else.
    features: Vec<Result<Vec<f32>, Reason>>,
    /// Whether each is user-facing.
    pub truth: Vec<bool>,
    /// What each was drawn as, or its label in the file.
    pub kinds: Vec<String>,
}

impl Labelled {
    /// Reads `id,label,u0…u239`; weeks that cannot be looked at are left out.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let file = path.display();
        let (mut weeks, mut truth, mut kinds) = (Vec::new(), Vec::new(), Vec::new());
        let mut take = |extra: &[String], batch: Vec<VmWeek>| {
            let Some(place) = extra.iter().position(|name| name == "label") else {
                bail!("{file}:1: no column \"label\": needed are id, label and u0 to u239");
            };
            for vm in batch {
                let label = vm.extra[place].as_str();
                let user_facing = POSITIVE.contains(&label);
                if !user_facing && !NEGATIVE.contains(&label) {
                    bail!(
                        "{file}: id {}: label = {label:?}: allowed are {POSITIVE:?} and {NEGATIVE:?}",
                        vm.id
                    );
                }

                if let Ok(week) = vm.week {
                    weeks.push(week);
                    truth.push(user_facing);
                    kinds.push(label.to_owned());
                }
            }

            Ok(())
        };

        rows(path, &mut take)?;

        if !truth.contains(&true) {
            bail!("{file}: no user-facing week: needed is one at least");
        }

        Ok(Self::new(weeks, truth, kinds))
    }

    fn new(weeks: Vec<Week>, truth: Vec<bool>, kinds: Vec<String>) -> Self {
        let features = weeks.iter().map(features).collect();
        Self { weeks, features, truth, kinds }
    }

    /// So many weeks of every kind that a generator draws.
    pub fn drawn(generator: Generator, each: usize) -> Self {
        let drawn = generator.weeks(SEED, each);
        let (truth, kinds) = drawn.iter().map(|week| (week.user_facing, week.kind.to_owned())).unzip();
        Self::new(drawn.into_iter().map(|week| week.week).collect(), truth, kinds)
    }

    pub fn weeks(&self) -> &[Week] {
        &self.weeks
    }

    /// The scores of a method that needs no learning, larger ones for user-facing weeks. What cannot be told
    /// scores highest, what never changes lowest.
    pub fn scores(&self, score: fn(&Series) -> f64) -> Vec<f64> {
        let series = self.weeks.iter().map(|week| Series::new(week, FirstDay::Own));
        series.map(|series| series.map_or_else(unlooked, |series| -score(&series))).collect()
    }

    /// Features of weeks that have some, and whether each is user-facing.
    fn table(&self) -> (Vec<Vec<f32>>, Vec<bool>) {
        let rows = self.features.iter().zip(&self.truth);
        rows.filter_map(|(row, truth)| Some((row.as_ref().ok()?.clone(), *truth))).unzip()
    }

    /// Scores by models that did not learn from the scored week; lower truth counts only what has features.
    pub fn out_of_fold(&self, threads: NonZeroUsize) -> anyhow::Result<Vec<f64>> {
        let (rows, truth) = self.table();
        let mut scores = out_of_fold(&rows, &truth, SEED, threads)?.into_iter();
        let scores = self.features.iter().map(|row| match row {
            Ok(_) => scores.next().unwrap_or(1.0),
            Err(reason) => unlooked(*reason),
        });
        Ok(scores.collect())
    }

    /// What is said of each week by models that have not seen its part, where that can be.
    pub fn apart(&self, parts: &[usize], threads: NonZeroUsize) -> anyhow::Result<Vec<Option<Apart>>> {
        let (rows, truth) = self.table();
        let known = self.features.iter().zip(parts).filter(|(row, _)| row.is_ok());
        let parts: Vec<usize> = known.map(|(_, part)| *part).collect();
        let mut scores = apart(&rows, &truth, &parts, SEED, threads)?.into_iter();
        let scores = self.features.iter().map(|row| match row {
            Ok(_) => scores.next().flatten(),
            Err(reason) => Some(Apart { score: unlooked(*reason), limits: [0.5; 2] }),
        });
        Ok(scores.collect())
    }

    pub fn train(&self, threads: NonZeroUsize) -> anyhow::Result<Learnt> {
        let (rows, truth) = self.table();
        Learnt::train(&rows, &truth, SEED, threads).context("learning from labelled weeks")
    }

    /// Scores by what was learnt elsewhere.
    pub fn scored_by(&self, learnt: &Learnt) -> Vec<f64> {
        let scores = self.features.iter().map(|row| match row {
            Ok(row) => learnt.score_features(row),
            Err(reason) => unlooked(*reason),
        });
        scores.collect()
    }

    /// What all of them teach, and the threshold for 99 % recall by out-of-fold scores.
    pub fn learn(&self, threads: NonZeroUsize) -> anyhow::Result<(Learnt, f64)> {
        let threshold = wary_threshold(&self.out_of_fold(threads)?, &self.truth, 0.99);
        Ok((self.train(threads)?, threshold))
    }
}

/// A method's name, and its score of a series.
type Method = (&'static str, fn(&Series) -> f64);

/// Pattern, autocorrelation and Fourier scores, by the methods' names.
pub const PLAIN: [Method; 3] = [
    ("pattern", |series| Compare::of_series(series).compare8),
    ("acf", autocorrelation_score),
    ("fft", fourier_score),
];

fn unlooked(reason: Reason) -> f64 {
    if reason == Reason::Flat { f64::NEG_INFINITY } else { f64::INFINITY }
}
