//! From VMs of the past to a model with its scores.

use ballast_forest::{Ensemble, FeatureTable};
use ballast_types::VmClass;
use thiserror::Error;

use crate::answer::{CONFIDENT, ClassAnswer, P95Answer};
use crate::data::{Question, Split, TooFew, TrainingRows, prepared};
use crate::features::{COLUMN_NAMES, COLUMNS, FeatureRow};
use crate::file::{About, ModelFile};
use crate::fleet::{Odds, SyntheticFleet};
use crate::history::{Arrival, History, arrivals};
pub use crate::learn::Options;
use crate::learn::learn;
use crate::model::{ClassModel, Model, NEVER, P95Model};
use crate::score::{Scored, Scores};
use crate::vm::{Bucket, VmHistory};

/// Of user-facing VMs, so many must be recognised where the threshold is chosen: a little more than the 99 %
/// that are to be reached on VMs not seen yet.
const USER_FACING_RECALL: f64 = 0.995;

/// Why there is no model.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum TrainError {
    /// Too little to learn from.
    #[error(transparent)]
    TooFew(#[from] TooFew),
    /// The forest refuses to learn.
    #[error("{0}")]
    Forest(String),
}

/// Learns from these VMs, and scores on those of them that came last.
pub fn train(vms: &[VmHistory], options: &Options) -> Result<ModelFile, TrainError> {
    let split = Split::of(vms);
    let (types, arrivals) = prepared(vms, split);
    let class_rows = split.class(vms, &arrivals)?;
    let p95_rows = split.p95(vms, &arrivals)?;
    let class = class_model(&class_rows, options)?;
    let p95 = p95_model(&p95_rows, options)?;
    let model = Model { types, class, p95 };
    let (class, p95) = score(&model, vms, split, &arrivals, None)?;
    let history_until_s = split.horizon_s + 1;
    let about = About {
        algorithm: options.algorithm,
        seed: options.seed,
        features: COLUMN_NAMES.map(str::to_owned).to_vec(),
        from_s: split.from_s,
        until_s: split.until_s,
        history_until_s,
        rows: [class_rows.fit.len(), p95_rows.fit.len()].map(|rows| rows as u64),
        class,
        p95,
    };

    Ok(ModelFile { about, model, history: History::of(vms, history_until_s) })
}

/// Scores a model, its own or another, on the hold-out of these VMs: class, and P95 bucket.
pub fn score_on(model: &Model, vms: &[VmHistory]) -> Result<(Scores, Scores), TrainError> {
    score(model, vms, Split::of(vms), &arrivals(vms, &model.types), None)
}

/// The same on a synthetic fleet, with the ceiling of what anybody can reach.
pub fn score_synthetic(model: &Model, synthetic: &SyntheticFleet) -> Result<(Scores, Scores), TrainError> {
    let vms = &synthetic.vms;
    score(model, vms, Split::of(vms), &arrivals(vms, &model.types), Some(&synthetic.odds))
}

/// Scores a model on the arrivals of a hold-out; `odds` are the true probabilities where somebody knows them.
fn score(
    model: &Model,
    vms: &[VmHistory],
    split: Split,
    arrivals: &[Arrival],
    odds: Option<&[Odds]>,
) -> Result<(Scores, Scores), TrainError> {
    let rows = split.class_held_out(vms, arrivals)?;
    let class = class_scores(&rows, odds, |row, _| (model.class.answer(row), model.class.batch(row)));
    let rows = split.p95_held_out(vms, arrivals)?;
    let p95 = p95_scores(&rows, odds, |row, _| (model.p95.answer(row), model.p95.shares(row)));
    Ok((class, p95))
}

/// Scores answers about the class; they come with the probability of batch. PredictedValue are row and VM.
pub(crate) fn class_scores(
    rows: &TrainingRows<bool>,
    odds: Option<&[Odds]>,
    answer: impl Fn(&FeatureRow, usize) -> (ClassAnswer, f32),
) -> Scores {
    let scored = |n: usize| {
        let truth = usize::from(rows.answers[n]);
        let (answer, batch) = answer(&rows.rows[n], rows.vms[n]);
        Scored {
            truth,
            said: usize::from(answer.class == VmClass::NonUserFacing),
            confidence: answer.confidence,
            loss: brier(&[1.0 - batch, batch], truth),
            ceiling: odds.map_or(f64::NAN, |odds| odds[rows.vms[n]].class_ceiling()),
        }
    };
    Scores::of(2, &(0..rows.len()).map(scored).collect::<Vec<_>>())
}

