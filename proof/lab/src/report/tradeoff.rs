//! Lost run time against time above the cap.

use plotters::prelude::*;

use super::{Goal, Named, Part, Report, filled, maybe, number, percent};
use crate::Contender;
use crate::plot::figure::{Figure, colour};
use crate::plot::{Area, Drawn, Panel, legend, panel};
use crate::tradeoff::{self, Case, Options, TradeoffResult};
use ballast_cli::common::text_table::TextTable;

/// Height of one cap's panel, in pixels; two of them stand side by side.
const PANEL: u32 = 360;
/// Predictive's excess is to be at most so much of stepwise's, at equal time above the cap: with short
/// requests whatever the share, and with all at stepwise's own margin.
const EXCESS_RATIO: (f64, f64) = (0.6, 0.9);
/// Stepwise's own margin, as a share of the cap.
const OWN_MARGIN: f64 = 0.02;

/// The policy whose margins are compared with stepwise's.
const PREDICTIVE: &str = Contender::Predictive.name();

/// The report on these rows; `command` makes it again.
pub fn report(
    options: &Options,
    rows: &[TradeoffResult],
    command: String,
    figures: bool,
) -> anyhow::Result<Report> {
    let mut parts = vec![Part::Words(words(options)), Part::TextTable(table(rows))];
    if figures {
        parts.push(Part::Figure(curves(rows.to_vec(), options.cases())));
    }

    Ok(Report {
        name: "tradeoff",
        title: "Lost run time against time above the cap",
        command,
        parts,
        goals: goals(rows, options),
        options: serde_json::to_value(options)?,
        rows: serde_json::to_value(rows)?,
    })
}

fn table(rows: &[TradeoffResult]) -> TextTable {
    let margin = |r: &TradeoffResult| {
        let above = if r.policy == Contender::Stepwise.name() { "" } else { " above" };
        format!("{} %{above}", percent(r.margin, 1))
    };

    TextTable::of(
        3,
        rows,
        &[
            ("cap W", &|r| number(r.case.cap_w, 0)),
            ("requests ms", &|r| r.case.service_ms.to_string()),
            ("policy", &|r| r.policy.to_owned()),
            ("margin", &|r| margin(r)),
            ("above %", &|r| percent(r.figures.over_fraction.median, 3)),
            ("above s", &|r| number(r.figures.over_s_max.median, 1)),
            ("excess", &|r| number(r.figures.excess, 4)),
            ("stepwise's", &|r| maybe(stepwise_at(rows, r), 4)),
            ("ratio", &|r| maybe(stepwise_at(rows, r).map(|stepwise| r.figures.excess / stepwise), 2)),
            ("run time", &|r| number(r.figures.batch_runtime_norm.median, 3)),
            ("P95", &|r| number(r.figures.user_facing_p95_norm.median, 3)),
        ],
    )
}

/// The least excess of stepwise with no more time above the cap than this row of predictive's; `None`
/// where the two cannot be compared.
fn stepwise_at(rows: &[TradeoffResult], row: &TradeoffResult) -> Option<f64> {
    (row.policy == PREDICTIVE)
        .then(|| tradeoff::excess_at(rows, row.case, Contender::Stepwise, row.point().0))
        .flatten()
}

fn goals(rows: &[TradeoffResult], options: &Options) -> Vec<Goal> {
    let cases = options.cases();
    let short = cases.iter().filter(|case| case.service_ms == options.server.service_ms);
    let short = short.map(|case| whatever_the_share(rows, *case));
    short.chain(cases.iter().map(|case| at_its_own_margin(rows, *case))).collect()
}

/// All of predictive's shares that can be compared.
fn whatever_the_share(rows: &[TradeoffResult], case: Case) -> Goal {
    let in_case = rows.iter().filter(|row| row.case == case);
    let ours: Vec<&TradeoffResult> = in_case.filter(|row| row.policy == PREDICTIVE).collect();
    let compared: Vec<(&TradeoffResult, f64)> =
        ours.iter().filter_map(|row| Some((*row, stepwise_at(rows, row)?))).collect();
    let met = compared.iter().filter(|(row, other)| row.figures.excess <= EXCESS_RATIO.0 * other).count();
    Goal::new(
        format!(
            "{}: at equal time above the cap, predictive's excess at most 0.6 × stepwise's, whatever \
             the share",
            named(case)
        ),
        (!compared.is_empty()).then(|| {
            let (all, rest) = (compared.len(), ours.len() - compared.len());
            (format!("{met} of {all} shares, {rest} not comparable"), met == all)
        }),
    )
}

/// Where stepwise is above the cap more often than predictive with any share, the most of them counts.
fn at_its_own_margin(rows: &[TradeoffResult], case: Case) -> Goal {
    let of = |policy| rows.iter().filter(move |row| row.case == case && row.policy == policy);
    let own = of(Contender::Stepwise.name()).find(|row| row.margin == OWN_MARGIN);
    let longest = of(PREDICTIVE).map(|row| row.point().0).fold(0.0, f64::max);
    let pair = own.and_then(|own| {
        let share = own.point().0.min(longest);
        let ours = tradeoff::excess_at(rows, case, Contender::Predictive, share)?;
        Some((own, ours))
    });

    Goal::new(
        format!(
            "{}: above the cap as long as stepwise with its own margin, predictive's excess at most \
             0.9 × stepwise's",
            named(case)
        ),
        pair.map(|(own, ours)| {
            let (above, excess) = own.point();
            let measured =
                format!("{} against {} at {} %", number(ours, 3), number(excess, 3), percent(above, 2));
            (measured, ours <= EXCESS_RATIO.1 * excess)
        }),
    )
}

