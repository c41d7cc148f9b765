//! From the first cap to the lift.

use core::time::Duration;

use ballast_types::{Instant, Watts};
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
    /// What was drawn at the floor when it was set.
    drawn: Option<Watts>,
    /// Whether the chassis would allow that again.
    allowed: bool,
}

impl Episode {
    pub(crate) fn new(params: &Params, began: Instant) -> Self {
        let hold = params.server_limit_hold;
        Self { began, dropped: false, hold, limited: false, drawn: None, allowed: false }
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

    /// The server's own limit is set, because of this draw.
    pub(crate) fn limited(&mut self, tuning: &Tuning, drawn: Option<Watts>) {
        if core::mem::replace(&mut self.limited, true) {
            self.hold = self.hold.saturating_mul(2).min(tuning.longest_hold);
        }
        (self.drawn, self.allowed) = (drawn, false);
    }

    /// The chassis says what the server gets in the end.
    pub(crate) fn take_target(&mut self, target: Watts) {
        self.allowed = self.drawn.is_some_and(|drawn| drawn <= target);
    }

    /// Whether it allows what was drawn before the limit.
    pub(crate) fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// What was drawn before the limit, if that is known.
    pub(crate) fn drawn(&self) -> Option<Watts> {
        self.drawn
    }

    /// How long the limit stays on after the draw came under the target.
    pub(crate) fn hold(&self) -> Duration {
        self.hold
    }
}
