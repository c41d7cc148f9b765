//! How many times faster than real time the world runs: 12 servers of 40 cores, every poll executed.
//!
//! `cargo bench -p ballast-sim --bench world`

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use core::time::Duration;

use ballast_agent_core::Policy;
use ballast_sim::plant::{Generator, Load, Profile, Shape};
use ballast_sim::scenario::{DemoOptions, demo};
use ballast_sim::world::{Setup, World};
use ballast_types::{Instant, VmClass};

/// Virtual seconds of one measurement.
const SECONDS: u64 = 4 * 3600;

fn main() {
    for (name, batch) in [("calm", 0.2), ("capping", 1.0)] {
        let mut plant = demo(&DemoOptions { queues: false, ..DemoOptions::default() });
        for (n, vm) in plant.servers.iter_mut().flat_map(|s| &mut s.vms).enumerate() {
            let mean = if vm.class == VmClass::UserFacing { 0.3 } else { batch };
            let shape = Shape::Diurnal;
            let generator = Generator { shape, seed: n as u64, mean, speedup: 1.0 };
            vm.load = Load::Profile(Profile::Generated(generator));
        }
        let length = Duration::from_secs(SECONDS);
        let mut world = World::new(Setup::new(plant, Policy::Stepwise, 1, length));
        #[expect(clippy::disallowed_methods, reason = "a benchmark measures wall time")]
        let begun = std::time::Instant::now();
        if let Err(violation) = world.run(Instant::ZERO + length) {
            println!("{violation}");
        }
        let wall = begun.elapsed().as_secs_f64();
        let outcome = world.outcome();
        println!(
            "{name}: {:.0} x real time ({:.1} h in {wall:.2} s), {} polls, {} episodes, {} outputs, {}",
            outcome.elapsed_s / wall,
            outcome.elapsed_s / 3600.0,
            outcome.polls,
            outcome.capping_events,
            outcome.outputs,
            outcome.outputs_hash,
        );
    }
}
