//! Cluster admission in virtual time: deployments come, grow, shrink and end, and a policy says who may come.
//!
//! Every deployment has random numbers of its own, so two policies or thresholds see the same deployments: they
//! compare in pairs. A deployment has one entry in the queue of events, its next one.
//!
//! Source: Dierks, Kash, Seuken, "On the Cluster Admission Problem for Cloud Computing", arXiv 1804.07571v8.

mod badness;
mod chance;
mod deployment;
mod replay;
mod run;
pub mod tuning;

#[cfg(test)]
mod tests;

pub use badness::badness;
pub use replay::{Refusal, Replay, ReplayTally};
pub use run::{Arm, Change, Labels, Moment, Site, Tally, export, play, run};
