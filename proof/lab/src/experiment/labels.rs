//! `ballast-lab experiment labels`: labels from use alone, on weeks that chose nothing (Table II).

use std::num::NonZeroUsize;
use std::path::PathBuf;

use ballast_lab::report::Report;
use ballast_lab::report::labels::{self, MethodRow, Origin};
use ballast_predict::label::ensemble::{FOLDS, TARGETS, threshold, wary_threshold};
use ballast_predict::label::generate::Generator;
use ballast_predict::label::{Pattern, PatternOptions};
use ballast_types::SplitMix64;
use clap::Args;

use super::{Setting, data};
use ballast_cli::common::labelled::{ACF, FFT, Labelled, PLAIN};

/// The data set, under `$BALLAST_DATA`.
const DATA: &str = "criticality_synthetic/labelled_dev.csv.zst";

#[derive(Args, Clone, Debug)]
pub(crate) struct Choice {
    /// Labelled weeks, `id,label,u0…u239`, beside those of the two generators [default: the synthetic set
    /// under $BALLAST_DATA where it is there]
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Further labelled weeks: an ensemble learns from these alone, and all others score it
    #[arg(long, value_name = "FILE")]
    fit_on: Option<PathBuf>,
    /// Weeks of every kind that the generators draw
    #[arg(long, value_name = "N", default_value_t = 60,
        value_parser = clap::value_parser!(u16).range(10..=1000))]
    each: u16,
}

/// Labelled weeks, and what they are called.
struct Source {
    name: String,
    weeks: Labelled,
    /// Whether the thresholds of `acf` and `fft` that ship come from them.
    chose: bool,
}

pub(super) fn report(choice: &Choice, setting: &Setting) -> anyhow::Result<Report> {
    let usual = data::folder().join(DATA);
    let file = choice.input.clone().or_else(|| usual.exists().then(|| usual.clone()));
    let mut sources = Vec::new();
    if let Some(file) = &file {
        let chose = file.file_name() == usual.file_name();
        sources.push(Source { name: "labelled-file".to_owned(), weeks: Labelled::read(file)?, chose });
    }
    for generator in Generator::ALL {
        let weeks = Labelled::drawn(generator, usize::from(choice.each));
        sources.push(Source { name: generator.name().to_owned(), weeks, chose: false });
    }

    let threads = setting.threads;
    let mut rows = Vec::new();
    for source in &sources {
        shipped(source, &mut rows);
        folds(source, threads, &mut rows)?;
        kinds(source, threads, &mut rows)?;
    }
    for from in &sources {
        transfer(from, &sources, threads, &mut rows)?;
    }
    if let Some(file) = &choice.fit_on {
        let fit_on = Source { name: file.display().to_string(), weeks: Labelled::read(file)?, chose: false };
        transfer(&fit_on, &sources, threads, &mut rows)?;
    }

    let options = serde_json::json!({ "data": file, "fit_on": choice.fit_on, "each": choice.each });
    labels::report(&rows, options)
}

/// What `ballast label` says of them with no option but the method.
fn shipped(source: &Source, rows: &mut Vec<MethodRow>) {
    let Source { name, weeks, chose } = source;
    let mut add = |method, says: &dyn Fn(usize) -> bool| {
        let answers = weeks.truth.iter().enumerate().map(|(n, is)| (says(n), *is));
        rows.push(MethodRow::new(method, Origin::Shipped, name, answers));
    };
    for (method, guard12) in [("pattern", true), ("pattern-without-guard12", false)] {
        let pattern = Pattern::new(PatternOptions { guard12, ..PatternOptions::default() });
        add(method, &|n| pattern.label(&weeks.weeks()[n]).user_facing);
    }
    for ((method, score), threshold) in PLAIN.into_iter().skip(1).zip([ACF, FFT]).filter(|_| !chose) {
        let scores = weeks.scores(score);
        add(method, &|n| scores[n] > -threshold);
    }
}

