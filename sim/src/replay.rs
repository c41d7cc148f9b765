//! Runs what was recorded again: a daemon's own steps, or foreign telemetry through the plant.

mod draws;
mod loads;
mod recording;
mod telemetry;
mod uncapped;

pub use draws::{RecordedDraws, RecordedUnit};
pub use loads::{Loads, idle};
pub use loads::{Meaning, Playback, Sizes};
pub use recording::{Mismatch, Part, Recorded, RecordingError, RecordingReport, replay};
pub use telemetry::{Options, Telemetry, TelemetryError, TelemetryReport};
pub use uncapped::{BudgetUse, batch_work_core_s};
