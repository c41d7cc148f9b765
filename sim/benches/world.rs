//! How many times faster than real time the world runs: 12 servers of 40 cores, every poll executed.
//!
//! `cargo bench -p ballast-sim --bench world`

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use core::time::Duration;

use ballast_agent_core::Policy;
use ballast_sim::demo::{DemoOptions, demo};
use ballast_sim::plant::{Generator, Load, Profile, Shape};
use ballast_sim::scenario::Scenario;
use ballast_sim::world::{Checks, World};
use ballast_types::wire::SharePolicy;
use ballast_types::{Instant, VmClass, Watts};

/// Virtual seconds of one measurement.
const SECONDS: u64 = 4 * 3600;

struct Case {
    name: &'static str,
    policy: Policy,
    shares: SharePolicy,
    /// Mean load of the user-facing and of the batch VMs.
    load: (f64, f64),
    /// In place of the demo's.
    budget: Option<Watts>,
}

fn main() {
    let calm = Case {
        name: "calm",
        policy: Policy::Stepwise,
        shares: SharePolicy::Even,
        load: (0.3, 0.2),
        budget: None,
    };

    let capping = Case { name: "capping", load: (0.3, 1.0), ..calm };

    // Under what the floor of the batch cores leaves: the servers' own caps are always on.
    let limits = Case { name: "limits", load: (0.8, 1.0), budget: Some(Watts::from_whole(2000)), ..calm };
    let critical_first = SharePolicy::CriticalFirst;

    for case in [
        Case { name: "calm, no controllers", policy: Policy::None, ..calm },
        Case { name: "limits, critical-first", shares: critical_first, ..limits },
        calm,
        capping,
        limits,
    ] {
        run(&case);
    }
}

fn run(case: &Case) {
    let mut plant = demo(&DemoOptions { queues: false, ..DemoOptions::default() });
    plant.budget = case.budget.unwrap_or(plant.budget);
    for (n, vm) in plant.servers.iter_mut().flat_map(|s| &mut s.vms).enumerate() {
        let mean = if vm.class == VmClass::UserFacing { case.load.0 } else { case.load.1 };
        let generator = Generator { shape: Shape::Diurnal, seed: n as u64, mean, speedup: 1.0 };
        vm.load = Load::Profile(Profile::Generated(generator));
    }

    let length = Duration::from_secs(SECONDS);
    let mut scenario = Scenario::new(plant, case.policy, 1, length);
    scenario.chassis.shares = case.shares;

    // Some of these budgets cannot be kept, and the time that the run takes is all that is asked.
    scenario.checks = Checks { trip_time: false, ..scenario.checks };
    let mut world = World::new(scenario);

    #[expect(clippy::disallowed_methods, reason = "a benchmark measures wall time")]
    let begun = std::time::Instant::now();
    if let Err(violation) = world.run(Instant::ZERO + length) {
        println!("{violation}");
    }
    let wall = begun.elapsed().as_secs_f64();

    let outcome = world.outcome();
    println!(
        "{:23} {:6.0} x real time ({:.1} h in {wall:.2} s), server limits on for {:.1} h, {} capping \
         events, {} outputs, {}",
        case.name,
        outcome.elapsed_s / wall,
        outcome.elapsed_s / 3600.0,
        outcome.server_limit_s / 3600.0,
        outcome.capping_events,
        outcome.outputs,
        outcome.outputs_hash,
    );
}
