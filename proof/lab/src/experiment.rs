//! `ballast-lab experiment`: the paper's measurements and ours, as tables, JSON and plots.

mod admission;
mod args;
mod chain;
mod chassis;
mod colocation;
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
mod stability;
mod traces;
mod tradeoff;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use ballast_lab::plot::figure::stacked;
use ballast_lab::report::{Detail, Report};
use clap::{Args, Subcommand};
use serde_json::Value;

use args::{Results, Runs};
use ballast_cli::common::terminal::{say, tell};

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
    Chassis(One<chassis::Choice>),
    /// Lost run time against time above the cap, as the margins of stepwise and predictive move
    #[command(after_help = "The default run takes about 5 minutes on 2 cores.\n\n\
        Example: ballast-lab experiment tradeoff --caps-w 230 --plot curves.svg")]
    Tradeoff(One<tradeoff::Choice>),
    /// P-state changes with meters that are late, seldom or noisy
    #[command(after_help = "The default run takes about 2 minutes on 2 cores.\n\n\
        Example: ballast-lab experiment stability --noises 0.01 --policies stepwise")]
    Stability(One<stability::Choice>),
    /// A cluster's placements with and without the power rule, and what they mean for power (Figure 7)
    #[command(after_help = "The default run takes about 2 minutes on 2 cores.\n\n\
        Example: ballast-lab experiment scheduler --alphas 0,0.8,1 --seeds 5 --json")]
    Scheduler(One<scheduler::Choice>),
    /// How full a cluster can be while scale-outs seldom fail: policies that look at moments of the demand
    #[command(
        after_help = "The default run takes about an hour on 2 cores, --quick 20 seconds. Parts add up:\n\
        run --part 1/8 to 8/8 anywhere, and --merge their files.\n\n\
        Example: ballast-lab experiment admission --quick --json\n\
        Example: ballast-lab experiment admission --part 1/8 --part-file part-1.json\n\
        Example: ballast-lab experiment admission --merge part-*.json --output proof/results"
    )]
    Admission(Data<admission::Choice>),
    /// Who is user-facing: pattern, autocorrelation, Fourier and ensemble at a chosen recall (Table II)
    #[command(after_help = "Example: ballast-lab experiment labels --input labelled.csv.zst --json\n\
        Example: ballast-lab experiment labels --input new.csv --fit-on labelled.csv.zst")]
    Labels(Data<labels::Choice>),
    /// Predictions of class and P95 on a synthetic fleet and on real VMs (Table III)
    #[command(after_help = "The default run takes about a minute on 2 cores.\n\n\
        Example: ballast-lab experiment models --json\n\
        Example: ballast-lab experiment models --seeds 3 --plot reliability.svg")]
    Models(Data<models::Choice>),
    /// How low a budget may be: the paper's quantiles, chassis of real VMs, real distribution units (Table
    /// IV)
    #[command(after_help = "The default run takes about 2 minutes on 2 cores, nearly all of it for \
            --replay-chassis.\n\n\
        Example: ballast-lab experiment oversubscription --json\n\
        Example: ballast-lab experiment oversubscription --replicates 1000 --plot draws.svg")]
    Oversubscription(Data<oversubscription::Choice>),
    /// The whole chain, from VMs' use over labels, model, placement and plan to a budget that holds, with an
    /// oracle for every stage
    #[command(after_help = "The default run takes about 5 minutes on 2 cores.\n\n\
        Example: ballast-lab experiment chain --json\n\
        Example: ballast-lab experiment chain --vms 6000 --learn-days 21 --settle-days 7 --plan-days 8 \
        --held-out-days 4 --seeds 1")]
    Chain(Data<chain::Choice>),
    /// How many VMs fit on a machine under a promise: the paper's tables on a substitute population, then recorded
    /// VMs held out in time (Janus and Rzadca, SoCC 2017)
    #[command(after_help = "The default run takes about 4 minutes on 2 cores.\n\n\
        Example: ballast-lab experiment colocation --json\n\
        Example: ballast-lab experiment colocation --instances 1 --sets azure-average,google-2011")]
    Colocation(Data<colocation::Choice>),
    /// Limits of jobs' CPU and memory, and tasks of services: every recommender at equal overruns, known afterwards and not
    #[command(after_help = "The default run takes about 10 minutes on 2 cores.\n\n\
        Example: ballast-lab experiment limits --json\n\
        Example: ballast-lab experiment limits --sets azure-average,google-memory")]
    Limits(Data<limits::Choice>),
    /// VMs that end together on hosts that come free together: policies by lifetimes against best fit, on synthetic pools
    /// and on recorded arrivals (LAVA, arXiv 2412.09840)
    #[command(after_help = "The default run takes about an hour on 2 cores, --quick about a minute.\n\n\
        Example: ballast-lab experiment lifetimes --quick --json\n\
        Example: ballast-lab experiment lifetimes --sets recorded --input arrivals.csv.zst --pools 12")]
    Lifetimes(Data<lifetimes::Choice>),
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
    Traces(Data<traces::Choice>),
    /// All of them, but for admission, lifetimes, traces and faults
    #[command(after_help = "The default run takes about an hour on 2 cores.\n\n\
        Example: ballast-lab experiment all --output proof/results")]
    All(All),
}

/// One experiment: what is chosen, how it is run, where results go.
#[derive(Args, Debug)]
pub(crate) struct One<C: Args> {
    #[command(flatten)]
    choice: C,
    #[command(flatten)]
    runs: Runs,
    #[command(flatten)]
    results: Results,
}

