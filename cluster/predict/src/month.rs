//! A VM's P95 bucket predicted from its own use before: real data without subscriptions.
//!
//! The days of a VM stand where the VMs of a subscription stand elsewhere. What is learnt comes from the first
//! month alone: how its later part followed from its earlier one.

use std::num::NonZeroUsize;

use crate::answer::P95Answer;
use crate::compare::{Arm, PredictedValue};
use crate::data::TrainingRows;
use crate::features::{self, Evidence, FeatureRow, Past};
use crate::model::Algorithm;
use crate::train::{Options, TrainError, p95_model, p95_scores};
use crate::vm::Bucket;

/// One VM's use, in percent; NaN is a gap.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    pub cores: f64,
    pub memory_gb: f64,
    pub first: Vec<f32>,
    /// The month to predict.
    pub second: Vec<f32>,
}

/// After so much of the first month its rest is predicted, to learn from.
const CUTS: [f64; 5] = [0.3, 0.4, 0.5, 0.6, 0.7];
/// Fewer values than this part of a stretch make no P95.
const FULL: f64 = 0.1;

/// The 95th percentile (nearest rank) of what was measured; `None` where nothing was.
pub fn p95(values: &[f32]) -> Option<f64> {
    let mut measured: Vec<f32> = values.iter().copied().filter(|v| !v.is_nan()).collect();
    let rank = libm::ceil(measured.len() as f64 * 0.95) as usize;
    measured.sort_by(f32::total_cmp);
    measured.get(rank.checked_sub(1)?).map(|value| f64::from(*value))
}

/// The same where enough was measured.
fn sound_p95(values: &[f32]) -> Option<f64> {
    let measured = values.iter().filter(|value| !value.is_nan()).count();
    if (measured as f64) < values.len() as f64 * FULL { None } else { p95(values) }
}

/// The row that a stretch of use makes.
fn row(vm: &Measured, values: &[f32], per_day: usize) -> Option<FeatureRow> {
    let mean_p95_cpu = sound_p95(values)?;
    let days = values.chunks(per_day).filter_map(p95);
    let mut counts = [0.0; 4];
    days.for_each(|p95| counts[Bucket::of(p95).index()] += 1.0);
    let all: f64 = counts.iter().sum();
    let measured = values.iter().filter(|value| !value.is_nan());
    let sum: f64 = measured.clone().map(|value| f64::from(*value)).sum();
    let past = Past {
        vms: 0,
        uf_share: None,
        lived_7d_share: None,
        bucket_shares: Some(counts.map(|count| count / all)),
        mean_avg_cpu: Some(sum / measured.count() as f64),
        mean_p95_cpu: Some(mean_p95_cpu),
    };
    let known = Evidence { past: Some(past), ..Evidence::default() };
    Some(features::row(&known, vm.cores, vm.memory_gb))
}

/// Both algorithms, and the rule "the same bucket as last month", scored on the second month.
pub fn compare_months(
    vms: &[Measured],
    per_day: NonZeroUsize,
    seed: u64,
    threads: NonZeroUsize,
) -> Result<Vec<Arm>, TrainError> {
    let (mut fit, mut test) = (TrainingRows::none(), TrainingRows::none());
    let add = |rows: &mut TrainingRows<Bucket>, place, before: &[f32], after: &[f32]| {
        let row = row(&vms[place], before, per_day.get());
        if let (Some(row), Some(p95)) = (row, sound_p95(after)) {
            // The rows of one VM stay together, as those of a deployment do.
            rows.push(place, place as u32, row, Bucket::of(p95));
        }
    };

    for (place, vm) in vms.iter().enumerate() {
        for cut in CUTS {
            let (before, after) = vm.first.split_at((vm.first.len() as f64 * cut) as usize);
            add(&mut fit, place, before, after);
        }

        add(&mut test, place, &vm.first, &vm.second);
    }

    let mut arms = Vec::new();

    for algorithm in Algorithm::ALL {
        let model = p95_model(&fit, &Options { algorithm, seed, threads, ..Options::default() })?;
        let scores = p95_scores(&test, None, |row, _| model.answer(row));
        let importance = model.importance();
        arms.push(Arm { model: PredictedValue::P95NextMonth, arm: algorithm.name(), scores, importance });
    }

    let naive = |_: &FeatureRow, vm: usize| {
        let bucket = p95(&vms[vm].first).map_or(Bucket::HIGHEST, Bucket::of);
        let certain = std::array::from_fn(|n| if n == bucket.index() { 1.0 } else { 0.0 });
        (P95Answer { bucket, confidence: 1.0 }, certain)
    };

    let scores = p95_scores(&test, None, naive);
    let importance = Vec::new();
    arms.push(Arm { model: PredictedValue::P95NextMonth, arm: "same-as-last-month", scores, importance });

    Ok(arms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p95_is_the_nearest_rank_of_what_was_measured() {
        let values: Vec<f32> = (1..=20).map(|n| n as f32).collect();
        assert_eq!(p95(&values), Some(19.0));
        assert_eq!(p95(&[f32::NAN, 7.0, f32::NAN]), Some(7.0));
        assert_eq!((p95(&[]), p95(&[f32::NAN])), (None, None));
    }

    #[test]
    fn who_keeps_to_a_bucket_is_predicted_by_all_and_who_has_gaps_is_left_out() {
        let keeps = |n: usize| {
            let level = [10.0, 40.0, 60.0, 90.0][n % 4];
            let days = |from: usize| (0..120).map(|i| level + ((from + i + n) % 5) as f32).collect();
            Measured { cores: 1.0, memory_gb: 1.0, first: days(0), second: days(3) }
        };
        let mut vms: Vec<Measured> = (0..80).map(keeps).collect();
        vms[0].second = vec![f32::NAN; 120];
        let day = NonZeroUsize::new(4).unwrap();
        for arm in compare_months(&vms, day, 1, NonZeroUsize::MIN).unwrap() {
            assert_eq!((arm.scores.rows, arm.scores.accuracy_all), (79, 1.0), "{}", arm.arm);
        }
    }

    #[test]
    fn nothing_to_learn_from_is_an_error() {
        let day = NonZeroUsize::new(4).unwrap();
        assert!(compare_months(&[], day, 1, NonZeroUsize::MIN).is_err());
    }
}
