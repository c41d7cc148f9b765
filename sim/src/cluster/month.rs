//! One month of one scheduler on a generated load.

use std::collections::BTreeMap;

use ballast_placement::{
    Balance, ChassisId, Cluster, Host, HostId, MemoryKb, MilliCores, Policy, Resident, Resources, VmRequest,
};
use ballast_types::{PowerModel, standard_deviation};

use super::engine::{Batches, Engine, EngineError, Probe, Reason, RequestedVm, Source};
use super::generate::{ClusterVm, Workload};
use super::power::{Server, Use, cap};
use super::predictor::Prediction;

const HOUR_MS: u64 = 3_600_000;

/// Servers, load and time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Site {
    pub chassis: u32,
    pub servers: u32,
    pub cores: u16,
    pub model: PowerModel,
    /// The share of cores that is allocated on average, were nothing refused.
    pub load: f64,
    pub days: u16,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    pub prediction: Prediction,
    pub policy: Policy,
}

/// What was seen. Scores are by true class and P95; means are over hours.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Month {
    /// Deployments that were asked for.
    pub requests: u64,
    /// Those that were refused, by reason.
    pub failures: BTreeMap<Reason, u64>,
    pub empty_server_ratio: f64,
    /// Standard deviation of κ over chassis.
    pub chassis_score_std: f64,
    /// Standard deviation of η, as a user-facing VM sees it, over servers.
    pub server_score_std: f64,
    /// Chassis-hours above the budget.
    pub capped_hours: u64,
    /// Hours of user-facing cores on servers whose own limit is needed then.
    pub user_facing_throttled_core_h: f64,
    /// What the low-priority cores of a server can shed, in watts: the 10th percentile over the hours of all
    /// servers that have a VM.
    pub sheddable_w_p10: f64,
    /// What every chassis draws in every hour, in watts.
    pub draws_w: Vec<f64>,
}

impl Month {
    pub fn failure_rate(&self) -> f64 {
        self.failures.values().sum::<u64>() as f64 / self.requests.max(1) as f64
    }
}

/// Plays a month. Without a budget no chassis is capped. The error names a VM that no server could ever hold.
pub fn run(site: &Site, setup: &Setup, load: &Workload, budget_w: Option<f64>) -> Result<Month, EngineError> {
    let capacity = Resources::new(MilliCores::from_cores(site.cores), MemoryKb::ZERO);
    let host = |n| Host::new(ChassisId(n / site.servers), capacity);
    let hosts: Vec<Host> = (0..site.chassis * site.servers).map(host).collect();
    let mut scheduler = setup.policy.scheduler(Cluster::new(&hosts));

    let mut source = Deployments::new(site, setup.prediction, load);
    let mut hours = Hours {
        site,
        budget_w,
        vms: load.vms().collect(),
        residents: load.residents.len() as u64,
        truth: Balance::new(scheduler.cluster()),
        servers: vec![Vec::new(); hosts.len()],
        usage: Use::new(),
        hour: 0,
        sheddable: BTreeMap::new(),
        month: Month { requests: load.deployments.len() as u64, ..Month::default() },
    };

    Engine::new(&mut scheduler, &mut (), &mut [&mut hours], Batches::Atomic).play(&mut source)?;
    Ok(hours.finish())
}

struct Deployments<'a> {
    prediction: Prediction,
    groups: Box<dyn Iterator<Item = (u64, &'a [ClusterVm])> + 'a>,
    /// How many VMs have come.
    count: u64,
}

impl<'a> Deployments<'a> {
    /// One resident that finds no place keeps no other away. Time goes from 0 to the end of the month, whoever comes.
    fn new(site: &Site, prediction: Prediction, load: &'a Workload) -> Self {
        let last_ms = load.deployments.last().map_or(0, |deployment| deployment.at_ms);
        let end_ms = last_ms.max(u64::from(site.days) * 24 * HOUR_MS);
        let nobody = |at_ms| core::iter::once((at_ms, &[][..]));
        let residents = load.residents.iter().map(|vm| (0, core::slice::from_ref(vm)));
        let deployments = load.deployments.iter().map(|deployment| (deployment.at_ms, &*deployment.vms));
        let groups = nobody(0).chain(residents).chain(deployments).chain(nobody(end_ms));
        Self { prediction, groups: Box::new(groups), count: 0 }
    }
}

