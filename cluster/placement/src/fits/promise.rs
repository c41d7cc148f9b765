//! The promise that a host's VMs demand more CPU than it has for at most a share of the time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ballast_types::{Instant, VmClass};

use super::estimate::{CELLS, Convolution, EstimateError, Histogram, Load};
use crate::measured::{CpuUse, Measured};
use crate::rule::{Ask, Event, Fit};
use crate::{Cluster, HostId, TenantId, VmKey, VmRequest};

/// A VM that was not measured is taken for its tenant's others where so many of them were.
pub const ALIKE_MIN: usize = 5;
/// And for so many of them, those with the lowest numbers: more say hardly more.
const ALIKE_MAX: usize = 50;
/// A tenant's use is kept in steps of so many parts of a VM's cores, rounded up.
const STEPS: usize = 200;

/// The host keeps the promise with the VM. What VMs would use together is [`Convolution`]'s word.
///
/// A VM that was not measured counts as its tenant's others do, in proportion to its cores, where [`ALIKE_MIN`] of them were
/// measured, else as always using all its cores. Where all VMs' cores together are no more than the host's there is no risk.
///
/// On hosts whose VMs share two pools of cores by class the promise is one to the user-facing VMs: what they would use
/// together is held against their pool, which has their part of the host's cores, by all VMs' cores.
#[derive(Debug)]
pub struct CpuPromise {
    target: f64,
    pools: bool,
    vms: HashMap<VmKey, Arc<CpuUse>>,
    alike: HashMap<TenantId, Alike>,
    /// By the number of the host.
    hosts: Vec<HostLoad>,
}

/// A tenant's VMs that were measured.
#[derive(Debug, Default)]
struct Alike {
    vms: BTreeMap<VmKey, Arc<CpuUse>>,
    /// Which share of a VM's cores they used, on the mean over them, and for which share of the time.
    shares: Vec<(f64, f64)>,
}

impl Alike {
    fn renew(&mut self) {
        let weight = 1.0 / self.vms.len().clamp(1, ALIKE_MAX) as f64;
        let mut steps = [0.0; STEPS + 1];
        for usage in self.vms.values().take(ALIKE_MAX) {
            for (used, share) in &usage.shares {
                let step = libm::ceil(used / usage.cores * STEPS as f64);
                steps[(step as usize).min(STEPS)] += share * weight;
            }
        }
        let busy = steps.into_iter().enumerate().filter(|(_, share)| *share > 0.0);
        self.shares = busy.map(|(step, share)| (step as f64 / STEPS as f64, share)).collect();
    }
}

#[derive(Debug, Default)]
struct HostLoad {
    /// Holds may have one number twice.
    guests: Vec<Guest>,
    load: Convolution,
    sold: Sold,
    closed: Option<f64>,
    allowed: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sold {
    user_facing: u64,
    all: u64,
}

impl Sold {
    fn with(self, vm: &VmRequest) -> Self {
        let more = Self::of(vm);
        Self { user_facing: self.user_facing + more.user_facing, all: self.all + more.all }
    }

    fn without(self, vm: &VmRequest) -> Self {
        let less = Self::of(vm);
        Self { user_facing: self.user_facing - less.user_facing, all: self.all - less.all }
    }

    fn of(vm: &VmRequest) -> Self {
        let all = u64::from(vm.resources.cores.milli());
        Self { user_facing: if vm.class == VmClass::UserFacing { all } else { 0 }, all }
    }
}

#[derive(Debug)]
struct Guest {
    vm: VmRequest,
    usage: Arc<Histogram>,
    by: By,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Measured,
    Tenant,
    Cores,
}

impl CpuPromise {
    /// A host's demand is above its cores for at most so many millionths of the time.
    /// With `pools` the hosts' VMs share two pools of cores by class.
    pub fn new(target_ppm: u32, pools: bool) -> Self {
        let target = f64::from(target_ppm) / 1e6;
        Self { target, pools, vms: HashMap::new(), alike: HashMap::new(), hosts: Vec::new() }
    }

    /// Whether CPU time is promised to a VM.
    fn is_promised(&self, vm: &VmRequest) -> bool {
        !self.pools || vm.class == VmClass::UserFacing
    }

    /// The share of a host's cores that the promise is about.
    fn part(&self, sold: Sold) -> f64 {
        if self.pools { sold.user_facing as f64 / sold.all.max(1) as f64 } else { 1.0 }
    }

