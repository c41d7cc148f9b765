//! Floating VMs (`cpu-max`): the slots of the throttle that stand for them, and their quotas.
//!
//! A VM that runs on any core is throttled by its CPU bandwidth. Every non-user-facing VM of n cores has
//! n slots, which the throttle moves as it moves cores; the VM's quota is the sum of their shares of the
//! highest frequency. User-facing VMs have no slots, so nothing can be taken from them, unless the operator
//! allows it.

use ballast_types::{Core, Ladder, VmClass};

use crate::Params;
use crate::estimate::View;
use crate::throttle::Class;

/// Of its quota, a VM that uses this much may want more than it gets: its use is a mean over periods of
/// which some were stopped and some were not.
pub(crate) const AT_QUOTA: f64 = 0.95;

/// Slots that are given to VMs and taken back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    spare: Vec<u16>,
    given: u16,
}

impl Slots {
    /// `count` slots, those of `old` first; the rest of `old` is taken back, and listed in `freed`.
    pub(crate) fn give(
        &mut self,
        mut old: Vec<u16>,
        count: usize,
        freed: &mut Vec<u16>,
    ) -> Vec<u16> {
        for slot in old.drain(count.min(old.len())..) {
            self.take_back(slot, freed);
        }
        while old.len() < count {
            let next = self.spare.pop().or_else(|| {
                // One number is left out, so that their count is a number too.
                let fresh = (self.given < u16::MAX).then_some(self.given)?;
                self.given += 1;
                Some(fresh)
            });
            match next {
                Some(slot) => old.push(slot),
                None => break,
            }
        }
        old
    }

    pub(crate) fn take_back(&mut self, slot: u16, freed: &mut Vec<u16>) {
        self.spare.push(slot);
        freed.push(slot);
    }

    /// How many slots there have been.
    pub(crate) fn len(&self) -> usize {
        usize::from(self.given)
    }
}

/// The ladder of every slot: that of the first core. Servers whose cores differ are throttled by it too,
/// because a floating VM's share is one of time, not of a certain core's frequency.
pub(crate) fn ladder(cores: &[Core]) -> Option<&Ladder> {
    cores.first().map(|core| &core.ladder)
}

/// A slot's share of one core's time, in thousandths; never more than its share of the frequency.
pub(crate) fn millicores(ladder: &Ladder, level: usize) -> u32 {
    let (khz, max) = (u64::from(ladder.khz(level).get()), u64::from(ladder.max().get()));
    // A share of at most 1.
    (khz * 1000 / max) as u32
}

/// The levels of `count` slots whose sum is the highest that `quota` allows; the floor at least.
pub(crate) fn levels(ladder: &Ladder, count: usize, quota: u32) -> Vec<usize> {
    let quota = u64::from(quota);
    let cost = |level| u64::from(millicores(ladder, level));
    let fits = |level: &usize| cost(*level) * count as u64 <= quota;
    let base = (0..ladder.len()).rev().find(fits).unwrap_or(0);
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

/// A floating VM's bandwidth, in cores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bandwidth {
    /// All that it can use.
    pub(crate) cores: f64,
    /// What it may use now; `cores` when it is not limited.
    pub(crate) quota: f64,
    /// What it may use at the floor.
    pub(crate) floor: f64,
    /// What it used lately, if that is known.
    pub(crate) used: Option<f64>,
    /// Its quota stopped it lately, or may have.
    pub(crate) stopped: bool,
    /// Its quota cannot be set.
    pub(crate) stuck: bool,
}

impl Bandwidth {
    /// Cores that it surely gives up at the floor.
    pub(crate) fn sheds(&self) -> f64 {
        match self.used {
            Some(used) if !self.stuck => (used.min(self.quota) - self.floor).max(0.0),
            _ => 0.0,
        }
    }

    /// Cores that it takes at most when its quota is lifted: below its quota it wants no more.
    pub(crate) fn restores(&self) -> f64 {
        let quota = if self.stuck { self.floor } else { self.quota };
        if quota >= self.cores || !self.wants_more() {
            return 0.0;
        }
        self.cores - self.used.map_or(quota, |used| used.min(quota))
    }

    /// Cores that it takes at most with no quota at all.
    pub(crate) fn demand(&self) -> Option<f64> {
        let used = self.used?;
        Some(if self.quota < self.cores && self.wants_more() { self.cores } else { used })
    }

    fn wants_more(&self) -> bool {
        let quota = if self.stuck { self.floor } else { self.quota };
        self.stopped || self.used.is_none_or(|used| used >= AT_QUOTA * quota)
    }
}

