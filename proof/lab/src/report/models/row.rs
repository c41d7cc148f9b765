//! Who predicted what on which fleet.

use ballast_predict::compare::{Arm, PredictedValue};
use ballast_predict::features::COLUMN_NAMES;
use ballast_predict::score::{Each, Scores};
use serde::Serialize;
use serde_json::{Value, json};

#[derive(Clone, Debug, Serialize)]
pub struct ArmRow {
    /// The fleet's seed; `None` for real data.
    pub(super) seed: Option<u64>,
    pub(super) model: PredictedValue,
    pub(super) arm: &'static str,
    pub(super) vms: u64,
    pub(super) confident: f64,
    pub(super) buckets: Vec<NamedBucket>,
    pub(super) accuracy: f64,
    pub(super) accuracy_all: f64,
    pub(super) ceiling: f64,
    pub(super) ceiling_share: f64,
    pub(super) ceiling_all: f64,
    pub(super) ceiling_share_all: f64,
    pub(super) loss: f64,
    pub(super) calibration_error: f64,
    pub(super) reliability: Value,
    pub(super) importance: Value,
    #[serde(skip)]
    pub(super) arm_of: Arm,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct NamedBucket {
    name: &'static str,
    #[serde(flatten)]
    pub(super) each: Each,
}

pub(super) fn names(asked: PredictedValue) -> &'static [&'static str] {
    match asked {
        PredictedValue::Criticality => &["user-facing", "non-user-facing"],
        PredictedValue::P95 | PredictedValue::P95NextMonth => &["0-25", "26-50", "51-75", "76-100"],
    }
}

impl ArmRow {
    /// The row of an arm on the fleet of this seed, or on real data.
    pub fn new(seed: Option<u64>, arm: Arm) -> Self {
        let Arm { model, scores, importance, .. } = &arm;
        let Scores {
            confident, accuracy, accuracy_all, ceiling, ceiling_all, loss, calibration_error, ..
        } = *scores;
        let named = names(*model).iter().zip(&scores.each);
        let shares = COLUMN_NAMES.iter().zip(importance);
        let shares: serde_json::Map<_, _> =
            shares.map(|(name, share)| ((*name).to_owned(), json!(share))).collect();
        Self {
            seed,
            model: *model,
            arm: arm.arm,
            vms: scores.rows,
            confident,
            buckets: named.map(|(name, each)| NamedBucket { name, each: *each }).collect(),
            accuracy,
            accuracy_all,
            ceiling,
            ceiling_share: accuracy / ceiling,
            ceiling_all,
            ceiling_share_all: accuracy_all / ceiling_all,
            loss,
            calibration_error,
            reliability: json!(scores.reliability),
            importance: Value::Object(shares),
            arm_of: arm,
        }
    }
}
