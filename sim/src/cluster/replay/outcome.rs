//! What came of a trace.

use std::collections::BTreeMap;

use ballast_placement::{Cluster, Shortage};
use serde::Serialize;

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The open hosts that could take it have too few cores together.
    Cores,
    /// The open hosts that could take it have too little memory together.
    Memory,
    /// The open hosts have too little together of a resource beside these two.
    Extras,
    /// There is enough of all, but not where it is needed.
    Fragmentation,
    /// An admission did not let it come, whatever there is.
    Admission,
}

impl From<Shortage> for Reason {
    fn from(short: Shortage) -> Self {
        match short {
            Shortage::Cores => Self::Cores,
            Shortage::Memory => Self::Memory,
            Shortage::Extras => Self::Extras,
            Shortage::Fragmentation => Self::Fragmentation,
        }
    }
}

/// The time with one policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Phase {
    /// When it began, in milliseconds after the first arrival.
    #[serde(skip)]
    pub from_ms: u64,
    /// VMs that found a host.
    pub placed: u64,
    /// VMs that did not.
    pub failed: u64,
    /// The share of hosts without a VM, over this time.
    pub empty_host_ratio: f64,
    /// Allocated cores by the cores of hosts with a VM, over this time.
    pub packing_density: f64,
}

/// What came of draining hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Drained {
    /// Hosts that were to be drained, each as often as it was.
    pub hosts: u64,
    /// How many of these became empty.
    pub emptied: u64,
    /// The longest time from the order to drain until a host was empty.
    pub longest_s: f64,
    /// VMs that were moved.
    pub moved: u64,
    /// VMs that still wait or are on their way.
    pub left: u64,
    /// Core-hours that moves held on hosts where the VM was not yet.
    pub held_core_h: f64,
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
    pub failures: BTreeMap<Reason, u64>,
    /// The same of every policy's time.
    pub phases: Vec<Phase>,
    /// What came of drains.
    pub drained: Drained,
}

/// Sums over time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Means {
    span: f64,
    empty: f64,
    allocated: f64,
    used: f64,
}

impl Means {
    /// The cluster stays for so long as it is.
    pub(super) fn add(&mut self, cluster: &Cluster, span_ms: f64) {
        self.span += span_ms;
        self.empty += span_ms * (cluster.len() - cluster.used_hosts() as usize) as f64;
        self.allocated += span_ms * cluster.allocated().milli_cores as f64;
        self.used += span_ms * cluster.used_capacity().milli_cores as f64;
    }

    pub(super) fn join(&mut self, other: &Self) {
        self.span += other.span;
        self.empty += other.empty;
        self.allocated += other.allocated;
        self.used += other.used;
    }

    /// The share of empty hosts and the packing density; where no time has passed, those of the cluster as it
    /// is.
    pub(super) fn ratios(mut self, cluster: &Cluster) -> (f64, f64) {
        if self.span == 0.0 {
            self.add(cluster, 1.0);
        }
        let empty = self.empty / (self.span * cluster.len().max(1) as f64);
        (empty, if self.used > 0.0 { self.allocated / self.used } else { 0.0 })
    }
}
