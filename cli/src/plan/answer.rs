//! What is planned for one hardware generation.

use ballast_planner::{Plan, RackFit};
use ballast_sim::verify::{BackTest, Verdict};
use serde::Serialize;

use super::request::Basis;
use super::verified::Verified;

pub(super) struct Answer {
    /// Empty where the history names none.
    pub(super) generation: String,
    pub(super) basis: Basis,
    pub(super) plan: Plan,
    /// `None` for a histogram: it does not know what came after what.
    pub(super) longest_event_s: Option<u64>,
    /// The approaches of the paper's Table IV.
    pub(super) table: Vec<(&'static str, Plan)>,
    /// Where that was asked for.
    pub(super) verified: Option<Verified>,
    pub(super) tests: Vec<PolicyTest>,
}

#[derive(Debug, Serialize)]
pub(super) struct PolicyTest {
    #[serde(flatten)]
    pub(super) test: BackTest,
    /// The buffer to plan with, as a share of the lowest budget.
    pub(super) buffer: f64,
    #[serde(flatten)]
    pub(super) plan: Plan,
    pub(super) rack: RackFit,
    /// What the held-out telemetry would have needed.
    pub(super) held_out_needed_buffer: Option<f64>,
    /// For a plan from all of the telemetry: the first one that was kept in a replay of the held-out part.
    pub(super) next_buffer: f64,
    /// What came of it on the held-out telemetry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) verify: Option<Verdict>,
}

/// ` (generation …)`; nothing where the history names none.
pub(super) fn labelled(generation: &str) -> String {
    if generation.is_empty() { String::new() } else { format!(" (generation {generation})") }
}
