//! The numbers of the control loop that no operator sets, in one place.
//!
//! None of them is critical: `agent/tests/sensitivity.rs` moves each by a third, up and down, and the loop still
//! keeps its promises.

use core::time::Duration;

use serde::{Deserialize, Serialize};

/// The numbers of the control loop.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    /// How long a draw that is too much at the floor waits for a message that knows of it: two messages, the meters' lag,
    /// and as much again.
    pub patience: Duration,
    /// The longest that the server's own limit stays on after the draw came under the target.
    pub longest_hold: Duration,

    /// Samples above the cap in a row, while recovering, after which steps down are not enough.
    pub over_run: u8,
    /// With the paper's steps: how much larger they are then.
    pub over_steps: usize,
    /// The part of the room that a step up may take: near the top a p-state is worth more than on average.
    pub step_into: f64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            patience: Duration::from_millis(1500),
            longest_hold: Duration::from_secs(30),
            over_run: 2,
            over_steps: 4,
            step_into: 0.4,
        }
    }
}