/// The bandwidth of every VM, or of those of one class; VMs that are not throttled have no quota.
pub(crate) fn bandwidths<'a>(
    view: &'a View<'_>,
    class: Option<&'a Class>,
) -> impl Iterator<Item = Bandwidth> + 'a {
    let &View { now, throttle, actuators, fleet } = view;
    // All slots of a VM are of one class.
    let is_in = move |slots: &[u16]| {
        class.is_none_or(|class| slots.first().is_some_and(|slot| class.cores.contains(slot)))
    };
    fleet.floating(now).filter(move |(_, slots, _)| is_in(slots)).map(move |(vm, slots, usage)| {
        let cores = vm.cores.len() as f64;
        let ladder = |slot: &u16| throttle.ladder(usize::from(*slot));
        let sum = |share: &dyn Fn(&u16) -> u32| -> f64 {
            f64::from(slots.iter().map(share).sum::<u32>()) / 1000.0
        };
        let (mut quota, mut floor) = (cores, cores);
        // Without slots, or with too few of them, nothing is taken.
        if slots.len() == vm.cores.len() {
            quota = sum(&|slot| millicores(ladder(slot), throttle.level(usize::from(*slot))));
            floor = sum(&|slot| millicores(ladder(slot), throttle.floor_level(usize::from(*slot))));
        }
        Bandwidth {
            cores,
            quota,
            floor,
            used: usage.map(|(share, _)| share * cores),
            stopped: usage.is_some_and(|(_, stopped)| stopped),
            stuck: actuators.known_vm(&vm.id).is_some_and(|slot| actuators.stuck(slot)),
        }
    })
}

impl Params {
    /// Whether a floating VM of this class may be throttled.
    pub(crate) fn has_slots(&self, class: VmClass) -> bool {
        let allowed = class == VmClass::NonUserFacing || self.user_facing_floor_percent.is_some();
        allowed && ladder(&self.cores).is_some()
    }

    /// The throttle's slots at start: the cores, or none while no VM is known.
    pub(crate) fn slots(&self) -> Vec<Core> {
        if self.floating() { Vec::new() } else { self.cores.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_types::KiloHertz;

    fn mhz(steps: &[u32]) -> Ladder {
        Ladder::new(&steps.iter().copied().map(KiloHertz::from_mhz).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn slots_stay_with_their_vm_and_are_given_again() {
        let (mut slots, mut freed) = (Slots::default(), vec![]);
        let a = slots.give(vec![], 3, &mut freed);
        let b = slots.give(vec![], 2, &mut freed);
        assert_eq!((&a[..], &b[..]), (&[0, 1, 2][..], &[3, 4][..]));
        let a = slots.give(a, 1, &mut freed);
        assert_eq!((&a[..], &freed[..]), (&[0][..], &[1, 2][..]));
        let a = slots.give(a, 4, &mut freed);
        assert_eq!((&a[..], slots.len()), (&[0, 2, 1, 5][..], 6));
        let all = slots.give(vec![], 100_000, &mut freed);
        assert_eq!((all.len(), slots.len()), (65_535 - 6, 65_535));
        assert_eq!(slots.give(vec![], 1, &mut freed), []);
    }

    #[test]
    fn a_quota_becomes_the_highest_levels_that_it_allows() {
        let ladder = mhz(&[1200, 1800, 2400]);
        // (slots, quota, levels)
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

    #[test]
    fn below_its_quota_a_vm_sheds_to_the_floor_and_restores_nothing() {
        let it = |quota: f64, used, stopped, stuck| Bandwidth {
            cores: 8.0,
            quota,
            floor: 4.0,
            used,
            stopped,
            stuck,
        };
        for (vm, sheds, restores) in [
            (it(8.0, Some(8.0), false, false), 4.0, 0.0), // free and busy
            (it(8.0, Some(3.0), false, false), 0.0, 0.0), // the quota would not bite at the floor
            (it(6.0, Some(5.0), false, false), 1.0, 0.0), // below its quota
            (it(6.0, Some(6.0), false, false), 2.0, 2.0), // at its quota
            (it(6.0, Some(5.0), true, false), 1.0, 3.0),  // stopped at times: it may want all
            (it(6.0, Some(8.0), false, false), 2.0, 2.0), // from before the quota
            (it(4.0, None, false, false), 0.0, 4.0),      // unknown
            (it(6.0, None, false, true), 0.0, 4.0),       // as if at the floor
            (it(6.0, Some(6.0), false, true), 0.0, 4.0),
            (it(8.0, None, true, false), 0.0, 0.0),
        ] {
            assert_eq!((vm.sheds(), vm.restores()), (sheds, restores), "{vm:?}");
        }
        assert_eq!(it(6.0, Some(6.0), false, false).demand(), Some(8.0));
        assert_eq!(it(6.0, Some(2.0), false, false).demand(), Some(2.0));
        assert_eq!(it(6.0, None, false, false).demand(), None);
    }
}
