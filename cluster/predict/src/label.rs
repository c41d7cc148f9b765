//! Labels from CPU use: those of [`ballast_usage::label`], a labeller that learns, and weeks that labellers are judged on.

pub mod ensemble;
pub mod generate;
#[cfg(test)]
mod tests;

pub use ballast_usage::label::*;
