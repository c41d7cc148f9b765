//! What boosting makes small.

use crate::Link;

/// Where a row's score should go, and how sharply its loss bends there.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gradient {
    /// First derivative of the loss by the score.
    pub first: f32,
    /// Second derivative, or a positive bound of it; a negative one counts as 0.
    pub second: f32,
}

/// A loss that boosting can make small: a sum over rows, differentiable twice.
///
/// A row has [`Loss::outputs`] scores; each is a sum of trees of its own.
pub trait Loss: Sync {
    /// Number of scores of a row: 1 to [`MAX_CLASSES`](crate::MAX_CLASSES).
    fn outputs(&self) -> usize;

    /// How scores become answers.
    fn link(&self) -> Link;

    /// The scores to begin with, one for every output, from the rows that are learnt from and their weights.
    fn start(&self, rows: &mut dyn Iterator<Item = (usize, f32)>) -> Vec<f32>;

    /// The derivatives of a row's loss by its scores, for weight 1.
    fn gradients(&self, row: usize, scores: &[f32], out: &mut [Gradient]);

    /// A row's loss, for weight 1: early stopping compares its mean.
    fn loss(&self, row: usize, scores: &[f32]) -> f64;
}

/// 1 / (1 + e⁻ˣ).
pub(crate) fn logistic(score: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-score))
}

pub(crate) fn softmax(scores: &[f64], out: &mut [f32]) {
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let all: f64 = scores.iter().map(|score| libm::exp(score - most)).sum();
    for (out, score) in out.iter_mut().zip(scores) {
        *out = (libm::exp(score - most) / all) as f32;
    }
}

/// ln(1 + eˣ), without overflow.
fn log_one_plus_exp(x: f64) -> f64 {
    x.max(0.0) + libm::log1p(libm::exp(-x.abs()))
}

/// Log-loss of two classes.
pub(crate) struct Logistic<'a>(pub(crate) &'a [u32]);

impl Loss for Logistic<'_> {
    fn outputs(&self) -> usize {
        1
    }

    fn link(&self) -> Link {
        Link::Logistic
    }

    fn start(&self, rows: &mut dyn Iterator<Item = (usize, f32)>) -> Vec<f32> {
        let shares = class_shares(self.0, 2, rows);
        vec![libm::log(shares[1] / shares[0]) as f32]
    }

    fn gradients(&self, row: usize, scores: &[f32], out: &mut [Gradient]) {
        let share = 1.0 / (1.0 + libm::expf(-scores[0]));
        out[0] = Gradient { first: share - self.0[row] as f32, second: share * (1.0 - share) };
    }

    fn loss(&self, row: usize, scores: &[f32]) -> f64 {
        let score = f64::from(scores[0]);
        log_one_plus_exp(if self.0[row] == 1 { -score } else { score })
    }
}

/// Log-loss of several classes.
pub(crate) struct Softmax<'a> {
    pub(crate) labels: &'a [u32],
    pub(crate) classes: usize,
}

impl Loss for Softmax<'_> {
    fn outputs(&self) -> usize {
        self.classes
    }

    fn link(&self) -> Link {
        Link::Softmax
    }

    fn start(&self, rows: &mut dyn Iterator<Item = (usize, f32)>) -> Vec<f32> {
        let shares = class_shares(self.labels, self.classes, rows);
        shares.into_iter().map(|share| libm::log(share) as f32).collect()
    }

    fn gradients(&self, row: usize, scores: &[f32], out: &mut [Gradient]) {
        let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let all: f32 = scores.iter().map(|score| libm::expf(score - most)).sum();
        // Only K - 1 of the scores are free: J. Friedman, Greedy function approximation, 2001, section 4.6.
        let bend = self.classes as f32 / (self.classes - 1) as f32;
        for (class, (out, score)) in out.iter_mut().zip(scores).enumerate() {
            let share = libm::expf(score - most) / all;
            let label = f32::from(u8::from(self.labels[row] as usize == class));
            *out = Gradient { first: share - label, second: bend * share * (1.0 - share) };
        }
    }

    fn loss(&self, row: usize, scores: &[f32]) -> f64 {
        let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let all: f64 = scores.iter().map(|score| libm::exp(f64::from(score - most))).sum();
        libm::log(all) - f64::from(scores[self.labels[row] as usize] - most)
    }
}

/// Half the squared error: its second derivative is 1.
pub(crate) struct Squared<'a>(pub(crate) &'a [f32]);

impl Loss for Squared<'_> {
    fn outputs(&self) -> usize {
        1
    }

    fn link(&self) -> Link {
        Link::Identity
    }

    fn start(&self, rows: &mut dyn Iterator<Item = (usize, f32)>) -> Vec<f32> {
        let (mut sum, mut weights) = (0.0, 0.0);
        for (row, weight) in rows {
            sum += f64::from(weight) * f64::from(self.0[row]);
            weights += f64::from(weight);
        }
        vec![(sum / weights) as f32]
    }

    fn gradients(&self, row: usize, scores: &[f32], out: &mut [Gradient]) {
        out[0] = Gradient { first: scores[0] - self.0[row], second: 1.0 };
    }

    fn loss(&self, row: usize, scores: &[f32]) -> f64 {
        let error = f64::from(scores[0]) - f64::from(self.0[row]);
        error * error
    }
}

/// Every class's share of the weight, kept away from 0 so that its logarithm is finite.
fn class_shares(labels: &[u32], classes: usize, rows: &mut dyn Iterator<Item = (usize, f32)>) -> Vec<f64> {
    let mut shares = vec![0.0; classes];
    rows.for_each(|(row, weight)| shares[labels[row] as usize] += f64::from(weight));
    let all: f64 = shares.iter().sum();
    shares.into_iter().map(|share| (share / all).max(1e-6)).collect()
}
