//! A cluster in virtual time: VMs come, are placed by real rules, and end.
//!
//! One [`Engine`] runs it all: a [`Source`] yields the VMs, an [`Operator`] acts on the cluster, [`Probe`]s watch it.
//!
//! * [`Arrivals`] reads a recorded trace, [`Recorded`] is the source that it makes, and [`replay()`] plays it with a
//!   [`Plan`] of drains and policies against a [`ballast_placement::Scheduler`].
//! * [`Workload`] makes a month of deployments with the paper's statistics, and an [`Arm`] says what a scheduler
//!   is told of them; [`run()`] plays the month and keeps score, hour by hour.
//!
//! # A trace's semantics
//! * A VM lives `max(dur_hi_s, 300)` seconds; one that is censored never leaves.
//! * VMs stand in the order in which they come. At equal times VMs leave before others come; those that come do so in the
//!   file's order.
//! * An id may be used again once its VM has ended.
//! * `batch_id` groups the VMs that one tenant asked for at one time.

mod arrivals;
mod engine;
mod generate;
mod month;
mod noise;
mod power;
mod power_down;
mod predictor;
mod replay;
#[cfg(test)]
mod tests;

pub use arrivals::{Arrival, Arrivals, ArrivalsError};
pub use engine::{Batches, Engine, EngineError, Operator, Probe, Reason, RequestedVm, Source};
pub use generate::{ClusterVm, Deployment, Workload, made_cores};
pub use month::{Month, Setup, Site, run};
pub use noise::{Noise, NoisyCurves};
pub use power::exceeded;
pub use power_down::{PowerDown, PowerDownOptions, PowerDownOutcome};
pub use predictor::{Arm, Class, P95, Prediction, Quarter};
pub use replay::{
    Action, Below, Copies, Drained, Drains, Foresight, LifetimeSource, Moving, Outcome, Phase, Plan,
    Recorded, replay,
};
