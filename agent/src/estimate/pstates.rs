//! Dynamic watts of cores that are slowed by their p-states: a p-state lowers a core's dynamic power as `f^a`.

use ballast_types::Ladder;
use serde::{Deserialize, Serialize};

use super::{Dynamic, online, watts_per_core};
use crate::Params;
use crate::bandwidth::View;
use crate::throttle::Class;

/// Dynamic watts of one fully busy core at every p-state, computed once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Pstates {
    /// One table per distinct ladder.
    tables: Vec<Vec<f64>>,
    /// Which table a core uses.
    table: Vec<u16>,
    /// How many cores the model is of.
    online: usize,
}

impl Pstates {
    pub(super) fn new(params: &Params) -> Self {
        let Params { model, cores, .. } = params;
        let (online, per_core) = (online(params), watts_per_core(params));
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

        Self { tables, table, online }
    }

    /// Of a fully busy core.
    fn of(&self, core: usize) -> &[f64] {
        &self.tables[usize::from(self.table[core])]
    }

    /// What the p-states of these cores hold back.
    fn held_back(&self, view: &View<'_>, cores: impl Iterator<Item = usize>) -> f64 {
        let &View { now, throttle, actuators, fleet } = view;
        cores
            .filter(|core| throttle.restricted(*core) || actuators.stuck(*core))
            .map(|core| {
                let table = self.of(core);
                let used = fleet.core_usage(now, core).unwrap_or(1.0);
                let level = if actuators.stuck(core) { 0 } else { throttle.level(core) };
                used * (table[table.len() - 1] - table[level])
            })
            .sum()
    }
}

impl Dynamic for Pstates {
    fn used_core_w(&self, view: &View<'_>, core: usize, highest: usize, level: usize) -> Option<f64> {
        let &View { now, throttle, fleet, .. } = view;
        let work = fleet.core_usage(now, core)? * throttle.share(core, highest);
        Some((work / throttle.share(core, level)).min(1.0) * self.of(core)[level])
    }

    fn sheddable(&self, view: &View<'_>, class: &Class) -> f64 {
        let &View { now, throttle, actuators, fleet } = view;
        let cores = class.cores.iter().map(|core| usize::from(*core));
        cores
            .filter(|core| !actuators.stuck(*core))
            .map(|core| {
                let table = self.of(core);
                let used = fleet.least_usage(now, core);
                used * (table[throttle.level(core)] - table[throttle.floor_level(core)])
            })
            .sum()
    }

    fn restorable(&self, view: &View<'_>, class: Option<&Class>) -> f64 {
        match class {
            Some(class) => self.held_back(view, class.cores.iter().map(|core| usize::from(*core))),
            None => self.held_back(view, 0..view.throttle.len()),
        }
    }

    fn unrestricted(&self, view: &View<'_>) -> Option<f64> {
        let (mut known, mut watts) = (0, 0.0);
        for core in 0..self.table.len() {
            if let Some(used) = view.fleet.core_usage(view.now, core) {
                known += 1;
                watts += used * self.of(core).last().copied().unwrap_or(0.0);
            }
        }
        (known > 0).then(|| watts * self.online.max(known) as f64 / known as f64)
    }
}

#[cfg(test)]
mod tests {
    use ballast_types::{
        BootId, ChassisId, Core, CoreId, Instant, KiloHertz, OnExtreme, ServerId, Utilisation, VmClass, VmId,
        Watts,
    };

    use super::*;
    use crate::actuators::Actuators;
    use crate::estimate::Estimate;
    use crate::fleet::Fleet;
    use crate::throttle::Throttle;
    use crate::{ControlledVm, VmUsage};

    /// Cores with two p-states.
    fn params(cores: u16) -> Params {
        let mhz = KiloHertz::from_mhz;
        let ladder = Ladder::new(&[mhz(1200), mhz(2400)]).unwrap();
        let cores = (0..cores).map(|n| Core { id: CoreId(n), ladder: ladder.clone() }).collect();
        let (server, chassis) = (ServerId::new("s").unwrap(), ChassisId::new("c").unwrap());
        Params::defaults(server, BootId::new("b").unwrap(), chassis, cores)
    }

