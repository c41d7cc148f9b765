//! What the power rule does to placements, and these to power (Figure 7).

mod more;

use ballast_sim::cluster::Arm;
use plotters::chart::SeriesLabelPosition;
use plotters::style::RGBColor;

use self::more::between;
use super::{Goal, Named, Part, Report, filled, maybe, number, percent};
use crate::plot::figure::Figure;
use crate::plot::{Area, BLUE, Drawn, GREEN, GREY, ORANGE, PURPLE, Panel, RED, legend, line, panel};
use crate::scheduler::{Case, Options, SchedulerResult};
use ballast_cli::common::text_table::TextTable;

const ALPHA: f64 = 0.8;
/// Server balances are equal where they differ by no more, as a share.
const EQUAL: f64 = 0.1;
/// The chassis balance has collapsed where it is so many times worse.
const COLLAPSED: f64 = 2.0;

/// What the document shows beside Figure 7: cases and their rows.
pub struct More {
    pub knowledge: (Vec<Case>, Vec<SchedulerResult>),
    pub baseline: (Vec<Case>, Vec<SchedulerResult>),
    pub weights: (Vec<Case>, Vec<SchedulerResult>),
    pub fuller: (Vec<Case>, Vec<SchedulerResult>),
}

/// The report on these rows, measured under the budget `budget_w`; `command` makes it again.
pub fn report(
    options: &Options,
    budget_w: f64,
    rows: &[SchedulerResult],
    more: Option<&More>,
    command: String,
) -> anyhow::Result<Report> {
    let mut parts = vec![Part::Words(words(options, budget_w)), Part::TextTable(table(rows))];
    parts.push(Part::Figure(figure(rows)));
    let mut goals = goals(rows);

    if let Some(More { baseline, knowledge, weights, fuller }) = more {
        parts.extend(more::baseline(&baseline.0, &baseline.1));
        parts.extend(more::knowledge(&knowledge.0, &knowledge.1));
        goals.push(more::chosen(options, &weights.0, &weights.1));
        parts.extend(more::weights(&weights.0, &weights.1));
        goals.push(more::refused(&fuller.0, &fuller.1));
        parts.extend(more::fuller(&fuller.0, &fuller.1));
    }

    let mut described = serde_json::to_value(options)?;
    described["budget_w"] = budget_w.into();

    Ok(Report {
        name: "scheduler",
        title: "Placement: the power rule and what it is told (Figure 7)",
        command,
        parts,
        goals,
        options: described,
        rows: serde_json::to_value(rows)?,
    })
}

fn table(rows: &[SchedulerResult]) -> TextTable {
    TextTable::of(
        1,
        rows,
        &[
            ("arm", &|r| r.arm.name().to_owned()),
            ("alpha", &|r| maybe(r.alpha, 1)),
            ("failures %", &|r| percent(r.failure_rate, 2)),
            ("empty %", &|r| percent(r.empty_server_ratio, 1)),
            ("chassis std", &|r| number(r.chassis_score_std, 4)),
            ("range", &|r| between(r.chassis_score_std_range)),
            ("server std", &|r| number(r.server_score_std, 4)),
            ("range", &|r| between(r.server_score_std_range)),
            ("capped / week", &|r| number(r.capping_events_per_week, 1)),
            ("UF core-h", &|r| number(r.user_facing_throttled_core_h, 0)),
            ("1 % budget W", &|r| number(r.budget_1pct_w, 0)),
            ("shed W p10", &|r| number(r.sheddable_w_p10, 0)),
        ],
    )
}

fn at(rows: &[SchedulerResult], arm: Arm, alpha: f64) -> Option<&SchedulerResult> {
    rows.iter().find(|row| row.arm == arm && row.alpha.is_none_or(|a| (a - alpha).abs() < 5e-4))
}

