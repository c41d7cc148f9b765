//! What a run came to: figures of the plant's true draw, which no controller sees.

use std::collections::VecDeque;

use ballast_sim::plant::{WINDOW_S, WindowMean};
use ballast_sim::scenario::{Probe, Report, Run};
use ballast_types::{TripFraction, VmClass};
use serde::Serialize;

/// The mean draw and the time above the budget count from here on: the chassis has settled, in seconds.
pub const SETTLED_S: f64 = 30.0;
/// Windows of 100 ms in a minute.
const MINUTE: usize = 600;

/// Figures of one run, or of one row over its seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Mean draw after 30 s, as a share of the budget.
    pub mean_draw: f64,
    /// Share of the time after 30 s above the budget, by steps of 10 ms.
    pub above_fraction: f64,
    /// How far the breaker went towards its trip, at most; 1 is a trip.
    pub trip_fraction_max: f64,
    /// User-facing core-seconds below the highest frequency, by any cause.
    pub user_facing_slowed_core_s: f64,
    /// The same as a share of all user-facing core-seconds.
    pub user_facing_slowed_fraction: f64,
    /// Seconds in which some server had its own limit.
    pub server_limit_s: f64,
    /// Seconds in which some server had a hardware cap.
    pub hardware_cap_s: f64,
    /// Highest root mean square of the draw over 60 s, as a share of the budget; none in shorter runs.
    pub rms_max: Option<f64>,
}

impl Figures {
    /// Means over runs, and the highest of what is a maximum.
    pub(crate) fn over(runs: &[Self]) -> Self {
        let mean = |figure: fn(&Self) -> f64| runs.iter().map(figure).sum::<f64>() / runs.len() as f64;
        Self {
            mean_draw: mean(|f| f.mean_draw),
            above_fraction: mean(|f| f.above_fraction),
            trip_fraction_max: runs.iter().map(|f| f.trip_fraction_max).fold(0.0, f64::max),
            user_facing_slowed_core_s: mean(|f| f.user_facing_slowed_core_s),
            user_facing_slowed_fraction: mean(|f| f.user_facing_slowed_fraction),
            server_limit_s: mean(|f| f.server_limit_s),
            hardware_cap_s: mean(|f| f.hardware_cap_s),
            rms_max: runs.iter().filter_map(|f| f.rms_max).reduce(f64::max),
        }
    }
}

/// The draw of a run as shares of the budget, step by step.
#[derive(Debug, Default)]
pub(crate) struct Draw {
    /// After the chassis has settled.
    settled_steps: u32,
    settled_sum: f64,
    above_steps: u32,
    window: WindowMean,
    window_squares: WindowMean,
    breaker: TripFraction,
    /// Mean squares of the last minute's windows.
    minute: VecDeque<f64>,
    mean_square_max: Option<f64>,
}

impl Draw {
    /// Takes the draw of one step of 10 ms that begins at second `t`.
    pub(crate) fn step(&mut self, t: f64, share: f64) {
        if t >= SETTLED_S {
            self.settled_steps += 1;
            self.settled_sum += share;
            self.above_steps += u32::from(share > 1.0);
        }
        if let Some(mean) = self.window.step(share) {
            self.breaker.take(mean, WINDOW_S);
        }
        if let Some(mean_square) = self.window_squares.step(share * share) {
            self.minute.push_back(mean_square);
            if self.minute.len() > MINUTE {
                self.minute.pop_front();
            }
            if self.minute.len() == MINUTE {
                let over_minute = self.minute.iter().sum::<f64>() / MINUTE as f64;
                self.mean_square_max = Some(self.mean_square_max.unwrap_or(0.0).max(over_minute));
            }
        }
    }

    pub(crate) fn figures(&self, report: &Report) -> Figures {
        let (truth, spec) = (report.truth(), report.run().plant().spec());
        let vms = spec.servers.iter().flat_map(|server| &server.vms);
        let cores: usize = vms.filter(|vm| vm.class == VmClass::UserFacing).map(|vm| vm.cores.len()).sum();
        let slowed = truth.user_facing_throttled_core_s.total();
        let outcome = report.outcome().unwrap_or_default();
        let settled = f64::from(self.settled_steps);
        Figures {
            mean_draw: self.settled_sum / settled,
            above_fraction: f64::from(self.above_steps) / settled,
            trip_fraction_max: self.breaker.max(),
            user_facing_slowed_core_s: slowed,
            user_facing_slowed_fraction: slowed / (cores as f64 * truth.elapsed_s),
            server_limit_s: outcome.server_limit_s,
            hardware_cap_s: outcome.out_of_band_s,
            rms_max: self.mean_square_max.map(f64::sqrt),
        }
    }
}

impl Probe for Draw {
    fn begins(&mut self, run: &Run) {
        let plant = run.plant();
        self.step(plant.now().as_secs_f64(), plant.power().as_f64() / plant.spec().budget.as_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_that_jumps_between_two_values_has_the_figures_of_a_hand_calculation() {
        let mut draw = Draw::default();
        for n in 0..9000 {
            let share = if n / 100 % 2 == 0 { 1.1 } else { 0.8 };
            draw.step(f64::from(n) * 0.01, share);
        }
        // 60 s after the first 30: as many steps of 1.1 as of 0.8.
        assert_eq!((draw.settled_steps, draw.above_steps), (6000, 3000));
        assert!((draw.settled_sum / 6000.0 - 0.95).abs() < 1e-9);
        // √((1.21 + 0.64) ÷ 2)
        assert!((draw.mean_square_max.unwrap() - 0.925).abs() < 1e-9);
        // A breaker carries 1.1 for 10 s: one second of it is a tenth. It cools for a second more than that.
        assert!((draw.breaker.max() - 0.1).abs() < 1e-6, "{}", draw.breaker.max());
    }
}
