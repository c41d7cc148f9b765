//! The numbers of the control loop that no operator sets, in one place.
//!
//! None of them is critical: `agent/tests/predictive.rs` moves each by a third, up and down, and the loop still
//! keeps its promises.

use core::time::Duration;

use ballast_types::Watts;
use serde::{Deserialize, Serialize};

use crate::Params;

/// Between a jump and a message that knows of it: two messages, the meters' lag, and as much again.
const PATIENCE: Duration = Duration::from_millis(1500);
/// The longest that the server's own limit stays on after the draw came under the target.
const LONGEST_HOLD: Duration = Duration::from_secs(30);
/// From the floor to free takes at least this long, whatever the number of cores and the room.
const RECOVERY: Duration = Duration::from_secs(4);
/// And so many steps at least, however slow the meter is.
const MIN_STEPS: u128 = 8;

/// The numbers of the control loop.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    /// How long a draw that is too much at the floor waits for a message that knows of it.
    pub patience: Duration,
    /// By how much a draw has to be above its cap to be surely so: flicker and a meter's noise are less
    /// (3 %), as a share of the cap in parts per million.
    pub noise_ppm: u32,
    /// And at least so much, on small servers (5 W).
    pub noise: Watts,
    /// The longest that the server's own limit stays on after the draw came under the target.
    pub longest_hold: Duration,

    /// Samples above the cap in a row, while recovering, after which steps down are not enough.
    pub over_run: u8,
    /// With the paper's steps: how much larger they are then.
    pub over_steps: usize,
    /// Steps from the floor to free.
    pub recovery_steps: usize,
    /// The part of the room that a step up may take: near the top a p-state is worth more than on average.
    pub step_into: f64,
}

impl Tuning {
    pub fn of(params: &Params) -> Self {
        // A sample is up to a period old when it is read, and so is the change that it judges.
        let step = params.settle.saturating_add(params.sample_period);
        let steps = (RECOVERY.as_nanos() / step.as_nanos().max(1)).max(MIN_STEPS);

        Self {
            patience: PATIENCE,
            noise_ppm: 30_000,
            noise: Watts::from_whole(5),
            longest_hold: LONGEST_HOLD,
            over_run: 2,
            over_steps: 4,
            recovery_steps: usize::try_from(steps).unwrap_or(usize::MAX),
            step_into: 0.4,
        }
    }

    /// By how much a draw has to be above a cap to be surely so.
    pub(crate) fn noise(&self, cap: Watts) -> Watts {
        cap.ppm(self.noise_ppm).max(self.noise)
    }

    /// Whether a draw is above a cap by more than noise.
    pub(crate) fn clearly_over(&self, draw: Watts, cap: Watts) -> bool {
        draw > cap + self.noise(cap)
    }
}
