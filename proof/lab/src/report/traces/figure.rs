//! What a budget costs, by policy.

use plotters::prelude::*;

use super::group::{group, median};
use crate::plot::figure::{Figure, colour};
use crate::plot::{Area, Drawn, Panel, legend, line, panel};
use crate::traces::{Options, TracePolicy, TraceResult};

/// Height of one data set's panels, in pixels.
const PANEL: u32 = 340;

/// One row of panels per data set: user-facing core-seconds, and batch work.
pub(super) fn lines(rows: &[TraceResult], names: &[String], options: &Options) -> Figure {
    let (rows, names, options) = (rows.to_vec(), names.to_vec(), options.clone());
    Figure {
        name: "traces".to_owned(),
        caption: "What a budget costs: throttled user-facing cores, and batch work done, by policy; \
                  medians over seeds"
            .to_owned(),
        height: PANEL * names.len().max(1) as u32,
        draw: Box::new(move |area| {
            let panels = area.split_evenly((names.len().max(1), 2));
            for (name, pair) in names.iter().zip(panels.chunks(2)) {
                let mine: Vec<&TraceResult> = rows.iter().filter(|row| row.data == *name).collect();
                let caption = format!("{name}: user-facing cores throttled");
                curves(&pair[0], (&caption, "core-seconds"), &mine, &options, |row| {
                    Some(row.user_facing_throttled_core_s)
                })?;
                let caption = format!("{name}: batch work");
                curves(&pair[1], (&caption, "% of uncapped"), &mine, &options, |row| {
                    row.batch_work_ratio.map(|ratio| 100.0 * ratio)
                })?;
            }

            Ok(())
        }),
    }
}

/// One line per policy over the budgets.
fn curves(
    area: &Area<'_>,
    (caption, y_desc): (&str, &str),
    rows: &[&TraceResult],
    options: &Options,
    figure: fn(&TraceResult) -> Option<f64>,
) -> Drawn {
    let mut budgets = options.budgets_percent.clone();
    budgets.sort_by(f64::total_cmp);
    let policies = options.policies.iter().filter(|policy| **policy != TracePolicy::None);
    let lines: Vec<(&str, Vec<(f64, f64)>)> = policies
        .map(|policy| {
            let value = |budget: &f64| {
                let values = group(rows, *budget, *policy).into_iter().filter_map(figure);
                Some((*budget, median(values)?))
            };

            (policy.name(), budgets.iter().filter_map(value).collect())
        })
        .collect();

    let values = lines.iter().flat_map(|(_, points)| points.iter().map(|(_, y)| *y));
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), y| (l.min(y), h.max(y)));
    let (low, high) = if low.is_finite() { (low, high) } else { (0.0, 1.0) };
    let room = (0.05 * (high - low)).max(0.5);
    let ends = budgets.first().copied().zip(budgets.last().copied()).unwrap_or((0.0, 1.0));
    let about = Panel {
        caption,
        x: ("budget, % of the load's peak", ends.0 - 1.0..ends.1 + 1.0),
        y: (y_desc, low - room..high + room),
    };

    let mut chart = panel(area, &about)?;

    for (policy, points) in lines {
        let colour = colour(policy);
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
        line(&mut chart, policy, colour, points)?;
    }

    legend(&mut chart, SeriesLabelPosition::UpperRight)
}

#[cfg(test)]
mod tests {
    use super::super::tests::row;
    use super::*;

    #[test]
    fn every_data_set_has_two_panels_and_every_policy_a_line() {
        let mut rows = Vec::new();
        for budget in [80.0, 102.0] {
            for policy in [TracePolicy::None, TracePolicy::Paper, TracePolicy::Stepwise] {
                rows.push(row(policy, 1, budget, budget));
            }
        }
        let options = Options { budgets_percent: vec![102.0, 80.0], ..Options::default() };
        let names = ["made".to_owned(), "empty".to_owned()];
        let svg = lines(&rows, &names, &options).svg().unwrap();
        assert!(svg.contains("height=\"680\"") && svg.contains("made: batch work"), "{svg}");
        // Two policies, two budgets, two panels; nobody throttles nobody.
        assert_eq!(svg.matches("<circle").count(), 8);
        assert!(!svg.contains(">\nnone\n<"));
    }
}
