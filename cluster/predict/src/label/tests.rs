//! What the ensemble learns, and that nothing but rows and seed decides it.

use std::num::NonZeroUsize;

use ballast_usage::week::{DAY, HALF_HOURS, Week};

use super::ensemble::{FOLDS, LearnError, Learnt, apart, out_of_fold};
use super::{Reason, features};
use synthetic::{Draw, series};

#[path = "../../../usage/src/label/tests/synthetic.rs"]
mod synthetic;

const ONE: NonZeroUsize = NonZeroUsize::MIN;

/// Weeks of user-facing kinds and of others, in turn, from this draw on.
fn weeks(count: usize, first: u64) -> (Vec<Week>, Vec<bool>) {
    let kinds = ["diurnal", "white noise", "growth", "8 h", "weak diurnal", "random walk"];
    let one = |n: usize| Week::new(series(kinds[n % 6], &mut Draw::new(first + n as u64)));
    ((0..count).map(one).collect(), (0..count).map(|n| n % 2 == 0).collect())
}

fn rows(weeks: &[Week]) -> Vec<Vec<f32>> {
    weeks.iter().map(|week| features(week).unwrap()).collect()
}

/// The share of pairs of a user-facing week and another in which the former scores higher.
fn area(scores: &[f64], truth: &[bool]) -> f64 {
    let of = |class: bool| {
        let scores = scores.iter().zip(truth).filter(move |(_, t)| **t == class);
        scores.map(|(s, _)| *s).collect::<Vec<_>>()
    };
    let (user_facing, others) = (of(true), of(false));
    let higher = |a: &f64| others.iter().filter(|b| a > b).count();
    let higher: usize = user_facing.iter().map(higher).sum();
    higher as f64 / (user_facing.len() * others.len()) as f64
}

#[test]
fn threads_change_nothing_and_the_seed_does() {
    let (weeks, truth) = weeks(30, 0);
    let rows = rows(&weeks);
    let three = NonZeroUsize::new(3).unwrap();
    let learnt = Learnt::train(&rows, &truth, 7, ONE).unwrap();
    assert_eq!(learnt, Learnt::train(&rows, &truth, 7, three).unwrap());
    assert_eq!(learnt, Learnt::train(&rows, &truth, 7, ONE).unwrap(), "a second time");
    assert_ne!(learnt, Learnt::train(&rows, &truth, 8, ONE).unwrap());
    let scores = out_of_fold(&rows, &truth, 7, ONE).unwrap();
    assert_eq!(scores, out_of_fold(&rows, &truth, 7, three).unwrap());
}

#[test]
fn days_are_learnt_and_recognised_in_other_weeks() {
    let (learn, truth) = weeks(60, 0);
    let learnt = Learnt::train(&rows(&learn), &truth, 1, ONE).unwrap();
    let (others, truth) = weeks(60, 1000);
    let scores: Vec<f64> = others.iter().map(|week| learnt.score(week).unwrap()).collect();
    assert!(scores.iter().all(|s| (0.0..=1.0).contains(s)), "{scores:?}");
    assert!(area(&scores, &truth) > 0.97, "{}", area(&scores, &truth));
    let right = scores.iter().zip(&truth).filter(|(s, t)| (**s >= 0.5) == **t).count();
    assert!(right >= 54, "{right} of 60");
}

#[test]
fn out_of_fold_scores_know_nothing_of_their_own_week() {
    let (weeks, truth) = weeks(60, 0);
    let rows = rows(&weeks);
    let known = area(&out_of_fold(&rows, &truth, 1, ONE).unwrap(), &truth);
    assert!(known > 0.95, "{known}");
    // A coin's truth cannot be learnt: whoever has seen it knows it all the same.
    let mut draw = Draw::new(5);
    let coin: Vec<bool> = truth.iter().map(|_| draw.share() < 0.5).collect();
    let guessed = area(&out_of_fold(&rows, &coin, 1, ONE).unwrap(), &coin);
    assert!((0.2..0.8).contains(&guessed), "{guessed}");
    let learnt = Learnt::train(&rows, &coin, 1, ONE).unwrap();
    let seen: Vec<f64> = rows.iter().map(|row| learnt.score_features(row)).collect();
    assert!(area(&seen, &coin) > 0.99, "{}", area(&seen, &coin));
}

