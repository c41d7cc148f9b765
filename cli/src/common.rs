//! What the commands share. Nothing here knows a command.

use clap::ArgGroup;

pub(crate) mod answers;
pub(crate) mod columns;
pub(crate) mod control;
pub(crate) mod daemons;
pub(crate) mod deployment_events;
pub(crate) mod fleet;
pub(crate) mod grid;
pub(crate) mod labelled;
pub(crate) mod lifetimes;
pub(crate) mod numbers;
pub(crate) mod parent;
pub(crate) mod plant;
pub(crate) mod profile;
pub(crate) mod recording;
pub(crate) mod replays;
pub(crate) mod screen;
pub(crate) mod scrolled_table;
pub(crate) mod server;
pub(crate) mod table;
pub(crate) mod terminal;
pub(crate) mod threads;
pub(crate) mod weeks;

/// Arguments of which exactly one is needed: what is refused names them all.
pub(crate) fn one_of<const N: usize>(names: [&'static str; N]) -> ArgGroup {
    ArgGroup::new("one of").args(names).required(true)
}
