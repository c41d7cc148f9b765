//! From the first cap to the lift.

use core::time::Duration;

use ballast_types::Instant;
use serde::{Deserialize, Serialize};

use crate::{Params, Tuning};

/// From the first cap to the lift.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Episode {
    began: Instant,
    /// The floor drop, once per episode, is used.
    dropped: bool,
    /// How long the server's own limit stays on; doubles whenever it is set again.
    hold: Duration,
    /// It has been set.
    limited: bool,
}

impl Episode {
    pub(crate) fn new(params: &Params, began: Instant) -> Self {
        let hold = params.server_limit_hold;
        Self { began, dropped: false, hold, limited: false }
    }

    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    /// Whether the floor drop is used.
    pub(crate) fn has_dropped(&self) -> bool {
        self.dropped
    }

    /// Cores were lowered: to the floor, or by the model, which needs no floor drop first.
    pub(crate) fn drop_is_used(&mut self) {
        self.dropped = true;
    }

    /// The server's own limit is set.
    pub(crate) fn limited(&mut self, tuning: &Tuning) {
        if core::mem::replace(&mut self.limited, true) {
            self.hold = self.hold.saturating_mul(2).min(tuning.longest_hold);
        }
    }

    /// How long the limit stays on after the draw came under the target.
    pub(crate) fn hold(&self) -> Duration {
        self.hold
    }
}
