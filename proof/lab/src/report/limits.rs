//! Limits of jobs: every family at equal overruns, known afterwards and not.

use serde_json::json;

use super::{Goal, Part, Report, filled, number, percent, section, without_data};
use crate::limits::{LimitsRow, OVERRUNS};
use ballast_cli::common::text_table::TextTable;

/// Names of the sets, as the goals have them.
pub const SETS: [&str; 7] =
    [BITBRAINS, AZURE_AVERAGE, AZURE_MAXIMUM, GOOGLE_CPU, GOOGLE_MEMORY, SERVICES, AZURE_SERVICES];
const BITBRAINS: &str = "bitbrains";
const AZURE_AVERAGE: &str = "azure-average";
const AZURE_MAXIMUM: &str = "azure-maximum";
const GOOGLE_CPU: &str = "google-cpu";
const GOOGLE_MEMORY: &str = "google-memory";
/// Sets whose limit is the number of tasks.
const SERVICES: &str = "services";
const AZURE_SERVICES: &str = "azure-services";

#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct SetAbout {
    pub set: String,
    pub jobs: usize,
    pub judged_days: usize,
}

pub fn report(abouts: &[SetAbout], rows: &[LimitsRow], skipped: &[String], command: String) -> Report {
    let mut parts = vec![Part::Words(filled(include_str!("words/limits.md"), &[]))];
    parts.extend(without_data(skipped));
    parts.push(Part::TextTable(TextTable::of(
        1,
        abouts,
        &[
            ("set", &|about| about.set.clone()),
            ("jobs", &|about| about.jobs.to_string()),
            ("judged days", &|about| about.judged_days.to_string()),
        ],
    )));
    for overruns in OVERRUNS {
        for (hindsight, how) in
            [(true, "best in hindsight"), (false, "chosen anew each day, without hindsight")]
        {
            let of = rows.iter().filter(|row| row.overruns == overruns && row.hindsight == hindsight);
            let heading = format!("{} % of windows may be above: {how}", percent(overruns, 1));
            parts.extend(section(heading, table(of)));
        }
    }
    Report {
        name: "limits",
        title: "Limits of jobs (Rzadca et al., EuroSys 2020): families at equal overruns",
        command,
        parts,
        goals: goals(rows),
        options: json!({ "overruns": OVERRUNS, "skipped": skipped }),
        rows: json!(rows),
    }
}

fn table<'a>(rows: impl Iterator<Item = &'a LimitsRow>) -> TextTable {
    TextTable::of(
        2,
        rows,
        &[
            ("set", &|row| row.set.clone()),
            ("family", &|row| row.family.to_owned()),
            ("overruns %", &|row| percent(row.realised_overruns, 2)),
            ("slack", &|row| number(row.slack, 3)),
            ("footprint", &|row| number(row.footprint, 2)),
            ("changes a job-day", &|row| number(row.changes_per_job_day, 1)),
            ("unchanged days %", &|row| percent(row.unchanged_days_ratio, 0)),
            ("severe days %", &|row| percent(row.severe_days_ratio, 1)),
        ],
    )
}

fn best<'a>(rows: &'a [LimitsRow], set: &str, family: &str, overruns: f64) -> Option<&'a LimitsRow> {
    let is = |row: &&LimitsRow| row.set == set && row.family == family && row.overruns == overruns;
    rows.iter().filter(is).find(|row| row.hindsight)
}

fn chosen<'a>(rows: &'a [LimitsRow], set: &str, family: &str, overruns: f64) -> Option<&'a LimitsRow> {
    let is = |row: &&LimitsRow| row.set == set && row.family == family && row.overruns == overruns;
    rows.iter().filter(is).find(|row| !row.hindsight)
}

/// By how much the first is below the second in slack and in footprint, in percent.
fn below(one: &LimitsRow, other: &LimitsRow) -> (f64, f64) {
    let below = |one: f64, other: f64| 100.0 * (1.0 - one / other);
    (below(one.slack, other.slack), below(one.footprint, other.footprint))
}

