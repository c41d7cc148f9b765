//! The paper's Table III on a synthetic fleet: both algorithms, simple rules beside them, and the best that anybody
//! could do.

use std::num::NonZeroUsize;

use ballast_types::VmClass;
use serde::Serialize;

use crate::answer::{ClassAnswer, P95Answer};
use crate::data::{Question, Split, prepared};
use crate::features::FeatureRow;
use crate::fleet::SyntheticFleet;
use crate::model::Algorithm;
use crate::score::Scores;
use crate::train::{Options, TrainError, class_model, class_scores, p95_model, p95_scores, threshold};
use crate::vm::Bucket;

/// What is predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PredictedValue {
    /// The class: user-facing, non-user-facing.
    Criticality,
    /// The P95 bucket, 1 to 4.
    P95,
    /// The P95 bucket of a VM next month, from its own use.
    #[serde(rename = "p95-next-month")]
    P95NextMonth,
}

/// One row of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Arm {
    pub model: PredictedValue,
    /// Who predicts: an algorithm, `constant` (the commonest answer), `subscription-share` (what most of the
    /// subscription's VMs were) or `best-possible` (knows all habits, and nothing of the future).
    pub arm: &'static str,
    pub scores: Scores,
    /// How much each feature had to say; empty where nothing was learnt.
    pub importance: Vec<f64>,
}

/// Runs every arm on a fleet, split by time.
pub fn compare(synthetic: &SyntheticFleet, seed: u64, threads: NonZeroUsize) -> Result<Vec<Arm>, TrainError> {
    let vms = &synthetic.vms;
    let split = Split::of(vms);
    let (_, arrivals) = prepared(vms, split);
    let class = split.class(vms, &arrivals)?;
    let class_test = split.class_held_out(vms, &arrivals)?;
    let p95 = split.p95(vms, &arrivals)?;
    let p95_test = split.p95_held_out(vms, &arrivals)?;
    let odds = Some(synthetic.odds.as_slice());
    let mut arms = Vec::new();
    let mut arm = |model, arm, scores, importance| arms.push(Arm { model, arm, scores, importance });

    for algorithm in Algorithm::ALL {
        let options = Options { algorithm, seed, threads };
        let model = class_model(&class, &options)?;
        let scores = class_scores(&class_test, odds, |row, _| (model.answer(row), model.batch(row)));
        arm(PredictedValue::Criticality, algorithm.name(), scores, model.importance());
    }

    let rule = share_threshold(&class);
    let by_share = |row: &FeatureRow, _| {
        let batch = batch_share(row);
        match batch.is_nan() {
            true => (ClassAnswer { class: VmClass::UserFacing, confidence: 0.0 }, 0.0),
            false => (ClassAnswer::of(batch, rule), batch),
        }
    };

    let scores = class_scores(&class_test, odds, by_share);
    arm(PredictedValue::Criticality, "subscription-share", scores, Vec::new());
    let always = ClassAnswer { class: VmClass::UserFacing, confidence: 1.0 };
    let scores = class_scores(&class_test, odds, |_, _| (always, 0.0));
    arm(PredictedValue::Criticality, "constant", scores, Vec::new());

    let best = |_: &FeatureRow, vm: usize| {
        let user_facing = synthetic.odds[vm].user_facing as f32;
        let class = match user_facing >= 0.5 {
            true => VmClass::UserFacing,
            false => VmClass::NonUserFacing,
        };

        (ClassAnswer { class, confidence: user_facing.max(1.0 - user_facing) }, 1.0 - user_facing)
    };

    let scores = class_scores(&class_test, odds, best);
    arm(PredictedValue::Criticality, "best-possible", scores, Vec::new());

    for algorithm in Algorithm::ALL {
        let options = Options { algorithm, seed, threads };
        let model = p95_model(&p95, &options)?;
        let scores = p95_scores(&p95_test, odds, |row, _| (model.answer(row), model.shares(row)));
        arm(PredictedValue::P95, algorithm.name(), scores, model.importance());
    }

    arm(
        PredictedValue::P95,
        "subscription-share",
        p95_scores(&p95_test, odds, |row, _| by_bucket_share(row)),
        Vec::new(),
    );

    let bucket = commonest(&p95.fit.answers);
    let certain = std::array::from_fn(|n| if n == bucket.index() { 1.0 } else { 0.0 });
    let always = P95Answer { bucket, confidence: 1.0 };
    arm(PredictedValue::P95, "constant", p95_scores(&p95_test, odds, |_, _| (always, certain)), Vec::new());
    let best = |_: &FeatureRow, vm: usize| likeliest(synthetic.odds[vm].buckets.map(|share| share as f32));
    arm(PredictedValue::P95, "best-possible", p95_scores(&p95_test, odds, best), Vec::new());

    Ok(arms)
}

