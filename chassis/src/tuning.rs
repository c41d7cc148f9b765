//! The numbers of the control loop that no operator sets and that follow from nothing else, in one place.
//!
//! None of them is critical: `sim/tests/sensitivity.rs` moves each by a third, up and down, and the chassis still
//! keeps its promises.

use core::time::Duration;

use serde::{Deserialize, Serialize};

/// From the manager's decision to the agent's or BMC's receipt: one hop in the rack, one retry.
pub(crate) const WIRE: Duration = Duration::from_millis(100);

/// From an out-of-band command to the draw being down. DCMI's shortest correction time is one
/// second; half a second is for the command itself.
pub(crate) const ACTUATION: Duration = Duration::from_millis(1500);

/// The numbers of the control loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    /// What would be drawn with every low-priority core at its floor is a mean over readings, and followed at
    /// once where it moves by more than this share of the limit, in parts per million.
    pub floor_moves_ppm: u32,
    /// A reading under the limit moves the common height by this part of what is missing to the set point.
    pub height_gain: f64,
    /// The integral term takes over so much of the difference to the set point with every reading, in
    /// parts per million. A reading shows a change after about four polls, so a loop of this gain has a
    /// phase margin of more than 60 degrees.
    pub integral_ppm: u32,
    /// The integral term adds at most this share of the limit, in parts per million.
    pub integral_max_ppm: u32,
    /// At this trip fraction every low-priority core goes to its floor.
    pub floor_at: f64,
    /// At this one hardware caps come.
    pub hardware_at: f64,
    /// At this one a fenced manager's hardware caps come.
    pub fenced_at: f64,
    /// So much of the limit may come back in a second when hardware caps are lifted, in parts per million.
    pub lift_ppm_a_second: u32,
    /// Within this time after an event all servers of a chassis are released. An excess soon after hardware caps were
    /// lifted is blamed on the lifts within this time before the newest.
    pub release_within: Duration,
    /// An excess so soon after a lift was the lift's.
    pub lift_blamed: Duration,
    /// No hold is longer.
    pub longest_hold: Duration,
    /// A newer epoch is adopted at the start for so long.
    pub adopts_for: Duration,
    /// And no newer one than by this.
    pub adopts_within: u64,
    /// A fenced manager asks so often who is obeyed.
    pub asks_every: Duration,
    /// The breaker is judged by a lowered budget from so long after the budget was accepted.
    pub lowered_counts_after: Duration,
    /// Highest draws alone are written down no more often than that.
    pub highest_every: Duration,
    /// A silent server holds what it had for so long, where its agent has told nothing else. A ruler of which agents have
    /// not heard for twice as long is gone.
    pub orphan_hold: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            floor_moves_ppm: 50_000,
            height_gain: 0.5,
            integral_ppm: 60_000,
            integral_max_ppm: 30_000,
            floor_at: 0.25,
            hardware_at: 0.5,
            fenced_at: 0.75,
            lift_ppm_a_second: 50_000,
            release_within: Duration::from_secs(5),
            lift_blamed: Duration::from_secs(60),
            longest_hold: Duration::from_secs(60 * 60),
            adopts_for: Duration::from_secs(10),
            adopts_within: 1000,
            asks_every: Duration::from_secs(5),
            lowered_counts_after: Duration::from_secs(5),
            highest_every: Duration::from_secs(60),
            orphan_hold: Duration::from_secs(60),
        }
    }
}
