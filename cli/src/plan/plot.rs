//! The draws, highest first, with the budget and the events above it.

use std::collections::BTreeMap;
use std::path::Path;

use ballast_planner::Histogram;
use ballast_types::Watts;
use plotters::prelude::SeriesLabelPosition::UpperRight;

use super::answer::Answer;
use crate::common::plot::{Area, BLUE, Drawn, GREEN, GREY, Panel, RED, legend, line, panel, svg};

const WIDTH: u32 = 1000;
const HEIGHT: u32 = 520;

pub(super) fn draw(
    file: &Path,
    draws: &BTreeMap<String, Histogram>,
    answers: &[Answer],
    provisioned: Watts,
) -> anyhow::Result<()> {
    let svg = svg((WIDTH, HEIGHT * answers.len() as u32), |root| {
        for (area, answer) in root.split_evenly((answers.len(), 1)).iter().zip(answers) {
            if let Some(draws) = draws.get(&answer.generation) {
                one(area, draws, answer, provisioned)?;
            }
        }
        Ok(())
    })?;
    std::fs::write(file, svg)?;
    Ok(())
}

fn one(area: &Area<'_>, draws: &Histogram, answer: &Answer, provisioned: Watts) -> Drawn {
    let all = draws.readings() as f64;

    // The share of readings above is drawn by its logarithm: the rare ones decide.
    let least = (1.0 / all).log10().min(-3.0);
    let mut above = 0_u64;
    let mut curve = vec![];

    for (draw, count) in draws.iter().rev() {
        let x = ((above.max(1)) as f64 / all).log10();
        curve.push((x, draw.as_f64()));
        above += count;
        curve.push(((above as f64 / all).log10(), draw.as_f64()));
    }

    let low = draws.iter().next().map_or(0.0, |(draw, _)| draw.as_f64());
    let high = provisioned.as_f64().max(draws.max().map_or(0.0, Watts::as_f64));
    let mut chart = panel(
        area,
        &Panel {
            caption: &format!("Draws of a chassis {}", answer.generation),
            x: ("share of readings above, powers of ten", least..0.0),
            y: ("watts", 0.97 * low..1.03 * high),
        },
    )?;

    let across = |w: Watts| [(least, w.as_f64()), (0.0, w.as_f64())].into_iter();
    line(&mut chart, "draws", BLUE, curve)?;
    line(&mut chart, "provisioned", GREY, across(provisioned))?;
    line(&mut chart, "budget", RED, across(answer.plan.budget))?;
    line(&mut chart, "without its buffer", GREEN, across(answer.plan.p_min))?;

    legend(&mut chart, UpperRight)
}
