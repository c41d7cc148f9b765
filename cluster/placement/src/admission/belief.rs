//! What is believed of a deployment: the laws of its cores, and how observations change them.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::gamma;
use super::vector::{exp, ln};

/// A Gamma law.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gamma {
    /// Above 0; below 1 the law has a peak at 0.
    pub shape: f64,
    /// The inverse of the scale; above 0.
    pub rate: f64,
}

impl Gamma {
    /// The law of this shape and rate.
    pub const fn new(shape: f64, rate: f64) -> Self {
        Self { shape, rate }
    }

    /// Its mean.
    pub fn mean(self) -> f64 {
        self.shape / self.rate
    }

    /// The mean of its square.
    pub fn mean_square(self) -> f64 {
        self.shape * (self.shape + 1.0) / (self.rate * self.rate)
    }

    /// The mean of a power of it: Γ(a + s) / (Γ(a) bˢ). Infinite where the power has no mean.
    pub fn mean_power(self, power: f64) -> f64 {
        gamma::ratio(self.shape, power) * exp(-power * ln(self.rate))
    }

    pub(super) fn check(self, law: &'static str) -> Result<(), BeliefError> {
        for (key, value) in [("shape", self.shape), ("rate", self.rate)] {
            if !(1e-6..=1e12).contains(&value) {
                return Err(BeliefError { law, key, value, allowed: "1e-6 to 1e12" });
            }
        }
        Ok(())
    }
}

/// A parameter that no belief can have.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("{law}{dot}{key} = {value}: {allowed}", dot = if law.is_empty() { "" } else { "." })]
pub struct BeliefError {
    /// The law's name; empty for a number outside of the laws.
    pub law: &'static str,
    /// As in a file of priors.
    pub key: &'static str,
    /// As it was given; may be no number.
    pub value: f64,
    /// A range, in words.
    pub allowed: &'static str,
}

/// What is believed of one deployment. Of a new one this is what is known of all: the population.
///
/// * A core lives exponentially, with rate `mu` (per hour).
/// * Scale-outs come at the rate `lambda · mu^kappa` (per hour), each of 1 + Poisson(`sigma`) cores.
/// * The whole deployment ends with rate `delta · mu`, or with its last core.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Belief {
    /// How the rate of a scale-out follows from the cores' rate of ending.
    pub kappa: f64,
    /// The mean number of a core's lives in a deployment's longest life, inverted.
    pub delta: f64,
    /// The rate at which a core ends, per hour.
    pub mu: Gamma,
    /// The rate of scale-outs, per hour to the power of 1 - kappa.
    pub lambda: Gamma,
    /// The mean number of cores in a scale-out, less one.
    pub sigma: Gamma,
}

/// What has been seen of a deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observed {
    /// How long it has been there, in hours.
    pub age_h: f64,
    /// The time that its cores have run, added up.
    pub core_hours: f64,
    /// How many of its cores have ended.
    pub core_ends: f64,
    /// How many scale-outs it has asked for, be they refused.
    pub scale_outs: f64,
    /// How many requests had a size: the first, and the scale-outs.
    pub requests: f64,
    /// The cores of these requests beyond one each.
    pub further_cores: f64,
}

impl Observed {
    /// A deployment that begins with so many cores.
    pub fn first(cores: f64) -> Self {
        Self { requests: 1.0, further_cores: (cores - 1.0).max(0.0), ..Self::default() }
    }

    /// One more scale-out.
    pub fn scale_out(&mut self, cores: f64) {
        self.scale_outs += 1.0;
        self.requests += 1.0;
        self.further_cores += (cores - 1.0).max(0.0);
    }
}

impl Belief {
    /// The main set of the experiments. It was chosen among parameters that fit the paper's four published numbers for its
    /// growth: long-lived deployments keep their size or grow.
    pub const SUB_B: Self = Self {
        kappa: 0.6992,
        delta: 0.02081,
        mu: Gamma::new(0.3138, 0.1211),
        lambda: Gamma::new(1.8415, 0.5193),
        sigma: Gamma::new(0.4220, 0.5254),
    };

    /// Another set that fits the four numbers as well: deployments only shrink in the long run.
    pub const SUB_A: Self = Self {
        kappa: 0.918,
        delta: 0.0283,
        mu: Gamma::new(0.306, 0.276),
        lambda: Gamma::new(0.942, 0.529),
        sigma: Gamma::new(0.699, 0.19),
    };

    /// Whether moments can be computed from it.
    ///
    /// # Errors
    /// The first parameter that is out of range.
    pub fn check(&self) -> Result<(), BeliefError> {
        for (key, value, allowed, ok) in [
            ("kappa", self.kappa, "0 to 2", (0.0..=2.0).contains(&self.kappa)),
            ("delta", self.delta, "0 to 10", (0.0..=10.0).contains(&self.delta)),
        ] {
            if !ok {
                return Err(BeliefError { law: "", key, value, allowed });
            }
        }
        self.mu.check("mu")?;
        self.lambda.check("lambda")?;
        self.sigma.check("sigma")
    }

