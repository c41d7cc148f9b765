//! Where VMs go, and what every server then has to do, half hour by half hour.

use std::collections::BTreeMap;
use std::ops::Range;

use ballast_placement::{
    ChassisId, Host, HostId, MemoryKb, MilliCores, Policy, Resources, Scheduler, VmKey, VmRequest,
};
use ballast_predict::VmHistory;
use ballast_predict::fleet::{HALF_HOUR_S, START_S, SyntheticFleet};
use ballast_types::{Instant, PowerModel, VmClass};

use super::learn::{Share, batch};
use super::{CORES, Chain, Options, Predicted, SERVERS};

/// The chassis that a fleet is placed on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cluster {
    pub(super) chassis: u32,
}

/// Where every VM is, as long as it runs.
pub(super) struct Placed {
    pub(super) hosts: Vec<Option<HostId>>,
    pub(super) refused: f64,
}

impl Cluster {
    /// As many chassis as the VMs fill to this share while they are looked at, in the mean.
    pub(super) fn new(fleet: &SyntheticFleet, options: &Options) -> Self {
        let [_, from, _, to] = options.times();
        let cores = |vm: &VmHistory| {
            let there = vm.end_s.unwrap_or(to).min(to) - vm.arrival_s.max(from);
            f64::from(vm.cores) * there.max(0) as f64 / (to - from) as f64
        };
        let allocated: f64 = fleet.vms.iter().map(cores).sum();
        let chassis = allocated / (options.load * f64::from(SERVERS * CORES));
        Self { chassis: (libm::ceil(chassis) as u32).max(1) }
    }

    pub(super) fn hosts(self) -> u32 {
        self.chassis * SERVERS
    }

    /// Places the VMs that run at this second, in the order in which they came, and those that come later, a
    /// deployment whole or not at all.
    pub(super) fn place(
        self,
        fleet: &SyntheticFleet,
        policy: Policy,
        from_s: i64,
        told: impl Fn(usize) -> Predicted,
    ) -> Placed {
        let capacity = Resources::new(MilliCores::from_cores(CORES as u16), MemoryKb::ZERO);
        let host = |n| Host::new(ChassisId(n / SERVERS), capacity);
        let all: Vec<Host> = (0..self.hosts()).map(host).collect();
        let mut scheduler = policy.scheduler(ballast_placement::Cluster::new(&all));
        let mut leaving: BTreeMap<i64, Vec<VmKey>> = BTreeMap::new();
        let (mut hosts, mut asked, mut refused) = (vec![None; fleet.vms.len()], 0, 0);

        let runs =
            |vm: &usize| fleet.vms[*vm].end_s.is_none_or(|end| end > from_s.max(fleet.vms[*vm].arrival_s));
        let order: Vec<usize> = (0..fleet.vms.len()).filter(runs).collect();
        let together = |a: &usize, b: &usize| {
            let (a, b) = (&fleet.vms[*a], &fleet.vms[*b]);
            a.arrival_s >= from_s && (a.arrival_s, &a.deployment) == (b.arrival_s, &b.deployment)
        };

        for vms in order.chunk_by(together) {
            let at_s = fleet.vms[vms[0]].arrival_s.max(from_s);
            let now = Instant::from_millis(((at_s - from_s) * 1000) as u64);
            leave(&mut scheduler, &mut leaving, at_s, now);
            let request = |vm: &usize| {
                let (class, p95) = told(*vm);
                let cores = MilliCores::from_cores(fleet.vms[*vm].cores as u16);
                let resources = Resources::new(cores, MemoryKb::ZERO);
                VmRequest::new(VmKey(*vm as u64), resources).known(class, p95)
            };
            let requests: Vec<VmRequest> = vms.iter().map(request).collect();
            asked += vms.len();

            let Ok(found) = scheduler.place_all(now, &requests) else {
                refused += vms.len();
                continue;
            };
            for (vm, host) in vms.iter().zip(found) {
                hosts[*vm] = Some(host);
                if let Some(end) = fleet.vms[*vm].end_s {
                    leaving.entry(end).or_default().push(VmKey(*vm as u64));
                }
            }
        }

        Placed { hosts, refused: refused as f64 / asked.max(1) as f64 }
    }
}