/// One experiment on recorded data: what is chosen, where results go.
#[derive(Args, Debug)]
pub(crate) struct Data<C: Args> {
    #[command(flatten)]
    choice: C,
    #[command(flatten)]
    results: Results,
}

#[derive(Args, Debug)]
pub(crate) struct All {
    #[command(flatten)]
    runs: Runs,
    /// Print one JSON object {experiment, rows, goals} with a row for each experiment, alone on stdout
    #[arg(long)]
    json: bool,
    /// Write a page for each, DIR/NAME.md, and its plots beside it
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// A figure was not reached.
const EXIT_NOT_MET: u8 = 3;

/// Runs an experiment; exit code 3 where a figure to reach was measured and missed.
pub(crate) fn run(experiment: &Experiment) -> anyhow::Result<ExitCode> {
    let met = match experiment {
        Experiment::Server(one) => one.run(server::report)?,
        Experiment::Chassis(one) => one.run(chassis::report)?,
        Experiment::Tradeoff(one) => one.run(tradeoff::report)?,
        Experiment::Stability(one) => one.run(stability::report)?,
        Experiment::Scheduler(one) => one.run(scheduler::report)?,
        Experiment::Admission(data) if data.choice.export_events.is_some() => {
            let file = data.choice.export_events.as_deref();
            file.map_or(Ok(()), |file| admission::export(file, data.choice.seed)).map(|()| true)?
        }
        Experiment::Admission(data) => {
            data.results.write(|detail| admission::report(&data.choice, detail))?
        }
        Experiment::Labels(data) => data.results.write(|_| labels::report(&data.choice))?,
        Experiment::Models(models) => {
            models.results.write(|detail| models::report(&models.choice, detail))?
        }
        Experiment::Oversubscription(data) => {
            data.results.write(|detail| oversubscription::report(&data.choice, detail))?
        }
        Experiment::Chain(data) => data.results.write(|detail| chain::report(&data.choice, detail))?,
        Experiment::Colocation(data) => {
            data.results.write(|detail| colocation::report(&data.choice, detail))?
        }
        Experiment::Limits(data) => data.results.write(|detail| limits::report(&data.choice, detail))?,
        Experiment::Lifetimes(data) => {
            data.results.write(|detail| lifetimes::report(&data.choice, detail))?
        }
        Experiment::Faults(args) => faults::run(args)?,
        Experiment::Traces(data) => data.results.write(|detail| traces::report(&data.choice, detail))?,
        Experiment::All(args) => all(args)?,
    };

    Ok(if met { ExitCode::SUCCESS } else { EXIT_NOT_MET.into() })
}

impl<C: Args> One<C> {
    fn run(&self, report: fn(&C, &Runs, Detail) -> anyhow::Result<Report>) -> anyhow::Result<bool> {
        self.results.write(|detail| report(&self.choice, &self.runs, detail))
    }
}

impl Results {
    /// Makes a report, and puts it where it is asked for; whether no figure was missed.
    fn write(&self, report: impl FnOnce(Detail) -> anyhow::Result<Report>) -> anyhow::Result<bool> {
        let Self { json, plot, output } = self;
        let document = output.is_some();
        let detail = Detail { figures: document || plot.is_some(), document };

        // What cannot be written is said now, not after minutes of runs.
        if let Some(file) = plot {
            let open = std::fs::OpenOptions::new().create(true).append(true).open(file);
            open.with_context(|| format!("--plot {}", file.display()))?;
        }

        if let Some(folder) = output {
            document::check(folder)?;
        }
        let report = report(detail)?;
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

fn all(args: &All) -> anyhow::Result<bool> {
    let document = args.output.is_some();
    let detail = Detail { figures: document, document };
    if let Some(folder) = &args.output {
        document::check(folder)?;
    }
    let (mut reports, mut met) = (Vec::new(), true);

    // Each is shown and written as soon as it is there: all of them take a while.
    let mut done = |report: Report| -> anyhow::Result<()> {
        met &= report.met();
        if args.json {
            reports.push(report.json()?);
        } else {
            say(&format!("{}\n", report.text()))?;
        }

        if let Some(folder) = &args.output {
            write_page(folder, &report)?;
        }
        Ok(())
    };

    done(server::report(&server::Choice::default(), &args.runs, detail)?)?;
    done(chassis::report(&chassis::Choice::default(), &args.runs, detail)?)?;
    done(tradeoff::report(&tradeoff::Choice::default(), &args.runs, detail)?)?;
    done(stability::report(&stability::Choice::default(), &args.runs, detail)?)?;

    // It is measured in days.
    let runs = Runs { minutes: None, ..args.runs.clone() };
    done(scheduler::report(&scheduler::Choice::default(), &runs, detail)?)?;
    done(labels::report(&labels::Choice::default())?)?;
    done(models::report(&models::Choice::default(), detail)?)?;
    done(oversubscription::report(&oversubscription::Choice::documented(), detail)?)?;
    done(chain::report(&chain::Choice::default(), detail)?)?;
    done(colocation::report(&colocation::Choice::default(), detail)?)?;
    done(limits::report(&limits::Choice::default(), detail)?)?;

    if args.json {
        let goals = |report: &Value| report["goals"].as_array().cloned().unwrap_or_default();
        let goals: Vec<_> = reports.iter().flat_map(goals).collect();
        let all = serde_json::json!({ "experiment": "all", "rows": reports, "goals": goals });
        say(&serde_json::to_string_pretty(&all)?)?;
    }

    Ok(met)
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
