//! Labels from use alone: precision at a chosen recall (Table II).

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::data;
use super::report::{Goal, Part, Report, number};
use super::table::Table;
use crate::common::threads::all_cores;
use crate::label::weeks::{Labelled, PLAIN, threshold, wary_threshold};

/// Recall that thresholds are chosen for.
const TARGETS: [f64; 2] = [0.99, 0.98];
/// The paper's precision in percent, by method and target (Table II).
const PAPER: [(&str, [f64; 2]); 3] =
    [("pattern", [76.0, 77.0]), ("acf", [54.0, 56.0]), ("fft", [48.0, 50.0])];
/// The data set, under `$BALLAST_DATA`.
const DATA: &str = "criticality_synthetic/labelled_dev.csv.zst";

/// What is scored.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Choice {
    /// Labelled weeks, `id,label,u0…u239` [default: the made set under $BALLAST_DATA]
    #[arg(long, value_name = "FILE", alias = "data")]
    input: Option<PathBuf>,
    /// Learn, and choose every threshold, from these weeks alone; --input only scores. Without it the ensemble
    /// is cross-validated, and thresholds are those of --input
    #[arg(long, value_name = "FILE")]
    fit_on: Option<PathBuf>,
}

impl Choice {
    fn file(&self) -> PathBuf {
        self.input.clone().unwrap_or_else(|| data::folder().join(DATA))
    }

    /// Whether there is anything to score, for those who run all experiments.
    pub(super) fn missing(&self) -> Option<PathBuf> {
        Some(self.file()).filter(|file| !file.exists())
    }
}

/// What one method reaches for one target. Rates are shares, 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    method: &'static str,
    recall_target: f64,
    recall: f64,
    precision: f64,
    /// Scores as far as this count as user-facing: up to it, of the ensemble from it on.
    threshold: f64,
}

pub(super) fn report(choice: &Choice) -> anyhow::Result<Report> {
    let data = Labelled::read(&choice.file())?;
    let fit = choice.fit_on.as_deref().map(Labelled::read).transpose()?;
    let rows = rows(&data, fit.as_ref())?;
    let mut table = Table::new(
        1,
        &["method", "recall target %", "recall %", "precision %", "threshold", "paper: precision %"],
    );

    for row in &rows {
        let paper = PAPER.iter().find(|(method, _)| *method == row.method);
        let target = TARGETS.iter().position(|t| *t == row.recall_target);
        let paper = paper.zip(target).map(|((_, precision), n)| number(precision[n], 0));
        table.row(vec![
            row.method.to_owned(),
            number(100.0 * row.recall_target, 0),
            number(100.0 * row.recall, 1),
            number(100.0 * row.precision, 1),
            number(row.threshold, 4),
            paper.unwrap_or_default(),
        ]);
    }

    let best = rows.iter().find(|r| r.method == "ensemble" && r.recall_target == TARGETS[0]);
    let measured = best.map(|r| {
        let text = format!("{} % at {} %", number(100.0 * r.precision, 1), number(100.0 * r.recall, 1));
        (text, r.precision >= 0.9 && r.recall >= TARGETS[0] - 1e-9)
    });

    let how = match &fit {
        Some(_) => "The ensemble and every threshold come from other labelled weeks (--fit-on).",
        None => {
            "The ensemble's scores are those of models that did not learn from the scored week (five folds); \
             thresholds are the tightest that reach the target."
        }
    };

    let words = format!(
        "{} weeks, {} of them user-facing or possibly so. {how} The paper's figures are of 840 other workloads.",
        data.truth.len(),
        data.truth.iter().filter(|t| **t).count(),
    );

    Ok(Report {
        name: "labels",
        title: "Labels from CPU use alone",
        command: "ballast experiment labels".to_owned(),
        parts: vec![Part::Words(words), Part::Table(table)],
        goals: vec![Goal::new("ensemble: precision of 90 % at 99 % recall", measured)],
        options: serde_json::json!({ "data": choice.file(), "fit_on": choice.fit_on }),
        rows: serde_json::to_value(rows)?,
    })
}

fn rows(data: &Labelled, fit: Option<&Labelled>) -> anyhow::Result<Vec<Row>> {
    let threads = all_cores();
    let mut rows = Vec::new();
    for (method, score) in PLAIN {
        let scores = data.scores(score);
        let (from, truth) = match fit {
            Some(fit) => (&fit.scores(score), &fit.truth),
            None => (&scores, &data.truth),
        };

        // Larger means user-facing inside, smaller in the paper.
        rows.extend(TARGETS.map(|target| {
            let limit = threshold(from, truth, target);
            Row { threshold: -limit, ..row(method, target, &scores, &data.truth, limit) }
        }));
    }

    let (scores, limits) = match fit {
        Some(fit) => {
            let known = fit.out_of_fold(threads)?;
            let limits = TARGETS.map(|target| wary_threshold(&known, &fit.truth, target));
            (data.scored_by(&fit.train(threads)?), limits)
        }
        None => {
            let scores = data.out_of_fold(threads)?;
            let limits = TARGETS.map(|target| threshold(&scores, &data.truth, target));
            (scores, limits)
        }
    };

    for (target, limit) in TARGETS.into_iter().zip(limits) {
        rows.push(row("ensemble", target, &scores, &data.truth, limit));
    }
    Ok(rows)
}

fn row(method: &'static str, target: f64, scores: &[f64], truth: &[bool], limit: f64) -> Row {
    let [mut said, mut right, mut all] = [0.0; 3];
    for (score, truth) in scores.iter().zip(truth) {
        let (yes, truth) = (f64::from(u8::from(*score >= limit)), f64::from(u8::from(*truth)));
        said += yes;
        right += yes * truth;
        all += truth;
    }
    Row { method, recall_target: target, recall: right / all, precision: right / said, threshold: limit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_reach_their_recall_and_no_more() {
        let scores: Vec<f64> = (0..1000).map(f64::from).collect();
        let truth: Vec<bool> = (0..1000).map(|n| n >= 500).collect();
        let limit = threshold(&scores, &truth, 0.99);
        assert_eq!(limit, 505.0);
        let found = row("pattern", 0.99, &scores, &truth, limit);
        assert_eq!((found.recall, found.precision), (0.99, 1.0));
        let wary = wary_threshold(&scores, &truth, 0.99);
        assert!((500.0..505.0).contains(&wary), "{wary}");
        assert_eq!(row("pattern", 0.99, &scores, &truth, 0.0).precision, 0.5);
    }
}
