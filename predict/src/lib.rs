//! Predictions about a VM before it runs: is it user-facing, and how busy will it be.
//!
//! [`label`] tells from a week of use what a VM is. The past is a list of [`Vm`]s; [`history`] turns it into the
//! [`Features`] of every arrival, and a [`Model`] learns from these ([`train`]).

pub mod features;
pub mod fleet;
pub mod history;
pub mod label;
mod rng;
pub mod vm;
pub mod week;

pub use features::{Features, Past, Types};
pub use history::History;
pub use vm::{Bucket, Vm, VmError};
