//! Dynamic watts of floating VMs that are slowed by their frequency: as p-states lower a core's, on whatever core
//! they run.
//!
//! The clamp of a core is the highest of all that is runnable there (Documentation/scheduler/sched-util-clamp.rst, "Max
//! aggregation"), so a VM beside busier neighbours sheds less than this. What it did shed the meter tells.

use serde::{Deserialize, Serialize};

use super::{Dynamic, floating_w, watts_per_core};
use crate::Params;
use crate::bandwidth::{Floating, View, floating};
use crate::throttle::Class;
use crate::units::ladder;

/// The same for every core: a floating VM runs on any of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Clamps {
    /// Of one fully busy core, at every level; the last is unrestricted.
    table: Vec<f64>,
    cores: usize,
}

impl Clamps {
    pub(super) fn new(params: &Params) -> Self {
        let per_core = watts_per_core(params);
        let share = |level, ladder: &ballast_types::Ladder| ladder.khz(level).share_of(ladder.max());
        let table = ladder(&params.cores).map_or(vec![per_core], |ladder| {
            (0..ladder.len()).map(|level| per_core * params.model.scale(share(level, ladder))).collect()
        });
        Self { table, cores: params.cores.len() }
    }

    fn top(&self) -> f64 {
        self.table.last().copied().unwrap_or(0.0)
    }
}

impl Dynamic for Clamps {
    fn used_core_w(&self, view: &View<'_>, unit: usize, highest: usize, level: usize) -> Option<f64> {
        let &View { now, throttle, fleet, .. } = view;
        let work = fleet.core_usage(now, unit)? * throttle.share(unit, highest);
        Some((work / throttle.share(unit, level)).min(1.0) * self.table[level])
    }

    fn sheddable(&self, view: &View<'_>, class: &Class) -> f64 {
        let throttle = view.throttle;
        let sheds = |vm: Floating<'_>| -> f64 {
            let to_floor = |unit: &u16| {
                let unit = usize::from(*unit);
                self.table[throttle.level(unit)] - self.table[throttle.floor_level(unit)]
            };
            vm.usage.map_or(0.0, |(used, _)| used) * vm.units.iter().map(to_floor).sum::<f64>()
        };
        floating(view, Some(class)).filter(|vm| !vm.stuck).map(sheds).sum()
    }

    fn restorable(&self, view: &View<'_>, class: Option<&Class>) -> f64 {
        let throttle = view.throttle;
        let restores = |vm: Floating<'_>| -> f64 {
            let held = |unit: &u16| {
                let level = if vm.stuck { 0 } else { throttle.level(usize::from(*unit)) };
                self.top() - self.table[level]
            };
            vm.usage.map_or(1.0, |(used, _)| used) * vm.units.iter().map(held).sum::<f64>()
        };
        floating(view, class).map(restores).sum()
    }

    fn unrestricted(&self, view: &View<'_>) -> Option<f64> {
        let busy = |vm: Floating<'_>| {
            let cores = vm.cores as f64;
            (cores, vm.usage.map(|(used, _)| used * cores))
        };
        floating_w(self.top(), self.cores, floating(view, None).map(busy))
    }
}
