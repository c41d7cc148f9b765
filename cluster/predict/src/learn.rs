//! One forest for one question with two answers.

use core::num::NonZeroUsize;
use std::collections::BTreeMap;

use ballast_forest::{
    BoostOptions, EarlyStopping, Ensemble, FeatureTable, Features, ForestOptions, Target, TrainError,
    train_boosted, train_forest_out_of_bag,
};
use ballast_types::SplitMix64;

use crate::features::COLUMNS;
use crate::model::Algorithm;

/// The paper gives no sizes. These are within those that are usual (papers-spec A2), small enough that both
/// stages of the P95 model answer within five microseconds.
const TREES: u32 = 48;
const FOREST_DEPTH: u32 = 10;
/// By weight: at least so many deployments of one VM, or a few of many.
const LEAF: u32 = 10;
/// A third of the features: most of them tell of the other question.
const TRIED: usize = COLUMNS / 3;
const ROUNDS: u32 = 100;
const BOOST_DEPTH: u32 = 5;
const RATE: f32 = 0.1;
/// Of the batch weeks of two generators our labeller, as it ships, calls this share user-facing (`ballast-lab experiment
/// labels`: 16 and 17 %).
const FALSE_USER_FACING: f64 = 0.16;
/// Parts that deployments are dealt into where trees see all rows.
const FOLDS: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub algorithm: Algorithm,
    /// The seed of what is random in that.
    pub seed: u64,
    /// How many threads learn; it changes no result.
    pub threads: NonZeroUsize,
    /// Who said which VMs are user-facing.
    pub classes: ClassSource,
}

impl Default for Options {
    fn default() -> Self {
        let algorithm = Algorithm::default();
        Self { algorithm, seed: 1, threads: NonZeroUsize::MIN, classes: ClassSource::Operator }
    }
}

/// Who said which VMs of the past are user-facing, and how often that is wrong on the safe side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassSource {
    /// Somebody who knows.
    Operator,
    /// Our labeller, from CPU use: what cannot be told from people's use is user-facing.
    Labeller,
}

impl ClassSource {
    /// For each VM that is called batch and is: how many batch VMs are called user-facing.
    pub(crate) fn mistaken_per_batch(self) -> f64 {
        match self {
            Self::Operator => 0.0,
            Self::Labeller => FALSE_USER_FACING / (1.0 - FALSE_USER_FACING),
        }
    }
}

/// Learns, and says of every row how likely `true` is to who has not seen its group: trees that did not draw
/// it (random forest), or what was learnt from other groups (boosting). NaN where nobody can say.
pub(crate) fn learn(
    table: &FeatureTable,
    answers: &[bool],
    groups: &[u32],
    options: &Options,
    part: u64,
) -> Result<(Ensemble, Vec<f32>), TrainError> {
    let labels: Vec<u32> = answers.iter().map(|answer| u32::from(*answer)).collect();
    let target = Target::Classes { labels: &labels, classes: 2 };

    // A deployment that shares its fate weighs more than a VM, and less than all of its own.
    let mut sizes: BTreeMap<u32, f32> = BTreeMap::new();
    groups.iter().for_each(|group| *sizes.entry(*group).or_default() += 1.0);
    let whole: Vec<f32> = groups.iter().map(|group| 1.0 / sizes[group].sqrt()).collect();

    // Each part has chance of its own.
    let (seed, threads) = (options.seed.wrapping_add(part << 32), options.threads);
    match options.algorithm {
        Algorithm::RandomForest => {
            let how = ForestOptions {
                trees: TREES,
                max_depth: FOREST_DEPTH,
                min_leaf: LEAF,
                features: Features::Count(TRIED),
                groups: Some(groups),
                ..ForestOptions::default()
            };

            let (ensemble, shares) =
                train_forest_out_of_bag(table, target, Some(&whole), &how, seed, threads)?;
            Ok((ensemble, shares.chunks(2).map(|shares| shares[1]).collect()))
        }
        Algorithm::GradientBoosting => {
            let boost = |weights: &[f32]| boosted(table, target, weights, groups, seed, threads);
            let mut shares = vec![f32::NAN; answers.len()];
            let fold = |group: &u32| SplitMix64::first(u64::from(*group) ^ SplitMix64::first(seed)) % FOLDS;
            let folds: Vec<u64> = groups.iter().map(fold).collect();

            for held_out in (0..FOLDS).filter(|held_out| folds.contains(held_out)) {
                let weight = |(fold, whole): (&u64, &f32)| if *fold == held_out { 0.0 } else { *whole };
                let weights: Vec<f32> = folds.iter().zip(&whole).map(weight).collect();
                let model = match boost(&weights) {
                    // All are of one fold.
                    Err(TrainError::NoRows) => continue,
                    model => model?,
                };
                // Never refused: it was trained on this very table.
                let all = model.predict_all(table, threads).unwrap_or_default();
                for (row, says) in all.chunks(2).enumerate().filter(|(row, _)| folds[*row] == held_out) {
                    shares[row] = says[1];
                }
            }

            Ok((boost(&whole)?, shares))
        }
    }
}

fn boosted(
    table: &FeatureTable,
    target: Target<'_>,
    weights: &[f32],
    groups: &[u32],
    seed: u64,
    threads: NonZeroUsize,
) -> Result<Ensemble, TrainError> {
    let how = BoostOptions {
        rounds: ROUNDS,
        max_depth: BOOST_DEPTH,
        learning_rate: RATE,
        early_stopping: Some(EarlyStopping { hold_out: 0.15, patience: 20 }),
        groups: Some(groups),
        ..BoostOptions::default()
    };
    match train_boosted(table, target, Some(weights), &how, seed, threads) {
        // Too few groups to hold any out.
        Err(TrainError::NoRows) => {
            let how = BoostOptions { early_stopping: None, ..how };
            train_boosted(table, target, Some(weights), &how, seed, threads)
        }
        model => model,
    }
}
