//! Golden values: synthetic series with known answers, and an independent implementation's.

mod features;
mod synthetic;

use super::*;
use crate::week::{DAY, HALF_HOURS, Week};
use synthetic::{Draw, series};

/// Kind, 5/50/95 % of Compare8, share labelled user-facing, median of Compare12; over 200 draws.
const GOLDEN: [(&str, [f64; 3], f64, f64); 13] = [
    ("white noise", [0.72, 0.78, 0.84], 0.06, 0.81),
    ("diurnal", [0.26, 0.30, 0.33], 1.0, 0.26),
    ("weak diurnal", [0.61, 0.68, 0.76], 0.81, 0.70),
    ("one of five days random", [0.28, 0.32, 0.36], 1.0, 0.32),
    ("growth", [0.25, 0.27, 0.31], 1.0, 0.24),
    ("8 h", [0.73, 0.78, 0.85], 0.02, 0.21),
    ("4 h", [0.73, 0.78, 0.85], 0.04, 0.81),
    ("1 h", [0.73, 0.78, 0.85], 0.08, 0.81),
    ("6 h", [0.22, 0.25, 0.28], 1.0, 0.81),
    ("12 h", [0.22, 0.25, 0.28], 1.0, 0.81),
    ("nightly batch", [0.62, 0.68, 0.73], 0.87, 0.60),
    ("random walk", [0.72, 0.86, 0.94], 0.06, 0.87),
    ("constant", [1.0, 1.0, 1.0], 0.0, 1.0),
];

fn labels(kind: &str, options: PatternOptions) -> Vec<Label> {
    let pattern = Pattern::new(options);
    (0..200).map(|seed| pattern.label(&Week::new(series(kind, &mut Draw::new(seed))))).collect()
}

fn share_user_facing(labels: &[Label]) -> f64 {
    labels.iter().filter(|l| l.user_facing).count() as f64 / labels.len() as f64
}

/// The 5, 50 and 95 % quantiles.
fn quantiles(values: impl Iterator<Item = Option<f64>>) -> [f64; 3] {
    let mut values: Vec<f64> = values.map(Option::unwrap).collect();
    values.sort_by(f64::total_cmp);
    [10, 100, 190].map(|n| values[n])
}

#[test]
fn synthetic_series_are_where_the_golden_table_has_them() {
    for (kind, compare8, share, compare12) in GOLDEN {
        // The paper's rule alone.
        let labels = labels(kind, PatternOptions { guard12: false, ..PatternOptions::default() });
        let found = quantiles(labels.iter().map(|l| l.compare8));
        for (found, golden) in found.iter().zip(compare8) {
            assert!((found - golden).abs() < 0.035, "{kind}: {found:.3} for {golden}");
        }
        let found = share_user_facing(&labels);
        assert!((found - share).abs() < 0.10, "{kind}: {found:.3} user-facing for {share}");
        let [_, found, _] = quantiles(labels.iter().map(|l| l.compare12));
        assert!((found - compare12).abs() < 0.055, "{kind}: {found:.3} for {compare12}");
    }
}

#[test]
fn the_guard_rejects_periods_of_6_and_12_hours_and_keeps_days() {
    let options = PatternOptions { guard12: true, ..PatternOptions::default() };
    for (kind, most, least) in
        [("6 h", 0.3, 0.0), ("12 h", 0.3, 0.0), ("diurnal", 1.0, 1.0), ("growth", 1.0, 1.0)]
    {
        let labels = labels(kind, options);
        let share = share_user_facing(&labels);
        assert!((least..=most).contains(&share), "{kind}: {share}");
        let rejected = labels.iter().filter(|l| l.reason == Reason::HalfDaily).count();
        assert_eq!(rejected, ((1.0 - share) * 200.0).round() as usize, "{kind}");
    }
}

