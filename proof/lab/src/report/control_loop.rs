//! The control loop beside an oracle, a plain PI and Dynamo's bands.

use super::{Named, Part, Report, filled, maybe, number, percent, section};
use crate::control_loop::{LoopResult, Options, RandomResult, random_rows, without_effect};
use ballast_cli::common::text_table::TextTable;

/// The report on these rows; `command` makes it again.
///
/// # Errors
/// If the options or rows are no JSON.
pub fn report(options: &Options, rows: &[LoopResult], command: String) -> anyhow::Result<Report> {
    let values: [Named<'_>; 2] = [("seeds", &options.seeds.seeds), ("seconds", &options.seconds)];
    let words = filled(include_str!("words/control_loop.md"), &values);
    let mut parts = vec![Part::Words(words), Part::TextTable(table(rows))];
    if options.sweep {
        let mut idle = TextTable::new(1, &["number"]);
        without_effect(rows).into_iter().for_each(|name| idle.row(vec![name]));
        parts.extend(section("Numbers that change no figure", idle));
    }
    Ok(of(command, parts, serde_json::to_value(options)?, serde_json::to_value(rows)?))
}

/// The report on runs drawn from seeds; `command` makes it again.
///
/// # Errors
/// If the options or runs are no JSON.
pub fn random(options: &Options, runs: &[RandomResult], command: String) -> anyhow::Result<Report> {
    let rows = random_rows(runs);
    let table = TextTable::of(
        2,
        &rows,
        &[
            ("actuator", &|([actuator, _], ..)| actuator.clone()),
            ("shares", &|([_, shares], ..)| shares.clone()),
            ("runs", &|(_, runs, _)| runs.to_string()),
            ("runs with user-facing cores slowed", &|(.., slowed)| slowed.to_string()),
        ],
    );
    let parts = vec![Part::TextTable(table)];
    Ok(of(command, parts, serde_json::to_value(options)?, serde_json::to_value(runs)?))
}

fn of(command: String, parts: Vec<Part>, options: serde_json::Value, rows: serde_json::Value) -> Report {
    let title = "The control loop beside other controllers";
    Report { name: "loop", title, command, parts, goals: Vec::new(), options, rows }
}

fn table(rows: &[LoopResult]) -> TextTable {
    TextTable::of(
        1,
        rows,
        &[
            ("load", &|r| r.load.to_owned()),
            ("servers", &|r| r.servers.to_string()),
            ("floor %", &|r| number(r.floor_percent, 0)),
            ("policy", &|r| match &r.change {
                Some(change) => format!("{} {change}", r.policy),
                None => r.policy.to_owned(),
            }),
            ("mean %", &|r| percent(r.figures.mean_draw, 2)),
            ("above %", &|r| percent(r.figures.above_fraction, 2)),
            ("trip", &|r| number(r.figures.trip_fraction_max, 3)),
            ("slowed core-s", &|r| number(r.figures.user_facing_slowed_core_s, 0)),
            ("slowed %", &|r| percent(r.figures.user_facing_slowed_fraction, 2)),
            ("own limit s", &|r| number(r.figures.server_limit_s, 0)),
            ("hardware s", &|r| number(r.figures.hardware_cap_s, 0)),
            ("RMS 60 s %", &|r| maybe(r.figures.rms_max.map(|share| 100.0 * share), 2)),
        ],
    )
}
