//! Power against the budget, and frequencies, over time.

use std::path::Path;

use anyhow::anyhow;
use ballast_sim::replay::TelemetryReport;
use ballast_sim::world::Bucket;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

const SIZE: (u32, u32) = (1200, 720);
const POWER_HEIGHT: i32 = 440;
/// Colours that the colour-blind can tell apart (Okabe and Ito).
const BLUE: RGBColor = RGBColor(0, 114, 178);
const ORANGE: RGBColor = RGBColor(230, 159, 0);
const GREEN: RGBColor = RGBColor(0, 158, 115);
const RED: RGBColor = RGBColor(213, 94, 0);

/// Draws the report's curve into an SVG file.
pub(super) fn draw(file: &Path, report: &TelemetryReport) -> anyhow::Result<()> {
    let mut svg = String::new();
    panels(&mut svg, report).map_err(|error| anyhow!("{error}"))?;
    std::fs::write(file, svg)?;
    Ok(())
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn panels(svg: &mut String, report: &TelemetryReport) -> Drawn {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (upper, lower) = root.split_vertically(POWER_HEIGHT);
    power(&upper, report)?;
    frequencies(&lower, report)?;
    root.present()?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

fn hours(bucket: &Bucket) -> f64 {
    bucket.at_s / 3600.0
}

fn line(
    chart: &mut Chart<'_, '_>,
    report: &TelemetryReport,
    name: &str,
    colour: RGBColor,
    value: impl Fn(&Bucket) -> f64,
) -> Drawn {
    let points = report.curve.iter().map(|b| (hours(b), value(b)));
    chart
        .draw_series(LineSeries::new(points, colour.stroke_width(1)))?
        .label(name)
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    Ok(())
}

fn power(area: &Area<'_>, report: &TelemetryReport) -> Drawn {
    let low = report.curve.iter().map(|b| b.power_min_w).fold(report.budget_w, f64::min);
    let high = report.max_power_w.max(report.budget_w);
    let room = (0.08 * (high - low)).max(1.0);
    let end = report.replayed_s / 3600.0;
    let mut chart = ChartBuilder::on(area)
        .caption(format!("Chassis power: {} servers", report.servers), ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..end, low - room..high + room)?;
    chart.configure_mesh().x_desc("hours").y_desc("watts").light_line_style(WHITE).draw()?;
    line(&mut chart, report, "draw, lowest", ORANGE, |b| b.power_min_w)?;
    line(&mut chart, report, "draw, highest", BLUE, |b| b.power_max_w)?;
    line(&mut chart, report, "limit", RED, |b| b.limit_w)?;
    legend(&mut chart)
}

fn frequencies(area: &Area<'_>, report: &TelemetryReport) -> Drawn {
    let end = report.replayed_s / 3600.0;
    let mut chart = ChartBuilder::on(area)
        .caption("Lowest mean frequency of the VMs' cores", ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..end, 30.0..105.0)?;
    chart.configure_mesh().x_desc("hours").y_desc("% of highest").light_line_style(WHITE).draw()?;
    line(&mut chart, report, "user-facing", GREEN, |b| 100.0 * b.user_facing_ratio_min)?;
    line(&mut chart, report, "batch", BLUE, |b| 100.0 * b.batch_ratio_min)?;
    legend(&mut chart)
}

fn legend<'b>(chart: &mut Chart<'b, 'b>) -> Drawn {
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}
