//! Scores of small examples that a person can compute.

use super::*;

/// Everybody lives until the end of a bin, and nobody longer.
fn until(bin: usize) -> SurvivalCurve {
    let mut hazards = [0.0; BINS];
    hazards[bin] = 1.0;
    SurvivalCurve::from_hazards(&hazards)
}

/// Half ends in the first bin, half lives on.
fn half() -> SurvivalCurve {
    let mut hazards = [0.0; BINS];
    hazards[0] = 0.5;
    SurvivalCurve::from_hazards(&hazards)
}

fn vm(curve: &SurvivalCurve, time_s: f32, ended: bool) -> ScoredVm<'_> {
    let span = LifetimeSpan { from_s: time_s, to_s: ended.then_some(time_s) };
    ScoredVm { curve, span, seen_s: 1e7, model_age_s: 0.0 }
}

#[test]
fn likelihoods_of_ends_and_of_what_still_runs() {
    let curve = half();
    let span = |from_s, to_s| LifetimeSpan { from_s, to_s };
    for (span, chance) in [
        (span(3.0, Some(3.0)), 0.5),
        (span(0.0, Some(8.0)), 0.25),
        (span(8.0, Some(16.0)), 0.25),
        (span(8.0, None), 0.75),
        (span(1e5, None), 0.5),
        (span(1e5, Some(1e5)), LEAST),
        (span(1e9, Some(1e9)), LEAST),
    ] {
        let found = log_likelihood(&curve, span);
        assert!((found - libm::log(chance)).abs() < 1e-6, "{span:?}: {found}");
    }
}

#[test]
fn a_brier_score_of_a_coin_and_of_an_oracle() {
    // At the middle of the time the first has ended, at every time the coin says one half.
    let (coin, first, second) = (half(), until(3), until(40));
    let coins = [vm(&coin, 60.0, true), vm(&coin, 34_000.0, true)];
    let oracle = [vm(&first, 60.0, true), vm(&second, 34_000.0, true)];
    let scores = LifetimeScores::of(&coins);
    assert!((scores.brier - 0.25).abs() < 1e-6 && (scores.brier_log - 0.25).abs() < 0.02, "{scores:?}");
    assert!(LifetimeScores::of(&oracle).brier < 0.01);
    assert_eq!((scores.c_index, LifetimeScores::of(&oracle).c_index), (0.5, 1.0));
}

#[test]
fn whoever_is_lost_from_sight_is_replaced_by_the_others() {
    // One of four is lost at 1,000 s. After that the two that are left count 4/3 each... so that four are counted.
    let coin = half();
    let vms = [
        vm(&coin, 100.0, true),
        vm(&coin, 1_000.0, false),
        vm(&coin, 2_000.0, true),
        vm(&coin, 3_000.0, true),
    ];
    let brier = Brier::of(&vms);
    assert!((brier.at(&vms, 1_500.0) - 0.25 * (1.0 + 1.5 + 1.5) / 4.0).abs() < 1e-6);
    assert!((brier.at(&vms, 2_500.0) - 0.25 * (1.0 + 1.5 + 1.5) / 4.0).abs() < 1e-6);
    assert_eq!(brier.until_s, 3_000.0);
}

#[test]
fn the_error_in_decades_is_of_the_median() {
    // The median is that of the bin from 32,768 to 40,960 s: its middle.
    let curve = until(40);
    let found = LifetimeScores::of(&[vm(&curve, 3_686.4, true), vm(&curve, 1e9, false)]).log10_error;
    assert!((found - 1.0).abs() < 1e-3, "{found}");
}

#[test]
fn long_lived_vms_are_told_and_told_again() {
    let (short, long, unsure) = (until(30), until(71), half());
    let day = LONG_S[1];
    // Truly long: the first, second and fourth. Said to be long: the first, the third, and the fourth by a half.
    let vms = [
        vm(&long, 2.0 * day, false),
        vm(&short, 2.0 * day, true),
        vm(&long, 600.0, true),
        vm(&unsure, 3.0 * day, true),
        // Was not to be seen for a day: nobody knows.
        ScoredVm { seen_s: day - 1.0, ..vm(&long, 2.0 * day, false) },
    ];
    let scores = LongScores::of(&vms, day);
    assert_eq!((scores.vms, scores.precision, scores.recall), (4, 2.0 / 3.0, 2.0 / 3.0));
    assert!((scores.f1 - 2.0 / 3.0).abs() < 1e-12);
    // Two of three are found with the three likeliest, not 70 %: the fourth is needed.
    assert_eq!(scores.precision_at_recall_70, 0.75);
    // Whoever has lived for a good while is no longer said to be short, and the third one was always said to be long.
    assert_eq!(scores.f1_by_share.len(), 8);
    assert_eq!((scores.f1_by_share[0], scores.f1_by_share[7]), (scores.f1, 6.0 / 7.0));
    assert!(LongScores::of(&[], day).f1.is_nan());
}

#[test]
fn calibrated_curves_have_a_tenth_in_each_tenth() {
    // A linear fall over one bin: an end at each tenth of it.
    let mut hazards = [0.0; BINS];
    hazards[0] = 1.0 - 1e-5;
    let curve = SurvivalCurve::from_hazards(&hazards);
    let between = |n: f32| LifetimeSpan { from_s: n * 1.6, to_s: Some((n + 1.0) * 1.6) };
    let vms: Vec<_> =
        (0..10_u8).map(|n| ScoredVm { span: between(n.into()), ..vm(&curve, 0.0, true) }).collect();
    assert!(calibration(&vms).1 < 0.01);
    // All end at once: nine of ten would have to be elsewhere.
    let at_once = vec![vms[0]; 10];
    assert!((calibration(&at_once).1 - 0.9).abs() < 0.01);
    // Who runs since the start may end in any tenth.
    let running = [vm(&curve, 0.0, false)];
    assert!(calibration(&running).1 < 1e-6);
}

#[test]
fn a_gain_counts_groups_not_vms() {
    let (mean, error) = gain(&[1.0, 1.0, 3.0, 3.0], &[0.0; 4], &[0, 0, 1, 1]);
    assert_eq!(mean, 2.0);
    // Two groups of sum -2 and +2 about the mean.
    assert!((error - 8.0_f64.sqrt() / 4.0).abs() < 1e-12);
}

#[test]
fn of_nothing_nothing_is_said() {
    let scores = LifetimeScores::of(&[]);
    assert!(scores.log_loss.is_nan() && scores.brier.is_nan() && scores.c_index.is_nan());
}

#[test]
fn the_age_of_the_model_parts_the_hold_out() {
    let curve = half();
    let vms: Vec<_> =
        (0..8_u8).map(|n| ScoredVm { model_age_s: f32::from(n) * 10.0, ..vm(&curve, 5.0, true) }).collect();
    let parts: Vec<_> = by_model_age(&vms).iter().map(|part| (part.until_age_s, part.vms)).collect();
    assert_eq!(parts, [(17.5, 2), (35.0, 2), (52.5, 2)]);
}
