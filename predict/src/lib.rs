//! Predictions about a VM before it runs: is it user-facing, and how busy will it be.

pub mod label;
pub mod week;
