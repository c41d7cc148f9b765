//! A labeller that learns from labelled weeks: boosted trees and a forest over [`features`].

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use ballast_forest::{
    BoostOptions, Ensemble, FeatureTable, Features, ForestOptions, TableError, Target, TrainError,
    train_boosted, train_forest,
};
use ballast_types::SplitMix64;
use thiserror::Error;

use super::{Reason, features};
use ballast_usage::week::Week;

/// Parts that the weeks are dealt into for scores of weeks that were not learnt from.
pub const FOLDS: usize = 5;

/// Why nothing was learnt.
#[derive(Debug, Error)]
pub enum LearnError {
    /// One class is missing, or has fewer weeks than there are folds.
    #[error("{user_facing} user-facing and {other} other weeks: allowed are {FOLDS} or more of each")]
    Few {
        /// Weeks that can be looked at, by class.
        user_facing: usize,
        other: usize,
    },
    /// Not one row a week, or not all with the same features.
    #[error(
        "{rows} rows of {width} features or another number, for {weeks} weeks: allowed is one row a week, \
         all of a length"
    )]
    Uneven {
        rows: usize,
        width: usize,
        /// Weeks whose label was given.
        weeks: usize,
    },
    #[error(transparent)]
    FeatureTable(#[from] TableError),
    #[error(transparent)]
    Train(#[from] TrainError),
}

/// What was learnt: says how likely a week is user-facing.
#[derive(Clone, Debug, PartialEq)]
pub struct Learnt {
    boosted: Ensemble,
    forest: Ensemble,
}

impl Learnt {
    /// Learns from weeks' features and whether each is user-facing. The same rows and seed give the same
    /// answers, with however many threads.
    /// This fails if a class has too few weeks, or the rows make no table.
    pub fn train(
        rows: &[Vec<f32>],
        truth: &[bool],
        seed: u64,
        threads: NonZeroUsize,
    ) -> Result<Self, LearnError> {
        enough(rows, truth)?;
        Self::grown(rows, truth, seed, threads)
    }

    fn grown(
        rows: &[Vec<f32>],
        truth: &[bool],
        seed: u64,
        threads: NonZeroUsize,
    ) -> Result<Self, LearnError> {
        let width = rows.first().map_or(0, Vec::len);
        let column = |n: usize| rows.iter().map(|row| row[n]).collect();
        let table = FeatureTable::from_columns((0..width).map(column).collect())?;
        let labels: Vec<u32> = truth.iter().map(|t| u32::from(*t)).collect();
        let target = Target::Classes { labels: &labels, classes: 2 };
        let boosting = BoostOptions {
            rounds: 300,
            max_depth: 4,
            learning_rate: 0.06,
            min_leaf: 3,
            subsample: 0.7,
            features: Features::Count(width.div_ceil(4)),
            ..BoostOptions::default()
        };

        let growing = ForestOptions {
            trees: 200,
            min_leaf: 2,
            features: Features::Count(width.div_ceil(5)),
            ..ForestOptions::default()
        };

        Ok(Self {
            boosted: train_boosted(&table, target, None, &boosting, seed, threads)?,
            forest: train_forest(&table, target, None, &growing, seed, threads)?,
        })
    }

    /// How likely a week is user-facing, 0 to 1.
    pub fn score(&self, week: &Week) -> Result<f64, Reason> {
        Ok(self.score_features(&features(week)?))
    }

    /// The same of a week's features.
    pub fn score_features(&self, row: &[f32]) -> f64 {
        let share = |model: &Ensemble| {
            let mut out = [0.0; 2];
            model.predict(row, &mut out);
            f64::from(out[1])
        };
        f64::midpoint(share(&self.boosted), share(&self.forest))
    }
}

/// Scores of weeks by models that did not learn from them, in the weeks' order.
///
/// The weeks of each class are dealt into [`FOLDS`] parts, and what was learnt from the other parts scores
/// one.
pub fn out_of_fold(
    rows: &[Vec<f32>],
    truth: &[bool],
    seed: u64,
    threads: NonZeroUsize,
) -> Result<Vec<f64>, LearnError> {
    enough(rows, truth)?;
    let mut fold = vec![0; rows.len()];
    for class in [false, true] {
        // By a hash of place and seed: files are often sorted.
        let mut members: Vec<usize> = (0..rows.len()).filter(|n| truth[*n] == class).collect();
        members.sort_by_key(|n| SplitMix64::first(*n as u64 ^ SplitMix64::first(seed)));

        for (place, n) in members.into_iter().enumerate() {
            fold[n] = place % FOLDS;
        }
    }

    let mut scores = vec![0.0; rows.len()];

    for held_out in 0..FOLDS {
        let learn = |n: &usize| fold[*n] != held_out;
        let from: Vec<Vec<f32>> = (0..rows.len()).filter(learn).map(|n| rows[n].clone()).collect();
        let to: Vec<bool> = (0..rows.len()).filter(learn).map(|n| truth[n]).collect();
        let learnt = Learnt::grown(&from, &to, seed, threads)?;

        for n in (0..rows.len()).filter(|n| fold[*n] == held_out) {
            scores[n] = learnt.score_features(&rows[n]);
        }
    }

    Ok(scores)
}

/// Recall that thresholds are chosen for.
pub const TARGETS: [f64; 2] = [0.99, 0.98];

/// What is said of a week by who has not seen it: the score, and from which score on it is user-facing for
/// each of [`TARGETS`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Apart {
    pub score: f64,
    pub limits: [f64; 2],
}

