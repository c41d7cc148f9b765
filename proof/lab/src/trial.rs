//! One run of batch work beside requests, and what came of it.

use core::time::Duration;

use ballast_types::VmClass;

use super::load::quiet_work_s;
use super::watch::Watch;
use crate::Contender;
use ballast_sim::load::Latencies;
use ballast_sim::plant::{Plant, STEP};
use ballast_sim::scenario::{Probe, Run, Scenario};
use ballast_sim::world::{Checks, Violation};

/// A run ends at the latest after this many times the length that batch work takes unhindered.
pub(super) const LONGEST: f64 = 4.0;

/// What one run came to. All but the run time covers the calm, if there is one, and the time that batch
/// work takes unhindered: in every run the same requests come in it, and batch VMs are never done.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measured {
    /// P95 over the requests of all user-facing VMs, in milliseconds.
    pub(super) p95_ms: f64,
    /// Mean run time of the batch VMs, in seconds; it counts from the end of the calm.
    pub(super) batch_s: f64,
    pub(super) watch: Watch,
    /// In core-seconds, over the run.
    pub(super) user_facing_throttled: f64,
    /// Of one batch core in a minute.
    pub(super) pstate_changes: f64,
    pub(super) server_limit_s: f64,
}

/// One run beside those of nobody and of the oracle with the same seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged<'a> {
    pub(super) own: &'a Measured,
    pub(super) none: &'a Measured,
    pub(super) oracle: &'a Measured,
    /// The limit that it is judged by, of those that were watched.
    pub(super) limit: usize,
}

impl<'a> Judged<'a> {
    /// The run of `contender` beside the other two, as `find` finds them; `None` if one of them is missing.
    pub(super) fn of(
        contender: Contender,
        limit: usize,
        find: impl Fn(Contender) -> Option<&'a Measured>,
    ) -> Option<Self> {
        let (none, oracle) = (find(Contender::None)?, find(Contender::Oracle)?);
        Some(Self { own: find(contender)?, none, oracle, limit })
    }
}

/// Watches the draw; `each` gets every mean of 100 ms, with the second at which it ended.
pub(super) struct Windows<F> {
    pub(super) watch: Watch,
    steps: u64,
    each: F,
}

impl<F: FnMut(&Plant, f64, f64)> Windows<F> {
    pub(super) fn new(each: F) -> Self {
        Self { watch: Watch::new(&[]), steps: 0, each }
    }
}

impl<F: FnMut(&Plant, f64, f64)> Probe for Windows<F> {
    fn begins(&mut self, run: &Run) {
        self.steps += 1;
        if let Some(mean_w) = self.watch.step(run.plant()) {
            (self.each)(run.plant(), second(self.steps), mean_w);
        }
    }
}

/// Runs `scenario` until all batch work is done, `batch_s` being what it takes unhindered, after batch VMs
/// were calm for `quiet_s`.
pub(super) fn run(
    scenario: Scenario,
    limits_w: &[f64],
    quiet_s: f64,
    batch_s: f64,
) -> Result<Measured, Violation> {
    let whole_s = quiet_s + batch_s;
    let mut trial = Trial {
        whole_s,
        quiet_s,
        watch: Watch::new(limits_w),
        steps: 0,
        measured: None,
        finished: Finished::default(),
        is_done: false,
    };
    let longest = steps(whole_s) * LONGEST as u64;
    let scenario = Scenario { checks: Checks::NONE, length: span(longest), ..scenario };
    let report = scenario.run(&mut [&mut trial]).kept()?;

    let plant = report.run().plant();
    let measured = trial.measured.unwrap_or_else(|| measure(report.run(), trial.watch, whole_s));
    let batch_s = trial.finished.mean_s(plant, second(trial.steps), quiet_s, batch_s);
    Ok(Measured { batch_s, ..measured })
}

/// One run: first its figures, then how long batch work takes.
struct Trial {
    whole_s: f64,
    quiet_s: f64,
    watch: Watch,
    steps: u64,
    measured: Option<Measured>,
    finished: Finished,
    is_done: bool,
}

impl Probe for Trial {
    fn begins(&mut self, run: &Run) {
        if self.measured.is_none() {
            self.watch.step(run.plant());
        }
    }

    fn ends(&mut self, run: &Run) {
        self.steps += 1;
        if self.steps == steps(self.whole_s) {
            self.measured = Some(measure(run, self.watch.clone(), self.whole_s));
            self.finished = Finished::new(run.plant());
        }
        if self.measured.is_some() {
            self.is_done = self.finished.all(run.plant(), second(self.steps) - self.quiet_s);
        }
    }

    fn is_done(&self) -> bool {
        self.is_done
    }
}

fn steps(seconds: f64) -> u64 {
    libm::round(seconds / STEP.as_secs_f64()).max(1.0) as u64
}

fn second(step: u64) -> f64 {
    step as f64 * STEP.as_secs_f64()
}

fn span(steps: u64) -> Duration {
    Duration::from_nanos(steps * STEP.as_nanos() as u64)
}

/// The length of a run of so many seconds: whole steps of the plant.
pub(super) fn length(seconds: f64) -> Duration {
    span(steps(seconds))
}

fn measure(run: &Run, watch: Watch, seconds: f64) -> Measured {
    let truth = run.plant().truth();
    let mut all = Latencies::default();
    for vm in truth.vms.iter().filter(|vm| vm.class == VmClass::UserFacing) {
        all.merge(&vm.latency);
    }
    Measured {
        p95_ms: all.p95_ms().unwrap_or(f64::NAN),
        batch_s: f64::NAN,
        watch,
        user_facing_throttled: truth.user_facing_throttled_core_s.total(),
        pstate_changes: changes_per_core_min(run.plant(), seconds),
        server_limit_s: run.world().map_or(0.0, |world| world.outcome().server_limit_s),
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
#[derive(Debug, Default)]
struct Finished(Vec<(usize, Option<f64>)>);

impl Finished {
    fn new(plant: &Plant) -> Self {
        let vms = plant.truth().vms.iter().enumerate();
        let batch = vms.filter(|(_, vm)| vm.class == VmClass::NonUserFacing);
        Self(batch.map(|(n, _)| (n, None)).collect())
    }

    /// Looks who has finished by now, which is `elapsed_s` after the calm.
    fn all(&mut self, plant: &Plant, elapsed_s: f64) -> bool {
        let vms = &plant.truth().vms;
        for (vm, took) in &mut self.0 {
            if took.is_none() && vms[*vm].jobs > 0 {
                *took = Some(elapsed_s);
            }
        }
        self.0.iter().all(|(_, took)| took.is_some())
    }

    /// The mean over them. Who has not finished by `now_s` counts with the time that it would take at the
    /// pace that it had.
    fn mean_s(&self, plant: &Plant, now_s: f64, quiet_s: f64, batch_s: f64) -> f64 {
        let truth = plant.truth();
        let servers = plant.spec().servers.iter();
        let cores: Vec<f64> = servers.flat_map(|s| &s.vms).map(|vm| vm.cores.len() as f64).collect();
        let times = self.0.iter().map(|(vm, took)| {
            let work_s = truth.vms[*vm].work_core_s / cores[*vm] - quiet_work_s(quiet_s);
            let pace = work_s / (now_s - quiet_s);
            took.unwrap_or(batch_s / pace.max(1e-6))
        });
        times.sum::<f64>() / self.0.len().max(1) as f64
    }
}
