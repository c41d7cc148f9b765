//! `ballast-lab experiment`: the paper's measurements and ours, as tables, JSON and plots.

mod admission;
mod chain;
mod chassis;
mod colocation;
mod control_loop;
mod data;
mod document;
mod faults;
mod labels;
mod lifetimes;
mod limits;
mod models;
mod oversubscription;
mod scheduler;
mod server;
mod traces;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use ballast_lab::Shape;
use ballast_lab::options::minutes;
use ballast_lab::plot::figure::stacked;
use ballast_lab::report::Report;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, Subcommand};
use serde_json::Value;

use ballast_cli::common::columns::ColumnArgs;
use ballast_cli::common::terminal::{say, tell};
use ballast_cli::common::threads::all_cores;

/// The experiments.
#[derive(Subcommand, Debug)]
pub(crate) enum Experiment {
    /// One server under a fixed cap: latency, run time and power of every policy (Figures 4 and 5)
    #[command(after_help = "The default run takes about 15 minutes on 2 cores.\n\n\
        Example: ballast-lab experiment server --caps-w 230 --seeds 3 --json\n\
        Example: ballast-lab experiment server --idle-w 90 --full-w 400 --half-frequency-full-w 190")]
    Server(One<server::Choice>),
    /// Twelve servers under one budget: placements, policies, shares (Figure 6)
    #[command(after_help = "The default run takes about 15 minutes on 2 cores.\n\n\
        Example: ballast-lab experiment chassis --placements imbalanced --plot f.svg")]
    Chassis(One<ballast_lab::chassis::Options>),
    /// The control loop beside an oracle, a plain PI and Dynamo's bands, on loads that use up the budget
    #[command(after_help = "The default run takes about a minute on 2 cores.\n\n\
        Example: ballast-lab experiment loop --floors 103,110 --policies oracle,pi,ballast --json\n\
        Example: ballast-lab experiment loop --all\n\
        Example: ballast-lab experiment loop --sweep --servers 4 --loads moving --floors 93\n\
        Example: ballast-lab experiment loop --random 200")]
    Loop(One<ballast_lab::control_loop::Options>),
    /// A cluster's placements with and without the power rule, and what they mean for power (Figure 7)
    #[command(after_help = "The default run takes about 2 minutes on 2 cores.\n\n\
        Example: ballast-lab experiment scheduler --alphas 0,0.8,1 --seeds 5 --json")]
    Scheduler(One<ballast_lab::scheduler::Options>),
    /// How full a cluster can be while scale-outs seldom fail: policies that look at moments of the demand
    #[command(
        after_help = "The default run takes about an hour on 2 cores, --quick 20 seconds. Parts add up:\n\
        run --part 1/8 to 8/8 anywhere, and --merge their files.\n\n\
        Example: ballast-lab experiment admission --quick --json\n\
        Example: ballast-lab experiment admission --part 1/8 --part-file part-1.json\n\
        Example: ballast-lab experiment admission --merge part-*.json --output proof/results"
    )]
    Admission(One<admission::Choice>),
    /// Who is user-facing: pattern, autocorrelation, Fourier and ensemble at a chosen recall (Table II)
    #[command(after_help = "Example: ballast-lab experiment labels --input labelled.csv.zst --json\n\
        Example: ballast-lab experiment labels --input new.csv --fit-on labelled.csv.zst")]
    Labels(One<labels::Choice>),
    /// Predictions of class and P95 on a synthetic fleet and on real VMs (Table III)
    #[command(after_help = "The default run takes about a minute on 2 cores.\n\n\
        Example: ballast-lab experiment models --json\n\
        Example: ballast-lab experiment models --seeds 3 --plot reliability.svg")]
    Models(One<models::Choice>),
    /// How low a budget may be: the paper's quantiles, chassis of real VMs, real distribution units (Table
    /// IV)
    #[command(after_help = "The default run takes about 2 minutes on 2 cores, nearly all of it for \
            --replay-chassis.\n\n\
        Example: ballast-lab experiment oversubscription --json\n\
        Example: ballast-lab experiment oversubscription --replicates 1000 --plot draws.svg")]
    Oversubscription(One<oversubscription::Choice>),
    /// The whole chain, from VMs' use over labels, model, placement and plan to a budget that holds, with an
    /// oracle for every stage
    #[command(after_help = "The default run takes about 5 minutes on 2 cores.\n\n\
        Example: ballast-lab experiment chain --json\n\
        Example: ballast-lab experiment chain --vms 6000 --learn-days 21 --settle-days 7 --plan-days 8 \
        --held-out-days 4 --seeds 1")]
    Chain(One<ballast_lab::chain::Options>),
    /// How many VMs fit on a machine under a promise: the paper's tables on a substitute population, then recorded
    /// VMs held out in time (Janus and Rzadca, SoCC 2017)
    #[command(after_help = "The default run takes about 4 minutes on 2 cores.\n\n\
        Example: ballast-lab experiment colocation --json\n\
        Example: ballast-lab experiment colocation --instances 1 --sets azure-average,google-2011")]
    Colocation(One<colocation::Choice>),
    /// Limits of jobs' CPU and memory, and tasks of services: every recommender at equal overruns, known afterwards and not
    #[command(after_help = "The default run takes about 10 minutes on 2 cores.\n\n\
        Example: ballast-lab experiment limits --json\n\
        Example: ballast-lab experiment limits --sets azure-average,google-memory")]
    Limits(One<limits::Choice>),
    /// VMs that end together on hosts that come free together: policies by lifetimes against best fit, on synthetic pools
    /// and on recorded arrivals (LAVA, arXiv 2412.09840)
    #[command(after_help = "The default run takes about an hour on 2 cores, --quick about a minute.\n\n\
        Example: ballast-lab experiment lifetimes --quick --json\n\
        Example: ballast-lab experiment lifetimes --sets recorded --input arrivals.csv.zst --pools 12")]
    Lifetimes(One<lifetimes::Choice>),
    /// Whole runs drawn from seeds, several faults at once, some for good, judged by the oracles
    #[command(
        after_help = "The default run takes about 10 s on 2 cores. Parts add up: run seeds 1 to 1000 here\n\
        and 1001 to 2000 there, or go on after a pause with --resume.\n\n\
        Example: ballast-lab experiment faults --seed 1 --seeds 2000 --json\n\
        Example: ballast-lab experiment faults --kind meter-missing --seeds 100\n\
        Example: ballast-lab experiment faults --list"
    )]
    Faults(faults::FaultsArgs),
    /// Measured load under budgets of 102 to 80 % of its own peak, with every policy
    #[command(after_help = "The default run takes about 3 minutes a file on 2 cores.\n\n\
        Example: ballast-lab experiment traces --telemetry cpu.csv.zst --json\n\
        Example: ballast-lab experiment traces --telemetry a.csv b.csv --unequal --seeds 3")]
    Traces(One<traces::Choice>),
    /// All of them, but for loop, admission, lifetimes, traces and faults
    #[command(after_help = "The default run takes about an hour on 2 cores.\n\n\
        Example: ballast-lab experiment all --output proof/results")]
    All(One<Runs>),
}

