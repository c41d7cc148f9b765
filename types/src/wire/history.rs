//! What a chassis drew, over time.

use serde::{Deserialize, Serialize};

/// `GET /v1/history` of a chassis: draw and limit, step by step of the clock on the wall. `null` stands where nothing is
/// known; it is never zero. Watts are rounded to a tenth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// When this was answered, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// The same by the daemon's clock, in milliseconds since boot.
    pub now_ms: u64,
    /// How long one step is.
    pub step_ms: u64,
    /// When the first step of which something is known begins, in milliseconds since 1970; the others follow without
    /// a gap.
    pub from_unix_ms: u64,
    /// The lowest draw in each step.
    pub power_min_w: Vec<Option<f64>>,
    /// The mean draw; below 10 s that of each 200 ms' highest, and of each 500 ms' for a server.
    pub power_mean_w: Vec<Option<f64>>,
    /// The highest draw in each step: an excess shorter than a step is still seen.
    pub power_max_w: Vec<Option<f64>>,
    /// The lowest limit; a server's is its cap, and `null` while it has none.
    pub limit_w: Vec<Option<f64>>,
}
