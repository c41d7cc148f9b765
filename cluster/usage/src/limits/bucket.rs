//! Buckets of use, each 5 % wider than the one below.

/// So many buckets, whose edges lie 5 % apart: the lowest ends at a ten-thousandth of the most.
pub const BUCKETS: usize = 192;
const RATIO: f32 = 1.05;
const EDGES: [f32; BUCKETS] = edges();

const fn edges() -> [f32; BUCKETS] {
    let mut edges = [1.0; BUCKETS];
    let mut bucket = BUCKETS - 1;
    while bucket > 0 {
        edges[bucket - 1] = edges[bucket] / RATIO;
        bucket -= 1;
    }
    edges
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UseBucket(u8);

impl UseBucket {
    /// The bucket of a share of the most that can be used; more than the most is the most. `None` where it is no number or
    /// below nothing.
    pub fn of(share: f32) -> Option<Self> {
        let bucket = EDGES.partition_point(|edge| *edge < share).min(BUCKETS - 1);
        (share >= 0.0).then_some(Self(bucket as u8))
    }

    /// The most that counts as this bucket.
    pub fn edge(self) -> f32 {
        EDGES[usize::from(self.0)]
    }

    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }

    pub(super) const fn from_index(index: usize) -> Self {
        Self(if index < BUCKETS { index as u8 } else { BUCKETS as u8 - 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_at_most_its_edge_and_above_the_edge_below() {
        for thousandths in 0..=1000u16 {
            let share = f32::from(thousandths) / 1000.0;
            let bucket = UseBucket::of(share).unwrap();
            assert!(share <= bucket.edge(), "{share}");
            let below =
                bucket.index().checked_sub(1).map_or(-1.0, |below| UseBucket::from_index(below).edge());
            assert!(share > below, "{share}");
        }
        assert_eq!(UseBucket::of(7.0).unwrap().edge(), 1.0);
        assert_eq!(UseBucket::of(-0.1), None);
        assert_eq!(UseBucket::of(f32::NAN), None);
        assert!(UseBucket::of(0.0).unwrap().edge() < 1e-4);
    }
}
