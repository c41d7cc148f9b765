//! Packing under a promise: the paper's tables on a substitute population, and recorded VMs held out in time.

mod goals;

pub use goals::SETS;

use ballast_sim::packing::{Estimator, Family};
use serde_json::json;

use super::{Named, Part, Report, filled, maybe, number, percent, section, without_data};
use crate::colocation::population::{CaseRow, Options, Shape, Vary};
use crate::colocation::recorded::{About, Arm, SetRow};
use crate::colocation::{SHORT_WINDOW, TARGET, WINDOW};
use ballast_cli::common::text_table::TextTable;

/// The paper's overflow, by estimator and parameter, with all samples seen and a capacity of 1.
const PAPER: [(Family, f64, &str); 10] = [
    (Family::Gaussian, 0.001, "1.6e-3"),
    (Family::Cantelli, 1.0, "3e-4"),
    (Family::Cantelli, 1.7, "2e-6"),
    (Family::Cantelli, 4.4, "0"),
    (Family::Percentile, 90.0, "7e-5"),
    (Family::Percentile, 95.0, "5e-6"),
    (Family::Percentile, 99.0, "2e-8"),
    (Family::Percentile, 100.0, "0"),
    (Family::Average, 1.0, "28.0 machines"),
    (Family::Gaussian, 0.1, "35 machines"),
];

pub struct Measured<'a> {
    pub options: &'a Options,
    pub shape: Shape,
    pub cases: &'a [CaseRow],
    pub abouts: &'a [About],
    pub sets: &'a [SetRow],
    /// Names of the recorded sets that are not there.
    pub skipped: &'a [String],
}

pub fn report(measured: &Measured<'_>, command: String) -> anyhow::Result<Report> {
    let Measured { options, shape, cases, abouts, sets, skipped } = measured;
    let of = |vary: Vary| cases.iter().filter(move |row| row.vary == vary);
    let varied = |fits: fn(Vary) -> bool| cases.iter().filter(move |row| fits(row.vary));

    let mut parts = vec![
        Part::Words(words(options)),
        Part::TextTable(shape_table(shape)),
        Part::Heading("Substitute population: all samples seen, first fit, capacity 1".to_owned()),
        Part::TextTable(case_table(of(Vary::Nothing))),
        Part::Heading("Best fit".to_owned()),
        Part::TextTable(case_table(of(Vary::BestFit))),
        Part::Heading("Rebalancing onto the last machine, at equal machines".to_owned()),
        Part::TextTable(case_table(varied(|vary| matches!(vary, Vary::RoundRobin | Vary::Greedy)))),
        Part::Heading("Clairvoyance: a share of the samples is seen, the others judge".to_owned()),
        Part::TextTable(case_table(varied(|vary| matches!(vary, Vary::Observed(_))))),
        Part::Heading("Learnt from five-minute averages, judged by instants".to_owned()),
        Part::Words(filled(include_str!("words/colocation-averages.md"), &[])),
        Part::TextTable(case_table(of(Vary::Averages))),
        Part::Heading("Capacities".to_owned()),
        Part::TextTable(case_table(varied(|vary| matches!(vary, Vary::Capacity(_))))),
        Part::Heading("Spikes with a heavy tail".to_owned()),
        Part::TextTable(case_table(of(Vary::HeavySpikes))),
        Part::Heading("Recorded VMs, held out in time".to_owned()),
        Part::Words(filled(include_str!("words/colocation-recorded.md"), &[("WINDOW", &WINDOW)])),
    ];
    parts.extend(without_data(skipped));
    if !abouts.is_empty() {
        parts.push(Part::TextTable(about_table(abouts)));
        parts.extend(section(
            "A target of 1 %: machines, and realised overflow in targets",
            set_table(abouts, sets),
        ));
        parts.extend(section(
            "Machines with which each family meets the target, known afterwards",
            family_table(abouts, sets, Arm::Hindsight),
        ));
        parts.extend(section(
            "Each family with its parameter replay-selected: machines / realised overflow in targets",
            family_table(abouts, sets, Arm::Tuned),
        ));
    }

    Ok(Report {
        name: "colocation",
        title: "Packing under a promise (Janus and Rzadca, SoCC 2017), and where the promise breaks",
        command,
        parts,
        goals: goals::goals(cases, sets),
        options: json!({
            "tasks": options.tasks, "samples": options.samples, "seeds": options.seeds, "target": TARGET,
            "window_steps": WINDOW, "skipped": skipped,
        }),
        rows: json!({ "population": { "shape": shape, "cases": cases }, "sets": abouts, "recorded": sets }),
    })
}

