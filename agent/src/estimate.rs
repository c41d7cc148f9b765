//! What throttling can still shed and what lifting would bring back, by the server's power model.

use ballast_types::{Core, Instant, Ladder, PowerModel, Watts};

use crate::actuators::Actuators;
use crate::fleet::Fleet;
use crate::throttle::Throttle;

/// Dynamic watts of one fully busy core at every p-state, computed once.
#[derive(Clone, Debug)]
pub(crate) struct Estimate {
    full: Watts,
    idle: Watts,
    /// One table per distinct ladder.
    tables: Vec<Vec<f64>>,
    /// Which table a core uses.
    table: Vec<u16>,
}

impl Estimate {
    pub(crate) fn new(model: &PowerModel, cores: &[Core]) -> Self {
        let per_core = model.dynamic_w() / cores.len().max(1) as f64;
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
        Self { full: watts(model.full_w), idle: watts(model.idle_w), tables, table }
    }

    /// Watts that the low-priority cores still shed at their floor; a low estimate.
    ///
    /// A core whose use is unknown, or that cannot be set, sheds nothing.
    pub(crate) fn sheddable(
        &self,
        now: Instant,
        throttle: &Throttle,
        actuators: &Actuators,
        fleet: &Fleet,
    ) -> Watts {
        let sum: f64 = throttle
            .low()
            .filter(|core| !actuators.stuck(*core))
            .map(|core| {
                let table = &self.tables[usize::from(self.table[core])];
                let used = fleet.core_usage(now, core).unwrap_or(0.0);
                used * (table[throttle.level(core)] - table[0])
            })
            .sum();
        Watts::from_f64(sum).unwrap_or(Watts::ZERO).at_least_zero()
    }

    /// Watts that come back when everything is lifted; a high estimate.
    ///
    /// A core whose use is unknown counts as busy, one that cannot be set as if at its floor. What the
    /// server's own limit holds down is not known core by core: then it is the rise to the draw that
    /// the cores' use would make unrestricted.
    pub(crate) fn restorable(
        &self,
        now: Instant,
        throttle: &Throttle,
        actuators: &Actuators,
        fleet: &Fleet,
        draw: Option<Watts>,
    ) -> Watts {
        if actuators.limit_on() {
            let unrestricted = self.unrestricted(now, fleet, throttle.len());
            return (unrestricted - draw.unwrap_or(self.idle)).at_least_zero();
        }
        let sum: f64 = (0..throttle.len())
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
    fn unrestricted(&self, now: Instant, fleet: &Fleet, cores: usize) -> Watts {
        let top = |core: usize| self.tables[usize::from(self.table[core])].last().copied();
        let (mut known, mut watts) = (0u32, 0.0);
        for core in 0..cores {
            if let Some(used) = fleet.core_usage(now, core) {
                known += 1;
                watts += used * top(core).unwrap_or(0.0);
            }
        }
        if known == 0 {
            return self.full;
        }
        let all = watts * cores as f64 / f64::from(known);
        (self.idle + Watts::from_f64(all).unwrap_or(Watts::MAX)).min(self.full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Vm, VmUsage};
    use ballast_types::{CoreId, KiloHertz, Utilisation, VmClass, VmId};

    #[test]
    fn what_a_limit_holds_down_is_the_rise_to_the_unrestricted_draw() {
        let mhz = KiloHertz::from_mhz;
        let ladder = Ladder::new(&[mhz(1200), mhz(2400)]).unwrap();
        let cores: Vec<_> =
            (0..4).map(|n| Core { id: CoreId(n), ladder: ladder.clone() }).collect();
        let estimate = Estimate::new(&PowerModel::PAPER, &cores);
        let now = Instant::from_millis(1000);
        let mut fleet = Fleet::new(4, now);
        let id = VmId::new("v").unwrap();
        let on = vec![CoreId(0), CoreId(1)];
        let class = VmClass::UserFacing;
        fleet.replace(vec![Vm { id: id.clone(), class, throttle_order: 0, cores: on }], &cores);
        assert_eq!(estimate.unrestricted(now, &fleet, 4), Watts::from_whole(310), "nothing known");
        let utilisation = Utilisation::from_ratio(0.5).unwrap();
        fleet.usage(now, &[VmUsage { vm: id, utilisation }]);
        assert_eq!(estimate.unrestricted(now, &fleet, 4), Watts::from_whole(112 + 99));
    }
}
