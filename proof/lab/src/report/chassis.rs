//! Twelve servers under one budget, the paper's Figure 6.

mod goals;

use super::{Named, Part, Report, filled, maybe, number, paper, percent, range};
use crate::chassis::{ChassisResult, Options};
use crate::plot::figure::{Figure, colour};
use crate::plot::groups::{Groups, Mark, Series};
use crate::{Contender, Shape, Spread};
use ballast_cli::common::text_table::TextTable;

/// Height of one panel, in pixels.
const PANEL: u32 = 380;

/// The report on these rows; `command` makes it again.
pub fn report(options: &Options, rows: &[ChassisResult], command: String) -> anyhow::Result<Report> {
    // The paper's numbers are of its own server and budget.
    let usual = Options::default();
    let paper = options.shape == Shape::PAPER && options.budget_w == usual.budget_w;
    let mut parts = vec![Part::Words(words(options)), Part::TextTable(table(rows, paper))];
    parts.push(Part::Figure(figure6(rows, paper)));

    Ok(Report {
        name: "chassis",
        title: "Twelve servers under one budget (the paper's Figure 6)",
        command,
        parts,
        goals: if paper { goals::goals(rows) } else { Vec::new() },
        options: serde_json::to_value(options)?,
        rows: serde_json::to_value(rows)?,
    })
}

fn table(rows: &[ChassisResult], paper: bool) -> TextTable {
    let stated = |r: &ChassisResult| paper::chassis_p95(r.placement, r.policy, r.shares).filter(|_| paper);
    TextTable::of(
        3,
        rows,
        &[
            ("placement", &|r| r.placement.to_owned()),
            ("policy", &|r| r.policy.to_owned()),
            ("shares", &|r| r.shares.unwrap_or("–").to_owned()),
            ("P95", &|r| number(r.figures.user_facing_p95_norm.median, 3)),
            ("range", &|r| range(r.figures.user_facing_p95_norm.min, r.figures.user_facing_p95_norm.max, 3)),
            ("paper", &|r| maybe(stated(r), 2)),
            ("run time", &|r| number(r.figures.batch_runtime_norm.median, 3)),
            ("range", &|r| range(r.figures.batch_runtime_norm.min, r.figures.batch_runtime_norm.max, 3)),
            ("excess", &|r| number(r.figures.excess, 3)),
            ("mean W", &|r| number(r.figures.mean_power_w, 0)),
            ("max W", &|r| number(r.figures.max_power_w, 0)),
            ("above s", &|r| number(r.figures.over_s_max.median, 1)),
            ("worst seed", &|r| number(r.figures.over_s_max.max, 1)),
            ("above %", &|r| percent(r.figures.over_fraction.median, 2)),
            ("10 ms %", &|r| percent(r.figures.over_fraction_10ms, 2)),
            ("UF core-s", &|r| number(r.figures.user_facing_throttled_core_s, 0)),
            ("changes", &|r| number(r.figures.pstate_changes_per_core_min, 1)),
            ("limit s", &|r| number(r.figures.server_limit_s, 1)),
        ],
    )
}

/// P95 latency and run time by placement and shares, and policy.
fn figure6(rows: &[ChassisResult], paper: bool) -> Figure {
    let p95 = |r: &ChassisResult| r.figures.user_facing_p95_norm;
    let runtime = |r: &ChassisResult| r.figures.batch_runtime_norm;
    let stated = |r: &ChassisResult| paper::chassis_p95(r.placement, r.policy, r.shares).filter(|_| paper);
    let upper = groups("P95 latency of the user-facing VMs", rows, p95, stated);
    let lower = groups("Mean run time of the batch VMs", rows, runtime, |_| None);

    Figure {
        name: "chassis-figure6".to_owned(),
        caption: "Figure 6: by placement, shares and policy, against no budget; median and range over seeds"
            .to_owned(),
        height: 2 * PANEL,
        draw: Box::new(move |area| {
            let (above, below) = area.split_vertically(PANEL);
            upper.draw(&above)?;
            lower.draw(&below)
        }),
    }
}

/// A group for every placement and way to share; who does not share stands in a group of its own.
fn groups(
    caption: &'static str,
    rows: &[ChassisResult],
    value: impl Fn(&ChassisResult) -> Spread,
    stated: impl Fn(&ChassisResult) -> Option<f64>,
) -> Groups {
    let name = |r: &ChassisResult| format!("{}, {}", r.placement, r.shares.unwrap_or("no shares"));
    let mut names: Vec<String> = Vec::new();
    let mut series: Vec<Series> = Vec::new();

    for row in rows.iter().filter(|row| row.policy != Contender::None.name()) {
        if !names.contains(&name(row)) {
            names.push(name(row));
        }
        if !series.iter().any(|s| s.name == row.policy) {
            let (name, colour) = (row.policy.to_owned(), colour(row.policy));
            series.push(Series { name, colour, points: Vec::new() });
        }
    }

    let mut marks = Vec::new();

    for (at, one) in series.iter_mut().enumerate() {
        for (group, of) in names.iter().enumerate() {
            let row = rows.iter().find(|r| name(r) == *of && r.policy == one.name);
            one.points.push(row.map(&value));
            marks.extend(row.and_then(&stated).map(|value| Mark { group, series: at, value }));
        }
    }

    Groups { caption, y_desc: "against no budget", names, series, marks }
}

fn words(options: &Options) -> String {
    let values: [Named<'_>; 5] = [
        ("budget", &options.budget_w),
        ("minutes", &options.minutes),
        ("arrivals", &options.arrivals.name()),
        ("share", &options.batch_share),
        ("seeds", &options.seeds.seeds),
    ];
    filled(include_str!("words/chassis.md"), &values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medians::Medians;

    pub(super) fn row(
        placement: &'static str,
        policy: &'static str,
        shares: Option<&'static str>,
        p95: f64,
        runtime: f64,
    ) -> ChassisResult {
        ChassisResult { placement, policy, shares, figures: Medians::sample("over_budget", p95, runtime) }
    }

    #[test]
    fn figure_6_groups_by_placement_and_shares() {
        let rows = [
            row("balanced", "none", None, 1.0, 1.0),
            row("balanced", "thunderbolt", None, 1.0, 1.5),
            row("balanced", "stepwise", Some("even"), 1.0, 1.2),
            row("imbalanced", "stepwise", Some("even"), 1.2, 1.1),
            row("imbalanced", "stepwise", Some("critical-first"), 1.0, 1.3),
        ];
        let svg = figure6(&rows, true).svg().unwrap();
        for text in ["balanced, even", "imbalanced, critical-first", "balanced, no shares", "stepwise"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(!svg.contains(">\nnone\n<"), "{svg}");
        let table = table(&rows, true).text();
        assert_eq!(table.lines().count(), 6, "{table}");
    }
}