    fn vm(class: VmClass, cores: &[u16]) -> ControlledVm {
        let (id, cores) = (VmId::new("v").unwrap(), cores.iter().copied().map(CoreId).collect());
        ControlledVm { id, class, throttle_order: 0, cores, vcpus: None, on_extreme: OnExtreme::None }
    }

    fn usage(share: f64) -> VmUsage {
        let utilisation = Utilisation::from_ratio(share).unwrap();
        VmUsage { vm: VmId::new("v").unwrap(), utilisation, throttled: false }
    }

    #[test]
    fn what_a_limit_holds_down_is_the_rise_to_the_unrestricted_draw() {
        // The last two are offline, and the model knows nothing of them.
        let params = Params { offline_cores: 2, ..params(6) };
        let (estimate, throttle) = (Estimate::new(&params), Throttle::new(params.cores.clone(), false));
        let actuators = Actuators::new(&params);
        let now = Instant::from_millis(1000);
        let mut fleet = Fleet::new(6, now);
        fleet.replace(vec![vm(VmClass::UserFacing, &[0, 1])], &params.cores);
        let unrestricted = |fleet: &Fleet| {
            estimate.unrestricted(&View { now, throttle: &throttle, actuators: &actuators, fleet })
        };
        assert_eq!(unrestricted(&fleet), Watts::from_whole(310), "nothing known");
        fleet.usage(now, &[usage(0.5)]);
        assert_eq!(unrestricted(&fleet), Watts::from_whole(112 + 99));
    }

    /// The same work keeps a slower core busier, up to all the time.
    #[test]
    fn at_another_level_a_core_is_as_busy_as_its_work_makes_it() {
        let (params, now) = (params(4), Instant::ZERO);
        let (throttle, actuators) = (Throttle::new(params.cores.clone(), false), Actuators::new(&params));
        let vm = vm(VmClass::NonUserFacing, &[0]);
        let (top, low) = (198.0 / 4.0, 198.0 / 4.0 * params.model.scale(0.5));
        for actuator in [crate::Actuator::Pstate, crate::Actuator::Uclamp] {
            let estimate = Estimate::new(&Params { actuator, ..params.clone() });
            let mut fleet = Fleet::new(4, now);
            fleet.replace(vec![vm.clone()], &params.cores);
            let watts = |fleet: &Fleet, highest, level| {
                let view = View { now, throttle: &throttle, actuators: &actuators, fleet };
                estimate.dynamic().used_core_w(&view, 0, highest, level)
            };
            assert_eq!(watts(&fleet, 1, 1), None, "unknown use");
            for (used, highest, level, expected) in [
                (0.4, 1, 1, 0.4 * top),
                (0.4, 1, 0, 0.8 * low),
                (0.4, 0, 0, 0.4 * low),
                (0.4, 0, 1, 0.2 * top),
                (0.8, 1, 0, low),
            ] {
                fleet.usage(now, &[usage(used)]);
                let found = watts(&fleet, highest, level).unwrap();
                assert!((found - expected).abs() < 1e-6, "{actuator:?} {used} {highest} {level}: {found}");
            }
        }

        // A quota stops a VM and leaves its frequency alone.
        let estimate = Estimate::new(&Params { actuator: crate::Actuator::CpuMax, ..params.clone() });
        let mut fleet = Fleet::new(4, now);
        fleet.replace(vec![vm], &params.cores);
        for (used, level, expected) in [(0.4, 1, 0.4), (0.4, 0, 0.4), (0.8, 1, 0.8), (0.8, 0, 0.5)] {
            fleet.usage(now, &[usage(used)]);
            let view = View { now, throttle: &throttle, actuators: &actuators, fleet: &fleet };
            let found = estimate.dynamic().used_core_w(&view, 0, 1, level).unwrap();
            assert!((found - expected * top).abs() < 1e-6, "{used} {level}: {found}");
        }
    }
}
