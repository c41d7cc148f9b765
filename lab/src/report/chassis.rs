//! Twelve servers under one budget, the paper's Figure 6.

mod goals;

use super::table::TextTable;
use super::{Part, Report, maybe, number, paper, percent, range};
use crate::Contender;
use crate::chassis::{ChassisResult, Options};
use crate::plot::figure::{Figure, colour};
use crate::plot::groups::{Groups, Mark, Point, Series};

/// Height of one panel, in pixels.
const PANEL: u32 = 380;

/// The report on these rows; `command` makes it again.
pub fn report(
    options: &Options,
    rows: &[ChassisResult],
    command: String,
    figures: bool,
) -> anyhow::Result<Report> {
    // The paper's numbers are of its own server and budget.
    let usual = Options::default();
    let paper = options.shape == usual.shape && options.budget_w == usual.budget_w;
    let mut parts = vec![Part::Words(words(options)), Part::TextTable(table(rows, paper))];
    if figures {
        parts.push(Part::Figure(figure6(rows, paper)));
    }

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
    let head = [
        "placement",
        "policy",
        "shares",
        "P95",
        "range",
        "paper",
        "run time",
        "range",
        "excess",
        "mean W",
        "max W",
        "above s",
        "worst seed",
        "above %",
        "10 ms %",
        "UF core-s",
        "changes",
        "limit s",
    ];

    let mut table = TextTable::new(3, &head);
    for r in rows {
        let stated = paper::chassis_p95(r.placement, r.policy, r.shares).filter(|_| paper);
        table.row(vec![
            r.placement.to_owned(),
            r.policy.to_owned(),
            r.shares.unwrap_or("–").to_owned(),
            number(r.user_facing_p95_norm, 3),
            range(r.user_facing_p95_norm_min, r.user_facing_p95_norm_max, 3),
            maybe(stated, 2),
            number(r.batch_runtime_norm, 3),
            range(r.batch_runtime_norm_min, r.batch_runtime_norm_max, 3),
            number(r.excess, 3),
            number(r.mean_power_w, 0),
            number(r.max_power_w, 0),
            number(r.over_budget_s_max, 1),
            number(r.over_budget_s_max_max, 1),
            percent(r.over_budget_fraction, 2),
            percent(r.over_budget_fraction_10ms, 2),
            number(r.user_facing_throttled_core_s, 0),
            number(r.pstate_changes_per_core_min, 1),
            number(r.server_limit_s, 1),
        ]);
    }

    table
}

/// P95 latency and run time by placement and shares, and policy.
fn figure6(rows: &[ChassisResult], paper: bool) -> Figure {
    let p95 = |r: &ChassisResult| Point {
        median: r.user_facing_p95_norm,
        min: r.user_facing_p95_norm_min,
        max: r.user_facing_p95_norm_max,
    };

    let runtime = |r: &ChassisResult| Point {
        median: r.batch_runtime_norm,
        min: r.batch_runtime_norm_min,
        max: r.batch_runtime_norm_max,
    };

    let stated = |r: &ChassisResult| paper::chassis_p95(r.placement, r.policy, r.shares).filter(|_| paper);
    let upper = groups("P95 latency of the user-facing VMs", rows, p95, stated);
    let lower = groups("Mean run time of the batch VMs", rows, runtime, |_| None);

    Figure {
        name: "chassis-figure6".to_owned(),
        caption: "Figure 6: by placement, shares and policy, against no budget; median and range \
                  over seeds"
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
    value: impl Fn(&ChassisResult) -> Point,
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
    format!(
        "Twelve servers share {budget} W at the supplies' input and run 36 user-facing VMs of 4 \
         cores and 36 batch VMs of 6 cores. `balanced` puts three of each on every server; \
         `imbalanced` puts nine user-facing VMs on each of four servers and the batch VMs on the \
         other eight. The batch VMs are calm for 20 s (at 20 % of their cores), then all of them \
         begin in full at once, so that every controller meets a real rise. From there they have \
         fixed work, {minutes} minutes of it at full speed, and their run time counts; power, P95 \
         and time above the budget are of the whole run, calm included. Load \
         {arrivals}, batch share {share}; {seeds} seeds; medians, with the range over seeds. \
         `P95` is over the requests of all user-facing VMs, `run time` is the mean of the batch \
         VMs, both against `none` of the same placement and seed. `above s` is the longest \
         stretch above the budget by 100 ms means of the true draw, `worst seed` the longest of \
         any seed. A stretch says nothing of how far above: both policies hold down how far a breaker \
         goes towards its trip, and `predictive` may be above for 1 % of the time. The other columns \
         are as for one server.",
        budget = options.budget_w,
        minutes = options.minutes,
        arrivals = options.arrivals.name(),
        share = options.batch_share,
        seeds = options.seeds.len(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of made-up numbers.
    pub(super) fn row(
        placement: &'static str,
        policy: &'static str,
        shares: Option<&'static str>,
        p95: f64,
        runtime: f64,
    ) -> ChassisResult {
        ChassisResult {
            placement,
            policy,
            shares,
            user_facing_p95_norm: p95,
            user_facing_p95_norm_min: p95 - 0.01,
            user_facing_p95_norm_max: p95 + 0.01,
            batch_runtime_norm: runtime,
            batch_runtime_norm_min: runtime,
            batch_runtime_norm_max: runtime,
            excess: 0.1,
            max_power_w: 2460.0,
            mean_power_w: 2400.0,
            over_budget_s_max: 0.4,
            over_budget_s_max_min: 0.4,
            over_budget_s_max_max: 0.6,
            over_budget_fraction: 0.001,
            over_budget_fraction_min: 0.001,
            over_budget_fraction_max: 0.002,
            over_budget_fraction_10ms: 0.003,
            user_facing_throttled_core_s: 0.0,
            pstate_changes_per_core_min: 10.0,
            server_limit_s: 0.0,
            seeds: 2,
        }
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
