//! VMs that end together on hosts that come free together: policies by lifetimes against best fit, pool by pool.
//!
//! A pool is played once for each policy and each kind of foresight, with the same VMs. Who is there at the start was placed by
//! best fit, and so is who comes in two more days; then the policy places, and is scored. [`population`] makes pools,
//! [`recorded`] takes them from recorded arrivals.
//!
//! Source: Ling et al., *LAVA*, arXiv 2412.09840, section 6 and appendix G.

mod inflation;
mod jobs;
mod la_binary;
pub mod lars;
mod lava;
mod measures;
mod options;
mod pool_job;
pub mod population;
pub mod recorded;
mod rows;
mod training;
mod trial;
pub mod workload;

pub use jobs::{Input, Job, jobs};
pub use measures::Figures;
pub use options::{Options, Sets};
pub use pool_job::{Done, DrainRun, LifetimesError, Run};
pub use rows::{LifetimeRow, Paired, PairedTable, empty_percent, half_host_unusable_percent};
pub use training::{ModelQuality, learn};
pub use trial::{Contestant, Score, TrialError};

/// Names of predictions that are no accuracy.
pub const ORACLE: &str = "oracle";
pub const LEARNT: &str = "learnt";
pub const IN_SAMPLE: &str = "in-sample";
pub const SHUFFLED: &str = "shuffled";

pub fn noisy(accuracy: f64) -> String {
    format!("noisy {accuracy}")
}

#[cfg(test)]
mod baselines_tests;
#[cfg(test)]
mod tests;
