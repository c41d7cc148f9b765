//! Plays recorded arrivals against a scheduler.

use std::collections::BTreeMap;

use ballast_placement::{
    DeploymentId, HostId, PlacementError, Scheduler, Totals, VmKey, VmRequest,
};
use ballast_types::Instant;
use serde::Serialize;
use thiserror::Error;

use super::arrivals::{Arrival, Arrivals};

/// How to play a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ReplayOptions {
    /// How long after the first arrival VMs still come, inclusive, in milliseconds; all where `None`.
    pub until_ms: Option<u64>,
    /// How often the trace is laid over itself, each time with fresh ids. At equal times the first copy comes first.
    pub repeat: u32,
    /// The VMs of a batch are placed all or none. They are taken together where the first of them stands.
    pub atomic_batches: bool,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self { until_ms: None, repeat: 1, atomic_batches: false }
    }
}

/// Why a trace cannot be played.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReplayError {
    /// A VM cannot be placed, whatever is free.
    #[error("{file}:{line}: {error}")]
    Record {
        /// Which trace.
        file: String,
        /// Which line.
        line: u64,
        /// Why.
        error: PlacementError,
    },
    /// The copies' ids do not fit.
    #[error(
        "{file}: {repeat} copies: vm_id goes up to {largest}, and every copy needs ids of its own"
    )]
    Ids {
        /// Which trace.
        file: String,
        /// How many copies.
        repeat: u32,
        /// The largest id.
        largest: u64,
    },
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// All open hosts together have too few cores.
    Cores,
    /// All open hosts together have too little memory.
    Memory,
    /// There is enough of both, but not where it is needed.
    Fragmentation,
}

impl Reason {
    /// Why `asked` could not be had, now that nothing of it is placed.
    #[must_use]
    pub fn of(scheduler: &Scheduler, asked: Totals) -> Self {
        let open = scheduler.cluster().open();
        if asked.milli_cores > open.milli_cores {
            Self::Cores
        } else if asked.memory_kb > open.memory_kb {
            Self::Memory
        } else {
            Self::Fragmentation
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// VMs that found a host.
    pub placed: u64,
    /// VMs that did not.
    pub failed: u64,
    /// The share of hosts without a VM, over time from the first to the last arrival.
    pub empty_host_ratio: f64,
    /// Allocated cores by the cores of hosts with a VM, over the same time.
    pub packing_density: f64,
    /// VMs that failed, by reason.
    pub failures: BTreeMap<Reason, u64>,
}

/// Means over time; where no time passes, what was last.
#[derive(Debug, Default)]
struct Means {
    at_ms: u64,
    empty: f64,
    allocated: f64,
    used: f64,
}

impl Means {
    fn add(&mut self, scheduler: &Scheduler, weight: f64) {
        let cluster = scheduler.cluster();
        self.empty += weight * (cluster.len() - cluster.used_hosts() as usize) as f64;
        self.allocated += weight * cluster.allocated().milli_cores as f64;
        self.used += weight * cluster.used_capacity().milli_cores as f64;
    }

    /// Time goes on with the cluster as it is.
    fn advance(&mut self, scheduler: &Scheduler, at_ms: u64) {
        self.add(scheduler, (at_ms - self.at_ms) as f64);
        self.at_ms = at_ms;
    }

    fn write(mut self, scheduler: &Scheduler, span_ms: u64, outcome: &mut Outcome) {
        let mut span = span_ms as f64;
        if span_ms == 0 {
            self.add(scheduler, 1.0);
            span = 1.0;
        }
        outcome.empty_host_ratio = self.empty / (span * scheduler.cluster().len().max(1) as f64);
        outcome.packing_density = if self.used > 0.0 { self.allocated / self.used } else { 0.0 };
    }
}

/// A run on its way.
struct Run<'a, D> {
    scheduler: &'a mut Scheduler,
    file: &'a str,
    /// VMs by the time at which they leave.
    leaving: BTreeMap<u64, Vec<VmKey>>,
    outcome: Outcome,
    decided: D,
}

/// Plays the trace. `decided` is told every VM's id and host, in the order of decisions.
///
/// A trace knows neither class nor utilisation: every VM counts as user-facing at 100 %.
///
/// # Errors
/// Names the record of a VM that no host could ever hold, and copies whose ids do not fit.
pub fn replay<D: FnMut(u64, Option<HostId>)>(
    arrivals: &Arrivals,
    scheduler: &mut Scheduler,
    options: &ReplayOptions,
    decided: D,
) -> Result<Outcome, ReplayError> {
    let first_ms = arrivals.vms.first().map_or(0, |vm| vm.at_ms);
    let last_ms = options.until_ms.map_or(u64::MAX, |until| first_ms.saturating_add(until));
    let vms = &arrivals.vms[..arrivals.vms.partition_point(|vm| vm.at_ms <= last_ms)];
    let largest = vms.iter().map(|vm| vm.id).max().unwrap_or(0);
    let (file, repeat) = (&*arrivals.name, options.repeat);
    // The last copy's largest id must still be one.
    let stride = largest.saturating_add(1);
    if stride.checked_mul(u64::from(repeat)).is_none() {
        return Err(ReplayError::Ids { file: file.to_owned(), repeat, largest });
    }
    // All are asked first: one that is too large may stand behind others of its batch that merely find no room.
    for vm in vms {
        let sound = scheduler.cluster().check_request(&request(vm, 0));
        sound.map_err(|error| wrong(file, vm, error))?;
    }
    let mut run =
        Run { scheduler, file, leaving: BTreeMap::new(), outcome: Outcome::default(), decided };
    let mut means = Means { at_ms: first_ms, ..Means::default() };
    for together in vms.chunk_by(|a, b| a.at_ms == b.at_ms) {
        let now_ms = together[0].at_ms;
        run.leave(&mut means, now_ms);
        means.advance(run.scheduler, now_ms);
        let batches = if options.atomic_batches { batches(together) } else { Vec::new() };
        for copy in 0..u64::from(repeat) {
            let offset = copy * stride;
            if options.atomic_batches {
                batches.iter().try_for_each(|batch| run.batch(batch, offset))?;
            } else {
                together.iter().try_for_each(|vm| run.one(vm, offset))?;
            }
        }
    }
    let span_ms = means.at_ms - first_ms;
    means.write(run.scheduler, span_ms, &mut run.outcome);
    Ok(run.outcome)
}

/// The VMs of every batch, in the order of the batches' first VMs.
fn batches(together: &[Arrival]) -> Vec<Vec<&Arrival>> {
    let mut places = BTreeMap::new();
    let mut batches: Vec<Vec<&Arrival>> = Vec::new();
    for vm in together {
        let place = *places.entry(vm.batch).or_insert(batches.len());
        if place == batches.len() {
            batches.push(Vec::new());
        }
        batches[place].push(vm);
    }
    batches
}

fn request(vm: &Arrival, offset: u64) -> VmRequest {
    let deployment = Some(DeploymentId(vm.batch));
    VmRequest { deployment, ..VmRequest::new(VmKey(vm.id + offset), vm.resources) }
}

impl<D: FnMut(u64, Option<HostId>)> Run<'_, D> {
    /// Everybody leaves whose time has come.
    fn leave(&mut self, means: &mut Means, now_ms: u64) {
        while let Some(entry) = self.leaving.first_entry() {
            if *entry.key() > now_ms {
                break;
            }
            let (at_ms, vms) = entry.remove_entry();
            means.advance(self.scheduler, at_ms);
            for vm in vms {
                let left = self.scheduler.remove(Instant::from_millis(at_ms), vm);
                debug_assert!(left.is_ok(), "{left:?}");
            }
        }
    }

