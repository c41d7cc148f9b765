//! One server of three runs dry: its agent only watches. The chassis must not count on its watts.

use core::time::Duration;

use ballast_agent_core::{Output, Policy};
use ballast_sim::demo::loaded;
use ballast_sim::plant::{PlantSpec, Profile};
use ballast_sim::scenario::Scenario;
use ballast_sim::world::World;
use ballast_types::wire::SharePolicy;
use ballast_types::{Instant, VmClass, Watts};
use proptest::prelude::*;

/// From 3 s on the batch VMs want `batch` of their cores; nobody else wants much.
fn three_servers(budget: Watts, batch: f64) -> PlantSpec {
    let plant = loaded(3, |_, class| match class {
        VmClass::UserFacing => Profile::Constant(0.3),
        VmClass::NonUserFacing => Profile::Steps([(0.0, 0.2), (3.0, batch)].into()),
    });
    PlantSpec { budget, ..plant }
}

/// Everything is watched: the trip time, user-facing cores, and that no watt is promised twice.
fn run(budget_w: i64, batch: f64, seed: u64, shares: SharePolicy, policy: Policy) -> World {
    let plant = three_servers(Watts::from_whole(budget_w), batch);
    let mut scenario = Scenario::new(plant, policy, seed, Duration::from_secs(60));
    scenario.agents[1].dry_run = Some("tested".into());
    scenario.chassis.shares = shares;
    scenario.record = true;
    let mut world = World::new(scenario);
    world.run(Instant::from_millis(60_000)).unwrap_or_else(|violation| panic!("{violation}"));
    world
}

#[test]
fn the_others_make_room_for_a_dry_run_server_and_nothing_is_written_on_it() {
    for shares in [SharePolicy::Even, SharePolicy::CriticalFirst] {
        let world = run(640, 0.9, 1, shares, Policy::Stepwise);
        let (truth, outcome) = (world.truth(), world.outcome());
        let what = format!("{shares:?}: {outcome:?}");
        assert!(outcome.capping_events >= 1, "the load must be too much: {what}");
        assert!(outcome.out_of_band_s == 0.0, "{what}");
        // The trip time is watched by the run itself; this is well under it.
        assert!(truth.over_budget_s_max <= 2.0, "{} s: {what}", truth.over_budget_s_max);
        assert!(world.capped_cores(0) > 0 && world.capped_cores(2) > 0, "{what}");
        assert_eq!(world.capped_cores(1), 0, "{what}");
    }
}

#[test]
fn what_the_others_cannot_pay_the_hardware_caps_hold() {
    // At their floors the two others still draw more than what is left of this budget.
    for shares in [SharePolicy::Even, SharePolicy::CriticalFirst] {
        let world = run(560, 1.0, 1, shares, Policy::Stepwise);
        assert!(world.outcome().out_of_band_s > 0.0, "{shares:?}: {:?}", world.outcome());
        assert_eq!(world.capped_cores(1), 0);
    }
}

#[test]
fn a_draw_just_over_the_limit_does_not_hide_in_the_meters_noise() {
    // What the two others draw at their floors leaves the total less than 1 % over these budgets, and the
    // meters' noise is 1 %. A breaker carries that for long; the others' own limits make room before.
    for (seed, budget, batch) in
        [(312, 593, 0.9728), (326, 591, 0.9594), (327, 592, 0.9513), (355, 588, 0.9245)]
    {
        let world = run(budget, batch, seed, SharePolicy::Even, Policy::Stepwise);
        let outcome = world.outcome();
        assert!(outcome.trip_fraction_max < 0.5, "{budget} W: {outcome:?}");
        assert!(outcome.server_limit_s > 0.0, "{budget} W: {outcome:?}");
    }
}

#[test]
fn a_dry_agent_says_so_and_claims_nothing() {
    let world = run(640, 0.9, 1, SharePolicy::CriticalFirst, Policy::Stepwise);
    let lives = world.agent_tape(1).expect("recorded").instances();
    let steps = lives.iter().flat_map(|life| &life.steps);
    let outputs: Vec<_> = steps.flat_map(|step| &step.outputs).collect();
    let wanted = outputs.iter().filter(|o| matches!(o, Output::SetPstate { .. })).count();
    assert!(wanted > 0, "the controller still says what it would do");
    let reports: Vec<_> = (outputs.iter())
        .filter_map(|output| if let Output::Report(report) = output { Some(report) } else { None })
        .collect();
    assert!(reports.iter().any(|report| report.cap_w.is_some()));
    for report in reports {
        assert!(report.dry_run && !report.server_limit, "{report:?}");
        assert_eq!((report.enforced_seq, report.low_cores, report.min_khz), (None, 0, None));
        assert_eq!((report.sheddable_w, report.restorable_w), (Watts::ZERO, Watts::ZERO));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever the load and the budget: the trip time holds, and no watt is promised twice.
    #[test]
    fn the_budget_holds_with_a_dry_run_server(
        seed: u64, budget in 540i64..760, batch in 0.5f64..1.0, critical: bool
    ) {
        let shares = if critical { SharePolicy::CriticalFirst } else { SharePolicy::Even };
        run(budget, batch, seed, shares, Policy::Stepwise);
    }
}