/// The worst of the families' order on CPU: experts before the window, the window before what people do.
fn order(rows: &[LimitsRow]) -> Option<(String, bool)> {
    let mut worst = f64::INFINITY;
    for set in [BITBRAINS, AZURE_AVERAGE, AZURE_MAXIMUM, GOOGLE_CPU] {
        for overruns in [0.002, 0.001] {
            let of = |family| best(rows, set, family, overruns);
            let (Some(window), Some(manual)) = (of("window"), of("manual")) else { continue };
            worst = worst.min(below(window, manual).0);
            if let Some(experts) = of("experts") {
                worst = worst.min(below(experts, window).0);
            }
        }
    }
    worst.is_finite().then(|| (format!("{} % at worst", number(worst, 1)), worst >= -3.0))
}

fn goals(rows: &[LimitsRow]) -> Vec<Goal> {
    let against = |set: &str, overruns: f64| {
        Some(below(best(rows, set, "experts", overruns)?, best(rows, set, "window", overruns)?))
    };
    let listed = |pairs: &[(f64, f64)]| {
        let pair =
            |(slack, footprint): &(f64, f64)| format!("{} / {} %", number(*slack, 1), number(*footprint, 1));
        pairs.iter().map(pair).collect::<Vec<_>>().join(", ")
    };
    let bitbrains = against(BITBRAINS, 0.001).zip(against(BITBRAINS, 0.002)).map(|(a, b)| [a, b]);
    let azure = against(AZURE_AVERAGE, 0.002);

    vec![
        Goal::new(
            "A2: experts, window, manual in this order on CPU at 0.2 and 0.1 %, ties within 3 %",
            order(rows),
        ),
        Goal::new(
            "A3: Bitbrains, experts below window at 0.1 and 0.2 %: slack ≥ 12 %, footprint ≥ 18 %",
            bitbrains.map(|pairs| (listed(&pairs), pairs.iter().all(|it| it.0 >= 12.0 && it.1 >= 18.0))),
        ),
        Goal::new(
            "A3: Azure average at 0.2 %: slack ≥ 4 %, footprint ≥ 10 %",
            azure.map(|pair| (listed(&[pair]), pair.0 >= 4.0 && pair.1 >= 10.0)),
        ),
        Goal::new("A4: Bitbrains at 0.1 %, below manual: slack ≥ 35 %, footprint / 2.2", manual(rows)),
        Goal::new("A5: Bitbrains at 0.1 %, chosen without hindsight: severe job-days ≤ 1 %", severe(rows)),
        Goal::new(
            "A6: ≤ 2 changes a job-day, none on half of them, ≤ 3 points of slack lost against experts",
            quiet(rows),
        ),
        Goal::new("A7: memory, without hindsight: slack ≤ .20, ≥ 97 % of half-days clean", memory(rows)),
    ]
}

fn manual(rows: &[LimitsRow]) -> Option<(String, bool)> {
    let pair = (best(rows, BITBRAINS, "experts", 0.001)?, best(rows, BITBRAINS, "manual", 0.001)?);
    let (slack, _) = below(pair.0, pair.1);
    let times = pair.1.footprint / pair.0.footprint;
    Some((format!("{} %, {}", number(slack, 1), number(times, 2)), slack >= 35.0 && times >= 2.2))
}

fn severe(rows: &[LimitsRow]) -> Option<(String, bool)> {
    let row = chosen(rows, BITBRAINS, "experts", 0.001)?;
    Some((format!("{} %", percent(row.severe_days_ratio, 2)), row.severe_days_ratio <= 0.01))
}

fn quiet(rows: &[LimitsRow]) -> Option<(String, bool)> {
    let (quiet, experts) = (best(rows, BITBRAINS, "quiet", 0.001)?, best(rows, BITBRAINS, "experts", 0.001)?);
    let lost = quiet.slack - experts.slack;
    let text = format!(
        "{} changes, {} % of days without, {} points of slack lost",
        number(quiet.changes_per_job_day, 2),
        percent(quiet.unchanged_days_ratio, 0),
        number(100.0 * lost, 1)
    );
    let met = quiet.changes_per_job_day <= 2.0 && quiet.unchanged_days_ratio >= 0.5 && lost <= 0.03;
    Some((text, met))
}

fn memory(rows: &[LimitsRow]) -> Option<(String, bool)> {
    let row = chosen(rows, GOOGLE_MEMORY, "auto", 0.001)?;
    let text = format!("{}, {} % clean", number(row.slack, 3), percent(row.clean_days_ratio, 1));
    Some((text, row.slack <= 0.2 && row.clean_days_ratio >= 0.97))
}
