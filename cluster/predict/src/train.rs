//! From VMs of the past to a model with its scores.

use std::collections::{BTreeMap, BTreeSet};

use ballast_forest::{Ensemble, FeatureTable};
use ballast_types::VmClass;
use thiserror::Error;

use crate::answer::{CONFIDENT, ClassAnswer, P95Answer};
use crate::calibrate::Calibration;
use crate::data::{Prepared, Question, Split, TooFew, TrainingRows};
use crate::features::{COLUMN_NAMES, COLUMNS, FeatureRow};
use crate::file::{About, ModelFile};
use crate::fleet::Odds;
use crate::history::History;
use crate::learn::learn;
pub use crate::learn::{ClassSource, Options};
use crate::model::{ClassModel, Model, NEVER, P95Model, likeliest, second, staged};
use crate::score::{Scored, Scores};
use crate::vm::{Bucket, VmHistory};

/// Of user-facing VMs, so many must be recognised by trees that have not seen them: a little more than the
/// 99 % that are to be reached on VMs to come.
const USER_FACING_RECALL: f64 = 0.995;

/// Of user-facing VMs, so many shall be recognised; a new model may recognise fewer than the old one as long
/// as it reaches this.
const RECALL_ENOUGH: f64 = 0.99;

/// Why there is no model.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum TrainError {
    #[error(transparent)]
    TooFew(#[from] TooFew),
    #[error("{0}")]
    Forest(String),
}

/// What was learnt from the older part of these VMs, and how good it is on the newest.
#[derive(Debug)]
pub struct Trial<'a> {
    vms: &'a [VmHistory],
    split: Split,
    class: Question<bool>,
    p95: Question<Bucket>,
    pub model: Model,
    /// Scores on the hold-out: class, and P95 bucket.
    pub scores: (Scores, Scores),
}

/// Why the new scores (class, P95) are worse than the old ones, if they are: the gate before a model is replaced.
pub fn worse(new: (&Scores, &Scores), old: (&Scores, &Scores), classes: ClassSource) -> Option<String> {
    let recall = |scores: &Scores| user_facing_recall(scores, classes);
    let (now, before) = (recall(new.0), recall(old.0));
    if now < RECALL_ENOUGH && now < before {
        return Some(format!(
            "user-facing recall {now:.4} is below {RECALL_ENOUGH}, and below the old model's {before:.4}"
        ));
    }
    let loss = |scores: (&Scores, &Scores)| scores.0.loss + scores.1.loss;
    let (now, before) = (loss(new), loss(old));
    // A loss that is no number is worse, too.
    let fine = now <= before;
    (!fine).then(|| format!("loss {now:.5} on the hold-out is above the old model's {before:.5}"))
}

/// The share of user-facing VMs that is recognised, less those whose label is to be expected to be wrong.
fn user_facing_recall(scores: &Scores, classes: ClassSource) -> f64 {
    let [user_facing, batch] = scores.each[..] else { return f64::NAN };
    let wrong = |batch: f64| classes.mistaken_per_batch() * batch;
    let recognised = if batch.rows > 0 { batch.rows as f64 * batch.recall } else { 0.0 };
    let missed = user_facing.rows as f64 * (1.0 - user_facing.recall);
    let missed = (missed - wrong(recognised)).max(0.0);
    1.0 - missed / (user_facing.rows as f64 - wrong(batch.rows as f64)).max(missed)
}

/// Learns from these VMs: scores on those of them that came last, then learns from all of them.
pub fn train(vms: &[VmHistory], options: &Options) -> Result<ModelFile, TrainError> {
    Trial::new(vms, options)?.learn_all(options)
}

impl<'a> Trial<'a> {
    pub fn new(vms: &'a [VmHistory], options: &Options) -> Result<Self, TrainError> {
        let prepared = Prepared::new(vms);
        let (class, p95) = (prepared.class()?, prepared.p95()?);
        let model = Model { class: class_model(&class.fit, options)?, p95: p95_model(&p95.fit, options)? };
        let scores = score(&model, &class, &p95, None);
        Ok(Self { vms, split: prepared.split, class, p95, model, scores })
    }

    /// Scores another model on the same VMs.
    pub fn score(&self, model: &Model) -> (Scores, Scores) {
        score(model, &self.class, &self.p95, None)
    }

