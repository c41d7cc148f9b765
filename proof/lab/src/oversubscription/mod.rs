//! How low a budget may be, on draws of two origins (the paper's Table IV).
//!
//! | module | draws |
//! |---|---|
//! | [`chassis`] | made of VMs whose CPU use was measured one by one |
//! | [`weeks`] | whole weeks: what is resampled to tell how sure an answer is |
//!
//! Draws of the past are planned from, draws of later weeks verify the plan: both by [`judge`].
//!
//! Source: Kumbhare et al., arXiv 2010.15388, Sections III-E and IV-F.

pub mod chassis;
#[cfg(test)]
mod tests;
pub mod weeks;

use ballast_planner::{
    Approach, Binding, Chassis, Events, Histogram, HistogramError, Plan, Policy, RackFit, Terms,
    buffer_needed,
};
use ballast_types::Watts;
use serde::Serialize;

use ballast_sim::rng::{Purpose, Stream};
use ballast_sim::verify::{BackTest, Draws, Past};

/// What a stream of random numbers is for.
#[derive(Clone, Copy, Debug)]
enum Chance {
    Packing = 2,
    Cores = 3,
    Weeks = 4,
}

fn stream(seed: u64, of: Chance, number: u32) -> Stream {
    Stream::new(seed, Purpose::Oversubscription, of as u64, number.into())
}

/// All readings of some chassis that are there, counted.
pub fn histogram(chassis: &[Draws], resolution: Watts) -> Result<Histogram, HistogramError> {
    let mut histogram = Histogram::new(resolution)?;
    for draw in chassis.iter().flat_map(Draws::iter) {
        histogram.add(draw, 1);
    }
    Ok(histogram)
}

/// The draws of a chassis by their watts; NaN is a missing reading.
fn draws_of(number: usize, watts: impl IntoIterator<Item = f64>) -> Draws {
    Draws::new(&format!("c{number}"), watts.into_iter().map(Watts::from_f64))
}

/// A fleet whose budget is planned.
#[derive(Clone, Debug)]
pub struct Case {
    pub chassis: Chassis,
    pub terms: Terms,
    pub history: Histogram,
    /// Draws of later weeks, which verify the plan. None where there are none: then the history does.
    pub held_out: Option<Histogram>,
    /// What trials inside the history came to, by approach: each is planned with the buffer that they propose.
    pub back_tests: Vec<BackTest>,
    /// The lowest budget that later weeks would have kept, by approach.
    pub needed: Vec<(&'static str, Watts)>,
}

impl Case {
    /// The terms of an approach: with the buffer that its trials propose.
    pub fn terms(&self, approach: &Approach) -> Terms {
        let tested = self.back_tests.iter().find(|tested| tested.approach == approach.name);
        Terms { buffer_ppm: tested.map_or(self.terms.buffer_ppm, |t| t.proposed_ppm), ..self.terms }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// Of readings that capping within the floors brings down only with user-facing VMs, or not at all.
    #[serde(rename = "events_user_facing_rate")]
    pub user_facing: f64,
    /// Of readings that capping the other VMs alone brings down.
    #[serde(rename = "events_batch_rate")]
    pub batch: f64,
    /// Of readings that no capping within the floors brings down; they count as user-facing ones too.
    #[serde(rename = "events_unmet_rate")]
    pub unmet: f64,
    /// Whether all of it is within what was accepted.
    pub kept: bool,
}

impl Rates {
    fn of(events: &Events, policy: &Policy, readings: u64) -> Self {
        let rate = |n: u64| n as f64 / readings.max(1) as f64;
        Self {
            user_facing: rate(events.user_facing.saturating_add(events.unmet)),
            batch: rate(events.non_user_facing),
            unmet: rate(events.unmet),
            kept: events.keep(policy, readings),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    pub approach: &'static str,
    /// The buffer, in percent of the lowest budget.
    pub buffer_percent: f64,
    /// The one that later weeks would have needed; below 0 where less than the lowest budget would have done.
    pub needed_buffer_percent: Option<f64>,
    /// How far the budget is under the provisioned power, in percent of it.
    pub delta_percent: f64,
    pub savings_usd: f64,
    /// What fits into a rack that is provisioned for three chassis.
    pub rack: RackFit,
    #[serde(rename = "budget_w")]
    pub budget: Watts,
    /// What keeps it from being lower.
    pub binding: Binding,
    /// Events where the plan is verified.
    #[serde(flatten)]
    pub rates: Rates,
    /// Whether readings that were not planned from verified it.
    pub held_out: bool,
    /// What the history would have had under the budget.
    pub history: Rates,
    /// The lowest budget, without the buffer.
    #[serde(rename = "p_min_w")]
    pub p_min: Watts,
    pub readings: u64,
    pub verified_readings: u64,
}

/// Trials inside the history, of every approach that can be tried so.
pub fn back_tests(past: &Past<'_>) -> Result<Vec<BackTest>, HistogramError> {
    let tested = Approach::ALL.iter().map(|approach| past.back_test(approach));
    tested.filter_map(Result::transpose).collect()
}

/// The lowest budget that later draws would have kept, of every approach.
pub fn needed(later: &Past<'_>) -> Result<Vec<(&'static str, Watts)>, HistogramError> {
    let needed = |approach: &Approach| {
        let lowest = later.needed(approach, later.chassis, 0, usize::MAX)?;
        Ok(lowest.map(|lowest| (approach.name, lowest)))
    };
    Approach::ALL.iter().map(needed).filter_map(Result::transpose).collect()
}

/// Every approach on one fleet; none without readings.
pub fn judge(case: &Case) -> Vec<Judged> {
    Approach::ALL.iter().filter_map(|approach| judge_one(case, approach)).collect()
}

fn judge_one(case: &Case, approach: &Approach) -> Option<Judged> {
    let Case { chassis, history, held_out, .. } = case;
    let terms = case.terms(approach);
    let verified = held_out.as_ref().unwrap_or(history);
    let rates = |plan: &Plan, draws: &Histogram| {
        let events = Events::under(plan.budget, draws, &approach.policy, plan.reductions);
        Rates::of(&events, &approach.policy, draws.readings())
    };

    let plan = Plan::make(history, approach, chassis, &terms)?;
    let needed = case.needed.iter().find(|(name, _)| *name == approach.name);

    Some(Judged {
        approach: approach.name,
        buffer_percent: f64::from(terms.buffer_ppm) / 1e4,
        needed_buffer_percent: needed.map(|(_, needed)| 100.0 * buffer_needed(*needed, plan.p_min)),
        delta_percent: plan.delta_percent,
        savings_usd: plan.savings_usd,
        rack: plan.fit(
            terms.provisioned + terms.provisioned + terms.provisioned,
            chassis.servers,
            terms.provisioned,
        ),
        budget: plan.budget,
        binding: plan.binding,
        rates: rates(&plan, verified),
        held_out: held_out.is_some(),
        history: rates(&plan, history),
        p_min: plan.p_min,
        readings: history.readings(),
        verified_readings: verified.readings(),
    })
}

/// How far under the provisioned power each approach's budget is with other weeks, in percent; none without
/// readings.
pub fn deltas(history: &Histogram, case: &Case) -> Vec<f64> {
    let delta = |approach: &Approach| {
        Plan::make(history, approach, &case.chassis, &case.terms(approach)).map(|plan| plan.delta_percent)
    };
    Approach::ALL.iter().filter_map(delta).collect()
}