/// Who has ended by now leaves.
fn leave(scheduler: &mut Scheduler, leaving: &mut BTreeMap<i64, Vec<VmKey>>, at_s: i64, now: Instant) {
    while let Some(next) = leaving.first_entry().filter(|next| *next.key() <= at_s) {
        for vm in next.remove() {
            let left = scheduler.remove(now, vm);
            debug_assert!(left.is_ok(), "{left:?}");
        }
    }
}

/// VMs of a server, by what they are told to be and what they are.
pub(super) const KINDS: usize = 4;

/// What is told of a kind, and what is true.
pub(super) fn classes(kind: usize) -> (VmClass, VmClass) {
    let class = |batch| if batch { VmClass::NonUserFacing } else { VmClass::UserFacing };
    (class(kind >= 2), class(kind % 2 == 1))
}

/// What one server has to do in one half hour, by kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Need {
    pub(super) cores: [u8; KINDS],
    /// Cores that are kept busy at the highest frequency.
    pub(super) busy: [f32; KINDS],
}

/// What all servers have to do in the weeks that are planned from, and in those that are held out.
pub(super) struct Needs {
    pub(super) hosts: usize,
    /// By half hour, then by host.
    pub(super) all: Vec<Need>,
}

impl Needs {
    pub(super) fn of(chain: &Chain<'_>, placed: &Placed, from_s: i64) -> Self {
        let [.., end_s] = chain.options.times();
        let hosts = chain.cluster.hosts() as usize;
        let half_hours = ((end_s - from_s) / HALF_HOUR_S) as usize;
        let first = (from_s - START_S) / HALF_HOUR_S;
        let mut all = vec![Need::default(); half_hours * hosts];

        for (vm, host) in placed.hosts.iter().enumerate() {
            let Some(host) = host else { continue };
            let VmHistory { arrival_s, end_s: ended, cores, .. } = &chain.fleet.vms[vm];
            let told = chain.told(vm).0.unwrap_or(VmClass::UserFacing);
            let kind = 2 * batch(told) + batch(chain.fleet.purposes[vm].class);
            let usage = chain.uses.vm(vm);
            // It counts in the half hours that begin while it runs.
            let up = |t_s: i64| ((t_s - from_s).max(0) + HALF_HOUR_S - 1) / HALF_HOUR_S;

            for n in up(*arrival_s)..up(ended.unwrap_or(end_s).min(end_s)) {
                let need = &mut all[n as usize * hosts + host.0 as usize];
                need.cores[kind] += *cores as u8;
                need.busy[kind] += (f64::from(*cores) * usage.at((first + n) as u64)) as f32;
            }
        }

        Self { hosts, all }
    }

    pub(super) fn chassis(&self) -> usize {
        self.hosts / SERVERS as usize
    }

    pub(super) fn servers(&self, chassis: usize, half_hour: usize) -> &[Need] {
        let first = half_hour * self.hosts + chassis * SERVERS as usize;
        &self.all[first..first + SERVERS as usize]
    }

    /// Core-half-hours by what is told and what is true.
    pub(super) fn told(&self, half_hours: Range<usize>) -> Share {
        let mut share = Share::default();
        for need in &self.all[half_hours.start * self.hosts..half_hours.end * self.hosts] {
            for (kind, cores) in need.cores.iter().enumerate() {
                let (told, is) = classes(kind);
                share.add(told, is, f64::from(*cores));
            }
        }
        share
    }
}

/// What these servers draw when nobody slows them, in watts.
pub(super) fn draw_w(servers: &[Need], model: &PowerModel) -> f64 {
    let busy: f64 = servers.iter().flat_map(|need| need.busy).map(f64::from).sum();
    servers.len() as f64 * model.static_w(1.0) + model.dynamic_w() * busy / f64::from(CORES)
}
