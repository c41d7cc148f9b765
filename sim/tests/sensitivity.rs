//! No number of the chassis manager's loop is critical: each may be a third larger or smaller.

use core::time::Duration;

use ballast_agent_core::Policy;
use ballast_chassis_core::Tuning;
use ballast_sim::campaign::Overload;
use ballast_sim::demo::overloaded;
use ballast_sim::scenario::Scenario;
use ballast_sim::world::{Restrictions, World};
use ballast_types::Instant;
use ballast_types::wire::SharePolicy;

type Change = fn(&mut Tuning, f64);

fn ppm(number: &mut u32, by: f64) {
    *number = (f64::from(*number) * by) as u32;
}

fn time(number: &mut Duration, by: f64) {
    *number = number.mul_f64(by);
}

const CHANGES: [(&str, Change); 16] = [
    ("height_gain", |t, by| t.height_gain *= by),
    ("floor_moves_ppm", |t, by| ppm(&mut t.floor_moves_ppm, by)),
    ("integral_ppm", |t, by| ppm(&mut t.integral_ppm, by)),
    ("integral_max_ppm", |t, by| ppm(&mut t.integral_max_ppm, by)),
    ("floor_at", |t, by| t.floor_at *= by),
    ("hardware_at", |t, by| t.hardware_at *= by),
    ("fenced_at", |t, by| t.fenced_at *= by),
    ("lift_ppm_a_second", |t, by| ppm(&mut t.lift_ppm_a_second, by)),
    ("release_within", |t, by| time(&mut t.release_within, by)),
    ("lift_blamed", |t, by| time(&mut t.lift_blamed, by)),
    ("longest_hold", |t, by| time(&mut t.longest_hold, by)),
    ("adopts_for", |t, by| time(&mut t.adopts_for, by)),
    ("asks_every", |t, by| time(&mut t.asks_every, by)),
    ("lowered_counts_after", |t, by| time(&mut t.lowered_counts_after, by)),
    ("highest_every", |t, by| time(&mut t.highest_every, by)),
    ("orphan_hold", |t, by| time(&mut t.orphan_hold, by)),
];

const FALLS: Duration = Duration::from_secs(60);
const END: Duration = Duration::from_secs(90);

/// Too much load and no fault: the budget is used, the breaker hardly moves, the servers' own limits are left
/// alone, and everything is given back.
fn judge_overload(change: impl Fn(&mut Tuning)) -> Result<(), String> {
    let mut scenario = Scenario::new(overloaded(4, 1.0, FALLS.as_secs_f64()), Policy::Stepwise, 1, END);
    scenario.chassis.shares = SharePolicy::CriticalFirst;
    let mut tuning = Tuning::default();
    change(&mut tuning);
    scenario.tuning = Some(tuning);

    let mut world = World::new(scenario);
    let run = |world: &mut World, to: Duration| {
        world.run(Instant::ZERO + to).map_err(|violation| violation.to_string())
    };
    run(&mut world, FALLS)?;
    let (truth, outcome) = (world.truth(), world.outcome());
    let used = truth.mean_power_w.as_f64() / truth.budget_w.as_f64();
    let throttled = truth.user_facing_throttled_core_s.total();
    let (fraction, hardware_s) = (outcome.trip_fraction_max, truth.hardware_engaged_s);

    if used < 0.94 || throttled > 0.0 || fraction > 0.2 || hardware_s > 0.0 {
        return Err(format!("{used:.3} used, {throttled} core-s, {fraction:.3}, {hardware_s} s"));
    }
    run(&mut world, END)?;
    let left = world.restrictions();
    if left == Restrictions::default() { Ok(()) } else { Err(format!("{left:?} left behind")) }
}

#[test]
fn no_number_of_the_loop_is_critical() {
    for (name, change) in CHANGES {
        for by in [2.0 / 3.0, 4.0 / 3.0] {
            let overload = judge_overload(|tuning| change(tuning, by));
            overload.unwrap_or_else(|why| panic!("{name} x {by:.2}: {why}"));

            for seed in 0..2 {
                let shares = SharePolicy::CriticalFirst;
                let case = Overload { shares, ..Overload::new(seed, 4, 6) };
                let mut scenario = case.scenario();
                let mut tuning = Tuning::default();
                change(&mut tuning, by);
                scenario.tuning = Some(tuning);
                let run = Overload::judge(scenario);
                run.unwrap_or_else(|why| panic!("{name} x {by:.2}: {why}, {case:?}"));
            }
        }
    }
}

#[test]
fn numbers_that_are_far_off_are_noticed() {
    let off: [(&str, Change, f64); 2] = [
        ("height_gain", |t, by| t.height_gain *= by, 0.0),
        ("hardware_at", |t, by| t.hardware_at *= by, 0.0),
    ];
    for (name, change, by) in off {
        let judged = judge_overload(|tuning| change(tuning, by));
        assert!(judged.is_err(), "{name}");
    }
}
