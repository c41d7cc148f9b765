//! What was promised, and whether it was kept.

use ballast_planner::Policy;
use ballast_types::{TRIP_TIME, Watts};
use serde::Serialize;

use super::{Measured, Planned};

/// Frequencies are whole kilohertz.
const TOLERANCE: f64 = 1e-6;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// The share of units in which any VM is capped: at most.
    EventsRate,
    /// The share of units in which user-facing VMs are capped: at most.
    EventsUserFacingRate,
    /// The lowest frequency of batch cores, as a share of the highest: at least.
    LowestBatchFrequency,
    /// The lowest frequency of user-facing VMs' cores, as a share of the highest: at least.
    LowestUserFacingFrequency,
    /// The longest stretch above the budget, in seconds: at most.
    OverBudgetS,
}

impl What {
    pub const fn words(self) -> &'static str {
        match self {
            Self::EventsRate => "units with capping, share at most",
            Self::EventsUserFacingRate => "units with capping of user-facing VMs, share at most",
            Self::LowestBatchFrequency => "lowest frequency of batch cores, share at least",
            Self::LowestUserFacingFrequency => "lowest frequency of user-facing cores, share at least",
            Self::OverBudgetS => "longest stretch above the budget, seconds at most",
        }
    }

    pub const fn short(self) -> &'static str {
        match self {
            Self::EventsRate => "events",
            Self::EventsUserFacingRate => "user-facing events",
            Self::LowestBatchFrequency => "batch frequency",
            Self::LowestUserFacingFrequency => "user-facing frequency",
            Self::OverBudgetS => "over budget",
        }
    }

    fn is_at_least(self) -> bool {
        matches!(self, Self::LowestBatchFrequency | Self::LowestUserFacingFrequency)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Promise {
    pub what: What,
    /// What the policy accepts.
    pub accepted: f64,
    /// What the plan foretells from the history that it was made of, where it does.
    pub foretold: Option<f64>,
    pub measured: f64,
    pub kept: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    #[serde(rename = "budget_w")]
    pub budget: Watts,
    pub kept: bool,
    pub promises: Vec<Promise>,
    /// Units with an event, as a share of all; the same of user-facing VMs, and of batch VMs alone.
    pub events_rate: f64,
    pub events_user_facing_rate: f64,
    pub events_batch_rate: f64,
    /// The most that the plan foretells for one event.
    #[serde(rename = "foretold_deepest_w")]
    pub foretold_deepest: Watts,
    #[serde(flatten)]
    pub measured: Measured,
}

impl Verdict {
    /// Holds what was measured against what was planned. `None` if no unit was measured.
    pub fn of(planned: &Planned, measured: &Measured) -> Option<Self> {
        if measured.units == 0 {
            return None;
        }
        let (plan, policy) = (&planned.plan, &planned.approach.policy);
        let foretold = |events: u64| Some(events as f64 / plan.readings.max(1) as f64);
        let (total_ppm, user_facing_ppm) = policy.rates_ppm();
        let (first, user_facing) = policy.floors();
        let rate = |ppm: u32| f64::from(ppm) / 1e6;
        let hits_users = plan.events.user_facing.saturating_add(plan.events.unmet);
        let mut promises =
            vec![(What::EventsRate, rate(total_ppm), foretold(plan.events.all()), measured.events_rate())];

        // Under full-server capping every event hits all: there is no rate of user-facing ones alone.
        if !matches!(policy, Policy::FullServer { .. }) {
            promises.push((
                What::EventsUserFacingRate,
                rate(user_facing_ppm),
                foretold(hits_users),
                measured.events_user_facing_rate(),
            ));
        }

        promises.extend([
            (What::LowestBatchFrequency, first, None, measured.lowest_batch_frequency),
            (What::LowestUserFacingFrequency, user_facing, None, measured.lowest_user_facing_frequency),
            (What::OverBudgetS, TRIP_TIME.as_secs_f64(), None, measured.over_budget_s_max),
        ]);

        let promises = promises.into_iter().map(|(what, accepted, foretold, measured)| {
            let kept =
                if what.is_at_least() { measured >= accepted - TOLERANCE } else { measured <= accepted };

            Promise { what, accepted, foretold, measured, kept }
        });

        let promises: Vec<_> = promises.collect();

        Some(Self {
            budget: plan.budget,
            kept: promises.iter().all(|promise| promise.kept),
            promises,
            events_rate: measured.events_rate(),
            events_user_facing_rate: measured.events_user_facing_rate(),
            events_batch_rate: measured.events_batch_rate(),
            foretold_deepest: plan.events.deepest,
            measured: *measured,
        })
    }

    pub fn broken(&self) -> impl Iterator<Item = &Promise> {
        self.promises.iter().filter(|promise| !promise.kept)
    }
}
