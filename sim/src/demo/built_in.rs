//! The built-in load.

use ballast_types::{VmClass, Watts};

use super::{DemoOptions, chassis, default_budget};
use crate::load::{BatchSpec, Profile, QueueSpec};
use crate::plant::{Load, PlantSpec, peak_draw};
use crate::rng::{Purpose, Stream};

/// What the chassis shall draw uncapped, as a share of the default budget: `(share of the run, draw)`.
///
/// Peaks of 12 to 18 % above the budget with two short dips, then a fall for good.
const DRAW: [(f64, f64); 14] = [
    (0.0, 0.85),
    (0.11, 0.86),
    (0.16, 1.15),
    (0.21, 1.17),
    (0.235, 0.97),
    (0.25, 0.97),
    (0.275, 1.18),
    (0.31, 1.14),
    (0.335, 0.98),
    (0.345, 0.98),
    (0.37, 1.16),
    (0.42, 1.12),
    (0.47, 0.81),
    (1.0, 0.80),
];
/// Offered load of the user-facing VMs.
const USER_FACING_LOAD: f64 = 0.30;
/// One batch job, in core-seconds at the highest frequency.
const JOB_CORE_S: f64 = 60.0;
const POINTS: u32 = 240;

pub(super) fn chassis_of(options: &DemoOptions<'_>) -> PlantSpec {
    let budget = default_budget(options.servers).as_f64();
    let levels = DRAW.map(|(at, draw)| (at, demand_for(options, draw * budget)));
    chassis(options, |server, n, class| {
        let stream = |part| {
            let name = (server as u64) << 8 | u64::from(n) << 1 | part;
            Stream::new(options.seed, Purpose::Scenario, name, 0)
        };

        match class {
            VmClass::UserFacing => {
                let level = |_| USER_FACING_LOAD;
                user_facing(options, line(options.seconds, level, 0.08, stream(0)))
            }
            VmClass::NonUserFacing => {
                let level = |at| interpolate(&levels, at);
                let demand = line(options.seconds, level, 0.04, stream(1));
                Load::Batch(BatchSpec::endless(JOB_CORE_S, demand))
            }
        }
    })
}

pub(super) fn user_facing(options: &DemoOptions<'_>, load: Profile) -> Load {
    if options.queues { Load::Queue(QueueSpec::new(load)) } else { Load::Profile(load) }
}

/// The batch demand at which the chassis draws `watts` uncapped.
fn demand_for(options: &DemoOptions<'_>, watts: f64) -> f64 {
    let draw = |demand: f64| {
        let spec = chassis(options, |_, _, class| {
            Load::Profile(Profile::Constant(match class {
                VmClass::UserFacing => USER_FACING_LOAD,
                VmClass::NonUserFacing => demand,
            }))
        });
        peak_draw(&spec, 1.0, 1, false)
    };
    bisect(0.0, 1.0, |demand| draw(demand) <= Watts::from_f64(watts).unwrap_or(Watts::MAX))
}

/// The highest value between `low` and `high` that is `fine`, if `low` is and it only gets worse.
pub(super) fn bisect(mut low: f64, mut high: f64, fine: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..18 {
        let middle = 0.5 * (low + high);
        if fine(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// `level` over the run, with a lasting difference and a wandering noise of this VM's own.
fn line(seconds: f64, level: impl Fn(f64) -> f64, noise: f64, mut rng: Stream) -> Profile {
    let own = 1.0 + 0.5 * noise * rng.normal();
    let mut wander = 0.0;
    let points = (0..=POINTS).map(|n| {
        let at = f64::from(n) / f64::from(POINTS);
        wander = 0.9 * wander + 0.436 * rng.normal();
        (at * seconds, (level(at) * (own + noise * wander)).clamp(0.0, 1.0))
    });
    Profile::Ramps(points.collect())
}

/// Straight lines between rising points.
fn interpolate(points: &[(f64, f64)], at: f64) -> f64 {
    let after = points.partition_point(|p| p.0 <= at);
    match (after.checked_sub(1).map(|n| points[n]), points.get(after)) {
        (Some(a), Some(b)) => a.1 + (b.1 - a.1) * (at - a.0) / (b.0 - a.0),
        (Some(a), None) => a.1,
        (None, b) => b.map_or(0.0, |b| b.1),
    }
}
