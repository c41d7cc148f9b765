//! The synthetic fleet, and what all fleets are planned with.

use core::time::Duration;

use ballast_lab::oversubscription::synthesis::{self, Quantiles, Size};
use ballast_lab::oversubscription::{Case, histogram};
use ballast_lab::report::oversubscription::fleet::{About, Fleet, Scaling, Source};
use ballast_planner::{Chassis, Terms};
use ballast_types::Watts;

use super::choice::Choice;

/// Finer than any meter, so that rounding moves no budget by 0.01 %.
pub(super) const RESOLUTION: Watts = Watts::from_milli(100);
/// How busy fleets are made that are too idle to be planned for.
pub(super) const MEAN_SHARE: f64 = 0.55;

pub(super) fn terms(chassis: &Chassis, period_s: u32) -> Terms {
    Terms { period: Duration::from_secs(period_s.into()), ..Terms::paper(chassis) }
}

/// Draws with the paper's quantiles.
pub(super) fn paper(choice: &Choice) -> anyhow::Result<Fleet> {
    let chassis = Chassis { server: choice.server.model(), ..Chassis::default() };
    let size = Size { chassis: choice.synthetic_chassis, weeks: choice.synthetic_weeks, period_s: 300 };
    let idle_w = f64::from(chassis.servers) * chassis.server.idle_w;
    let provisioned_w = chassis.nameplate().as_f64();
    let draws = synthesis::draws(choice.seed, size, &Quantiles::PAPER, provisioned_w, idle_w);
    let about = About {
        source: Source::PaperQuantiles,
        data: "made",
        scaling: Scaling::AsTheyAre,
        synthetic: true,
        measured: "nothing",
        made: "draws: seeded loads, mapped onto the upper quantiles that the paper's Table IV implies",
        chassis: draws.len(),
        weeks: choice.synthetic_weeks as usize,
        model: chassis,
        vms: None,
        factor: 1.0,
        mean_share: 0.0,
        held_out_mean_share: None,
    };

    let history = histogram(&draws, RESOLUTION)?;
    let terms = terms(&chassis, size.period_s);

    Ok(Fleet::new(about, Case { chassis, terms, history, held_out: None }, vec![], &[]))
}
