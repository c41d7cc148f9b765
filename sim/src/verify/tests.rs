use ballast_planner::{Histogram, Terms};

use super::*;

/// A plan of a named approach for the paper's chassis, with this budget.
pub(super) fn planned(approach: &str, budget_w: i64) -> Planned {
    let chassis = Chassis::default();
    let approach = Approach::named(approach).unwrap();
    let mut draws = Histogram::new(Watts::from_whole(1)).unwrap();
    draws.add(Watts::from_whole(2000), 1000);
    let plan = Plan::make(&draws, &approach, &chassis, &Terms::paper(&chassis)).unwrap();
    let plan = Plan { budget: Watts::from_whole(budget_w), ..plan };
    Planned { approach, plan, chassis, period: Duration::from_secs(60) }
}

fn draws(watts: &[i64]) -> Draws {
    let draw = |w: &i64| (*w > 0).then(|| Watts::from_whole(*w));
    Draws::new("c1", watts.iter().map(draw))
}

/// Replays on a chassis of two servers, so that the tests are quick: watts are those of twelve.
fn measure(approach: &str, budget_w: i64, watts: &[i64], options: &Options) -> Measured {
    let mut planned = planned(approach, budget_w / 6);
    planned.chassis.servers = 2;
    let watts: Vec<_> = watts.iter().map(|w| w / 6).collect();
    replay(&draws(&watts), &planned, options, |_| ()).unwrap()
}

#[test]
fn windows_and_the_whole_give_the_same_counts() {
    // Two excesses, one of them next to a gap, a warm unit that holds the cap, and one after another.
    let watts = [
        2000, 2100, 2200, 2600, 2300, 2200, 2100, 0, 2000, 2300, 2560, 2580, 2440, 2300, 2000, 0, 2620, 2100,
        2000, 2000,
    ];

    for approach in ["no-impact", "full-server"] {
        let options = Options::default();
        let windows = measure(approach, 2500, &watts, &options);
        let whole = Options { everything: true, ..options };
        let whole = measure(approach, 2500, &watts, &whole);
        assert_eq!((windows.units, whole.units), (18, 18));
        assert_eq!(whole.replayed_units, 18);
        assert!(windows.replayed_units < 12, "{windows:?}");
        let counts =
            |m: &Measured| (m.events_user_facing, m.events_batch, m.events_hardware, m.longest_event_units);

        // In a unit at the very threshold readings' noise decides, and a window draws other noise.
        let (few, all) = (counts(&windows), counts(&whole));
        assert_eq!((few.0, few.2), (all.0, all.2), "{approach}");
        assert!(few.1.abs_diff(all.1) <= 1 && few.3.abs_diff(all.3) <= 1, "{few:?} {all:?}");
        assert!(windows.events() >= 6, "{windows:?}");
        assert_eq!(windows.readings_above_budget, 4);
    }
}

#[test]
fn capping_hits_whom_the_policy_lets_it_hit() {
    let open = Options::default();
    let high = |w| [2000, w, w, 2000, 2000, 2000];

    // Below the alert threshold, as a share of 2500 W, nothing is even run.
    let calm = measure("no-impact", 2500, &high(2400), &open);
    assert_eq!((calm.events(), calm.replayed_units, calm.lowest_batch_frequency), (0, 0, 1.0));

    // Just above it there is an alert; a server whose draw fits its cap drops nothing.
    let alert = measure("no-impact", 2500, &high(2455), &open);
    assert_eq!((alert.readings_above_budget, alert.over_budget_s, alert.hardware_s), (0, 0.0, 0.0));
    assert_eq!((alert.events_batch, alert.events_user_facing), (0, 0));

    // Deeper: batch cores alone, down to their floor, and user-facing ones not at all.
    let deep = measure("no-impact", 2500, &high(2800), &open);
    assert_eq!((deep.readings_above_budget, deep.events_batch, deep.events_user_facing), (2, 3, 0));
    assert_eq!((deep.lowest_batch_frequency, deep.lowest_user_facing_frequency), (0.5, 1.0));
    assert!(deep.over_budget_s_max > 0.2 && deep.over_budget_s_max < 1.0, "{deep:?}");

    // 300 W of 2800, with the margins under the budget; watts are those of two servers of twelve.
    let shed_w = deep.deepest.as_f64() * 6.0;
    assert!((320.0..460.0).contains(&shed_w), "{deep:?}");
    assert!(deep.deepest_moment >= deep.deepest && deep.shed > deep.deepest);

    // User-facing cores follow where the policy has them follow, and not below their floor.
    let deeper = measure("minimal-impact", 2200, &high(2800), &open);
    assert_eq!((deeper.events_user_facing, deeper.events_hardware), (3, 0), "{deeper:?}");
    assert_eq!((deeper.lowest_batch_frequency, deeper.lowest_user_facing_frequency), (0.5, 19.0 / 24.0));

    // Where they may not be touched, hardware does it.
    let broken = measure("no-impact", 2200, &high(2800), &open);
    assert_eq!((broken.events_user_facing, broken.events_batch), (3, 0), "{broken:?}");
    assert!(broken.hardware_s > 10.0 && broken.lowest_user_facing_frequency < 1.0, "{broken:?}");

    // Full-server capping: all alike.
    let full = measure("full-server", 2500, &high(2700), &open);
    assert_eq!((full.events_user_facing, full.events_batch, full.events_hardware), (3, 0, 0));
    assert_eq!((full.lowest_batch_frequency, full.lowest_user_facing_frequency), (0.75, 0.75));
}