    /// Learns the same way from all VMs, the newest with them: what was held out shows how good that is.
    pub fn learn_all(self, options: &Options) -> Result<ModelFile, TrainError> {
        let Self { vms, split, class, p95, model: trial, scores } = self;
        let model = Model { class: class_model(&class.all, options)?, p95: p95_model(&p95.all, options)? };
        let history_until_s = split.horizon_s + 1;
        let deployments = |numbers: &[u32]| numbers.iter().collect::<BTreeSet<_>>().len() as u64;
        let about = About {
            algorithm: options.algorithm,
            seed: options.seed,
            features: COLUMN_NAMES.map(str::to_owned).to_vec(),
            from_s: split.from_s,
            until_s: split.until_s,
            split: [class.by, p95.by],
            history_until_s,
            rows: [class.all.len(), p95.all.len()].map(|rows| rows as u64),
            deployments: [&class.all.deployments, &p95.all.deployments].map(|numbers| deployments(numbers)),
            class: scores.0,
            p95: scores.1,
        };

        Ok(ModelFile { about, model, trial, history: History::of(vms, history_until_s), lifetime: None })
    }
}

/// Scores a model on what was held out; `odds` are the true probabilities where somebody knows them.
fn score(
    model: &Model,
    class: &Question<bool>,
    p95: &Question<Bucket>,
    odds: Option<&[Odds]>,
) -> (Scores, Scores) {
    (
        class_scores(&class.held_out, odds, |row: &FeatureRow, _| {
            (model.class.answer(row), model.class.batch(row))
        }),
        p95_scores(&p95.held_out, odds, |row, _| model.p95.answer(row)),
    )
}

/// Scores answers about the class, which have the probability of batch.
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

/// Scores answers about the bucket, which have the probability of each.
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

pub(crate) fn class_model(learnt: &TrainingRows<bool>, options: &Options) -> Result<ClassModel, TrainError> {
    let TrainingRows { rows, answers, deployments, .. } = learnt;
    let (batch, unseen) = fit(rows, answers, deployments, options, 0)?;
    let scored: Vec<_> = unseen.iter().copied().zip(answers.iter().copied()).collect();
    let calibration = Calibration::learn(&scored, deployments);
    let threshold = threshold(&unseen, answers, &calibration, options.classes);
    Ok(ClassModel { batch, threshold, calibration })
}

/// The lowest threshold that keeps enough user-facing VMs from being called batch.
///
/// Where our labeller said who is user-facing, some of these VMs are batch: among VMs that the model cannot tell apart
/// as many as it calls so per batch VM (class-conditional noise; Elkan and Noto, KDD 2008). A VM counts by how likely its
/// label is right: were all labels trusted, the VMs with wrong ones would keep the threshold above nearly all batch VMs.
pub(crate) fn threshold(
    batch_shares: &[f32],
    is_batch: &[bool],
    calibration: &Calibration,
    classes: ClassSource,
) -> f32 {
    let right = |share: f32| {
        let batch = f64::from(calibration.of(share));
        let wrong = classes.mistaken_per_batch() * batch / (1.0 - batch).max(f64::MIN_POSITIVE);
        1.0 - wrong.min(1.0)
    };
    let pairs = batch_shares.iter().zip(is_batch);
    let user_facing = pairs.filter(|(share, batch)| !**batch && !share.is_nan());
    let mut user_facing: Vec<(f32, f64)> = user_facing.map(|(share, _)| (*share, right(*share))).collect();
    user_facing.sort_by(|a, b| b.0.total_cmp(&a.0));

    // None of them is to be where the threshold is met exactly.
    let all: f64 = user_facing.iter().map(|(_, weight)| weight).sum();
    let mut mistaken = 0.0;
    let first = user_facing.iter().find(|(_, weight)| {
        mistaken += weight;
        mistaken > all * (1.0 - USER_FACING_RECALL)
    });
    first.map_or(NEVER, |(share, _)| share.next_up().clamp(0.0, NEVER))
}

pub(crate) fn p95_model(learnt: &TrainingRows<Bucket>, options: &Options) -> Result<P95Model, TrainError> {
    let TrainingRows { rows, answers, deployments, .. } = learnt;
    let is_high: Vec<bool> = answers.iter().map(|bucket| bucket.index() >= 2).collect();
    let (high, shares) = fit(rows, &is_high, deployments, options, 1)?;
    let side = |side: usize| {
        // Only VMs that the first stage sends here for sure (paper, III-B), and rightly.
        let sent = |n: &usize| {
            let share = if side == 1 { shares[*n] } else { 1.0 - shares[*n] };
            answers[*n].index() / 2 == side && share >= CONFIDENT
        };
        let sent: Vec<usize> = (0..rows.len()).filter(sent).collect();
        let of_side: Vec<FeatureRow> = sent.iter().map(|n| rows[*n]).collect();
        let upper: Vec<bool> = sent.iter().map(|n| answers[*n].index() % 2 == 1).collect();
        let groups: Vec<u32> = sent.iter().map(|n| deployments[*n]).collect();
        let (ensemble, unseen) = fit(&of_side, &upper, &groups, options, 2 + side as u64)?;

        // The others were not learnt from.
        let mut says: Vec<f32> = rows.iter().map(|row| second(&ensemble, row)).collect();
        sent.iter().zip(unseen).for_each(|(n, unseen)| says[*n] = unseen);
        Ok::<_, TrainError>((ensemble, says))
    };

    let ((low, low_says), (top, top_says)) = (side(0)?, side(1)?);
    let scored = (0..rows.len()).map(|n| {
        // Of deployments that no part of it has seen.
        let said = staged(shares[n], [low_says[n], top_says[n]]);
        let best = likeliest(said);
        (said[best], answers[n].index() == best)
    });

    let scored: Vec<_> = scored.collect();
    Ok(P95Model { calibration: Calibration::learn(&scored, deployments), upper: [low, top], high })
}

