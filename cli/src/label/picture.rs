//! What came out: counts by reason, and Compare8 x Compare12 (the paper's Figure 3) as a picture.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ballast_predict::label::{Label, Reason};
use plotters::prelude::*;

use crate::common::plot::{BLUE, GREY, ORANGE, Panel, panel, svg};

/// Cells to each side.
const CELLS: usize = 60;
/// Where the axes end; what is beyond stands in the last cell.
const END: f64 = 1.2;
/// Strokes from few to many.
const SHADES: [char; 6] = [' ', '.', ':', 'o', '#', '@'];

#[derive(Clone, Debug)]
pub(super) struct Picture {
    reasons: BTreeMap<Reason, u64>,
    user_facing: u64,
    /// By Compare12, then Compare8: others and user-facing.
    cells: Vec<[[u64; 2]; CELLS]>,
}

impl Default for Picture {
    fn default() -> Self {
        Self { reasons: BTreeMap::new(), user_facing: 0, cells: vec![[[0; 2]; CELLS]; CELLS] }
    }
}

impl Picture {
    pub(super) fn add(&mut self, label: &Label) {
        *self.reasons.entry(label.reason).or_default() += 1;
        self.user_facing += u64::from(label.user_facing);
        if let (Some(x), Some(y)) = (label.compare8, label.compare12) {
            let cell = |v: f64| ((v / END * CELLS as f64) as usize).min(CELLS - 1);
            self.cells[cell(y)][cell(x)][usize::from(label.user_facing)] += 1;
        }
    }

    pub(super) fn text(&self) -> String {
        let all: u64 = self.reasons.values().sum();
        let mut text = format!("{all} VMs, {} user-facing", self.user_facing);

        // Writing to a String cannot fail.
        for (reason, count) in &self.reasons {
            let _ = write!(text, "; {reason} {count}");
        }
        text.push_str("\n\nCompare12\n");
        const ROWS: usize = 15;
        let high = CELLS / ROWS;
        let count = |row: usize, x: usize| -> u64 {
            (row * high..(row + 1) * high).map(|y| self.cells[y][x].iter().sum::<u64>()).sum()
        };
        let most = (0..ROWS).flat_map(|r| (0..CELLS).map(move |x| count(r, x))).max().unwrap_or(0);

        for row in (0..ROWS).rev() {
            let begin = END * row as f64 / ROWS as f64;
            let _ = write!(text, "{begin:5.2} |");
            text.extend((0..CELLS).map(|x| shade(count(row, x), most)));
            text.push('\n');
        }

        let _ = write!(text, "      +{}\n       0{:>58.2} Compare8", "-".repeat(CELLS), END);

        text
    }

    pub(super) fn svg(&self) -> anyhow::Result<String> {
        svg((900, 800), |area| {
            let about = Panel {
                caption: "Compare8 x Compare12 (blue: user-facing)",
                x: ("Compare8", 0.0..END),
                y: ("Compare12", 0.0..END),
            };

            let mut chart = panel(area, &about)?;
            let most = self.cells.iter().flatten().flatten().max().copied().unwrap_or(0).max(1);
            let at = |n: usize| END * n as f64 / CELLS as f64;

            for (y, row) in self.cells.iter().enumerate() {
                for (x, counts) in row.iter().enumerate() {
                    for (count, colour) in counts.iter().zip([ORANGE, BLUE]).filter(|(c, _)| **c > 0) {
                        let strength = 0.25 + 0.75 * (*count as f64 / most as f64).sqrt();
                        let corners = [(at(x), at(y)), (at(x + 1), at(y + 1))];
                        chart.draw_series([Rectangle::new(corners, colour.mix(strength).filled())])?;
                    }
                }
            }

            let limit = [(0.72, 0.0), (0.72, END)];
            chart.draw_series([PathElement::new(limit, GREY.stroke_width(1))])?;
            Ok(())
        })
    }
}

fn shade(count: u64, most: u64) -> char {
    if count == 0 {
        return SHADES[0];
    }
    let share = (count as f64).ln_1p() / (most as f64).ln_1p();
    SHADES[1 + ((share * (SHADES.len() - 1) as f64) as usize).min(SHADES.len() - 2)]
}
