//! `ballast-lab experiment admission`: how full a cluster can be while scale-outs seldom fail.

use std::fs;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ballast_lab::admission;
use ballast_lab::report::{self, Report};
use ballast_placement::admission::Belief;
use ballast_sim::admission::tuning::{Job, Measured, Options, Part, Tuner, result};
use clap::Args;
use serde::{Deserialize, Serialize};

use super::Setting;
use ballast_cli::common::terminal::tell;
use ballast_cli::common::threads;

/// What is exported.
const DEPLOYMENTS: u64 = 20_000;
const MONTH_H: f64 = 730.0;

#[derive(Args, Clone, Debug)]
pub(crate) struct Choice {
    /// Five policies, 60 runs of a tenth of the cluster
    #[arg(long, conflicts_with_all = ["runs", "full_runs"])]
    quick: bool,
    /// The seed of all runs
    #[arg(long, value_name = "S", default_value_t = 1, allow_negative_numbers = true)]
    pub(super) seed: u64,
    /// Runs of each policy on a tenth of the cluster [default: 500]
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u64).range(20..=100_000))]
    runs: Option<u64>,
    /// And on the whole cluster of 20,000 cores; 0 leaves these out [default: 60]
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u64).range(0..=100_000))]
    full_runs: Option<u64>,
    /// Run only part I of N, counted from 1, and write it into --part-file
    #[arg(long, value_name = "I/N", value_parser = part, requires = "part_file")]
    part: Option<Part>,
    /// Where the part goes
    #[arg(long, value_name = "FILE", requires = "part")]
    part_file: Option<PathBuf>,
    /// Run no policy: add up these parts of the same experiment
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "part")]
    merge: Vec<PathBuf>,
    /// Run nothing: write what 20,000 deployments of SUB-B do in a month, as `ballast fit` reads it
    #[arg(long, value_name = "FILE.csv", conflicts_with_all = ["part", "merge", "quick"])]
    pub(super) export_events: Option<PathBuf>,
}

fn part(text: &str) -> Result<Part, String> {
    let numbers =
        text.split_once('/').and_then(|(i, n)| Some((i.parse::<u64>().ok()?, n.parse::<u64>().ok()?)));
    match numbers {
        Some((i, n)) if i >= 1 && i <= n && n <= 10_000 => Ok(Part { index: i - 1, of: n }),
        _ => Err("as 2/8: part 2 of 8, of at most 10000".to_owned()),
    }
}

/// Some runs of every arm, as a file.
#[derive(Serialize, Deserialize)]
struct PartFile {
    /// What the parts must have in common.
    command: String,
    part: Part,
    /// Of every arm, as the first looks of each part found them.
    thresholds: Vec<Vec<f64>>,
    /// For every arm, for every run: what each threshold came to.
    measured: Vec<Vec<Measured>>,
}

pub(super) fn report(choice: &Choice, setting: &Setting) -> anyhow::Result<Report> {
    let options = options(choice);
    let command = setting.run("admission");
    let threads = setting.threads();
    let parts = parts(&choice.merge, &command)?;

    let mut tuner = Tuner::new(&options, |bad, n| {
        let runs: Vec<u64> = (0..n).collect();
        threads::run("bad runs", &runs, threads, |run| bad(*run))
    });

    let measured = if parts.is_empty() {
        tuner.look(|jobs| threads::run("first looks", jobs, threads, Job::run));
        let part = choice.part.unwrap_or(Part { index: 0, of: 1 });
        let jobs = tuner.jobs(part);
        let done = threads::run("admission", &jobs, threads, Job::run);
        let measured = tuner.measured(&jobs, done);
        if let Some(file) = &choice.part_file {
            let (command, thresholds) = (command.clone(), tuner.thresholds());
            write(file, &PartFile { command, part, thresholds, measured: measured.clone() })?;
            tell(&format!(
                "part {} of {}: {}; add up all parts with --merge",
                part.index + 1,
                part.of,
                file.display()
            ));
        }
        measured
    } else {
        merged(parts, &mut tuner)?
    };

    let results: Vec<_> =
        (0..options.sets.len()).map(|set| result(&options, &tuner, &measured, set)).collect();
    report::admission::report(&options, &results, setting.command("admission"))
}

