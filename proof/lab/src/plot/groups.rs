//! Groups of dots with ranges: one group per case, one dot per policy.

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Area, Drawn, legend};
use crate::Spread;

/// One policy: a dot in every group where it was measured.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) colour: RGBColor,
    pub(crate) points: Vec<Option<Spread>>,
}

/// A number that the paper states of one series in one group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub(crate) group: usize,
    pub(crate) series: usize,
    pub(crate) value: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct Groups {
    pub(crate) caption: &'static str,
    pub(crate) y_desc: &'static str,
    pub(crate) names: Vec<String>,
    pub(crate) series: Vec<Series>,
    pub(crate) marks: Vec<Mark>,
}

/// Of the width between two groups, what their dots take.
const SPREAD: f64 = 0.7;
/// Free width at the right for the legend, as a share of the groups' width.
const LEGEND: f64 = 0.17;
/// Beyond this the axis ends: such a dot stands there, with its number above it.
const CUT: f64 = 2.0;
/// Space below the axis for the groups' names, in pixels.
const NAMES_HEIGHT: i32 = 36;

impl Groups {
    pub(crate) fn draw(&self, area: &Area<'_>) -> Drawn {
        let (low, high) = self.range();
        let groups = self.names.len().max(1) as f64;
        let mut chart = ChartBuilder::on(area)
            .caption(self.caption, ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(NAMES_HEIGHT)
            .y_label_area_size(70)
            .build_cartesian_2d(-0.5..(1.0 + LEGEND) * groups - 0.5, low..high)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .y_desc(self.y_desc)
            .light_line_style(WHITE)
            .draw()?;
        self.name_groups(area, &chart, low)?;

        for (index, series) in self.series.iter().enumerate() {
            let style = series.colour;
            let measured = series.points.iter().enumerate();
            let measured: Vec<_> =
                measured.filter_map(|(group, point)| point.map(|p| (self.x(group, index), p))).collect();
            chart.draw_series(measured.iter().map(|(x, p)| {
                let ends = [(*x, p.min.min(CUT)), (*x, p.max.min(CUT))];
                PathElement::new(ends, style.stroke_width(2))
            }))?;

            let dot = |(x, p): &(f64, Spread)| Circle::new((*x, p.median.min(CUT)), 5, style.filled());
            chart
                .draw_series(measured.iter().map(dot))?
                .label(&series.name)
                .legend(move |(x, y)| Circle::new((x + 9, y), 5, style.filled()));
            let above = TextStyle::from(("sans-serif", 13)).pos(Pos::new(HPos::Center, VPos::Bottom));
            let beyond = measured.iter().filter(|(_, p)| p.median > CUT);
            chart.draw_series(beyond.map(|(x, p)| {
                let number = Text::new(format!("{:.1}", p.median), (0, -7), above.clone());
                EmptyElement::at((*x, CUT)) + number
            }))?;
        }

        if !self.marks.is_empty() {
            let mark = |m: &Mark| Cross::new((self.x(m.group, m.series), m.value), 6, BLACK.stroke_width(2));
            chart
                .draw_series(self.marks.iter().map(mark))?
                .label("stated by the paper")
                .legend(|(x, y)| Cross::new((x + 9, y), 6, BLACK.stroke_width(2)));
        }

        legend(&mut chart, SeriesLabelPosition::UpperRight)
    }

    /// Where a series stands in a group.
    fn x(&self, group: usize, series: usize) -> f64 {
        let of = self.series.len().max(1) as f64;
        group as f64 + SPREAD * ((series as f64 + 0.5) / of - 0.5)
    }

    /// The y axis: all ranges and marks, the line of 1, and some room.
    fn range(&self) -> (f64, f64) {
        let points = self.series.iter().flat_map(|s| s.points.iter().flatten());
        let values = points.flat_map(|p| [p.min.min(CUT), p.max.min(CUT)]);
        let values = values.chain(self.marks.iter().map(|m| m.value)).filter(|v| v.is_finite());
        let (low, high) = values.fold((1.0f64, 1.0f64), |(l, h), v| (l.min(v), h.max(v)));
        let room = (0.08 * (high - low)).max(0.01);
        (low - room, high + room)
    }

    /// Writes the groups' names below the axis.
    fn name_groups<'b>(
        &self,
        area: &Area<'b>,
        chart: &ChartContext<'b, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>,
        low: f64,
    ) -> Drawn {
        let centred = Pos::new(HPos::Center, VPos::Top);
        let style = TextStyle::from(("sans-serif", 14)).pos(centred);
        let (left, top) = area.get_base_pixel();
        for (group, name) in self.names.iter().enumerate() {
            let (x, y) = chart.backend_coord(&(group as f64, low));
            area.draw_text(name, &style, (x - left, y - top + 8))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::{BLUE, svg};

    fn groups() -> Groups {
        let point = |median| Some(Spread { median, min: median - 0.02, max: median + 0.03 });
        Groups {
            caption: "P95",
            y_desc: "normalised",
            names: vec!["250 W".into(), "230 W".into()],
            series: vec![
                Series { name: "a".into(), colour: BLUE, points: vec![point(1.05), point(1.2)] },
                Series { name: "b".into(), colour: BLUE, points: vec![None, point(7.3)] },
            ],
            marks: vec![Mark { group: 1, series: 0, value: 1.18 }],
        }
    }

    #[test]
    fn every_dot_mark_and_name_is_drawn() {
        let svg = svg((800, 400), |area| groups().draw(area)).unwrap();
        // Three dots, and one in the legend for each series.
        assert_eq!(svg.matches("<circle").count(), 3 + 2, "{svg}");
        for text in ["7.3", "250 W", "230 W", "stated by the paper", "P95"] {
            assert!(svg.contains(text), "{text}");
        }
    }

    #[test]
    fn the_axis_holds_everything() {
        let (low, high) = groups().range();
        assert!(low < 1.0 && high > CUT && high < 2.3);
        assert!(groups().x(0, 0) < groups().x(0, 1) && groups().x(0, 1) < groups().x(1, 0));
    }

    #[test]
    fn nothing_measured_is_an_empty_panel() {
        let empty = Groups { names: vec![], series: vec![], marks: vec![], ..groups() };
        assert!(svg((800, 400), |area| empty.draw(area)).is_ok());
    }
}
