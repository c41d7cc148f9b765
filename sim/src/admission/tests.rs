//! What is drawn against the moments that policies compute, and runs against each other.

use ballast_placement::admission::{Belief, Form};

use super::chance::{Chance, Purpose};
use super::deployment::Hidden;
use super::*;

/// Mean and variance of a deployment of `cores` after `hours`, given its hidden parameters.
fn given(hidden: &Hidden, delta: f64, cores: f64, hours: f64) -> (f64, f64) {
    let Hidden { mu, rate, sigma, .. } = *hidden;
    let alive = libm::exp(-delta * mu * hours);
    let (p1, p2) = (libm::exp(-mu * hours), libm::exp(-2.0 * mu * hours));
    let (q1, q2) = (-libm::expm1(-mu * hours) / mu, -libm::expm1(-2.0 * mu * hours) / (2.0 * mu));
    let mean = cores * p1 + rate * (1.0 + sigma) * q1;
    let pairs = 2.0 * sigma + sigma * sigma;
    let variance = cores * (p1 - p2) + rate * ((1.0 + sigma) * q1 + pairs * q2);
    (alive * mean, alive * (variance + mean * mean))
}

/// Goal D1: means within 0.5 %, variances within 2 %, also where a + 2 kappa - 2 is negative.
#[test]
fn moments_are_those_of_drawn_parameters() {
    const DRAWS: u64 = 4_000_000;
    for (law, seed) in [(Belief::SUB_A, 5), (Belief::SUB_B, 5)] {
        let mut chance = Chance::new(seed, Purpose::Deployment, 0, 0);
        let cases = [(1.0, 6.0), (4.0, 24.0), (50.0, 720.0), (4.0, 26_280.0)];
        let mut sums = [(0.0, 0.0); 4];
        for _ in 0..DRAWS {
            let hidden = Hidden::draw(&law, &mut chance);
            for ((mean, square), (cores, hours)) in sums.iter_mut().zip(cases) {
                let (m, s) = given(&hidden, law.delta, cores, hours);
                (*mean, *square) = (*mean + m, *square + s);
            }
        }
        for ((cores, hours), sums) in cases.into_iter().zip(sums) {
            let (mean, square) = (sums.0 / DRAWS as f64, sums.1 / DRAWS as f64);
            let variance = square - mean * mean;

            let exact = law.moments(Form::Exact, cores, hours);
            let (off, wide) = ((exact.mean / mean - 1.0).abs(), (exact.variance / variance - 1.0).abs());
            assert!(off <= 0.005, "{} {cores} cores {hours} h: {exact:?} {mean}: {off}", law.kappa);
            assert!(wide <= 0.02, "{} {cores} cores {hours} h: {exact:?} {variance}: {wide}", law.kappa);
        }
    }
}

/// A deployment on its own, with its end: means of the absorbed form, and of events.
#[test]
fn the_absorbed_form_is_what_deployments_do() {
    for (hours, within) in [(24.0, 0.02), (168.0, 0.08)] {
        // Each is alone in its own run: the arrival of the first ends the wait.
        let law = Belief::SUB_B;
        let (mut sum, mut initial) = (0.0, std::collections::BTreeMap::<i64, (f64, f64)>::new());
        for index in 0..20_000 {
            let mut cores = 0;
            let mut first = None;
            let site = Site { law, capacity: 1e9, arrivals_per_h: 1.0, hours: 1.0 };
            alone(&site, index, hours, |change| {
                first.get_or_insert(change.cores);
                cores += change.cores;
            });
            sum += cores as f64;
            let of_size = initial.entry(first.unwrap_or(0)).or_default();
            *of_size = (of_size.0 + 1.0, of_size.1 + cores as f64);
        }
        assert!(sum > 0.0);

        // Those that began with two cores: what is believed of them knows their size.
        let (n, cores) = initial[&2];
        let seen = ballast_placement::admission::Observed::first(2.0);
        let absorbed = law.posterior(&seen).moments(Form::Absorbed, 2.0, hours).mean;
        let off = (absorbed / (cores / n) - 1.0).abs();
        assert!(off < within + 0.05, "{hours} h: {absorbed} {} of {n}", cores / n);
    }
}

fn alone(site: &Site, index: u64, hours: f64, observe: impl FnMut(Change)) {
    run::play_one(site, 11, 0, index, hours, observe);
}

fn small() -> Site {
    Site { law: Belief::SUB_B, capacity: 300.0, arrivals_per_h: 0.05, hours: 8760.0 }
}

#[test]
fn the_same_seed_gives_the_same_run_and_a_lower_threshold_less_of_both() {
    let site = small();
    for (arm, low, high) in [
        (Arm::new(Moment::Zeroth, 0, false), 100.0, 300.0),
        (Arm::new(Moment::First, 1, false), 100.0, 400.0),
        (Arm::new(Moment::Second, 5, true), 0.001, 0.5),
        (Arm { labels: Labels::Mixed, ..Arm::new(Moment::Second, 1, false) }, 0.001, 0.5),
    ] {
        let total = |threshold| {
            let tallies = (0..12).map(|index| run(&site, &arm, threshold, 3, index));
            tallies.fold((0, 0.0), |(failed, used), it| (failed + it.failed, used + it.utilisation))
        };
        let (below, above) = (total(low), total(high));
        assert_eq!(below, total(low));
        assert!(below.0 <= above.0 && below.1 < above.1, "{arm:?}: {below:?} {above:?}");
    }
}

