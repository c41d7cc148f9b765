//! VMs on their way, and what came of those that were.

use ballast_types::Instant;
use serde::{Deserialize, Serialize};

/// A VM on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move<H> {
    /// The host that it is still on.
    pub from: H,
    /// The host that holds room for it.
    pub to: H,
    /// When it was sent.
    pub since: Instant,
}

/// What came of a round so far: `scheduled` is the sum of `moved`, `saved`, `ended_moving`, `withdrawn`, and who still
/// waits or is on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainCounts {
    /// Hosts that were to be drained, each as often as it was.
    pub hosts: u64,
    /// How many of these became empty.
    pub emptied: u64,
    /// VMs that were to be moved.
    pub scheduled: u64,
    /// VMs that were moved.
    pub moved: u64,
    /// VMs that ended before their turn.
    pub saved: u64,
    /// VMs that ended on their way.
    pub ended_moving: u64,
    /// VMs that others moved, or whose host was opened or removed before their turn.
    pub withdrawn: u64,
}

/// What a turn has brought.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn<V, H> {
    /// VMs that may be moved now.
    pub started: Vec<(V, Move<H>)>,
    /// Hosts that have become empty, and since when they were drained.
    pub emptied: Vec<(H, Instant)>,
}
