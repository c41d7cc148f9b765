//! The law of deployments, fitted to what they did.
//!
//! Every deployment's likelihood with its parameters integrated out, maximised over all eight numbers. Its `sigma` stands by
//! itself and is integrated exactly; `lambda` too, given `mu`; and `mu` numerically, over steps of its logarithm.
//!
//! Cores that end together are a shutdown if they are two or more and the deployment's last: one core alone tells nothing of
//! why it ended, and counts as both.

use thiserror::Error;

use super::vector::{exp, ln};
use super::{Belief, Gamma, Observed};

/// Steps of the integral over mu, and rounds of the search.
const STEPS: usize = 40;
const ROUNDS: usize = 700;

/// What one deployment did while it was watched, from its first request on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct History {
    /// Cores that ended one by one, or some of many.
    pub core_ends: f64,
    /// The time that its cores have run, added up.
    pub core_hours: f64,
    /// Whether all of its last cores, two or more, ended together.
    pub shutdown: bool,
    /// Whether its last core ended alone.
    pub ended_alone: bool,
    /// How long it was watched, in hours.
    pub age_h: f64,
    /// How many scale-outs it had.
    pub scale_outs: f64,
    /// The first request, and the scale-outs.
    pub requests: f64,
    /// Cores of these beyond one each.
    pub further_cores: f64,
}

impl History {
    /// What beliefs are moved by.
    pub const fn observed(&self) -> Observed {
        let Self { age_h, core_hours, core_ends, scale_outs, requests, further_cores, .. } = *self;
        Observed { age_h, core_hours, core_ends, scale_outs, requests, further_cores }
    }
}

/// The law, and how well it fits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fitted {
    /// What is believed of a new deployment.
    pub law: Belief,
    /// The natural logarithm, added up over all histories, but for a constant.
    pub log_likelihood: f64,
    /// How many histories it was fitted to.
    pub deployments: usize,
}

/// Histories that tell too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FitError {
    /// Fewer than 30.
    #[error("{0} deployments: at least 30")]
    Few(usize),
    /// All events are at one time.
    #[error("no time passes between a deployment's events")]
    NoTime,
    /// Nobody knows how long a core lives.
    #[error("no core ends while its deployment goes on, so nothing is known of how long cores live")]
    NoEnds,
    /// Nobody knows how deployments grow.
    #[error("no deployment scales out, so nothing is known of how they grow")]
    NoScaleOuts,
}

/// Fits the law.
///
/// # Errors
/// What the histories do not tell.
pub fn fit(histories: &[History]) -> Result<Fitted, FitError> {
    let none = |of: fn(&History) -> f64| histories.iter().all(|it| of(it) <= 0.0);
    if histories.len() < 30 {
        return Err(FitError::Few(histories.len()));
    }
    if none(|it| it.core_hours) {
        return Err(FitError::NoTime);
    }
    if none(|it| it.core_ends) {
        return Err(FitError::NoEnds);
    }
    if none(|it| it.scale_outs) {
        return Err(FitError::NoScaleOuts);
    }

    // Where every request is of one core the search ends at the edge of what is allowed: sizes of one.
    let sizes = minimum(&[0.0, 0.0], |x| {
        let sigma = Gamma::new(exp(x[0]), exp(x[1]));
        if sigma.check("sigma").is_err() { f64::INFINITY } else { -sizes(histories, sigma) }
    });
    let start = Belief { sigma: Gamma::new(exp(sizes.0[0]), exp(sizes.0[1])), ..Belief::SUB_B };
    let law = |x: &[f64]| Belief {
        kappa: x[0],
        delta: exp(x[1]),
        mu: Gamma::new(exp(x[2]), exp(x[3])),
        lambda: Gamma::new(exp(x[4]), exp(x[5])),
        ..start
    };

    // Where cores end on the whole is a good place to begin.
    let (ends, hours) = histories.iter().fold((0.0, 0.0), |(a, b), it| (a + it.core_ends, b + it.core_hours));
    let begin = [0.8, ln(0.02), ln(0.4), ln(0.4 * (hours / ends).clamp(1e-3, 1e6)), 0.0, 0.0];
    let score = |x: &[f64]| {
        let law = law(x);
        if law.check().is_err() {
            f64::INFINITY
        } else {
            -histories.iter().map(|it| life(it, &law)).sum::<f64>()
        }
    };
    let first = minimum(&begin, score);
    let (best, value) = minimum(&first.0, score);
    Ok(Fitted { law: law(&best), log_likelihood: -value - sizes.1, deployments: histories.len() })
}

/// The logarithm of the likelihood of all sizes, but for a constant.
fn sizes(histories: &[History], sigma: Gamma) -> f64 {
    let Gamma { shape: a, rate: b } = sigma;
    let one = |it: &History| {
        let x = it.further_cores;
        log_gamma_ratio(a, x) + a * ln(b) - (a + x) * ln(b + it.requests)
    };
    histories.iter().map(one).sum()
}

