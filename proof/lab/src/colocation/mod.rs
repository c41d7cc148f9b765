//! How many machines a fleet needs under a promise, and whether the promise was kept.
//!
//! [`population`] repeats the paper's tables on tasks that are like its own; [`recorded`] asks the same of recorded VMs, held
//! out in time.
//!
//! Source: Janus and Rzadca, "SLO-aware colocation of data center tasks based on instantaneous processor requirements", SoCC
//! 2017, Section 5.

pub mod population;
pub mod recorded;

/// What is promised of the recorded sets: 1 % of machine-instants.
pub const TARGET: f64 = 0.01;
/// So many held-out steps are looked back at.
pub const WINDOW: usize = 7;
/// A shorter window, beside it.
pub const SHORT_WINDOW: usize = 3;
