//! Labels from CPU use alone: recall and precision on weeks that chose nothing (Table II).

use serde::Serialize;
use serde_json::Value;

use super::{Goal, Part, Report, filled, number, percent};
use ballast_cli::common::text_table::TextTable;

/// The paper's precision in percent, by method, at 99 and at 98 % recall (Table II).
const PAPER: [(&str, [f64; 2]); 3] =
    [("pattern", [76.0, 77.0]), ("acf", [54.0, 56.0]), ("fft", [48.0, 50.0])];

/// Where a model and its threshold came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// As `ballast label` has them, without any of these weeks.
    Shipped,
    /// From other weeks of the same source: five folds.
    Folds,
    Transfer,
    /// From all other kinds of the same source.
    KindLeftOut,
}

/// What one method reaches on one source. Rates are shares, 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MethodRow {
    pub method: &'static str,
    pub origin: Origin,
    /// What was learnt from; the source itself in folds, nothing where it ships.
    pub fitted_on: Option<String>,
    pub scored_on: String,
    pub kind: Option<String>,
    /// The recall that the threshold was chosen for; `None` where it ships.
    pub recall_target: Option<f64>,
    pub weeks: usize,
    pub user_facing: usize,
    /// The share of user-facing weeks that are found; `None` where there are none.
    pub recall: Option<f64>,
    /// The share of found weeks that are user-facing.
    pub precision: Option<f64>,
    /// The share of other weeks that are taken for user-facing.
    pub mistaken: Option<f64>,
}

impl MethodRow {
    /// What these answers reach, each beside the truth.
    pub fn new(
        method: &'static str,
        origin: Origin,
        scored_on: &str,
        answers: impl Iterator<Item = (bool, bool)>,
    ) -> Self {
        let (mut said, mut right, mut weeks, mut user_facing) = (0, 0, 0, 0);
        for (says, is) in answers {
            weeks += 1;
            user_facing += usize::from(is);
            said += usize::from(says);
            right += usize::from(says && is);
        }
        let share = |part: usize, of: usize| (of > 0).then(|| part as f64 / of as f64);
        Self {
            method,
            origin,
            fitted_on: None,
            scored_on: scored_on.to_owned(),
            kind: None,
            recall_target: None,
            weeks,
            user_facing,
            recall: share(right, user_facing),
            precision: share(right, said),
            mistaken: share(said - right, weeks - user_facing),
        }
    }
}

pub fn report(rows: &[MethodRow], options: Value) -> anyhow::Result<Report> {
    let of = |origin| rows.iter().filter(move |row| row.origin == origin);
    let parts = vec![
        Part::Words(filled(include_str!("words/labels.md"), &[])),
        Part::Heading("As it ships".to_owned()),
        Part::Words(filled(include_str!("words/labels-shipped.md"), &[])),
        Part::TextTable(table(of(Origin::Shipped))),
        Part::Heading("At a chosen recall".to_owned()),
        Part::Words(filled(include_str!("words/labels-folds.md"), &[])),
        Part::TextTable(table(of(Origin::Folds))),
        Part::Heading("From one source to another".to_owned()),
        Part::Words(filled(include_str!("words/labels-transfer.md"), &[])),
        Part::TextTable(table(of(Origin::Transfer))),
        Part::Heading("Leave one kind out".to_owned()),
        Part::Words(filled(include_str!("words/labels-kinds.md"), &[])),
        Part::TextTable(by_kind(of(Origin::KindLeftOut))),
    ];

    Ok(Report {
        name: "labels",
        title: "Labels from CPU use alone",
        command: "ballast-lab experiment labels".to_owned(),
        parts,
        goals: goals(rows),
        options,
        rows: serde_json::to_value(rows)?,
    })
}

fn table<'a>(rows: impl Iterator<Item = &'a MethodRow>) -> TextTable {
    let share = |value: Option<f64>| percent(value.unwrap_or(f64::NAN), 1);
    let paper = |row: &MethodRow| {
        let (_, precision) = PAPER.iter().find(|(method, _)| *method == row.method)?;
        let place = [0.99, 0.98].iter().position(|target| Some(*target) == row.recall_target)?;
        Some(number(precision[place], 0))
    };

    TextTable::of(
        3,
        rows,
        &[
            ("method", &|row| row.method.to_owned()),
            ("from", &|row| row.fitted_on.clone().unwrap_or_default()),
            ("scored on", &|row| row.scored_on.clone()),
            ("weeks", &|row| row.weeks.to_string()),
            ("recall target %", &|row| row.recall_target.map_or_else(String::new, |r| percent(r, 0))),
            ("recall %", &|row| share(row.recall)),
            ("precision %", &|row| share(row.precision)),
            ("paper: precision %", &|row| paper(row).unwrap_or_default()),
        ],
    )
}

