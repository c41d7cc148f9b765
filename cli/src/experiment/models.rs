//! `ballast experiment models`: predictions of class and P95 beside simple rules (Table III).

mod goals;
mod months;

use std::num::NonZeroUsize;

use ballast_predict::compare::{Arm, Asked, compare};
use ballast_predict::features::COLUMN_NAMES;
use ballast_predict::fleet;
use ballast_predict::score::{Each, Scores};
use clap::Args;
use plotters::prelude::SeriesLabelPosition;
use serde::Serialize;
use serde_json::{Value, json};

use super::plot::Figure;
use super::report::{Part, Report, number, percent};
use super::table::Table;
use super::{Wanted, paper};
use crate::common::plot::{BLUE, GREEN, GREY, ORANGE, PURPLE, Panel, RED, legend, line, panel};
use crate::common::threads;
use crate::common::threads::all_cores;

/// Fewer answers than this make no point in the reliability plot.
const LEAST_PER_POINT: u64 = 30;

/// What can be chosen.
#[derive(Args, Clone, Debug)]
pub(crate) struct Choice {
    /// How many VMs arrive in the made-up fleet
    #[arg(long, value_name = "N", default_value_t = 300_000, value_parser = clap::value_parser!(u32).range(10_000..=10_000_000))]
    vms: u32,
    /// Over how many days
    #[arg(long, value_name = "N", default_value_t = 75, value_parser = clap::value_parser!(u32).range(30..=1000))]
    days: u32,
    /// The first fleet's seed; the others follow it
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=u64::MAX - 1000))]
    seed: u64,
    /// How many fleets
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    seeds: u16,
    /// Threads; they change no result [default: one for every core]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
}

impl Default for Choice {
    fn default() -> Self {
        Self { vms: 300_000, days: 75, seed: 1, seeds: 1, threads: None }
    }
}

/// One row: who predicted what on which fleet.
#[derive(Clone, Debug, Serialize)]
struct Row {
    /// The fleet's seed; `None` for real data.
    seed: Option<u64>,
    model: Asked,
    arm: &'static str,
    vms: u64,
    confident: f64,
    buckets: Vec<NamedBucket>,
    accuracy: f64,
    accuracy_all: f64,
    ceiling: f64,
    ceiling_share: f64,
    ceiling_all: f64,
    ceiling_share_all: f64,
    loss: f64,
    reliability: Value,
    importance: Value,
    #[serde(skip)]
    arm_of: Arm,
}

#[derive(Clone, Debug, Serialize)]
struct NamedBucket {
    name: &'static str,
    #[serde(flatten)]
    each: Each,
}

fn names(asked: Asked) -> &'static [&'static str] {
    match asked {
        Asked::Criticality => &["user-facing", "non-user-facing"],
        Asked::P95 | Asked::P95NextMonth => &["0-25", "26-50", "51-75", "76-100"],
    }
}

fn title(asked: Asked) -> &'static str {
    match asked {
        Asked::Criticality => "Criticality",
        Asked::P95 => "P95 utilisation",
        Asked::P95NextMonth => "P95 utilisation next month, real VMs",
    }
}

impl Row {
    fn new(seed: Option<u64>, arm: Arm) -> Self {
        let Arm { model, scores, importance, .. } = &arm;
        let Scores { confident, accuracy, accuracy_all, ceiling, ceiling_all, loss, .. } = *scores;
        let named = names(*model).iter().zip(&scores.each);
        let shares = COLUMN_NAMES.iter().zip(importance);
        let shares: serde_json::Map<_, _> =
            shares.map(|(name, share)| ((*name).to_owned(), json!(share))).collect();
        Self {
            seed,
            model: *model,
            arm: arm.arm,
            vms: scores.rows,
            confident,
            buckets: named.map(|(name, each)| NamedBucket { name, each: *each }).collect(),
            accuracy,
            accuracy_all,
            ceiling,
            ceiling_share: accuracy / ceiling,
            ceiling_all,
            ceiling_share_all: accuracy_all / ceiling_all,
            loss,
            reliability: json!(scores.reliability),
            importance: Value::Object(shares),
            arm_of: arm,
        }
    }
}

