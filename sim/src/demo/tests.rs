//! The demo's load does what the demo needs.

use super::*;
use crate::plant::{Plant, peak_draw};
use ballast_types::Instant;

fn run(spec: PlantSpec, seconds: u64, floored: bool) -> Plant {
    let mut plant = Plant::new(spec, 3);
    if floored {
        let servers = plant.spec().servers.clone();
        for (n, server) in servers.iter().enumerate() {
            for vm in server.vms.iter().filter(|vm| vm.class == VmClass::NonUserFacing) {
                for core in &vm.cores {
                    plant.set_core_cap(n, *core, KiloHertz::from_mhz(1200));
                }
            }
        }
        plant.advance(Instant::from_millis(20));
    }
    plant.advance(Instant::from_millis(seconds * 1000));
    plant
}

#[test]
fn the_built_in_load_breaks_the_budget_uncapped_and_fits_at_the_floor() {
    for (servers, seconds) in [(12, 30), (1, 60), (5, 20)] {
        let options = DemoOptions {
            servers,
            seconds: seconds as f64,
            budget: default_budget(servers),
            hardware_caps: false,
            ..DemoOptions::default()
        };

        let spec = demo(&options);
        let budget = options.budget.as_f64();
        let uncapped = run(spec.clone(), seconds, false);
        let truth = uncapped.truth();
        let peak = truth.max_power_w.as_f64() / budget;
        assert!((1.12..1.30).contains(&peak), "{servers} servers: uncapped peak {peak}");
        assert!(truth.over_budget_s_total > 0.15 * seconds as f64);
        assert!(truth.over_budget_s_max < truth.over_budget_s_total, "more than one peak");

        // One server alone swings more, as its few queues do.
        let allowed = if servers == 1 { 1.0 } else { 0.92 };
        let floored = run(spec, seconds, true).truth().max_power_w.as_f64() / budget;
        assert!(floored < allowed, "{servers} servers: peak at the floor {floored}");
    }
}

#[test]
fn the_built_in_load_is_quiet_first_and_falls_for_good() {
    let options = DemoOptions { seconds: 30.0, hardware_caps: false, ..DemoOptions::default() };
    let mut plant = Plant::new(demo(&options), 3);
    let budget = options.budget.as_f64();
    for ms in (10..30_000).step_by(10) {
        plant.advance(Instant::from_millis(ms));
        let share = plant.power().as_f64() / budget;
        if ms < 3000 {
            assert!(share < 0.92, "{ms} ms: {share}");
        }
        if ms > 14_500 {
            assert!(share < 0.87, "{ms} ms: {share}");
        }
    }
}

#[test]
fn the_estimate_agrees_with_the_plant() {
    let options = DemoOptions { queues: false, ..DemoOptions::default() };
    let spec = demo(&options);
    for floored in [false, true] {
        let estimate = peak_draw(&spec, 60.0, 6000, floored).as_f64();
        let plant = run(spec.clone(), 60, floored).truth().max_power_w.as_f64();
        // The plant starts uncapped, for one step, which may be a little above the floored peak.
        assert!((estimate - plant).abs() < 5.0, "floored {floored}: {estimate} against {plant}");
    }
}
