//! What throttling can still shed and what lifting would bring back, by the server's power model.
//!
//! A p-state lowers a core's dynamic power as `f^a`. A bandwidth limit stops a VM for part of the time
//! and leaves the frequency alone, so it lowers power in proportion, and only once it bites.

use ballast_types::wire::ClassWatts;
use ballast_types::{Instant, Ladder, VmClass, Watts};

use crate::Params;
use crate::bandwidth::{View, bandwidths};
use crate::fleet::Fleet;
use crate::throttle::{Class, Throttle};

/// Dynamic watts of one fully busy core at every p-state, computed once.
#[derive(Clone, Debug)]
pub(crate) struct Estimate {
    full: Watts,
    idle: Watts,
    /// One table per distinct ladder.
    tables: Vec<Vec<f64>>,
    /// Which table a core uses.
    table: Vec<u16>,
    /// How many cores the model is of.
    online: usize,
    /// With `cpu-max`: dynamic watts of one fully busy core, and how many cores there are.
    floating: Option<(f64, usize)>,
}

impl Estimate {
    pub(crate) fn new(params: &Params) -> Self {
        let Params { model, cores, .. } = params;
        let online = cores.len().saturating_sub(params.offline_cores.into()).max(1);
        let per_core = model.dynamic_w() / online as f64;
        let mut ladders: Vec<&Ladder> = Vec::new();
        let mut tables = Vec::new();
        let mut table = Vec::with_capacity(cores.len());
        for core in cores {
            let known = ladders.iter().position(|ladder| **ladder == core.ladder);
            table.push(known.unwrap_or(ladders.len()) as u16);
            if known.is_none() {
                let max = core.ladder.max();
                let watts = |n| per_core * model.scale(core.ladder.khz(n).share_of(max));
                tables.push((0..core.ladder.len()).map(watts).collect());
                ladders.push(&core.ladder);
            }
        }
        let watts = |w| Watts::from_f64(w).unwrap_or(Watts::ZERO);
        let floating = params.floating().then_some((per_core, cores.len()));
        let (full, idle) = (watts(model.full_w), watts(model.idle_w));
        Self { full, idle, tables, table, online, floating }
    }

    /// Dynamic watts that a low-priority core, or slot of a floating VM, would draw at another level, by
    /// the most that it was used in the last fast windows.
    pub(crate) fn core_w(
        &self,
        throttle: &Throttle,
        fleet: &Fleet,
        core: usize,
        level: usize,
    ) -> f64 {
        match self.floating {
            None => fleet.peak_use(core) * self.table_w(core, level),
            Some((watts, _)) => {
                watts * fleet.fast_demand(core, throttle).min(throttle.share(core, level))
            }
        }
    }

    /// Dynamic watts that a low-priority core, or slot, would draw at another level, by its use as last read;
    /// `None` if that is not known.
    ///
    /// A slower core is busier with the same work. What the work is, the use says only together with the
    /// level that it was read at: the highest of late, so that what is left is not made too little.
    pub(crate) fn used_core_w(
        &self,
        now: Instant,
        throttle: &Throttle,
        fleet: &Fleet,
        core: usize,
        highest: usize,
        level: usize,
    ) -> Option<f64> {
        let at = throttle.share(core, level);
        if let Some((watts, _)) = self.floating {
            return Some(watts * fleet.demand(now, core, throttle)?.min(at));
        }
        let work = fleet.core_usage(now, core)? * throttle.share(core, highest);
        Some((work / at).min(1.0) * self.table_w(core, level))
    }

    /// Dynamic watts of the low-priority cores with their use in the last fast window.
    pub(crate) fn drawn_low(&self, throttle: &Throttle, fleet: &Fleet) -> f64 {
        match self.floating {
            None => self.drawn(throttle, fleet, throttle.throttled()),
            Some((watts, _)) => throttle.throttled().map(|slot| watts * fleet.fast_use(slot)).sum(),
        }
    }

