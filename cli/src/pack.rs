//! `ballast pack`: how many machines a fleet needs under a promise, by every estimator, replayed.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use ballast_sim::packing::{Auto, AutoOptions, Estimator, Family, Fleet, Outcome, Rolling, auto};
use clap::Args;
use serde::Serialize;

use crate::common::columns::ColumnArgs;
use crate::common::fleet::fleet_of;
use crate::common::numbers::{positive, share};
use crate::common::table::named;
use crate::common::terminal::{self, tell};
use crate::common::text_table::TextTable;
use crate::common::threads::{all_cores, run_all};

/// So many steps are looked back at, where there are so many.
const WINDOW: u16 = 7;

#[derive(Args, Debug)]
pub(crate) struct PackArgs {
    /// CPU use of the VMs to pack (CSV, also .zst, or Parquet; wide or long)
    #[arg(long, value_name = "FILE")]
    telemetry: PathBuf,
    /// What one machine holds: cores with --cores, else VMs that are fully busy
    #[arg(long, value_name = "C", value_parser = positive)]
    capacity: f64,
    /// The share of machine-instants that may be above the capacity
    #[arg(long, value_name = "SHARE", default_value_t = 0.01, value_parser = share)]
    target: f64,
    /// How many cores each VM has: a table with the columns vm and cores [default: all VMs are alike]
    #[arg(long, value_name = "FILE")]
    cores: Option<PathBuf>,
    /// Learn from so many hours [default: 168; of a file of less than 8 days its first half]
    #[arg(long, value_name = "H", value_parser = positive)]
    train_hours: Option<f64>,
    /// Judge by the next so many hours, then move on by as many [default: 24; of a file of less than 8 days a
    /// twelfth of its second half]
    #[arg(long, value_name = "H", value_parser = positive)]
    step_hours: Option<f64>,
    /// Judged steps that the choice looks back at
    #[arg(long, value_name = "N", default_value_t = WINDOW,
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    window: u16,
    /// Threads; they change no result [default: one for every core]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Print one JSON object, alone on stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    columns: ColumnArgs,
}

/// An estimator with its parameter, or who chooses among them.
#[derive(Debug, Serialize)]
struct PackRow {
    estimator: &'static str,
    /// `None` of `auto` and of the oracle, which have none.
    parameter: Option<f64>,
    /// The mean over the judged steps.
    machines: f64,
    /// The overflow that it promises; `None` where it promises nothing.
    promised: Option<f64>,
    /// The overflow over the judged steps.
    realised: f64,
    /// Whether the last steps speak for it: what to pack by next.
    selected: bool,
    /// In how many of the judged steps it was taken.
    steps_taken: usize,
}

#[derive(Debug, Serialize)]
struct Cut {
    train_h: f64,
    step_h: f64,
    /// Whether the file was too short for a week and a day.
    short: bool,
    steps: usize,
    /// Of these the last, by which everything is judged.
    judged_steps: usize,
    window_steps: usize,
}

#[derive(Debug, Serialize)]
struct Answer {
    telemetry: String,
    vms: usize,
    capacity: f64,
    target: f64,
    /// Readings that are missing: each holds the one before it.
    gaps: u64,
    cut: Cut,
    rows: Vec<PackRow>,
}

pub(crate) fn run(args: &PackArgs) -> anyhow::Result<ExitCode> {
    let trace = args.columns.read(&args.telemetry)?;
    let fleet = named(&args.telemetry, fleet_of(&trace, args.cores.as_deref()))?;
    let rolling = args.rolling(&fleet);
    let steps = rolling.steps(&fleet).with_context(|| args.telemetry.display().to_string())?;

    let estimators = Estimator::all();
    let threads = args.threads.unwrap_or_else(all_cores).get();
    let replay = |step: &_| fleet.replay(step, &estimators, args.capacity, args.target);
    let (outcomes, oracle): (Vec<_>, Vec<_>) = run_all("pack", &steps, threads, replay)?.into_iter().unzip();

    // With fewer steps than the window asks for, the choice looks back at what there is.
    let window = usize::from(args.window).min(steps.len() - 1).max(1);
    let chosen = auto(&outcomes, AutoOptions { target: args.target, window }).context("no step to judge")?;
    let first = if chosen.taken.is_empty() { 0 } else { chosen.first };
    let hours = |instants: usize| instants as f64 * fleet.period_s() / 3600.0;
    let answer = Answer {
        telemetry: args.telemetry.display().to_string(),
        vms: fleet.vms().len(),
        capacity: args.capacity,
        target: args.target,
        gaps: trace.report.gaps,
        cut: Cut {
            train_h: hours(rolling.train),
            step_h: hours(rolling.step),
            short: args.train_hours.is_none() && args.step_hours.is_none() && fleet.is_short(),
            steps: steps.len(),
            judged_steps: steps.len() - first,
            window_steps: window,
        },
        rows: rows(&estimators, &outcomes[first..], &oracle[first..], &chosen, args.target),
    };

    terminal::answer(args.json, &answer, || text(&answer))?;
    if answer.gaps > 0 {
        tell(&format!("{} readings are missing: each holds the one before it", answer.gaps));
    }
    Ok(ExitCode::SUCCESS)
}

