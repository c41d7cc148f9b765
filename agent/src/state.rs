//! The states of one server.

use ballast_types::Instant;
use ballast_types::wire::AgentState;
use serde::{Deserialize, Serialize};

/// What the agent is doing, with what only that state needs.
///
/// ```text
///          first sample: nothing restricted         above the cap: first class to its floor
///   Boot ───────────────────────────────▶ Uncapped ──────────────────────────▶ Throttled ◀──────┐
///     │                                    ▲ ▲                                  │  │  ▲  ▲      │
///     │ first sample: restrictions found   │ │ cap gone (from every state)      │  │  │  │ hold │
///     ├──▶ Throttled, Recovering, Shedding ┘ └── Recovering ◀── room under cap ─┘  │  │  │ over │
///     │    (the same on leaving Blind)             │                               │  │  │      │
///     │                                            └── steps reached the floor ────│──┘  │      │
///     │ three periods without a sample                                             │     │      │
///     └──▶ Blind ◀── (from every state)                  floor was not enough ─────┴─▶ Shedding ┘
/// ```
/// An emergency leads to `Throttled` from `Uncapped` and `Recovering`; the other states keep their
/// name, with every class at its floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum State {
    /// No sample yet: what was found restricted stays.
    Boot,
    /// Nothing is restricted. There may be a cap that the draw respects by itself.
    Uncapped,
    /// Low-priority cores are at their floor, or on the way there.
    Throttled {
        /// At the floor and above the cap since then.
        over_since: Option<Instant>,
        /// The server's own limit was just lifted: if the draw comes back it is set at once.
        probation: bool,
    },
    /// One step per sample, up or down.
    Recovering {
        /// Samples above the cap in a row.
        over_run: u8,
    },
    /// The server's own limit is on.
    Shedding {
        /// The draw is under the target since then.
        under_since: Option<Instant>,
    },
    Blind {
        /// Capped, and every class at its floor, since then.
        floored_since: Option<Instant>,
    },
}

impl State {
    /// Its name on the wire.
    pub(crate) const fn name(self) -> AgentState {
        match self {
            Self::Boot => AgentState::Boot,
            Self::Uncapped => AgentState::Uncapped,
            Self::Throttled { .. } => AgentState::Throttled,
            Self::Recovering { .. } => AgentState::Recovering,
            Self::Shedding { .. } => AgentState::Shedding,
            Self::Blind { .. } => AgentState::Blind,
        }
    }
}
