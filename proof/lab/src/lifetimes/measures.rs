//! What is measured of a pool while it is played: exact integrals over time.

use ballast_placement::{Cluster, HostId, Resident, Resources};
use ballast_sim::cluster::{PowerDown, PowerDownOptions, Probe, Reason, RequestedVm};
use serde::Serialize;

use super::inflation::Inflation;

/// Windows that are scored: from the switch to the middle, and from there to the end.
const WINDOWS: usize = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// The share of hosts without a VM.
    pub empty: f64,
    /// The share that could be without a VM: 1 − max(share of cores, share of memory).
    pub bound: f64,
    /// Allocated cores by the cores of hosts with a VM.
    pub density: f64,
    /// Free cores on hosts without a VM, by all free cores.
    pub empty_to_free: f64,
    /// The share of free cores that VMs of half a host's cores and memory cannot use.
    pub half_host_unusable: f64,
    /// Cores and memory that are left when VMs come until none fits, by all there is.
    pub stranded_cores: f64,
    pub stranded_memory: f64,
    pub placed: u64,
    pub failed: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    span: f64,
    empty: f64,
    bound: f64,
    allocated: f64,
    used: f64,
    free: f64,
    empty_free: f64,
    unusable: f64,
    stranded: [f64; 2],
    inflations: f64,
    placed: u64,
    failed: u64,
}

impl Sums {
    fn join(mut self, other: &Self) -> Self {
        self.span += other.span;
        self.empty += other.empty;
        self.bound += other.bound;
        self.allocated += other.allocated;
        self.used += other.used;
        self.free += other.free;
        self.empty_free += other.empty_free;
        self.unusable += other.unusable;
        self.stranded = [0, 1].map(|n| self.stranded[n] + other.stranded[n]);
        self.inflations += other.inflations;
        (self.placed, self.failed) = (self.placed + other.placed, self.failed + other.failed);
        self
    }

    fn figures(&self) -> Figures {
        let by = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        Figures {
            empty: by(self.empty, self.span),
            bound: by(self.bound, self.span),
            density: by(self.allocated, self.used),
            empty_to_free: by(self.empty_free, self.free),
            half_host_unusable: by(self.unusable, self.free),
            stranded_cores: by(self.stranded[0], self.inflations),
            stranded_memory: by(self.stranded[1], self.inflations),
            placed: self.placed,
            failed: self.failed,
        }
    }
}

/// Watches a pool. Nothing counts before the first phase ends.
pub(super) struct Measures<'a> {
    window: Option<usize>,
    sums: [Sums; WINDOWS],
    /// Of each host how many half-host VMs it has room for.
    halves: Vec<u32>,
    half: Resources,
    half_sum: u64,
    inflation: Inflation<'a>,
    power: PowerDown,
    overcommitted: u64,
}

impl<'a> Measures<'a> {
    /// For hosts that are all alike, and empty yet.
    pub(super) fn new(cluster: &Cluster, inflation: Inflation<'a>, power: PowerDownOptions) -> Self {
        let host = cluster.ids().next().map_or(Resources::ZERO, |host| cluster.host(host).capacity);
        let half = half(host);
        let halves: Vec<u32> = cluster.ids().map(|host| fits(cluster.free(host), half)).collect();
        let half_sum = halves.iter().map(|n| u64::from(*n)).sum();
        let power = PowerDown::new(power);
        let sums = [Sums::default(); WINDOWS];
        Self { window: None, sums, halves, half, half_sum, inflation, power, overcommitted: 0 }
    }

    /// The whole of what was scored, and its second half.
    pub(super) fn figures(&self) -> [Figures; 2] {
        let [first, second] = &self.sums;
        [first.join(second).figures(), second.figures()]
    }

    pub(super) fn power(&self) -> &PowerDown {
        &self.power
    }

    /// How often a host had more than it has room for.
    pub(super) fn overcommitted(&self) -> u64 {
        self.overcommitted
    }

    fn look(&mut self, cluster: &Cluster, host: HostId) {
        let Some(before) = self.halves.get_mut(host.0 as usize) else { return };
        let after = fits(cluster.free(host), self.half);
        self.half_sum = self.half_sum + u64::from(after) - u64::from(*before);
        *before = after;
    }
}

fn half(host: Resources) -> Resources {
    use ballast_placement::{MemoryKb, MilliCores};
    let cores = MilliCores::from_milli(u64::from(host.cores.milli()) / 2).unwrap_or(MilliCores::ZERO);
    Resources::new(cores, MemoryKb::from_kb(host.memory.kb() / 2).unwrap_or(MemoryKb::ZERO))
}

fn fits(free: Resources, each: Resources) -> u32 {
    let by_cores = free.cores.milli() / each.cores.milli().max(1);
    by_cores.min((free.memory.kb() / each.memory.kb().max(1)) as u32)
}

impl Probe for Measures<'_> {
    fn pass(&mut self, cluster: &Cluster, from_ms: u64, to_ms: u64) {
        let Some(window) = self.window else { return };
        self.power.pass(cluster, from_ms, to_ms);

        let span = (to_ms - from_ms) as f64;
        let (hosts, used) = (cluster.len() as f64, f64::from(cluster.used_hosts()));
        let (taken, room, busy) = (cluster.allocated(), cluster.capacity(), cluster.used_capacity());
        let free = (room.milli_cores - taken.milli_cores) as f64;
        let usable = self.half_sum as f64 * f64::from(self.half.cores.milli());

        let sums = &mut self.sums[window];
        sums.span += span;
        sums.empty += span * (1.0 - used / hosts.max(1.0));
        sums.bound += span * cluster.bound_empty_ratio();
        sums.allocated += span * taken.milli_cores as f64;
        sums.used += span * busy.milli_cores as f64;
        sums.free += span * free;
        sums.empty_free += span * (room.milli_cores - busy.milli_cores) as f64;
        sums.unusable += span * (free - usable);

        while let Some(stranded) = self.inflation.due(cluster, from_ms, to_ms) {
            sums.stranded = [0, 1].map(|n| sums.stranded[n] + stranded[n]);
            sums.inflations += 1.0;
        }
    }

    fn placed(&mut self, cluster: &Cluster, at_ms: u64, vm: &RequestedVm, host: HostId) {
        self.look(cluster, host);
        self.overcommitted += u64::from(cluster.taken(host).exceed(cluster.host(host).capacity));
        if let Some(window) = self.window {
            self.sums[window].placed += 1;
            self.power.placed(cluster, at_ms, vm, host);
        }
    }

    fn failed(&mut self, vms: &[&RequestedVm], _: Reason) {
        if let Some(window) = self.window {
            self.sums[window].failed += vms.len() as u64;
        }
    }

    fn ended(&mut self, cluster: &Cluster, at_ms: u64, resident: &Resident) {
        self.look(cluster, resident.host);
        if self.window.is_some() {
            self.power.ended(cluster, at_ms, resident);
        }
    }

    fn phase(&mut self, _: &Cluster, at_ms: u64) {
        self.window = Some(self.window.map_or(0, |window| (window + 1).min(WINDOWS - 1)));
        self.inflation.begin(at_ms);
    }
}
