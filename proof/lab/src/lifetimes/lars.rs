//! Rounds of drains, replayed: how many moves each order saves, and how much later hosts come free.
//!
//! Every so often the emptiest hosts of a running cluster are taken, and their VMs are moved on paper: each order decides
//! by what is told or predicted of them, and what really happens decides who has ended before its turn. Nothing is changed, so
//! that all orders see the same hosts, as in the paper's Table 2.
//!
//! Source: LARS, Ling et al., "LAVA: Lifetime-Aware VM Allocation", MLSys 2025, Section 6.3.

use std::collections::BTreeMap;

use ballast_placement::drain::{DrainOrder, DrainVm, Fate, Schedule, emptiest, schedule};
use ballast_placement::{Cluster, HostId, Resident, Resources, VmKey};
use ballast_sim::cluster::{Probe, RequestedVm};
use ballast_types::Instant;
use serde::Serialize;

/// The orders that are compared, the baseline first.
pub const ORDERS: [DrainOrder; 3] = [DrainOrder::Arrival, DrainOrder::PerHost, DrainOrder::Global];

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LarsOptions {
    pub hosts: usize,
    /// So many VMs are on their way together.
    pub limit: usize,
    pub move_s: f64,
    /// The first round, in milliseconds as the source counts.
    pub from_ms: u64,
    /// From one round to the next.
    pub every_ms: u64,
}

impl LarsOptions {
    /// 30 hosts a round, three moves of 20 minutes at a time, every six hours.
    pub const fn from(from_ms: u64) -> Self {
        Self { hosts: 30, limit: 3, move_s: 1200.0, from_ms, every_ms: 6 * 3_600_000 }
    }
}

/// What one order came to, over all rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LarsRow {
    pub order: DrainOrder,
    pub rounds: u64,
    /// VMs that were to be moved.
    pub scheduled: u64,
    pub moved: u64,
    /// Of the baseline's moves, the share that is not made, in percent: below 0 it makes more.
    pub saved_percent: f64,
    /// How long a host takes until it is free, in the mean.
    pub host_free_s: f64,
    /// And the last host of a round, in the mean over rounds.
    pub last_free_s: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    moved: u64,
    free_s: f64,
    last_s: f64,
}

/// Watches a cluster, and replays rounds of drains on what it sees.
#[derive(Debug)]
pub struct Lars {
    options: LarsOptions,
    next_ms: u64,
    /// When each VM that is there really ends, in milliseconds; those that never do are absent.
    ends_ms: BTreeMap<VmKey, u64>,
    rounds: u64,
    scheduled: u64,
    hosts: u64,
    sums: [Sums; ORDERS.len()],
}

impl Lars {
    pub fn new(options: LarsOptions) -> Self {
        Self {
            options,
            next_ms: options.from_ms,
            ends_ms: BTreeMap::new(),
            rounds: 0,
            scheduled: 0,
            hosts: 0,
            sums: Default::default(),
        }
    }

    /// A row of every order, the baseline first.
    pub fn rows(&self) -> Vec<LarsRow> {
        let baseline = self.sums[0].moved;
        let row = |(order, sums): (&DrainOrder, &Sums)| LarsRow {
            order: *order,
            rounds: self.rounds,
            scheduled: self.scheduled,
            moved: sums.moved,
            saved_percent: share(baseline as f64 - sums.moved as f64, baseline) * 100.0,
            host_free_s: share(sums.free_s, self.hosts),
            last_free_s: share(sums.last_s, self.rounds),
        };
        ORDERS.iter().zip(&self.sums).map(row).collect()
    }

    fn round(&mut self, cluster: &Cluster, at_ms: u64) {
        let now = Instant::from_millis(at_ms);
        let hosts = emptiest(cluster, self.options.hosts);
        let residents: Vec<Resident> = hosts.iter().flat_map(|host| cluster.residents_of(*host)).collect();
        if residents.is_empty() {
            return;
        }

        let vm = |it: &Resident| {
            let Resident { vm, host, since } = *it;
            DrainVm { vm: vm.id, host, since, resources: vm.resources, remaining_s: None }
        };
        let vms: Vec<DrainVm<VmKey, HostId>> = residents.iter().map(vm).collect();
        let ends_s = |n: usize| {
            let ends_ms = self.ends_ms.get(&vms[n].vm)?;
            Some(ends_ms.saturating_sub(at_ms) as f64 / 1e3)
        };
        // Predicted anew whenever somebody is chosen: a look-up.
        let remaining_s = |n: usize, at_s: f64| {
            let then = now + core::time::Duration::from_secs_f64(at_s);
            let Resident { vm, since, .. } = residents[n];
            cluster.remaining(then, since, vm.end).map(|left| left.as_secs_f32())
        };

        self.rounds += 1;
        self.hosts += hosts.len() as u64;
        self.scheduled += vms.len() as u64;
        let LarsOptions { limit, move_s, .. } = self.options;
        for (order, sums) in ORDERS.into_iter().zip(&mut self.sums) {
            let by = Schedule { order, limit, takes_s: |_: Resources| move_s };
            let fates = schedule(&vms, &[], &by, ends_s, Some(&remaining_s));
            let mut free_s: BTreeMap<HostId, f64> = BTreeMap::new();
            for (vm, fate) in vms.iter().zip(&fates) {
                let (moved, gone_s) = match fate {
                    Fate::Moved { ends_s, .. } => (1, *ends_s),
                    Fate::Saved { ends_s } => (0, *ends_s),
                };
                sums.moved += moved;
                let host_s = free_s.entry(vm.host).or_default();
                *host_s = host_s.max(gone_s);
            }
            sums.free_s += free_s.values().sum::<f64>();
            sums.last_s += free_s.values().copied().fold(0.0, f64::max);
        }
    }
}

fn share(part: f64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part / whole as f64 }
}

impl Probe for Lars {
    fn pass(&mut self, cluster: &Cluster, from_ms: u64, to_ms: u64) {
        self.next_ms = self.next_ms.max(from_ms);
        while self.next_ms < to_ms {
            self.round(cluster, self.next_ms);
            self.next_ms = self.next_ms.saturating_add(self.options.every_ms.max(1));
        }
    }

    fn placed(&mut self, _: &Cluster, at_ms: u64, vm: &RequestedVm, _: HostId) {
        if let Some(lifetime_ms) = vm.lifetime_ms {
            self.ends_ms.insert(vm.request.id, at_ms.saturating_add(lifetime_ms));
        }
    }

    fn ended(&mut self, _: &Cluster, _: u64, resident: &Resident) {
        self.ends_ms.remove(&resident.vm.id);
    }
}

#[cfg(test)]
mod tests;
