//! `just model`: searches deep, prints what it reached and every broken promise as a history.
//!
//! `just model 60` takes an hour; ten minutes without a number.

#![expect(clippy::print_stdout, reason = "it is a program that reports")]

use core::time::Duration;
use std::process::ExitCode;
use std::thread::available_parallelism;
use std::time::SystemTime;

use ballast_model::{Model, Search};

fn main() -> ExitCode {
    let minutes = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(10.0);
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
