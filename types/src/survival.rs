//! How long VMs live: survival curves over uptime, and what placement looks up in them.
//!
//! A curve says for each uptime which share of VMs lives that long. Curves are data: `ballast-predict` learns them,
//! and whoever places VMs reads them. [`Curves`] keeps each distinct curve once, with two tables of it, so that to
//! predict again while a VM runs is a look-up.

mod curve;
mod curves;
mod grid;

pub use curve::{CurveError, SurvivalCurve};
pub use curves::{CurveId, Curves};
pub use grid::{BINS, EDGES, HORIZON_S, HORIZONS, HORIZONS_S, bin_of, edge_s};
