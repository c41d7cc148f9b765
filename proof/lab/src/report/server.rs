//! One server under a fixed cap, the paper's Figures 4 and 5.

mod figures;
mod goals;
mod rows;

use serde::Serialize;
use serde_json::{Value, json};

pub use self::rows::LoadRows;
use super::{Named, Part, Report, filled, maybe, number, paper, percent, range, section};
use crate::server::{Options, ServerResult, Trace};
use crate::{Arrivals, Shape};
use ballast_cli::common::text_table::TextTable;

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
    let paper = base.shape == Shape::PAPER;

    for set in &sets {
        parts.extend(section(format!("Load: {}", set.load()), table(&set.rows, paper)));
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

fn words(options: &Options) -> String {
    let Shape { idle_w, full_w, half_frequency_full_w } = options.shape;
    let values: [Named<'_>; 5] = [
        ("idle", &idle_w),
        ("full", &full_w),
        ("half", &half_frequency_full_w),
        ("minutes", &options.minutes),
        ("seeds", &options.seeds.len()),
    ];
    filled(include_str!("words/server.md"), &values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medians::Medians;

    pub(super) fn row(cap_w: f64, policy: &'static str, p95: f64, runtime: f64) -> ServerResult {
        ServerResult { cap_w, policy, figures: Medians::sample("over_cap", p95, runtime) }
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
