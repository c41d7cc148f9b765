//! What the experiments' plots have beside the house style of the command line.

pub mod figure;
pub(crate) mod groups;

pub use ballast_cli::common::plot::*;