/// Scores answers about the bucket; they come with the probability of each. PredictedValue are row and VM.
pub(crate) fn p95_scores(
    rows: &TrainingRows<Bucket>,
    odds: Option<&[Odds]>,
    answer: impl Fn(&FeatureRow, usize) -> (P95Answer, [f32; 4]),
) -> Scores {
    let scored = |n: usize| {
        let truth = rows.answers[n].index();
        let (answer, shares) = answer(&rows.rows[n], rows.vms[n]);
        Scored {
            truth,
            said: answer.bucket.index(),
            confidence: answer.confidence,
            loss: brier(&shares, truth),
            ceiling: odds.map_or(f64::NAN, |odds| odds[rows.vms[n]].bucket_ceiling()),
        }
    };
    Scores::of(4, &(0..rows.len()).map(scored).collect::<Vec<_>>())
}

/// Squared error of probabilities.
fn brier(shares: &[f32], truth: usize) -> f64 {
    let error = |(n, share): (usize, &f32)| f64::from(share - f32::from(u8::from(n == truth)));
    shares.iter().enumerate().map(error).map(|error| error * error).sum()
}

pub(crate) fn class_model(question: &Question<bool>, options: &Options) -> Result<ClassModel, TrainError> {
    let (batch, _) = fit(&question.fit.rows, &question.fit.answers, options, 0)?;
    let mut model = ClassModel { batch, threshold: CONFIDENT };
    let shares: Vec<_> = question.tune.rows.iter().map(|row| model.batch(row)).collect();
    model.threshold = threshold(&shares, &question.tune.answers);
    Ok(model)
}

/// The lowest threshold, from [`CONFIDENT`] on, that keeps enough user-facing VMs from being called batch.
pub(crate) fn threshold(batch_shares: &[f32], is_batch: &[bool]) -> f32 {
    let pairs = batch_shares.iter().zip(is_batch);
    let mut user_facing: Vec<f32> = pairs.filter(|(_, batch)| !**batch).map(|(share, _)| *share).collect();
    user_facing.sort_by(f32::total_cmp);
    // All from this place on may be mistaken, and none of them is to be where the threshold is met exactly.
    let least = libm::ceil(user_facing.len() as f64 * USER_FACING_RECALL) as usize;
    match least.checked_sub(1).and_then(|place| user_facing.get(place)) {
        Some(share) => share.next_up().clamp(CONFIDENT, NEVER),
        None => NEVER,
    }
}

pub(crate) fn p95_model(question: &Question<Bucket>, options: &Options) -> Result<P95Model, TrainError> {
    let TrainingRows { rows, answers, .. } = &question.fit;
    let is_high: Vec<bool> = answers.iter().map(|bucket| bucket.index() >= 2).collect();
    let (high, shares) = fit(rows, &is_high, options, 1)?;
    let side = |side: usize| {
        let (mut of_side, mut upper) = (Vec::new(), Vec::new());
        for ((row, bucket), high) in rows.iter().zip(answers).zip(&shares) {
            let share = if side == 1 { *high } else { 1.0 - high };

            // Only VMs that the first stage sends here for sure (paper, III-B), and rightly.
            if bucket.index() / 2 == side && share >= CONFIDENT {
                of_side.push(*row);
                upper.push(bucket.index() % 2 == 1);
            }
        }

        Ok::<_, TrainError>(fit(&of_side, &upper, options, 2 + side as u64)?.0)
    };

    Ok(P95Model { upper: [side(0)?, side(1)?], high })
}

fn fit(
    rows: &[FeatureRow],
    answers: &[bool],
    options: &Options,
    part: u64,
) -> Result<(Ensemble, Vec<f32>), TrainError> {
    learn(&table(rows)?, answers, options, part).map_err(refused)
}

