//! Policies by lifetimes against best fit.

mod drains;
mod figure;
mod goals;

use serde_json::json;

use super::{Named, Part, Report, filled, number, percent, section, without_data};
use crate::lifetimes::{Contestant, DrainRun, LifetimeRow, ModelQuality, Options, PairedTable, Run};
use ballast_cli::common::text_table::TextTable;

/// Which lifetimes scores speak of, among those of [`ballast_predict::lifetime::score::LONG_S`]: seven days.
const WEEK: usize = 2;

pub struct Measured<'a> {
    pub options: &'a Options,
    pub runs: &'a [Run],
    pub models: &'a [ModelQuality],
    pub drains: &'a [DrainRun],
    /// Names of recordings that are not there.
    pub skipped: &'a [String],
}

pub fn report(measured: &Measured<'_>, command: String) -> anyhow::Result<Report> {
    let Measured { options, runs, models, drains, skipped } = measured;
    let table = PairedTable::new(runs, options.days as f64 - 2.0);
    let rows = table.rows();
    let (noisy, quiet): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.prediction.starts_with("noisy"));
    let quiet = quiet.iter().copied();

    let mut parts = vec![Part::Words(words(options))];
    parts.extend(without_data(skipped));
    parts.extend(section("Hosts without a VM, in points against best fit", points(quiet.clone())));
    parts.extend(section(
        "The gap between best fit and the bound that is closed, in percent",
        gaps(quiet.clone()),
    ));
    if !noisy.is_empty() {
        parts.extend(section("A noisy predictor, by its accuracy", points(noisy.iter().copied())));
    }
    parts.extend(figure::by_accuracy(&table, options).map(Part::Figure));
    parts.push(Part::Heading("What empty hosts are good for, against best fit".to_owned()));
    parts.push(Part::Words(measures_words(options)));
    parts.push(Part::TextTable(measures(quiet)));
    let drains = drains::sums(drains);
    if !drains.is_empty() {
        parts.extend(section("Rounds of drains: moves that each order saves (LARS)", drains::table(&drains)));
    }
    parts.extend(section("The models, on VMs that came after what they learnt from", quality(models)));

    let mut described = serde_json::to_value(options)?;
    described["skipped"] = json!(skipped);
    described["models"] = serde_json::to_value(models)?;
    described["drains"] = serde_json::to_value(&drains)?;
    Ok(Report {
        name: "lifetimes",
        title: "VMs that end together: hosts that come free together (LAVA, arXiv 2412.09840)",
        command,
        parts,
        goals: goals::goals(&table, options, &drains),
        options: described,
        rows: serde_json::to_value(rows)?,
    })
}

fn words(options: &Options) -> String {
    let Options { pools, host_cores, hosts, days, .. } = options;
    let values: [Named<'_>; 4] = [("pools", pools), ("cores", host_cores), ("hosts", hosts), ("days", days)];
    filled(include_str!("words/lifetimes.md"), &values)
}

fn measures_words(options: &Options) -> String {
    let power = &options.power;
    let values: [Named<'_>; 4] = [
        ("reserve", &power.reserve_hosts),
        ("off_w", &power.off_w),
        ("idle_w", &power.idle_w),
        ("wake_s", &(power.wake_ms / 1000)),
    ];
    filled(include_str!("words/lifetimes-measures.md"), &values)
}

/// Rows of one pool, scenario and prediction together.
fn groups<'a>(rows: impl Iterator<Item = &'a LifetimeRow>) -> Vec<Vec<&'a LifetimeRow>> {
    let mut groups: Vec<Vec<&LifetimeRow>> = Vec::new();
    for row in rows {
        let key = |row: &LifetimeRow| (row.pool.clone(), row.scenario.clone(), row.prediction.clone());
        match groups.iter_mut().find(|group| key(group[0]) == key(row)) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups
}

