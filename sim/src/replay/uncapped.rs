//! What a chassis of measured load would have drawn and done without a budget.
//!
//! Measured load follows lines that do not depend on what happened before. So what it would have drawn at
//! any instant follows from the model alone, and no second plant has to run beside the first.

use core::time::Duration;

use ballast_types::{VmClass, Watts};

use crate::load::Cursor;
use crate::plant::{Load, PlantSpec, Truth, draws};

/// So often a second the draw is worked out: load may swing faster than once a second.
const SAMPLES: u32 = 20;

#[derive(Debug)]
pub(super) struct Uncapped {
    /// The mean draw of every second, in watts.
    means_w: Vec<f64>,
}

impl Uncapped {
    /// Of a chassis whose VMs all follow lines, for `length`.
    pub(super) fn new(spec: &PlantSpec, length: Duration) -> Self {
        let seconds = u32::try_from(length.as_secs()).unwrap_or(u32::MAX).min(u32::MAX / SAMPLES - 1);
        let mut draws =
            draws(spec, f64::from(seconds + 1), (seconds + 1) * SAMPLES, false).map(Watts::as_f64);
        let mut from = draws.next().unwrap_or(0.0);
        let means_w = (0..seconds).map(|_| {
            let samples = draws.by_ref().take(SAMPLES as usize).map(|to| {
                let mean = 0.5 * (from + to);
                from = to;
                mean
            });
            samples.sum::<f64>() / f64::from(SAMPLES)
        });
        Self { means_w: means_w.collect() }
    }

    /// The mean draw over second `n` of the run; `None` beyond its last whole second.
    pub(super) fn mean_w(&self, n: u64) -> Option<f64> {
        self.means_w.get(n as usize).copied()
    }
}

/// What the batch VMs would get done without a budget in the first `seconds`, in core-seconds at the
/// highest frequency.
pub(super) fn batch_demand_core_s(spec: &PlantSpec, seconds: f64) -> f64 {
    let vms = spec.servers.iter().flat_map(|server| &server.vms);
    let batch = vms.filter(|vm| vm.class == VmClass::NonUserFacing);
    let demand = batch.filter_map(|vm| match &vm.load {
        Load::Profile(profile) => {
            Some(Cursor::new(profile.clone()).integral(seconds) * vm.cores.len() as f64)
        }
        _ => None,
    });
    demand.sum()
}

/// What the batch VMs got done, likewise.
pub fn batch_work_core_s(truth: &Truth) -> f64 {
    let batch = truth.vms.iter().filter(|vm| vm.class == VmClass::NonUserFacing);
    batch.map(|vm| vm.work_core_s).sum()
}

/// How much of a budget was used while the load would have drawn more than it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BudgetUse {
    drawn_j: f64,
    allowed_j: f64,
}

impl BudgetUse {
    /// Takes one second: what was drawn, and what would have been drawn without the budget.
    pub fn second(&mut self, drawn_w: f64, uncapped_w: f64, budget_w: f64) {
        if uncapped_w > budget_w {
            self.drawn_j += drawn_w;
            self.allowed_j += budget_w;
        }
    }

    /// What was drawn ÷ what the budget allowed; `None` when the load never wanted more than the budget.
    pub fn ratio(&self) -> Option<f64> {
        (self.allowed_j > 0.0).then(|| self.drawn_j / self.allowed_j)
    }
}

#[cfg(test)]
mod tests {
    use ballast_types::{Instant, PowerModel};

    use super::super::loads::{Loads, Playback, Sizes};
    use super::*;
    use crate::plant::Plant;
    use crate::trace::{ReadOptions, Trace};

    #[test]
    fn load_that_swings_faster_than_once_a_second_is_summed_up_as_it_is() {
        let mut text = "t_s,u,v\n".to_owned();
        for n in 0..600_u32 {
            let high = if n % 4 < 2 { 90 } else { 10 };
            text += &format!("{:.2},10,{high}\n", 0.05 * f64::from(n));
        }
        let trace = Trace::read(text.as_bytes(), "t.csv", &ReadOptions::default()).unwrap();
        let model = PowerModel::PAPER;
        let playback = Playback { servers: Some(1), skip_s: 0.0, length_s: None, scale: 1.0, model };
        let loads = Loads::cut(&trace, &playback).unwrap();
        let spec = loads.plant(|n| n, Sizes::Equal, Watts::from_whole(9000), false);
        let uncapped = Uncapped::new(&spec, loads.length);
        let mut plant = Plant::new(spec.clone(), 1);
        plant.advance(Instant::from_millis(20_000));

        let mean_w: f64 = (0..20).map(|second| uncapped.mean_w(second).unwrap() / 20.0).sum();
        assert!((plant.energy_j() / 20.0 / mean_w - 1.0).abs() < 0.02, "{mean_w}");
        let (work, demand) = (batch_work_core_s(plant.truth()), batch_demand_core_s(&spec, 20.0));
        assert!((work / demand - 1.0).abs() < 0.02 && demand > 10.0, "{work} of {demand}");
    }

    #[test]
    fn only_seconds_in_which_more_was_needed_count() {
        let mut used = BudgetUse::default();
        used.second(900.0, 1000.0, 1000.0);
        assert_eq!(used.ratio(), None, "as much as the budget is not more");
        used.second(900.0, 1200.0, 1000.0);
        used.second(1000.0, 1001.0, 1000.0);
        used.second(500.0, 500.0, 1000.0);
        assert_eq!(used.ratio(), Some(0.95));
    }

    /// The figures of a plant that nobody caps are the model's.
    #[test]
    fn a_plant_without_a_budget_draws_and_does_what_the_model_says() {
        let text = "t_s,u,v,w,x\n0,10,95,30,50\n60,80,20,100,50\n120,0,60,70,50\n";
        let trace = Trace::read(text.as_bytes(), "t.csv", &ReadOptions::default()).unwrap();
        let model = PowerModel::PAPER;
        let playback = Playback { servers: Some(3), skip_s: 0.0, length_s: None, scale: 1.0, model };
        let loads = Loads::cut(&trace, &playback).unwrap();
        let spec = loads.plant(|n| n, Sizes::Unequal, Watts::from_whole(9000), false);
        let uncapped = Uncapped::new(&spec, loads.length);
        assert_eq!((loads.length.as_secs(), uncapped.mean_w(120)), (120, None));
        let mut plant = Plant::new(spec.clone(), 1);

        for second in 0..120 {
            let before = plant.energy_j();
            plant.advance(Instant::from_millis(1000 * (second + 1)));
            let (drawn, expected) = (plant.energy_j() - before, uncapped.mean_w(second).unwrap());
            assert!((drawn - expected).abs() < 0.05, "second {second}: {drawn}, not {expected}");
        }

        let (work, demand) = (batch_work_core_s(plant.truth()), batch_demand_core_s(&spec, 120.0));
        assert!((work / demand - 1.0).abs() < 5e-4 && demand > 1000.0, "{work} of {demand}");
    }
}
