//! A model checker for Ballast's two controllers: the real machines of two managers and two agents, and
//! everything that a network, a crash and a lost file can do to them.
//!
//! ```text
//!   world      two managers, two agents, messages, time; every fault is one action
//!   plant      parameters, and what the servers draw
//!   promises   what must hold in every state, and in 10 s without a fault after every state
//!   checking   the model for `stateright`: actions, bounds, reports
//!   digest     the machines' state as one number
//! ```
//! `just model` runs it deep; the tests of this crate run it shallow.

mod broken;
mod checking;
mod digest;
mod plant;
mod promises;
mod world;

pub use broken::{Broken, LONE_WORD, NO_RULER, ONE_EPOCH, TWICE, TWO_RULERS};
pub use checking::{Action, Model, Outcome, Search};
pub use world::{Disk, Kept, World};
