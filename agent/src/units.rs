//! Floating VMs (`cpu-max`, `uclamp`): the units of the throttle that stand for them, and their quotas.
//!
//! A VM that runs on any core is throttled by its CPU bandwidth, or by its frequency. Every non-user-facing VM of n cores has
//! n units, which the throttle moves as it moves cores; the VM's quota is the sum of their shares of the
//! highest frequency. User-facing VMs have no units, so nothing can be taken from them, unless the operator
//! allows it.

use ballast_types::{Core, Ladder};
use serde::{Deserialize, Serialize};

/// Of its quota, a VM that uses this much may want more than it gets: its use is a mean over periods of
/// which some were stopped and some were not.
pub(crate) const AT_QUOTA: f64 = 0.95;

/// Indices that are given to VMs and taken back.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct UnitIndices {
    spare: Vec<u16>,
    given: u16,
}

impl UnitIndices {
    /// `count` units, those of `old` first; the rest of `old` is taken back, and listed in `freed`.
    pub(crate) fn give(&mut self, mut old: Vec<u16>, count: usize, freed: &mut Vec<u16>) -> Vec<u16> {
        for unit in old.drain(count.min(old.len())..) {
            self.take_back(unit, freed);
        }
        while old.len() < count {
            let next = self.spare.pop().or_else(|| {
                // One number is left out, so that their count is a number too.
                let fresh = (self.given < u16::MAX).then_some(self.given)?;
                self.given += 1;

                Some(fresh)
            });

            match next {
                Some(unit) => old.push(unit),
                None => break,
            }
        }

        old
    }

    pub(crate) fn take_back(&mut self, unit: u16, freed: &mut Vec<u16>) {
        self.spare.push(unit);
        freed.push(unit);
    }

    /// How many units there have been.
    pub(crate) fn len(&self) -> usize {
        usize::from(self.given)
    }
}

/// The ladder of every unit: that of the first core. Servers whose cores differ are throttled by it too,
/// because a floating VM's share is one of time, or of whatever core's frequency it runs on.
pub(crate) fn ladder(cores: &[Core]) -> Option<&Ladder> {
    cores.first().map(|core| &core.ladder)
}

/// A unit's share of one core's time or frequency, in thousandths; never more than its share of the frequency.
pub(crate) fn millicores(ladder: &Ladder, level: usize) -> u32 {
    let (khz, max) = (u64::from(ladder.khz(level).get()), u64::from(ladder.max().get()));
    // A share of at most 1.
    (khz * 1000 / max) as u32
}

/// The levels of `count` units whose sum is the highest that `quota` allows; the floor at least.
pub(crate) fn levels(ladder: &Ladder, count: usize, quota: u32) -> Vec<usize> {
    let quota = u64::from(quota);
    let cost = |level| u64::from(millicores(ladder, level));
    let base = (0..ladder.len()).rev().find(|level| cost(*level) * count as u64 <= quota).unwrap_or(0);
    let mut levels = vec![base; count];
    let mut sum = cost(base) * count as u64;
    for level in &mut levels {
        let more = cost(base + 1) - cost(base);
        if base < ladder.top() && sum + more <= quota {
            *level += 1;
            sum += more;
        }
    }
    levels
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_types::KiloHertz;

    fn mhz(steps: &[u32]) -> Ladder {
        Ladder::new(&steps.iter().copied().map(KiloHertz::from_mhz).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn units_stay_with_their_vm_and_are_given_again() {
        let (mut units, mut freed) = (UnitIndices::default(), vec![]);
        let a = units.give(vec![], 3, &mut freed);
        let b = units.give(vec![], 2, &mut freed);
        assert_eq!((&a[..], &b[..]), (&[0, 1, 2][..], &[3, 4][..]));
        let a = units.give(a, 1, &mut freed);
        assert_eq!((&a[..], &freed[..]), (&[0][..], &[1, 2][..]));
        let a = units.give(a, 4, &mut freed);
        assert_eq!((&a[..], units.len()), (&[0, 2, 1, 5][..], 6));
        let all = units.give(vec![], 100_000, &mut freed);
        assert_eq!((all.len(), units.len()), (65_535 - 6, 65_535));
        assert_eq!(units.give(vec![], 1, &mut freed), []);
    }

    #[test]
    fn a_quota_becomes_the_highest_levels_that_it_allows() {
        let ladder = mhz(&[1200, 1800, 2400]);
        // (units, quota, levels)
        for (count, quota, expected) in [
            (2, 1000, vec![0, 0]),
            (2, 1249, vec![0, 0]),
            (2, 1250, vec![1, 0]),
            (2, 1500, vec![1, 1]),
            (2, 1999, vec![2, 1]),
            (2, 2000, vec![2, 2]),
            (2, 9000, vec![2, 2]),
            (2, 100, vec![0, 0]),
            (0, 100, vec![]),
        ] {
            assert_eq!(levels(&ladder, count, quota), expected, "{count} {quota}");
        }
        assert_eq!(levels(&mhz(&[2400]), 2, 2000), [0, 0]);
    }
}