    /// Dynamic watts of all cores, likewise.
    pub(crate) fn drawn_all(&self, throttle: &Throttle, fleet: &Fleet) -> f64 {
        match self.floating {
            None => self.drawn(throttle, fleet, 0..throttle.len()),
            Some((watts, _)) => watts * fleet.fast_cores(),
        }
    }

    fn drawn(&self, throttle: &Throttle, fleet: &Fleet, cores: impl Iterator<Item = usize>) -> f64 {
        cores.map(|core| fleet.fast_use(core) * self.table_w(core, throttle.level(core))).sum()
    }

    /// Dynamic watts of a fully busy core at a level.
    fn table_w(&self, core: usize, level: usize) -> f64 {
        self.tables[usize::from(self.table[core])][level]
    }

    /// What throttling can do, class by class.
    pub(crate) fn classes(&self, view: &View<'_>) -> Vec<ClassWatts> {
        let class = |class: &Class| ClassWatts {
            class: if class.user_facing { VmClass::UserFacing } else { VmClass::NonUserFacing },
            order: class.order,
            cores: class.cores.len() as u16,
            sheddable_w: self.sheddable(view, class),
            restorable_w: self.restorable_of(view, class),
        };
        view.throttle.classes().iter().map(class).collect()
    }

    /// Watts that a class still sheds at its floor; a low estimate.
    ///
    /// A core whose use is unknown, or that cannot be set, sheds nothing.
    fn sheddable(&self, view: &View<'_>, class: &Class) -> Watts {
        let &View { now, throttle, actuators, fleet } = view;
        if let Some((watts, _)) = self.floating {
            let cores: f64 = bandwidths(view, Some(class)).map(|vm| vm.sheds()).sum();
            return Watts::from_f64(watts * cores).unwrap_or(Watts::ZERO);
        }
        let cores = class.cores.iter().map(|core| usize::from(*core));
        let sum: f64 = cores
            .filter(|core| !actuators.stuck(*core))
            .map(|core| {
                let table = &self.tables[usize::from(self.table[core])];
                let used = fleet.core_usage(now, core).unwrap_or(0.0);
                used * (table[throttle.level(core)] - table[throttle.floor_level(core)])
            })
            .sum();
        Watts::from_f64(sum).unwrap_or(Watts::ZERO).at_least_zero()
    }

    /// Watts of a class that come back when it is lifted; a high estimate.
    fn restorable_of(&self, view: &View<'_>, class: &Class) -> Watts {
        if let Some((watts, _)) = self.floating {
            let cores: f64 = bandwidths(view, Some(class)).map(|vm| vm.restores()).sum();
            return Watts::from_f64(watts * cores).unwrap_or(Watts::MAX);
        }
        self.held_back(view, class.cores.iter().map(|core| usize::from(*core)))
    }

    /// Watts that come back when everything is lifted but user-facing cores; a high estimate.
    ///
    /// A core whose use is unknown counts as busy, one that cannot be set as if at its floor. What the
    /// server's own limit holds down is not known core by core: then it is the rise to the draw that
    /// the cores' use would make unrestricted.
    pub(crate) fn restorable(&self, view: &View<'_>, draw: Option<Watts>) -> Watts {
        if view.actuators.limit_on() {
            let unrestricted = match self.floating {
                None => self.unrestricted(view.now, view.fleet),
                Some(_) => self.unlimited(view),
            };
            return (unrestricted - draw.unwrap_or(self.idle)).at_least_zero();
        }
        let user_facing = view.throttle.classes().iter().filter(|class| class.user_facing);
        let theirs: Watts = user_facing.map(|class| self.restorable_of(view, class)).sum();
        let all = match self.floating {
            None => self.held_back(view, 0..view.throttle.len()),
            Some((watts, _)) => {
                let cores: f64 = bandwidths(view, None).map(|vm| vm.restores()).sum();
                Watts::from_f64(watts * cores).unwrap_or(Watts::MAX)
            }
        };
        all - theirs
    }