fn goals(rows: &[SchedulerResult]) -> Vec<Goal> {
    let of = |arm, alpha| at(rows, arm, alpha);
    let (none, model) = (of(Arm::None, ALPHA), of(Arm::Model, ALPHA));
    let two = |a: f64, b: f64, places| format!("{} against {}", number(a, places), number(b, places));
    let ratio = |goal: &str, of: fn(&SchedulerResult) -> f64| {
        Goal::new(
            goal,
            none.zip(model).map(|(none, model)| {
                let (with, without) = (of(model), of(none));
                let words = format!("{}: ratio {}", two(with, without, 1), number(with / without, 3));
                (words, with < without)
            }),
        )
    };

    vec![
        Goal::new(
            "model: the chassis balance collapses at alpha 0: at least twice the deviation of 0.8",
            of(Arm::Model, 0.0).zip(model).map(|(zero, model)| {
                let (zero, model) = (zero.chassis_score_std, model.chassis_score_std);
                (two(zero, model, 4), zero >= COLLAPSED * model)
            }),
        ),
        Goal::new(
            "model: at alpha 1 the server balance is that of none, within a tenth",
            none.zip(of(Arm::Model, 1.0)).map(|(none, one)| {
                let (one, none) = (one.server_score_std, none.server_score_std);
                (two(one, none, 4), (one / none - 1.0).abs() <= EQUAL)
            }),
        ),
        Goal::new(
            "server balance at alpha 0.8: oracle < model < none",
            none.zip(model).zip(of(Arm::Oracle, ALPHA)).map(|((none, model), oracle)| {
                let [oracle, model, none] = [oracle, model, none].map(|row| row.server_score_std);
                let words = format!("{} < {} < {}", number(oracle, 4), number(model, 4), number(none, 4));
                (words, oracle < model && model < none)
            }),
        ),
        ratio("model, alpha 0.8: fewer capping events a week than none", |row| row.capping_events_per_week),
        ratio("model, alpha 0.8: fewer user-facing core-hours throttled than with none", |row| {
            row.user_facing_throttled_core_h
        }),
        Goal::new(
            "model, alpha 0.8: on every seed a lower 1 % budget than spread, which needs no prediction",
            of(Arm::Spread, 1.0).zip(model).map(|(spread, model)| {
                let less = more::less_by_seed(model, spread);
                (more::watts_by_seed(&less), less.min > 0.0)
            }),
        ),
    ]
}

const fn colour(arm: Arm) -> RGBColor {
    match arm {
        Arm::None => GREY,
        Arm::Model => BLUE,
        Arm::Oracle => GREEN,
        Arm::CriticalityOnly => ORANGE,
        Arm::Spread => RED,
        Arm::Unknown => PURPLE,
    }
}

