//! How many machines a fleet needs under a promise, and whether the promise was kept: recorded use, held out in time.
//!
//! * [`Fleet`]: VMs with their use over time, and [`Rolling`]: learn from some days, pack, and look at the next day; then one
//!   day on.
//! * [`Estimator`]: who says what fits: a [`Family`] and its parameter.
//! * [`auto`]: the estimator that kept the target with the fewest machines over the last days, chosen anew each day.
//! * [`population`]: tasks like those of the paper, where no record is at hand.
//!
//! What is measured: **machines**, and **realised** overflow: the share of machine-instants in which the use of a machine's
//! VMs was above its capacity.

mod auto;
mod estimator;
pub mod population;
mod rolling;
#[cfg(test)]
mod tests;

pub use auto::{Auto, AutoOptions, auto};
pub use estimator::{Estimator, Family, Learnt};
pub use rolling::{Fleet, FleetVm, Outcome, PackError, Rolling, Step, overflow};