/// ln Γ(a + n) / Γ(a).
fn log_gamma_ratio(a: f64, n: f64) -> f64 {
    if n == 0.0 { 0.0 } else { libm::lgamma(a + n) - libm::lgamma(a) }
}

/// The logarithm of the likelihood of ends and scale-outs of one deployment, but for a constant.
fn life(it: &History, law: &Belief) -> f64 {
    let (a, b) = (law.mu.shape, law.mu.rate);
    let (al, bl, kappa) = (law.lambda.shape, law.lambda.rate, law.kappa);
    let ends = it.core_ends + f64::from(u8::from(it.shutdown));
    let rate = b + it.core_hours + law.delta * it.age_h;
    let power = a + ends + kappa * it.scale_outs;

    // In y = ln mu the integrand is exp(power y - rate e^y - (al + n) ln(bl + age e^(kappa y))).
    let n = al + it.scale_outs;
    let at = |y: f64| power * y - rate * exp(y) - n * ln(bl + it.age_h * exp(kappa * y));
    let mut mode = ln(power / rate);
    for _ in 0..12 {
        let (e, p) = (rate * exp(mode), it.age_h * exp(kappa * mode));
        let share = p / (bl + p);
        let slope = power - e - n * kappa * share;
        let bend = e + n * kappa * kappa * share * (1.0 - share);
        mode += (slope / bend.max(0.05 * (1.0 + power))).clamp(-3.0, 3.0);
    }
    let (e, p) = (rate * exp(mode), it.age_h * exp(kappa * mode));
    let share = p / (bl + p);
    let width = 1.0 / libm::sqrt((e + n * kappa * kappa * share * (1.0 - share)).max(1e-9));

    // Below the mode it may fall as slowly as mu to the power of its shape, above as an exponential.
    let (low, high) = (mode - (6.0 * width).max((14.0 / power).min(60.0)), mode + (6.0 * width).min(6.0));
    let step = (high - low) / STEPS as f64;
    let peak = at(mode);
    let sum: f64 = (0..=STEPS).map(|i| exp(at(low + step * i as f64) - peak)).sum();

    let shut = if it.shutdown { ln(law.delta) } else { 0.0 };
    let alone = if it.ended_alone { libm::log1p(law.delta) } else { 0.0 };
    a * ln(b) - libm::lgamma(a)
        + log_gamma_ratio(al, it.scale_outs)
        + al * ln(bl)
        + shut
        + alone
        + peak
        + ln(sum * step)
}

/// Nelder and Mead's search for the lowest value; where it is, and what.
fn minimum(begin: &[f64], of: impl Fn(&[f64]) -> f64) -> (Vec<f64>, f64) {
    let n = begin.len();
    let scored = |x: Vec<f64>| {
        let value = of(&x);
        (x, value)
    };
    let mut simplex: Vec<(Vec<f64>, f64)> = vec![scored(begin.to_vec())];
    for i in 0..n {
        let mut corner = begin.to_vec();
        corner[i] += 0.25;
        simplex.push(scored(corner));
    }

    for _ in 0..ROUNDS {
        simplex.sort_by(|a, b| a.1.total_cmp(&b.1));
        if (simplex[n].1 - simplex[0].1).abs() < 1e-4 {
            break;
        }
        let centre: Vec<f64> =
            (0..n).map(|i| simplex[..n].iter().map(|it| it.0[i]).sum::<f64>() / n as f64).collect();
        let towards = |factor: f64, from: &[f64]| -> Vec<f64> {
            centre.iter().zip(from).map(|(c, x)| c + factor * (x - c)).collect()
        };
        let worst = simplex[n].clone();
        let reflected = scored(towards(-1.0, &worst.0));
        if reflected.1 < simplex[0].1 {
            let further = scored(towards(-2.0, &worst.0));
            simplex[n] = if further.1 < reflected.1 { further } else { reflected };
        } else if reflected.1 < simplex[n - 1].1 {
            simplex[n] = reflected;
        } else {
            let inside = if reflected.1 < worst.1 { &reflected.0 } else { &worst.0 };
            let nearer = scored(towards(0.5, inside));
            if nearer.1 < worst.1.min(reflected.1) {
                simplex[n] = nearer;
            } else {
                let best = simplex[0].0.clone();
                for corner in &mut simplex[1..] {
                    let x = best.iter().zip(&corner.0).map(|(b, x)| b + 0.5 * (x - b)).collect();
                    *corner = scored(x);
                }
            }
        }
    }
    simplex.sort_by(|a, b| a.1.total_cmp(&b.1));
    simplex.swap_remove(0)
}
