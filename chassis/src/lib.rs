//! The controller of one chassis, pure: no clock, file, thread, socket, randomness or hash order.
mod io;
mod params;
pub use io::*;
pub use params::{LiftRule, Mode, Params, Server};
