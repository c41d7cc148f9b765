//! `ballast train --target lifetime`: how long VMs live, from their starts and ends.

use std::path::Path;

use anyhow::{Context, bail};
use ballast_hw::durable;
use ballast_predict::file::FileError;
use ballast_predict::lifetime::boosted::BoostedOptions;
use ballast_predict::lifetime::score::LongScores;
use ballast_predict::lifetime::train::{LifetimeArm, worse};
use ballast_predict::lifetime::{Cleaned, LifetimeFile, LifetimeScores, LifetimeTrial, Lifetimes};
use serde_json::json;

use super::{TrainArgs, old_model};
use crate::common::lifetimes;
use crate::common::terminal::{say, tell};
use crate::common::threads::all_cores;

/// Learns lifetimes, and writes them unless they are worse than those that are there; whether they were written.
/// What else is in the model file stays.
pub(super) fn train_and_write(args: &TrainArgs) -> anyhow::Result<bool> {
    let Some(input) = args.input.as_deref().filter(|_| args.labels.is_none()) else {
        bail!(
            "--target lifetime learns from --input alone: --generate and --labels are for --target class-p95"
        );
    };
    // What would stop the writing is said before minutes of learning.
    old_model(&args.output)?;
    let old = old_lifetimes(&args.output).filter(|_| args.replace_if_not_worse);

    let lifetimes = Lifetimes::new(lifetimes::read(input)?);
    let about = || format!("{}: {}", input.display(), cleaned(lifetimes.cleaned()));
    let mut trial = LifetimeTrial::new(&lifetimes).with_context(about)?;
    if args.compare {
        let threads = args.threads.unwrap_or_else(all_cores);
        trial.compare_boosted(BoostedOptions { seed: args.seed, threads })?;
    }
    let old = old.map(|old| trial.score(&old.trial));
    let verdict = old.as_ref().and_then(|old| worse(&trial.arms[0].scores, old));
    let new = trial.learn_all();

    let about = &new.about;
    let report = json!({
        "model": args.output.display().to_string(),
        "written": verdict.is_none(),
        "worse": verdict,
        "about": about,
        "old": old,
    });
    let text = match args.json {
        true => serde_json::to_string_pretty(&report)?,
        false => text(&args.output, &new),
    };

    if verdict.is_none() {
        // Read again: class and P95 may have been learnt meanwhile.
        let bytes = match old_model(&args.output)? {
            Some(mut model) => {
                model.lifetime = Some(new);
                model.encode()?
            }
            None => new.encode()?,
        };
        durable::replace(&args.output, &bytes)
            .with_context(|| format!("--output {}", args.output.display()))?;
    }
    say(&text)?;

    if let Some(why) = &verdict {
        tell(&format!("the model stays as it was: {why}"));
    }
    Ok(verdict.is_none())
}

/// The lifetimes in a model file, if there are any that can be used.
pub(super) fn old_lifetimes(path: &Path) -> Option<LifetimeFile> {
    let bytes = std::fs::read(path).ok()?;
    match LifetimeFile::decode(&bytes) {
        Ok(lifetimes) => Some(lifetimes),
        // The model itself has no lifetimes, or [`old_model`] says what is wrong with the file.
        Err(FileError::Missing(_) | FileError::Foreign | FileError::Version { .. }) => None,
        Err(error) => {
            tell(&format!("{}: {error}; its lifetimes will be replaced", path.display()));
            None
        }
    }
}

fn text(path: &Path, file: &LifetimeFile) -> String {
    let about = &file.about;
    let columns: Vec<&str> = about.columns.iter().map(|column| column.name()).collect();
    let scores = &about.arms[0].scores;
    let mut lines = vec![
        path.display().to_string(),
        cleaned(&about.cleaned),
        match columns[..] {
            [] => "no column tells how long a VM lives: every VM has one curve".to_owned(),
            _ => format!("{} curves by {}", about.curves, columns.join(", ")),
        },
        format!(
            "hold-out: {} VMs of the newest third of the time, {} of them ended; Brier scores up to {:.1} h",
            scores.vms,
            scores.ended,
            scores.brier_until_s / 3600.0
        ),
        format!(
            "{:32} {:>9} {:>16} {:>7} {:>9} {:>8} {:>8} {:>7}  P / R of {:.0} h",
            "",
            "log-loss",
            "gain ± error",
            "Brier",
            "Brier log",
            "C-index",
            "|log10|",
            "off by",
            longest(scores).map_or(f64::NAN, |long| long.from_s / 3600.0)
        ),
    ];
    lines.extend(about.arms.iter().map(arm));
    lines.push(
        match about.better_than_kaplan_meier {
            true => "better than Kaplan-Meier beyond chance",
            false => "NO better than Kaplan-Meier: the columns say nothing about lifetimes",
        }
        .to_owned(),
    );
    lines.join("\n")
}

fn arm(arm: &LifetimeArm) -> String {
    let LifetimeArm { name, gain, gain_error, scores } = arm;
    let percent =
        |share: f64| if share.is_nan() { "-".to_owned() } else { format!("{:.0} %", 100.0 * share) };
    let long = longest(scores).map(|long| format!("{} / {}", percent(long.precision), percent(long.recall)));
    format!(
        "{name:32} {:9.4} {:>16} {:7.4} {:9.4} {:8.3} {:8.3} {:>7}  {}",
        scores.log_loss,
        format!("{gain:.4} ± {gain_error:.4}"),
        scores.brier,
        scores.brier_log,
        scores.c_index,
        scores.log10_error,
        percent(scores.calibration_error),
        long.unwrap_or_default(),
    )
}

/// The longest lifetimes that VMs could have been seen to have.
fn longest(scores: &LifetimeScores) -> Option<&LongScores> {
    scores.long.iter().rfind(|long| long.vms > 0)
}

/// How many VMs there are, and what was wrong with others.
fn cleaned(cleaned: &Cleaned) -> String {
    let Cleaned { vms, running, end_before_start, start_out_of_time, zero_lifetime, end_out_of_time } =
        cleaned;
    let mut text = format!("{vms} VMs, {running} of them still run");
    for (count, what) in [
        (end_before_start, "left out: the end is before the start"),
        (start_out_of_time, "left out: the start is far from all others, a clock jumped"),
        (zero_lifetime, "counted as one second: the end is the start"),
        (end_out_of_time, "counted as running: the end is far after all starts"),
    ] {
        if *count > 0 {
            text += &format!("\n{count} {what}");
        }
    }
    text
}
