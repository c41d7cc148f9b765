//! Interruptions and features: what they find in synthetic weeks, and that odd ones do no harm.

use super::super::features;
use super::super::mask::Masked;
use super::synthetic::{Draw, series};
use super::{DAY, GOLDEN, HALF_HOURS, Week};

fn diurnal() -> [f64; HALF_HOURS] {
    series("diurnal", &mut Draw::new(11))
}

fn taken(masked: &Masked) -> Vec<usize> {
    (0..HALF_HOURS).filter(|i| masked.values[*i].is_nan()).collect()
}

#[test]
fn a_constant_stretch_is_taken_out_and_no_more_than_its_edges() {
    let mut values = diurnal();
    let before = taken(&Masked::new(&values));
    assert!(before.len() < HALF_HOURS / 20, "{before:?}");
    values[100..120].fill(17.0);
    let masked = Masked::new(&values);
    let taken: Vec<usize> = taken(&masked).into_iter().filter(|i| !before.contains(i)).collect();
    assert!((102..118).all(|i| taken.contains(&i)), "{taken:?}");
    assert!(taken.iter().all(|i| (97..123).contains(i)), "{taken:?}");
    let share = 20.0 / HALF_HOURS as f64;
    assert!((masked.still - share).abs() < 0.02, "{}", masked.still);
    // One that is too short may be chance.
    let mut values = diurnal();
    values[100..105].fill(17.0);
    assert_eq!(Masked::new(&values).still, 0.0);
}

#[test]
fn random_load_in_a_quiet_week_is_taken_out() {
    let mut draw = Draw::new(2);
    let mut values: [f64; HALF_HOURS] = core::array::from_fn(|i| {
        let angle = core::f64::consts::TAU * i as f64 / DAY as f64;
        30.0 + 15.0 * libm::sin(angle) + draw.normal()
    });
    for value in &mut values[60..84] {
        *value = 100.0 * draw.share();
    }
    let masked = Masked::new(&values);
    let taken = taken(&masked);
    assert!(taken.iter().filter(|i| (60..84).contains(*i)).count() >= 22, "{taken:?}");
    assert!(taken.iter().all(|i| (55..89).contains(i)), "{taken:?}");
    assert!(masked.bursts > 0.08 && masked.still == 0.0, "{masked:?}");
}

#[test]
fn what_is_left_is_as_it_was() {
    for (kind, ..) in GOLDEN {
        let mut values = series(kind, &mut Draw::new(4));
        values[30..40].fill(f64::NAN);
        values[50..90].fill(3.0);
        let masked = Masked::new(&values);
        let left = masked.values.iter().zip(&values).filter(|(v, _)| !v.is_nan());
        assert!(left.clone().count() >= HALF_HOURS / 4, "{kind}: {}", left.count());
        assert!(left.clone().all(|(left, was)| left == was), "{kind}");
    }
}

/// Weeks that a labeller has to look at, however odd.
fn odd() -> Vec<(&'static str, Week)> {
    let change = |change: fn(&mut [f64; HALF_HOURS])| {
        let mut values = diurnal();
        change(&mut values);
        Week::new(values)
    };

    vec![
        ("a constant day", change(|v| v[48..96].fill(20.0))),
        ("four constant days", change(|v| v[48..].fill(20.0))),
        ("one value that differs", change(|v| v[1..].fill(5.0))),
        (
            "idle but for an hour",
            change(|v| {
                v[..100].fill(0.0);
                v[102..].fill(0.0);
            }),
        ),
        ("a square wave", change(|v| (0..HALF_HOURS).for_each(|i| v[i] = f64::from(i as u32 / 24 % 2)))),
        ("every fifth missing", change(|v| v.iter_mut().step_by(5).for_each(|v| *v = f64::NAN))),
        (
            "a morning missing every day",
            change(|v| (0..HALF_HOURS).filter(|i| i % DAY < 9).for_each(|i| v[i] = f64::NAN)),
        ),
        ("a half day missing", change(|v| v[..24].fill(f64::NAN))),
        ("the end missing", change(|v| v[216..].fill(f64::NAN))),
        (
            "missing and constant",
            change(|v| {
                v[20..40].fill(f64::NAN);
                v[40..140].fill(9.0);
            }),
        ),
        ("the largest that is believed", change(|v| v.iter_mut().step_by(7).for_each(|v| *v = 1e6))),
        ("next to nothing", change(|v| v.iter_mut().for_each(|v| *v *= 1e-9))),
    ]
}

#[test]
fn odd_weeks_have_features() {
    let width = features(&Week::new(diurnal())).unwrap().len();
    for (what, week) in odd() {
        let row = features(&week).unwrap();
        assert_eq!(row.len(), width, "{what}");
        assert!(row.iter().all(|v| v.is_nan() || v.abs() <= 1e6), "{what}: {row:?}");
        let unknown = row.iter().filter(|v| v.is_nan()).count();
        assert!(unknown <= width / 2, "{what}: {unknown} of {width} have no value");
    }
    // All but the last, which is constant.
    for (kind, ..) in &GOLDEN[..GOLDEN.len() - 1] {
        let row = features(&Week::new(series(kind, &mut Draw::new(9)))).unwrap();
        assert!(row.iter().all(|v| v.is_finite() && v.abs() <= 1e6), "{kind}: {row:?}");
    }
}

#[test]
fn only_the_mean_has_a_unit() {
    for kind in ["diurnal", "white noise", "nightly batch", "growth"] {
        // Halves, so that each operation rounds as before.
        let values = series(kind, &mut Draw::new(6));
        let (row, half) = (features(&Week::new(values)), features(&Week::new(values.map(|v| v / 2.0))));
        let (row, half) = (row.unwrap(), half.unwrap());
        let differ: Vec<usize> = (0..row.len()).filter(|n| row[*n] != half[*n]).collect();
        assert_eq!(differ.len(), 1, "{kind}: {differ:?}");
        assert!((row[differ[0]] - 2.0 * half[differ[0]]).abs() < 1e-4, "{kind}");
    }
}
