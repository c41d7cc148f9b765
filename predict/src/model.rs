//! The models: one for the class, three for the P95 bucket.
//!
//! Source: Kumbhare et al., arXiv 2010.15388, Section III-B. The P95 model has two stages: is it above 50 %,
//! and then which of the two buckets on that side.

use ballast_forest::Ensemble;
use serde::{Deserialize, Serialize};

use crate::answer::{CONFIDENT, ClassAnswer, P95Answer, Prediction};
use crate::features::{COLUMNS, FeatureRow, Features, Types};
use crate::vm::Bucket;

/// How models are learnt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Random forests: what the paper chose.
    #[default]
    RandomForest,
    GradientBoosting,
}

impl Algorithm {
    pub const ALL: [Self; 2] = [Self::RandomForest, Self::GradientBoosting];

    pub fn name(self) -> &'static str {
        match self {
            Self::RandomForest => "random-forest",
            Self::GradientBoosting => "gradient-boosting",
        }
    }
}

/// The threshold of a model that calls nothing batch.
pub(crate) const NEVER: f32 = 2.0;

/// What answers: both questions, and the numbers of the VM types.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// The numbers of the VM types.
    pub(crate) types: Types,
    pub(crate) class: ClassModel,
    pub(crate) p95: P95Model,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassModel {
    /// Answers the probability of batch.
    pub(crate) batch: Ensemble,
    /// From this probability on a VM counts as batch; at least [`CONFIDENT`], and [`NEVER`] if never.
    pub(crate) threshold: f32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct P95Model {
    /// Answers the probability of a P95 above 50 %.
    pub(crate) high: Ensemble,
    /// Below that: the probability of bucket 2. Above: that of bucket 4.
    pub(crate) upper: [Ensemble; 2],
}

/// What a model of two classes says of the second one.
fn second(ensemble: &Ensemble, row: &FeatureRow) -> f32 {
    let mut out = [0.0; 2];
    ensemble.predict(row, &mut out);
    out[1]
}

impl ClassModel {
    /// The probability of batch.
    pub fn batch(&self, row: &FeatureRow) -> f32 {
        second(&self.batch, row)
    }

    pub fn answer(&self, row: &FeatureRow) -> ClassAnswer {
        ClassAnswer::of(self.batch(row), self.threshold)
    }

    /// How much each feature had to say; adds up to 1.
    pub fn importance(&self) -> Vec<f64> {
        self.batch.importance()
    }
}

impl P95Model {
    /// The probability of each bucket.
    pub fn shares(&self, row: &FeatureRow) -> [f32; 4] {
        let high = second(&self.high, row);
        let [low_upper, high_upper] = [0, 1].map(|side| second(&self.upper[side], row));
        [
            (1.0 - high) * (1.0 - low_upper),
            (1.0 - high) * low_upper,
            high * (1.0 - high_upper),
            high * high_upper,
        ]
    }

    /// The answer for a row: the first stage chooses the side, the second the bucket.
    pub fn answer(&self, row: &FeatureRow) -> P95Answer {
        let likelier = |share: f32| (usize::from(share >= 0.5), share.max(1.0 - share));
        let (side, first) = likelier(second(&self.high, row));
        let (half, then) = likelier(second(&self.upper[side], row));
        P95Answer { bucket: Bucket::ALL[2 * side + half], confidence: first.min(then) }
    }

    /// How much each feature had to say: the mean of the first stage and the second; adds up to 1.
    pub fn importance(&self) -> Vec<f64> {
        let [low, high] = [0, 1].map(|side| self.upper[side].importance());
        let stages = self.high.importance().into_iter().zip(low.into_iter().zip(high));
        stages.map(|(first, (low, high))| (first + (low + high) / 2.0) / 2.0).collect()
    }
}

impl Model {
    /// The row of these features, as this model numbers the VM types.
    pub fn row(&self, features: &Features) -> FeatureRow {
        features.row(&self.types)
    }

    /// What to reckon with for a VM. Answers any features; check those that come from outside first
    /// ([`Features::check`]).
    pub fn predict(&self, features: &Features) -> Prediction {
        let row = self.row(features);
        Prediction::new(self.class.answer(&row), self.p95.answer(&row))
    }

    pub fn class(&self) -> &ClassModel {
        &self.class
    }

    pub fn p95(&self) -> &P95Model {
        &self.p95
    }

    /// Whether the parts fit together; each is sound by itself.
    pub(crate) fn check(&self) -> Result<(), String> {
        let [low, high] = &self.p95.upper;
        for ensemble in [&self.class.batch, &self.p95.high, low, high] {
            let (features, outputs) = (ensemble.features(), ensemble.outputs());
            if (features, outputs) != (COLUMNS, 2) {
                return Err(format!(
                    "a part with {features} features and {outputs} answers; {COLUMNS} and 2 are needed"
                ));
            }
        }
        let threshold = self.class.threshold;
        if !(CONFIDENT..=NEVER).contains(&threshold) {
            return Err(format!("a threshold of {threshold}; {CONFIDENT} to {NEVER} is needed"));
        }
        Ok(())
    }
}
