//! Replays of a fleet's draws, on several threads.

use ballast_sim::verify::{Draws, Measured, Options, Planned, replay};

use crate::common::threads;

/// All chassis under one plan, added up in their order.
pub fn replays(
    draws: &[Draws],
    planned: &Planned,
    options: &Options,
    threads: usize,
) -> anyhow::Result<Measured> {
    let mut all = Measured::default();
    let replayed =
        threads::run_all("back-test", draws, threads, |draws| replay(draws, planned, options, |_| ()));
    for measured in replayed? {
        all.add(&measured);
    }
    Ok(all)
}