    /// The belief after these observations, all of them since the deployment began.
    ///
    /// The laws of `mu` and `sigma` are conjugate. The exact posterior of `lambda` is no product: the mean of mu^kappa
    /// stands for mu^kappa, and is taken anew each time.
    pub fn posterior(&self, seen: &Observed) -> Self {
        self.posterior_and_pace(seen).0
    }

    /// The same, with the mean of mu^kappa.
    pub(super) fn posterior_and_pace(&self, seen: &Observed) -> (Self, f64) {
        // Its law of `mu` does not depend on the pace.
        let pace = self.posterior_at_pace(seen, 0.0).pace();
        (self.posterior_at_pace(seen, pace), pace)
    }

    /// The same with another mean of mu^kappa.
    pub(super) fn posterior_at_pace(&self, seen: &Observed, pace: f64) -> Self {
        let mu = Gamma::new(
            self.mu.shape + seen.core_ends,
            self.mu.rate + seen.core_hours + self.delta * seen.age_h,
        );
        let lambda = Gamma::new(self.lambda.shape + seen.scale_outs, self.lambda.rate + pace * seen.age_h);
        let sigma = Gamma::new(self.sigma.shape + seen.further_cores, self.sigma.rate + seen.requests);
        Self { mu, lambda, sigma, ..*self }
    }

    /// The mean of mu^kappa: how many units of normalised time pass in an hour.
    pub fn pace(&self) -> f64 {
        self.mu.mean_power(self.kappa)
    }

    /// The belief after `n` observations of each law: the sum of `n` cores' lives in hours, the cores beyond one of `n`
    /// scale-outs, and the scale-outs of `n` units of normalised time (in which `lambda` are expected).
    ///
    /// So a tenant or a template gives a new deployment a prior of its own.
    pub fn observing(&self, n: f64, lives_h: f64, further_cores: f64, scale_outs: f64) -> Self {
        Self {
            mu: Gamma::new(self.mu.shape + n, self.mu.rate + lives_h),
            lambda: Gamma::new(self.lambda.shape + scale_outs, self.lambda.rate + n),
            sigma: Gamma::new(self.sigma.shape + further_cores, self.sigma.rate + n),
            ..*self
        }
    }

    /// Whether a parameter differs by more than this share.
    pub fn differs(&self, other: &Self, share: f64) -> bool {
        let far = |a: f64, b: f64| a > b * (1.0 + share) || b > a * (1.0 + share);
        let law = |a: Gamma, b: Gamma| far(a.shape, b.shape) || far(a.rate, b.rate);
        law(self.mu, other.mu) || law(self.lambda, other.lambda) || law(self.sigma, other.sigma)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observations_move_the_laws_as_conjugate_priors_do() {
        let seen = Observed {
            age_h: 10.0,
            core_hours: 40.0,
            core_ends: 6.0,
            scale_outs: 2.0,
            requests: 3.0,
            further_cores: 5.0,
        };
        let prior = Belief::SUB_B;
        let belief = prior.posterior(&seen);
        assert_eq!(belief.mu, Gamma::new(6.3138, 0.1211 + 40.0 + 0.2081));
        assert_eq!(belief.sigma, Gamma::new(5.422, 3.5254));
        assert_eq!(belief.lambda.shape, 3.8415);
        let power = libm::tgamma(6.3138 + 0.6992) / libm::tgamma(6.3138) / libm::pow(40.3292, 0.6992);
        assert!((belief.lambda.rate - (0.5193 + 10.0 * power)).abs() < 1e-9);

        assert_eq!(prior.posterior(&Observed::default()), prior);
        assert_eq!(prior.observing(0.0, 0.0, 0.0, 0.0), prior);
        assert_eq!(prior.observing(5.0, 20.0, 3.0, 9.0).lambda, Gamma::new(10.8415, 5.5193));
        assert!(belief.differs(&prior, 0.03) && !belief.differs(&belief, 0.0));
    }

    #[test]
    fn a_parameter_out_of_range_is_named() {
        let bad = |change: &dyn Fn(&mut Belief)| {
            let mut belief = Belief::SUB_B;
            change(&mut belief);
            belief.check().unwrap_err().to_string()
        };
        assert_eq!(Belief::SUB_A.check(), Ok(()));
        assert_eq!(bad(&|it| it.kappa = f64::NAN), "kappa = NaN: 0 to 2");
        assert_eq!(bad(&|it| it.delta = -1.0), "delta = -1: 0 to 10");
        assert_eq!(bad(&|it| it.mu.shape = 0.0), "mu.shape = 0: 1e-6 to 1e12");
        assert_eq!(bad(&|it| it.sigma.rate = f64::INFINITY), "sigma.rate = inf: 1e-6 to 1e12");
    }
}
