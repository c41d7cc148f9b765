//! The moments with the paper's simplification: what depends on each other is taken as independent.
//!
//! Nearest to Propositions 4.3 and 4.5. The mean comes out too high, by 1 to 4 % a day ahead and up to three times a
//! month ahead; the exact form is cheaper and better, and this one is for comparison.

use super::{Belief, Moments, gamma};

pub(super) fn moments(belief: &Belief, cores: f64, hours: f64) -> Moments {
    let (a, b, t) = (belief.mu.shape, belief.mu.rate, hours);
    if t <= 0.0 {
        return Moments { mean: cores, variance: 0.0 };
    }
    let survives = |k: f64| libm::pow(b / (b + k * t), a);

    // E[(1 - e^(-k t mu)) / (k t mu)]: how much of a core that came in between is left on average.
    let left = |k: f64| {
        let s = if (a - 1.0).abs() < 1e-3 { -0.999 } else { -1.0 };
        gamma::ratio(a, s) * (libm::pow(b, -s) - survives(k) * libm::pow(b + k * t, -s)) / (k * t)
    };

    // The cores that are there.
    let (p1, p2) = (survives(1.0), survives(2.0));
    let old = cores * p1;
    let old_variance = cores * (p1 - p2) + cores * cores * (p2 - p1 * p1);

    // The cores that come: so many scale-outs, and what is left of each.
    let power = belief.mu.mean_power(belief.kappa);
    let power_square = belief.mu.mean_power(2.0 * belief.kappa);
    let outs = belief.lambda.mean() * t * power;
    let outs_variance = outs + t * t * (belief.lambda.mean_square() * power_square) - outs * outs;
    let (q1, q2) = (left(1.0), left(2.0));
    let size = 1.0 + belief.sigma.mean();
    let pairs = 2.0 * belief.sigma.mean() + belief.sigma.mean_square();
    let one = size * q1;
    let new = outs * one;
    let new_variance = outs * (one + pairs * q2 - one * one) + outs_variance * one * one;

    let alive = survives(belief.delta);
    let all = old + new;
    let square = old_variance + new_variance + all * all;
    Moments { mean: alive * all, variance: (alive * square - alive * alive * all * all).max(0.0) }
}
