//! SplitMix64: numbers as good as random, from a seed alone.
//!
//! Source: Steele, Lea, Flood, *Fast splittable pseudorandom number generators*, OOPSLA 2014.

/// A stream of numbers. Two streams of one seed give the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// What the state grows by with every number.
    pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

    /// The stream of that seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The first number of that seed's stream.
    pub const fn first(seed: u64) -> u64 {
        Self::finalise(seed.wrapping_add(Self::GOLDEN))
    }

    /// The next number.
    pub const fn draw(&mut self) -> u64 {
        let drawn = Self::first(self.0);
        self.0 = self.0.wrapping_add(Self::GOLDEN);
        drawn
    }

    /// The generator's finaliser: every bit of `state` moves half of the bits of the answer.
    pub const fn finalise(state: u64) -> u64 {
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_sequence_of_seed_0() {
        let mut stream = SplitMix64::new(0);
        let drawn = [(); 3].map(|()| stream.draw());
        assert_eq!(drawn, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
        assert_eq!(SplitMix64::first(0), drawn[0]);
    }
}
