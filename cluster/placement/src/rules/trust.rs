//! Whether what is said of VMs' ends comes true.
//!
//! A model of another fleet, or one that learnt from a damaged table, says of all VMs that they end at once, or never. A rule
//! that believes it packs worse than one that knows nothing.

use ballast_types::Instant;
use ballast_types::survival::Curves;

use crate::ExpectedEnd;

/// What came counts half after so many others have come.
const HALF_AFTER: f32 = 1000.0;
/// With fewer VMs nothing is said: those of one batch end alike, whatever a curve says of each.
const ENOUGH: f32 = 1000.0;
/// By a curve that is right a tenth of the VMs end while nine tenths should live, and a tenth live while nine tenths should have
/// ended. Batches that end alike make that more for a while, three tenths in recorded arrivals.
const SURPRISING: f32 = 0.5;
/// A time that was told is surprising where it is this many times too long, or too short.
const TIMES: u64 = 10;
/// Shorter lives are alike.
const SHORT_NS: u64 = 60_000_000_000;

/// How many VMs came of late whose ends were told, and how many of those that ended did so long before, or long after.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trust {
    came: f32,
    early: f32,
    late: f32,
}

impl Trust {
    pub(super) fn came(&mut self, end: Option<ExpectedEnd>) {
        if end.is_none() {
            return;
        }
        let fades = 1.0 - core::f32::consts::LN_2 / HALF_AFTER;
        *self = Self { came: self.came * fades + 1.0, early: self.early * fades, late: self.late * fades };
    }

    /// A VM has ended that had come then.
    pub(super) fn ended(&mut self, end: Option<ExpectedEnd>, since: Instant, now: Instant, curves: &Curves) {
        let (early, late) = match end {
            None => return,
            Some(ExpectedEnd::At(exit)) => {
                let [said, lived] = [exit, now]
                    .map(|end| (end.as_nanos() - since.as_nanos().min(end.as_nanos())).max(SHORT_NS));
                (lived < said / TIMES, lived / TIMES > said)
            }
            Some(ExpectedEnd::Curve(id)) => {
                let Some(curve) = curves.get(id) else { return };
                let still_lives = curve.at(now.since(since).as_secs_f32());
                (still_lives > 0.9, still_lives < 0.1)
            }
        };
        self.early += f32::from(u8::from(early));
        self.late += f32::from(u8::from(late));
    }

    /// Whether lifetimes may decide: where most VMs surprise, they may not.
    pub(super) fn holds(&self) -> bool {
        self.came < ENOUGH || self.early.max(self.late) <= SURPRISING * self.came
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    /// After VMs that each live so long, where so long was told.
    fn after(trust: &mut Trust, vms: u32, lives_s: impl Fn(u32) -> (u64, u64)) -> bool {
        let since = Instant::from_nanos(1 << 40);
        for vm in 0..vms {
            let (said, lived) = lives_s(vm);
            let [exit, now] = [said, lived].map(|life| since + Duration::from_secs(life));
            trust.came(Some(ExpectedEnd::At(exit)));
            trust.ended(Some(ExpectedEnd::At(exit)), since, now, &Curves::default());
        }
        trust.holds()
    }

    #[test]
    fn what_is_wrong_for_most_is_not_believed_until_it_is_right_again() {
        let mut trust = Trust::default();
        assert!(after(&mut trust, 1500, |_| (0, 90_000)), "too few to judge by");
        assert!(!after(&mut trust, 500, |_| (0, 90_000)), "they were to end at once, and live for a day");
        assert!(after(&mut trust, 2000, |_| (90_000, 80_000)));
        assert!(
            !after(&mut trust, 3000, |_| (u64::MAX / 1_000_000_000 - 2000, 80_000)),
            "they were to live for ever"
        );
    }

    #[test]
    fn what_is_wrong_for_two_of_five_by_chance_is_believed() {
        let wrong = |vm: u32| match vm % 10 {
            0 | 1 => (10, 90_000),
            2 | 3 => (9_000_000, 90_000),
            _ => (90_000, 90_000),
        };
        assert!(after(&mut Trust::default(), 5000, wrong));
    }

    #[test]
    fn times_that_jumped_are_no_panic() {
        let mut trust = Trust::default();
        let late = Instant::from_nanos(u64::MAX);
        trust.came(Some(ExpectedEnd::At(Instant::ZERO)));
        trust.ended(Some(ExpectedEnd::At(Instant::ZERO)), late, Instant::ZERO, &Curves::default());
        assert!(trust.holds());
    }
}
