//! The paper's Table III on a synthetic fleet: both algorithms, simple rules beside them, and the best that anybody
//! could do.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use ballast_types::VmClass;
use serde::Serialize;

use crate::answer::{CONFIDENT, ClassAnswer, P95Answer};
use crate::calibrate::Calibration;
use crate::data::{Prepared, Question};
use crate::features::FeatureRow;
use crate::fleet::SyntheticFleet;
use crate::model::{Algorithm, likeliest};
use crate::score::Scores;
use crate::train::{
    ClassSource, Options, TrainError, class_model, class_scores, p95_model, p95_scores, threshold,
};
use crate::vm::Bucket;

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

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Arm {
    pub model: PredictedValue,
    /// Who predicts: an algorithm, one of [`GROUP_BYS`], `constant` (the commonest answer) or `best-possible`
    /// (knows all habits, and nothing of the future).
    pub arm: &'static str,
    pub scores: Scores,
    /// How much each feature had to say; empty where nothing was learnt.
    pub importance: Vec<f64>,
}

/// Rules that need no learning: what most VMs of the subscription were, what most of its VMs of the same type
/// and size were, and what the latest of these were. They forget as the histories do. Where nothing is known
/// they ask the one before, and last what most VMs of the same type were.
pub const GROUP_BYS: [&str; 3] =
    ["group-by-subscription", "group-by-subscription-type-size", "latest-of-type-and-size"];

/// Where the columns of a rule begin: first its own, then those of the rules before it.
const SHARES: [usize; 3] = [3, 15, 20];

/// Runs every arm on a fleet.
pub fn compare(synthetic: &SyntheticFleet, seed: u64, threads: NonZeroUsize) -> Result<Vec<Arm>, TrainError> {
    let prepared = Prepared::new(&synthetic.vms);
    let mut arms = class_arms(synthetic, &prepared.class()?, seed, threads)?;
    arms.extend(p95_arms(synthetic, &prepared.p95()?, seed, threads)?);
    Ok(arms)
}

fn class_arms(
    synthetic: &SyntheticFleet,
    class: &Question<bool>,
    seed: u64,
    threads: NonZeroUsize,
) -> Result<Vec<Arm>, TrainError> {
    let odds = Some(synthetic.odds.as_slice());
    let mut arms = Vec::new();
    let mut arm = |arm, scores, importance| {
        arms.push(Arm { model: PredictedValue::Criticality, arm, scores, importance });
    };

    for algorithm in Algorithm::ALL {
        let model = class_model(&class.fit, &Options { algorithm, seed, threads, ..Options::default() })?;
        let answer = |row: &FeatureRow, _| (model.answer(row), model.batch(row));
        arm(algorithm.name(), class_scores(&class.held_out, odds, answer), model.importance());
    }

    // Of type and size alone, of the subscription, of the type; nothing is known of the latest.
    let batch = |row: &FeatureRow, rule: usize| {
        let columns = if rule == 0 { [0, 25, 25] } else { [13, 0, 25] };
        1.0 - columns.map(|column| row[column]).into_iter().find(|share| !share.is_nan()).unwrap_or(1.0)
    };

    for (rule, name) in GROUP_BYS.into_iter().enumerate().take(2) {
        let shares: Vec<f32> = class.fit.rows.iter().map(|row| batch(row, rule)).collect();
        let threshold =
            threshold(&shares, &class.fit.answers, &Calibration::default(), ClassSource::Operator)
                .max(CONFIDENT);
        let answer = |row: &FeatureRow, _| {
            let batch = batch(row, rule);
            (ClassAnswer::of(batch, threshold), batch)
        };
        arm(name, class_scores(&class.held_out, odds, answer), Vec::new());
    }

    let always = ClassAnswer { class: VmClass::UserFacing, confidence: 1.0 };
    arm("constant", class_scores(&class.held_out, odds, |_, _| (always, 0.0)), Vec::new());
    let best = |_: &FeatureRow, vm: usize| {
        let batch = 1.0 - synthetic.odds[vm].user_facing as f32;
        (ClassAnswer::of(batch, 0.5), batch)
    };
    arm("best-possible", class_scores(&class.held_out, odds, best), Vec::new());

    Ok(arms)
}

fn p95_arms(
    synthetic: &SyntheticFleet,
    p95: &Question<Bucket>,
    seed: u64,
    threads: NonZeroUsize,
) -> Result<Vec<Arm>, TrainError> {
    let odds = Some(synthetic.odds.as_slice());
    let mut arms = Vec::new();
    let mut arm = |arm, scores, importance| {
        arms.push(Arm { model: PredictedValue::P95, arm, scores, importance });
    };

    for algorithm in Algorithm::ALL {
        let model = p95_model(&p95.fit, &Options { algorithm, seed, threads, ..Options::default() })?;
        let answer = |row: &FeatureRow, _| model.answer(row);
        arm(algorithm.name(), p95_scores(&p95.held_out, odds, answer), model.importance());
    }

    let all = shares_of(p95.fit.answers.iter().copied());
    let mut by_type: BTreeMap<&str, Vec<Bucket>> = BTreeMap::new();
    for (vm, bucket) in p95.fit.vms.iter().zip(&p95.fit.answers) {
        by_type.entry(&synthetic.vms[*vm].vm_type).or_default().push(*bucket);
    }
    let by_type: BTreeMap<&str, [f32; 4]> =
        by_type.into_iter().map(|(name, buckets)| (name, shares_of(buckets.into_iter()))).collect();

    for (rule, name) in GROUP_BYS.into_iter().enumerate() {
        let answer = |row: &FeatureRow, vm: usize| {
            let of = |from: &usize| std::array::from_fn(|n| row[from + n]);
            let mut known = SHARES[..=rule].iter().rev().map(of).filter(|shares| !shares[0].is_nan());
            said(
                known
                    .next()
                    .or_else(|| by_type.get(synthetic.vms[vm].vm_type.as_str()).copied())
                    .unwrap_or(all),
            )
        };
        arm(name, p95_scores(&p95.held_out, odds, answer), Vec::new());
    }

    let bucket = likeliest(all);
    let certain = std::array::from_fn(|n| f32::from(u8::from(n == bucket)));
    arm("constant", p95_scores(&p95.held_out, odds, |_, _| said(certain)), Vec::new());
    let best = |_: &FeatureRow, vm: usize| said(synthetic.odds[vm].buckets.map(|share| share as f32));
    arm("best-possible", p95_scores(&p95.held_out, odds, best), Vec::new());

    Ok(arms)
}

/// The answer of who knows these shares.
fn said(shares: [f32; 4]) -> (P95Answer, [f32; 4]) {
    let best = likeliest(shares);
    (P95Answer { bucket: Bucket::ALL[best], confidence: shares[best] }, shares)
}

fn shares_of(answers: impl Iterator<Item = Bucket>) -> [f32; 4] {
    let mut counts = [0.0; 4];
    answers.for_each(|bucket| counts[bucket.index()] += 1.0);
    let all = counts.iter().sum::<f32>().max(1.0);
    counts.map(|count| count / all)
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
}