#[test]
fn vms_that_are_not_capped_first_count_as_user_facing() {
    let high = [2000, 2700, 2000, 2000];
    let all = measure("no-impact", 2500, &high, &Options::default());
    let internal = measure("no-impact-internal", 2500, &high, &Options::default());
    assert_eq!((all.events_user_facing, internal.events_user_facing), (0, 0));
    assert!(internal.batch_throttled_core_s < all.batch_throttled_core_s);
    assert!(internal.deepest_moment < all.deepest_moment);
    // Slowed work that takes longer sheds less than work that gets less done.
    let closed = Options { demand: Demand::Closed, ..Options::default() };
    let closed = measure("no-impact", 2500, &high, &closed);
    assert!(closed.deepest_moment > all.deepest_moment, "{closed:?}");
}

#[test]
fn a_verdict_names_what_was_broken() {
    let planned = planned("minimal-impact", 2500);
    assert_eq!(Verdict::of(&planned, &Measured::default()), None);
    let kept = Measured { units: 1000, events_batch: 9, events_user_facing: 1, ..Measured::default() };
    let verdict = Verdict::of(&planned, &kept).unwrap();
    assert!(verdict.kept && verdict.broken().next().is_none(), "{verdict:?}");
    assert_eq!((verdict.events_rate, verdict.events_user_facing_rate), (0.01, 0.001));

    for (measured, what) in [
        (Measured { events_batch: 10, ..kept }, What::EventsRate),
        (Measured { events_batch: 8, events_user_facing: 2, ..kept }, What::EventsUserFacingRate),
        (Measured { lowest_batch_frequency: 0.49, ..kept }, What::LowestBatchFrequency),
        (Measured { lowest_user_facing_frequency: 0.74, ..kept }, What::LowestUserFacingFrequency),
        (Measured { over_budget_s_max: 5.01, ..kept }, What::OverBudgetS),
    ] {
        let verdict = Verdict::of(&planned, &measured).unwrap();
        let broken: Vec<_> = verdict.broken().map(|promise| promise.what).collect();
        assert_eq!((verdict.kept, broken), (false, vec![what]));
    }

    // Under full-server capping every event hits user-facing VMs: only the total counts.
    let planned = self::planned("full-server", 2500);
    let one = Measured { units: 1000, events_user_facing: 1, ..Measured::default() };
    assert!(Verdict::of(&planned, &one).unwrap().kept);
}

#[test]
fn a_chassis_comes_out_the_same_alone_and_among_others() {
    let high = [2000, 2600, 2000, 2000];
    let first = measure("no-impact", 2500, &high, &Options::default());
    assert_eq!(first, measure("no-impact", 2500, &high, &Options::default()));
    let mut sum = Measured::default();
    sum.add(&first);
    sum.add(&measure("no-impact", 2500, &[2000, 0, 2000], &Options::default()));
    let odd = measure("no-impact", 2500, &[1200, 3800], &Options::default());
    assert_eq!((odd.below_idle, odd.beyond_full_load, first.below_idle), (1, 1, 0));
    assert_eq!((sum.chassis, sum.units, sum.events_batch), (2, 6, first.events_batch));
    assert_eq!((sum.deepest, sum.lowest_batch_frequency), (first.deepest, 0.5));
    // An imbalance moves watts between servers, and is seeded.
    let leaning = Options { imbalance: 0.5, ..Options::default() };
    let leaning = measure("no-impact", 2500, &high, &leaning);
    assert!(leaning.deepest_moment != first.deepest_moment && leaning.events() == first.events());
}

/// A chassis of two servers that draws so many watts from these seconds on, for others' tests.
pub(crate) fn recorded_plant(draws: &[(f64, i64)], budget_w: i64) -> crate::plant::PlantSpec {
    let mut planned = planned("no-impact", budget_w);
    planned.chassis.servers = 2;
    let points: Vec<_> = draws.iter().map(|(s, w)| (*s, 0, Watts::from_whole(*w))).collect();
    let all = Draws::new("c1", points.iter().map(|(_, _, w)| Some(*w)));
    load::Loads::new(&all, &planned, &Options::default(), 1).plant(&points)
}
