//! A heat map with its numbers written in the cells.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Area, Drawn, RED};

/// A heat map. Cells without a value stay empty.
#[derive(Clone, Debug)]
pub(crate) struct Heat {
    pub(crate) caption: String,
    /// What the columns' names are, line by line.
    pub(crate) corner: &'static str,
    /// Names of columns; a name of several lines stands in several lines.
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<String>,
    /// By row, then column.
    pub(crate) values: Vec<Vec<Option<f64>>>,
    /// The value of the strongest colour.
    pub(crate) strongest: f64,
}

const LEFT: i32 = 110;
const TOP: i32 = 86;
const MARGIN: i32 = 12;

impl Heat {
    /// Draws it over the whole area.
    pub(crate) fn draw(&self, area: &Area<'_>) -> Drawn {
        let (width, height) = area.dim_in_pixel();
        let inner = (width as i32 - LEFT - MARGIN, height as i32 - TOP - MARGIN);
        let x = |column: usize| LEFT + inner.0 * column as i32 / self.columns.len().max(1) as i32;
        let y = |row: usize| TOP + inner.1 * row as i32 / self.rows.len().max(1) as i32;
        let text =
            |size: i32| TextStyle::from(("sans-serif", size)).pos(Pos::new(HPos::Center, VPos::Center));
        area.draw_text(&self.caption, &text(20), (width as i32 / 2, 22))?;
        let middles = (0..self.columns.len()).map(|column| (x(column) + x(column + 1)) / 2);
        let columns = self.columns.iter().map(String::as_str).zip(middles);

        for (name, middle) in [(self.corner, LEFT / 2)].into_iter().chain(columns) {
            for (line, part) in name.lines().enumerate() {
                area.draw_text(part, &text(13), (middle, 50 + 16 * line as i32))?;
            }
        }

        for (row, name) in self.rows.iter().enumerate() {
            let middle = (y(row) + y(row + 1)) / 2;
            area.draw_text(name, &text(13), (LEFT / 2, middle))?;
            let cells = self.values.get(row).into_iter().flatten().enumerate();

            for (column, value) in cells.filter_map(|(c, v)| v.map(|v| (c, v))) {
                let corners = [(x(column), y(row)), (x(column + 1), y(row + 1))];
                area.draw(&Rectangle::new(corners, self.shade(value).filled()))?;
                area.draw(&Rectangle::new(corners, WHITE.stroke_width(2)))?;
                let at = ((corners[0].0 + corners[1].0) / 2, middle);
                area.draw_text(&format!("{value:.1}"), &text(13), at)?;
            }
        }

        Ok(())
    }

    /// From nearly white to red.
    fn shade(&self, value: f64) -> RGBColor {
        let share = (value / self.strongest.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0);
        let mix = |strong: u8| (250.0 - share * (250.0 - f64::from(strong))).round() as u8;
        RGBColor(mix(RED.0), mix(RED.1), mix(RED.2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::svg;

    #[test]
    fn every_cell_shows_its_number_and_a_stronger_colour_for_more() {
        let heat = Heat {
            caption: "changes".into(),
            corner: "lag\nrefresh",
            columns: vec!["lag 0 s\n0.1 s".into(), "b".into()],
            rows: vec!["0 %".into()],
            values: vec![vec![Some(3.0), None]],
            strongest: 10.0,
        };
        let svg = svg((800, 300), |area| heat.draw(area)).unwrap();
        assert!(svg.contains("3.0") && svg.contains("lag 0 s") && svg.contains("0.1 s"), "{svg}");
        assert_eq!(heat.shade(10.0), RED);
        assert_eq!(heat.shade(99.0), RED);
        assert!(heat.shade(1.0).1 > heat.shade(5.0).1);
    }
}