fn by_kind<'a>(rows: impl Iterator<Item = &'a MethodRow>) -> TextTable {
    let share = |value: Option<f64>| value.map_or_else(String::new, |value| percent(value, 1));
    TextTable::of(
        2,
        rows,
        &[
            ("source", &|row| row.scored_on.clone()),
            ("kind", &|row| row.kind.clone().unwrap_or_default()),
            ("weeks", &|row| row.weeks.to_string()),
            ("user-facing: found %", &|row| share(row.recall)),
            ("others: taken for user-facing %", &|row| share(row.mistaken)),
        ],
    )
}

/// The worst source decides.
fn goals(rows: &[MethodRow]) -> Vec<Goal> {
    let of = |method: &'static str, origin: Origin, target: Option<f64>| {
        let wanted = move |row: &&MethodRow| {
            row.method == method && row.origin == origin && row.recall_target == target
        };
        rows.iter().filter(wanted).collect::<Vec<_>>()
    };
    let at_least = |goal: &str, rows: &[&MethodRow], recall: f64, precision: f64| {
        let worst = |value: fn(&MethodRow) -> Option<f64>| {
            rows.iter().map(|row| value(row).unwrap_or(0.0)).reduce(f64::min)
        };
        let measured = worst(|row| row.precision).zip(worst(|row| row.recall)).map(|(p, r)| {
            let text = format!("{} % at {} %, the worst of each", percent(p, 1), percent(r, 1));
            (text, p >= precision && r >= recall)
        });
        Goal::new(goal, measured)
    };

    let (with, without) =
        (of("pattern", Origin::Shipped, None), of("pattern-without-guard12", Origin::Shipped, None));
    let gains = with.iter().zip(&without).map(|(with, without)| {
        let more =
            |value: fn(&MethodRow) -> Option<f64>| value(with).unwrap_or(0.0) - value(without).unwrap_or(0.0);
        (more(|row| row.precision), more(|row| row.recall))
    });
    let worst = gains.reduce(|a, b| (f64::min(a.0, b.0), f64::min(a.1, b.1)));
    let guard = worst.map(|(precision, recall)| {
        let text = format!(
            "precision {} points, recall {} points, the worst of each",
            percent(precision, 1),
            percent(recall, 1)
        );
        (text, precision >= 0.05 && recall >= -0.01)
    });

    vec![
        Goal::new("guard12: 5 points of precision more, at most 1 point of recall less", guard),
        at_least("pattern as it ships: the paper's precision of 77 % at 98 % recall", &with, 0.98, 0.77),
        at_least(
            "ensemble, folds: precision of 90 % at 99 % recall",
            &of("ensemble", Origin::Folds, Some(0.99)),
            0.99,
            0.9,
        ),
        at_least(
            "ensemble from another source: the paper's precision of 76 % at 99 % recall",
            &of("ensemble", Origin::Transfer, Some(0.99)),
            0.99,
            0.76,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_source_decides() {
        let row = |right: usize, wrong: usize| {
            let answers = (0..100).map(|n| (n < right, true)).chain((0..100).map(|n| (n < wrong, false)));
            MethodRow::new("pattern", Origin::Shipped, "x", answers)
        };
        let verdict = |rows: &[MethodRow]| goals(rows)[1].met;
        assert_eq!(row(98, 10).recall, Some(0.98));
        assert_eq!((row(98, 2).precision, row(98, 2).mistaken), (Some(0.98), Some(0.02)));
        assert_eq!(verdict(&[row(98, 10), row(99, 20)]), Some(true));
        assert_eq!(verdict(&[row(98, 10), row(97, 0)]), Some(false));
        assert_eq!(verdict(&[row(98, 40)]), Some(false));
        // All for user-facing, or none of them, is no success.
        assert_eq!((verdict(&[row(100, 100)]), verdict(&[row(0, 0)])), (Some(false), Some(false)));
        assert_eq!(verdict(&[]), None);
    }
}
