//! Load from a trace.

use std::sync::Arc;

use ballast_types::{PowerModel, VmClass, Watts};

use super::built_in::{bisect, user_facing};
use super::{BATCH, DemoOptions, TraceScale, USER_FACING, chassis};
use crate::load::{BatchSpec, Interpolation, Profile, Series};
use crate::plant::{Load, PlantSpec, draws, peak_draw};
use crate::trace::Trace;

/// A series with less than this share of its values in the window is not played, while others are left.
const COVERAGE: f64 = 0.8;
/// At most this many series are summed on one VM.
const PACK: usize = 6;
/// One line drives the same VM on this many servers: a deployment is spread over servers, and its VMs
/// follow the same users.
const SPREAD: usize = 4;
const DAY_S: f64 = 86_400.0;
/// No queue is offered more than this, so that its latency stays finite.
const QUEUE_LOAD: f64 = 0.6;
/// The uncapped peak that the automatic scale looks for, and the floored peak that it allows.
const PEAK: u32 = 1_150_000;
const FLOORED: u32 = 950_000;
/// A flat load may not be above `BUSY` of the budget for more than `BUSY_SHARE` of the time, unless its
/// peak would then be below `LEAST_PEAK`: a budget that is always exceeded shows no release.
const BUSY: u32 = 960_000;
const BUSY_SHARE: f64 = 0.6;
const LEAST_PEAK: u32 = 1_050_000;

pub(super) fn from_trace(options: &DemoOptions<'_>, trace: &Trace, scale: TraceScale) -> PlantSpec {
    let speedup = if options.speedup > 0.0 && options.speedup.is_finite() {
        options.speedup
    } else {
        DAY_S / options.seconds.max(1e-3)
    };

    let values = trace.series.first().map_or(0, |s| s.values.len());
    let window =
        (libm::ceil(options.seconds * speedup / trace.period_s) as usize + 1).clamp(1, values.max(1));
    let groups = options.servers.max(1).div_ceil(SPREAD);
    let count = groups * usize::from(USER_FACING.0 + BATCH.0);
    let relative = scale == TraceScale::Auto;
    let lines = pack(trace, window, count, relative);
    let build = |user_facing_scale: f64, batch_scale: f64| {
        plant(options, &lines, trace.period_s, speedup, (user_facing_scale, batch_scale))
    };

    if let TraceScale::Factor(factor) = scale {
        return build(factor, factor);
    }

    // Every recorded value is looked at, up to some thousands.
    let samples = (2 * window).clamp(16, 4000) as u32;
    let budget = options.budget;
    let seen = |spec: &PlantSpec| draws(spec, options.seconds, samples, false).collect::<Vec<_>>();
    let fits = |spec: &PlantSpec| {
        let draws = seen(spec);
        let peak = draws.iter().copied().max().unwrap_or(Watts::ZERO);
        let busy = draws.iter().filter(|w| **w > budget.ppm(BUSY)).count() as f64;

        peak <= budget.ppm(PEAK)
            && (peak <= budget.ppm(LEAST_PEAK) || busy <= BUSY_SHARE * f64::from(samples))
            && peak_draw(spec, options.seconds, samples, true) < budget.ppm(FLOORED)
    };

    // The less user-facing VMs are loaded, the lower is the floor, and the more the batch VMs may do.
    let mut best = (Watts::ZERO, build(0.0, 0.0));

    for top in [QUEUE_LOAD, 0.5, 0.4, 0.3, 0.2] {
        let at = |s: f64| build(top * s.min(1.0), s);
        let spec = at(bisect(0.0, 8.0, |s| fits(&at(s))));
        let peak = seen(&spec).into_iter().max().unwrap_or(Watts::ZERO);

        // Half a per cent more is not worth idle queues.
        if peak > best.0 + budget.ppm(5000) {
            best = (peak, spec);
        }
        if peak > budget.ppm(PEAK - 5000) {
            break;
        }
    }

    best.1
}