impl Source for Deployments<'_> {
    fn name(&self) -> &'static str {
        "workload"
    }

    fn next_group(&mut self, group: &mut Vec<RequestedVm>) -> Result<Option<u64>, EngineError> {
        group.clear();
        let Some((at_ms, vms)) = self.groups.next() else { return Ok(None) };
        group.extend(vms.iter().zip(self.count..).map(|(vm, index)| RequestedVm {
            request: self.prediction.request(vm),
            lifetime_ms: Some(vm.lifetime_ms),
            index,
        }));
        self.count += vms.len() as u64;
        Ok(Some(at_ms))
    }
}

/// Looks at the cluster once an hour.
struct Hours<'a> {
    site: &'a Site,
    budget_w: Option<f64>,
    /// All of them as they really are, in the order in which they come.
    vms: Vec<&'a ClusterVm>,
    /// So many of these are there at the start: one that finds no place stays away, and has nobody to be counted for.
    residents: u64,
    /// The scores as they really are.
    truth: Balance,
    servers: Vec<Vec<ClusterVm>>,
    usage: Use,
    hour: u32,
    /// Server-hours by watts that can be shed.
    sheddable: BTreeMap<u32, u64>,
    month: Month,
}

impl Probe for Hours<'_> {
    fn pass(&mut self, cluster: &Cluster, _: u64, to_ms: u64) {
        while u64::from(self.hour) * HOUR_MS < to_ms {
            self.look(cluster);
            self.hour += 1;
        }
    }

    fn placed(&mut self, _: &Cluster, _: u64, vm: &RequestedVm, host: HostId) {
        let vm = *self.vms[vm.index as usize];
        self.servers[host.0 as usize].push(vm);
        self.truth.add(&as_it_is(&vm), host);
    }

    fn failed(&mut self, vms: &[&RequestedVm], reason: Reason) {
        if vms.first().is_some_and(|vm| vm.index >= self.residents) {
            *self.month.failures.entry(reason).or_default() += 1;
        }
    }

    fn ended(&mut self, _: &Cluster, _: u64, resident: &Resident) {
        let here = &mut self.servers[resident.host.0 as usize];
        if let Some(index) = here.iter().position(|vm| vm.id == resident.vm.id) {
            let vm = here.swap_remove(index);
            self.truth.remove(&as_it_is(&vm), resident.host);
        }
    }
}

impl Hours<'_> {
    fn look(&mut self, cluster: &Cluster) {
        let Self { site, truth, month, .. } = self;
        let per = site.servers;
        let empty = cluster.len() - cluster.used_hosts() as usize;
        month.empty_server_ratio += empty as f64 / cluster.len() as f64;
        let first = |chassis| HostId(chassis * per);
        month.chassis_score_std +=
            deviation((0..site.chassis).map(|chassis| truth.chassis_score(first(chassis))));
        month.server_score_std += deviation(cluster.ids().map(|host| truth.server_score(host)));

        for vms in self.servers.chunks(per as usize) {
            let cores = f64::from(site.cores);
            let server = |vms: &Vec<ClusterVm>| Server::of(&site.model, cores, vms, &self.usage, self.hour);
            let servers: Vec<Server> = vms.iter().map(server).collect();

            for (server, _) in servers.iter().zip(vms).filter(|(_, vms)| !vms.is_empty()) {
                *self.sheddable.entry(server.sheddable_w as u32).or_default() += 1;
            }
            month.draws_w.push(servers.iter().map(|server| server.draw_w).sum());

            if let Some(budget_w) = self.budget_w {
                let capping = cap(&servers, budget_w);
                month.capped_hours += u64::from(capping.capped);
                month.user_facing_throttled_core_h += capping.throttled_cores;
            }
        }
    }

    fn finish(self) -> Month {
        let hours = f64::from(self.hour.max(1));
        let all: u64 = self.sheddable.values().sum();
        let mut below = 0;
        let tenth = self.sheddable.iter().find(|(_, count)| {
            below += **count;
            10 * below >= all
        });
        Month {
            empty_server_ratio: self.month.empty_server_ratio / hours,
            chassis_score_std: self.month.chassis_score_std / hours,
            server_score_std: self.month.server_score_std / hours,
            sheddable_w_p10: tenth.map_or(0.0, |(watts, _)| f64::from(*watts)),
            ..self.month
        }
    }
}

/// The VM with its true class and P95.
fn as_it_is(vm: &ClusterVm) -> VmRequest {
    VmRequest { class: vm.class, p95: vm.p95, ..VmRequest::new(vm.id, vm.resources()) }
}

fn deviation(values: impl Iterator<Item = f64> + Clone) -> f64 {
    standard_deviation(values).unwrap_or(0.0)
}
