//! What the experiments' plots share: figures that stack into one file, a colour for every policy.

use plotters::style::{BLACK, CYAN, RGBColor};

use super::{Area, BLUE, Drawn, GREEN, GREY, ORANGE, PURPLE, RED, svg};

/// Width of every figure, in pixels.
const WIDTH: u32 = 1200;

type Draw = Box<dyn Fn(&Area<'_>) -> Drawn>;

pub struct Figure {
    /// Its file in the documents' folder, without the ending.
    pub name: String,
    /// What stands beside it in the document.
    pub(crate) caption: String,
    /// Its height, in pixels.
    pub(crate) height: u32,
    pub(crate) draw: Draw,
}

impl Figure {
    pub fn svg(&self) -> anyhow::Result<String> {
        svg((WIDTH, self.height), |area| (self.draw)(area))
    }
}

/// All figures in one SVG file, one below the other.
pub fn stacked(figures: &[&Figure]) -> anyhow::Result<String> {
    let height = figures.iter().map(|figure| figure.height).sum();
    svg((WIDTH, height), |root| {
        let mut rest = root.clone();
        for figure in figures {
            let (area, below) = rest.split_vertically(figure.height);
            (figure.draw)(&area)?;
            rest = below;
        }
        Ok(())
    })
}

/// The colour of a policy, the same in every plot.
pub(crate) fn colour(policy: &str) -> RGBColor {
    match policy {
        "full-server" => RED,
        "stepwise" => ORANGE,
        "manager" => BLUE,
        "thunderbolt" => PURPLE,
        "oracle" => GREEN,
        "oracle-at-set-point" => CYAN,
        "paper" => BLACK,
        _ => GREY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::{Panel, line, panel};

    fn figure(name: &str) -> Figure {
        let caption = name.to_owned();
        let draw = move |area: &Area<'_>| {
            let about = Panel { caption: &caption, x: ("x", 0.0..1.0), y: ("y", 0.0..1.0) };
            let mut chart = panel(area, &about)?;
            line(&mut chart, "line", BLUE, [(0.0, 0.0), (1.0, 1.0)])
        };
        let caption = String::new();
        Figure { name: name.to_owned(), caption, height: 300, draw: Box::new(draw) }
    }

    #[test]
    fn figures_stack_into_one_file_and_every_time_alike() {
        let all = [&figure("first"), &figure("second")];
        let svg = stacked(&all).unwrap();
        assert!(svg.contains("height=\"600\""), "{svg}");
        assert!(svg.contains("first") && svg.contains("second"));
        assert!(all[0].svg().unwrap().contains("height=\"300\""));
        assert_eq!(svg, stacked(&all).unwrap());
    }
}
