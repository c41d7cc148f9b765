//! The test bed: real daemons around a double of their machines.
//!
//! A [`rig`] shows a plant of `ballast-sim` behind kernel-format files. A [`stage`] starts this program's
//! daemons around a rig as processes of their own: the demonstration and the benchmarks. A [`lab`] does
//! the same for tests, which may then break things.

mod changeable;
pub mod config;
pub mod events;
pub mod lab;
pub mod processes;
pub mod program;
pub mod rig;
pub mod stage;
pub mod wall_time;
