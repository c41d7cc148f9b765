//! A cap of ours, and whether it is obeyed.
//!
//! A write only asks: the kernel applies it later, takes the least of all that is asked for, and lets any
//! other writer overwrite it. So a cap is looked at some time after it was written, and again and again.

use ballast_types::KiloHertz;

/// Drivers round by less than this.
const TOLERANCE_KHZ: u32 = 10_000;
/// A cap that was not seen yet may be late, for so many looks.
const LATE_LOOKS: u8 = 3;
/// What somebody else raised is written again so many times, then left: never a fight.
const PUSHES: u8 = 3;

/// Whether a cap is obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is, as far as known.
    Obeyed,
    /// It was raised to this: another program writes the same file.
    Raised(KiloHertz),
    /// Something stronger limits further, to this: firmware, heat, or an operator.
    Limited(KiloHertz),
}

/// A cap of ours on one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) khz: KiloHertz,
    /// A previous instance wrote it, and `khz` is only what the file showed: it may be more, behind heat.
    pub(super) guessed: bool,
    /// Whether it was in force when it was last looked at, or stronger than that.
    pub(super) observed: bool,
    pub(super) verdict: Verdict,
    /// It must be taken off and written again: the kernel ignores what it believes to be so already.
    pub(super) push: bool,
    /// How often somebody else raised it.
    pub(super) raised: u8,
    /// Looks that did not show it yet.
    pub(super) late: u8,
}

impl Hold {
    /// A cap that is being written over another one, or over none.
    pub(super) fn after(old: Option<Self>, khz: KiloHertz) -> Self {
        let push = old.is_some_and(|old| old.push && old.khz == khz);
        let raised = old.map_or(0, |old| old.raised);
        let verdict = Verdict::Obeyed;
        Self { khz, guessed: false, observed: false, verdict, push, raised, late: 0 }
    }

    /// Takes in what the file shows some time after the write. Only looks that `count` (one a second) wear
    /// out the patience with a cap that is late: on a busy CPU the kernel's worker may take its time.
    pub(super) fn judge(&mut self, shown: KiloHertz, counts: bool) {
        if !above(shown, self.khz) && !above(self.khz, shown) {
            (self.observed, self.verdict) = (true, Verdict::Obeyed);
        } else if !self.observed && (!counts || self.late + 1 < LATE_LOOKS) {
            self.late += u8::from(counts);
        } else if above(self.khz, shown) {
            (self.observed, self.verdict) = (true, Verdict::Limited(shown));
        } else if self.verdict != Verdict::Raised(shown) || !self.given_up() {
            (self.observed, self.verdict) = (true, Verdict::Raised(shown));
            self.raised = self.raised.saturating_add(1);
            self.push = !self.given_up();
        }
    }

    /// It was raised too often to be written once more.
    pub(super) fn given_up(&self) -> bool {
        self.raised > PUSHES
    }

    pub(super) fn pushed(&mut self) {
        (self.push, self.guessed, self.observed, self.late) = (false, false, false, 0);
    }
}

/// Whether `a` is above `b` by more than drivers round.
pub(super) fn above(a: KiloHertz, b: KiloHertz) -> bool {
    a.get() > b.get().saturating_add(TOLERANCE_KHZ)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MHZ: fn(u32) -> KiloHertz = KiloHertz::from_mhz;

    /// After a cap of 1200 MHz and these looks: verdict, whether to push, how often it was raised.
    fn after(looks: &[u32]) -> (Verdict, bool, u8) {
        let mut hold = Hold::after(None, MHZ(1200));
        for khz in looks {
            hold.judge(KiloHertz::new(*khz), true);
        }
        (hold.verdict, hold.push, hold.raised)
    }

    #[test]
    fn a_cap_may_be_late_but_not_lost() {
        use Verdict::{Limited, Obeyed, Raised};
        for (looks, want) in [
            (&[1_200_000][..], (Obeyed, false, 0)),
            (&[1_199_000, 1_201_000], (Obeyed, false, 0)),
            (&[3_500_000, 1_200_000], (Obeyed, false, 0)),
            (&[3_500_000, 3_500_000], (Obeyed, false, 0)),
            (&[3_500_000, 3_500_000, 3_500_000], (Raised(MHZ(3500)), true, 1)),
            (&[1_200_000, 3_500_000], (Raised(MHZ(3500)), true, 1)),
            (&[1_200_000, 800_000], (Limited(MHZ(800)), false, 0)),
            (&[800_000, 800_000], (Obeyed, false, 0)),
            (&[800_000, 800_000, 800_000], (Limited(MHZ(800)), false, 0)),
            (&[1_200_000, 800_000, 1_200_000], (Obeyed, false, 0)),
            (&[1_200_000, 800_000, 2_000_000], (Raised(MHZ(2000)), true, 1)),
        ] {
            assert_eq!(after(looks), want, "{looks:?}");
        }

        let mut hold = Hold::after(None, MHZ(1200));
        (0..100).for_each(|_| hold.judge(MHZ(3500), false));
        assert_eq!(hold, Hold::after(None, MHZ(1200)), "looks in quick succession prove nothing");
    }

    #[test]
    fn somebody_who_goes_on_is_not_fought() {
        let mut hold = Hold::after(None, MHZ(1200));
        let mut pushes = 0;
        for _ in 0..20 {
            hold.judge(MHZ(1200), true);
            hold.judge(MHZ(3500), true);
            if hold.push {
                pushes += 1;
                hold.pushed();
            }
        }
        assert_eq!((pushes, hold.given_up()), (PUSHES, true));
        assert_eq!(hold.verdict, Verdict::Raised(MHZ(3500)));
        // Another cap of the same episode is written once, and no more.
        let next = Hold::after(Some(hold), MHZ(1300));
        assert!(next.given_up() && !next.push);
    }
}
