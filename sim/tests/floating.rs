//! Floating VMs (`cpu-max`) in virtual time: bandwidth holds the budget where p-states otherwise do.

use core::time::Duration;

use ballast_agent_core::{Actuator, Policy};
use ballast_sim::campaign::Overload;
use ballast_sim::demo::{DemoOptions, default_budget, demo};
use ballast_sim::plant::{BatchSpec, Load, PlantSpec, Profile};
use ballast_sim::scenario::Scenario;
use ballast_sim::world::{Checks, Restrictions, World};
use ballast_types::VmClass;

use crate::{at, run};

/// A chassis whose batch VMs ask for everything from the third second until `falls_s`.
fn chassis(servers: usize, falls_s: f64) -> PlantSpec {
    let budget = default_budget(servers);
    let mut plant = demo(&DemoOptions { servers, budget, ..DemoOptions::default() });
    for vm in plant.servers.iter_mut().flat_map(|s| &mut s.vms) {
        vm.load = match vm.class {
            VmClass::UserFacing => Load::Profile(Profile::Constant(0.3)),
            VmClass::NonUserFacing => {
                let demand = Profile::Steps([(0.0, 0.3), (3.0, 1.0), (falls_s, 0.05)].into());
                Load::Batch(BatchSpec::endless(60.0, demand))
            }
        };
    }
    plant
}

fn floating(plant: PlantSpec, policy: Policy, seed: u64, seconds: u64) -> Scenario {
    let mut scenario = Scenario::new(plant, policy, seed, Duration::from_secs(seconds));
    for agent in &mut scenario.agents {
        agent.actuator = Actuator::CpuMax;
    }
    scenario
}

#[test]
fn a_floating_chassis_holds_its_budget_and_gives_everything_back() {
    let mut world = World::new(floating(chassis(12, 40.0), Policy::Stepwise, 1, 120));
    world.run(at(35)).unwrap();
    assert!(world.restrictions().vms > 0 && world.restrictions().cores == 0);

    // From one settled second to the other: the mean over whole periods.
    let (at_35, energy) = (world.truth().mean_power_w.as_f64(), 35.0);
    world.run(at(39)).unwrap();
    let mean = (world.truth().mean_power_w.as_f64() * 39.0 - at_35 * energy) / 4.0;
    let budget = world.truth().budget_w.as_f64();
    assert!((0.9 * budget..budget).contains(&mean), "{mean} W");
    world.run(at(120)).unwrap();
    let (truth, outcome) = (world.truth(), world.outcome());
    assert!(outcome.capping_events >= 1);
    assert!(truth.over_budget_s_max <= 1.0, "{} s", truth.over_budget_s_max);
    assert_eq!(truth.user_facing_throttled_core_s.total(), 0.0);
    assert!(truth.batch_throttled_core_s.software > 10.0);
    assert!(outcome.out_of_band_s == 0.0 && truth.hardware_engaged_s == 0.0);
    assert_eq!(world.restrictions(), Restrictions::default());
    assert_eq!(truth.batch_frequency_ratio_end, 1.0);
}

#[test]
fn a_floating_run_is_its_seed() {
    let hash = |seed| run(floating(chassis(3, 12.0), Policy::Stepwise, seed, 15), 15).1.outputs_hash;
    assert_eq!(hash(5), hash(5));
    assert_ne!(hash(5), hash(6));
}

#[test]
fn faults_break_no_promise_and_leave_no_quota_behind() {
    for seed in 0..20 {
        let case = Overload { actuator: Actuator::CpuMax, ..Overload::new(seed, 4, 6) };
        if let Err(violation) = case.run() {
            panic!("{violation}\n{:#?}", case.scenario().faults);
        }
    }
}

/// A VM at full load runs, then stops, in every period: peaks as long as its share of the period. On the
/// plant's grid of 10 ms a period of 10 ms shows its mean.
#[test]
fn a_full_load_is_a_sawtooth_as_fine_as_its_period() {
    // Seconds above the budget, and the share of bandwidth that batch VMs get.
    let over = |millis| {
        let mut scenario = floating(chassis(4, 40.0), Policy::Stepwise, 1, 30);
        scenario.timing.quota_period = Duration::from_millis(millis);
        let (world, _) = run(scenario, 30);
        (world.truth().over_budget_s_total, world.truth().batch_frequency_ratio_mean)
    };
    let [ten, twenty, hundred] = [10, 20, 100].map(over);
    assert!(ten.0 < 1.5 && twenty.0 > 5.0 && hundred.0 > 5.0, "{ten:?} {twenty:?} {hundred:?}");
    // What the VMs get is the same.
    assert!((ten.1 - twenty.1).abs() < 0.03 && (ten.1 - hundred.1).abs() < 0.03);
}

/// At the end of every period most VMs stand still, and the chassis draws far less than in the mean.
#[test]
fn a_sawtooth_that_uses_the_budget_in_the_mean_leaves_nothing_free() {
    let mut scenario = floating(chassis(4, 200.0), Policy::Stepwise, 1, 100);
    scenario.checks = Checks { conservation: true, ..Checks::USUAL };
    run(scenario, 100);
}
