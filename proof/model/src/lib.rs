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

use core::time::Duration;
use std::process::ExitCode;
use std::thread::available_parallelism;
use std::time::SystemTime;

pub use broken::{Broken, LONE_WORD, NO_RULER, ONE_EPOCH, TWICE, TWO_RULERS};
pub use checking::{Action, Model, Outcome, Search};
pub use world::{Disk, Kept, World};

/// Searches deep for so many minutes; prints what it reached, and every broken promise as a history.
#[expect(clippy::print_stdout, reason = "it reports")]
pub fn run(minutes: f64) -> ExitCode {
    let part = |share: f64| Duration::from_secs_f64(60.0 * minutes * share);
    let seed = SystemTime::UNIX_EPOCH.elapsed().map_or(1, |now| now.as_secs());
    let threads = available_parallelism().map_or(1, usize::from);

    let mut broken = false;
    for (faults, loads, seconds, search) in [
        (1, 0, 8, Search::Short(part(0.05))),
        (1, 2, 4, Search::Short(part(0.15))),
        (2, 0, 2, Search::Short(part(0.1))),
        (2, 1, 4, Search::Deep(part(0.25))),
        (3, 0, 2, Search::Deep(part(0.25))),
        (8, 6, 20, Search::Random(part(0.2), seed)),
    ] {
        println!("== {faults} faults and {loads} changes of load in {seconds} s: {search:?}");
        let outcome = Model::new(faults, loads, Duration::from_secs(seconds)).search(search, threads);
        println!("{outcome}");
        broken |= !outcome.broken.is_empty();
    }

    if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
