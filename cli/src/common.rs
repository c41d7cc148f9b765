//! What the commands share. Nothing here knows a command.

use clap::ArgGroup;

pub(crate) mod answers;
pub mod columns;
pub(crate) mod control;
pub(crate) mod daemons;
pub(crate) mod deployment_events;
pub mod fleet;
pub(crate) mod grid;
pub mod job_set;
pub mod labelled;
pub mod lifetimes;
pub mod numbers;
pub(crate) mod parent;
pub mod plant;
pub mod plot;
pub(crate) mod profile;
pub(crate) mod recording;
pub mod replays;
pub(crate) mod screen;
pub(crate) mod scrolled_table;
pub mod server;
pub mod table;
pub mod terminal;
pub mod text_table;
pub mod threads;
pub(crate) mod weeks;

/// Arguments of which exactly one is needed: what is refused names them all.
pub(crate) fn one_of<const N: usize>(names: [&'static str; N]) -> ArgGroup {
    ArgGroup::new("one of").args(names).required(true)
}
