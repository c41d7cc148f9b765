//! What a model says of a VM, and what a careful scheduler makes of it.

use ballast_types::{Utilisation, VmClass};
use serde::{Deserialize, Serialize};

use crate::vm::Bucket;

/// Below this confidence a prediction is not acted on (paper, III-B).
pub const CONFIDENT: f32 = 0.6;

/// What a model says of a VM's class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassAnswer {
    pub class: VmClass,
    /// The model's probability that this is right; 0 to 1.
    pub confidence: f32,
}

impl ClassAnswer {
    /// The answer for a probability of being batch: batch from `threshold` on, user-facing below.
    pub(crate) fn of(batch: f32, threshold: f32) -> Self {
        if batch >= threshold {
            Self { class: VmClass::NonUserFacing, confidence: batch }
        } else {
            Self { class: VmClass::UserFacing, confidence: 1.0 - batch }
        }
    }

    /// Whether it may be acted on.
    pub fn confident(self) -> bool {
        self.confidence >= CONFIDENT
    }

    /// The class to act on: user-facing where the model is not sure.
    pub fn acted_on(self) -> VmClass {
        if self.confident() { self.class } else { VmClass::UserFacing }
    }
}

/// What a model says of a VM's P95 utilisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct P95Answer {
    pub bucket: Bucket,
    /// How likely the bucket is the right one; 0 to 1.
    pub confidence: f32,
}

impl P95Answer {
    /// Whether it may be acted on.
    pub fn confident(self) -> bool {
        self.confidence >= CONFIDENT
    }

    /// The bucket to act on: the highest where the model is not sure.
    pub fn acted_on(self) -> Bucket {
        if self.confident() { self.bucket } else { Bucket::HIGHEST }
    }
}

/// What to reckon with for a VM. The two halves stand for themselves: one may be sure without the other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The class to act on: user-facing unless a model is confident that it is not.
    pub class: VmClass,
    /// How sure the model is of its own answer; 0 without a model.
    pub class_confidence: f32,
    /// Whether that is enough to act on.
    pub class_confident: bool,
    /// The bucket of P95 utilisation to act on, 1 to 4: the highest unless a model is confident.
    pub p95_bucket: Bucket,
    /// The upper edge of that bucket, in percent.
    pub p95_percent: u8,
    /// How sure the model is of its own answer; 0 without a model.
    pub p95_confidence: f32,
    /// Whether that is enough to act on.
    pub p95_confident: bool,
}

impl Prediction {
    /// What to reckon with for these answers.
    pub fn new(class: ClassAnswer, p95: P95Answer) -> Self {
        let bucket = p95.acted_on();
        Self {
            class: class.acted_on(),
            class_confidence: class.confidence,
            class_confident: class.confident(),
            p95_bucket: bucket,
            p95_percent: bucket.upper_percent(),
            p95_confidence: p95.confidence,
            p95_confident: p95.confident(),
        }
    }

    /// Class and P95, each only where the model is confident: what a scheduler is told.
    pub fn sure(&self) -> (Option<VmClass>, Option<Utilisation>) {
        let p95 = Utilisation::from_ratio(f64::from(self.p95_percent) / 100.0);
        (self.class_confident.then_some(self.class), p95.filter(|_| self.p95_confident))
    }

    /// What to reckon with where there is no model: user-facing, and 100 %.
    pub fn unknown() -> Self {
        Self::new(
            ClassAnswer { class: VmClass::UserFacing, confidence: 0.0 },
            P95Answer { bucket: Bucket::HIGHEST, confidence: 0.0 },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_the_gate_the_careful_answer_stands() {
        let p95 = |confidence| P95Answer { bucket: Bucket::ALL[0], confidence };
        // Probability of batch, threshold; what is acted on.
        for (batch, threshold, class, confident) in [
            (0.95, 0.9, VmClass::NonUserFacing, true),
            (0.85, 0.9, VmClass::UserFacing, false),
            (0.5, 0.6, VmClass::UserFacing, false),
            (0.3, 0.6, VmClass::UserFacing, true),
        ] {
            let answer = ClassAnswer::of(batch, threshold);
            assert_eq!((answer.acted_on(), answer.confident()), (class, confident), "{batch}");
            // Class and P95 are sure or not each for itself.
            for (confidence, percent) in [(0.59, 100), (0.6, 25)] {
                let prediction = Prediction::new(answer, p95(confidence));
                assert_eq!((prediction.class, prediction.p95_percent), (class, percent));
            }
        }
    }

    #[test]
    fn without_a_model_everybody_is_user_facing_and_busy() {
        let unknown = Prediction::unknown();
        assert_eq!((unknown.class, unknown.p95_percent), (VmClass::UserFacing, 100));
        assert!(!unknown.class_confident && !unknown.p95_confident);
    }
}