fn table(rows: &[FeatureRow]) -> Result<FeatureTable, TrainError> {
    let column = |column: usize| rows.iter().map(|row| row[column]).collect();
    FeatureTable::from_columns((0..COLUMNS).map(column).collect()).map_err(refused)
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err wants")]
fn refused(error: impl ToString) -> TrainError {
    TrainError::Forest(error.to_string())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::fleet;
    use crate::model::Algorithm;
    use std::sync::OnceLock;

    fn options(algorithm: Algorithm) -> Options {
        Options { algorithm, seed: 1, threads: NonZeroUsize::MIN }
    }

    fn fleet(vms: usize) -> SyntheticFleet {
        fleet::make(&fleet::Options { vms, ..fleet::Options::default() })
    }

    /// A small model by boosting, made once.
    pub(crate) fn small() -> ModelFile {
        static SMALL: OnceLock<ModelFile> = OnceLock::new();
        let make = || train(&fleet(4000).vms, &options(Algorithm::GradientBoosting)).unwrap();
        SMALL.get_or_init(make).clone()
    }

    #[test]
    fn threads_and_repetition_change_nothing() {
        let vms = fleet(4000).vms;
        for algorithm in Algorithm::ALL {
            let one = train(&vms, &options(algorithm)).unwrap().encode().unwrap();
            let two = Options { threads: NonZeroUsize::new(3).unwrap(), ..options(algorithm) };
            assert_eq!(train(&vms, &two).unwrap().encode().unwrap(), one, "{algorithm:?}");
        }
    }

    #[test]
    fn what_was_learnt_beats_the_constant_answers_by_far() {
        let synthetic = fleet(20_000);
        for algorithm in Algorithm::ALL {
            let file = train(&synthetic.vms, &options(algorithm)).unwrap();
            let (class, p95) = score_synthetic(&file.model, &synthetic).unwrap();
            // Always user-facing would be right so often, and always the commonest bucket so often.
            let share = |scores: &Scores, n: usize| scores.each[n].rows as f64 / scores.rows as f64;
            assert!(class.accuracy_all > share(&class, 0) + 0.05, "{algorithm:?}: {class:?}");
            let commonest = (0..4).map(|n| share(&p95, n)).fold(0.0, f64::max);
            assert!(p95.accuracy_all > commonest + 0.3, "{algorithm:?}: {p95:?}");
            // Nobody is better than the best but by luck.
            assert!(p95.accuracy_all < p95.ceiling_all + 0.02, "{algorithm:?}: {p95:?}");
            assert_eq!((&file.about.class.each, file.about.p95.rows), (&class.each, p95.rows));
        }
    }

    #[test]
    fn nothing_is_learnt_from_the_hold_out() {
        let mut vms = fleet(4000).vms;
        let split = Split::of(&vms);
        let before = train(&vms, &options(Algorithm::GradientBoosting)).unwrap();
        let turned = |class| match class {
            VmClass::UserFacing => VmClass::NonUserFacing,
            VmClass::NonUserFacing => VmClass::UserFacing,
        };
        for vm in vms.iter_mut().filter(|vm| vm.observed_s() >= split.until_s) {
            vm.class = vm.class.map(turned);
            vm.p95_cpu = vm.p95_cpu.map(|p95| 100.0 - p95);
        }
        let after = train(&vms, &options(Algorithm::GradientBoosting)).unwrap();
        assert_eq!(after.model, before.model);
        assert_ne!(after.about.p95, before.about.p95);
    }

    #[test]
    fn the_threshold_keeps_user_facing_vms_from_being_called_batch() {
        let shares: Vec<f32> = (0..1000).map(|n| n as f32 / 1000.0).collect();
        // All user-facing: 5 of 1000 may be mistaken.
        let found = threshold(&shares, &[false; 1000]);
        assert_eq!(shares.iter().filter(|share| **share >= found).count(), 5);
        // None above the gate: the gate.
        assert_eq!(threshold(&[0.1, 0.2, 0.9], &[false, false, true]), CONFIDENT);
        assert_eq!(threshold(&[0.9], &[true]), NEVER);
        // Equal shares are mistaken together or not at all.
        assert!(threshold(&[0.8; 1000], &[false; 1000]) > 0.8);
    }

    #[test]
    fn too_little_is_refused_by_name() {
        let vms = fleet(200).vms;
        let error = train(&vms, &options(Algorithm::RandomForest)).unwrap_err().to_string();
        assert!(error.contains("VMs; at least 20 are needed"), "{error}");
        assert!(train(&[], &options(Algorithm::RandomForest)).is_err());
    }
}
