//! `just model`: searches deep, prints what it reached and every broken promise as a history.
//!
//! `just model 60` takes an hour; ten minutes without a number.

#![expect(clippy::print_stdout, reason = "it is a program that reports")]

use core::time::Duration;
use std::process::ExitCode;

use ballast_model::{KNOWN, Model, Search};

fn main() -> ExitCode {
    let minutes = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(10.0);
    let part = |share: f64| Duration::from_secs_f64(60.0 * minutes * share);
    let seconds = Duration::from_secs;
    let seed = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(1, |now| now.as_secs());

    let threads = std::thread::available_parallelism().map_or(1, usize::from);

    let mut new = false;
    for (what, model, search) in [
        (
            "every history of 1 fault in 8 s",
            Model::new(1, 0, seconds(8)),
            Search::Every(part(0.05)),
        ),
        (
            "every history of 1 fault and 2 changes of load in 4 s",
            Model::new(1, 2, seconds(4)),
            Search::Every(part(0.1)),
        ),
        (
            "every history of 2 faults in 4 s",
            Model::new(2, 0, seconds(4)),
            Search::Every(part(0.3)),
        ),
        (
            "every history of 3 faults in 2 s",
            Model::new(3, 0, seconds(2)),
            Search::Every(part(0.3)),
        ),
        (
            "random histories of 8 faults and 6 changes of load in 20 s",
            Model::new(8, 6, seconds(20)),
            Search::Random(part(0.25), seed),
        ),
    ] {
        println!("== {what}");
        let outcome = model.search(search, threads);
        println!("{outcome}");
        new |= outcome.broken.iter().any(|(promise, _)| !KNOWN.contains(promise));
    }
    if new { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