fn by_policy<'a>(
    rows: impl Iterator<Item = &'a LifetimeRow>,
    cell: impl Fn(&LifetimeRow) -> String,
) -> TextTable {
    let policies = [&[Contestant::FirstFit][..], &Contestant::FORESEEING].concat();
    let names: Vec<&str> = policies.iter().map(|policy| policy.name()).collect();
    let head = [&["pool", "scenario", "prediction", "empty % of at most"], &names[..]].concat();
    let mut table = TextTable::new(3, &head);
    for group in groups(rows) {
        let first = group[0];
        let base = match group.iter().find(|row| row.policy == Contestant::BestFit) {
            Some(row) => format!("{} of {}", number(row.empty_percent, 1), number(row.bound_percent, 1)),
            None => String::new(),
        };
        let mut cells = vec![first.pool.clone(), first.scenario.clone(), first.prediction.clone(), base];
        cells.extend(policies.iter().map(|policy| {
            group.iter().find(|row| row.policy == *policy).map_or_else(String::new, |row| cell(row))
        }));
        table.row(cells);
    }
    table
}

fn points<'a>(rows: impl Iterator<Item = &'a LifetimeRow>) -> TextTable {
    by_policy(rows, |row| {
        let interval = row.interval_pp.map(|pp| format!("±{}", number(pp, 2))).unwrap_or_default();
        format!("{:+.2}{interval} [{}/{}]", row.empty_pp, row.wins, row.pools)
    })
}

fn gaps<'a>(rows: impl Iterator<Item = &'a LifetimeRow>) -> TextTable {
    by_policy(rows, |row| {
        format!("{} ({})", number(row.gap_percent, 0), number(row.second_half_gap_percent, 0))
    })
}

fn measures<'a>(rows: impl Iterator<Item = &'a LifetimeRow>) -> TextTable {
    let signed = |value: f64| format!("{value:+.2}");
    TextTable::of(
        4,
        rows,
        &[
            ("pool", &|row| row.pool.clone()),
            ("scenario", &|row| row.scenario.clone()),
            ("prediction", &|row| row.prediction.clone()),
            ("policy", &|row| row.policy.to_string()),
            ("density", &|row| number(row.packing_density, 3)),
            ("empty-to-free", &|row| signed(row.empty_to_free_pp)),
            ("half-host unusable", &|row| signed(row.half_host_unusable_pp)),
            ("stranded cores", &|row| signed(row.stranded_cores_pp)),
            ("stranded memory", &|row| signed(row.stranded_memory_pp)),
            ("W saved a host", &|row| number(row.saved_w_per_host, 1)),
            ("more than best fit", &|row| signed(row.saved_w_per_host_more)),
            ("VMs waiting a day", &|row| number(row.waited_vms_per_day, 1)),
            ("failed", &|row| row.failed.to_string()),
        ],
    )
}

/// One line for each population and prediction: means over the pools.
fn quality(models: &[ModelQuality]) -> TextTable {
    let mut keys: Vec<(&str, &str)> = Vec::new();
    for model in models {
        let key = (model.pool.as_str(), model.prediction.as_str());
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let head = [
        "pool",
        "prediction",
        "columns",
        "VMs",
        "curves",
        "C-index",
        "of KM",
        "Brier",
        "of KM",
        "log10 error",
        "F1 at 7 d",
        "precision at 70 % recall",
        "not calibrated %",
    ];
    let mut table = TextTable::new(3, &head);
    for (pool, prediction) in keys {
        let of: Vec<&ModelQuality> =
            models.iter().filter(|model| model.pool == pool && model.prediction == prediction).collect();
        let mean = |value: &dyn Fn(&ModelQuality) -> f64| {
            // What no pool could say is left out.
            let values: Vec<f64> = of.iter().map(|model| value(model)).filter(|v| v.is_finite()).collect();
            values.iter().sum::<f64>() / values.len() as f64
        };
        table.row(vec![
            pool.to_owned(),
            prediction.to_owned(),
            of[0].columns.clone(),
            number(mean(&|model| model.scores.vms as f64), 0),
            number(mean(&|model| model.curves as f64), 0),
            number(mean(&|model| model.scores.c_index), 3),
            number(mean(&|model| model.kaplan_meier.c_index), 3),
            number(mean(&|model| model.scores.brier), 4),
            number(mean(&|model| model.kaplan_meier.brier), 4),
            number(mean(&|model| model.scores.log10_error), 2),
            number(mean(&|model| model.scores.long[WEEK].f1), 2),
            number(mean(&|model| model.scores.long[WEEK].precision_at_recall_70), 2),
            percent(mean(&|model| model.scores.calibration_error), 1),
        ]);
    }
    table
}