/// The share of batch VMs among the subscription's; NaN where none is known.
fn batch_share(row: &FeatureRow) -> f32 {
    1.0 - row[0]
}

/// The threshold of the rule that knows this share alone, chosen as the models' is.
fn share_threshold(class: &Question<bool>) -> f32 {
    let known = |row: &FeatureRow| Some(batch_share(row)).filter(|share| !share.is_nan()).unwrap_or(0.0);
    let shares: Vec<f32> = class.tune.rows.iter().map(known).collect();
    threshold(&shares, &class.tune.answers)
}

/// The bucket that most of the subscription's VMs were in.
fn by_bucket_share(row: &FeatureRow) -> (P95Answer, [f32; 4]) {
    let shares = [row[3], row[4], row[5], row[6]];
    if shares[0].is_nan() {
        return (P95Answer { bucket: Bucket::HIGHEST, confidence: 0.0 }, [0.25; 4]);
    }
    likeliest(shares)
}

/// The likeliest bucket; the busier one of equals.
fn likeliest(shares: [f32; 4]) -> (P95Answer, [f32; 4]) {
    let best = (0..4).max_by(|a, b| shares[*a].total_cmp(&shares[*b])).unwrap_or(3);
    (P95Answer { bucket: Bucket::ALL[best], confidence: shares[best] }, shares)
}

fn commonest(answers: &[Bucket]) -> Bucket {
    let count = |bucket: &Bucket| answers.iter().filter(|answer| *answer == bucket).count();
    Bucket::ALL.into_iter().max_by_key(count).unwrap_or(Bucket::HIGHEST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet;

    #[test]
    fn learning_beats_rules_and_the_best_possible_beats_learning() {
        let synthetic = fleet::make(&fleet::Options { vms: 20_000, ..fleet::Options::default() });
        let arms = compare(&synthetic, 1, NonZeroUsize::MIN).unwrap();
        let of = |asked, name| {
            let found = arms.iter().find(|arm| arm.model == asked && arm.arm == name);
            found.map(|arm| &arm.scores).unwrap()
        };

        for asked in [PredictedValue::Criticality, PredictedValue::P95] {
            let best = of(asked, "best-possible");
            assert!((best.accuracy_all - best.ceiling_all).abs() < 0.02, "{asked:?}");
            for algorithm in Algorithm::ALL {
                let learnt = of(asked, algorithm.name());
                let name = algorithm.name();
                assert!(learnt.loss < of(asked, "constant").loss / 2.0, "{asked:?} {name}");
                assert!(learnt.accuracy_all > of(asked, "constant").accuracy_all, "{asked:?} {name}");

                assert!(learnt.accuracy_all < best.accuracy_all + 0.01, "{asked:?} {name}");
            }
        }

        // All user-facing, and never wrong about those.
        let constant = of(PredictedValue::Criticality, "constant");
        assert_eq!((constant.each[0].recall, constant.each[1].recall), (1.0, 0.0));
    }

    #[test]
    fn rules_say_nothing_of_who_has_no_past() {
        let mut row = [f32::NAN; 13];
        assert_eq!(by_bucket_share(&row).0.acted_on(), Bucket::HIGHEST);
        row[3..7].copy_from_slice(&[0.5, 0.5, 0.0, 0.0]);
        assert_eq!(by_bucket_share(&row).0.bucket, Bucket::ALL[1]);
    }
}