#[test]
fn scores_are_those_of_the_reference() {
    let mut rows = 0;
    for line in include_str!("tests/golden.csv").lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let first_day = match cells[0] {
            "own" => FirstDay::Own,
            "drop" => FirstDay::Drop,
            _ => FirstDay::WarmUp,
        };

        let value = |cell: &&str| if cell.is_empty() { f64::NAN } else { cell.parse().unwrap() };
        let values: Vec<f64> = cells[5..].iter().map(value).collect();
        let week =
            Week::new(values[DAY..].try_into().unwrap()).with_warm_up(values[..DAY].try_into().unwrap());
        let series = Series::new(&week, first_day).unwrap();
        let compare = Compare::of_series(&series);
        let found =
            [compare.compare8, compare.compare12, autocorrelation_score(&series), fourier_score(&series)];

        for (found, golden) in found.iter().zip(cells[1..5].iter().map(value)) {
            assert!((found - golden).abs() <= 1e-9 * golden.max(1.0), "{found} for {golden}: {}", cells[0]);
        }

        rows += 1;
    }

    assert_eq!(rows, 18);
}

#[test]
fn dividing_by_the_standard_deviation_changes_no_ratio() {
    for kind in ["white noise", "diurnal", "random walk"] {
        let week = Week::new(series(kind, &mut Draw::new(3)));
        let series = Series::new(&week, FirstDay::Own).unwrap();
        let plain = series.values().map(|v| v * series.deviation());
        let fit = |period| pattern::template_deviation(&plain, period, 0.2);
        let compare = Compare::of_series(&series);
        assert!((fit(48) / fit(16) - compare.compare8).abs() < 1e-12, "{kind}");
        assert!((fit(48) / fit(24) - compare.compare12).abs() < 1e-12, "{kind}");
    }
}

#[test]
fn what_cannot_be_told_is_user_facing() {
    let mut values = series("white noise", &mut Draw::new(1));
    let label = |values: &[f64; HALF_HOURS]| Pattern::default().label(&Week::new(*values));
    values[..48].iter_mut().step_by(2).for_each(|v| *v = f64::NAN);
    values[100..124].fill(-1.0);
    assert_ne!(label(&values).reason, Reason::TooManyGaps, "48 half hours may be missing");
    values[200] = f64::INFINITY;
    assert_eq!(label(&values), Label::unknown(Reason::TooManyGaps));
    let mut values = series("white noise", &mut Draw::new(1));
    values[48..73].fill(1e300);
    assert_eq!(label(&values), Label::unknown(Reason::TooManyGaps), "one day with more than half missing");

    assert_eq!(label(&[f64::NAN; HALF_HOURS]), Label::unknown(Reason::TooManyGaps));

    // Two gaps that leave a value without any mean before it.
    let mut values = series("white noise", &mut Draw::new(1));
    values[72..120].fill(f64::NAN);
    assert!(label(&values).compare8.unwrap().is_finite());
}

#[test]
fn flat_series_are_not_user_facing_unless_asked_for() {
    for flat in [0.0, 0.05, 3.3, 100.0] {
        let week = Week::new([flat; HALF_HOURS]);
        let expected =
            Label { compare8: Some(1.0), compare12: Some(1.0), user_facing: false, reason: Reason::Flat };
        assert_eq!(Pattern::default().label(&week), expected);
        let options = PatternOptions { flat_user_facing: true, ..PatternOptions::default() };
        assert_eq!(Pattern::new(options).label(&week), Label { user_facing: true, ..expected });
    }
    // Templates that both fit but for a few values: neither is better.
    let mut values = [5.0; HALF_HOURS];
    values[130] = 80.0;
    let options = PatternOptions { first_day: FirstDay::Drop, ..PatternOptions::default() };
    assert!(!Pattern::new(options).label(&Week::new(values)).user_facing);
}

#[test]
fn reasons_have_stable_names() {
    let names: Vec<&str> = Reason::ALL.iter().map(|r| r.as_str()).collect();
    assert_eq!(names, ["daily", "not-daily", "half-daily", "flat", "too-short", "too-many-gaps"]);
    for reason in Reason::ALL {
        assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
    }
}
