//! One forest for one question with two answers.

use core::num::NonZeroUsize;

use ballast_forest::{
    BoostOptions, EarlyStopping, Ensemble, FeatureTable, Features, ForestOptions, Target, TrainError,
    train_boosted, train_forest_out_of_bag,
};

use crate::model::Algorithm;

/// The paper gives no sizes. These are within those that are usual (papers-spec A2), small enough that both
/// stages of the P95 model answer within five microseconds.
const TREES: u32 = 48;
const FOREST_DEPTH: u32 = 10;
const LEAF: u32 = 5;
const ROUNDS: u32 = 100;
const BOOST_DEPTH: u32 = 5;
const RATE: f32 = 0.1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub algorithm: Algorithm,
    /// The seed of what is random in that.
    pub seed: u64,
    /// How many threads learn; it changes no result.
    pub threads: NonZeroUsize,
}

/// Learns, and says of every row how likely `true` is: by trees that have not seen it where there are such
/// (random forest), else by all.
pub(crate) fn learn(
    table: &FeatureTable,
    answers: &[bool],
    options: &Options,
    part: u64,
) -> Result<(Ensemble, Vec<f32>), TrainError> {
    let labels: Vec<u32> = answers.iter().map(|answer| u32::from(*answer)).collect();
    let target = Target::Classes { labels: &labels, classes: 2 };

    // Each part has chance of its own.
    let (seed, threads) = (options.seed.wrapping_add(part << 32), options.threads);
    let (ensemble, shares) = match options.algorithm {
        Algorithm::RandomForest => {
            let how = ForestOptions {
                trees: TREES,
                max_depth: FOREST_DEPTH,
                min_leaf: LEAF,
                features: Features::Sqrt,
                bootstrap: true,
            };

            train_forest_out_of_bag(table, target, None, &how, seed, threads)?
        }
        Algorithm::GradientBoosting => {
            let how = BoostOptions {
                rounds: ROUNDS,
                max_depth: BOOST_DEPTH,
                learning_rate: RATE,
                early_stopping: Some(EarlyStopping { hold_out: 0.15, patience: 20 }),
                ..BoostOptions::default()
            };

            let ensemble = train_boosted(table, target, None, &how, seed, threads)?;

            // Never refused: it was trained on this very table.
            let shares = ensemble.predict_all(table, threads).unwrap_or_default();

            (ensemble, shares)
        }
    };

    let shares = shares.chunks(2).map(|shares| shares[1]).collect();

    Ok((ensemble, shares))
}