/// Scores of weeks in parts, by what is learnt from the other parts alone, as it ships: the model is of all of
/// them, the thresholds of scores by models that did not learn from the scored week. No week has a say in its
/// own score, nor in the threshold that it is held against. Nothing is said of a part whose absence leaves too
/// few weeks of a class.
pub fn apart(
    rows: &[Vec<f32>],
    truth: &[bool],
    parts: &[usize],
    seed: u64,
    threads: NonZeroUsize,
) -> Result<Vec<Option<Apart>>, LearnError> {
    enough(rows, truth)?;
    let mut said = vec![None; rows.len()];
    let held_out: BTreeSet<usize> = parts.iter().copied().collect();

    for part in held_out {
        let others = (0..rows.len()).filter(|n| parts[*n] != part);
        let (from, is): (Vec<Vec<f32>>, Vec<bool>) = others.map(|n| (rows[n].clone(), truth[n])).unzip();
        let scores = match out_of_fold(&from, &is, seed, threads) {
            Err(LearnError::Few { .. }) => continue,
            scores => scores?,
        };
        let limits = TARGETS.map(|target| wary_threshold(&scores, &is, target));
        let learnt = Learnt::grown(&from, &is, seed, threads)?;
        for n in (0..rows.len()).filter(|n| parts[*n] == part) {
            said[n] = Some(Apart { score: learnt.score_features(&rows[n]), limits });
        }
    }

    Ok(said)
}

/// The highest score that enough user-facing weeks reach.
pub fn threshold(scores: &[f64], truth: &[bool], recall: f64) -> f64 {
    let mut positive: Vec<f64> = scores.iter().zip(truth).filter(|(_, t)| **t).map(|(s, _)| *s).collect();
    positive.sort_by(|a, b| b.total_cmp(a));
    let needed = libm::ceil(recall * positive.len() as f64 - 1e-9) as usize;
    positive.get(needed.saturating_sub(1)).copied().unwrap_or(f64::NEG_INFINITY)
}

/// The same for weeks that are yet to come: both these and those are draws, so the standard error of their
/// difference, for as many weeks as these, is added to the recall.
pub fn wary_threshold(scores: &[f64], truth: &[bool], recall: f64) -> f64 {
    let positive = truth.iter().filter(|t| **t).count().max(1) as f64;
    let error = (2.0 * recall * (1.0 - recall) / positive).sqrt();
    threshold(scores, truth, (recall + error).min(1.0))
}

fn enough(rows: &[Vec<f32>], truth: &[bool]) -> Result<(), LearnError> {
    let width = rows.first().map_or(0, Vec::len);
    if rows.len() != truth.len() || rows.iter().any(|row| row.len() != width) {
        return Err(LearnError::Uneven { rows: rows.len(), width, weeks: truth.len() });
    }
    let user_facing = truth.iter().filter(|t| **t).count();
    let other = truth.len() - user_facing;
    if user_facing < FOLDS || other < FOLDS {
        return Err(LearnError::Few { user_facing, other });
    }
    Ok(())
}
