//! The house style of every plot: colours, panels, curves, legends.

use std::ops::Range;

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

/// Colours that the colour-blind can tell apart (Okabe and Ito).
pub const BLUE: RGBColor = RGBColor(0, 114, 178);
pub const ORANGE: RGBColor = RGBColor(230, 159, 0);
pub const GREEN: RGBColor = RGBColor(0, 158, 115);
pub const RED: RGBColor = RGBColor(213, 94, 0);
pub const PURPLE: RGBColor = RGBColor(204, 121, 167);
pub const GREY: RGBColor = RGBColor(120, 120, 120);

/// Whether something could be drawn.
pub type Drawn = Result<(), Box<dyn std::error::Error>>;
/// Where something is drawn.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// A panel with axes.
pub type Chart<'b> = ChartContext<'b, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// A drawing of this many pixels, as the text of an SVG file.
pub fn svg(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Drawn) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let drawn = root.fill(&WHITE).map_err(Into::into).and_then(|()| draw(&root));
        drawn.map_err(|error| anyhow!("{error}"))?;
        root.present().map_err(|error| anyhow!("{error}"))?;
    }
    Ok(svg)
}

#[derive(Clone, Debug)]
pub struct Panel<'a> {
    pub caption: &'a str,
    /// What the x axis shows, and its range.
    pub x: (&'a str, Range<f64>),
    /// What the y axis shows, and its range.
    pub y: (&'a str, Range<f64>),
}

/// Draws axes and caption.
pub fn panel<'b>(area: &Area<'b>, panel: &Panel<'_>) -> Result<Chart<'b>, Box<dyn std::error::Error>> {
    let mut chart = ChartBuilder::on(area)
        .caption(panel.caption, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(70)
        .build_cartesian_2d(panel.x.1.clone(), panel.y.1.clone())?;
    chart.configure_mesh().x_desc(panel.x.0).y_desc(panel.y.0).light_line_style(WHITE).draw()?;
    Ok(chart)
}

/// Draws a line with its name in the legend.
pub fn line(
    chart: &mut Chart<'_>,
    name: &str,
    colour: RGBColor,
    points: impl IntoIterator<Item = (f64, f64)>,
) -> Drawn {
    chart
        .draw_series(LineSeries::new(points, colour.stroke_width(1)))?
        .label(name)
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    Ok(())
}

pub fn legend<'b>(chart: &mut Chart<'b>, position: SeriesLabelPosition) -> Drawn {
    chart
        .configure_series_labels()
        .position(position)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}
