//! What came of a trace.

use std::collections::BTreeMap;

use ballast_placement::{Cluster, HostId};
use serde::Serialize;

use crate::cluster::engine::{Probe, Reason, RequestedVm};

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Phase {
    /// When it began, in milliseconds after the first arrival.
    #[serde(skip)]
    pub from_ms: u64,
    /// VMs that found a host.
    pub placed: u64,
    pub failed: u64,
    /// The share of hosts without a VM, over this time.
    pub empty_host_ratio: f64,
    /// Allocated cores by the cores of hosts with a VM, over this time.
    pub packing_density: f64,
    /// The share of hosts that could be without a VM, were cores and memory packed without a gap.
    pub bound_empty_ratio: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Drained {
    /// Hosts that were to be drained, each as often as it was.
    pub hosts: u64,
    /// How many of these became empty.
    pub emptied: u64,
    /// The longest time from the order to drain until a host was empty.
    pub longest_s: f64,
    /// VMs that were to be moved.
    pub scheduled: u64,
    pub moved: u64,
    /// VMs that ended before their turn, so that they need not be moved.
    pub saved: u64,
    /// VMs that still wait or are on their way.
    pub left: u64,
    /// Core-hours that moves held on hosts where the VM was not yet.
    pub held_core_h: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// VMs that found a host.
    pub placed: u64,
    pub failed: u64,
    /// The share of hosts without a VM, over time from the first to the last arrival.
    pub empty_host_ratio: f64,
    /// Allocated cores by the cores of hosts with a VM, over the same time.
    pub packing_density: f64,
    /// The share of hosts that could be without a VM, over the same time.
    pub bound_empty_ratio: f64,
    pub failures: BTreeMap<Reason, u64>,
    /// The same of every policy's time.
    pub phases: Vec<Phase>,
    pub drained: Drained,
}

#[derive(Debug)]
pub(super) struct Score {
    first_ms: u64,
    /// Over the phase that is under way.
    means: Means,
    /// Over the phases that have ended.
    ended: Means,
    outcome: Outcome,
}

impl Score {
    pub(super) fn new(first_ms: u64) -> Self {
        let outcome = Outcome { phases: vec![Phase::default()], ..Outcome::default() };
        Self { first_ms, means: Means::default(), ended: Means::default(), outcome }
    }

    fn under_way(&mut self) -> Option<&mut Phase> {
        self.outcome.phases.last_mut()
    }

    fn end_phase(&mut self, cluster: &Cluster) {
        let means = core::mem::take(&mut self.means);
        self.ended.join(&means);
        if let Some(phase) = self.under_way() {
            [phase.empty_host_ratio, phase.packing_density, phase.bound_empty_ratio] = means.ratios(cluster);
        }
    }

    pub(super) fn finish(mut self, cluster: &Cluster, drained: Drained) -> Outcome {
        self.end_phase(cluster);
        let [empty_host_ratio, packing_density, bound_empty_ratio] = self.ended.ratios(cluster);
        let phases = &self.outcome.phases;
        Outcome {
            placed: phases.iter().map(|phase| phase.placed).sum(),
            failed: phases.iter().map(|phase| phase.failed).sum(),
            empty_host_ratio,
            packing_density,
            bound_empty_ratio,
            drained,
            ..self.outcome
        }
    }
}

impl Probe for Score {
    fn pass(&mut self, cluster: &Cluster, from_ms: u64, to_ms: u64) {
        self.means.add(cluster, (to_ms - from_ms) as f64);
    }

    fn placed(&mut self, _: &Cluster, _: u64, _: &RequestedVm, _: HostId) {
        if let Some(phase) = self.under_way() {
            phase.placed += 1;
        }
    }

    fn failed(&mut self, vms: &[&RequestedVm], reason: Reason) {
        let count = vms.len() as u64;
        *self.outcome.failures.entry(reason).or_default() += count;
        if let Some(phase) = self.under_way() {
            phase.failed += count;
        }
    }

    fn phase(&mut self, cluster: &Cluster, at_ms: u64) {
        self.end_phase(cluster);
        self.outcome.phases.push(Phase { from_ms: at_ms - self.first_ms, ..Phase::default() });
    }
}

/// Sums over time.
#[derive(Clone, Copy, Debug, Default)]
struct Means {
    span: f64,
    empty: f64,
    allocated: f64,
    used: f64,
    bound: f64,
}

impl Means {
    /// The cluster stays for so long as it is.
    fn add(&mut self, cluster: &Cluster, span_ms: f64) {
        self.span += span_ms;
        self.empty += span_ms * (cluster.len() - cluster.used_hosts() as usize) as f64;
        self.allocated += span_ms * cluster.allocated().milli_cores as f64;
        self.used += span_ms * cluster.used_capacity().milli_cores as f64;
        self.bound += span_ms * cluster.bound_empty_ratio();
    }

    fn join(&mut self, other: &Self) {
        self.span += other.span;
        self.empty += other.empty;
        self.allocated += other.allocated;
        self.used += other.used;
        self.bound += other.bound;
    }

    /// The share of empty hosts, the packing density, and the share of hosts that could be empty; where no time has passed,
    /// those of the cluster as it is.
    fn ratios(mut self, cluster: &Cluster) -> [f64; 3] {
        if self.span == 0.0 {
            self.add(cluster, 1.0);
        }
        let empty = self.empty / (self.span * cluster.len().max(1) as f64);
        let density = if self.used > 0.0 { self.allocated / self.used } else { 0.0 };
        [empty, density, self.bound / self.span]
    }
}