#[test]
fn too_few_of_a_class_are_refused() {
    for (user_facing, other) in [(0, 0), (0, 20), (20, 0), (FOLDS - 1, 20), (20, FOLDS - 1)] {
        let truth: Vec<bool> = (0..user_facing + other).map(|n| n < user_facing).collect();
        let rows = vec![vec![1.0]; truth.len()];
        let text = format!("{user_facing} user-facing and {other} other weeks: allowed are 5 ");
        for error in [
            Learnt::train(&rows, &truth, 1, ONE).unwrap_err(),
            out_of_fold(&rows, &truth, 1, ONE).unwrap_err(),
        ] {
            assert!(matches!(error, LearnError::Few { .. }), "{error:?}");
            assert!(error.to_string().starts_with(&text), "{error}");
        }
    }
    // As few as are allowed.
    let truth: Vec<bool> = (0..2 * FOLDS).map(|n| n < FOLDS).collect();
    let rows: Vec<Vec<f32>> = (0..2 * FOLDS).map(|n| vec![n as f32]).collect();
    assert_eq!(out_of_fold(&rows, &truth, 1, ONE).unwrap().len(), 2 * FOLDS);
}

#[test]
fn rows_that_make_no_table_are_refused() {
    let truth: Vec<bool> = (0..20).map(|n| n < 10).collect();
    let mut ragged = vec![vec![1.0, 2.0]; 20];
    ragged[3].pop();
    for rows in [vec![vec![1.0]; 19], ragged] {
        for error in [
            Learnt::train(&rows, &truth, 1, ONE).unwrap_err(),
            out_of_fold(&rows, &truth, 1, ONE).unwrap_err(),
        ] {
            assert!(matches!(error, LearnError::Uneven { .. }), "{error:?}");
        }
    }
    let infinite = vec![vec![f32::INFINITY]; 20];
    assert!(matches!(Learnt::train(&infinite, &truth, 1, ONE), Err(LearnError::FeatureTable(_))));
}

#[test]
fn what_cannot_be_looked_at_has_no_score() {
    let (weeks, truth) = weeks(12, 0);
    let learnt = Learnt::train(&rows(&weeks), &truth, 1, ONE).unwrap();
    let score = |values| learnt.score(&Week::new(values));
    assert_eq!(score([f64::NAN; HALF_HOURS]), Err(Reason::TooManyGaps));
    assert_eq!(score([4.2; HALF_HOURS]), Err(Reason::Flat));
}

#[test]
fn a_part_has_no_say_in_its_scores_and_thresholds() {
    let (weeks, truth) = weeks(60, 0);
    let rows = rows(&weeks);
    let parts: Vec<usize> = (0..60).map(|n| n % 3).collect();
    let said = apart(&rows, &truth, &parts, 1, ONE).unwrap();
    // The first part turns out to be the other way round: nothing that is said of it changes.
    let turned: Vec<bool> = truth.iter().zip(&parts).map(|(t, part)| *t ^ (*part == 0)).collect();
    let again = apart(&rows, &turned, &parts, 1, ONE).unwrap();
    assert!((0..60).step_by(3).all(|n| said[n].is_some() && said[n] == again[n]));
    assert!((1..60).step_by(3).any(|n| said[n] != again[n]));
    // Without the only user-facing part nothing is learnt, and nothing is said of it.
    let parts: Vec<usize> = truth.iter().map(|t| usize::from(*t)).collect();
    assert!(apart(&rows, &truth, &parts, 1, ONE).unwrap().iter().all(Option::is_none));
}
