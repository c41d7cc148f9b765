//! The moments of a deployment that ends with its last core.
//!
//! For one (mu, sigma, rate): the chance to have no core or one, from the ages of batches, gives the rate at which
//! deployments end; new cores come only to those that are left. The three laws are summed on a grid.

use super::{Belief, Form, Gamma, Moments};

/// Points of the grid for mu, lambda and sigma; and steps of time.
const POINTS: (usize, usize, usize) = (48, 12, 12);
const STEPS: usize = 48;

pub(super) fn moments(belief: &Belief, cores: f64, hours: f64) -> Moments {
    let free = belief.moments(Form::Exact, cores, hours);
    if hours <= 0.0 || free.mean <= 0.0 {
        return free;
    }
    let (lambdas, sigmas) = (grid(belief.lambda, POINTS.1), grid(belief.sigma, POINTS.2));
    let (mut mean, mut unabsorbed) = (0.0, 0.0);
    for (mu, weight) in grid(belief.mu, POINTS.0) {
        for (sigma, more) in &sigmas {
            for (lambda, most) in &lambdas {
                let weight = weight * more * most * libm::exp(-belief.delta * mu * hours);
                let rate = lambda * libm::pow(mu, belief.kappa);
                let (with, without) = one(cores, mu, rate, *sigma, hours);
                mean += weight * with;
                unabsorbed += weight * without;
            }
        }
    }

    // The grid's own error is in both: only their ratio is used.
    let share = mean / unabsorbed;
    Moments { mean: free.mean * share, variance: free.variance * share }
}

/// The cores of one deployment whose laws are certain: with absorption, and without.
fn one(cores: f64, mu: f64, rate: f64, sigma: f64, hours: f64) -> (f64, f64) {
    // Steps grow as a square: most happens soon after the beginning, on the scale of a core's life.
    let time = |i: usize| hours * libm::pow(i as f64 / STEPS as f64, 3.0);
    let old = cores * libm::exp(-mu * hours);
    let (mut none, mut single) = (0.0, 0.0);
    let (mut hazard, mut end, mut new) = (0.0, 0.0, 0.0);

    for i in 0..STEPS {
        let (from, to) = (time(i), time(i + 1));
        let middle = 0.5 * (from + to);

        // Scale-outs of this age: how many of their cores are left.
        let p = libm::exp(-mu * middle);
        let gone = libm::exp(-sigma * p);
        none += (to - from) * (1.0 - (1.0 - p) * gone);
        single += (to - from) * p * gone * (1.0 + sigma * (1.0 - p));

        let q = 1.0 - libm::exp(-mu * to);
        let empty = libm::pow(q, cores) * libm::exp(-rate * none);
        let last = libm::exp(-rate * none)
            * (cores * libm::exp(-mu * to) * libm::pow(q, cores - 1.0) + libm::pow(q, cores) * rate * single);
        let next = if empty < 1.0 { mu * last / (1.0 - empty) } else { 0.0 };
        let before = hazard;
        hazard += (to - from) * 0.5 * (end + next);
        end = next;

        let left = libm::exp(-0.5 * (before + hazard));
        new += left * (libm::exp(-mu * (hours - to)) - libm::exp(-mu * (hours - from)));
    }
    let arrived = rate / mu * (1.0 + sigma);
    (old + arrived * new, old + arrived * (1.0 - libm::exp(-mu * hours)))
}

/// A law as points with weights that add up to 1: steps of its logarithm.
fn grid(law: Gamma, points: usize) -> Vec<(f64, f64)> {
    let Gamma { shape, rate } = law;
    let low = -9.0 / shape.min(1.0);
    let high = libm::log(shape + 6.0 * libm::sqrt(shape) + 12.0);
    let low = low.max(libm::log(shape) - 6.0 / libm::sqrt(shape) - 9.0 / shape.min(1.0));
    let step = (high - low) / points as f64;
    let point = |i| {
        let y = low + (i as f64 + 0.5) * step;
        (libm::exp(y) / rate, libm::exp(shape * y - libm::exp(y) - shape * libm::log(shape)))
    };
    let all: Vec<_> = (0..points).map(point).collect();
    let sum: f64 = all.iter().map(|it| it.1).sum();
    all.into_iter().map(|(x, weight)| (x, weight / sum)).collect()
}
