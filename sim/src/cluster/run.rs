//! One month of one scheduler on a generated load.

use std::collections::BTreeMap;

use ballast_placement::{
    Balance, ChassisId, Cluster, Host, HostId, MemoryKb, MilliCores, Policy, Resources, Scheduler, VmKey,
    VmRequest,
};
use ballast_types::{Instant, PowerModel, standard_deviation};

use super::generate::{ClusterVm, Workload};
use super::power::{Server, Use, cap};
use super::predictor::Prediction;
use super::replay::Reason;

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
    /// How long it is looked at.
    pub days: u16,
}

/// A scheduler to look at.
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

/// Plays a month. Without a budget no chassis is capped.
pub fn run(site: &Site, setup: &Setup, load: &Workload, budget_w: Option<f64>) -> Month {
    let mut run = Run::new(site, setup, budget_w);
    for vm in &load.residents {
        // One that finds no place stays away: it has nobody to be counted for.
        run.place(0, core::slice::from_ref(vm));
    }
    for deployment in &load.deployments {
        run.until(deployment.at_ms);
        run.month.requests += 1;
        if !run.place(deployment.at_ms, &deployment.vms) {
            let asked: Vec<Resources> = deployment.vms.iter().map(ClusterVm::resources).collect();
            let short = run.scheduler.cluster().shortage(&asked);
            *run.month.failures.entry(short.into()).or_default() += 1;
        }
    }
    run.until(u64::from(site.days) * 24 * HOUR_MS);
    run.finish()
}

struct Run<'a> {
    site: &'a Site,
    setup: &'a Setup,
    budget_w: Option<f64>,
    scheduler: Scheduler,
    /// The scores as they really are.
    truth: Balance,
    servers: Vec<Vec<ClusterVm>>,
    /// Who leaves when, and whence.
    leaving: BTreeMap<u64, Vec<(VmKey, HostId)>>,
    usage: Use,
    /// The next hour to be looked at.
    hour: u32,
    /// Server-hours by watts that can be shed.
    sheddable: BTreeMap<u32, u64>,
    month: Month,
}

impl<'a> Run<'a> {
    fn new(site: &'a Site, setup: &'a Setup, budget_w: Option<f64>) -> Self {
        let capacity = Resources::new(MilliCores::from_cores(site.cores), MemoryKb::ZERO);
        let count = site.chassis * site.servers;
        let host = |n| Host::new(ChassisId(n / site.servers), capacity);
        let cluster = Cluster::new(&(0..count).map(host).collect::<Vec<_>>());
        let truth = Balance::new(&cluster);
        let scheduler = setup.policy.scheduler(cluster);

        Self {
            site,
            setup,
            budget_w,
            scheduler,
            truth,
            servers: vec![Vec::new(); count as usize],
            leaving: BTreeMap::new(),
            usage: Use::new(),
            hour: 0,
            sheddable: BTreeMap::new(),
            month: Month::default(),
        }
    }

    /// Places all of them or none.
    fn place(&mut self, at_ms: u64, vms: &[ClusterVm]) -> bool {
        let now = Instant::from_millis(at_ms);
        let requests: Vec<VmRequest> = vms.iter().map(|vm| self.setup.prediction.request(vm)).collect();
        let Ok(hosts) = self.scheduler.place_all(now, &requests) else { return false };
        for (vm, host) in vms.iter().zip(hosts) {
            self.leaving.entry(at_ms + vm.lifetime_ms).or_default().push((vm.id, host));
            self.servers[host.0 as usize].push(*vm);
            self.truth.add(&as_it_is(vm), host);
        }
        true
    }

    /// Time goes on: VMs leave, hours are looked at.
    fn until(&mut self, at_ms: u64) {
        loop {
            let hour_ms = u64::from(self.hour) * HOUR_MS;
            let leave_ms = self.leaving.keys().next().copied().unwrap_or(u64::MAX);
            if leave_ms <= at_ms && leave_ms <= hour_ms {
                self.leave();
            } else if hour_ms < at_ms {
                self.look();
                self.hour += 1;
            } else {
                return;
            }
        }
    }

    /// The next ones leave.
    fn leave(&mut self) {
        let Some((at_ms, vms)) = self.leaving.pop_first() else { return };
        let now = Instant::from_millis(at_ms);
        for (key, host) in vms {
            let left = self.scheduler.remove(now, key);
            debug_assert!(left.is_ok(), "{left:?}");
            let here = &mut self.servers[host.0 as usize];
            if let Some(place) = here.iter().position(|vm| vm.id == key) {
                let vm = here.swap_remove(place);
                self.truth.remove(&as_it_is(&vm), host);
            }
        }
    }

    /// Looks at everything as it is in this hour.
    fn look(&mut self) {
        let Self { site, scheduler, truth, month, .. } = self;
        let (cluster, per) = (scheduler.cluster(), site.servers);
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