fn fit(
    rows: &[FeatureRow],
    answers: &[bool],
    deployments: &[u32],
    options: &Options,
    part: u64,
) -> Result<(Ensemble, Vec<f32>), TrainError> {
    // Numbered anew: a forest draws among as many groups as there are numbers.
    let distinct: BTreeSet<u32> = deployments.iter().copied().collect();
    let numbers: BTreeMap<u32, u32> = distinct.into_iter().zip(0..).collect();
    let groups: Vec<u32> = deployments.iter().map(|deployment| numbers[deployment]).collect();
    learn(&table(rows)?, answers, &groups, options, part).map_err(refused)
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
    use crate::data::SplitBy;
    use crate::fleet;
    use crate::model::Algorithm;
    use std::sync::OnceLock;

    fn options(algorithm: Algorithm) -> Options {
        Options { algorithm, ..Options::default() }
    }

    fn fleet(vms: usize) -> fleet::SyntheticFleet {
        fleet::make(&fleet::Options { vms, ..fleet::Options::default() })
    }

    /// A small model by boosting, made once.
    pub(crate) fn small() -> ModelFile {
        static SMALL: OnceLock<ModelFile> = OnceLock::new();
        SMALL.get_or_init(|| train(&fleet(4000).vms, &options(Algorithm::GradientBoosting)).unwrap()).clone()
    }

    #[test]
    fn a_new_model_must_not_be_worse() {
        let scores = |recall, loss| {
            let each = crate::score::Each { rows: 1, recall, precision: 1.0 };
            Scores { each: vec![each; 2], loss, ..Scores::of(0, &[]) }
        };
        let old = scores(0.995, 0.1);
        let verdict =
            |recall, loss| worse((&scores(recall, loss), &old), (&old, &old), ClassSource::Operator);
        assert_eq!(verdict(0.995, 0.1), None);
        assert_eq!(verdict(0.991, 0.05), None);
        assert!(verdict(0.989, 0.05).unwrap().contains("recall 0.9890"));
        assert!(verdict(0.999, 0.11).unwrap().contains("loss 0.21"));
        assert!(verdict(0.999, f64::NAN).is_some());
    }

    #[test]
    fn the_gate_expects_as_many_wrong_labels_as_our_labeller_makes() {
        let scores = |user_facing: (u64, f64), batch: (u64, f64)| {
            let each = |(rows, recall)| crate::score::Each { rows, recall, precision: 1.0 };
            Scores { each: vec![each(user_facing), each(batch)], ..Scores::of(0, &[]) }
        };
        // 84 of 100 batch VMs are labelled so, and all are recognised; so are the 16 others.
        let found = scores((216, 200.0 / 216.0), (84, 1.0));
        assert!(user_facing_recall(&found, ClassSource::Operator) < 0.93);
        assert!(user_facing_recall(&found, ClassSource::Labeller) > 0.999);
        // Who says batch of people has no such excuse.
        let found = scores((216, 0.8), (84, 0.0));
        assert!(user_facing_recall(&found, ClassSource::Labeller) < 0.8);
        let nobody = scores((216, 0.8), (0, f64::NAN));
        assert!((user_facing_recall(&nobody, ClassSource::Labeller) - 0.8).abs() < 1e-9);
        assert!(user_facing_recall(&scores((0, f64::NAN), (0, f64::NAN)), ClassSource::Labeller).is_nan());
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
            let trial = Trial::new(&synthetic.vms, &options(algorithm)).unwrap();
            let (class, p95) = score(&trial.model, &trial.class, &trial.p95, Some(&synthetic.odds));
            // Always user-facing would be right so often, and always the commonest bucket so often.
            let share = |scores: &Scores, n: usize| scores.each[n].rows as f64 / scores.rows as f64;
            assert!(class.accuracy_all > share(&class, 0) + 0.05, "{algorithm:?}: {class:?}");
            let commonest = (0..4).map(|n| share(&p95, n)).fold(0.0, f64::max);
            assert!(p95.accuracy_all > commonest + 0.3, "{algorithm:?}: {p95:?}");
            // Nobody is better than the best but by luck.
            assert!(p95.accuracy_all < p95.ceiling_all + 0.02, "{algorithm:?}: {p95:?}");
            assert_eq!((&trial.scores.0.each, trial.scores.1.rows), (&class.each, p95.rows));
        }
    }

    #[test]
    fn the_hold_out_is_scored_first_and_learnt_from_then() {
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
        assert_eq!(after.trial, before.trial);
        assert_ne!(after.about.p95, before.about.p95);
        // But when it has been scored, the newest is learnt from.
        assert_ne!(after.model, before.model);
    }

    #[test]
    fn the_threshold_keeps_user_facing_vms_from_being_called_batch() {
        let trusted = |shares: &[f32], is_batch: &[bool]| {
            threshold(shares, is_batch, &Calibration::default(), ClassSource::Operator)
        };
        let shares: Vec<f32> = (0..1000).map(|n| n as f32 / 1000.0).collect();
        // All user-facing: 5 of 1000 may be mistaken.
        let found = trusted(&shares, &[false; 1000]);
        assert_eq!(shares.iter().filter(|share| **share >= found).count(), 5);
        assert_eq!(trusted(&[0.1, 0.2, 0.9], &[false, false, true]), 0.2_f32.next_up());
        assert_eq!(trusted(&[f32::NAN, 0.2, 0.9], &[false, false, true]), 0.2_f32.next_up());
        assert_eq!(trusted(&[0.9], &[true]), NEVER);
        // Equal shares are mistaken together or not at all.
        assert!(trusted(&[0.8; 1000], &[false; 1000]) > 0.8);
    }

    #[test]
    fn types_are_categories_not_an_order_of_names() {
        let mut vms = fleet(4000).vms;
        let before = train(&vms, &options(Algorithm::GradientBoosting)).unwrap();
        let names = ["burst", "compute", "general", "memory", "spot", "storage"];
        for vm in &mut vms {
            let place = names.iter().position(|name| *name == vm.vm_type).unwrap();
            vm.vm_type = format!("{}-{}", (7 * place + 3) % 6, names[place]);
        }
        let after = train(&vms, &options(Algorithm::GradientBoosting)).unwrap();
        assert_eq!(after.model, before.model);
    }

    #[test]
    fn two_weeks_of_history_suffice() {
        for days in [14, 30, 75] {
            let drift = Some(fleet::Drift::default());
            let vms =
                fleet::make(&fleet::Options { vms: 8000, days, drift, ..fleet::Options::default() }).vms;
            let file = train(&vms, &options(Algorithm::RandomForest)).unwrap();
            let About { class, p95, split, .. } = &file.about;
            // A week of labels cannot be split by time.
            let by = if days < 42 { SplitBy::Deployments } else { SplitBy::Time };
            assert_eq!(*split, [by, SplitBy::Time], "{days} days");
            let good = class.accuracy > 0.9 && class.confident > 0.5 && p95.accuracy_all > 0.55;
            assert!(good, "{days} days: {class:?} {p95:?}");
        }
    }

    #[test]
    fn too_little_is_refused_by_name() {
        let vms = fleet(200).vms;
        let error = train(&vms, &options(Algorithm::RandomForest)).unwrap_err().to_string();
        assert!(error.contains("VMs; at least 20 are needed"), "{error}");
        assert!(train(&[], &options(Algorithm::RandomForest)).is_err());
    }

    #[test]
    fn labels_that_err_on_the_safe_side_do_not_hide_batch_vms() {
        // The model tells 1,000 VMs from 2,000 that serve people, of whom it is less and less sure.
        let mut shares = vec![0.9; 1000];
        shares.extend((0..2000).map(|n| n as f32 / 4000.0));
        let found = |labelled: usize, classes| {
            let is_batch: Vec<bool> = (0..3000).map(|n| n < labelled).collect();
            // In an order that is not theirs, as time is.
            let scored = |n: usize| (shares[n * 1871 % 3000], is_batch[n * 1871 % 3000]);
            let scored: Vec<_> = (0..3000).map(scored).collect();
            let calibration = Calibration::learn(&scored, &(0..3000).collect::<Vec<_>>());
            threshold(&shares, &is_batch, &calibration, classes)
        };

        // Of the 1,000 no more are called user-facing than our labeller gets wrong.
        assert!(found(870, ClassSource::Operator) > 0.9);
        let trusted = found(870, ClassSource::Labeller);
        let mistaken = shares[1000..].iter().filter(|share| **share >= trusted).count();
        assert!((1..=15).contains(&mistaken), "{trusted}");
        // More of them: some do serve people, and none is batch.
        assert!(found(750, ClassSource::Labeller) > 0.9);
    }
}
