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
    /// A core whose use is unknown counts as busy, one that cannot be set as if at its floor. The
    /// server's own limit hides its effect: then it is all that the model can still rise.
    pub(crate) fn restorable(
        &self,
        now: Instant,
        throttle: &Throttle,
        actuators: &Actuators,
        fleet: &Fleet,
        draw: Option<Watts>,
    ) -> Watts {
        if actuators.limit_on() {
            return (self.full - draw.unwrap_or(self.idle)).at_least_zero();
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
}
