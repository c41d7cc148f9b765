//! What is refused, and by which count.

use axum::http::StatusCode;
use ballast_placement::InventoryError;

use ballast_runtime::http::Refused;

/// Why a placement, or another change, was refused, in metrics.
pub(crate) const REASONS: [&str; 8] =
    ["request", "unknown", "already-placed", "too-large", "no-host", "full", "not-empty", "not-admitted"];
/// What is asked for is wrong in itself.
pub(super) const REQUEST: usize = 0;
pub(super) const NO_HOST: usize = 4;
/// A new deployment may not come.
pub(super) const NOT_ADMITTED: usize = 7;

pub(super) struct Fault {
    /// Its place in [`REASONS`].
    pub(super) reason: usize,
    pub(super) refused: Refused,
}

impl From<InventoryError> for Fault {
    fn from(error: InventoryError) -> Self {
        use InventoryError::{
            AlreadyPlaced, Crowded, Demand, Empty, Full, Kinds, Name, NoCores, NoHost, NotEmpty, NotOffered,
            TooLarge, Twice, UnknownHost, UnknownVm,
        };
        let (reason, status) = match &error {
            Name { .. } | Twice { .. } | Empty { .. } | NoCores { .. } | Demand { .. } | Kinds { .. } => {
                (REQUEST, StatusCode::BAD_REQUEST)
            }
            UnknownHost { .. } | UnknownVm { .. } => (1, StatusCode::NOT_FOUND),
            AlreadyPlaced { .. } => (2, StatusCode::CONFLICT),
            TooLarge { .. } | NotOffered { .. } => (3, StatusCode::BAD_REQUEST),
            NoHost { .. } => (NO_HOST, StatusCode::CONFLICT),
            Full { .. } | Crowded { .. } => (5, StatusCode::CONFLICT),
            NotEmpty { .. } => (6, StatusCode::CONFLICT),
        };
        Self { reason, refused: Refused(status, error.to_string()) }
    }
}

impl From<Refused> for Fault {
    fn from(refused: Refused) -> Self {
        Self { reason: REQUEST, refused }
    }
}
