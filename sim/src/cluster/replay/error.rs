//! Why a trace cannot be played.

use ballast_placement::PlacementError;
use thiserror::Error;

/// Why a trace cannot be played.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ReplayError {
    /// A VM cannot be placed, whatever is free.
    #[error("{file}:{line}: {error}")]
    Record {
        /// Which trace.
        file: String,
        /// Which line.
        line: u64,
        /// Why.
        error: PlacementError,
    },
    /// The copies' ids do not fit, or those of VMs that are moved.
    #[error(
        "{file}: {repeat} copies: {column} goes up to {largest}, and every copy and every move needs ids of its own"
    )]
    Ids {
        /// Which trace.
        file: String,
        /// How many copies.
        repeat: u32,
        /// Which column.
        column: &'static str,
        /// The largest id.
        largest: u64,
    },
    /// A host is to be drained or opened that is none.
    #[error("{at_s} s after the first arrival: {error}")]
    Action {
        /// When.
        at_s: f64,
        /// Why.
        error: PlacementError,
    },
    /// Something is to be done when all is over.
    #[error(
        "{at_s} s after the first arrival: the last VM comes after {last_s} s, and nothing is played after it"
    )]
    Late {
        /// When.
        at_s: f64,
        /// The last arrival.
        last_s: f64,
    },
}
