//! One server's meter reads a multiple of its draw; nothing else is wrong.

use core::time::Duration;

use ballast_agent_core::Policy;
use ballast_sim::demo::loaded;
use ballast_sim::plant::{Profile, peak_draw};
use ballast_sim::scenario::Scenario;
use ballast_sim::world::{Checks, Fault, MeterFault, Window, World};
use ballast_types::{VmClass, Watts};

use crate::at;

/// Twelve servers of which one has a meter that is off by so many parts per million, its agent lost after 40 s if
/// `agent_lost`: the mean draw as a share of the budget, user-facing core-seconds that were slowed, seconds with hardware
/// caps, and the lowest cap of another server at 100 s.
fn wrong(ppm: i32, agent_lost: bool) -> (f64, f64, f64, f64) {
    let mut plant = loaded(12, |_, class| match class {
        VmClass::UserFacing => Profile::Constant(0.8),
        VmClass::NonUserFacing => Profile::Steps([(0.0, 0.3), (10.0, 0.8)].into()),
    });
    plant.budget = Watts::from_f64(peak_draw(&plant, 60.0, 60, true).as_f64() / 0.90).unwrap();
    let mut scenario = Scenario::new(plant, Policy::Stepwise, 1, Duration::from_secs(300));
    scenario.checks = Checks::NONE;
    let window = |from, fault| Window { from: at(from), to: at(1e6), fault };
    scenario.faults.windows = vec![window(5.0, Fault::Meter(6, MeterFault::Biased(ppm)))];
    if agent_lost {
        scenario.faults.windows.push(window(40.0, Fault::Partition(6)));
    }
    let mut world = World::new(scenario);
    world.run(at(100.0)).unwrap();
    let cap = world.agent_status(0).and_then(|a| a.report.cap_w).map_or(f64::INFINITY, Watts::as_f64);
    world.run(at(300.0)).unwrap();
    let (truth, outcome) = (world.truth(), world.outcome());
    let drawn = truth.mean_power_w.as_f64() / truth.budget_w.as_f64();
    (drawn, truth.user_facing_throttled_core_s.total(), outcome.out_of_band_s, cap)
}

#[test]
fn one_wrong_meter_does_not_throttle_eleven_others() {
    for ppm in [4_000_000, 500_000, 1_500_000, 19_000_000, -800_000] {
        let (drawn, user_facing, hardware_s, _) = wrong(ppm, false);
        assert!(drawn >= 0.97, "{ppm}: {drawn}");
        assert_eq!((user_facing, hardware_s), (0.0, 0.0), "{ppm}");
    }
}

#[test]
fn a_wrong_meter_whose_agent_is_lost_takes_no_watt_from_the_others() {
    for ppm in [4_000_000, 19_000_000] {
        let (drawn, _, _, cap) = wrong(ppm, true);
        assert!(drawn >= 0.97, "{ppm}: {drawn}");
        assert!(cap > 100.0, "{ppm}: another server's cap is {cap} W");
    }
}
