//! How fast clusters run under admission policies, on one thread.
//!
//! `cargo bench -p ballast-sim --bench admission` prints three years of 20,000 cores: events a second, decisions a second, and
//! what 500 such runs would take. Every figure is the median of runs with seeds of their own.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::Instant as Clock;

use ballast_placement::admission::Belief;
use ballast_sim::admission::{Arm, Moment, Site, badness, run};
use ballast_types::median;

const RUNS: u64 = 9;

fn main() {
    let site = Site { law: Belief::SUB_B, capacity: 20_000.0, arrivals_per_h: 1.0, hours: 26_280.0 };
    for (name, arm, threshold) in [
        ("zeroth", Arm::new(Moment::Zeroth, 0, false), 18_000.0),
        ("first", Arm::new(Moment::First, 0, false), 20_000.0),
        ("second", Arm::new(Moment::Second, 0, false), 0.1),
        ("second, 50 observations, marginal", Arm::new(Moment::Second, 50, true), 0.1),
    ] {
        let (mut events, mut decisions, mut seconds) = (vec![], vec![], vec![]);
        for index in 0..RUNS {
            let start = Clock::now();
            let tally = run(&site, &arm, threshold, 1, index);
            let took = start.elapsed().as_secs_f64();
            events.push(tally.events as f64 / took);
            decisions.push(tally.deployments as f64 / took);
            seconds.push(took);
        }
        let [events, decisions, seconds] = [&mut events, &mut decisions, &mut seconds].map(|it| median(it));
        println!(
            "{name:36} {:6.1} M events/s {:8.0} decisions/s {seconds:7.3} s a run, 500 runs in {:5.1} min",
            events / 1e6,
            decisions,
            seconds * 500.0 / 60.0
        );
    }

    let start = Clock::now();
    let most = (0..RUNS).map(|index| badness(&site, 18_000.0, 1, index)).fold(0.0, f64::max);
    let took = start.elapsed().as_secs_f64() / RUNS as f64;
    println!("{:36} {:8.1} ms a run (at most {most:.0} cores)", "badness", took * 1e3);
}
