//! `ballast experiment tradeoff`: lost run time against time above the cap, as margins move.

use ballast_sim::experiment::tradeoff::{self, Options, Row};
use ballast_sim::experiment::{Arrivals, Contender, server};
use clap::Args;
use plotters::prelude::*;

use super::args::{self, Runs, list, or, within};
use super::plot::{Figure, colour};
use super::report::{Goal, Part, Report, maybe, number, percent};
use super::table::Table;
use super::{Wanted, run_all};
use crate::demo::positive;
use crate::plot::{Area, Drawn, Panel, legend, panel};

/// Height of one cap's panel, in pixels; two of them stand side by side.
const PANEL: u32 = 360;
/// Predictive's excess is to be at most so much of stepwise's, at equal time above the cap.
const EXCESS_RATIO: f64 = 0.6;

/// The policy whose margins are compared with stepwise's.
const PREDICTIVE: &str = Contender::Predictive.name();

/// What can be chosen.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Choice {
    /// Caps on the server's draw, in watts, with commas between [default: 250,240,230,220]
    #[arg(long, value_name = "W,…", value_delimiter = ',', allow_negative_numbers = true, value_parser = positive)]
    caps_w: Vec<f64>,
    /// Margins of stepwise, as shares of the cap [default: 0,0.005,0.01,0.02,0.03,0.04,0.06,0.08]
    #[arg(long, value_name = "F,…", value_delimiter = ',', allow_negative_numbers = true, value_parser = margin_share)]
    margins_share: Vec<f64>,
    /// Margins of predictive, in standard deviations of its forecasts' error
    /// [default: 0.5,1,1.5,2,2.2,2.5,3]
    #[arg(long, value_name = "F,…", value_delimiter = ',', allow_negative_numbers = true, value_parser = margin_sigmas)]
    margins_sigmas: Vec<f64>,
    /// How user-facing requests come [default: bursty]
    #[arg(long, value_name = "NAME", value_parser = args::arrivals())]
    arrivals: Option<Arrivals>,
    /// Share of the batch work that scales with the clock [default: 0.6]
    #[arg(long, value_name = "F", allow_negative_numbers = true, value_parser = args::share)]
    batch_share: Option<f64>,
}

fn margin_share(text: &str) -> Result<f64, String> {
    within(text, 0.0, 0.5)
}

fn margin_sigmas(text: &str) -> Result<f64, String> {
    within(text, 0.0, 20.0)
}

/// Runs it.
pub(super) fn report(choice: &Choice, runs: &Runs, wanted: Wanted) -> anyhow::Result<Report> {
    let usual = Options::default();
    let options = Options {
        server: server::Options {
            shape: runs.shape()?,
            arrivals: choice.arrivals.unwrap_or(usual.server.arrivals),
            batch_share: choice.batch_share.unwrap_or(usual.server.batch_share),
            caps_w: or(&choice.caps_w, &usual.server.caps_w),
            seeds: runs.seeds(usual.server.seeds.len())?,
            minutes: runs.minutes.unwrap_or(usual.server.minutes),
            ..usual.server
        },
        margins_share: or(&choice.margins_share, &usual.margins_share),
        margins_sigmas: or(&choice.margins_sigmas, &usual.margins_sigmas),
    };
    let jobs = tradeoff::jobs(&options)?;
    let done = run_all("tradeoff", &jobs, runs.threads(), tradeoff::Job::run)?;
    let rows = tradeoff::rows(&options, &done);
    let mut parts = vec![Part::Words(words(&options)), Part::Table(table(&rows))];
    if wanted.figures {
        parts.push(Part::Figure(curves(rows.clone(), options.server.caps_w.clone())));
    }
    Ok(Report {
        name: "tradeoff",
        title: "Lost run time against time above the cap",
        command: command(&options, runs, wanted),
        parts,
        goals: goals(&rows, &options.server.caps_w),
        options: serde_json::to_value(&options)?,
        rows: serde_json::to_value(&rows)?,
    })
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(
        2,
        &[
            "cap W",
            "policy",
            "margin",
            "above %",
            "above s",
            "excess",
            "stepwise's",
            "ratio",
            "run time",
            "P95",
        ],
    );
    for r in rows {
        let margin = if r.policy == Contender::Stepwise.name() {
            format!("{} %", percent(r.margin, 1))
        } else {
            format!("{} σ", number(r.margin, 2))
        };
        let stepwise = stepwise_at(rows, r);
        table.row(vec![
            number(r.cap_w, 0),
            r.policy.to_owned(),
            margin,
            percent(r.over_cap_fraction, 3),
            number(r.over_cap_s_max, 1),
            number(r.excess, 4),
            maybe(stepwise, 4),
            maybe(stepwise.map(|stepwise| r.excess / stepwise), 2),
            number(r.batch_runtime_norm, 3),
            number(r.user_facing_p95_norm, 3),
        ]);
    }
    table
}

/// The least excess of stepwise with no more time above the cap than this row of predictive's; `None`
/// where the two cannot be compared.
fn stepwise_at(rows: &[Row], row: &Row) -> Option<f64> {
    (row.policy == PREDICTIVE)
        .then(|| tradeoff::excess_at(rows, row.cap_w, Contender::Stepwise, row.over_cap_fraction))
        .flatten()
}

