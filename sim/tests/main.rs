//! The simulator from outside: real controllers in virtual time.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod data;
mod dry;
mod floating;
mod fusion;
mod network;
mod scenarios;
mod sensitivity;
mod shares;
mod shedding;
mod supplies;
mod world;
mod world_telemetry;
mod wrong_manager;
mod wrong_meter;

use core::time::Duration;

use ballast_sim::scenario::Scenario;
use ballast_sim::world::{Outcome, World};
use ballast_types::Instant;

fn at(seconds: impl Into<f64>) -> Instant {
    Instant::ZERO + Duration::from_secs_f64(seconds.into())
}

fn run(scenario: Scenario, seconds: impl Into<f64>) -> (World, Outcome) {
    let mut world = World::new(scenario);
    world.run(at(seconds)).unwrap_or_else(|violation| panic!("{violation}"));
    let outcome = world.outcome();
    (world, outcome)
}
