//! Measured load on a chassis, under budgets around its own peak.

mod figure;
mod goals;
mod group;

use ballast_sim::replay::{Meaning, Sizes};

use self::group::{group, median};
use super::{Named, Part, Report, filled, maybe, section};
use crate::traces::{Options, TracePolicy, TraceResult};
use ballast_cli::common::text_table::TextTable;

/// The report on these rows of the data sets `names`; `command` makes it again.
pub fn report(
    options: &Options,
    names: &[String],
    rows: &[TraceResult],
    command: String,
) -> anyhow::Result<Report> {
    let mut parts = vec![Part::Words(words(options))];
    for name in names {
        let mine: Vec<&TraceResult> = rows.iter().filter(|row| row.data == *name).collect();
        parts.extend(section(heading(&mine), table(&mine, options)));
    }
    parts.push(Part::Figure(figure::lines(rows, names, options)));

    Ok(Report {
        name: "traces",
        title: "Measured load under budgets around its own peak",
        command,
        parts,
        goals: goals::of(rows, names),
        options: serde_json::to_value(options)?,
        rows: serde_json::to_value(rows)?,
    })
}

fn heading(rows: &[&TraceResult]) -> String {
    let Some(row) = rows.first() else { return String::new() };
    let series = match row.series_are {
        Meaning::Server => "servers",
        Meaning::Vm => "VMs",
    };
    format!(
        "{}: {} series as {series} on {} servers, {:.2} h after {:.2} h, peak {:.0} W, idle {:.0} W",
        row.data,
        row.series_used,
        row.servers,
        row.played_s / 3600.0,
        row.skipped_s / 3600.0,
        median(rows.iter().map(|row| row.peak_w)).unwrap_or(f64::NAN),
        row.idle_w,
    )
}

fn table(rows: &[&TraceResult], options: &Options) -> TextTable {
    let of_budget =
        |budget: &f64| options.policies.iter().map(move |policy| (*budget, *policy)).collect::<Vec<_>>();
    let of = |&(budget, policy): &(f64, TracePolicy), figure: fn(&TraceResult) -> Option<f64>, places| {
        maybe(median(group(rows, budget, policy).into_iter().filter_map(figure)), places)
    };

    TextTable::of(
        3,
        options.budgets_percent.iter().flat_map(of_budget),
        &[
            ("budget %", &|(budget, _)| budget.to_string()),
            ("policy", &|(_, policy)| policy.name().to_owned()),
            ("shares", &|(_, policy)| policy.shares().map_or("–", |shares| shares.name()).to_owned()),
            ("UF core-s", &|case| of(case, |r| Some(r.user_facing_throttled_core_s), 0)),
            ("batch work %", &|case| of(case, |r| Some(100.0 * r.batch_work_ratio?), 2)),
            ("above %", &|case| of(case, |r| Some(100.0 * r.over_budget_share), 3)),
            ("trip fraction", &|case| of(case, |r| Some(r.trip_fraction_max), 3)),
            ("budget used %", &|case| of(case, |r| Some(100.0 * r.budget_used_ratio?), 2)),
            ("hardware s", &|case| of(case, |r| Some(r.hardware_s), 1)),
            ("changes", &|case| of(case, |r| Some(r.pstate_changes_per_core_min), 2)),
            ("max W", &|case| of(case, |r| Some(r.max_power_w), 0)),
            ("mean W", &|case| of(case, |r| Some(r.mean_power_w), 0)),
        ],
    )
}

fn words(options: &Options) -> String {
    let sizes = match options.sizes {
        Sizes::Equal => "of 40 cores",
        Sizes::Unequal => "of 40, 20 and 60 cores by turns, with VMs and watts in proportion",
    };
    let from =
        if options.skip_hours.is_some() { "from a given hour on" } else { "around the busiest instant" };
    let (servers, seeds) = (options.servers, options.seeds.len());
    let values: [Named<'_>; 4] =
        [("servers", &servers), ("sizes", &sizes), ("from", &from), ("seeds", &seeds)];
    filled(include_str!("words/traces.md"), &values)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn row(policy: TracePolicy, seed: u64, budget_percent: f64, user_facing: f64) -> TraceResult {
        TraceResult {
            data: "made".to_owned(),
            seed,
            budget_percent,
            policy,
            shares: policy.shares().map(|shares| shares.name()),
            user_facing_throttled_core_s: user_facing,
            batch_work_ratio: Some(0.9),
            over_budget_share: 0.001,
            trip_fraction_max: 0.25,
            budget_used_ratio: None,
            hardware_s: 1.5,
            pstate_changes_per_core_min: 2.0,
            series_are: Meaning::Vm,
            series_used: 72,
            servers: 12,
            skipped_s: 0.0,
            played_s: 10_800.0,
            budget_w: 2000.0,
            peak_w: 2000.0,
            idle_w: 1500.0,
            max_power_w: 2010.0,
            mean_power_w: 1900.0,
        }
    }

    #[test]
    fn the_table_shows_medians_over_the_seeds_and_nothing_where_nothing_is() {
        let rows = [
            row(TracePolicy::Stepwise, 1, 95.0, 10.0),
            row(TracePolicy::Stepwise, 2, 95.0, 40.0),
            row(TracePolicy::Stepwise, 3, 95.0, 20.0),
        ];

        let all: Vec<&TraceResult> = rows.iter().collect();
        let policies = vec![TracePolicy::Stepwise];
        let options = Options { budgets_percent: vec![95.0], policies, ..Options::default() };
        let text = table(&all, &options).text();
        let cells: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        let expected = [
            "95",
            "stepwise",
            "critical-first",
            "20",
            "90.00",
            "0.100",
            "0.250",
            "1.5",
            "2.00",
            "2010",
            "1900",
        ];

        assert_eq!(cells, expected);
        assert_eq!((median([]), median([3.0, 1.0])), (None, Some(2.0)));
    }
}
