//! How full a cluster can be while scale-outs seldom fail.

use ballast_sim::admission::tuning::{ArmResult, Difference, Options, SetResult};
use ballast_sim::admission::{Arm, Labels, Moment};

use super::{Goal, Part, Report, filled, number, percent, section};
use crate::Spread;
use crate::plot::figure::Figure;
use crate::plot::groups::{Groups, Series};
use crate::plot::{BLUE, GREEN, ORANGE};
use ballast_cli::common::text_table::TextTable;

/// Height of the figure, in pixels.
const HEIGHT: u32 = 420;
/// At full scale every policy of SUB-A lies within so many points.
const NOTHING: f64 = 1.0;

const ZEROTH: Arm = Arm::new(Moment::Zeroth, 0, false);
const SECOND: Arm = Arm::new(Moment::Second, 0, false);
const ONE: Arm = Arm::new(Moment::Second, 1, true);
const FIFTY: Arm = Arm::new(Moment::Second, 50, true);
const FIFTY_PLAIN: Arm = Arm::new(Moment::Second, 50, false);
const LABELLED: Arm = Arm::new(Moment::Second, 1, false);

/// The report on these sets; `command` makes it again.
pub fn report(options: &Options, results: &[SetResult], command: String) -> anyhow::Result<Report> {
    let mut parts = vec![Part::Words(filled(include_str!("words/admission.md"), &[]))];
    for result in results {
        let ceiling = percent(result.ceiling, 1);
        parts.extend(section(
            format!("{}: at most {ceiling} % if everything may come", result.set),
            table(&result.rows),
        ));
        parts.push(Part::TextTable(differences(&result.differences)));
    }
    if let Some(result) = results.first() {
        parts.push(Part::Figure(figure(result, &options.slas)));
    }

    let rows: Vec<&ArmResult> = results.iter().flat_map(|result| &result.rows).collect();
    let mut described = serde_json::to_value(options)?;
    described["differences"] = serde_json::to_value(results)?;
    Ok(Report {
        name: "admission",
        title: "Cluster admission: how full a cluster can be while scale-outs seldom fail",
        command,
        parts,
        goals: goals(results),
        options: described,
        rows: serde_json::to_value(rows)?,
    })
}

fn table(rows: &[ArmResult]) -> TextTable {
    let labels = |row: &ArmResult| match row.labels {
        Labels::Own => row.prior_n.to_string(),
        Labels::Mixed => format!("{} of each of two types", row.prior_n),
    };
    TextTable::of(
        4,
        rows,
        &[
            ("policy", &|r| r.policy.name().to_owned()),
            ("prior", &|r| labels(r)),
            ("marginal", &|r| if r.marginal { "yes" } else { "" }.to_owned()),
            ("SLA", &|r| format!("{:e}", r.sla)),
            ("utilisation %", &|r| percent(r.utilisation, 1)),
            ("95 %", &|r| format!("{}–{}", percent(r.low, 1), percent(r.high, 1))),
            ("threshold", &|r| number(r.threshold, if r.policy == Moment::Second { 4 } else { 0 })),
            ("failures / run", &|r| number(r.failures_per_run, 1)),
            ("% at equal failures", &|r| percent(r.utilisation_at_equal_failures, 1)),
            ("", &|r| if r.bracketed { "" } else { "beyond the thresholds" }.to_owned()),
        ],
    )
}

fn named(arm: Arm) -> String {
    let Arm { moment, observations, marginal, labels } = arm;
    let labels = if labels == Labels::Mixed { ", unlabelled" } else { "" };
    let marginal = if marginal { ", marginal" } else { "" };
    match moment {
        Moment::Zeroth => moment.name().to_owned(),
        _ => format!("{} {observations}{marginal}{labels}", moment.name()),
    }
}

fn differences(all: &[Difference]) -> TextTable {
    TextTable::of(
        2,
        all,
        &[
            ("policy", &|d| named(d.arm)),
            ("less", &|d| named(d.less)),
            ("points", &|d| number(d.points, 1)),
            ("95 %", &|d| interval(d)),
        ],
    )
}

fn interval(difference: &Difference) -> String {
    format!("{} to {}", number(difference.low, 1), number(difference.high, 1))
}

