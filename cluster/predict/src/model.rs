//! The models: one for the class, three for the P95 bucket.
//!
//! Source: Kumbhare et al., arXiv 2010.15388, Section III-B. The P95 model has two stages: is it above 50 %,
//! and then which of the two buckets on that side.

use ballast_forest::Ensemble;
use serde::{Deserialize, Serialize};

use crate::answer::{CONFIDENT, ClassAnswer, P95Answer, Prediction};
use crate::calibrate::Calibration;
use crate::features::{self, COLUMNS, Evidence, FeatureRow};
use crate::vm::Bucket;

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

/// What answers both questions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    pub(crate) class: ClassModel,
    pub(crate) p95: P95Model,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassModel {
    /// Answers the share of trees that say batch.
    pub(crate) batch: Ensemble,
    /// From that to the probability.
    pub(crate) calibration: Calibration,
    /// From this share on a VM counts as batch, if the probability is [`CONFIDENT`] too; [`NEVER`] if never.
    pub(crate) threshold: f32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct P95Model {
    /// Answers the probability of a P95 above 50 %.
    pub(crate) high: Ensemble,
    /// Below that: the probability of bucket 2. Above: that of bucket 4.
    pub(crate) upper: [Ensemble; 2],
    /// From what the stages say of their bucket, multiplied, to the probability that it is the right one.
    pub(crate) calibration: Calibration,
}

/// What a model of two classes says of the second one.
pub(crate) fn second(ensemble: &Ensemble, row: &FeatureRow) -> f32 {
    let mut out = [0.0; 2];
    ensemble.predict(row, &mut out);
    out[1]
}

impl ClassModel {
    /// The share of trees that say batch.
    pub(crate) fn raw(&self, row: &FeatureRow) -> f32 {
        second(&self.batch, row)
    }

    /// The probability of batch.
    pub fn batch(&self, row: &FeatureRow) -> f32 {
        self.calibration.of(self.raw(row))
    }

    pub fn answer(&self, row: &FeatureRow) -> ClassAnswer {
        let (raw, batch) = (self.raw(row), self.batch(row));
        ClassAnswer::of(batch, if raw >= self.threshold { CONFIDENT } else { NEVER })
    }

    /// How much each feature had to say; adds up to 1.
    pub fn importance(&self) -> Vec<f64> {
        self.batch.importance()
    }
}

/// What two stages say of the buckets: the probability of a P95 above 50 %, and of the upper bucket below and
/// above.
pub(crate) fn staged(high: f32, upper: [f32; 2]) -> [f32; 4] {
    let [low, top] = upper;
    [(1.0 - high) * (1.0 - low), (1.0 - high) * low, high * (1.0 - top), high * top]
}

/// The likeliest bucket; the busier one of equals.
pub(crate) fn likeliest(shares: [f32; 4]) -> usize {
    (0..4).max_by(|a, b| shares[*a].total_cmp(&shares[*b])).unwrap_or(3)
}

impl P95Model {
    /// The answer for a row, and the probability of each bucket.
    pub fn answer(&self, row: &FeatureRow) -> (P95Answer, [f32; 4]) {
        let said = staged(second(&self.high, row), [0, 1].map(|side| second(&self.upper[side], row)));
        let best = likeliest(said);
        let confidence = self.calibration.of(said[best]);
        // What is left is shared as the stages share it.
        let rest = (1.0 - confidence) / (1.0 - said[best]).max(f32::MIN_POSITIVE);
        let each = |n: usize| if n == best { confidence } else { said[n] * rest };
        (P95Answer { bucket: Bucket::ALL[best], confidence }, std::array::from_fn(each))
    }

    /// How much each feature had to say: the mean of the first stage and the second; adds up to 1.
    pub fn importance(&self) -> Vec<f64> {
        let [low, high] = [0, 1].map(|side| self.upper[side].importance());
        let stages = self.high.importance().into_iter().zip(low.into_iter().zip(high));
        stages.map(|(first, (low, high))| (first + (low + high) / 2.0) / 2.0).collect()
    }
}

impl Model {
    /// What to reckon with for a VM of this size, of which this is known. Answers any numbers; check those
    /// that come from outside first ([`Features::check`](crate::Features::check)).
    pub fn predict(&self, known: &Evidence, cores: f64, memory_gb: f64) -> Prediction {
        let row = features::row(known, cores, memory_gb);
        Prediction::new(self.class.answer(&row), self.p95.answer(&row).0)
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
        if !(0.0..=NEVER).contains(&threshold) {
            return Err(format!("a threshold of {threshold}; 0 to {NEVER} is needed"));
        }
        self.class.calibration.check()?;
        self.p95.calibration.check()
    }
}
