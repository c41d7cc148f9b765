//! How often each draw is exceeded, before and after, with budgets.

use ballast_planner::Histogram;
use plotters::prelude::SeriesLabelPosition::UpperRight;

use super::fleet::Fleet;
use crate::plot::figure::Figure;
use crate::plot::{Area, BLUE, Drawn, GREEN, GREY, ORANGE, Panel, RED, legend, line, panel};

/// The lowest share of readings that is shown, as a power of ten.
const RAREST: f64 = -5.0;
/// Height of a row of panels, in pixels.
const HEIGHT: u32 = 380;

/// What a panel shows: shares of the provisioned power.
struct Shown {
    name: String,
    history: Vec<(f64, f64)>,
    held_out: Option<Vec<(f64, f64)>>,
    /// The budgets of full-server capping and of no-impact.
    budgets: [Option<f64>; 2],
}

pub(super) fn figure(fleets: &[Fleet]) -> Figure {
    let shown: Vec<Shown> = fleets.iter().map(shown).collect();
    let rows = shown.len().div_ceil(2).max(1);
    Figure {
        name: "oversubscription".to_owned(),
        caption: "How many readings are above a draw, and the budgets that follow".to_owned(),
        height: HEIGHT * rows as u32,
        draw: Box::new(move |area| {
            shown.iter().zip(area.split_evenly((rows, 2))).try_for_each(|(s, area)| draw(s, &area))
        }),
    }
}

fn shown(fleet: &Fleet) -> Shown {
    let provisioned_w = fleet.case.terms.provisioned.as_f64();
    let budget = |approach| Some(fleet.row(approach)?.budget.as_f64() / provisioned_w);
    let curve = |draws: &Histogram| exceeded(draws, provisioned_w);
    Shown {
        name: fleet.name(),
        history: curve(&fleet.case.history),
        held_out: fleet.case.held_out.as_ref().map(curve),
        budgets: ["full-server", "no-impact"].map(budget),
    }
}

/// The share of readings above each draw, by its logarithm; a point where that moves visibly.
fn exceeded(draws: &Histogram, provisioned_w: f64) -> Vec<(f64, f64)> {
    let all = draws.readings() as f64;
    let (mut above, mut points) = (0_u64, Vec::<(f64, f64)>::new());
    for (draw, count) in draws.iter().rev() {
        above += count;
        let x = (above as f64 / all).log10().max(RAREST);
        if points.last().is_none_or(|(last, _)| x - last > 0.01) {
            points.push((x, draw.as_f64() / provisioned_w));
        }
    }
    points
}

fn draw(shown: &Shown, area: &Area<'_>) -> Drawn {
    let about = Panel {
        caption: &shown.name,
        x: ("share of readings above, powers of ten", RAREST..0.0),
        y: ("share of provisioned", 0.3..1.05),
    };

    let mut chart = panel(area, &about)?;
    line(&mut chart, "provisioned", GREY, [(RAREST, 1.0), (0.0, 1.0)])?;
    line(&mut chart, "draws planned from", BLUE, shown.history.iter().copied())?;

    if let Some(held_out) = &shown.held_out {
        line(&mut chart, "later draws", ORANGE, held_out.iter().copied())?;
    }
    let names = [("full-server", RED), ("no-impact", GREEN)];

    for (budget, (name, colour)) in shown.budgets.iter().zip(names) {
        if let Some(budget) = budget {
            line(&mut chart, name, colour, [(RAREST, *budget), (0.0, *budget)])?;
        }
    }

    legend(&mut chart, UpperRight)
}
