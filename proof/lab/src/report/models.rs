//! Predictions of class and P95 beside simple rules (Table III).

mod goals;
mod row;

use ballast_predict::compare::PredictedValue;
use ballast_predict::features::COLUMN_NAMES;
use plotters::prelude::SeriesLabelPosition;
use serde_json::json;

pub use self::row::ArmRow;
use self::row::{NamedBucket, names};
use super::{Part, Report, filled, number, paper, percent, section};
use crate::plot::figure::Figure;
use crate::plot::{BLUE, GREEN, GREY, ORANGE, PURPLE, Panel, RED, legend, line, panel};
use ballast_cli::common::text_table::TextTable;

/// Fewer answers than this make no point in the reliability plot.
const LEAST_PER_POINT: u64 = 30;

/// What is said where the data is not there.
const MISSING: &str = "Not measured: there is no bitbrains_rnd in $BALLAST_DATA (default ../shared/data)";
pub struct Fleets {
    pub vms: u32,
    pub days: u32,
    /// Whether habits stay as they are.
    pub steady: bool,
    pub seeds: Vec<u64>,
}

/// The report on these rows; `command` makes it again.
pub fn report(fleets: &Fleets, rows: &[ArmRow], command: String) -> anyhow::Result<Report> {
    let missing = rows.iter().all(|row| row.seed.is_some());
    let mut parts = vec![Part::Words(words(fleets))];

    for asked in [PredictedValue::Criticality, PredictedValue::P95, PredictedValue::P95NextMonth] {
        parts.push(Part::Heading(title(asked).to_owned()));
        if asked == PredictedValue::P95NextMonth {
            parts.push(Part::Words(filled(include_str!("words/models-month.md"), &[])));
        }
        if asked == PredictedValue::P95NextMonth && missing {
            parts.push(Part::Heading(MISSING.to_owned()));
        } else {
            parts.push(Part::TextTable(table(asked, rows)));
        }
    }

    parts.extend(section("Importance of the features", importance(rows)));
    parts.extend(section("Calibration of confidence", calibration(rows)));

    parts.push(Part::Figure(reliability(rows)));
    Ok(Report {
        name: "models",
        title: "Predictions of class and P95",
        command,
        parts,
        goals: goals::goals(rows),
        options: json!({
            "vms": fleets.vms, "days": fleets.days, "steady": fleets.steady, "seeds": fleets.seeds,
            "bitbrains": !missing,
        }),
        rows: serde_json::to_value(rows)?,
    })
}

/// What is done, for the document.
fn table(asked: PredictedValue, rows: &[ArmRow]) -> TextTable {
    let names = names(asked);
    let mut head: Vec<String> = ["arm", "fleet", "VMs", "confident %"].map(str::to_owned).into();
    head.extend(names.iter().map(|name| format!("{name} R–P %")));
    let ends = ["accuracy %", "of ceiling %", "all: accuracy %", "of ceiling %", "Brier loss", "ECE %"];
    head.extend(ends.map(str::to_owned));
    let mut table = TextTable::new(2, &head.iter().map(String::as_str).collect::<Vec<_>>());

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
        cells.extend([number(row.loss, 4), percent(row.calibration_error, 2)]);
        table.row(cells);
    }

    for (arm, stated) in paper::models(asked) {
        let mut cells = vec![format!("paper: {arm}"), "Azure".to_owned(), String::new()];
        cells.push(percent(stated.confident, 0));
        let pair =
            |(recall, precision): &(f64, f64)| format!("{}–{}", percent(*recall, 0), percent(*precision, 0));
        cells.extend(stated.each.iter().map(pair));
        cells.push(percent(stated.accuracy, 0));
        cells.extend([const { String::new() }; 5]);
        table.row(cells);
    }

    table
}

fn title(asked: PredictedValue) -> &'static str {
    match asked {
        PredictedValue::Criticality => "Criticality",
        PredictedValue::P95 => "P95 utilisation",
        PredictedValue::P95NextMonth => "P95 utilisation next month, real VMs",
    }
}

/// The rows of forests and boosting on the first fleet.
fn learnt(rows: &[ArmRow]) -> impl Iterator<Item = &ArmRow> {
    let first = rows.first().and_then(|row| row.seed);
    let learnt = move |row: &&ArmRow| row.seed == first && !row.arm_of.importance.is_empty();
    rows.iter().filter(learnt)
}

fn name(row: &ArmRow) -> String {
    format!("{}, {}", title(row.model), row.arm)
}

fn importance(rows: &[ArmRow]) -> TextTable {
    let names: Vec<String> = learnt(rows).map(name).collect();
    let head = ["feature"].into_iter().chain(names.iter().map(String::as_str));
    let mut table = TextTable::new(1, &head.collect::<Vec<_>>());
    for (column, feature) in COLUMN_NAMES.iter().enumerate() {
        let shares = learnt(rows).map(|row| number(row.arm_of.importance[column], 3));
        table.row([(*feature).to_owned()].into_iter().chain(shares).collect());
    }
    table
}

fn calibration(rows: &[ArmRow]) -> TextTable {
    let bins = learnt(rows).flat_map(|row| {
        let bins = row.arm_of.scores.reliability.iter().enumerate();
        bins.filter(|(_, bin)| bin.rows > 0).map(move |(tenth, bin)| (row, tenth as f64 / 10.0, bin))
    });

    TextTable::of(
        2,
        bins,
        &[
            ("predictions", &|(row, ..)| name(row)),
            ("confidence", &|(_, from, _)| format!("{from:.1}–{:.1}", from + 0.1)),
            ("VMs", &|(.., bin)| bin.rows.to_string()),
            ("mean confidence", &|(.., bin)| number(bin.confidence, 3)),
            ("right", &|(.., bin)| number(bin.right, 3)),
        ],
    )
}

/// How often answers are right, by their confidence.
fn reliability(rows: &[ArmRow]) -> Figure {
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

fn words(Fleets { vms, days, steady, .. }: &Fleets) -> String {
    let moves = match steady {
        true => "Its habits never change.",
        false => {
            "It drifts: a workload keeps its habit for 40 days in the mean, and seven of ten VMs turn out as \
             their deployment does."
        }
    };
    filled(include_str!("words/models.md"), &[("vms", vms), ("days", days), ("moves", &moves)])
}
