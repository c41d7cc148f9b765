//! One server under a fixed cap, the paper's Figures 4 and 5.

mod figures;
mod goals;
mod rows;

use serde::Serialize;
use serde_json::{Value, json};

pub use self::rows::LoadRows;
use super::{Part, Report, maybe, number, paper, percent, range};
use crate::Arrivals;
use crate::server::{Options, ServerResult, Trace};
use ballast_cli::common::text_table::TextTable;

/// How the loads were chosen, for the document.
const CALIBRATION: &str = "**Calibration.** Only what the paper says of *uncapped* and *full-server* \
    runs, and of the hardware, was used: uncapped, the server draws well above 250 W; full-server \
    capping raises P95 by 18 % at 230 W and by 35 % at 210 W; with the batch VM at its floor, 220 W \
    can be held and 210 W cannot. Utilisation, the share of user-facing work that scales with the \
    clock, and the size of bursts follow from that. What per-VM capping does was not used: it comes \
    out of the model. The lines marked *calibration* above show how well that worked. `bursty` moves \
    the user-facing load by no more than 10 W: between bursts its VM is busy for 65 %, at most for 75 %.\n\n\
    **Request length was chosen.** Requests take 0.5 ms on average. How many of 20 cores are busy \
    flickers with every request, and the longer requests are, the slower and the larger this flicker \
    is in means over 100 ms; no p-state control can follow it. The length was chosen such that most of \
    the flicker is short. The cases with other service times are judged like the base case, above.\n\n\
    **Time above the cap is part of the price.** `predictive` is told that it may be above the cap for 1 % \
    of the time, as a chassis manager tells it, and its margin follows from that and from how far the draw \
    flickers. The margin of `stepwise` is a share of the cap: under a bursty load `stepwise` is above the \
    cap for 5 to 16 % of the time, and loses less run time for that. At an equal share of time the section \
    *Lost run time against time above the cap* compares both. Where the margin is told, one window of RAPL \
    counts for half, so that flicker moves no core; a burst is met some windows later, and the longest \
    stretches come from that.\n\n\
    **What the plant leaves out.** Batch cores do not slow user-facing ones: they share no cache, memory \
    or turbo budget. So the P95 of `stepwise` and `predictive` is 1.000 by construction at 250–220 W, \
    unless something holds user-facing cores; that goal tests whether anything did. `thunderbolt` is \
    made for thousands of machines: on one server a release step (5 % of 20 cores, 5 W) is wider than the \
    band between its thresholds (2 % of the cap), so it overshoots.";
/// What the table's columns are, for the document.
const COLUMNS: &str = "`P95` is the latency of the user-facing VM and `run time` that of the batch \
    VM, both against `none` of the same seed; `paper` is what the paper's text states. `excess` is \
    the lost run time less the oracle's; it is below zero for who slows the user-facing VM down \
    instead. `above s` and `above %` are the longest stretch and the share of time above the cap, by \
    100 ms means of the true draw: a supply's capacitors carry shorter swings. `10 ms %` is the same \
    share by the plant's own steps, where single requests show. `UF core-s` are core-seconds that \
    user-facing cores were held down, by anything; `changes` are p-state changes per batch core and \
    minute; `limit s` are seconds in which the server's own limit (RAPL) was on beside the agent.";

/// A row with its load: what `--json` prints.
#[derive(Serialize)]
struct FlatRow {
    arrivals: Arrivals,
    batch_share: f64,
    service_ms: f64,
    #[serde(flatten)]
    row: ServerResult,
}

/// The loads that were tried, each once: the first of each is the base case's.
pub struct Loads {
    pub arrivals: Vec<Arrivals>,
    /// Shares of the batch work that scale with the clock.
    pub shares: Vec<f64>,
    /// Mean service times of one request, in milliseconds.
    pub services_ms: Vec<f64>,
}

/// The report on these sets, of which the first is the base case; `traces` are Figure 4's, where figures are
/// drawn; `command` makes the report again.
pub fn report(
    base: &Options,
    loads: &Loads,
    sets: Vec<LoadRows>,
    traces: Option<(Vec<Trace>, f64)>,
    command: String,
) -> anyhow::Result<Report> {
    let mut options = serde_json::to_value(base)?;
    options["arrivals"] = json!(loads.arrivals);
    options["batch_share"] = json!(loads.shares);
    options["service_ms"] = json!(loads.services_ms);
    let mut parts = vec![Part::Words(words(base))];

    let figures = traces.is_some();
    if let Some((traces, cap_w)) = traces {
        parts.push(Part::Figure(figures::figure4(traces, cap_w)));
    }
    let paper = base.shape == Options::default().shape;

    for set in &sets {
        parts.push(Part::Heading(format!("Load: {}", set.load())));
        parts.push(Part::TextTable(table(&set.rows, paper)));
        if figures && set.batch_share == base.batch_share && set.service_ms == base.service_ms {
            parts.push(Part::Figure(figures::figure5(set, &base.contenders, paper)));
        }
    }

    Ok(Report {
        name: "server",
        title: "One server under a fixed cap (the paper's Figures 4 and 5)",
        command,
        parts,
        goals: if paper { goals::goals(&sets) } else { Vec::new() },
        options,
        rows: rows(sets)?,
    })
}

