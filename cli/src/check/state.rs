//! How good something is, and what sensors were seen to do.

use ballast_hw::probe::{MeterFacts, Refresh};
use serde::Serialize;

/// From so many steps on the draw can follow a cap; below, it jumps.
pub(super) const STEPS: usize = 4;

/// How good something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// As it should be.
    Works,
    /// It serves, with the drawback that the reason names.
    Degraded,
    /// It is not there, or of no use.
    Missing,
    /// It is there, and whether it works shows only when it is used.
    Untested,
}

/// One sensor that was watched.
#[derive(Debug, Serialize)]
pub(super) struct Watched {
    /// Its zone or channel.
    pub(super) sensor: String,
    #[serde(flatten)]
    pub(super) refresh: Refresh,
}

/// How a channel is called: `pmbus@3-0058 pin`.
pub(super) fn channel(meter: &MeterFacts) -> String {
    match &meter.label {
        Some(label) => format!("{} {label}", meter.name),
        None => format!("{} {}", meter.name, meter.channel),
    }
}
