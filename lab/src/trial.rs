//! One run: a plant, who acts on it, and what came of it.

use core::time::Duration;

use ballast_types::{Instant, VmClass};

use super::baseline::Baseline;
use super::load::calm_work_s;
use super::watch::Watch;
use ballast_sim::load::Latencies;
use ballast_sim::plant::{Plant, STEP};
use ballast_sim::world::{Violation, World};

/// A run ends at the latest after this many times the length that batch work takes unhindered.
pub(super) const LONGEST: f64 = 4.0;

/// A plant and who acts on it.
#[derive(Debug)]
pub(super) enum Stage {
    /// The controllers of the project.
    World(Box<World>),
    /// Somebody else.
    Plant(Box<Plant>, Baseline),
}

impl Stage {
    pub(super) fn plant(&self) -> &Plant {
        match self {
            Self::World(world) => world.plant(),
            Self::Plant(plant, _) => plant,
        }
    }

    fn advance(&mut self, to: Instant) -> Result<(), Violation> {
        match self {
            Self::World(world) => world.run(to),
            Self::Plant(plant, baseline) => {
                plant.advance(to);
                baseline.act(to, plant);
                Ok(())
            }
        }
    }

    fn server_limit_s(&self) -> f64 {
        match self {
            Self::World(world) => world.outcome().server_limit_s,
            Self::Plant(..) => 0.0,
        }
    }
}

/// What one run came to. All but the run time covers the calm, if there is one, and the time that batch
/// work takes unhindered: in every run the same requests come in it, and batch VMs are never done.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measured {
    /// P95 over the requests of all user-facing VMs, in milliseconds.
    pub(super) p95_ms: f64,
    /// Mean run time of the batch VMs, in seconds; it counts from the end of the calm.
    pub(super) batch_s: f64,
    pub(super) watch: Watch,
    /// Core-seconds.
    pub(super) user_facing_throttled: f64,
    /// Of one batch core in a minute.
    pub(super) pstate_changes: f64,
    /// Some server's own limit was on.
    pub(super) server_limit_s: f64,
}

/// One run against the same one of nobody, and of the oracle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    pub(super) p95_norm: f64,
    pub(super) batch_norm: f64,
    pub(super) excess: f64,
    pub(super) max_w: f64,
    pub(super) mean_w: f64,
    pub(super) over_s_max: f64,
    pub(super) over_fraction: f64,
    pub(super) over_fraction_10ms: f64,
    pub(super) user_facing_throttled: f64,
    pub(super) pstate_changes: f64,
    pub(super) server_limit_s: f64,
}

impl Measured {
    /// By its limit `n`.
    pub(super) fn judge(&self, n: usize, none: &Self, oracle: &Self) -> Judged {
        let (over_s_max, over_fraction, over_fraction_10ms) = self.watch.over(n);
        Judged {
            p95_norm: self.p95_ms / none.p95_ms,
            batch_norm: self.batch_s / none.batch_s,
            excess: (self.batch_s - oracle.batch_s) / none.batch_s,
            max_w: self.watch.max_w(),
            mean_w: self.watch.mean_w(),
            over_s_max,
            over_fraction,
            over_fraction_10ms,
            user_facing_throttled: self.user_facing_throttled,
            pstate_changes: self.pstate_changes,
            server_limit_s: self.server_limit_s,
        }
    }
}

/// Runs `stage` for `seconds`; `each` gets every mean of 100 ms, with the second at which it ended.
pub(super) fn watch(
    stage: &mut Stage,
    limits_w: &[f64],
    seconds: f64,
    mut each: impl FnMut(&Plant, f64, f64),
) -> Result<Watch, Violation> {
    let mut watch = Watch::new(limits_w);
    for n in 0..steps(seconds) {
        if let Some(mean) = watch.step(stage.plant()) {
            each(stage.plant(), second(n + 1), mean);
        }
        stage.advance(at(n + 1))?;
    }
    Ok(watch)
}