/// Writes events that the law of SUB-B made.
pub(super) fn export(file: &Path, seed: u64) -> anyhow::Result<()> {
    let name = || format!("--export-events {}", file.display());
    let mut out = BufWriter::new(fs::File::create(file).with_context(name)?);
    writeln!(out, "deployment,time_h,cores")?;
    let write = |deployment: &str, at_h, cores| writeln!(out, "{deployment},{at_h},{cores}");
    ballast_sim::admission::export(&Belief::SUB_B, DEPLOYMENTS, MONTH_H, seed, write).with_context(name)?;
    out.flush().with_context(name)?;
    tell(&format!("events of {DEPLOYMENTS} deployments in {MONTH_H} h: {}", file.display()));
    Ok(())
}

fn options(choice: &Choice) -> Options {
    if choice.quick {
        return admission::quick(choice.seed);
    }
    let full = choice.full_runs.unwrap_or(60);
    let mut options = admission::whole(choice.seed, choice.runs.unwrap_or(500), full.max(20));
    options.sets.retain(|set| full > 0 || set.site.capacity < 20_000.0);
    options
}

fn write(file: &Path, part: &PartFile) -> anyhow::Result<()> {
    let text = serde_json::to_vec(part)?;
    fs::write(file, text).with_context(|| format!("--part-file {}", file.display()))
}

/// The files of all parts, which must be parts of one experiment, each once.
fn parts<'a>(files: &'a [PathBuf], command: &str) -> anyhow::Result<Vec<(&'a Path, PartFile)>> {
    let mut parts = vec![];
    for file in files {
        let name = || format!("--merge {}", file.display());
        let bytes = fs::read(file).with_context(name)?;
        let part: PartFile = serde_json::from_slice(&bytes).with_context(name)?;
        if part.command != command {
            bail!("{}: a part of `{}`, not of `{command}`", name(), part.command);
        }
        if parts.first().is_some_and(|(_, first): &(&Path, PartFile)| first.thresholds != part.thresholds) {
            bail!("{}: its thresholds are not those of the first part", name());
        }
        parts.push((file.as_path(), part));
    }

    parts.sort_by_key(|(_, it)| (it.part.of, it.part.index));
    let of = files.len() as u64;
    let whole = (0..of).map(|index| Part { index, of });
    if !parts.iter().map(|(_, it)| it.part).eq(whole) {
        let given =
            |(_, it): &(&Path, PartFile)| format!("{}/{}", it.part.index.saturating_add(1), it.part.of);
        let given: Vec<_> = parts.iter().map(given).collect();
        bail!("--merge: of {of} files every part from 1/{of} to {of}/{of} once, not {}", given.join(", "));
    }
    Ok(parts)
}

fn merged(parts: Vec<(&Path, PartFile)>, tuner: &mut Tuner) -> anyhow::Result<Vec<Vec<Measured>>> {
    if let Some((first, part)) = parts.first()
        && !tuner.set_thresholds(&part.thresholds)
    {
        bail!("--merge {}: its thresholds are not those of every policy", first.display());
    }
    let mut all = vec![vec![]; tuner.thresholds().len()];
    for (file, part) in parts {
        if !tuner.is_part(part.part, &part.measured) {
            bail!("--merge {}: its runs are not all of part {}", file.display(), part.part.index + 1);
        }
        all.iter_mut().zip(part.measured).for_each(|(all, more)| all.extend(more));
    }
    all.iter_mut().for_each(|it: &mut Vec<Measured>| it.sort_by_key(|it| it.run));
    Ok(all)
}
