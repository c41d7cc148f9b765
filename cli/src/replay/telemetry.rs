//! Foreign telemetry on the plant, under the very same controllers.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use ballast_sim::replay::{Meaning, Options, Playback, Telemetry, TelemetryReport};
use ballast_types::Watts;
use serde::Serialize;

use super::{TelemetryArgs, plot};
use crate::common::terminal::{answer, progress_bar, tell};

/// Points of the plot.
const POINTS: usize = 1200;

#[derive(Debug, Serialize)]
struct Timed {
    #[serde(flatten)]
    report: TelemetryReport,
    wall_s: f64,
    /// Virtual seconds in one of wall time.
    speedup: f64,
}

pub(super) fn run(path: &Path, args: &TelemetryArgs, json: bool) -> anyhow::Result<ExitCode> {
    let trace = args.columns.read(path)?;
    let telemetry = Telemetry::new(&trace, &options(args)?)?;
    drop(trace);

    // Of the replayed seconds.
    let bar = progress_bar(telemetry.length().as_secs(), "{wide_bar} {percent} %  {eta} left");
    let begun = Instant::now();

    let report = telemetry.run(|done| bar.set_position(done.as_secs()))?;
    let wall_s = begun.elapsed().as_secs_f64();
    bar.finish_and_clear();
    let speedup = report.replayed_s / wall_s.max(1e-9);

    if let Some(file) = &args.plot {
        plot::draw(file, &report).with_context(|| format!("--plot {}", file.display()))?;
        tell(&format!("plot: {}", file.display()));
    }

    let timed = Timed { report, wall_s, speedup };
    answer(json, &timed, || text(&timed))?;
    Ok(ExitCode::SUCCESS)
}

fn options(args: &TelemetryArgs) -> anyhow::Result<Options> {
    let budget_w = args.budget_w.context("--budget-w is needed")?;
    let playback = Playback {
        servers: args.servers.map(usize::from),
        skip_s: args.skip_hours * 3600.0,
        length_s: (args.hours > 0.0).then_some(args.hours * 3600.0),
        scale: args.scale,
        model: args.server.model(),
    };
    Ok(Options {
        playback,
        budget: Watts::from_f64(budget_w)
            .with_context(|| format!("--budget-w {budget_w}: allowed is at most 1e9"))?,
        control: args.control.control()?,
        seed: args.seed,
        points: if args.plot.is_some() { POINTS } else { 0 },
    })
}

fn text(timed: &Timed) -> String {
    let r = &timed.report;
    let mut rows = rows(timed);
    if r.outcome.capping_events == 0 && r.max_power_w <= r.budget_w {
        let share = 100.0 * r.max_power_w / r.budget_w;
        rows.push(("note", format!("the load never neared the budget: {share:.0} % of it at most")));
    }

    if r.outcome.trip_fraction_max >= 1.0 {
        let note = "the breaker trips: even with all that was done the servers draw too much for this \
                    budget; give it more watts, or play fewer servers";
        rows.push(("note", note.to_owned()));
    }

    let lines = rows.iter().map(|(name, value)| format!("{name:<13}{value}"));

    lines.collect::<Vec<_>>().join("\n")
}

/// The input and the results of the replay, as names and values.
fn rows(timed: &Timed) -> Vec<(&'static str, String)> {
    let Timed { report: r, wall_s, speedup } = timed;
    let whose = if r.series_are == Meaning::Server { "a server's" } else { "a VM's" };
    let series = format!("{} series, each {whose} load", r.series_used);

    vec![
        ("telemetry", r.telemetry.clone()),
        (
            "played as",
            format!("{} servers, {series}; {} by {}, {} shares", r.servers, r.policy, r.actuator, r.shares),
        ),
        (
            "time",
            format!(
                "{:.2} of {:.2} h in {wall_s:.2} s: {speedup:.0} × real time, {} polls",
                r.replayed_s / 3600.0,
                r.telemetry_s / 3600.0,
                r.outcome.polls
            ),
        ),
        ("budget", format!("{:.1} W", r.budget_w)),
        ("draw", format!("at most {:.1} W, mean {:.1} W", r.max_power_w, r.mean_power_w)),
        (
            "above budget",
            format!("{:.2} s at a stretch, {:.2} s in all", r.over_budget_s_max, r.over_budget_s_total),
        ),
        (
            "capping",
            format!(
                "{} capping events; emergency {:.1} s, server limits {:.1} s, hardware caps {:.1} s",
                r.outcome.capping_events,
                r.outcome.emergency_s,
                r.outcome.server_limit_s,
                r.outcome.out_of_band_s
            ),
        ),
        ("hardware", format!("engaged for {:.1} s", r.hardware_engaged_s)),
        ("user-facing", format!("throttled for {:.1} core-seconds", r.user_facing_throttled_core_s)),
        ("batch", batch(r)),
        ("batch work", or_none(r.batch_work_ratio, "of what it would be without a budget")),
        ("breaker", format!("{:.1} % of the way to its trip at most", 100.0 * r.outcome.trip_fraction_max)),
        ("budget used", or_none(r.budget_used_ratio, "while the load would draw more")),
        (
            "input",
            format!(
                "{} gaps held, {} values clamped, {} implausible and missing",
                r.gaps, r.clamped_values, r.implausible_values
            ),
        ),
        ("hash", r.outcome.outputs_hash.clone()),
    ]
}

fn batch(report: &TelemetryReport) -> String {
    format!(
        "throttled for {:.1} core-seconds; frequency {:.1} % of the highest on average, {:.1} % at worst, \
         {:.1} % at the end",
        report.batch_throttled_core_s,
        100.0 * report.batch_frequency_ratio_mean,
        100.0 * report.outcome.batch_frequency_ratio_min,
        100.0 * report.batch_frequency_ratio_end
    )
}

/// A ratio as a percentage with what it is of.
fn or_none(ratio: Option<f64>, of: &str) -> String {
    ratio.map_or_else(|| "none".to_owned(), |ratio| format!("{:.2} % {of}", 100.0 * ratio))
}
