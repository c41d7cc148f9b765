//! Later draws as the controllers meet them, and how much room above the plan they would have needed.
//!
//! The planner's arithmetic counts a reading above the budget. The manager alerts at 98 % of the budget, and what
//! it has capped is given back only in the next unit of time: it caps more often. Here a unit has capping if its
//! draw or that of the unit before it is above 98 % of the budget. (A replay of two busy chassis over a month had
//! 870 such units; this counts 1,069, and at 99 % it would count 653.)

use ballast_types::Watts;

use crate::chassis::Reductions;
use crate::histogram::{Histogram, HistogramError};
use crate::policy::Policy;

/// Where the manager alerts, in millionths of the budget.
const ALERT_PPM: i64 = 980_000;
/// Buffers are proposed in whole steps, in millionths.
const STEP_PPM: u32 = 5_000;
/// No buffer is more than all of the lowest budget.
const MAX_PPM: u32 = 1_000_000;

/// Units of time by the lowest budget under which they would have had no capping at all, none of user-facing
/// VMs, and none beyond the floors.
#[derive(Clone, Debug)]
pub struct HeldOut {
    any: Histogram,
    user_facing: Histogram,
    beyond: Histogram,
}

impl HeldOut {
    pub fn new(resolution: Watts) -> Result<Self, HistogramError> {
        let empty = Histogram::new(resolution)?;
        Ok(Self { any: empty.clone(), user_facing: empty.clone(), beyond: empty })
    }

    /// Adds the draws of one chassis, in order, with their units and what could have been shed in them.
    pub fn add(&mut self, draws: impl IntoIterator<Item = (i64, Watts, Reductions)>) {
        let mut before = None;
        for (unit, draw, shed) in draws {
            let first = draw - shed.first;
            let now = [draw, first, first - shed.user_facing].map(budget_for);
            let last = before.filter(|(at, _)| *at == unit - 1).map_or(now, |(_, last)| last);
            let [any, user_facing, beyond] = core::array::from_fn(|n| now[n].max(last[n]));

            self.any.add(any, 1);
            self.user_facing.add(user_facing, 1);
            self.beyond.add(beyond, 1);
            before = Some((unit, now));
        }
    }

    /// The lowest budget that would have kept the policy; `None` without draws, and for
    /// [`Policy::Provisioned`].
    pub fn lowest(&self, policy: &Policy) -> Option<Watts> {
        let (total_ppm, user_facing_ppm) = policy.rates_ppm();
        let rare = self.any.exceeded_by(total_ppm)?;
        let enough = self.beyond.max()?;
        match policy {
            Policy::Provisioned => None,
            Policy::FullServer { .. } => Some(rare.max(enough)),
            Policy::PerVm { .. } => {
                Some(rare.max(enough).max(self.user_facing.exceeded_by(user_facing_ppm)?))
            }
        }
    }
}

/// The budget under which this draw is just no alert.
fn budget_for(draw: Watts) -> Watts {
    Watts::from_milli((draw.at_least_zero().milli() * 1_000_000 + ALERT_PPM - 1) / ALERT_PPM)
}

/// The buffer, in millionths of the lowest budget, under which a trial would have been kept: the share by which
/// `needed` is above what was planned.
pub fn buffer_needed(needed: Watts, planned: Watts) -> f64 {
    needed.as_f64() / planned.as_f64() - 1.0
}

/// The buffer to plan with, in millionths, after trials that needed these: the one that held in all of them, or
/// more where they differ so much that another one in twenty would need more (a one-sided prediction interval
/// of normal values). `None` for fewer than two: they say nothing of the next.
pub fn propose(needed: &[f64]) -> Option<u32> {
    let n = needed.len() as f64;
    let freedom = needed.len().checked_sub(1).filter(|freedom| *freedom > 0)?;
    let mean = needed.iter().sum::<f64>() / n;
    let squares = needed.iter().map(|need| (need - mean) * (need - mean)).sum::<f64>();
    let spread = libm::sqrt(squares / freedom as f64 * (1.0 + 1.0 / n));
    let bound = mean + student(freedom) * spread;
    Some(whole_steps(needed.iter().copied().fold(bound, f64::max)))
}

/// A buffer in whole steps, none below zero.
pub fn whole_steps(share: f64) -> u32 {
    let steps = libm::ceil(share * 1e6 / f64::from(STEP_PPM) - 1e-6).max(0.0);
    ((steps * f64::from(STEP_PPM)) as u32).min(MAX_PPM)
}

/// What Student's distribution is below in 95 of 100 cases.
fn student(freedom: usize) -> f64 {
    const FEW: [f64; 10] = [6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812];
    FEW.get(freedom - 1).copied().unwrap_or_else(|| 1.645 + 1.524 / freedom as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capping_lasts_into_the_next_unit_and_begins_below_the_budget() {
        let shed = |first| Reductions { first: Watts::from_whole(first), user_facing: Watts::from_whole(50) };
        let mut held_out = HeldOut::new(Watts::from_whole(1)).unwrap();
        assert_eq!(held_out.lowest(&Policy::NO_IMPACT), None);

        // One peak of 1960 W and the unit after it, of which 196 W can be shed; a gap, and then 1000 units.
        let peak = [(0, 980), (1, 1960), (2, 980)].map(|(unit, w)| (unit, Watts::from_whole(w), shed(196)));
        let calm = (4..1001).map(|unit| (unit, Watts::from_whole(980), shed(196)));
        held_out.add(peak.into_iter().chain(calm));

        // Two of 1000 units are 0.2 %: within 1 %, not within 0.1 %.
        assert_eq!(held_out.lowest(&Policy::NO_IMPACT), Some(Watts::from_whole(1800)));
        assert_eq!(held_out.lowest(&Policy::MINIMAL_IMPACT), Some(Watts::from_whole(1800)));
        assert_eq!(held_out.lowest(&Policy::FULL_SERVER), Some(Watts::from_whole(2000)));
        assert_eq!(held_out.lowest(&Policy::Provisioned), None);
    }

    #[test]
    fn a_buffer_covers_every_trial_and_their_spread() {
        assert_eq!((propose(&[]), propose(&[0.1])), (None, None));
        assert_eq!(propose(&[0.021, 0.021, 0.021]), Some(25_000));
        assert_eq!(propose(&[-0.05, -0.05, -0.05]), Some(0));
        // 0.03 ± 0.01: 2.92 standard deviations with the mean's own, 0.0337 above it.
        assert_eq!(propose(&[0.02, 0.03, 0.04]), Some(65_000));
        assert_eq!(propose(&[0.0, 3.0]), Some(MAX_PPM));
        let need = buffer_needed(Watts::from_whole(2060), Watts::from_whole(2000));
        assert_eq!(whole_steps(need), 30_000);
    }
}