/// Runs `stage` until all batch work is done, `batch_s` being what it takes unhindered, after batch VMs
/// were calm for `calm_s`.
pub(super) fn run(
    stage: &mut Stage,
    limits_w: &[f64],
    calm_s: f64,
    batch_s: f64,
) -> Result<Measured, Violation> {
    let whole_s = calm_s + batch_s;
    let watch = watch(stage, limits_w, whole_s, |_, _, _| ())?;
    let mut measured = measure(stage, watch, whole_s);
    let mut finished = Finished::new(stage.plant(), calm_s);
    let steps = steps(whole_s);
    let mut n = steps;
    while !finished.all(stage.plant(), second(n)) && n < steps * LONGEST as u64 {
        n += 1;
        stage.advance(at(n))?;
    }
    measured.batch_s = finished.mean_s(stage.plant(), second(n), batch_s);
    Ok(measured)
}

fn steps(seconds: f64) -> u64 {
    libm::round(seconds / STEP.as_secs_f64()).max(1.0) as u64
}

fn at(step: u64) -> Instant {
    Instant::ZERO + Duration::from_nanos(step * STEP.as_nanos() as u64)
}

fn second(step: u64) -> f64 {
    step as f64 * STEP.as_secs_f64()
}

fn measure(stage: &Stage, watch: Watch, seconds: f64) -> Measured {
    let plant = stage.plant();
    let truth = plant.truth();
    let mut all = Latencies::default();
    for vm in truth.vms.iter().filter(|vm| vm.class == VmClass::UserFacing) {
        all.merge(&vm.latency);
    }
    Measured {
        p95_ms: all.p95_ms().unwrap_or(f64::NAN),
        batch_s: f64::NAN,
        watch,
        user_facing_throttled: truth.user_facing_throttled_core_s.total(),
        pstate_changes: changes_per_core_min(plant, seconds),
        server_limit_s: stage.server_limit_s(),
    }
}

/// P-state changes by software, of one batch core in a minute, of a run that took `seconds`.
pub(super) fn changes_per_core_min(plant: &Plant, seconds: f64) -> f64 {
    let vms = plant.spec().servers.iter().flat_map(|s| &s.vms);
    let batch = vms.filter(|vm| vm.class == VmClass::NonUserFacing);
    let batch_cores: usize = batch.map(|vm| vm.cores.len()).sum();
    let core_minutes = batch_cores.max(1) as f64 * seconds / 60.0;
    plant.pstate_changes() as f64 / core_minutes
}

/// How long each batch VM took for its work, from the end of the calm.
#[derive(Debug)]
struct Finished {
    calm_s: f64,
    vms: Vec<(usize, Option<f64>)>,
}

impl Finished {
    fn new(plant: &Plant, calm_s: f64) -> Self {
        let vms = plant.truth().vms.iter().enumerate();
        let batch = vms.filter(|(_, vm)| vm.class == VmClass::NonUserFacing);
        Self { calm_s, vms: batch.map(|(n, _)| (n, None)).collect() }
    }

    /// Looks who has finished by now.
    fn all(&mut self, plant: &Plant, now_s: f64) -> bool {
        let vms = &plant.truth().vms;
        let mut all = true;
        for (vm, took) in &mut self.vms {
            if took.is_none() && vms[*vm].jobs > 0 {
                *took = Some(now_s - self.calm_s);
            }
            all &= took.is_some();
        }
        all
    }

    /// The mean over them. Who has not finished by `now_s` counts with the time that he would take at the
    /// pace that he had.
    fn mean_s(&self, plant: &Plant, now_s: f64, batch_s: f64) -> f64 {
        let truth = plant.truth();
        let servers = plant.spec().servers.iter();
        let cores: Vec<f64> = servers.flat_map(|s| &s.vms).map(|vm| vm.cores.len() as f64).collect();
        let times = self.vms.iter().map(|(vm, took)| {
            let work_s = truth.vms[*vm].work_core_s / cores[*vm] - calm_work_s(self.calm_s);
            let pace = work_s / (now_s - self.calm_s);
            took.unwrap_or(batch_s / pace.max(1e-6))
        });
        times.sum::<f64>() / self.vms.len().max(1) as f64
    }
}