/// Runs it.
pub(super) fn report(choice: &Choice, wanted: Wanted) -> anyhow::Result<Report> {
    let threads = choice.threads.unwrap_or_else(all_cores).get();
    let seeds: Vec<u64> = (choice.seed..choice.seed + u64::from(choice.seeds)).collect();
    let threads = NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN);

    // One fleet after the other: each of them keeps all threads busy.
    let done = threads::run("models", &seeds, 1, |seed| {
        let (vms, days) = (choice.vms as usize, choice.days);
        compare(&fleet::make(&fleet::Options { seed: *seed, vms, days }), *seed, threads)
    });

    let mut rows = Vec::new();

    for (seed, arms) in seeds.iter().zip(done) {
        rows.extend(arms?.into_iter().map(|arm| Row::new(Some(*seed), arm)));
    }
    let months = months::arms(threads)?;
    let missing = months.is_none();
    rows.extend(months.into_iter().flatten().map(|arm| Row::new(None, arm)));
    let mut parts = vec![Part::Words(words(choice))];

    for asked in [Asked::Criticality, Asked::P95, Asked::P95NextMonth] {
        parts.push(Part::Heading(title(asked).to_owned()));
        if asked == Asked::P95NextMonth {
            parts.push(Part::Words(months::words()));
        }
        if asked == Asked::P95NextMonth && missing {
            parts.push(Part::Heading(months::MISSING.to_owned()));
        } else {
            parts.push(Part::Table(table(asked, &rows)));
        }
    }

    parts.push(Part::Heading("Importance of the features".to_owned()));
    parts.push(Part::Table(importance(&rows)));
    parts.push(Part::Heading("Calibration of confidence".to_owned()));
    parts.push(Part::Table(calibration(&rows)));

    if wanted.figures {
        parts.push(Part::Figure(reliability(&rows)));
    }
    Ok(Report {
        name: "models",
        title: "Predictions of class and P95",
        command: command(choice, wanted),
        parts,
        goals: goals::goals(&rows),
        options: json!({
            "vms": choice.vms, "days": choice.days, "seeds": seeds, "bitbrains": !missing,
        }),
        rows: serde_json::to_value(&rows)?,
    })
}

fn table(asked: Asked, rows: &[Row]) -> Table {
    let names = names(asked);
    let mut head: Vec<String> = ["arm", "fleet", "VMs", "confident %"].map(str::to_owned).into();
    head.extend(names.iter().map(|name| format!("{name} R–P %")));
    let ends = ["accuracy %", "of ceiling %", "all: accuracy %", "of ceiling %"];
    head.extend(ends.map(str::to_owned));
    let mut table = Table::new(2, &head.iter().map(String::as_str).collect::<Vec<_>>());

    for row in rows.iter().filter(|row| row.model == asked) {
        let pair =
            |b: &NamedBucket| format!("{}–{}", percent(b.each.recall, 1), percent(b.each.precision, 1));
        let mut cells = vec![
            row.arm.to_owned(),
            row.seed.map_or_else(|| "Bitbrains".to_owned(), |seed| seed.to_string()),
            row.vms.to_string(),
            percent(row.confident, 1),
        ];

        cells.extend(row.buckets.iter().map(pair));
        let shares = [row.accuracy, row.ceiling_share, row.accuracy_all, row.ceiling_share_all];
        cells.extend(shares.map(|share| percent(share, 1)));
        table.row(cells);
    }

    for (arm, stated) in paper::models(asked) {
        let mut cells = vec![format!("paper: {arm}"), "Azure".to_owned(), String::new()];
        cells.push(percent(stated.confident, 0));
        let pair =
            |(recall, precision): &(f64, f64)| format!("{}–{}", percent(*recall, 0), percent(*precision, 0));
        cells.extend(stated.each.iter().map(pair));
        cells.push(percent(stated.accuracy, 0));
        cells.extend([const { String::new() }; 3]);
        table.row(cells);
    }

    table
}

/// The rows of forests and boosting on the first fleet.
fn learnt(rows: &[Row]) -> impl Iterator<Item = &Row> {
    let first = rows.first().and_then(|row| row.seed);
    let learnt = move |row: &&Row| row.seed == first && !row.arm_of.importance.is_empty();
    rows.iter().filter(learnt)
}

fn name(row: &Row) -> String {
    format!("{}, {}", title(row.model), row.arm)
}

fn importance(rows: &[Row]) -> Table {
    let names: Vec<String> = learnt(rows).map(name).collect();
    let head = ["feature"].into_iter().chain(names.iter().map(String::as_str));
    let mut table = Table::new(1, &head.collect::<Vec<_>>());
    for (column, feature) in COLUMN_NAMES.iter().enumerate() {
        let shares = learnt(rows).map(|row| number(row.arm_of.importance[column], 3));
        table.row([(*feature).to_owned()].into_iter().chain(shares).collect());
    }
    table
}

