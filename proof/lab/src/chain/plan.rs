//! The budget that is planned, and the one that holds in the weeks to come.

use core::time::Duration;
use std::ops::Range;

use ballast_planner::{Approach, Chassis, Histogram, Past, PastVm, Plan, Terms};
use ballast_predict::fleet::HALF_HOUR_S;
use ballast_predict::vm::DAY_S;
use ballast_types::{PowerModel, VmClass, Watts};

use super::placed::{Needs, Placed, draw_w};
use super::replay::{Measured, replay};
use super::{CORES, Chain, ChainError, Options, SERVERS};

/// No user-facing VM is slowed, and the others in one unit of a hundred at most.
const APPROACH: &str = "no-impact";
const STEP: Watts = Watts::from_milli(100);
/// Budgets are raised and lowered by so much, in millionths, and buffers tried by as much.
const TRIED_PPM: u32 = 5_000;
/// The buffer that ships: none is larger.
const BUFFER_PPM: u32 = 100_000;
/// The share of the history that a buffer is tried on.
const TRIED_ON: usize = 4;

/// A budget, before and after the weeks to come.
pub(super) struct Budget {
    pub(super) planned: Watts,
    pub(super) held: Watts,
    pub(super) buffer: f64,
    pub(super) measured: Measured,
}

const fn half_hours(days: u32) -> usize {
    days as usize * (DAY_S / HALF_HOUR_S) as usize
}

pub(super) fn held_out(options: &Options) -> Range<usize> {
    let from = half_hours(options.plan_days);
    from..from + half_hours(options.held_out_days)
}

/// Plans, and holds the held-out half hours against it. An oracle for the plan lowers the budget until it would
/// not hold any more.
pub(super) fn budget(chain: &Chain<'_>, placed: &Placed, needs: &Needs) -> Result<Budget, ChainError> {
    let seed = chain.seed;
    let late = held_out(chain.options);
    let run = |half_hours: Range<usize>, budget| {
        replay(needs, half_hours, budget, seed).map_err(|error| ChainError::Controller { seed, error })
    };

    let chassis = estimate(chain, placed);
    let plan = |half_hours: Range<usize>, buffer_ppm| {
        plan(&chassis, needs, half_hours, buffer_ppm).ok_or(ChainError::NoDraw { seed })
    };

    // The smallest buffer that held in the newest part of the history, as `ballast plan --verify-from
    // --verify-buffers` tells it.
    let tried = late.start - late.start / TRIED_ON;
    let steps = lowest(BUFFER_PPM / TRIED_PPM, |step| {
        Ok(run(tried..late.start, plan(0..tried, step * TRIED_PPM)?)?.keeps_as_told())
    })?;
    let buffer_ppm = steps * TRIED_PPM;

    let planned = plan(0..late.start, buffer_ppm)?;
    let base =
        if chain.stage.knows(super::Stage::Plan) { planned - planned.ppm(BUFFER_PPM) } else { planned };
    let at = |steps: u32| base + planned.ppm(steps * TRIED_PPM);
    let steps = lowest(3 * BUFFER_PPM / TRIED_PPM, |steps| Ok(run(late.clone(), at(steps))?.keeps()))?;
    let (held, measured) = (at(steps), run(late, at(steps))?);
    Ok(Budget { planned, held, buffer: f64::from(buffer_ppm) / 1e6, measured })
}

/// The fewest steps that keep what was promised, by bisection; all of them where none does. None is tried first:
/// a plan mostly holds.
fn lowest(most: u32, mut keeps: impl FnMut(u32) -> Result<bool, ChainError>) -> Result<u32, ChainError> {
    if keeps(0)? {
        return Ok(0);
    }
    let (mut broken, mut kept) = (0, 1);
    while kept < most && !keeps(kept)? {
        (broken, kept) = (kept, (2 * kept).min(most));
    }
    while kept - broken > 1 {
        let middle = u32::midpoint(broken, kept);
        if keeps(middle)? { kept = middle } else { broken = middle }
    }
    Ok(kept)
}

fn plan(chassis: &Chassis, needs: &Needs, half_hours: Range<usize>, buffer_ppm: u32) -> Option<Watts> {
    let mut draws = Histogram::new(STEP).ok()?;
    for half_hour in half_hours {
        for number in 0..needs.chassis() {
            let watts = draw_w(needs.servers(number, half_hour), &chassis.server);
            draws.add(Watts::from_f64(watts)?, 1);
        }
    }
    let period = Duration::from_secs(HALF_HOUR_S as u64);
    let terms = Terms { buffer_ppm, period, ..Terms::paper(chassis) };
    Plan::make(&draws, &Approach::named(APPROACH)?, chassis, &terms).map(|plan| plan.budget)
}

/// What a chassis is, from what was told of its VMs and how busy they were while it was planned from.
fn estimate(chain: &Chain<'_>, placed: &Placed) -> Chassis {
    let [_, from, to, _] = chain.options.times();
    let mut past = Past::default();
    for (vm, host) in placed.hosts.iter().enumerate() {
        let known = &chain.fleet.vms[vm];
        let seconds = known.end_s.unwrap_or(to).min(to) - known.arrival_s.max(from);
        if host.is_some() && seconds > 0 {
            past.take(&PastVm {
                owner: None,
                cores: known.cores,
                seconds: seconds as u64,
                class: Some(chain.told(vm).0.unwrap_or(VmClass::UserFacing)),
                p95: known.p95_cpu.map(|p95| p95 / 100.0),
                group: known.subscription.clone(),
            });
        }
    }

    let physical = f64::from(chain.cluster.chassis * SERVERS * CORES) * (to - from) as f64;
    let found = past.estimate(Some(physical));
    let mean = |mean: Option<ballast_planner::Mean>, other| mean.map_or(other, |mean| mean.mean);
    Chassis {
        servers: SERVERS,
        server: PowerModel::PAPER,
        alloc: found.alloc.unwrap_or(1.0).min(1.0),
        beta: mean(found.beta, 1.0),
        util_user_facing: mean(found.util_user_facing, 0.0),
        // Too few to tell: nothing is counted on.
        util_non_user_facing: mean(found.util_non_user_facing, 0.0),
        ..Chassis::default()
    }
}
