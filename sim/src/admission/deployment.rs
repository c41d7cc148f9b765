//! One deployment's hidden parameters, and what a provider has seen of others like it.

use ballast_placement::admission::Belief;

use super::chance::{Chance, Purpose};

/// Parameters that nobody is told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hidden {
    /// The rate at which a core ends, per hour.
    pub(super) mu: f64,
    /// The rate of scale-outs in normalised time.
    pub(super) lambda: f64,
    /// The rate of scale-outs, per hour.
    pub(super) rate: f64,
    /// The mean number of cores in a request, less one.
    pub(super) sigma: f64,
    /// e to the power of -sigma: the share of requests for one core.
    pub(super) single: f64,
}

impl Hidden {
    pub(super) fn draw(law: &Belief, chance: &mut Chance) -> Self {
        let mu = chance.gamma(law.mu.shape) / law.mu.rate;
        let lambda = chance.gamma(law.lambda.shape) / law.lambda.rate;
        let sigma = chance.gamma(law.sigma.shape) / law.sigma.rate;
        Self { mu, lambda, rate: lambda * libm::pow(mu, law.kappa), sigma, single: libm::exp(-sigma) }
    }

    pub(super) fn size(&self, chance: &mut Chance) -> u32 {
        1 + chance.poisson(self.sigma, self.single)
    }

    /// What is believed after `n` observations of each of its laws. The first of five are those of one.
    pub(super) fn observed(&self, law: &Belief, n: u32, chance: &mut Chance) -> Belief {
        let none = libm::exp(-self.lambda);
        let (mut lives, mut further, mut outs) = (0.0, 0.0, 0.0);
        for _ in 0..n {
            lives += chance.exponential() / self.mu;
            further += f64::from(chance.poisson(self.sigma, self.single));
            outs += f64::from(chance.poisson(self.lambda, none));
        }
        law.observing(f64::from(n), lives.min(1e11), further, outs)
    }
}

pub(super) struct Newcomer {
    pub(super) hidden: Hidden,
    pub(super) cores: u32,
    /// How long it lives at most, in hours.
    pub(super) life_h: f64,
    /// For all that happens to it after its arrival.
    pub(super) chance: Chance,
}

impl Newcomer {
    pub(super) fn draw(law: &Belief, seed: u64, run: u64, index: u64) -> Self {
        let mut chance = Chance::new(seed, Purpose::Deployment, run, index);
        let hidden = Hidden::draw(law, &mut chance);
        let life_h = chance.exponential() / (law.delta * hidden.mu);
        let cores = hidden.size(&mut chance);
        Self { hidden, cores, life_h, chance }
    }
}
