//! Power against the budget, and frequencies, over time.

use std::path::Path;

use ballast_sim::replay::TelemetryReport;
use ballast_sim::world::Bucket;
use plotters::prelude::SeriesLabelPosition::LowerRight;

use crate::common::plot::{Area, BLUE, Drawn, GREEN, ORANGE, Panel, RED, legend, line, panel, svg};

const SIZE: (u32, u32) = (1200, 720);
const POWER_HEIGHT: i32 = 440;

pub(super) fn draw(file: &Path, report: &TelemetryReport) -> anyhow::Result<()> {
    let svg = svg(SIZE, |root| {
        let (upper, lower) = root.split_vertically(POWER_HEIGHT);
        power(&upper, report)?;
        frequencies(&lower, report)
    })?;
    std::fs::write(file, svg)?;
    Ok(())
}

fn over_time(report: &TelemetryReport, value: impl Fn(&Bucket) -> f64) -> impl Iterator<Item = (f64, f64)> {
    report.curve.iter().map(move |b| (b.at_s / 3600.0, value(b)))
}

fn power(area: &Area<'_>, report: &TelemetryReport) -> Drawn {
    let low = report.curve.iter().map(|b| b.power_min_w).fold(report.budget_w, f64::min);
    let high = report.max_power_w.max(report.budget_w);
    let room = (0.08 * (high - low)).max(1.0);
    let mut chart = panel(
        area,
        &Panel {
            caption: &format!("Chassis power: {} servers", report.servers),
            x: ("hours", 0.0..report.replayed_s / 3600.0),
            y: ("watts", low - room..high + room),
        },
    )?;
    line(&mut chart, "draw, lowest", ORANGE, over_time(report, |b| b.power_min_w))?;
    line(&mut chart, "draw, highest", BLUE, over_time(report, |b| b.power_max_w))?;
    line(&mut chart, "limit", RED, over_time(report, |b| b.limit_w))?;
    legend(&mut chart, LowerRight)
}

fn frequencies(area: &Area<'_>, report: &TelemetryReport) -> Drawn {
    let mut chart = panel(
        area,
        &Panel {
            caption: "Lowest mean frequency of the VMs' cores",
            x: ("hours", 0.0..report.replayed_s / 3600.0),
            y: ("% of highest", 30.0..105.0),
        },
    )?;
    let user_facing = over_time(report, |b| 100.0 * b.user_facing_ratio_min);
    line(&mut chart, "user-facing", GREEN, user_facing)?;
    line(&mut chart, "batch", BLUE, over_time(report, |b| 100.0 * b.batch_ratio_min))?;
    legend(&mut chart, LowerRight)
}