    fn one(&mut self, vm: &Arrival, offset: u64) -> Result<(), ReplayError> {
        let placed = self.scheduler.place(Instant::from_millis(vm.at_ms), &request(vm, offset));
        match placed {
            Ok(host) => self.placed(vm, offset, host),
            Err(PlacementError::NoHost { .. }) => self.failed(&[vm], offset),
            Err(error) => return Err(wrong(self.file, vm, error)),
        }
        Ok(())
    }

    fn batch(&mut self, batch: &[&Arrival], offset: u64) -> Result<(), ReplayError> {
        let now = Instant::from_millis(batch[0].at_ms);
        let requests: Vec<VmRequest> = batch.iter().map(|vm| request(vm, offset)).collect();
        match self.scheduler.place_all(now, &requests) {
            Ok(hosts) => batch.iter().zip(hosts).for_each(|(vm, h)| self.placed(vm, offset, h)),
            Err(PlacementError::NoHost { .. }) => self.failed(batch, offset),
            Err(error) => return Err(wrong(self.file, batch[0], error)),
        }
        Ok(())
    }

    fn placed(&mut self, vm: &Arrival, offset: u64, host: HostId) {
        let id = vm.id + offset;
        self.outcome.placed += 1;
        if let Some(lifetime) = vm.lifetime_ms {
            self.leaving.entry(vm.at_ms + lifetime).or_default().push(VmKey(id));
        }
        (self.decided)(id, Some(host));
    }

    fn failed(&mut self, vms: &[&Arrival], offset: u64) {
        let asked = vms.iter().fold(Totals::default(), |sum, vm| sum + vm.resources);
        let reason = Reason::of(self.scheduler, asked);
        *self.outcome.failures.entry(reason).or_default() += vms.len() as u64;
        self.outcome.failed += vms.len() as u64;
        for vm in vms {
            (self.decided)(vm.id + offset, None);
        }
    }
}

fn wrong(file: &str, vm: &Arrival, error: PlacementError) -> ReplayError {
    ReplayError::Record { file: file.to_owned(), line: vm.line, error }
}