fn named(case: Case) -> String {
    format!("{} W, requests of {} ms", case.cap_w, case.service_ms)
}

/// One panel per case: the closer to the lower left corner, the better.
fn curves(rows: Vec<TradeoffResult>, cases: Vec<Case>) -> Figure {
    let lines = cases.len().div_ceil(2).max(1);
    Figure {
        name: "tradeoff".to_owned(),
        caption: "Excess run time against the share of time above the cap, as the margin moves; \
                  the lower left corner is best"
            .to_owned(),
        height: PANEL * lines as u32,
        draw: Box::new(move |area| {
            let panels = area.split_evenly((lines, 2));
            cases.iter().zip(&panels).try_for_each(|(case, area)| curve(area, &rows, *case))
        }),
    }
}

/// The time above the cap in percent, and the excess.
fn plotted(row: &TradeoffResult) -> (f64, f64) {
    (100.0 * row.point().0, row.point().1)
}

fn curve(area: &Area<'_>, rows: &[TradeoffResult], case: Case) -> Drawn {
    let rows: Vec<&TradeoffResult> = rows.iter().filter(|row| row.case == case).collect();
    let finite = rows.iter().map(|row| plotted(row)).filter(|(x, y)| x.is_finite() && y.is_finite());
    let (x, low, high) =
        finite.fold((0.1f64, 0.0f64, 0.02f64), |(x, l, h), p| (x.max(p.0), l.min(p.1), h.max(p.1)));
    let caption = named(case);
    let about = Panel {
        caption: &caption,
        x: ("% of time above the cap", 0.0..1.05 * x),
        y: ("excess", low - 0.05 * (high - low)..high + 0.05 * (high - low)),
    };

    let mut chart = panel(area, &about)?;

    for policy in [Contender::Stepwise.name(), Contender::Predictive.name()] {
        let colour = colour(policy);
        let points: Vec<_> = rows.iter().filter(|r| r.policy == policy).map(|row| plotted(row)).collect();
        chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?;
        chart
            .draw_series(points.iter().map(|point| Circle::new(*point, 4, colour.filled())))?
            .label(policy)
            .legend(move |(x, y)| Circle::new((x + 9, y), 4, colour.filled()));
    }

    legend(&mut chart, SeriesLabelPosition::UpperRight)
}

fn words(options: &Options) -> String {
    let server = &options.server;
    let values: [Named<'_>; 5] = [
        ("arrivals", &server.arrivals.name()),
        ("share", &server.batch_share),
        ("seeds", &server.seeds.len()),
        ("least", &percent(tradeoff::COMPARABLE_FRACTION, 1)),
        ("minutes", &server.minutes),
    ];
    filled(include_str!("words/tradeoff.md"), &values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Spread;
    use crate::medians::{Limit, Medians};

    const CASE: Case = Case { cap_w: 230.0, service_ms: 0.5 };

    fn row(policy: &'static str, margin: f64, over_cap_fraction: f64, excess: f64) -> TradeoffResult {
        let sample = Medians::sample(Limit::Cap, 1.0, 1.2);
        let over_fraction = Spread { median: over_cap_fraction, ..sample.over_fraction };
        let figures = Medians { over_fraction, excess, ..sample };
        TradeoffResult { case: CASE, policy, margin, figures }
    }

    fn rows(ours: f64) -> Vec<TradeoffResult> {
        vec![
            row("stepwise", 0.0, 0.10, 0.04),
            row("stepwise", 0.02, 0.02, 0.10),
            row("predictive", 1.0, 0.06, ours),
            row("predictive", 4.0, 0.0, 9.0),
        ]
    }

    #[test]
    fn points_beyond_the_other_curve_are_not_compared() {
        let verdict = |ours| whatever_the_share(&rows(ours), CASE).met;
        assert_eq!((verdict(0.041), verdict(0.043)), (Some(true), Some(false)));
        assert_eq!(whatever_the_share(&rows(0.01)[..2], CASE).met, None);
        let goal = whatever_the_share(&rows(0.041), CASE);
        assert_eq!(goal.measured, "1 of 1 shares, 1 not comparable");
    }

    #[test]
    fn at_its_own_margin_stepwise_is_met_on_the_other_curve() {
        let verdict = |ours: [f64; 2], shares: [f64; 2]| {
            let all = [
                row("stepwise", 0.0, 0.10, 0.04),
                row("stepwise", 0.02, 0.05, 0.10),
                row("predictive", 0.01, shares[0], ours[0]),
                row("predictive", 0.1, shares[1], ours[1]),
            ];
            at_its_own_margin(&all, CASE)
        };
        assert_eq!(verdict([0.11, 0.06], [0.04, 0.06]).met, Some(true));
        assert_eq!(verdict([0.13, 0.06], [0.04, 0.06]).met, Some(false));
        // Never above the cap as often as stepwise: its most is taken.
        let goal = verdict([0.11, 0.08], [0.01, 0.03]);
        assert_eq!((goal.met, goal.measured.as_str()), (Some(true), "0.080 against 0.100 at 5.00 %"));
    }

    #[test]
    fn every_case_has_a_panel_and_every_margin_a_point() {
        let others = [220.0, 210.0].map(|cap_w| Case { cap_w, ..CASE });
        let svg = curves(rows(0.03), vec![CASE, others[0], others[1]]).svg().unwrap();
        assert!(svg.contains("height=\"720\"") && svg.contains("230 W") && svg.contains("210 W"));
        // Four points, and two in the legend of each panel.
        assert_eq!(svg.matches("<circle").count(), 4 + 3 * 2);
        let table = table(&rows(0.03)).text();
        assert!(table.contains("2.0 %") && table.contains("100.0 % above"), "{table}");
    }
}
