//! Why a trace cannot be played.

use ballast_placement::PlacementError;
use thiserror::Error;

/// Why a trace cannot be played.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ReplayError {
    /// A VM cannot be placed, whatever is free.
    #[error("{file}:{line}: {error}")]
    Record { file: String, line: u64, error: PlacementError },
    /// The copies' ids do not fit, or those of VMs that are moved.
    #[error(
        "{file}: {repeat} copies: {column} goes up to {largest}, and every copy and every move needs ids of \
         its own"
    )]
    Ids { file: String, repeat: u32, column: &'static str, largest: u64 },
    /// A host is to be drained or opened that is none.
    #[error("{at_s} s after the first arrival: {error}")]
    Action { at_s: f64, error: PlacementError },
    /// Something is to be done when all is over.
    #[error(
        "{at_s} s after the first arrival: the last VM comes after {last_s} s, and nothing is played after it"
    )]
    Late { at_s: f64, last_s: f64 },
}
