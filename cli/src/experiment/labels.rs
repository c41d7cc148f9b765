//! `ballast experiment labels`: labels from use alone, precision at a chosen recall (Table II).

use std::path::PathBuf;

use ballast_lab::report::Report;
use ballast_lab::report::labels::{self, MethodRow, TARGETS};
use clap::Args;

use super::data;
use crate::common::labelled::{Labelled, PLAIN, threshold, wary_threshold};
use crate::common::threads::all_cores;

/// The data set, under `$BALLAST_DATA`.
const DATA: &str = "criticality_synthetic/labelled_dev.csv.zst";

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Choice {
    /// Labelled weeks, `id,label,u0…u239` [default: the synthetic set under $BALLAST_DATA]
    #[arg(long, value_name = "FILE", alias = "data")]
    input: Option<PathBuf>,
    /// Learn, and choose every threshold, from these weeks alone; --input only scores. Without it the
    /// ensemble is cross-validated, and thresholds are those of --input
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

pub(super) fn report(choice: &Choice) -> anyhow::Result<Report> {
    let data = Labelled::read(&choice.file())?;
    let fit = choice.fit_on.as_deref().map(Labelled::read).transpose()?;
    let rows = rows(&data, fit.as_ref())?;
    let user_facing = data.truth.iter().filter(|t| **t).count();
    let options = serde_json::json!({ "data": choice.file(), "fit_on": choice.fit_on });

    labels::report(&rows, (data.truth.len(), user_facing), fit.is_some(), options)
}

fn rows(data: &Labelled, fit: Option<&Labelled>) -> anyhow::Result<Vec<MethodRow>> {
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
            MethodRow { threshold: -limit, ..MethodRow::new(method, target, &scores, &data.truth, limit) }
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
        rows.push(MethodRow::new("ensemble", target, &scores, &data.truth, limit));
    }
    Ok(rows)
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
        let found = MethodRow::new("pattern", 0.99, &scores, &truth, limit);
        assert_eq!((found.recall, found.precision), (0.99, 1.0));
        let wary = wary_threshold(&scores, &truth, 0.99);
        assert!((500.0..505.0).contains(&wary), "{wary}");
        assert_eq!(MethodRow::new("pattern", 0.99, &scores, &truth, 0.0).precision, 0.5);
    }
}
