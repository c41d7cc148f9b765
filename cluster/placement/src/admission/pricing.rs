//! Variance pricing: a deployment pays for its cores, and for how uncertain its size is.
//!
//! A user with deployments of two types may label them or not. Unlabelled, the provider's belief is a mixture, whose
//! variance is at least the mean of the two: labels never cost. One Gamma posterior for both types together is no
//! mixture, and can be *cheaper* than labels: see the test of this file.

use super::Moments;

/// Mean and variance of a deployment that is of the first kind with probability `p`, and of the second else.
pub fn mixture(p: f64, first: Moments, second: Moments) -> Moments {
    let between = first.mean - second.mean;
    Moments {
        mean: p * first.mean + (1.0 - p) * second.mean,
        variance: p * first.variance + (1.0 - p) * second.variance + p * (1.0 - p) * between * between,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::admission::{Belief, Form};

    fn belief() -> impl Strategy<Value = Belief> {
        (0.0..50.0_f64, 0.01..2000.0_f64, 0.0..60.0_f64, 0.0..80.0_f64).prop_map(|(n, lives, cores, outs)| {
            Belief::SUB_A.observing(n.floor(), lives, cores.floor(), outs.floor())
        })
    }

    proptest! {
        #[test]
        fn labels_never_cost_under_the_mixture(
            first in belief(),
            second in belief(),
            p in 0.0..=1.0_f64,
            hours in 1.0..720.0_f64,
            cores in 1..50_u32,
        ) {
            let [a, b] = [first, second].map(|it| it.moments(Form::Exact, f64::from(cores), hours));
            let labelled = p * a.variance + (1.0 - p) * b.variance;
            let unlabelled = mixture(p, a, b).variance;
            prop_assert!(unlabelled >= labelled * (1.0 - 1e-12), "{unlabelled} {labelled}");
        }
    }

    /// The laws of both types are observed once each. The posterior of both together has twice the observations, and
    /// knows nothing of two types: it is less uncertain than either label.
    #[test]
    fn one_posterior_for_two_types_is_cheaper_than_their_labels() {
        let of = |(n, lives, cores, outs)| {
            Belief::SUB_A.observing(n, lives, cores, outs).moments(Form::Exact, 4.0, 24.0)
        };
        let [first, second] = [(1.0, 5.0, 1.0, 1.0), (1.0, 50.0, 1.0, 2.0)].map(of);
        let pooled = of((2.0, 55.0, 2.0, 3.0)).variance;

        let labelled = 0.5 * (first.variance + second.variance);
        let mixed = mixture(0.5, first, second).variance;
        assert!(pooled < 0.75 * labelled, "pooled {pooled} labelled {labelled}");
        assert!(mixed > labelled, "mixture {mixed} labelled {labelled}");
    }
}