/// Every method at a chosen recall, each week by what others of the source chose.
fn folds(source: &Source, threads: NonZeroUsize, rows: &mut Vec<MethodRow>) -> anyhow::Result<()> {
    let Source { name, weeks, .. } = source;
    let truth = &weeks.truth;
    let parts: Vec<usize> =
        (0..truth.len()).map(|n| (SplitMix64::first(n as u64) % FOLDS as u64) as usize).collect();
    let mut add = |method, target: f64, answers: &mut dyn Iterator<Item = (bool, bool)>| {
        let row = MethodRow::new(method, Origin::Folds, name, answers);
        let fitted_on = Some(name.clone());
        rows.push(MethodRow { recall_target: Some(target), fitted_on, ..row });
    };

    for (method, score) in PLAIN {
        let scores = weeks.scores(score);
        for target in TARGETS {
            let limits: Vec<f64> = (0..FOLDS)
                .map(|part| {
                    let others = (0..truth.len()).filter(|n| parts[*n] != part);
                    let (scores, truth): (Vec<f64>, Vec<bool>) =
                        others.map(|n| (scores[n], truth[n])).unzip();
                    threshold(&scores, &truth, target)
                })
                .collect();
            add(method, target, &mut (0..truth.len()).map(|n| (scores[n] >= limits[parts[n]], truth[n])));
        }
    }

    let said = weeks.apart(&parts, threads)?;
    for (place, target) in TARGETS.into_iter().enumerate() {
        let answers = said.iter().zip(truth);
        let mut answers =
            answers.filter_map(|(said, is)| said.map(|said| (said.score >= said.limits[place], *is)));
        add("ensemble", target, &mut answers);
    }
    Ok(())
}

/// The ensemble on kinds that it has not seen.
fn kinds(source: &Source, threads: NonZeroUsize, rows: &mut Vec<MethodRow>) -> anyhow::Result<()> {
    let Source { name, weeks, .. } = source;
    let mut names: Vec<&String> = Vec::new();
    for kind in &weeks.kinds {
        if !names.contains(&kind) {
            names.push(kind);
        }
    }
    let part = |kind: &String| names.iter().position(|name| *name == kind).unwrap_or_default();
    let parts: Vec<usize> = weeks.kinds.iter().map(part).collect();
    let said = weeks.apart(&parts, threads)?;

    for (number, kind) in names.into_iter().enumerate() {
        let answers = said.iter().zip(&weeks.truth).zip(&parts).filter(|(_, part)| **part == number);
        let answers =
            answers.filter_map(|((said, is), _)| said.map(|said| (said.score >= said.limits[0], *is)));
        let row = MethodRow::new("ensemble", Origin::KindLeftOut, name, answers);
        rows.push(MethodRow { kind: Some(kind.clone()), recall_target: Some(TARGETS[0]), ..row });
    }
    Ok(())
}

/// What one source teaches, scored on the others.
fn transfer(
    from: &Source,
    sources: &[Source],
    threads: NonZeroUsize,
    rows: &mut Vec<MethodRow>,
) -> anyhow::Result<()> {
    let known = from.weeks.out_of_fold(threads)?;
    let learnt = from.weeks.train(threads)?;
    for to in sources.iter().filter(|to| to.name != from.name) {
        let scores = to.weeks.scored_by(&learnt);
        for target in TARGETS {
            let limit = wary_threshold(&known, &from.weeks.truth, target);
            let answers = scores.iter().zip(&to.weeks.truth).map(|(score, is)| (*score >= limit, *is));
            let row = MethodRow::new("ensemble", Origin::Transfer, &to.name, answers);
            let fitted_on = Some(from.name.clone());
            rows.push(MethodRow { recall_target: Some(target), fitted_on, ..row });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_reach_their_recall_and_no_more() {
        let scores: Vec<f64> = (0..1000).map(f64::from).collect();
        let truth: Vec<bool> = (0..1000).map(|n| n >= 500).collect();
        assert_eq!(threshold(&scores, &truth, 0.99), 505.0);
        let wary = wary_threshold(&scores, &truth, 0.99);
        assert!((500.0..505.0).contains(&wary), "{wary}");
    }

    #[test]
    fn no_row_is_of_weeks_that_chose_its_threshold() {
        let one = crate::experiment::parse::<Choice>(&["--input", "/nonexistent"]).unwrap();
        assert!(report(&one.options, &one.setting()).is_err());
        let weeks = Labelled::drawn(Generator::Shapes, 10);
        let source =
            |chose| Source { name: "shapes".into(), weeks: Labelled::drawn(Generator::Shapes, 10), chose };
        let mut rows = Vec::new();
        shipped(&source(true), &mut rows);
        assert_eq!(
            rows.iter().map(|row| row.method).collect::<Vec<_>>(),
            ["pattern", "pattern-without-guard12"]
        );

        // Where one fold's scores are turned round, its threshold is still that of the others.
        kinds(&source(false), NonZeroUsize::MIN, &mut rows).unwrap();
        let distinct: std::collections::BTreeSet<&String> = weeks.kinds.iter().collect();
        assert_eq!(rows.iter().filter(|row| row.kind.is_some()).count(), distinct.len());
        assert!(
            rows.iter()
                .filter(|row| row.kind.is_some())
                .all(|row| row.recall.is_some() != row.mistaken.is_some())
        );
    }
}