fn words(options: &Options) -> String {
    let Options { tasks, samples, seeds } = options;
    let values: [Named<'_>; 3] = [("instances", &seeds.seeds), ("tasks", tasks), ("samples", samples)];
    filled(include_str!("words/colocation.md"), &values)
}

fn shape_table(shape: &Shape) -> TextTable {
    let mut table = TextTable::new(1, &["tasks", "here", "paper"]);
    for (what, here, paper) in [
        ("mean use", shape.mean, ".0274"),
        ("mean deviation", shape.deviation, "about .026"),
        ("root of the mean variance", shape.rms_deviation, "about .030"),
        ("deviation against mean: intercept", shape.intercept, ".015"),
        ("deviation against mean: slope", shape.slope, ".36"),
    ] {
        table.row(vec![what.to_owned(), number(here, 4), paper.to_owned()]);
    }
    table
}

fn varied(vary: Vary) -> String {
    match vary {
        Vary::Nothing => String::new(),
        Vary::BestFit => "best fit".to_owned(),
        Vary::Observed(share) => format!("{} % seen", percent(share, 1)),
        Vary::Averages => "averages".to_owned(),
        Vary::Capacity(capacity) => format!("capacity {capacity}"),
        Vary::HeavySpikes => "heavy spikes".to_owned(),
        Vary::RoundRobin => "round robin".to_owned(),
        Vary::Greedy => "greedy".to_owned(),
    }
}

fn case_table<'a>(rows: impl Iterator<Item = &'a CaseRow>) -> TextTable {
    let paper = |row: &CaseRow| {
        let Estimator { family, parameter } = row.estimator;
        let found =
            PAPER.iter().find(|(f, p, _)| row.vary == Vary::Nothing && *f == family && *p == parameter);
        found.map_or_else(String::new, |(_, _, said)| (*said).to_owned())
    };
    let ratio = |row: &CaseRow| row.estimator.promised().map(|target| row.realised / target);
    let moved = |row: &CaseRow| {
        let rebalanced = matches!(row.vary, Vary::RoundRobin | Vary::Greedy);
        if rebalanced { percent(row.moved, 1) } else { String::new() }
    };
    TextTable::of(
        2,
        rows,
        &[
            ("case", &|row| varied(row.vary)),
            ("estimator", &|row| row.estimator.family.name().to_owned()),
            ("parameter", &|row| row.estimator.parameter.to_string()),
            ("machines", &|row| number(row.machines, 1)),
            ("normalised", &|row| number(row.normalised, 2)),
            ("q", &|row| scientific(row.realised)),
            ("q / target", &|row| maybe(ratio(row), 2)),
            ("tasks moved %", &|row| moved(row)),
            ("paper", &|row| paper(row)),
        ],
    )
}

fn scientific(value: f64) -> String {
    if value == 0.0 { "0".to_owned() } else { format!("{value:.2e}") }
}

fn about_table(abouts: &[About]) -> TextTable {
    TextTable::of(
        1,
        abouts,
        &[
            ("set", &|about| about.set.clone()),
            ("VMs", &|about| about.vms.to_string()),
            ("capacity", &|about| about.capacity.to_string()),
            ("learns from h", &|about| number(about.train_h, 0)),
            ("judged by h", &|about| number(about.step_h, 0)),
            ("steps judged", &|about| about.steps.to_string()),
        ],
    )
}

fn find<'a>(sets: &'a [SetRow], set: &str, arm: Arm, family: Option<Family>) -> Option<&'a SetRow> {
    sets.iter().find(|row| row.set == set && row.arm == arm && row.family == family)
}

fn set_table(abouts: &[About], sets: &[SetRow]) -> TextTable {
    let short = format!("auto, {SHORT_WINDOW} steps");
    let arms: [(&str, Arm, Option<Family>); 8] = [
        ("GPA at its word", Arm::Nominal, Some(Family::Gaussian)),
        ("convolution at its word", Arm::Nominal, Some(Family::Convolution)),
        ("GPA, replay-selected", Arm::Tuned, Some(Family::Gaussian)),
        ("percentile, replay-selected", Arm::Tuned, Some(Family::Percentile)),
        ("auto", Arm::Auto, None),
        (&short, Arm::AutoShort, None),
        ("auto in service", Arm::InService, Some(Family::Convolution)),
        ("oracle", Arm::Oracle, None),
    ];
    let mut head = vec!["set"];
    head.extend(arms.iter().map(|(name, ..)| *name));
    let mut table = TextTable::new(1, &head);
    for About { set, .. } in abouts {
        let cells = arms.iter().map(|(_, arm, family)| pair(find(sets, set, *arm, *family)));
        table.row(core::iter::once(set.clone()).chain(cells).collect());
    }
    table
}

/// Machines, and overflow in targets.
fn pair(row: Option<&SetRow>) -> String {
    let pair = row.and_then(|row| row.machines.zip(row.realised));
    pair.map_or_else(String::new, |(machines, realised)| {
        format!("{} / {}", number(machines, 1), number(realised / TARGET, 2))
    })
}

fn family_table(abouts: &[About], sets: &[SetRow], arm: Arm) -> TextTable {
    let mut head = vec!["family"];
    head.extend(abouts.iter().map(|about| about.set.as_str()));
    let mut table = TextTable::new(1, &head);
    for family in Family::ALL {
        let cell = |about: &About| {
            let row = find(sets, &about.set, arm, Some(family));
            match (arm, row) {
                (Arm::Hindsight, Some(row)) => {
                    row.machines.map_or_else(|| "never".to_owned(), |machines| number(machines, 1))
                }
                _ => pair(row),
            }
        };
        table.row(core::iter::once(family.name().to_owned()).chain(abouts.iter().map(cell)).collect());
    }
    table
}