    /// What the p-states of these cores hold back.
    fn held_back(&self, view: &View<'_>, cores: impl Iterator<Item = usize>) -> Watts {
        let &View { now, throttle, actuators, fleet } = view;
        let sum: f64 = cores
            .filter(|core| throttle.restricted(*core) || actuators.stuck(*core))
            .map(|core| {
                let table = &self.tables[usize::from(self.table[core])];
                let used = fleet.core_usage(now, core).unwrap_or(1.0);
                let level = if actuators.stuck(core) { 0 } else { throttle.level(core) };
                used * (table[table.len() - 1] - table[level])
            })
            .sum();
        Watts::from_f64(sum).unwrap_or(Watts::ZERO).at_least_zero()
    }

    /// The draw at the highest p-states with the use of now; slowed cores are busier, so it is high.
    ///
    /// A core whose use is unknown counts as the others do on average; where none is known, the server
    /// counts as fully busy.
    fn unrestricted(&self, now: Instant, fleet: &Fleet) -> Watts {
        let top = |core: usize| self.tables[usize::from(self.table[core])].last().copied();
        let (mut known, mut watts) = (0, 0.0);
        for core in 0..self.table.len() {
            if let Some(used) = fleet.core_usage(now, core) {
                known += 1;
                watts += used * top(core).unwrap_or(0.0);
            }
        }
        if known == 0 {
            return self.full;
        }
        self.with_dynamic(watts * self.online.max(known) as f64 / known as f64)
    }

    /// The same for floating VMs: what they would use without quotas. Where a VM's use is unknown, the
    /// cores that are not accounted for count as the others do.
    fn unlimited(&self, view: &View<'_>) -> Watts {
        let (per_core, cores) = self.floating.unwrap_or_default();
        let (mut known, mut busy) = (0.0, 0.0);
        for vm in bandwidths(view, None) {
            if let Some(demand) = vm.demand() {
                known += vm.cores;
                busy += demand;
            }
        }
        if known <= 0.0 {
            return self.full;
        }
        self.with_dynamic(per_core * busy * (cores as f64 / known).max(1.0))
    }

    fn with_dynamic(&self, watts: f64) -> Watts {
        (self.idle + Watts::from_f64(watts).unwrap_or(Watts::MAX)).min(self.full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Vm, VmUsage};
    use ballast_types::{
        BootId, ChassisId, Core, CoreId, KiloHertz, OnExtreme, ServerId, Utilisation, VmClass, VmId,
    };

    #[test]
    fn what_a_limit_holds_down_is_the_rise_to_the_unrestricted_draw() {
        let mhz = KiloHertz::from_mhz;
        let ladder = Ladder::new(&[mhz(1200), mhz(2400)]).unwrap();
        // The last two are offline, and the model knows nothing of them.
        let cores: Vec<_> =
            (0..6).map(|n| Core { id: CoreId(n), ladder: ladder.clone() }).collect();
        let (server, chassis) = (ServerId::new("s").unwrap(), ChassisId::new("c").unwrap());
        let defaults = Params::defaults(server, BootId::new("b").unwrap(), chassis, cores.clone());
        let estimate = Estimate::new(&Params { offline_cores: 2, ..defaults });
        let now = Instant::from_millis(1000);
        let mut fleet = Fleet::new(6, now);
        let id = VmId::new("v").unwrap();
        let on = vec![CoreId(0), CoreId(1)];
        let class = VmClass::UserFacing;
        let on_extreme = OnExtreme::None;
        let vm = Vm { id: id.clone(), class, throttle_order: 0, cores: on, on_extreme };
        fleet.replace(vec![vm], &cores);
        assert_eq!(estimate.unrestricted(now, &fleet), Watts::from_whole(310), "nothing known");
        let utilisation = Utilisation::from_ratio(0.5).unwrap();
        fleet.usage(now, &[VmUsage { vm: id, utilisation, throttled: false }]);
        assert_eq!(estimate.unrestricted(now, &fleet), Watts::from_whole(112 + 99));
    }
}