fn rows(sets: Vec<LoadRows>) -> anyhow::Result<Value> {
    let rows = sets.into_iter().flat_map(|LoadRows { arrivals, batch_share, service_ms, rows }| {
        rows.into_iter().map(move |row| FlatRow { arrivals, batch_share, service_ms, row })
    });
    Ok(serde_json::to_value(rows.collect::<Vec<_>>())?)
}

fn table(rows: &[ServerResult], paper: bool) -> TextTable {
    let stated = |r: &ServerResult, of: fn(f64, &str) -> Option<f64>| {
        maybe(of(r.cap_w, r.policy).filter(|_| paper), 2)
    };
    TextTable::of(
        2,
        rows,
        &[
            ("cap W", &|r| number(r.cap_w, 0)),
            ("policy", &|r| r.policy.to_owned()),
            ("P95", &|r| number(r.figures.user_facing_p95_norm.median, 3)),
            ("range", &|r| range(r.figures.user_facing_p95_norm.min, r.figures.user_facing_p95_norm.max, 3)),
            ("paper", &|r| stated(r, paper::server_p95)),
            ("run time", &|r| number(r.figures.batch_runtime_norm.median, 3)),
            ("range", &|r| range(r.figures.batch_runtime_norm.min, r.figures.batch_runtime_norm.max, 3)),
            ("paper", &|r| stated(r, paper::server_runtime)),
            ("excess", &|r| number(r.figures.excess, 3)),
            ("mean W", &|r| number(r.figures.mean_power_w, 1)),
            ("max W", &|r| number(r.figures.max_power_w, 1)),
            ("above s", &|r| number(r.figures.over_s_max.median, 1)),
            ("above %", &|r| percent(r.figures.over_fraction.median, 2)),
            ("10 ms %", &|r| percent(r.figures.over_fraction_10ms, 2)),
            ("UF core-s", &|r| number(r.figures.user_facing_throttled_core_s, 0)),
            ("changes", &|r| number(r.figures.pstate_changes_per_core_min, 1)),
            ("limit s", &|r| number(r.figures.server_limit_s, 1)),
        ],
    )
}

/// What was run, for the document.
fn words(options: &Options) -> String {
    format!(
        "A server of 2 × 20 cores ({idle} W idle, {full} W at full load, {half} W at half frequency) \
         runs a user-facing VM and a batch VM of 20 cores each, under a cap that never ends. The \
         user-facing VM is an open queue, the batch VM has fixed work: {minutes} minutes of it at \
         full speed, and the run ends when it is done. {seeds} seeds; values are medians, with the \
         range over seeds.\n\n{CALIBRATION}\n\n{COLUMNS}",
        idle = options.shape.idle_w,
        full = options.shape.full_w,
        half = options.shape.half_frequency_full_w,
        minutes = options.minutes,
        seeds = options.seeds.len(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medians::{Limit, Medians};

    /// A row of invented numbers.
    pub(super) fn row(cap_w: f64, policy: &'static str, p95: f64, runtime: f64) -> ServerResult {
        ServerResult { cap_w, policy, figures: Medians::sample(Limit::Cap, p95, runtime) }
    }

    #[test]
    fn the_papers_numbers_stand_beside_ours_for_its_server_alone() {
        let rows = [row(230.0, "stepwise", 1.004, 1.271), row(230.0, "full-server", 1.1, 1.05)];
        let with = table(&rows, true).text();
        assert!(with.contains("1.28") && with.contains("1.18"), "{with}");
        let without = table(&rows, false).text();
        assert!(!without.contains("1.28") && !without.contains("1.18"), "{without}");
    }

    #[test]
    fn json_rows_are_flat_and_name_their_load() {
        let rows = vec![row(230.0, "stepwise", 1.0, 1.2)];
        let set = LoadRows { arrivals: Arrivals::Bursty, batch_share: 0.6, service_ms: 0.5, rows };
        let json = super::rows(vec![set]).unwrap();
        assert_eq!((&json[0]["arrivals"], &json[0]["cap_w"]), (&json!("bursty"), &json!(230.0)));
    }
}
