//! What VMs do: serve a queue, finish work, or follow a line.

mod batch;
mod generator;
mod latency;
mod profile;
mod queue;

pub use batch::BatchSpec;
pub use generator::{Generator, Shape};
pub use latency::Latencies;
pub use profile::{Cursor, Interpolation, Profile, Series};
pub use queue::{QueueSpec, ServiceTime};

pub(crate) use batch::Batch;
pub(crate) use queue::Queue;

/// How much longer the same work takes at frequency share `f`, when `bound` of it scales with the clock.
///
/// `(1 - bound) + bound / f`: 1 at the highest frequency, 2 at half of it for wholly bound work.
pub fn stretch(bound: f64, f: f64) -> f64 {
    (1.0 - bound) + bound / f.max(1e-3)
}

/// The share of a user-facing VM's work that scales with the clock, where nothing says otherwise.
pub const USER_FACING_BOUND: f64 = 0.55;
/// The same for batch work.
pub const BATCH_BOUND: f64 = 0.8;