fn calibration(rows: &[Row]) -> Table {
    let head = ["predictions", "confidence", "VMs", "mean confidence", "right"];
    let mut table = Table::new(2, &head);
    for row in learnt(rows) {
        for (tenth, bin) in row.arm_of.scores.reliability.iter().enumerate() {
            if bin.rows > 0 {
                table.row(vec![
                    name(row),
                    format!("{:.1}–{:.1}", tenth as f64 / 10.0, (tenth + 1) as f64 / 10.0),
                    bin.rows.to_string(),
                    number(bin.confidence, 3),
                    number(bin.right, 3),
                ]);
            }
        }
    }
    table
}

/// How often answers are right, by their confidence.
fn reliability(rows: &[Row]) -> Figure {
    let mut lines: Vec<(String, Vec<(f64, f64)>)> =
        vec![("as it should be".to_owned(), vec![(0.4, 0.4), (1.0, 1.0)])];
    for row in learnt(rows) {
        let bins = row.arm_of.scores.reliability.iter();
        let points = bins.filter(|bin| bin.rows >= LEAST_PER_POINT);
        lines.push((name(row), points.map(|bin| (bin.confidence, bin.right)).collect()));
    }

    let caption = "How often predictions are right, by their confidence";

    Figure {
        name: "models-reliability".to_owned(),
        caption: caption.to_owned(),
        height: 480,
        draw: Box::new(move |area| {
            let about = Panel { caption, x: ("confidence", 0.4..1.0), y: ("share that is right", 0.2..1.0) };

            let mut chart = panel(area, &about)?;
            let colours = [GREY, BLUE, ORANGE, GREEN, PURPLE, RED];

            for ((name, points), colour) in lines.iter().zip(colours) {
                line(&mut chart, name, colour, points.iter().copied())?;
            }
            legend(&mut chart, SeriesLabelPosition::LowerRight)
        }),
    }
}

fn words(choice: &Choice) -> String {
    format!(
        "A made-up fleet of {} VMs over {} days (its laws: `predict/src/fleet.rs`): public data has no \
         subscriptions. Split by time: what arrives in the last quarter is scored, and nothing that \
         became known in it is learnt from. The class is learnt and scored on VMs with five weekdays of \
         history only. `confident` is the share of predictions with a confidence of at least 60 %; recall, \
         precision and accuracy are of these, `all` is of all predictions, sure or not. The ceiling is what \
         a predictor would reach that knows every subscription's true habits, but not what is drawn after \
         the arrival (`best-possible`); `of ceiling` compares on the same VMs. `subscription-share` knows \
         the share of user-facing VMs (buckets: the commonest bucket) in the subscription alone; \
         `constant` always gives the same answer.",
        choice.vms, choice.days
    )
}

fn command(choice: &Choice, wanted: Wanted) -> String {
    let Choice { vms, days, seed, seeds, .. } = choice;
    let document = if wanted.document { " --output docs" } else { "" };
    format!("ballast experiment models --vms {vms} --days {days} --seed {seed} --seeds {seeds}{document}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report_of_a_small_fleet() -> Report {
        let choice = Choice { vms: 10_000, threads: NonZeroUsize::new(1), ..Choice::default() };
        report(&choice, Wanted { figures: true, document: true }).unwrap()
    }

    #[test]
    fn every_arm_has_its_row_beside_the_paper_and_a_plot() {
        let report = report_of_a_small_fleet();
        let rows = report.rows.as_array().unwrap();
        let of = |model: &str| rows.iter().filter(|row| row["model"] == model).count();
        assert_eq!((of("criticality"), of("p95")), (5, 5));
        let random_forest = &rows[0];
        assert_eq!(random_forest["arm"], "random-forest");
        assert_eq!(random_forest["buckets"][0]["name"], "user-facing");
        assert!(random_forest["importance"]["uf_share"].as_f64().unwrap() > 0.0);
        let text = report.text();
        for part in ["paper: random-forest", "subscription-share", "best-possible", "mean_p95_cpu"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let svg = report.figures().next().unwrap().svg().unwrap();
        assert!(svg.contains("as it should be") && svg.contains("Criticality, random-forest"));
    }
}