fn goals(results: &[SetResult]) -> Vec<Goal> {
    let of = |set: &str| results.iter().find(|it| it.set == set);
    let at_least = |number_of: &str, set: &str, arm: Arm, less: Arm, points: f64| {
        let goal =
            format!("{number_of} {set}: {} less {}: at least {points} points", named(arm), named(less));
        let found = of(set)
            .and_then(|it| it.differences.iter().find(|it| (it.arm, it.less) == (arm, less)))
            .map(|it| (format!("{} ({})", number(it.points, 1), interval(it)), it.points >= points));
        Goal::new(goal, found)
    };
    let of_ceiling = |number_of: &str, set: &str, share: f64| {
        let goal =
            format!("{number_of} {set}: {}: at least {} % of the ceiling", named(FIFTY), 100.0 * share);
        let measured = of(set).and_then(|it| {
            let reached = it.rows.iter().find(|row| is(row, FIFTY))?.utilisation / it.ceiling;
            Some((format!("{} %", percent(reached, 1)), reached >= share))
        });
        Goal::new(goal, measured)
    };
    let (tenth, full) = ("SUB-B, a tenth", "SUB-B");
    let shows_nothing = of("SUB-A").map(|it| {
        let all: Vec<f64> = it.rows.iter().filter(|row| row.sla < 5e-4).map(|row| row.utilisation).collect();
        let spread = 100.0
            * (all.iter().fold(0.0, |a: f64, b| a.max(*b)) - all.iter().fold(1.0, |a: f64, b| a.min(*b)));
        (format!("{} points", number(spread, 1)), spread <= NOTHING)
    });
    let labels = of(tenth).and_then(|it| it.differences.iter().find(|it| it.less.labels == Labels::Mixed));

    vec![
        Goal::new(
            "D1: moments within 0.5 % and 2 % of drawn parameters (`cargo test -p ballast-sim moments_are`)",
            None,
        ),
        at_least("D2", tenth, SECOND, ZEROTH, 8.0),
        at_least("D2", tenth, ONE, SECOND, 6.0),
        at_least("D2", tenth, FIFTY, SECOND, 10.0),
        at_least("D2", tenth, FIFTY, FIFTY_PLAIN, 3.0),
        of_ceiling("D2", tenth, 0.92),
        at_least("D3", full, SECOND, ZEROTH, 2.0),
        at_least("D3", full, ONE, SECOND, 2.0),
        of_ceiling("D3", full, 0.98),
        Goal::new(
            format!("D4 SUB-A shows next to nothing: all policies within {NOTHING} points"),
            shows_nothing,
        ),
        Goal::new(
            format!("D5 {tenth}: {} less the same unlabelled: above 0 points", named(LABELLED)),
            labels.map(|it| (format!("{} ({})", number(it.points, 1), interval(it)), it.points > 0.0)),
        ),
        Goal::new("D6: speed (`cargo bench -p ballast-sim --bench admission`)", None),
        Goal::new("D7: decisions in the daemon (`cargo bench -p ballast-placement --bench admission`)", None),
        Goal::new("D8: a tail better than Cantelli's: one point more without priors", None),
    ]
}

fn is(row: &ArmResult, arm: Arm) -> bool {
    (row.policy, row.prior_n, row.marginal, row.labels)
        == (arm.moment, arm.observations, arm.marginal, arm.labels)
        && row.sla < 5e-4
}

/// Utilisation by policy and prior, at every SLA.
fn figure(result: &SetResult, slas: &[f64]) -> Figure {
    let arms: Vec<&ArmResult> = result.rows.iter().filter(|row| Some(&row.sla) == slas.first()).collect();
    let names = arms.iter().map(|row| {
        let marginal = if row.marginal { "+" } else { "" };
        let mixed = if row.labels == Labels::Mixed { "?" } else { "" };
        format!("{} {}{marginal}{mixed}", row.policy.name(), row.prior_n)
    });
    let spread = |row: &ArmResult| Spread { median: row.utilisation, min: row.low, max: row.high };
    let series = slas.iter().zip([BLUE, ORANGE, GREEN]).map(|(sla, colour)| Series {
        name: format!("SLA {sla:e}"),
        colour,
        points: result.rows.iter().filter(|row| row.sla == *sla).map(|row| Some(spread(row))).collect(),
    });
    let groups = Groups {
        caption: "Utilisation while so many scale-outs fail",
        y_desc: "share of cores",
        names: names.collect(),
        series: series.collect(),
        marks: vec![],
    };
    Figure {
        name: "admission".to_owned(),
        caption: format!(
            "{}: utilisation by policy and observations of a prior (+ marginal deployments may come, ? \
             unlabelled), with 95 % intervals",
            result.set
        ),
        height: HEIGHT,
        draw: Box::new(move |area| groups.draw(area)),
    }
}
