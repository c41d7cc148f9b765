//! How the sharable watts are split: evenly, less what servers that do not answer may hold.

use ballast_types::Watts;

/// Caps are whole tenths of a watt.
const STEP_MW: i64 = 100;

/// A grant rises only by more than this, so that noise in the estimates does not move it.
const RISE: Watts = Watts::from_whole(1);

/// What every server gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Sharable watts over all configured servers: the fallback, and the share of a server that has
    /// no agent.
    pub(crate) even: Watts,
    /// What a server that answers is granted; never above `even`.
    pub(crate) granted: Watts,
    /// The same for one that answers again but may still hold what it had. That is reserved for it, so
    /// it is not granted less: a cap that it cannot respect would never free what it holds.
    pub(crate) returning: Watts,
}

impl Shares {
    /// The even share moves: down at once, up only where it is worth it.
    pub(crate) fn split(&mut self, sharable: Watts, servers: usize) {
        self.even = settle(self.even, sharable.per(servers as u64));
    }

    /// What servers that answer are granted, when the others may hold `reserved` together.
    pub(crate) fn grant(&mut self, sharable: Watts, reserved: Watts, answering: usize) {
        let each = (sharable - reserved).per(answering as u64);
        self.granted = settle(self.granted, each.min(self.even)).min(self.even);
    }

    /// What servers that return are granted, when those that do not answer may hold `reserved` together
    /// and `present` answer or return.
    pub(crate) fn welcome(&mut self, sharable: Watts, reserved: Watts, present: usize) {
        let each = (sharable - reserved).per(present as u64);
        self.returning = settle(self.returning, each.min(self.even)).min(self.even);
    }
}

fn settle(old: Watts, wanted: Watts) -> Watts {
    let wanted = Watts::from_milli(wanted.at_least_zero().milli() / STEP_MW * STEP_MW);
    if wanted < old || wanted - old > RISE { wanted } else { old }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const W: fn(i64) -> Watts = Watts::from_milli;

    #[test]
    fn a_share_falls_at_once_and_rises_by_more_than_a_watt() {
        for (old, wanted, new) in [
            (100_000, 99_999, 99_900),
            (100_000, 101_000, 100_000),
            (100_000, 101_100, 101_100),
            (100_000, -5, 0),
            (0, 500, 0),
        ] {
            assert_eq!(settle(W(old), W(wanted)), W(new), "{old} -> {wanted}");
        }
    }

    #[test]
    fn who_does_not_answer_is_paid_by_the_others() {
        let mut s = Shares::default();
        s.split(Watts::from_whole(2400), 12);
        assert_eq!(s.even, Watts::from_whole(200));
        s.grant(Watts::from_whole(2400), Watts::from_whole(200), 11);
        assert_eq!(s.granted, Watts::from_whole(200));
        s.grant(Watts::from_whole(2400), Watts::from_whole(310), 11);
        assert_eq!(s.granted, Watts::from_whole(190));
        s.grant(Watts::from_whole(2400), Watts::from_whole(9999), 11);
        assert_eq!(s.granted, Watts::ZERO);
    }

    #[test]
    fn who_returns_is_granted_what_is_reserved_for_it() {
        let mut s = Shares::default();
        s.split(Watts::from_whole(2400), 12);
        // All twelve return at once, and each may hold its even share.
        s.grant(Watts::from_whole(2400), Watts::from_whole(2400), 0);
        s.welcome(Watts::from_whole(2400), Watts::ZERO, 12);
        assert_eq!((s.granted, s.returning), (Watts::ZERO, Watts::from_whole(200)));
        // Two are silent and hold more than even shares: the ten others pay.
        s.welcome(Watts::from_whole(2400), Watts::from_whole(500), 10);
        assert_eq!(s.returning, Watts::from_whole(190));
    }

    proptest! {
        #[test]
        fn the_sum_never_exceeds_what_is_sharable(
            steps in prop::collection::vec((0i64..5_000_000, 0i64..3_000_000, 0usize..12), 1..20)
        ) {
            let mut s = Shares::default();
            for (sharable, reserved, answering) in steps {
                s.split(W(sharable), 12);
                prop_assert!(s.even.milli() * 12 <= sharable);
                s.grant(W(sharable), W(reserved), answering);
                let sum = s.granted.milli() * answering as i64 + reserved;
                prop_assert!(sum <= sharable.max(reserved), "{s:?}");
            }
        }
    }
}
