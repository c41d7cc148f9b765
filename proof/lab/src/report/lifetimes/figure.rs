//! Empty hosts by the accuracy of a noisy predictor.

use plotters::prelude::*;

use crate::lifetimes::{Contestant, Options, Paired, PairedTable, empty_percent, noisy};
use crate::plot::figure::Figure;
use crate::plot::{BLUE, GREEN, ORANGE, PURPLE, Panel, legend, panel};

/// Its height, in pixels.
const HEIGHT: u32 = 460;
const CAPTION: &str =
    "Hosts without a VM against best fit, by the accuracy of a noisy predictor; syn at 70 %";

type Curve = (Contestant, Vec<(f64, Paired)>);

/// Each policy against best fit, by the accuracy of its predictions.
fn curves(table: &PairedTable<'_>, options: &Options) -> Vec<(Curve, RGBColor)> {
    let colours = [
        (Contestant::Nilas, BLUE),
        (Contestant::Lava, ORANGE),
        (Contestant::LavaFlat, PURPLE),
        (Contestant::ExpectedExit, GREEN),
    ];
    colours
        .into_iter()
        .map(|(policy, colour)| {
            let points = options.accuracies.iter().filter_map(|accuracy| {
                let prediction = noisy(*accuracy);
                let key = ("syn", "70 %", prediction.as_str());
                let paired = table.difference(key, policy, Contestant::BestFit, empty_percent)?;
                Some((*accuracy, paired))
            });
            ((policy, points.collect()), colour)
        })
        .collect()
}

/// The figure; `None` where no noise was run.
pub(super) fn by_accuracy(table: &PairedTable<'_>, options: &Options) -> Option<Figure> {
    let curves = curves(table, options);
    let all: Vec<&(f64, Paired)> = curves.iter().flat_map(|((_, points), _)| points).collect();
    if all.is_empty() {
        return None;
    }
    let ends = |paired: &Paired| {
        let half = paired.interval.unwrap_or(0.0);
        (paired.mean - half, paired.mean + half)
    };
    let low = all.iter().map(|(_, paired)| ends(paired).0).fold(0.0, f64::min) - 0.2;
    let high = all.iter().map(|(_, paired)| ends(paired).1).fold(0.0, f64::max) + 0.2;
    let accuracies = options.accuracies.iter().copied();
    let (least, most) = (accuracies.clone().fold(1.0, f64::min), accuracies.fold(0.0, f64::max));

    let draw = move |area: &crate::plot::Area<'_>| {
        let about = Panel {
            caption: CAPTION,
            x: ("accuracy", least - 0.02..most + 0.08),
            y: ("points of hosts", low..high),
        };
        let mut chart = panel(area, &about)?;
        chart.draw_series(LineSeries::new([(least - 0.02, 0.0), (most + 0.02, 0.0)], BLACK.mix(0.4)))?;
        for ((policy, points), colour) in &curves {
            let (colour, style) = (*colour, colour.stroke_width(2));
            chart
                .draw_series(LineSeries::new(points.iter().map(|(x, paired)| (*x, paired.mean)), style))?
                .label(policy.name())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
            chart.draw_series(points.iter().map(|(x, paired)| {
                let (low, high) = ends(paired);
                PathElement::new([(*x, low), (*x, high)], colour.stroke_width(1))
            }))?;
            chart.draw_series(
                points.iter().map(|(x, paired)| Circle::new((*x, paired.mean), 3, colour.filled())),
            )?;
        }
        legend(&mut chart, SeriesLabelPosition::LowerRight)
    };
    Some(Figure {
        name: "lifetimes-accuracy".to_owned(),
        caption: format!("{CAPTION}. Means over pools with their 95 % intervals."),
        height: HEIGHT,
        draw: Box::new(draw),
    })
}
