//! What is planned for one hardware generation.

use ballast_planner::Plan;

use super::request::Basis;
use super::verified::Verified;

/// What is planned for one hardware generation.
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
}

/// ` (generation …)`; nothing where the history names none.
pub(super) fn labelled(generation: &str) -> String {
    if generation.is_empty() { String::new() } else { format!(" (generation {generation})") }
}
