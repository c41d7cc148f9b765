//! The random numbers of one deployment.

use ballast_placement::admission::vector::ln;
use ballast_types::SplitMix64;

/// A small generator: a thousand of them are live at once, and each is touched at random. The numbers of
/// [`crate::rng::Stream`] are better, in thirty times the memory.
#[derive(Clone, Debug)]
pub(super) struct Chance(SplitMix64);

/// What the numbers are for; part of the seed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    Arrivals = 1,
    Deployment = 2,
    Observations = 3,
    OtherType = 4,
}

impl Chance {
    pub(super) fn new(seed: u64, purpose: Purpose, run: u64, index: u64) -> Self {
        let words = [purpose as u64, run, index];
        let seed = words.iter().fold(seed, |state, word| {
            SplitMix64::finalise(state.wrapping_add(SplitMix64::GOLDEN))
                ^ word.wrapping_mul(SplitMix64::GOLDEN)
        });
        Self(SplitMix64::new(SplitMix64::finalise(seed)))
    }

    /// Above 0, at most 1.
    #[inline]
    pub(super) fn uniform(&mut self) -> f64 {
        ((self.0.draw() >> 11) + 1) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// With mean 1.
    #[inline]
    pub(super) fn exponential(&mut self) -> f64 {
        -ln(self.uniform())
    }

    fn normal(&mut self) -> f64 {
        let radius = libm::sqrt(2.0 * self.exponential());
        radius * libm::cos(2.0 * core::f64::consts::PI * self.uniform())
    }

    /// Marsaglia and Tsang, "A simple method for generating gamma variables", 2000.
    pub(super) fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            let power = libm::pow(self.uniform(), 1.0 / shape);
            return (self.gamma(shape + 1.0) * power).max(f64::MIN_POSITIVE);
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / libm::sqrt(9.0 * d);
        loop {
            let x = self.normal();
            let v = libm::pow(1.0 + c * x, 3.0);
            if v > 0.0 && libm::log(self.uniform()) < 0.5 * x * x + d - d * v + d * libm::log(v) {
                return d * v;
            }
        }
    }

    /// By inversion; `none` is e to the power of -mean.
    #[inline]
    pub(super) fn poisson(&mut self, mean: f64, none: f64) -> u32 {
        if none < 1e-300 {
            // Above a mean of 690: the normal law is within a hundredth of a standard deviation.
            return (mean + libm::sqrt(mean) * self.normal()).max(0.0) as u32;
        }
        let u = self.uniform();
        let (mut n, mut p, mut sum) = (0, none, none);
        while u > sum && p > 0.0 {
            n += 1;
            p *= mean / f64::from(n);
            sum += p;
        }
        n
    }
}