    /// How the VM's use stands on a host of so many cores. Fails only for a host that can have no VM.
    fn usage(&self, vm: &VmRequest, capacity: f64) -> Result<(Arc<Histogram>, By), EstimateError> {
        if let Some(usage) = self.vms.get(&vm.id) {
            return Ok((Histogram::weighted(usage.shares.iter().copied(), capacity)?, By::Measured));
        }

        let cores = vm.resources.cores.cores();
        let alike = vm.tenant.and_then(|tenant| self.alike.get(&tenant));
        if let Some(alike) = alike.filter(|alike| alike.vms.len() >= ALIKE_MIN) {
            let uses = alike.shares.iter().map(|(used, share)| (used * cores, *share));
            return Ok((Histogram::weighted(uses, capacity)?, By::Tenant));
        }

        Ok((Histogram::weighted(core::iter::once((cores, 1.0)), capacity)?, By::Cores))
    }

    /// The share of time above the host's cores as it is, or with the VM; and what the VM's use is taken from.
    fn risk_of(&self, cluster: &Cluster, vm: Option<&VmRequest>, host: HostId) -> (f64, By) {
        let capacity = cluster.host(host).capacity.cores;
        let none = HostLoad::default();
        let there = self.hosts.get(host.0 as usize).unwrap_or(&none);
        let sold = vm.map_or(there.sold, |vm| there.sold.with(vm));
        let part = self.part(sold);
        if sold.all <= u64::from(capacity.milli()) || part == 0.0 {
            return (0.0, By::Cores);
        }
        let cells = ((CELLS as f64 * part) as usize).max(1);
        let newcomer = vm.filter(|vm| self.is_promised(vm));
        match newcomer.map(|vm| self.usage(vm, capacity.cores())).transpose() {
            Ok(Some((usage, by))) => (there.load.share_above_cells(Some(&usage), cells), by),
            Ok(None) => (there.load.share_above_cells(None, cells), By::Cores),
            // It has no cores.
            Err(_) => (1.0, By::Cores),
        }
    }

    fn closed(&self, host: HostId) -> Option<f64> {
        self.hosts.get(host.0 as usize)?.closed
    }

    /// The risk that a newcomer may lead to there.
    fn allowed(&self, host: HostId) -> f64 {
        self.hosts.get(host.0 as usize).and_then(|there| there.allowed).unwrap_or(self.target)
    }

    fn load_mut(&mut self, host: HostId) -> &mut HostLoad {
        let place = host.0 as usize;
        if self.hosts.len() <= place {
            self.hosts.resize_with(place + 1, HostLoad::default);
        }
        &mut self.hosts[place]
    }

    /// The guest's use as it is known now.
    fn guest(&self, cluster: &Cluster, vm: &VmRequest, host: HostId) -> Option<Guest> {
        let (usage, by) = self.usage(vm, cluster.host(host).capacity.cores.cores()).ok()?;
        Some(Guest { vm: *vm, usage, by })
    }

    /// Makes the host's load anew: the host is another size, or something else was measured.
    fn renew(&mut self, cluster: &Cluster, host: HostId) {
        let vms: Vec<VmRequest> = self.load_mut(host).guests.iter().map(|guest| guest.vm).collect();
        let guests: Vec<Guest> = vms.iter().filter_map(|vm| self.guest(cluster, vm, host)).collect();
        let mut load = Convolution::default();
        let promised = guests.iter().filter(|guest| self.is_promised(&guest.vm));
        promised.for_each(|guest| load.add(&guest.usage));
        let there = self.load_mut(host);
        (there.load, there.guests) = (load, guests);
    }

    fn measure(&mut self, host: HostId, measured: &Measured<VmKey>) {
        let vms: Vec<VmRequest> = self.load_mut(host).guests.iter().map(|guest| guest.vm).collect();
        let there = self.load_mut(host);
        (there.closed, there.allowed) = (measured.closed, measured.allowed);
        for vm in vms {
            let usage = measured.vms.get(&vm.id);
            match usage {
                Some(usage) => self.vms.insert(vm.id, Arc::clone(usage)),
                None => self.vms.remove(&vm.id),
            };
            self.note_alike(&vm, usage);
        }
    }

