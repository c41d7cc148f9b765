//! Messages that are late, lost or duplicated, and agents that restart, in a capping event that batch work alone can pay for.

use core::time::Duration;

use ballast_agent_core::Policy;
use ballast_sim::demo::moving;
use ballast_sim::plant::{PlantSpec, Profile};
use ballast_sim::scenario::Scenario;
use ballast_sim::world::{Checks, Disorder, Fault, World};

use crate::scenarios::{self, END, over_budget};

/// User-facing cores of one server.
const USER_FACING: f64 = 12.0;

#[derive(Debug)]
pub(crate) struct Came {
    pub(crate) trip: f64,
    /// The share of user-facing core-time that was slowed.
    pub(crate) slowed: f64,
    pub(crate) hardware_s: f64,
    /// The mean draw as a share of the budget.
    pub(crate) drawn: f64,
}

fn made(plant: PlantSpec, seed: u64, seconds: u32, faults: &[(f64, f64, Fault)]) -> Scenario {
    let length = Duration::from_secs(seconds.into());
    Scenario { length, ..scenarios::made(plant, Policy::Stepwise, seed, faults) }
}

fn came(world: &World) -> Came {
    let (truth, outcome) = (world.truth(), world.outcome());
    let core_s = world.plant().spec().servers.len() as f64 * USER_FACING * truth.elapsed_s;
    Came {
        trip: outcome.trip_fraction_max,
        slowed: truth.user_facing_throttled_core_s.total() / core_s,
        hardware_s: outcome.out_of_band_s,
        drawn: truth.mean_power_w.as_f64() / truth.budget_w.as_f64(),
    }
}

pub(crate) fn run(plant: PlantSpec, seed: u64, seconds: u32, faults: &[(f64, f64, Fault)]) -> (World, Came) {
    let world = crate::run(made(plant, seed, seconds, faults), seconds).0;
    let came = came(&world);
    (world, came)
}

/// With every batch core at its floor 85 % of the budget are drawn.
fn plants() -> [(&'static str, PlantSpec); 2] {
    let loads = moving(6, 180.0, 3);
    [
        ("lasting", over_budget(6, 0.85, |_| Profile::Constant(0.3))),
        ("moving", over_budget(6, 0.85, |n| loads[n].clone())),
    ]
}

fn disorder(lost_ppm: u32, duplicated_ppm: u32, late_by_ms: u64) -> Fault {
    let (late_ppm, late_by) = (if late_by_ms > 0 { 1_000_000 } else { 0 }, Duration::from_millis(late_by_ms));
    Fault::Disorder(Disorder { lost_ppm, duplicated_ppm, late_ppm, late_by })
}

/// Silent servers were capped by hardware within the event, although the total was under the limit.
#[test]
fn a_bad_network_needs_no_hardware_caps() {
    for (name, fault, most) in [
        ("late by up to 1 s", disorder(0, 0, 1000), 0.01),
        ("60 % lost", disorder(600_000, 0, 0), 0.01),
        ("30 % lost, 30 % duplicated, late by up to 0.7 s", disorder(300_000, 300_000, 700), 0.01),
        // Without a lease a server's own limit answers when its user-facing load exceeds its fallback.
        ("40 % lost, 30 % duplicated, late by up to 1.5 s", disorder(400_000, 300_000, 1500), 0.2),
        ("late by up to a lease", disorder(0, 0, 2000), 0.2),
    ] {
        for (load, plant) in plants() {
            let (_, came) = run(plant, 1, 180, &[(10.0, END, fault)]);
            assert_eq!(came.hardware_s, 0.0, "{name}, {load}: {came:?}");
            assert!(came.slowed <= most && came.trip < 0.2, "{name}, {load}: {came:?}");
        }
    }
}

/// With 1 s each way no answer comes in time at all.
#[test]
fn messages_that_all_need_a_second_need_no_hardware_caps() {
    for latency in [500, 1000] {
        for (load, plant) in plants() {
            let mut scenario = made(plant, 1, 180, &[]);
            scenario.timing.latency = Duration::from_millis(latency);
            let came = came(&crate::run(scenario, 180).0);
            assert_eq!(came.hardware_s, 0.0, "{latency} ms, {load}: {came:?}");
            assert!(came.slowed <= 0.01 && came.trip < 0.2, "{latency} ms, {load}: {came:?}");
        }
    }
}

/// A package upgrade kills the agent and starts the new one; what is capped stays capped.
#[test]
fn agents_that_restart_together_within_an_event_need_no_hardware_caps() {
    for down_s in [0.5, 2.0, 10.0] {
        for (load, plant) in plants() {
            let faults = [0, 1, 2, 3, 4, 5].map(|n| (60.0, 60.0 + down_s, Fault::AgentDown(n)));
            let (_, came) = run(plant, 1, 180, &faults);
            assert_eq!(came.hardware_s, 0.0, "{down_s} s, {load}: {came:?}");
            assert!(came.slowed <= 0.01 && came.trip < 0.2, "{down_s} s, {load}: {came:?}");
        }
    }
}

/// All servers are out of reach when batch work goes up, and their agents are gone: only hardware can act.
#[test]
fn what_nobody_obeys_is_capped_by_hardware_in_time() {
    for floor in [0.85, 0.97, 1.05] {
        let plant = over_budget(6, floor, |_| Profile::Constant(0.3));
        for fault in [Fault::AgentDown, Fault::AgentStalls] {
            let faults = [0, 1, 2, 3, 4, 5].map(|n| (18.0, 28.0, fault(n)));
            let (world, came) = run(plant.clone(), 1, 60, &faults);
            assert!(came.hardware_s > 0.0 && came.trip < 0.7, "{floor}: {came:?}");
            // Software holds the total again: caps in watts that do not bind kept hardware on for minutes.
            let left = world.restrictions().out_of_band;
            assert!(floor > 0.9 || left == 0, "{floor}: {left} servers");
        }
    }
}

/// It has its fallback from before the reboot, and no manager is there to send it another one.
#[test]
fn an_agent_that_stalls_and_reboots_without_a_manager_keeps_its_fallback() {
    let (_, plant) = plants()[0].clone();
    for (stall, gone, reboot) in [(20.0, 21.0, 30.0), (31.0, 30.0, 32.0), (1.0, 5.0, 10.0)] {
        let faults = [
            (gone, END, Fault::ChassisDown),
            (stall, reboot + 5.0, Fault::AgentStalls(0)),
            (reboot, reboot + 2.0, Fault::Reboot(0)),
        ];
        let mut scenario = made(plant.clone(), 1, 90, &faults);
        scenario.checks = Checks { sum_of_caps: true, ..Checks::NONE };
        let world = crate::run(scenario, 90).0;
        let agent = world.agent_status(0).unwrap();
        assert!(agent.fallback_w.is_some(), "{stall}: no fallback is known");
        assert_eq!(agent.report.cap_w, agent.fallback_w, "{stall}");
    }
}
