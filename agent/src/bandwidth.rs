//! What floating VMs use, may use, and would give up.

use ballast_types::Instant;

use crate::actuators::Actuators;
use crate::fleet::Fleet;
use crate::throttle::{Class, Throttle};
use crate::units::{AT_QUOTA, millicores};

/// What is known of the server's cores, units and VMs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) now: Instant,
    pub(crate) throttle: &'a Throttle,
    pub(crate) actuators: &'a Actuators,
    pub(crate) fleet: &'a Fleet,
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

/// A floating VM, with what stands for it.
pub(crate) struct Floating<'a> {
    pub(crate) units: &'a [u16],
    pub(crate) cores: usize,
    /// Share of its cores' time, and whether its limit stopped it; `None` if that is not known.
    pub(crate) usage: Option<(f64, bool)>,
    /// Its limit cannot be set.
    pub(crate) stuck: bool,
}

/// Every floating VM, or those of one class.
pub(crate) fn floating<'a>(
    view: &'a View<'_>,
    class: Option<&'a Class>,
) -> impl Iterator<Item = Floating<'a>> + use<'a> {
    let &View { now, actuators, fleet, .. } = view;
    // All units of a VM are of one class.
    let is_in = move |units: &[u16]| {
        class.is_none_or(|class| units.first().is_some_and(|unit| class.cores.contains(unit)))
    };
    fleet.floating(now).filter(move |(_, units, _)| is_in(units)).map(move |(vm, units, usage)| Floating {
        units,
        cores: vm.cores.len(),
        usage,
        stuck: actuators.index_of(&vm.id).is_some_and(|index| actuators.stuck(index)),
    })
}

/// The bandwidth of every VM, or of those of one class; VMs that are not throttled have no quota.
pub(crate) fn bandwidths<'a>(
    view: &'a View<'_>,
    class: Option<&'a Class>,
) -> impl Iterator<Item = Bandwidth> + 'a {
    let throttle = view.throttle;
    floating(view, class).map(move |Floating { units, cores: count, usage, stuck }| {
        let cores = count as f64;
        let ladder = |unit: &u16| throttle.ladder(usize::from(*unit));
        let sum =
            |share: &dyn Fn(&u16) -> u32| -> f64 { f64::from(units.iter().map(share).sum::<u32>()) / 1000.0 };
        let (mut quota, mut floor) = (cores, cores);

        // Without units, or with too few of them, nothing is taken.
        if units.len() == count {
            quota = sum(&|unit| millicores(ladder(unit), throttle.level(usize::from(*unit))));
            floor = sum(&|unit| millicores(ladder(unit), throttle.floor_level(usize::from(*unit))));
        }

        Bandwidth {
            cores,
            quota,
            floor,
            used: usage.map(|(share, _)| share * cores),
            stopped: usage.is_some_and(|(_, stopped)| stopped),
            stuck,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_its_quota_a_vm_sheds_to_the_floor_and_restores_nothing() {
        let (cores, floor) = (8.0, 4.0);
        let it = |quota, used, stopped, stuck| Bandwidth { cores, quota, floor, used, stopped, stuck };

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