/// At every cap: all of predictive's margins that can be compared.
fn goals(rows: &[Row], caps_w: &[f64]) -> Vec<Goal> {
    let goal = |&cap_w: &f64| {
        let at_cap = rows.iter().filter(|row| row.cap_w == cap_w);
        let ours: Vec<&Row> = at_cap.filter(|row| row.policy == PREDICTIVE).collect();
        let compared: Vec<(&Row, f64)> =
            ours.iter().filter_map(|row| Some((*row, stepwise_at(rows, row)?))).collect();
        let within = |(row, other): &&(&Row, f64)| row.excess <= EXCESS_RATIO * other;
        let met = compared.iter().filter(within).count();
        Goal::new(
            format!(
                "{cap_w} W: at equal time above the cap, predictive's excess at most 0.6 × \
                 stepwise's, whatever the margin"
            ),
            (!compared.is_empty()).then(|| {
                let (all, rest) = (compared.len(), ours.len() - compared.len());
                (format!("{met} of {all} margins, {rest} not comparable"), met == all)
            }),
        )
    };
    caps_w.iter().map(goal).collect()
}

/// One panel per cap: the closer to the lower left corner, the better.
fn curves(rows: Vec<Row>, caps_w: Vec<f64>) -> Figure {
    let lines = caps_w.len().div_ceil(2).max(1);
    Figure {
        name: "tradeoff".to_owned(),
        caption: "Excess run time against the share of time above the cap, as the margin moves; \
                  the lower left corner is best"
            .to_owned(),
        height: PANEL * lines as u32,
        draw: Box::new(move |area| {
            let panels = area.split_evenly((lines, 2));
            caps_w.iter().zip(&panels).try_for_each(|(cap_w, area)| curve(area, &rows, *cap_w))
        }),
    }
}

fn curve(area: &Area<'_>, rows: &[Row], cap_w: f64) -> Drawn {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.cap_w == cap_w).collect();
    let points = rows.iter().map(|r| (100.0 * r.over_cap_fraction, r.excess));
    let finite = points.filter(|(x, y)| x.is_finite() && y.is_finite());
    let (x, low, high) =
        finite.fold((0.1f64, 0.0f64, 0.02f64), |(x, l, h), p| (x.max(p.0), l.min(p.1), h.max(p.1)));
    let caption = format!("{cap_w} W");
    let about = Panel {
        caption: &caption,
        x: ("% of time above the cap", 0.0..1.05 * x),
        y: ("excess", low - 0.05 * (high - low)..high + 0.05 * (high - low)),
    };
    let mut chart = panel(area, &about)?;
    for policy in [Contender::Stepwise.name(), Contender::Predictive.name()] {
        let colour = colour(policy);
        let points: Vec<_> = rows
            .iter()
            .filter(|r| r.policy == policy)
            .map(|r| (100.0 * r.over_cap_fraction, r.excess))
            .collect();
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
    format!(
        "A policy that stays further below the cap loses more run time and is above the cap less \
         often. The margin of `stepwise` is a share of the cap, that of `predictive` a number of \
         standard deviations of its forecasts' error; each point is one margin. One server as \
         above, load {arrivals}, batch share {share}, {seeds} seeds; medians. Time above the cap is judged on 100 \
         ms means of the true draw, `above s` is the longest stretch, `excess` the lost run time \
         less the oracle's. `stepwise's` is the least excess that stepwise can have with no more \
         time above the cap: its margins that another one beats in both ways are left out, and \
         straight lines join the rest. Margins of predictive are not comparable where stepwise's \
         curve does not reach, and where they are above the cap for less than {least} % of the \
         time: a run of {minutes} minutes has a few such windows, and chance decides.",
        arrivals = server.arrivals.name(),
        share = server.batch_share,
        seeds = server.seeds.len(),
        least = percent(tradeoff::COMPARABLE_FRACTION, 1),
        minutes = server.minutes,
    )
}

fn command(options: &Options, runs: &Runs, wanted: Wanted) -> String {
    let server = &options.server;
    runs.command(
        "tradeoff",
        &server.seeds,
        server.minutes,
        wanted,
        &[
            ("caps-w", list(&server.caps_w, f64::to_string)),
            ("margins-share", list(&options.margins_share, f64::to_string)),
            ("margins-sigmas", list(&options.margins_sigmas, f64::to_string)),
            ("arrivals", server.arrivals.name().to_owned()),
            ("batch-share", server.batch_share.to_string()),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(policy: &'static str, margin: f64, over_cap_fraction: f64, excess: f64) -> Row {
        Row {
            cap_w: 230.0,
            policy,
            margin,
            over_cap_fraction,
            over_cap_s_max: 0.4,
            excess,
            batch_runtime_norm: 1.2,
            user_facing_p95_norm: 1.0,
            seeds: 2,
        }
    }

    fn rows(ours: f64) -> Vec<Row> {
        vec![
            row("stepwise", 0.0, 0.10, 0.04),
            row("stepwise", 0.02, 0.02, 0.10),
            row("predictive", 1.0, 0.06, ours),
            row("predictive", 4.0, 0.0, 9.0),
        ]
    }

    #[test]
    fn points_beyond_the_other_curve_are_not_compared() {
        let verdict = |ours| goals(&rows(ours), &[230.0])[0].met;
        assert_eq!((verdict(0.041), verdict(0.043)), (Some(true), Some(false)));
        assert_eq!(goals(&rows(0.01)[..2], &[230.0])[0].met, None);
        let goal = &goals(&rows(0.041), &[230.0])[0];
        assert_eq!(goal.measured, "1 of 1 margins, 1 not comparable");
    }

    #[test]
    fn every_cap_has_a_panel_and_every_margin_a_point() {
        let svg = curves(rows(0.03), vec![230.0, 220.0, 210.0]).svg().unwrap();
        assert!(svg.contains("height=\"720\"") && svg.contains("230 W") && svg.contains("210 W"));
        // Four points, and two in the legend of each panel.
        assert_eq!(svg.matches("<circle").count(), 4 + 3 * 2);
        let table = table(&rows(0.03)).text();
        assert!(table.contains("2.0 %") && table.contains("4.00 σ"), "{table}");
    }
}
