//! A cluster in virtual time: VMs come, are placed by real rules, and end.
//!
//! * [`Arrivals`] reads a recorded trace; [`replay`] plays it against a [`ballast_placement::Scheduler`].
//!
//! # A trace's semantics
//! * A VM lives `max(dur_hi_s, 300)` seconds; one that is censored never leaves.
//! * At equal times VMs leave before others come; those that come do so in the file's order.
//! * `batch_id` groups the VMs that one tenant asked for at one time.

mod arrivals;
mod replay;
#[cfg(test)]
mod tests;

pub use arrivals::{Arrival, Arrivals, ArrivalsError};
pub use replay::{Outcome, Reason, ReplayError, ReplayOptions, replay};
