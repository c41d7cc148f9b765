//! The controller of one chassis, pure: no clock, file, thread, socket, randomness or hash order.
//!
//! ```text
//!   power supplies ──Poll──▶ ┌──────────┐ ──Alert──▶ agents
//!   agents ────────Answer──▶ │ Chassis  │ ──OutOfBandCap, OutOfBandLift──▶ BMCs
//!   BMCs ─Applied, Powered─▶ │          │ ──Ledger──▶ disk
//!   operator ──────Budget──▶ └──────────┘ ──Event──▶ log
//! ```
//! | module | what it knows |
//! |---|---|
//! | `supplies` | a poll's total, what the supplies can carry |
//! | `crosscheck` | the supplies' total against the servers' reports: the higher is judged |
//! | `shared` | watts that no agent's meter sees |
//! | `shares`, `critical_first` | how the rest is split: evenly, or by what can be shed |
//! | `needs` | what one server needs, from its reports |
//! | `holds` | what one server may hold, by the messages it was sent |
//! | `slots` | one server: its agent's health, its messages' numbers |
//! | `episode` | the states and their transitions |
//! | `assess` | what a reading does: episodes, emergency, blindness |
//! | `messages` | what agents are told, and when |
//! | `answers` | what agents say, and what the BMCs say of power |
//! | `out_of_band`, `escalation` | caps through the BMC: one server's phases; when they go on and off |
//! | `draws` | the draw over time, for those who read a recording |
//! | `status` | the view for operators |
mod answers;
mod assess;
mod chassis;
mod critical_first;
mod crosscheck;
mod draws;
mod episode;
mod escalation;
mod holds;
mod io;
mod messages;
mod needs;
mod out_of_band;
mod params;
mod shared;
mod shares;
mod slots;
mod status;
mod supplies;

pub use chassis::Chassis;
pub use draws::Draws;
pub use io::*;
pub use params::{LiftRule, Mode, Params, Server};
