//! The controller of one server, pure: no clock, file, thread, socket, randomness or hash order.
mod io;
mod params;
pub use io::*;
pub use params::{Params, Policy};
