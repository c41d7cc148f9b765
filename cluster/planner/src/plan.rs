//! A budget to set, and what it rests on.

use core::time::Duration;

use ballast_types::Watts;
use serde::{Deserialize, Serialize};

use crate::chassis::{Chassis, Reductions};
use crate::events::Events;
use crate::histogram::Histogram;
use crate::lowest::{Binding, lowest};
use crate::policy::{Approach, Policy};

/// What the plan is made for, besides the history.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    /// What a chassis is provisioned for.
    #[serde(rename = "provisioned_w")]
    pub provisioned: Watts,
    /// Room above the lowest budget for a future unlike the past, in millionths of it.
    pub buffer_ppm: u32,
    /// From one reading of a chassis to its next.
    #[serde(rename = "reading_period")]
    pub period: Duration,
    /// What the whole site is provisioned for.
    #[serde(rename = "site_w")]
    pub site: Watts,
    /// What a provisioned watt costs.
    pub usd_per_w: f64,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{key} = {value}: {allowed}")]
pub struct TermsError {
    pub key: &'static str,
    pub value: f64,
    pub allowed: &'static str,
}

impl Terms {
    /// The paper's: 10 % of buffer, a site of 128 MW at $10 a watt, a reading a minute.
    pub fn paper(chassis: &Chassis) -> Self {
        Self {
            provisioned: chassis.nameplate(),
            buffer_ppm: 100_000,
            period: Duration::from_secs(60),
            site: Watts::from_whole(128_000_000),
            usd_per_w: 10.0,
        }
    }

    /// Says what is wrong with these numbers, if anything.
    pub fn check(&self) -> Result<(), TermsError> {
        for (key, value, good, allowed) in [
            ("provisioned_w", self.provisioned.as_f64(), self.provisioned > Watts::ZERO, "above 0"),
            ("buffer", f64::from(self.buffer_ppm) / 1e6, self.buffer_ppm <= 1_000_000, "0 to 1"),
            ("reading_period_s", self.period.as_secs_f64(), !self.period.is_zero(), "above 0"),
            ("site_w", self.site.as_f64(), self.site > Watts::ZERO, "above 0"),
            ("usd_per_w", self.usd_per_w, self.usd_per_w.is_finite() && self.usd_per_w >= 0.0, "0 or more"),
        ] {
            if !good {
                return Err(TermsError { key, value, allowed });
            }
        }
        Ok(())
    }
}

/// The budget to set for every chassis of one hardware generation, and what it rests on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The lowest budget that the history admits; the provisioned power where nothing is oversubscribed.
    #[serde(rename = "p_min_w")]
    pub p_min: Watts,
    /// With the buffer, rounded up to the meter's resolution, and at most the provisioned power.
    #[serde(rename = "budget_w")]
    pub budget: Watts,
    /// What keeps the budget from being lower.
    pub binding: Binding,
    pub reductions: Reductions,
    /// How far the budget is under the provisioned power, in percent of it.
    pub delta_percent: f64,
    /// How many more servers the same power feeds, in percent.
    pub extra_servers_percent: f64,
    pub savings_usd: f64,
    /// What the history would have had under `budget`.
    pub events: Events,
    /// Events of a chassis in a week under `budget`.
    pub events_per_week: f64,
    /// The readings that all of this rests on.
    pub readings: u64,
}

/// What fits under the breaker of a rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RackFit {
    #[serde(rename = "rack_w")]
    pub rack: Watts,
    /// Servers, each with its part of its chassis's provisioned power; and of the budget.
    pub servers_provisioned: u64,
    pub servers: u64,
    /// The same where chassis come whole, with all of their servers.
    pub chassis_provisioned: u64,
    pub chassis: u64,
}

impl Plan {
    /// What fits into a rack of chassis of so many servers, with this budget and as provisioned.
    pub fn fit(&self, rack: Watts, servers: u32, provisioned: Watts) -> RackFit {
        let times = |count: u32, each: Watts| {
            let all = i128::from(rack.milli()) * i128::from(count);
            u64::try_from(all / i128::from(each.milli().max(1))).unwrap_or(0)
        };
        RackFit {
            rack,
            servers_provisioned: times(servers, provisioned),
            servers: times(servers, self.budget),
            chassis_provisioned: times(1, provisioned),
            chassis: times(1, self.budget),
        }
    }

    /// The plan for one approach. `None` without readings.
    ///
    /// Source: Section III-E, step 5, and Section IV-F for the savings.
    pub fn make(draws: &Histogram, approach: &Approach, chassis: &Chassis, terms: &Terms) -> Option<Self> {
        let reductions = chassis.reductions(&approach.policy, approach.treated);
        Self::with(draws, &approach.policy, reductions, terms)
    }

