//! How good answers are: the columns of the paper's Table III, loss, and calibration.

use serde::{Deserialize, Serialize};

use crate::answer::CONFIDENT;

/// Bins of the reliability table: tenths of confidence.
pub const BINS: usize = 10;

/// One answer beside the truth. Classes and buckets are numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    pub truth: usize,
    pub said: usize,
    pub confidence: f32,
    /// Squared error of the probabilities (Brier): 0 is best.
    pub loss: f64,
    /// How often the best possible answer is right here; NaN where nobody knows.
    pub ceiling: f64,
}

/// How good many answers are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    pub rows: u64,
    /// The share that was confident.
    pub confident: f64,
    /// Of the confident answers, by class or bucket.
    pub each: Vec<Each>,
    /// The share of right ones among the confident answers.
    pub accuracy: f64,
    /// The share of right ones among all, sure or not.
    pub accuracy_all: f64,
    /// Mean squared error of the probabilities, over all.
    pub loss: f64,
    /// What the best possible predictor would reach on the confident answers, and on all; NaN where nobody
    /// knows.
    pub ceiling: f64,
    /// The same over all.
    pub ceiling_all: f64,
    /// By tenths of confidence, over all.
    pub reliability: Vec<Bin>,
    /// By how much confidence and the share of right answers differ, in the mean over all answers, compared
    /// within tenths of confidence: the expected calibration error.
    pub calibration_error: f64,
}

/// How good the confident answers are for one class or bucket. NaN where there was none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Each {
    /// How many there were in truth.
    pub rows: u64,
    /// Share of these that was said to be so.
    pub recall: f64,
    /// Share of those said to be so that were.
    pub precision: f64,
}

/// Answers of about the same confidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bin {
    pub rows: u64,
    pub confidence: f64,
    /// The share that was right.
    pub right: f64,
}

impl Scores {
    /// Scores answers to a question with `kinds` possible answers.
    pub fn of(kinds: usize, answers: &[Scored]) -> Self {
        let sure: Vec<&Scored> = answers.iter().filter(|a| a.confidence >= CONFIDENT).collect();
        let all: Vec<&Scored> = answers.iter().collect();
        let right = |a: &Scored| f64::from(u8::from(a.truth == a.said));
        let each = |kind: usize| {
            let count = |test: &dyn Fn(&Scored) -> bool| sure.iter().filter(|a| test(a)).count();
            let hits = count(&|a| a.truth == kind && a.said == kind) as f64;
            let rows = count(&|a| a.truth == kind);

            Each {
                rows: rows as u64,
                recall: hits / rows as f64,
                precision: hits / count(&|a| a.said == kind) as f64,
            }
        };

        let bin = |n: usize| {
            let place = |a: &Scored| ((a.confidence * BINS as f32) as usize).min(BINS - 1);
            let inside: Vec<&Scored> = answers.iter().filter(|a| place(a) == n).collect();
            let confidence = mean(&inside, |a| f64::from(a.confidence));

            Bin { rows: inside.len() as u64, confidence, right: mean(&inside, right) }
        };

        let reliability: Vec<Bin> = (0..BINS).map(bin).collect();
        let apart = |bin: &Bin| bin.rows as f64 * (bin.confidence - bin.right).abs();
        let apart: f64 = reliability.iter().filter(|bin| bin.rows > 0).map(apart).sum();

        Self {
            rows: answers.len() as u64,
            confident: sure.len() as f64 / answers.len() as f64,
            each: (0..kinds).map(each).collect(),
            accuracy: mean(&sure, right),
            accuracy_all: mean(&all, right),
            loss: mean(&all, |a| a.loss),
            ceiling: mean(&sure, |a| a.ceiling),
            ceiling_all: mean(&all, |a| a.ceiling),
            reliability,
            calibration_error: apart / answers.len() as f64,
        }
    }
}

/// The mean; NaN of nothing.
fn mean(answers: &[&Scored], value: impl Fn(&Scored) -> f64) -> f64 {
    answers.iter().map(|a| value(a)).sum::<f64>() / answers.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored(truth: usize, said: usize, confidence: f32) -> Scored {
        Scored { truth, said, confidence, loss: 0.5, ceiling: 0.9 }
    }

    #[test]
    fn table_three_is_of_confident_answers_alone() {
        let answers = [
            scored(0, 0, 0.95),
            scored(0, 1, 0.61),
            scored(1, 1, 0.95),
            scored(1, 1, 0.75),
            scored(0, 1, 0.59),
        ];
        let scores = Scores::of(2, &answers);
        assert_eq!((scores.rows, scores.confident), (5, 0.8));
        assert_eq!((scores.each[0].recall, scores.each[0].precision), (0.5, 1.0));
        assert_eq!((scores.each[1].recall, scores.each[1].precision), (1.0, 2.0 / 3.0));
        assert_eq!((scores.accuracy, scores.accuracy_all), (0.75, 0.6));
        let bin = scores.reliability[9];
        assert_eq!((bin.rows, bin.right), (2, 1.0));
        // One of 0.59, 0.61, 0.75 each and two of 0.95: wrong, wrong, right, right.
        let apart = (0.59 + 0.61 + 0.25 + 2.0 * 0.05) / 5.0;
        assert!((scores.calibration_error - apart).abs() < 1e-6, "{}", scores.calibration_error);
        assert_eq!(scores.reliability.iter().map(|bin| bin.rows).sum::<u64>(), 5);
    }

    #[test]
    fn of_nothing_nothing_is_known() {
        let scores = Scores::of(2, &[]);
        assert!(scores.accuracy.is_nan() && scores.each[0].recall.is_nan());
        let unsure = Scores::of(2, &[scored(0, 0, 0.1)]);
        assert!(unsure.accuracy.is_nan() && unsure.confident == 0.0);
    }
}