/// A panel's name, and what it shows of a row.
type Shown = (&'static str, fn(&SchedulerResult) -> f64);

const PANELS: [Shown; 6] = [
    ("(a) deployments refused, %", |row| 100.0 * row.failure_rate),
    ("(b) empty servers, %", |row| 100.0 * row.empty_server_ratio),
    ("(c) standard deviation of chassis scores", |row| row.chassis_score_std),
    ("(d) standard deviation of server scores", |row| row.server_score_std),
    ("capped chassis-hours a week", |row| row.capping_events_per_week),
    ("user-facing core-hours throttled", |row| row.user_facing_throttled_core_h),
];

fn figure(rows: &[SchedulerResult]) -> Figure {
    let rows = rows.to_vec();
    Figure {
        name: "scheduler".to_owned(),
        caption:
            "Figure 7, and what it means for power: by the weight of the chassis score, medians over seeds"
                .to_owned(),
        height: 1100,
        draw: Box::new(move |area| {
            let areas = area.split_evenly((PANELS.len() / 2, 2));
            PANELS.iter().zip(&areas).try_for_each(|(shown, area)| draw(&rows, *shown, area))
        }),
    }
}

fn draw(rows: &[SchedulerResult], (caption, of): Shown, area: &Area<'_>) -> Drawn {
    let top = rows.iter().map(of).fold(0.0, f64::max);
    let y = ("", 0.0..if top > 0.0 { 1.1 * top } else { 1.0 });
    let mut chart = panel(area, &Panel { caption, x: ("alpha", 0.0..1.0), y })?;
    for arm in Arm::ALL {
        let of_arm = rows.iter().filter(|row| row.arm == arm);
        let points = of_arm.flat_map(|row| match row.alpha {
            Some(alpha) if !matches!(row.arm, Arm::Spread | Arm::Unknown) => vec![(alpha, of(row))],
            // Whatever the weight: a line across.
            _ => vec![(0.0, of(row)), (1.0, of(row))],
        });
        let points: Vec<_> = points.collect();
        if !points.is_empty() {
            line(&mut chart, arm.name(), colour(arm), points)?;
        }
    }
    legend(&mut chart, SeriesLabelPosition::UpperRight)
}

fn words(options: &Options, budget_w: f64) -> String {
    let Options { chassis, servers, cores, load, days, packing_weight, power_weight, ties, .. } = options;
    let values: [Named<'_>; 12] = [
        ("chassis", chassis),
        ("servers", servers),
        ("cores", cores),
        ("days", days),
        ("load", &percent(*load, 0)),
        ("seeds", &options.seeds.seeds),
        ("packing_weight", packing_weight),
        ("power_weight", power_weight),
        ("ties", ties),
        ("idle_w", &options.shape.idle_w),
        ("full_w", &options.shape.full_w),
        ("budget_w", &number(budget_w, 0)),
    ];
    filled(include_str!("words/scheduler.md"), &values)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn row(
        arm: Arm,
        alpha: Option<f64>,
        chassis: f64,
        server: f64,
        events: f64,
    ) -> SchedulerResult {
        SchedulerResult {
            arm,
            alpha,
            failure_rate: 0.002,
            empty_server_ratio: 0.25,
            chassis_score_std: chassis,
            server_score_std: server,
            capping_events_per_week: events,
            user_facing_throttled_core_h: 10.0 * events,
            budget_1pct_w: 2000.0 + 10.0 * events,
            budget_1pct_w_range: (1990.0, 3000.0),
            budget_1pct_w_by_seed: vec![2000.0 + 10.0 * events, 1990.0 + 10.0 * events],
            sheddable_w_p10: 3.0,
            failures_for_cores: 0.0,
            failures_for_fragmentation: 6.0,
            chassis_score_std_range: (chassis, chassis),
            server_score_std_range: (server, server),
            seeds: 5,
        }
    }

    fn rows() -> Vec<SchedulerResult> {
        vec![
            row(Arm::None, None, 0.2, 0.14, 100.0),
            row(Arm::Spread, Some(1.0), 0.04, 0.14, 5.0),
            row(Arm::Model, Some(0.0), 0.19, 0.12, 20.0),
            row(Arm::Model, Some(0.8), 0.03, 0.12, 1.0),
            row(Arm::Model, Some(1.0), 0.03, 0.135, 0.0),
            row(Arm::Oracle, Some(0.8), 0.02, 0.08, 0.0),
        ]
    }

    #[test]
    fn goals_are_judged_by_the_rows_and_a_missing_row_is_no_success() {
        assert!(goals(&rows()).iter().all(|goal| goal.met == Some(true)), "{:?}", goals(&rows()));
        let mut worse = rows();
        worse[3] = row(Arm::Model, Some(0.8), 0.15, 0.15, 100.0);
        let met: Vec<_> = goals(&worse).iter().map(|goal| goal.met).collect();
        let no = Some(false);
        assert_eq!(met, [no, Some(true), no, no, no, no]);
        assert!(goals(&rows()[1..]).iter().skip(1).take(4).all(|goal| goal.met.is_none()));
        assert!(goals(&rows())[3].measured.ends_with("1.0 against 100.0: ratio 0.010"));
    }

    #[test]
    fn every_row_is_shown_and_drawn() {
        assert_eq!(table(&rows()).text().lines().count(), 7);
        let svg = figure(&rows()).svg().unwrap();
        assert!(PANELS.iter().all(|(caption, _)| svg.contains(caption)));
        assert!(svg.contains("oracle") && !svg.contains("criticality-only"));
    }

    #[test]
    fn json_rows_have_the_names_that_others_read() {
        let json = serde_json::to_value(rows()).unwrap();
        for key in [
            "arm",
            "alpha",
            "failure_rate",
            "empty_server_ratio",
            "chassis_score_std",
            "server_score_std",
            "capping_events_per_week",
            "user_facing_throttled_core_h",
        ] {
            assert!(json[0].get(key).is_some(), "{key}");
        }

        assert_eq!((&json[0]["arm"], &json[0]["alpha"]), (&"none".into(), &serde_json::Value::Null));

        assert_eq!(serde_json::to_value(Arm::CriticalityOnly).unwrap(), "criticality-only");
    }
}
