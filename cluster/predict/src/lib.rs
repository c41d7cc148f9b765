//! Predictions about a VM before it runs: is it user-facing, and how busy will it be.
//!
//! The past is a list of [`VmHistory`]s; [`history`] turns it into the
//! [`Features`] of every arrival, and a [`Model`] learns from these ([`train`]). A [`ModelFile`] keeps it, with
//! the history to ask it with.

pub mod answer;
mod calibrate;
pub mod compare;
pub mod data;
pub mod features;
pub mod file;
pub mod fleet;
pub mod history;
pub mod label;
mod learn;
pub mod lifetime;
pub mod model;
pub mod month;
pub mod request;
mod rng;
pub mod score;
pub mod train;
pub mod vm;

pub use answer::Prediction;
pub use features::{Features, Past};
pub use file::{FileError, ModelFile};
pub use history::History;
pub use model::Model;
pub use request::{Reply, Request};
pub use vm::{Bucket, VmError, VmHistory};
