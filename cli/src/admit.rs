//! `ballast admit`: thresholds for cluster admission, and what a policy would have admitted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use ballast_hw::durable;
use ballast_placement::admission::{Order, Priors, Tuned};
use ballast_sim::admission::tuning::{ArmResult, Job, Options, Part, Tuner, result};
use ballast_sim::admission::{Moment, Replay, ReplayTally, Site};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use crate::common::deployment_events;
use crate::common::grid::{Fit, grid};
use crate::common::terminal::{answer, tell};
use crate::common::threads::{self, all_cores};

#[derive(Args, Debug)]
pub(crate) struct AdmitArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Find by simulation the highest threshold of each policy that keeps the SLA
    Tune(TuneArgs),
    /// Play recorded events against an empty cluster, and say what would have been admitted
    Replay(ReplayArgs),
}

#[derive(Args, Debug)]
struct ClusterArgs {
    /// The priors, as `ballast fit --output` writes them
    #[arg(long, value_name = "FILE")]
    priors: PathBuf,
    /// The cores of the cluster
    #[arg(long, value_name = "C", value_parser = number::<1, 1_000_000>, allow_negative_numbers = true)]
    capacity_cores: f64,
    /// Print one JSON object, alone on stdout
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct TuneArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The mean share of scale-outs that may fail
    #[arg(long, value_name = "SHARE", default_value_t = 1e-4, value_parser = share,
        allow_negative_numbers = true)]
    sla: f64,
    /// How many deployments ask to come in an hour [default: as in the priors]
    #[arg(long, value_name = "N", value_parser = number::<0, 100_000>, allow_negative_numbers = true)]
    arrivals_per_h: Option<f64>,
    /// How many observations the label of every deployment stands for; with some, deployments that will be small come though
    /// the cluster will be full
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(0..=1000))]
    label_observations: u32,
    /// How long each run is, in hours
    #[arg(long, value_name = "H", default_value_t = 26_280.0, value_parser = number::<1, 1_000_000>,
        allow_negative_numbers = true)]
    hours: f64,
    /// Runs of each threshold: failures are in few, so an SLA of 1e-4 needs hundreds
    #[arg(long, value_name = "N", default_value_t = 200, allow_negative_numbers = true,
        value_parser = clap::value_parser!(u64).range(20..=100_000))]
    runs: u64,
    /// The seed of all runs
    #[arg(long, value_name = "S", default_value_t = 1, allow_negative_numbers = true)]
    seed: u64,
    /// Where priors and thresholds go, as TOML; may be the file of the priors
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Runs at a time; it changes no result [default: one for every core]
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

#[derive(Args, Debug)]
struct ReplayArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// What decides, by the thresholds of the priors
    #[arg(long, value_enum, default_value = "second-moment")]
    policy: PolicyArg,
    /// Events as `ballast fit` reads them
    #[arg(value_name = "EVENTS")]
    input: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PolicyArg {
    Zeroth,
    FirstMoment,
    SecondMoment,
}

fn number<const ABOVE: u64, const MOST: u64>(text: &str) -> Result<f64, String> {
    let good = |it: &f64| *it > 0.0 && *it >= ABOVE as f64 && *it <= MOST as f64;
    let allowed = if ABOVE == 0 { "above 0".to_owned() } else { format!("{ABOVE}") };
    text.parse().ok().filter(good).ok_or_else(|| format!("a number, {allowed} to {MOST}"))
}

fn share(text: &str) -> Result<f64, String> {
    let good = |it: &f64| (1e-6..=0.5).contains(it);
    text.parse().ok().filter(good).ok_or_else(|| "a share, 1e-6 to 0.5".to_owned())
}

pub(crate) fn run(args: &AdmitArgs) -> anyhow::Result<ExitCode> {
    match &args.what {
        What::Tune(args) => tune(args),
        What::Replay(args) => replay(args),
    }
}

fn read(file: &Path) -> anyhow::Result<Priors> {
    let name = || file.display().to_string();
    let text = fs::read_to_string(file).with_context(name)?;
    let priors: Priors = toml::from_str(&text).with_context(name)?;
    priors.check().with_context(name)?;
    Ok(priors)
}