/// One experiment: what is chosen, how it is run, where results go.
#[derive(Debug)]
pub(crate) struct One<O> {
    options: O,
    results: Results,
    /// The options as flags, with their usual values, but for where files go.
    flags: String,
}

#[derive(Args, Clone, Debug)]
struct Results {
    /// Print one JSON object {experiment, options, rows, goals}, alone on stdout
    #[arg(long)]
    json: bool,
    /// Draw the figures into this file, one below the other
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Write this experiment's page, DIR/NAME.md, and its plots beside it
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Runs at a time; it changes no result [default: one for every core]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
}

/// Options for all experiments at once.
#[derive(Args, Debug)]
pub(crate) struct Runs {
    /// The first seed [default: 1]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// How many seeds [default: server 10, chassis 3, scheduler 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    seeds: Option<u16>,
    /// How long the batch work takes without throttling [default: server 10,
    /// chassis 26]
    #[arg(long, value_name = "MIN", value_parser = minutes)]
    minutes: Option<f64>,
    #[command(flatten)]
    shape: Shape,
}

impl<O: Args> Args for One<O> {
    fn augment_args(command: Command) -> Command {
        Results::augment_args(O::augment_args(command)).mut_args(|arg| match arg.get_action() {
            ArgAction::Set | ArgAction::Append => arg.allow_negative_numbers(true),
            _ => arg,
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<O: Args> FromArgMatches for One<O> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let options = O::from_arg_matches(matches)?;
        Ok(Self { options, results: Results::from_arg_matches(matches)?, flags: flags::<O>(matches) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Options that do not shape the report: further input and output files.
const BESIDES: [&str; 5] = ["part", "part_file", "merge", "export_events", "export"];

/// The options that shape a report, as flags. Options of servers and columns are left out if they have defaults.
fn flags<O: Args>(matches: &ArgMatches) -> String {
    let options = O::augment_args(Command::new(""));
    let common = Shape::augment_args(ColumnArgs::augment_args(Command::new("")));
    let common: Vec<_> = common.get_arguments().map(Arg::get_id).collect();
    let shaping = options.get_arguments().filter(|arg| {
        let is_default = matches.value_source(arg.get_id().as_str()) != Some(ValueSource::CommandLine);
        let is_left_out = is_default && common.contains(&arg.get_id());
        !is_left_out && !BESIDES.contains(&arg.get_id().as_str())
    });
    shaping.map(|arg| flag(arg, matches)).collect()
}

/// An option as a flag; nothing where it has no value.
fn flag(arg: &Arg, matches: &ArgMatches) -> String {
    let (id, long) = (arg.get_id().as_str(), arg.get_long().unwrap_or_default());
    if !arg.get_action().takes_values() {
        return if matches.get_flag(id) { format!(" --{long}") } else { String::new() };
    }
    let values: Vec<String> =
        matches.get_raw(id).into_iter().flatten().map(|value| shown(value.as_ref())).collect();
    match arg.get_value_delimiter() {
        _ if values.is_empty() => String::new(),
        Some(between) => format!(" --{long} {}", values.join(&between.to_string())),
        None if arg.get_num_args().is_some() => format!(" --{long} {}", values.join(" ")),
        None => values.iter().map(|value| format!(" --{long} {value}")).collect(),
    }
}

/// A value as a command names it: the folder of all data is not the same everywhere.
fn shown(value: &Path) -> String {
    match value.strip_prefix(data::folder()) {
        Ok(rest) => format!("$BALLAST_DATA/{}", rest.display()),
        Err(_) => value.display().to_string(),
    }
}

/// How an experiment is run, and the command that runs it again.
struct Setting {
    /// The figures are wanted.
    figures: bool,
    /// The page is wanted, which shows more cases.
    document: bool,
    threads: NonZeroUsize,
    flags: String,
}

impl Setting {
    fn threads(&self) -> usize {
        self.threads.get()
    }

    /// The command that makes the rows again.
    fn run(&self, experiment: &str) -> String {
        format!("ballast-lab experiment {experiment}{}", self.flags)
    }

    /// The command that makes the report again.
    fn command(&self, experiment: &str) -> String {
        let output = if self.document { " --output proof/results" } else { "" };
        self.run(experiment) + output
    }
}

/// A figure was not reached.
const EXIT_NOT_MET: u8 = 3;

/// Runs an experiment; exit code 3 where a figure to reach was measured and missed.
pub(crate) fn run(experiment: &Experiment) -> anyhow::Result<ExitCode> {
    let met = match experiment {
        Experiment::Server(one) => one.run(server::report)?,
        Experiment::Chassis(one) => one.run(chassis::report)?,
        Experiment::Loop(one) => one.run(control_loop::report)?,
        Experiment::Scheduler(one) => one.run(scheduler::report)?,
        Experiment::Admission(one) => match &one.options.export_events {
            Some(file) => admission::export(file, one.options.seed).map(|()| true)?,
            None => one.run(admission::report)?,
        },
        Experiment::Labels(one) => one.run(labels::report)?,
        Experiment::Models(one) => one.run(models::report)?,
        Experiment::Oversubscription(one) => one.run(oversubscription::report)?,
        Experiment::Chain(one) => one.run(chain::report)?,
        Experiment::Colocation(one) => one.run(colocation::report)?,
        Experiment::Limits(one) => one.run(limits::report)?,
        Experiment::Lifetimes(one) => one.run(lifetimes::report)?,
        Experiment::Faults(args) => faults::run(args)?,
        Experiment::Traces(one) => one.run(traces::report)?,
        Experiment::All(one) => all(one)?,
    };

    Ok(if met { ExitCode::SUCCESS } else { EXIT_NOT_MET.into() })
}

type Reporter<O> = fn(&O, &Setting) -> anyhow::Result<Report>;

impl<O> One<O> {
    fn setting(&self) -> Setting {
        let Results { plot, output, threads, .. } = &self.results;
        let document = output.is_some();
        Setting {
            figures: document || plot.is_some(),
            document,
            threads: threads.unwrap_or_else(all_cores),
            flags: self.flags.clone(),
        }
    }

    /// Makes a report, and puts it where it is asked for; whether no figure was missed.
    fn run(&self, report: Reporter<O>) -> anyhow::Result<bool> {
        let Results { json, plot, output, .. } = &self.results;

        // What cannot be written is said now, not after minutes of runs.
        if let Some(file) = plot {
            let open = std::fs::OpenOptions::new().create(true).append(true).open(file);
            open.with_context(|| format!("--plot {}", file.display()))?;
        }

        if let Some(folder) = output {
            document::check(folder)?;
        }
        let report = report(&self.options, &self.setting())?;
        let text = if *json { serde_json::to_string_pretty(&report.json()?)? } else { report.text() };
        say(&text)?;

        if let Some(file) = plot {
            let figures: Vec<_> = report.figures().collect();
            std::fs::write(file, stacked(&figures)?).with_context(|| format!("--plot {}", file.display()))?;
            tell(&format!("plot: {}", file.display()));
        }

        if let Some(folder) = output {
            write_page(folder, &report)?;
        }
        Ok(report.met())
    }
}

fn parse<O: Args>(flags: &[&str]) -> anyhow::Result<One<O>> {
    let command = One::<O>::augment_args(Command::new("").no_binary_name(true));
    Ok(One::from_arg_matches(&command.try_get_matches_from(flags)?)?)
}

fn all(all: &One<Runs>) -> anyhow::Result<bool> {
    if let Some(folder) = &all.results.output {
        document::check(folder)?;
    }
    let flags: Vec<&str> = all.flags.split_whitespace().collect();
    // It is measured in days.
    let days: Vec<&str> = flags.chunks(2).filter(|flag| flag[0] != "--minutes").flatten().copied().collect();
    // Fewer chassis, and all of them replayed, which takes most of the time.
    let replayed = ["--chassis", "4", "--replay-chassis", "4"];
    let mut finished = Finished { results: &all.results, reports: Vec::new(), met: true };
    finished.add(&all.one(&flags, server::report)?)?;
    finished.add(&all.one(&flags, chassis::report)?)?;
    finished.add(&all.one(&days, scheduler::report)?)?;
    finished.add(&all.one(&[], labels::report)?)?;
    finished.add(&all.one(&[], models::report)?)?;
    finished.add(&all.one(&replayed, oversubscription::report)?)?;
    finished.add(&all.one(&[], chain::report)?)?;
    finished.add(&all.one(&[], colocation::report)?)?;
    finished.add(&all.one(&[], limits::report)?)?;

    if all.results.json {
        let goals = finished.reports.iter().filter_map(|report| report["goals"].as_array()).flatten();
        let goals: Vec<_> = goals.collect();
        let summary = serde_json::json!({ "experiment": "all", "rows": finished.reports, "goals": goals });
        say(&serde_json::to_string_pretty(&summary)?)?;
    }

    Ok(finished.met)
}

/// The experiments of `all` that have finished.
struct Finished<'a> {
    results: &'a Results,
    /// In JSON, for the summary at the end; empty without `--json`.
    reports: Vec<Value>,
    met: bool,
}

impl Finished<'_> {
    /// Shows and writes a report at once, because all experiments together take hours.
    fn add(&mut self, report: &Report) -> anyhow::Result<()> {
        self.met &= report.met();
        if self.results.json {
            self.reports.push(report.json()?);
        } else {
            say(&format!("{}\n", report.text()))?;
        }
        self.results.output.as_ref().map_or(Ok(()), |folder| write_page(folder, report))
    }
}

impl One<Runs> {
    fn one<O: Args>(&self, flags: &[&str], report: Reporter<O>) -> anyhow::Result<Report> {
        let output = self.results.output.as_ref().map(|folder| format!("--output={}", folder.display()));
        let flags: Vec<&str> = flags.iter().copied().chain(output.as_deref()).collect();
        let One { options, flags, .. } = parse::<O>(&flags)?;
        report(&options, &Setting { flags, ..self.setting() })
    }
}

fn write_page(folder: &Path, report: &Report) -> anyhow::Result<()> {
    let mut plots = Vec::new();
    for figure in report.figures() {
        plots.push((format!("{}.svg", figure.name), figure.svg()?));
    }
    document::write(folder, report.name, &report.markdown(), &plots)?;
    tell(&format!("{} written", folder.join(report.name).with_extension("md").display()));
    Ok(())
}
