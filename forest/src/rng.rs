//! Seeded chance: one stream for every source, so that no draw depends on the order of threads.

/// What a stream is for; part of its name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    Bootstrap = 1,
    Features = 2,
    HoldOut = 3,
    Subsample = 4,
}

/// SplitMix64 (Steele, Lea, Flood, *Fast splittable pseudorandom number generators*, OOPSLA 2014).
#[derive(Clone, Debug)]
pub(crate) struct Stream(u64);

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Stream {
    /// The stream of that name under `seed`.
    pub(crate) fn new(seed: u64, purpose: Purpose, a: u64, b: u64) -> Self {
        let name = [purpose as u64, a, b];
        Self(name.iter().fold(mix(seed), |state, word| mix(state.wrapping_add(GOLDEN) ^ word)))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
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
    fn golden_values_of_splitmix64() {
        // The published sequence of seed 0.
        let mut s = Stream(0);
        let first = [s.next(), s.next(), s.next()];
        assert_eq!(first, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
    }

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
