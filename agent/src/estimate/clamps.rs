//! Dynamic watts of floating VMs that are slowed by their frequency: as p-states lower a core's, on whatever core
//! they run.
//!
//! The clamp of a core is the highest of all that is runnable there (Documentation/scheduler/sched-util-clamp.rst, "Max
//! aggregation"), so a VM beside busier neighbours sheds less than this. What it did shed the meter tells.

use serde::{Deserialize, Serialize};

use super::Dynamic;
use crate::Params;
use crate::bandwidth::View;
use crate::throttle::Class;
use crate::units::ladder;

/// The same for every core: a floating VM runs on any of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Clamps {
    /// Of one fully busy core, at every level; the last is unrestricted.
    table: Vec<f64>,
    cores: usize,
}

/// What a VM uses, and how it stands.
struct Floating<'a> {
    units: &'a [u16],
    cores: f64,
    /// Share of its cores' time.
    used: Option<f64>,
    /// Its clamp cannot be set.
    stuck: bool,
}

impl Clamps {
    pub(super) fn new(params: &Params) -> Self {
        let cores = params.cores.len();
        let online = cores.saturating_sub(params.offline_cores.into()).max(1);
        let per_core = params.model.dynamic_w() / online as f64;
        let share = |level, ladder: &ballast_types::Ladder| ladder.khz(level).share_of(ladder.max());
        let table = ladder(&params.cores).map_or(vec![per_core], |ladder| {
            (0..ladder.len()).map(|level| per_core * params.model.scale(share(level, ladder))).collect()
        });
        Self { table, cores }
    }

    fn top(&self) -> f64 {
        self.table.last().copied().unwrap_or(0.0)
    }

    /// Every VM, or those of one class.
    fn vms<'a>(
        &self,
        view: &'a View<'_>,
        class: Option<&'a Class>,
    ) -> impl Iterator<Item = Floating<'a>> + use<'a> {
        let &View { now, actuators, fleet, .. } = view;
        // All units of a VM are of one class.
        let is_in = move |units: &[u16]| {
            class.is_none_or(|class| units.first().is_some_and(|unit| class.cores.contains(unit)))
        };
        fleet.floating(now).filter(move |(_, units, _)| is_in(units)).map(move |(vm, units, usage)| {
            Floating {
                units,
                cores: vm.cores.len() as f64,
                used: usage.map(|(share, _)| share),
                stuck: actuators.index_of(&vm.id).is_some_and(|index| actuators.stuck(index)),
            }
        })
    }
}

impl Dynamic for Clamps {
    fn core_w(&self, view: &View<'_>, unit: usize, level: usize) -> f64 {
        view.fleet.peak_use(unit) * self.table[level]
    }

    fn used_core_w(&self, view: &View<'_>, unit: usize, highest: usize, level: usize) -> Option<f64> {
        let &View { now, throttle, fleet, .. } = view;
        let work = fleet.core_usage(now, unit)? * throttle.share(unit, highest);
        Some((work / throttle.share(unit, level)).min(1.0) * self.table[level])
    }

    fn drawn_low(&self, view: &View<'_>) -> f64 {
        let drawn = |unit| view.fleet.fast_use(unit) * self.table[view.throttle.level(unit)];
        view.throttle.throttled().map(drawn).sum()
    }

    /// VMs without units are not slowed.
    fn drawn_all(&self, view: &View<'_>) -> f64 {
        let held = |unit| view.fleet.fast_use(unit) * (self.top() - self.table[view.throttle.level(unit)]);
        self.top() * view.fleet.fast_cores() - (0..view.throttle.len()).map(held).sum::<f64>()
    }

    fn sheddable(&self, view: &View<'_>, class: &Class) -> f64 {
        let throttle = view.throttle;
        let sheds = |vm: Floating<'_>| -> f64 {
            let to_floor = |unit: &u16| {
                let unit = usize::from(*unit);
                self.table[throttle.level(unit)] - self.table[throttle.floor_level(unit)]
            };
            vm.used.unwrap_or(0.0) * vm.units.iter().map(to_floor).sum::<f64>()
        };
        self.vms(view, Some(class)).filter(|vm| !vm.stuck).map(sheds).sum()
    }

    fn restorable(&self, view: &View<'_>, class: Option<&Class>) -> f64 {
        let throttle = view.throttle;
        let restores = |vm: Floating<'_>| -> f64 {
            let held = |unit: &u16| {
                let level = if vm.stuck { 0 } else { throttle.level(usize::from(*unit)) };
                self.top() - self.table[level]
            };
            vm.used.unwrap_or(1.0) * vm.units.iter().map(held).sum::<f64>()
        };
        self.vms(view, class).map(restores).sum()
    }

    /// The cores that no VM accounts for count as the others do.
    fn unrestricted(&self, view: &View<'_>) -> Option<f64> {
        let (mut known, mut busy) = (0.0, 0.0);
        for vm in self.vms(view, None) {
            if let Some(used) = vm.used {
                known += vm.cores;
                busy += used * vm.cores;
            }
        }
        (known > 0.0).then(|| self.top() * busy * (self.cores as f64 / known).max(1.0))
    }
}
