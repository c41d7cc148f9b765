//! Foreign telemetry on the plant, under the very same controllers.

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use ballast_agent_core::Policy;
use ballast_sim::replay::{Meaning, Options, Telemetry, TelemetryReport};
use ballast_sim::trace::{ReadOptions, Trace, Unit};
use ballast_types::Watts;
use serde::Serialize;

use super::{TelemetryArgs, UnitArg, plot};
use crate::demo::PolicyArg;
use crate::{progress_bar, say, tell};

/// Points of the plot.
const POINTS: usize = 1200;
/// Virtual time between two looks at the progress.
const CHUNK: Duration = Duration::from_secs(60);

/// The report, and how long it took.
#[derive(Debug, Serialize)]
struct Timed {
    #[serde(flatten)]
    report: TelemetryReport,
    /// Wall time of the run.
    wall_s: f64,
    /// Virtual seconds in one of wall time.
    speedup: f64,
}

pub(super) fn run(path: &Path, args: &TelemetryArgs, json: bool) -> anyhow::Result<ExitCode> {
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("--telemetry {name}"))?;
    let trace = Trace::read(std::io::BufReader::new(file), &name, &read_options(args))?;
    let mut run = Telemetry::new(&trace, &options(args)?)?;
    drop(trace);
    // Of the replayed seconds.
    let bar = progress_bar(run.length().as_secs(), "{wide_bar} {percent} %  {eta} left");
    let begun = Instant::now();
    while !run.advance(CHUNK)? {
        bar.set_position(run.done().as_secs());
    }
    let wall_s = begun.elapsed().as_secs_f64();
    bar.finish_and_clear();
    let report = run.report();
    let speedup = report.replayed_s / wall_s.max(1e-9);
    if let Some(file) = &args.plot {
        plot::draw(file, &report).with_context(|| format!("--plot {}", file.display()))?;
        tell(&format!("plot: {}", file.display()));
    }
    let timed = Timed { report, wall_s, speedup };
    say(&if json { serde_json::to_string_pretty(&timed)? } else { text(&timed) })?;
    Ok(ExitCode::SUCCESS)
}

fn read_options(args: &TelemetryArgs) -> ReadOptions {
    ReadOptions {
        time_column: args.time_column.clone(),
        series_column: args.server_column.clone(),
        value_column: args.value_column.clone(),
        unit: args.unit.map(|unit| match unit {
            UnitArg::Percent => Unit::Percent,
            UnitArg::Share => Unit::Share,
            UnitArg::Watts => Unit::Watts,
        }),
    }
}

fn options(args: &TelemetryArgs) -> anyhow::Result<Options> {
    let budget_w = args.budget_w.context("--budget-w is needed")?;
    Ok(Options {
        budget: Watts::from_f64(budget_w)
            .with_context(|| format!("--budget-w {budget_w}: allowed is at most 1e9"))?,
        servers: args.servers.map(usize::from),
        skip_s: args.skip_hours * 3600.0,
        length_s: (args.hours > 0.0).then_some(args.hours * 3600.0),
        seed: args.seed,
        policy: match args.policy {
            PolicyArg::Stepwise => Policy::Stepwise,
            PolicyArg::Predictive => Policy::Predictive,
            PolicyArg::FullServer => Policy::FullServer,
            PolicyArg::None => Policy::None,
        },
        scale: args.scale,
        model: args.server.model(),
        points: if args.plot.is_some() { POINTS } else { 0 },
    })
}

fn text(timed: &Timed) -> String {
    let Timed { report: r, wall_s, speedup } = timed;
    let series = match r.series_are {
        Meaning::Server => format!("{} series, each a server's load", r.series_used),
        Meaning::Vm => format!("{} series, each a VM's load", r.series_used),
    };
    let mut rows = vec![
        ("telemetry", r.telemetry.clone()),
        ("played as", format!("{} servers, {series}; policy {}", r.servers, r.policy)),
        (
            "time",
            format!(
                "{:.2} of {:.2} h in {wall_s:.2} s: {speedup:.0} × real time, {} polls",
                r.replayed_s / 3600.0,
                r.telemetry_s / 3600.0,
                r.polls
            ),
        ),
        ("budget", format!("{:.1} W", r.budget_w)),
        ("draw", format!("at most {:.1} W, mean {:.1} W", r.max_power_w, r.mean_power_w)),
        (
            "above budget",
            format!(
                "{:.2} s at a stretch, {:.2} s in all",
                r.over_budget_s_max, r.over_budget_s_total
            ),
        ),
        (
            "capping",
            format!(
                "{} episodes; emergency {:.1} s, server limits {:.1} s, out of band {:.1} s",
                r.capping_events, r.emergency_s, r.server_limit_s, r.out_of_band_s
            ),
        ),
        ("hardware", format!("engaged for {:.1} s", r.hardware_engaged_s)),
        (
            "user-facing",
            format!("throttled for {:.1} core-seconds", r.user_facing_throttled_core_s),
        ),
        (
            "batch",
            format!(
                "throttled for {:.1} core-seconds; frequency {:.1} % of the highest on average, \
                 {:.1} % at worst, {:.1} % at the end",
                r.batch_throttled_core_s,
                100.0 * r.batch_frequency_ratio_mean,
                100.0 * r.batch_frequency_ratio_min,
                100.0 * r.batch_frequency_ratio_end
            ),
        ),
        ("input", format!("{} gaps held, {} values clamped", r.gaps, r.clamped_values)),
        ("hash", r.outputs_hash.clone()),
    ];
    if r.capping_events == 0 && r.max_power_w <= r.budget_w {
        let share = 100.0 * r.max_power_w / r.budget_w;
        rows.push((
            "note",
            format!("the load never neared the budget: {share:.0} % of it at most"),
        ));
    }
    let lines = rows.iter().map(|(name, value)| format!("{name:<13}{value}"));
    lines.collect::<Vec<_>>().join("\n")
}