    /// The same where it is known what capping can take off.
    pub(crate) fn with(
        draws: &Histogram,
        policy: &Policy,
        reductions: Reductions,
        terms: &Terms,
    ) -> Option<Self> {
        draws.max()?;
        let found = lowest(draws, policy, reductions);
        let (p_min, mut binding) =
            found.map_or((terms.provisioned, Binding::Provisioned), |found| (found.budget, found.binding));
        let buffered = draws.round_up(p_min + p_min.ppm(terms.buffer_ppm));
        let budget = if buffered < terms.provisioned {
            buffered
        } else {
            binding = Binding::Provisioned;
            terms.provisioned
        };

        let events = Events::under(budget, draws, policy, reductions);
        let (budget_w, provisioned_w) = (budget.as_f64(), terms.provisioned.as_f64());
        let delta = 1.0 - budget_w / provisioned_w;
        let week = 7.0 * 24.0 * 3600.0 / terms.period.as_secs_f64();

        Some(Self {
            p_min,
            budget,
            binding,
            reductions,
            delta_percent: 100.0 * delta,
            extra_servers_percent: 100.0 * (provisioned_w / budget_w - 1.0),
            savings_usd: delta * terms.site.as_f64() * terms.usd_per_w,
            events,
            events_per_week: events.all() as f64 / draws.readings() as f64 * week,
            readings: draws.readings(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100,000 draws whose upper quantiles are the paper's, as far as they can be known from its results
    /// (shares of 3720 W): .7991 is exceeded by 1 %, .8527 by 0.1 %, and .8700 is the highest.
    fn draws() -> Histogram {
        let mut draws = Histogram::new(Watts::from_milli(100)).unwrap();
        for (share, times) in [(0.55, 98_899), (0.7991, 1_000), (0.8527, 100), (0.87, 1)] {
            draws.add(Watts::from_f64(share * 3720.0).unwrap(), times);
        }
        draws
    }

    #[test]
    fn the_papers_table_is_reproduced() {
        // Kumbhare et al., Table IV: oversubscription in percent, savings in millions.
        let paper = [
            ("traditional", 0.0, 0.0, Binding::Provisioned),
            ("full-server", 6.2, 79.4, Binding::TotalRate),
            ("no-impact", 11.0, 140.8, Binding::Depth),
            ("minimal-impact", 12.1, 154.9, Binding::TotalRate),
            ("no-impact-internal", 8.4, 107.5, Binding::Depth),
            ("minimal-impact-internal", 10.3, 131.8, Binding::UserFacingRate),
            ("no-impact-non-premium", 10.6, 135.7, Binding::Depth),
            ("minimal-impact-non-premium", 12.1, 154.9, Binding::TotalRate),
        ];

        let chassis = Chassis::default();

        for (name, delta, savings, binding) in paper {
            let approach = Approach::named(name).unwrap();
            let plan = Plan::make(&draws(), &approach, &chassis, &Terms::paper(&chassis)).unwrap();
            assert!((plan.delta_percent - delta).abs() < 0.05, "{name}: {plan:?}");
            assert!((plan.savings_usd / 1e6 - savings).abs() < 0.5, "{name}: {plan:?}");
            assert_eq!(plan.binding, binding, "{name}");
            assert_eq!(plan.events.unmet, 0, "{name}");
        }
    }

    #[test]
    fn a_rack_holds_whole_servers_and_whole_chassis() {
        let (chassis, approach) = (Chassis::default(), Approach::named("no-impact").unwrap());
        let plan = Plan::make(&draws(), &approach, &chassis, &Terms::paper(&chassis)).unwrap();
        let fit = |rack_w| plan.fit(Watts::from_whole(rack_w), 12, chassis.nameplate());

        // 3,311 W a chassis, 276 W a server.
        let three = fit(3 * 3720);
        assert_eq!((three.servers_provisioned, three.servers), (36, 40));
        assert_eq!((three.chassis_provisioned, three.chassis), (3, 3));
        assert_eq!((fit(36_400).chassis_provisioned, fit(36_400).chassis), (9, 10));
        assert_eq!((fit(1).servers, fit(0).chassis), (0, 0));
    }

    #[test]
    fn a_busy_history_leaves_nothing_to_gain() {
        let mut draws = Histogram::new(Watts::from_whole(1)).unwrap();
        draws.add(Watts::from_whole(3700), 1_000);
        let (chassis, approach) = (Chassis::default(), Approach::ALL[2]);
        let plan = Plan::make(&draws, &approach, &chassis, &Terms::paper(&chassis)).unwrap();
        assert_eq!((plan.budget, plan.binding), (chassis.nameplate(), Binding::Provisioned));
        assert_eq!((plan.delta_percent, plan.events_per_week), (0.0, 0.0));
        let empty = Histogram::new(Watts::from_whole(1)).unwrap();
        assert_eq!(Plan::make(&empty, &approach, &chassis, &Terms::paper(&chassis)), None);
    }

    #[test]
    fn impossible_terms_are_refused_by_name() {
        let terms = Terms::paper(&Chassis::default());
        assert_eq!(terms.check(), Ok(()));
        let odd = Terms { buffer_ppm: 1_000_001, ..terms };
        assert_eq!(odd.check().unwrap_err().key, "buffer");
        let odd = Terms { usd_per_w: f64::INFINITY, ..terms };
        assert_eq!(odd.check().unwrap_err().to_string(), "usd_per_w = inf: 0 or more");
    }
}
