//! The controller of one chassis, pure: no clock, file, thread, socket, randomness or hash order.
//!
//! ```text
//!   power supplies ──Poll──▶ ┌──────────┐ ──Alert──▶ agents
//!   agents ────────Answer──▶ │ Chassis  │ ──OutOfBandCap, OutOfBandLift──▶ BMCs
//!   BMCs ─Applied, Powered─▶ │          │ ──Ledger──▶ disk
//!   operator ──────Budget──▶ └──────────┘ ──Event──▶ log
//! ```
//! An input changes what is known. After every input one [`reconcile`] looks at all of it, plans anew
//! who gets how many watts, and sends out what differs from what was said before.
//!
//! | module | what it knows |
//! |---|---|
//! | `supplies` | a poll's total, what the supplies can carry |
//! | `crosscheck` | the supplies' total against the servers' reports: the higher is judged |
//! | `shared` | watts that no agent's meter sees |
//! | `detector` | is there an excess, and how urgent is it |
//! | `event` | one capping event, and the term that closes the loop over the total |
//! | `height` | how high the low-priority cores of all servers may run |
//! | `allocate` | who gets how many watts |
//! | `needs` | what one server needs, from its reports |
//! | `holds` | what one server may hold, by the messages it was sent |
//! | `slots` | one server: its agent's health, its messages' numbers, what it may draw |
//! | `out_of_band` | one server's hardware cap |
//! | `lowered` | budgets that the breaker is not judged by yet |
//! | `tuning` | every constant of the loop |
//! | `chassis` | the whole: polls, answers, the plan, messages, hardware caps, status |
//! | `draws` | the draw over time, for those who read a recording |
//!
//! [`reconcile`]: Chassis
mod allocate;
mod chassis;
mod crosscheck;
mod detector;
mod draws;
mod event;
mod height;
mod holds;
mod io;
mod lowered;
mod needs;
mod out_of_band;
mod params;
mod set_point;
mod shared;
mod slots;
mod supplies;
mod tuning;
mod weigh;

pub use chassis::Chassis;
pub use draws::Draws;
pub use io::*;
pub use params::{LiftRule, Mode, Params, Server};
pub use tuning::Tuning;
pub use weigh::Weighed;
