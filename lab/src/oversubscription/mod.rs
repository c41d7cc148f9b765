//! How low a budget may be, on draws of three origins (the paper's Table IV).
//!
//! | module | draws |
//! |---|---|
//! | [`synthesis`] | made, with the upper quantiles that the paper's results imply |
//! | [`chassis`] | made of VMs whose CPU use was measured one by one |
//! | [`weeks`] | whole weeks: what is resampled to tell how sure an answer is |
//!
//! Draws of the past are planned from, draws of later weeks verify the plan: both by [`judge`].
//!
//! Source: Kumbhare et al., arXiv 2010.15388, Sections III-E and IV-F.

pub mod chassis;
pub mod synthesis;
#[cfg(test)]
mod tests;
pub mod weeks;

use ballast_planner::{Approach, Binding, Chassis, Events, Histogram, HistogramError, Plan, Policy, Terms};
use ballast_types::Watts;
use serde::Serialize;

use ballast_sim::rng::{Purpose, Stream};
use ballast_sim::verify::Draws;

/// What a stream of random numbers is for.
#[derive(Clone, Copy, Debug)]
enum Chance {
    Draws = 1,
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
    /// What its chassis can shed.
    pub chassis: Chassis,
    /// What it is planned for.
    pub terms: Terms,
    /// The draws that are planned from.
    pub history: Histogram,
    /// Draws of later weeks, which verify the plan. None where there are none: then the history does.
    pub held_out: Option<Histogram>,
}

/// Events per reading.
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

/// A budget with another buffer, and what it would do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Buffered {
    /// The buffer, in percent of the lowest budget.
    pub buffer_percent: f64,
    #[serde(rename = "budget_w")]
    pub budget: Watts,
    /// How far it is under the provisioned power, in percent of it.
    pub delta_percent: f64,
    /// Events where the plan is verified.
    #[serde(flatten)]
    pub rates: Rates,
}

/// One approach on one fleet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    pub approach: &'static str,
    /// How far the budget is under the provisioned power, in percent of it.
    pub delta_percent: f64,
    pub savings_usd: f64,
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
    /// Readings that were planned from.
    pub readings: u64,
    pub verified_readings: u64,
    /// What smaller buffers would do.
    pub buffers: Vec<Buffered>,
}

/// Buffers that are looked at, in millionths of the lowest budget.
pub const BUFFERS_PPM: [u32; 4] = [100_000, 50_000, 25_000, 0];

/// Every approach on one fleet; none without readings.
pub fn judge(case: &Case) -> Vec<Judged> {
    Approach::ALL.iter().filter_map(|approach| judge_one(case, approach)).collect()
}

fn judge_one(case: &Case, approach: &Approach) -> Option<Judged> {
    let Case { chassis, terms, history, held_out } = case;
    let verified = held_out.as_ref().unwrap_or(history);
    let rates = |plan: &Plan, draws: &Histogram| {
        let events = Events::under(plan.budget, draws, &approach.policy, plan.reductions);
        Rates::of(&events, &approach.policy, draws.readings())
    };

    let plan = Plan::make(history, approach, chassis, terms)?;
    let buffers = BUFFERS_PPM.map(|buffer_ppm| {
        let plan = Plan::make(history, approach, chassis, &Terms { buffer_ppm, ..*terms })?;
        Some(Buffered {
            buffer_percent: f64::from(buffer_ppm) / 1e4,
            budget: plan.budget,
            delta_percent: plan.delta_percent,
            rates: rates(&plan, verified),
        })
    });

    Some(Judged {
        approach: approach.name,
        delta_percent: plan.delta_percent,
        savings_usd: plan.savings_usd,
        budget: plan.budget,
        binding: plan.binding,
        rates: rates(&plan, verified),
        held_out: held_out.is_some(),
        history: rates(&plan, history),
        p_min: plan.p_min,
        readings: history.readings(),
        verified_readings: verified.readings(),
        buffers: buffers.into_iter().flatten().collect(),
    })
}

/// How far under the provisioned power each approach's budget is, in percent; none without readings.
pub fn deltas(history: &Histogram, chassis: &Chassis, terms: &Terms) -> Vec<f64> {
    let delta = |approach| Plan::make(history, approach, chassis, terms).map(|p| p.delta_percent);
    Approach::ALL.iter().filter_map(delta).collect()
}