    /// What was measured of one of a tenant's VMs, or that it counts no more.
    fn note_alike(&mut self, vm: &VmRequest, usage: Option<&Arc<CpuUse>>) {
        let Some(tenant) = vm.tenant else { return };
        let alike = self.alike.entry(tenant).or_default();
        let before = match usage {
            Some(usage) => alike.vms.insert(vm.id, Arc::clone(usage)),
            None => alike.vms.remove(&vm.id),
        };
        if before.as_ref() != usage {
            alike.renew();
        }
        if alike.vms.is_empty() {
            self.alike.remove(&tenant);
        }
    }
}

impl HostLoad {
    fn add(&mut self, guest: Guest, is_promised: bool) {
        self.sold = self.sold.with(&guest.vm);
        if is_promised {
            self.load.add(&guest.usage);
        }
        self.guests.push(guest);
    }

    fn remove(&mut self, vm: VmKey) {
        if let Some(place) = self.guests.iter().position(|guest| guest.vm.id == vm) {
            let guest = self.guests.remove(place);
            self.sold = self.sold.without(&guest.vm);
            // What is not part of the load is not taken off it.
            self.load.remove(&guest.usage);
        }
    }
}

impl Fit for CpuPromise {
    fn name(&self) -> &'static str {
        "cpu-promise"
    }

    fn admits(&self, ask: &Ask<'_>, host: HostId) -> bool {
        self.closed(host).is_none() && self.risk_of(ask.cluster, Some(ask.vm), host).0 <= self.allowed(host)
    }

    fn refusal(&self, ask: &Ask<'_>, host: HostId) -> Option<String> {
        let target = 100.0 * self.target;
        if let Some(share) = self.closed(host) {
            let share = 100.0 * share;
            return Some(format!(
                "its VMs were measured to demand all its cores for {share:.2} % of the time, twice in a \
                 row: it takes nobody until that is {target} % or less"
            ));
        }
        (!self.admits(ask, host)).then(|| self.remark(ask, host)).flatten()
    }

    fn risk(&self, cluster: &Cluster, vm: Option<&VmRequest>, host: HostId) -> Option<f64> {
        Some(self.risk_of(cluster, vm, host).0)
    }

    fn remark(&self, ask: &Ask<'_>, host: HostId) -> Option<String> {
        let (risk, by) = self.risk_of(ask.cluster, Some(ask.vm), host);
        let cores = ask.cluster.host(host).capacity.cores.cores();
        let sold = self.hosts.get(host.0 as usize).map(|there| there.sold).unwrap_or_default().with(ask.vm);
        let pool = libm::round(cores * self.part(sold) * 10.0) / 10.0;
        let who = match self.pools {
            true => format!("its user-facing VMs would demand more than their pool of {pool} cores"),
            false => format!("its VMs would demand more than its {cores} cores"),
        };
        // Whole millionths of a percent: more is noise of the arithmetic.
        let round = |share: f64| libm::round(share * 1e8) / 1e6;
        let (percent, target, allowed) = (100.0 * risk, round(self.target), round(self.allowed(host)));
        let because = match (allowed - target).abs() < 1e-9 {
            true => String::new(),
            false => format!(": hosts of which that was said were measured to keep {target} %"),
        };
        let guests = self.hosts.get(host.0 as usize).map(|there| &there.guests);
        let unmeasured = guests.map_or(0, |guests| guests.iter().filter(|it| it.by != By::Measured).count());
        let taken_for = match by {
            _ if !self.is_promised(ask.vm) => "not user-facing",
            By::Measured => "as it was measured",
            By::Tenant => "taken for its subscription's others",
            By::Cores => "taken for all its cores",
        };
        Some(format!(
            "{who} for {percent:.2} % of the time, {allowed} % is allowed{because}; this VM is \
             {taken_for}, of those there {unmeasured} were not measured"
        ))
    }

    fn handle_event(&mut self, _now: Instant, cluster: &Cluster, event: &Event<'_>) {
        match *event {
            Event::Measured { host, measured } => {
                self.measure(host, measured);
                self.renew(cluster, host);
            }
            Event::HostChanged { host, .. } if cluster.contains(host) => self.renew(cluster, host),
            Event::HostChanged { host, .. } => *self.load_mut(host) = HostLoad::default(),
            Event::Ended { vm, .. } => {
                self.vms.remove(&vm.id);
                self.note_alike(vm, None);
            }
            _ => {}
        }

        let [left, came] = event.guests();
        if let Some((vm, host)) = left {
            self.load_mut(host).remove(vm.id);
        }
        if let Some((vm, host)) = came
            && let Some(guest) = self.guest(cluster, vm, host)
        {
            let is_promised = self.is_promised(&guest.vm);
            self.load_mut(host).add(guest, is_promised);
        }
    }
}
