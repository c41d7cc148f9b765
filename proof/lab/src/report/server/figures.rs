//! The paper's Figures 4 and 5, with ours in them.

use plotters::prelude::SeriesLabelPosition::{LowerRight, UpperRight};
use plotters::style::BLACK;

use super::rows::LoadRows;
use crate::plot::figure::{Figure, colour};
use crate::plot::groups::{Groups, Mark, Series};
use crate::plot::{Area, Chart, Drawn, Panel, legend, line, panel};
use crate::report::paper;
use crate::server::{Point as Moment, ServerResult, Trace};
use crate::{Contender, Spread};

const PANEL: u32 = 380;

/// Power and the lowest batch frequency over time.
pub(super) fn figure4(traces: Vec<Trace>, cap_w: f64) -> Figure {
    let seed = traces.first().map_or(0, |trace| trace.seed);
    Figure {
        name: "server-figure4".to_owned(),
        caption: format!(
            "Figure 4: true draw, and frequency of the lowest batch core, under a cap of {cap_w} W \
             (seed {seed})"
        ),
        height: 2 * PANEL,
        draw: Box::new(move |area| {
            let (upper, lower) = area.split_vertically(PANEL);
            power(&upper, &traces, cap_w)?;
            frequency(&lower, &traces)
        }),
    }
}

fn end_s(traces: &[Trace]) -> f64 {
    let ends = traces.iter().filter_map(|trace| trace.points.last()).map(|point| point.t_s);
    ends.fold(1.0, f64::max)
}

fn lines<'b>(chart: &mut Chart<'b>, traces: &[Trace], value: fn(&Moment) -> f64) -> Drawn {
    for trace in traces {
        let points = trace.points.iter().map(|point| (point.t_s, value(point)));
        line(chart, trace.policy, colour(trace.policy), points)?;
    }
    Ok(())
}

fn power(area: &Area<'_>, traces: &[Trace], cap_w: f64) -> Drawn {
    let all = traces.iter().flat_map(|trace| &trace.points).map(|point| point.power_w);
    let (low, high) = all.fold((cap_w, cap_w), |(l, h), w| (l.min(w), h.max(w)));
    let room = (0.08 * (high - low)).max(1.0);
    let end_s = end_s(traces);
    let mut chart = panel(
        area,
        &Panel {
            caption: "True draw, means over 100 ms",
            x: ("seconds", 0.0..end_s),
            // The legend stands above the lines.
            y: ("watts", low - room..high + 5.0 * room),
        },
    )?;
    lines(&mut chart, traces, |point| point.power_w)?;
    line(&mut chart, "cap", BLACK, [(0.0, cap_w), (end_s, cap_w)])?;
    legend(&mut chart, UpperRight)
}

fn frequency(area: &Area<'_>, traces: &[Trace]) -> Drawn {
    let about = Panel {
        caption: "Frequency of the lowest batch core",
        x: ("seconds", 0.0..end_s(traces)),
        y: ("% of highest", 30.0..105.0),
    };
    let mut chart = panel(area, &about)?;
    lines(&mut chart, traces, |point| 100.0 * point.batch_frequency_ratio_min)?;
    legend(&mut chart, LowerRight)
}

/// P95 latency and run time by cap and policy, with ranges over seeds.
pub(super) fn figure5(set: &LoadRows, contenders: &[Contender], paper: bool) -> Figure {
    let arrivals = set.arrivals.name();
    let p95 = Measure {
        value: |r| r.figures.user_facing_p95_norm,
        stated: if paper { paper::server_p95 } else { |_, _| None },
    };

    let runtime = Measure {
        value: |r| r.figures.batch_runtime_norm,
        stated: if paper { paper::server_runtime } else { |_, _| None },
    };

    let upper = p95.groups("P95 latency of the user-facing VM", &set.rows, contenders);
    let lower = runtime.groups("Run time of the batch VM", &set.rows, contenders);

    Figure {
        name: format!("server-figure5-{arrivals}"),
        caption: format!(
            "Figure 5: by cap and policy, against uncapped; median and range over seeds; load: {}",
            set.load()
        ),
        height: 2 * PANEL,
        draw: Box::new(move |area| {
            let (above, below) = area.split_vertically(PANEL);
            upper.draw(&above)?;
            lower.draw(&below)
        }),
    }
}

/// One of Figure 5's measures.
struct Measure {
    value: fn(&ServerResult) -> Spread,
    stated: fn(f64, &str) -> Option<f64>,
}

impl Measure {
    fn groups(&self, caption: &'static str, rows: &[ServerResult], contenders: &[Contender]) -> Groups {
        let mut caps: Vec<f64> = Vec::new();
        for row in rows {
            if !caps.contains(&row.cap_w) {
                caps.push(row.cap_w);
            }
        }

        let shown: Vec<&str> =
            contenders.iter().filter(|c| **c != Contender::None).map(|c| c.name()).collect();
        let series = shown.iter().map(|policy| Series {
            name: (*policy).to_owned(),
            colour: colour(policy),
            points: (caps.iter())
                .map(|cap| rows.iter().find(|r| r.cap_w == *cap && r.policy == *policy))
                .map(|row| row.map(self.value))
                .collect(),
        });

        let marks = caps.iter().enumerate().flat_map(|(group, cap)| {
            shown.iter().enumerate().filter_map(move |(series, policy)| {
                (self.stated)(*cap, policy).map(|value| Mark { group, series, value })
            })
        });

        Groups {
            caption,
            y_desc: "against uncapped",
            series: series.collect(),
            marks: marks.collect(),
            names: caps.iter().map(|cap| format!("{cap} W")).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::row;
    use super::*;
    use crate::Arrivals;

    #[test]
    fn figure_5_has_every_cap_policy_and_the_papers_numbers() {
        let rows = vec![
            row(240.0, "none", 1.0, 1.0),
            row(240.0, "stepwise", 1.0, 1.2),
            row(230.0, "none", 1.0, 1.0),
            row(230.0, "stepwise", 1.0, 1.3),
        ];
        let set = LoadRows { arrivals: Arrivals::Steady, batch_share: 0.6, service_ms: 0.5, rows };
        let figure = figure5(&set, &[Contender::None, Contender::Stepwise], true);
        let svg = figure.svg().unwrap();
        for text in ["240 W", "230 W", "stepwise", "stated by the paper"] {
            assert!(svg.contains(text), "{text}");
        }
        assert_eq!(figure.name, "server-figure5-steady");
    }

    #[test]
    fn figure_4_has_a_line_for_every_policy_and_the_cap() {
        let moment = |t_s| Moment { t_s, power_w: 225.0, batch_frequency_ratio_min: 0.5 };
        let trace = |policy| Trace {
            policy,
            cap_w: Some(230.0),
            seed: 1,
            points: (0..20).map(|t| moment(f64::from(t))).collect(),
        };
        let svg = figure4(vec![trace("none"), trace("stepwise")], 230.0).svg().unwrap();
        for text in ["none", "stepwise", "cap", "watts", "% of highest"] {
            assert!(svg.contains(text), "{text}");
        }
    }

    #[test]
    fn nothing_traced_is_still_a_figure() {
        assert!(figure4(Vec::new(), 230.0).svg().is_ok());
    }
}
