//! Ballast's double of the physical world: a plant to control, loads to run on it, and traces to drive them.
//!
//! Everything here is pure: time is an argument, chance comes from seeds, files are opened by callers.
//! The same inputs give the same outputs, bit for bit, on every machine.

pub mod admission;
pub mod baseline;
pub mod campaign;
pub mod cluster;
pub mod demo;
pub mod load;
pub mod packing;
pub mod plant;
pub mod replay;
pub mod rng;
pub mod scenario;
pub mod trace;
pub mod verify;
pub mod world;
