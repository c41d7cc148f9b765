//! Power of real distribution units.

use std::path::Path;

use ballast_lab::oversubscription::weeks::{WEEK_S, resampled};
use ballast_lab::oversubscription::{Case, back_tests, deltas, histogram, needed};
use ballast_lab::report::oversubscription::fleet::{About, Fleet, Scaling, Source};
use ballast_planner::{Chassis, Histogram};
use ballast_sim::trace::Series;
use ballast_sim::verify::{Draws, Past};
use ballast_types::Watts;

use super::choice::Choice;
use super::traces::whole_seconds;
use super::{RESOLUTION, terms};
use crate::experiment::data::{folder, trace};

/// Weeks that are planned from; the rest verifies.
const UNIT_WEEKS: usize = 3;

/// What the units drew, and every how many seconds.
fn read(folder: &Path) -> anyhow::Result<(u32, Vec<Series>)> {
    let (mut period_s, mut series) = (0, Vec::new());
    for unit in [6, 7, 8] {
        let trace = trace(&folder.join(format!("cella_pdu{unit}.csv.zst")))?;
        period_s = whole_seconds(&trace)?;
        series.extend(trace.series);
    }
    Ok((period_s, series))
}

fn together(all: &[Histogram], weeks: &[usize]) -> anyhow::Result<Histogram> {
    let mut sum = Histogram::new(RESOLUTION)?;
    for week in weeks {
        sum.merge(&all[*week])?;
    }
    Ok(sum)
}

/// Power of distribution units, as shares of their capacity; `None` where the data is not there.
pub(super) fn units(choice: &Choice) -> anyhow::Result<Option<Fleet>> {
    let folder = folder().join("google_power2019");
    if !folder.is_dir() {
        return Ok(None);
    }

    // A unit's capacity stands for one chassis's, with what a chassis can shed of it.
    let chassis = Chassis { server: choice.server.model(), ..Chassis::default() };
    let capacity_w = chassis.nameplate().as_f64();
    let (period_s, series) = read(&folder)?;
    let week = (WEEK_S / period_s) as usize;
    let part = |skip: usize, take: usize| {
        let draws = |Series { name, values, .. }: &Series| {
            let shares = values.iter().skip(skip).take(take);
            Draws::new(name, shares.map(|share| Watts::from_f64(capacity_w * f64::from(*share))))
        };

        series.iter().map(draws).collect::<Vec<_>>()
    };

    let weeks = (0..UNIT_WEEKS).map(|n| histogram(&part(n * week, week), RESOLUTION));
    let all: Vec<Histogram> = weeks.collect::<Result<_, _>>()?;
    let terms = terms(&chassis, period_s);
    let (past, later) = (part(0, UNIT_WEEKS * week), part(UNIT_WEEKS * week, usize::MAX));
    let of = |draws| Past { draws, start_s: 0, chassis: &chassis, terms: &terms, resolution: RESOLUTION };
    let case = Case {
        chassis,
        terms,
        history: histogram(&past, RESOLUTION)?,
        held_out: Some(histogram(&later, RESOLUTION)?),
        back_tests: back_tests(&of(&past))?,
        needed: needed(&of(&later))?,
    };

    let replicates = resampled(choice.seed, UNIT_WEEKS, choice.replicates);
    let replicates = replicates.iter().map(|weeks| Ok(deltas(&together(&all, weeks)?, &case)));
    let replicates = replicates.collect::<anyhow::Result<Vec<_>>>()?;
    let about = About {
        source: Source::DistributionUnits,
        data: "google",
        scaling: Scaling::AsTheyAre,
        synthetic: false,
        measured: "power of each unit, as a share of its capacity",
        made: "watts: a unit's capacity stands for a chassis's; what capping sheds: the paper's share of it",
        chassis: series.len(),
        weeks: UNIT_WEEKS,
        model: chassis,
        vms: None,
        factor: 1.0,
        mean_share: 0.0,
        held_out_mean_share: None,
    };

    Ok(Some(Fleet::new(about, case, vec![], &replicates)))
}
