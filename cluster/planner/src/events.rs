//! What a budget would have done to the past.

use ballast_types::Watts;
use serde::{Deserialize, Serialize};

use crate::chassis::Reductions;
use crate::histogram::Histogram;
use crate::policy::Policy;

/// What the history would have had under a budget. An event is a reading above it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// Readings that capping non-user-facing VMs alone would have mended.
    pub non_user_facing: u64,
    /// Readings that would have hit user-facing VMs too; under full-server capping every event.
    pub user_facing: u64,
    /// Readings that no capping within the floors would have mended.
    pub unmet: u64,
    /// The most that one event would have had to shed.
    #[serde(rename = "deepest_w")]
    pub deepest: Watts,
    /// What all events together would have shed, as watts times readings.
    #[serde(rename = "shed_w_readings")]
    pub shed: Watts,
}

impl Events {
    /// Of the readings in `draws` under `budget`.
    pub fn under(budget: Watts, draws: &Histogram, policy: &Policy, shed: Reductions) -> Self {
        let full_server = matches!(policy, Policy::FullServer { .. });
        let mut events = Self::default();
        for (draw, count) in draws.iter().rev().take_while(|&(draw, _)| draw > budget) {
            let need = draw - budget;
            events.deepest = events.deepest.max(need);
            let watts = need.milli().saturating_mul(i64::try_from(count).unwrap_or(i64::MAX));
            events.shed += Watts::from_milli(watts);
            let which = if need > shed.first + shed.user_facing {
                &mut events.unmet
            } else if full_server || need > shed.first {
                &mut events.user_facing
            } else {
                &mut events.non_user_facing
            };
            *which = which.saturating_add(count);
        }
        events
    }

    pub const fn all(&self) -> u64 {
        self.non_user_facing.saturating_add(self.user_facing).saturating_add(self.unmet)
    }

    /// Whether they, of so many readings, are what `policy` accepts: all can be shed, and they are rare
    /// enough.
    pub fn keep(&self, policy: &Policy, readings: u64) -> bool {
        let (total_ppm, user_facing_ppm) = policy.rates_ppm();
        let rare = |n: u64, ppm: u32| u128::from(n) * 1_000_000 <= u128::from(readings) * u128::from(ppm);
        self.unmet == 0 && rare(self.all(), total_ppm) && rare(self.user_facing, user_facing_ppm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_budget_would_have_done_is_counted() {
        let mut draws = Histogram::new(Watts::from_whole(1)).unwrap();
        for (w, times) in [(100, 90), (110, 5), (130, 3), (160, 2)] {
            draws.add(Watts::from_whole(w), times);
        }
        let shed = Reductions { first: Watts::from_whole(15), user_facing: Watts::from_whole(20) };
        let events = Events::under(Watts::from_whole(100), &draws, &Policy::NO_IMPACT, shed);
        let expected = Events {
            non_user_facing: 5,
            user_facing: 3,
            unmet: 2,
            deepest: Watts::from_whole(60),
            shed: Watts::from_whole(5 * 10 + 3 * 30 + 2 * 60),
        };
        assert_eq!((events, events.all()), (expected, 10));
        let events = Events::under(Watts::from_whole(100), &draws, &Policy::FULL_SERVER, shed);
        assert_eq!((events.non_user_facing, events.user_facing), (0, 8));
    }
}
