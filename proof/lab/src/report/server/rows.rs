//! Rows of one load.

use crate::Arrivals;
use crate::server::ServerResult;

/// All caps and policies under one load.
pub struct LoadRows {
    pub arrivals: Arrivals,
    /// The share of the batch work that scales with the clock.
    pub batch_share: f64,
    /// Mean service time of one request, in milliseconds.
    pub service_ms: f64,
    pub rows: Vec<ServerResult>,
}

impl LoadRows {
    pub(super) fn load(&self) -> String {
        let Self { arrivals, batch_share, service_ms, .. } = self;
        format!("{}, batch share {batch_share}, requests of {service_ms} ms", arrivals.name())
    }
}