/// `count` lines of load. The liveliest series come first and are dealt out in turn and back, so that every
/// line gets about as much; each is the sum of its own. A steady series, however busy, tells nothing.
fn pack(trace: &Trace, window: usize, count: usize, relative: bool) -> Vec<Arc<[f32]>> {
    let played: Vec<Arc<[f32]>> = trace.series.iter().map(|s| s.played(&PowerModel::PAPER).values).collect();
    let mean = |n: usize| played[n][..window].iter().map(|v| f64::from(*v)).sum::<f64>() / window as f64;
    let swing = |n: usize| {
        let m = mean(n);
        let square = |v: &f32| (f64::from(*v) - m) * (f64::from(*v) - m);
        libm::sqrt(played[n][..window].iter().map(square).sum::<f64>() / window as f64)
    };

    let coverage = |n: usize| {
        let there = trace.series[n].values[..window].iter().filter(|v| !v.is_nan()).count();
        there as f64 / window as f64
    };

    let mut order: Vec<(usize, f64)> =
        (0..played.len()).filter(|n| coverage(*n) >= COVERAGE).map(|n| (n, swing(n))).collect();
    if order.is_empty() {
        order = (0..played.len()).map(|n| (n, swing(n))).collect();
    }
    order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let each = (order.len() / count).clamp(1, PACK);

    (0..count)
        .map(|line| {
            let mut sum = vec![0.0f32; played.first().map_or(0, |p| p.len())];
            for round in 0..each {
                let seat = if round % 2 == 0 { line } else { count - 1 - line };
                let (series, _) = order[(round * count + seat) % order.len()];
                for (sum, value) in sum.iter_mut().zip(played[series].iter()) {
                    *sum += *value;
                }
            }

            let by = if relative { 1.0 / high(&sum[..window]) } else { 1.0 };
            sum.iter().map(|v| (v * by).min(1.0)).collect()
        })
        .collect()
}

/// The 99th percentile, and never nothing.
fn high(values: &[f32]) -> f32 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f32::total_cmp);
    sorted[(sorted.len() - 1) * 99 / 100].max(1e-6)
}

fn plant(
    options: &DemoOptions<'_>,
    lines: &[Arc<[f32]>],
    period_s: f64,
    speedup: f64,
    (user_facing_scale, batch_scale): (f64, f64),
) -> PlantSpec {
    let groups = options.servers.max(1).div_ceil(SPREAD);
    chassis(options, |server, n, class| {
        // Busy lines go to every server alike, and to both classes in turn.
        let rank = match class {
            VmClass::NonUserFacing => 2 * usize::from(n),
            VmClass::UserFacing => 2 * usize::from(n) + 1,
        };

        let scale = match class {
            VmClass::NonUserFacing => batch_scale,
            VmClass::UserFacing => user_facing_scale,
        };

        let profile = Profile::Series(Series {
            period_s,
            values: lines[rank * groups + server % groups].clone(),
            interpolation: Interpolation::Linear,
            scale,
            speedup,
        });

        match class {
            VmClass::UserFacing => user_facing(options, profile),
            VmClass::NonUserFacing => Load::Batch(BatchSpec::endless(60.0, profile)),
        }
    })
}

/// The scale of the first user-facing and of the first batch VM that plays a series.
pub(super) fn scales(spec: &PlantSpec) -> Option<(f64, f64)> {
    let of = |class| {
        spec.servers.iter().flat_map(|s| &s.vms).filter(|vm| vm.class == class).find_map(|vm| {
            let profile = match &vm.load {
                Load::Queue(queue) => &queue.utilisation,
                Load::Batch(batch) => &batch.demand,
                Load::Profile(profile) => profile,
            };
            match profile {
                Profile::Series(series) => Some(series.scale),
                _ => None,
            }
        })
    };
    of(VmClass::UserFacing).zip(of(VmClass::NonUserFacing))
}