#[test]
fn a_cluster_is_never_over_its_capacity_and_counts_what_happens() {
    let (mut active, mut most, mut changes) = (0, 0, 0);
    let arm = Arm::new(Moment::Zeroth, 0, false);
    let tally = play(&small(), &arm, 300.0, 9, 0, |change| {
        active += change.cores;
        most = most.max(active);
        changes += 1;
    });
    assert!(most <= 300 && tally.failed > 0, "{most} {tally:?}");
    assert_eq!(changes, tally.events + tally.admitted - tally.failed);
    assert!((0.1..1.0).contains(&tally.utilisation), "{tally:?}");
}

#[test]
fn bad_runs_are_found_before_they_are_run() {
    let site = Site { hours: 2.0 * 8760.0, ..small() };
    let arm = Arm::new(Moment::Zeroth, 0, false);
    let mut runs: Vec<_> = (0..200)
        .map(|index| (badness(&site, 200.0, 4, index), run(&site, &arm, 200.0, 4, index).failed))
        .collect();
    runs.sort_by(|a, b| b.0.total_cmp(&a.0));
    let failures = |runs: &[(f64, u64)]| runs.iter().map(|it| it.1).sum::<u64>() as f64;
    let share = failures(&runs[..50]) / failures(&runs);
    assert!(share > 0.4, "the worst quarter has {share} of the failures");
}

/// The law comes back from what deployments did: every mean within a tenth.
#[test]
fn the_law_is_found_again_in_the_events_that_it_made() {
    let truth = Belief::SUB_B;
    let mut histories = ballast_placement::admission::events::Histories::default();
    export(&truth, 20_000, 730.0, 21, |name, at_h, cores| histories.add(name, "", at_h, cores)).unwrap();
    let histories: Vec<_> = histories.until(730.0).into_iter().map(|it| it.1).collect();
    let fitted = ballast_placement::admission::fit::fit(&histories).unwrap().law;

    for (name, found, right) in [
        ("mu", fitted.mu.mean(), truth.mu.mean()),
        ("lambda", fitted.lambda.mean(), truth.lambda.mean()),
        ("sigma", fitted.sigma.mean(), truth.sigma.mean()),
        ("kappa", fitted.kappa, truth.kappa),
        ("delta", fitted.delta, truth.delta),
    ] {
        assert!((found / right - 1.0).abs() < 0.1, "{name}: {found}, {right}; {fitted:?}");
    }
}

/// The events of a run under a policy, played against the same policy: all of them may come, and find the room that they had.
#[test]
fn a_replay_admits_what_the_policy_admitted_and_no_more_than_there_is() {
    use ballast_placement::admission::demand::Threshold;
    use ballast_placement::admission::{Priors, events::EventError};

    let site = Site { law: Belief::SUB_B, capacity: 500.0, arrivals_per_h: 0.3, hours: 2_000.0 };
    let (arm, limit) = (Arm::new(Moment::Zeroth, 0, false), 300.0);
    let mut events = vec![];
    let run = play(&site, &arm, limit, 5, 0, |it| events.push(it));
    let replayed = |capacity: f64, cores: f64| {
        let mut replay = Replay::new(Priors::new(site.law), Threshold::Zeroth { cores }, capacity);
        for it in &events {
            replay.add(&format!("d{}", it.deployment), "", it.at_h, it.cores as f64).unwrap();
        }
        replay.tally()
    };
    let same = replayed(site.capacity, limit);
    assert!(run.admitted > 100 && run.admitted < run.deployments, "{run:?}");
    assert_eq!((same.admitted, same.refused, same.failed_scale_outs), (run.admitted, 0, 0));
    assert_eq!(same.scale_outs, run.scale_outs - run.failed);
    assert!(
        (same.utilisation * same.hours / (run.utilisation * site.hours) - 1.0).abs() < 0.01,
        "{same:?} {run:?}"
    );

    let tight = replayed(200.0, 200.0);
    assert!(tight.refused > 0 && tight.failed_scale_outs > 0 && tight.peak_cores <= 200.0, "{tight:?}");
    assert_eq!((tight.deployments, tight.admitted + tight.refused), (same.deployments, same.deployments));
    assert_eq!(tight.first_refused.len() as u64, tight.refused.min(20));

    // An event that cannot be changes nothing.
    let mut replay = Replay::new(Priors::new(site.law), Threshold::Zeroth { cores: 9.0 }, 9.0);
    replay.add("a", "", 1.0, 2.0).unwrap();
    assert!(matches!(replay.add("a", "", 2.0, -3.0), Err(EventError::TooMany { .. })));
    assert!(matches!(replay.add("a", "", 0.5, 1.0), Err(EventError::OutOfOrder { .. })));
    assert!(matches!(replay.add("b", "", 2.0, f64::NAN), Err(EventError::Cores(_))));
    replay.add("a", "", 3.0, -2.0).unwrap();
    let tally = replay.tally();
    assert_eq!((tally.admitted, tally.deployments, tally.hours, tally.peak_cores), (1, 1, 2.0, 2.0));
    assert!((tally.utilisation - 2.0 / 9.0).abs() < 1e-12);
}
