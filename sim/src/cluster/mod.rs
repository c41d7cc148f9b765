//! A cluster in virtual time: VMs come, are placed by real rules, and end.
//!
//! * [`Arrivals`] reads a recorded trace; [`replay`] plays it against a [`ballast_placement::Scheduler`].
//! * [`Workload`] makes a month of deployments with the paper's statistics, and an [`Arm`] says what a scheduler
//!   is told of them; [`run()`] plays the month and keeps score, hour by hour.
//!
//! # A trace's semantics
//! * A VM lives `max(dur_hi_s, 300)` seconds; one that is censored never leaves.
//! * At equal times VMs leave before others come; those that come do so in the file's order.
//! * `batch_id` groups the VMs that one tenant asked for at one time.

mod arrivals;
mod generate;
mod power;
mod predictor;
mod replay;
mod run;
#[cfg(test)]
mod tests;

pub use arrivals::{Arrival, Arrivals, ArrivalsError};
pub use generate::{ClusterVm, Deployment, Workload, made_cores};
pub use power::exceeded;
pub use predictor::{Arm, Class, P95, Prediction, Quarter};
pub use replay::{Action, Drained, Moving, Outcome, Phase, Plan, Reason, ReplayError, ReplayOptions, replay};
pub use run::{Month, Setup, Site, run};
