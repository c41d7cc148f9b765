//! How long a month of Table I takes with all rules, on one thread.
//!
//! `cargo bench -p ballast-sim --bench cluster` prints the time to make 30 days of load for 720 servers, and to play
//! them: best fit alone, and best fit and the power rule.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::Instant as Clock;

use ballast_placement::Policy;
use ballast_sim::cluster::{Arm, Setup, Site, Workload, run};
use ballast_types::PowerModel;

fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Clock::now();
    let result = work();
    println!("{what:58} {:8.3} s", start.elapsed().as_secs_f64());
    result
}

fn main() {
    let site = Site { chassis: 60, servers: 12, cores: 40, model: PowerModel::PAPER, load: 0.65, days: 30 };

    let load = timed("30 days of Table I for 720 servers: made", || {
        Workload::generate(1, 28_800, site.load, site.days)
    });
    let vms: usize = load.deployments.iter().map(|deployment| deployment.vms.len()).sum();
    println!("{} deployments, {vms} VMs, {} residents", load.deployments.len(), load.residents.len());

    let played = |what: &str, arm: Arm, policy| {
        let setup = Setup { prediction: arm.prediction(), policy };
        let month = timed(what, || run(&site, &setup, &load, Some(2400.0)))
            .expect("every VM has a host that is large enough");
        assert_eq!(month.requests as usize, load.deployments.len(), "every deployment is asked for");
    };

    played("played with best fit alone", Arm::None, Policy::BEST_FIT);
    played("played with all rules", Arm::Model, Policy::POWER);
}
