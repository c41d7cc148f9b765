//! Seeded chance: one stream for every source, so that no draw depends on the order of threads.

use ballast_types::SplitMix64;

/// What a stream is for; part of its name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    Bootstrap = 1,
    Features = 2,
    HoldOut = 3,
    Subsample = 4,
}

#[derive(Clone, Debug)]
pub(crate) struct Stream(SplitMix64);

impl Stream {
    /// The stream of that name under `seed`.
    pub(crate) fn new(seed: u64, purpose: Purpose, a: u64, b: u64) -> Self {
        let mix = SplitMix64::finalise;
        let name = [purpose as u64, a, b];
        let named = |state: u64, word| mix(state.wrapping_add(SplitMix64::GOLDEN) ^ word);
        Self(SplitMix64::new(name.iter().fold(mix(seed), named)))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.draw()
    }

    /// Uniform in `0..n`; `n` is not 0. Its bias is below 2⁻³².
    pub(crate) fn below(&mut self, n: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u32
    }

    /// Uniform in 0..1, 53 bits.
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_give_streams_of_their_own() {
        let first = |seed, a, b| Stream::new(seed, Purpose::Bootstrap, a, b).next();
        assert_eq!(first(1, 2, 3), first(1, 2, 3));
        let all = [first(1, 2, 3), first(2, 2, 3), first(1, 3, 2), first(1, 2, 4)];
        assert_eq!(std::collections::BTreeSet::from(all).len(), all.len());
        assert!(Stream::new(1, Purpose::HoldOut, 2, 3).next() != first(1, 2, 3));
    }

    #[test]
    fn draws_are_even() {
        let mut s = Stream::new(3, Purpose::Features, 0, 0);
        let mut counts = [0; 7];
        for _ in 0..70_000 {
            counts[s.below(7) as usize] += 1;
        }
        // Six standard deviations.
        assert!(counts.iter().all(|n: &i32| (n - 10_000).abs() < 560), "{counts:?}");
        let mean = (0..40_000).map(|_| s.uniform()).sum::<f64>() / 40_000.0;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
    }
}
