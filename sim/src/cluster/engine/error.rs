//! Why a run cannot go on.

use ballast_placement::PlacementError;
use thiserror::Error;

use crate::cluster::arrivals::ArrivalsError;

/// Why a run cannot go on.
#[derive(Debug, Error)]
pub enum EngineError {
    /// The source cannot be read.
    #[error(transparent)]
    Arrivals(#[from] ArrivalsError),
    /// A VM cannot be placed, whatever is free.
    #[error("{name}:{index}: {error}")]
    Vm { name: String, index: u64, error: PlacementError },
    /// The copies' ids do not fit, or those of VMs that are moved.
    #[error("{file}: {repeat} copies: {column} goes up to {largest}, and every copy needs ids of its own")]
    Ids { file: String, repeat: u32, column: &'static str, largest: u64 },
    /// What an operator does cannot be done.
    #[error("{after_s} s after the first arrival: {error}")]
    Operation { after_s: f64, error: PlacementError },
    /// Something is to be done when all is over.
    #[error(
        "{after_s} s after the first arrival: the last VM comes after {last_s} s, and nothing is played \
         after it"
    )]
    Late { after_s: f64, last_s: f64 },
}