impl PackArgs {
    fn rolling(&self, fleet: &Fleet) -> Rolling {
        let usual = fleet.usual_steps();
        let instants = |hours: Option<f64>, usual: usize| {
            hours.map_or(usual, |hours| (hours * 3600.0 / fleet.period_s()).round().max(1.0) as usize)
        };
        let train = instants(self.train_hours, usual.train);
        Rolling { train, step: instants(self.step_hours, usual.step) }
    }
}

fn rows(
    estimators: &[Estimator],
    judged: &[Vec<Outcome>],
    oracle: &[Outcome],
    chosen: &Auto,
    target: f64,
) -> Vec<PackRow> {
    let row = |estimator, parameter, promised, outcomes: &[Outcome]| PackRow {
        estimator,
        parameter,
        machines: Outcome::mean_machines(outcomes),
        promised,
        realised: Outcome::realised(outcomes),
        selected: false,
        steps_taken: 0,
    };
    let mut rows = Vec::new();
    for (n, estimator) in estimators.iter().enumerate() {
        let own: Vec<Outcome> = judged.iter().map(|step| step[n]).collect();
        let (name, parameter) = (estimator.family.name(), Some(estimator.parameter));
        rows.push(PackRow {
            selected: n == chosen.next,
            steps_taken: chosen.taken.iter().filter(|(taken, _)| *taken == n).count(),
            ..row(name, parameter, estimator.promised(), &own)
        });
    }
    if !chosen.taken.is_empty() {
        let taken: Vec<Outcome> = chosen.taken.iter().map(|(_, outcome)| *outcome).collect();
        rows.push(row("auto", None, Some(target), &taken));
    }
    rows.push(row("oracle", None, Some(target), oracle));
    rows
}

/// For people: of each family what it promises at the target, and what would have kept it; then a sentence.
fn text(answer: &Answer) -> String {
    let Answer { vms, capacity, target, cut, rows, .. } = answer;
    let percent = |share: f64| format!("{:.2}", 100.0 * share);
    let mut shown: Vec<(&PackRow, &str)> = Vec::new();
    for family in Family::ALL {
        let own = || rows.iter().filter(|row| row.estimator == family.name());
        shown.extend(own().filter(|row| row.promised == Some(*target)).map(|row| (row, "at its word")));
        let kept = own().filter(|row| row.realised <= *target);
        let fewest = kept.min_by(|a, b| a.machines.total_cmp(&b.machines));
        shown.extend(fewest.map(|row| (row, "fewest that kept it, in hindsight")));
    }
    shown.extend(rows.iter().filter(|row| row.parameter.is_none()).map(|row| match row.estimator {
        "auto" => (row, "chosen anew before each step"),
        _ => (row, "knows what will come"),
    }));

    let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    let table = TextTable::of(
        2,
        &shown,
        &[
            ("estimator", &|(row, _)| row.estimator.to_owned()),
            ("", &|(_, why)| (*why).to_owned()),
            ("parameter", &|(row, _)| number(row.parameter)),
            ("machines", &|(row, _)| format!("{:.1}", row.machines)),
            ("promised %", &|(row, _)| row.promised.map_or_else(String::new, percent)),
            ("realised %", &|(row, _)| percent(row.realised)),
        ],
    );

    let short = if cut.short { " (the file is shorter than a week and a day)" } else { "" };
    let head = format!(
        "{vms} VMs on machines of {capacity}; learnt from {:.1} h, judged by the next {:.1} h{short}; \
         {} of {} steps are judged",
        cut.train_h, cut.step_h, cut.judged_steps, cut.steps
    );
    format!("{head}\n\n{}\n\n{}", table.text(), sentence(answer))
}

fn sentence(answer: &Answer) -> String {
    let Some(next) = answer.rows.iter().find(|row| row.selected) else { return String::new() };
    let parameter = next.parameter.unwrap_or_default();
    let auto = answer.rows.iter().find(|row| row.estimator == "auto").map_or_else(String::new, |auto| {
        let verdict = if auto.realised <= answer.target { "kept" } else { "MISSED" };
        format!(
            " Chosen anew like this before each step, the choice needed {:.1} machines and {verdict} the \
             target: {:.2} % realised of {:.2} % promised.",
            auto.machines,
            100.0 * auto.realised,
            100.0 * answer.target
        )
    });
    format!("Pack by {} {parameter} next: the last steps speak for it.{auto}", next.estimator)
}