fn tune(args: &TuneArgs) -> anyhow::Result<ExitCode> {
    let mut priors = read(&args.cluster.priors)?;
    let capacity = args.cluster.capacity_cores;
    let Some(arrivals_per_h) = args.arrivals_per_h.or(priors.arrivals_per_h) else {
        bail!("{}: there is no arrivals_per_h: say --arrivals-per-h", args.cluster.priors.display());
    };
    let site = Site { law: priors.law(), capacity, arrivals_per_h, hours: args.hours };
    let options = Options::tune(site, args.label_observations, args.sla, args.runs, args.seed);
    let threads = args.threads.map_or_else(|| all_cores().get(), usize::from);

    let mut tuner = Tuner::new(&options, |bad, n| {
        let runs: Vec<u64> = (0..n).collect();
        threads::run("bad runs", &runs, threads, |run| bad(*run))
    });
    tuner.look(|jobs| threads::run("first looks", jobs, threads, Job::run));
    let jobs = tuner.jobs(Part { index: 0, of: 1 });
    let done = threads::run("all runs", &jobs, threads, Job::run);
    let rows = result(&options, &tuner, &tuner.measured(&jobs, done), 0).rows;

    check_rows(&rows, args.sla, capacity)?;
    let tuned = Tuned {
        sla: args.sla,
        capacity_cores: capacity,
        marginal: args.label_observations > 0,
        zeroth: threshold(&rows, Moment::Zeroth) / capacity,
        first_moment: threshold(&rows, Moment::First) / capacity,
        second_moment: threshold(&rows, Moment::Second),
    };
    priors.tuned = Some(tuned);
    priors.check().context("what was tuned cannot be")?;

    for row in rows.iter().filter(|row| !row.bracketed) {
        let name = row.policy.name();
        tell(&format!("{name}: no threshold that was looked at fails the SLA; the highest of them stands"));
    }
    if let Some(file) = &args.output {
        let head = "# Priors of `ballast fit`, with the thresholds of `ballast admit tune`.\n";
        durable::replace(file, format!("{head}{}", toml::to_string(&priors)?).as_bytes())
            .with_context(|| file.display().to_string())?;
    }
    let written = toml::to_string(&tuned)?;
    let result = json!({ "tuned": tuned, "arrivals_per_h": arrivals_per_h, "rows": rows });
    answer(args.cluster.json, &result, || format!("{}\n\n[tuned]\n{}", table(&rows), written.trim_end()))?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses a result where no threshold keeps the SLA, or nothing is ever admitted.
fn check_rows(rows: &[ArmResult], sla: f64, capacity: f64) -> anyhow::Result<()> {
    if let Some(row) = rows.iter().find(|row| !row.kept) {
        bail!(
            "{}: no threshold keeps --sla {sla}: with the lowest that was looked at {:.1} scale-outs of a \
             run fail; a larger --sla or more --capacity-cores help, or more --runs where it is chance",
            row.policy.name(),
            row.failures_per_run
        );
    }
    if let Some(row) = rows.iter().find(|row| row.utilisation <= 0.0) {
        bail!(
            "{}: no deployment is ever admitted: --capacity-cores {capacity} is too small for these priors",
            row.policy.name()
        );
    }
    Ok(())
}

fn threshold(rows: &[ArmResult], moment: Moment) -> f64 {
    rows.iter().find(|row| row.policy == moment).map_or(f64::NAN, |row| row.threshold)
}

fn table(rows: &[ArmResult]) -> String {
    let rows = rows.iter().map(|row| {
        [
            row.policy.name().to_owned(),
            format!("{:.4}", row.threshold),
            format!("{:.3}", row.utilisation),
            format!("{:.3} to {:.3}", row.low, row.high),
        ]
    });
    let columns = [("moment", 0), ("threshold", 0), ("utilisation", 0), ("95 %", 0)];
    grid(&columns, &rows.collect::<Vec<_>>(), Fit::stdout(false))
}

fn replay(args: &ReplayArgs) -> anyhow::Result<ExitCode> {
    let file = &args.cluster.priors;
    let (priors, capacity) = (read(file)?, args.cluster.capacity_cores);
    let order = match args.policy {
        PolicyArg::Zeroth => Order::Zeroth,
        PolicyArg::FirstMoment => Order::First,
        PolicyArg::SecondMoment => Order::Second,
    };
    let Some(threshold) = priors.threshold(order, capacity) else {
        bail!("{}: [tuned] is missing: `ballast admit tune --output` writes it", file.display());
    };
    let mut replay = Replay::new(priors, threshold, capacity);
    deployment_events::read(&args.input, |it| replay.add(&it.deployment, &it.label, it.at_h, it.cores))?;
    let tally = replay.tally();
    answer(args.cluster.json, &tally, || tallied(&tally, capacity))?;
    Ok(ExitCode::SUCCESS)
}

/// The decisions of the policy, as text.
fn tallied(tally: &ReplayTally, capacity: f64) -> String {
    let mut text = format!(
        "{} deployments in {:.0} h: {} admitted, {} refused ({:.1} %)\n\
         {} scale-outs of those, {} without room ({:.4} %)\n\
         {:.1} % of {capacity} cores active on average, {:.0} cores at most",
        tally.deployments,
        tally.hours,
        tally.admitted,
        tally.refused,
        percent(tally.refused, tally.deployments),
        tally.scale_outs,
        tally.failed_scale_outs,
        percent(tally.failed_scale_outs, tally.scale_outs),
        100.0 * tally.utilisation,
        tally.peak_cores,
    );
    for it in &tally.first_refused {
        let why = if it.full { "no room" } else { "by the policy" };
        text.push_str(&format!(
            "\nrefused {why}: {:?} at {:.2} h, {} cores",
            it.deployment, it.at_h, it.cores
        ));
    }
    text
}

fn percent(part: u64, of: u64) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}
