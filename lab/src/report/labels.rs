//! Labels from CPU use alone: precision at a chosen recall (Table II).

use serde::Serialize;
use serde_json::Value;

use super::table::TextTable;
use super::{Goal, Part, Report, number};

/// Recall that thresholds are chosen for.
pub const TARGETS: [f64; 2] = [0.99, 0.98];
/// The paper's precision in percent, by method and target (Table II).
const PAPER: [(&str, [f64; 2]); 3] =
    [("pattern", [76.0, 77.0]), ("acf", [54.0, 56.0]), ("fft", [48.0, 50.0])];
/// What one method reaches for one target. Rates are shares, 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MethodRow {
    pub method: &'static str,
    /// The recall that the threshold is chosen for.
    pub recall_target: f64,
    /// The share of user-facing weeks that are found.
    pub recall: f64,
    /// The share of found weeks that are user-facing.
    pub precision: f64,
    /// Scores as far as this count as user-facing: up to it, of the ensemble from it on.
    pub threshold: f64,
}

/// The report on these rows: of how many weeks, how many of them user-facing, and whether thresholds come
/// from other weeks.
pub fn report(
    rows: &[MethodRow],
    (weeks, user_facing): (usize, usize),
    fitted_elsewhere: bool,
    options: Value,
) -> anyhow::Result<Report> {
    let paper = |r: &&MethodRow| {
        let (_, precision) = PAPER.iter().find(|(method, _)| *method == r.method)?;
        let target = TARGETS.iter().position(|t| *t == r.recall_target)?;
        Some(number(precision[target], 0))
    };

    let table = TextTable::of(
        1,
        rows,
        &[
            ("method", &|r| r.method.to_owned()),
            ("recall target %", &|r| number(100.0 * r.recall_target, 0)),
            ("recall %", &|r| number(100.0 * r.recall, 1)),
            ("precision %", &|r| number(100.0 * r.precision, 1)),
            ("threshold", &|r| number(r.threshold, 4)),
            ("paper: precision %", &|r| paper(r).unwrap_or_default()),
        ],
    );

    let best = rows.iter().find(|r| r.method == "ensemble" && r.recall_target == TARGETS[0]);
    let measured = best.map(|r| {
        let text = format!("{} % at {} %", number(100.0 * r.precision, 1), number(100.0 * r.recall, 1));
        (text, r.precision >= 0.9 && r.recall >= TARGETS[0] - 1e-9)
    });

    let how = match fitted_elsewhere {
        true => "The ensemble and every threshold come from other labelled weeks (--fit-on).",
        false => {
            "The ensemble's scores are those of models that did not learn from the scored week (five folds); \
             thresholds are the tightest that reach the target."
        }
    };

    let words = format!(
        "{weeks} weeks, {user_facing} of them user-facing or possibly so. {how} The paper's figures are of \
         840 other workloads."
    );

    Ok(Report {
        name: "labels",
        title: "Labels from CPU use alone",
        command: "ballast experiment labels".to_owned(),
        parts: vec![Part::Words(words), Part::TextTable(table)],
        goals: vec![Goal::new("ensemble: precision of 90 % at 99 % recall", measured)],
        options,
        rows: serde_json::to_value(rows)?,
    })
}

impl MethodRow {
    /// What scores from `limit` on reach.
    pub fn new(method: &'static str, target: f64, scores: &[f64], truth: &[bool], limit: f64) -> Self {
        let [mut said, mut right, mut all] = [0.0; 3];
        for (score, truth) in scores.iter().zip(truth) {
            let (yes, truth) = (f64::from(u8::from(*score >= limit)), f64::from(u8::from(*truth)));
            said += yes;
            right += yes * truth;
            all += truth;
        }
        Self { method, recall_target: target, recall: right / all, precision: right / said, threshold: limit }
    }
}
