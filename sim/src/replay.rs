//! Runs what was recorded again: a daemon's own steps, or foreign telemetry through the plant.

mod draws;
mod recording;
mod telemetry;

pub use draws::{RecordedDraws, RecordedUnit};
pub use recording::{Mismatch, Part, Recorded, RecordingError, RecordingReport, replay};
pub use telemetry::{Meaning, Options, Telemetry, TelemetryError, TelemetryReport};
