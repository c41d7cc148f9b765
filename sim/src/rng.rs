//! Seeded random numbers: one stream for every source of chance, so that adding one changes no other.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// What a stream is for; part of its name.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    ServerMeter = 1,
    SupplyInput = 2,
    SupplyOutput = 3,
    Arrivals = 4,
    Generator = 5,
    Scenario = 6,
    Baseline = 7,
    Cluster = 8,
    Oversubscription = 9,
    Placement = 10,
    Packing = 11,
    Foresight = 12,
    Lifetimes = 13,
    Services = 14,
}

#[derive(Clone, Debug)]
pub struct Stream(ChaCha8Rng);

impl Stream {
    pub fn new(seed: u64, purpose: Purpose, a: u64, b: u64) -> Self {
        let mut name = SipHasher13::new();
        for word in [purpose as u64, a, b] {
            name.write_u64(word.to_le());
        }
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(name.finish());
        Self(rng)
    }

    /// Uniform in 0..1, 53 bits.
    pub fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// One of 0..n, each as likely; 0 where there is none.
    pub fn below(&mut self, n: usize) -> usize {
        ((self.uniform() * n as f64) as usize).min(n.saturating_sub(1))
    }

    /// Exponential with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -libm::log(1.0 - self.uniform())
    }

    /// Standard normal (Box and Muller), cut off at four standard deviations.
    pub fn normal(&mut self) -> f64 {
        let radius = libm::sqrt(2.0 * self.exponential());
        let angle = 2.0 * core::f64::consts::PI * self.uniform();
        (radius * libm::cos(angle)).clamp(-4.0, 4.0)
    }

    /// Gamma of this shape, at least 1, and scale 1 (Marsaglia and Tsang 2000).
    pub fn gamma(&mut self, shape: f64) -> f64 {
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / libm::sqrt(9.0 * d);
        loop {
            let x = self.normal();
            let v = libm::pow(1.0 + c * x, 3.0);
            if v > 0.0 && libm::log(1.0 - self.uniform()) < 0.5 * x * x + d - d * v + d * libm::log(v) {
                return d * v;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_named_not_numbered() {
        let first = |seed, a| Stream::new(seed, Purpose::Arrivals, a, 0).uniform();
        assert_eq!(first(1, 2).to_bits(), first(1, 2).to_bits());
        assert!(first(1, 2) != first(1, 3));
        assert!(first(1, 2) != first(2, 2));
    }

    #[test]
    fn moments_are_those_of_the_laws() {
        let mut s = Stream::new(7, Purpose::Generator, 0, 0);
        let n = 40_000;
        let mean = |f: &mut dyn FnMut() -> f64| (0..n).map(|_| f()).sum::<f64>() / f64::from(n);
        assert!((mean(&mut || s.uniform()) - 0.5).abs() < 0.01);
        assert!((mean(&mut || s.exponential()) - 1.0).abs() < 0.03);
        assert!(mean(&mut || s.normal()).abs() < 0.03);
        assert!((mean(&mut || libm::pow(s.normal(), 2.0)) - 1.0).abs() < 0.04);
        assert!((mean(&mut || s.gamma(16.0)) - 16.0).abs() < 0.1);
        assert!((mean(&mut || libm::pow(s.gamma(2.0) - 2.0, 2.0)) - 2.0).abs() < 0.1);
    }
}
