//! How long a decision takes, beside a scan over all hosts.
//!
//! `cargo bench -p ballast-placement` prints medians over many decisions on clusters that are three quarters full: all rules
//! over 720 servers, with a promise about their CPU and without, and best fit over ever more hosts.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![expect(clippy::unwrap_used, reason = "a benchmark ends where something is wrong")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant as Clock;

use ballast_placement::fits::{AntiAffinity, Capacity, Open};
use ballast_placement::rules::BestFit;
use ballast_placement::{
    ChassisId, Cluster, CpuUse, Fit, Host, HostId, Measured, MemoryKb, MilliCores, Policy, Ranking,
    Resources, Scheduler, Tier, Ties, VmKey, VmRequest,
};
use ballast_types::{Instant, SplitMix64, Utilisation, VmClass};

const NOW: Instant = Instant::ZERO;
/// Decisions that are timed.
const DECISIONS: usize = 20_000;
const FULL: f64 = 0.75;

fn vm(id: u64) -> VmRequest {
    let chance = SplitMix64::first(id);
    let cores = [1, 1, 1, 2, 2, 4, 4, 8][(chance % 8) as usize];
    let gb = [1.75, 3.5, 7.0][(chance >> 8) as usize % 3] * f64::from(cores);
    let p95 = Utilisation::from_ratio((chance >> 16 & 0xFFFF) as f64 / 65_536.0).unwrap();
    let class = if chance >> 40 & 3 == 0 { VmClass::UserFacing } else { VmClass::NonUserFacing };
    let resources = Resources::new(MilliCores::from_cores(cores), MemoryKb::from_gb(gb).unwrap());
    VmRequest { class, p95, known: true, ..VmRequest::new(VmKey(id), resources) }
}

fn cluster(hosts: u32) -> Cluster {
    let capacity = Resources::new(MilliCores::from_cores(40), MemoryKb::from_gb(160.0).unwrap());
    let host = |n| Host::new(ChassisId(n / 12), capacity);
    Cluster::new(&(0..hosts).map(host).collect::<Vec<_>>())
}

/// A scheduler whose cluster is as full as it should be, and how many VMs that took.
fn filled(hosts: u32, ranking: impl Fn(&Cluster) -> Ranking) -> (Scheduler, u64) {
    let cluster = cluster(hosts);
    let ranking = ranking(&cluster);
    let fits: Vec<Box<dyn Fit>> = vec![Box::new(Capacity), Box::new(Open), Box::new(AntiAffinity::default())];
    let mut scheduler = Scheduler::new(cluster, fits, ranking);
    let goal = (FULL * f64::from(hosts) * 40e3) as u64;
    let mut next = 0;
    while scheduler.cluster().allocated().milli_cores < goal {
        // Not by the ranking: hosts of a cluster that has long been in use are full to all degrees.
        let host = HostId((SplitMix64::first(next ^ 0xABCD) % u64::from(hosts)) as u32);
        let _ = scheduler.put(NOW, &vm(next), host);
        next += 1;
    }
    (scheduler, next)
}

/// Median and 99th percentile of what `decide` takes, in microseconds.
fn time(decisions: usize, mut decide: impl FnMut(u64)) -> (f64, f64) {
    let mut took: Vec<f64> = (0..decisions as u64)
        .map(|n| {
            let start = Clock::now();
            decide(n);
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    took.sort_by(f64::total_cmp);
    (took[decisions / 2], took[decisions * 99 / 100])
}

fn line(what: &str, (median, p99): (f64, f64)) {
    println!("{what:58} median {median:9.2} us   p99 {p99:9.2} us");
}

/// The best fit by looking at every host, in double precision.
fn scan(cluster: &Cluster, vm: &VmRequest) -> Option<HostId> {
    let mut best: Option<(f64, HostId)> = None;
    for host in cluster.ids() {
        let Some(left) = cluster.free(host).checked_sub(vm.resources) else { continue };
        let capacity = cluster.host(host).capacity;
        let cores = f64::from(left.cores.milli()) / f64::from(capacity.cores.milli());
        let cost = cores.max(left.memory.kb() as f64 / capacity.memory.kb() as f64);
        if best.is_none_or(|(least, _)| cost < least) {
            best = Some((cost, host));
        }
    }
    best.map(|(_, host)| host)
}

/// Hosts that sell twice their cores, of which VMs have 1.4 times as many as there are; with a promise about those VMs, all of
/// them measured, or without.
fn overcommitted(target_ppm: Option<u32>) -> (Scheduler, u64) {
    let alike = cluster(720);
    let mut hosts: Vec<Host> = alike.ids().map(|id| *alike.host(id)).collect();
    hosts.iter_mut().for_each(|host| host.room.cores = MilliCores::from_cores(80));
    let mut scheduler =
        Policy { cpu_target_ppm: target_ppm, ..Policy::POWER }.scheduler(Cluster::new(&hosts));
    let mut measured: Vec<Measured<VmKey>> = vec![Measured::default(); hosts.len()];
    let mut next = 0;
    while scheduler.cluster().allocated().milli_cores < 720 * 56_000 {
        let (vm, host) = (vm(next), HostId((SplitMix64::first(next ^ 0xABCD) % 720) as u32));
        if scheduler.observe(NOW, &vm, host).is_ok() {
            let cores = vm.resources.cores.cores();
            let uses = [(0.1 * cores, 200_000), (0.5 * cores, 50_000), (cores, 500)];
            measured[host.0 as usize].vms.extend(CpuUse::new(cores, &uses).map(|it| (vm.id, Arc::new(it))));
        }
        next += 1;
    }
    for (host, measured) in measured.iter().enumerate() {
        scheduler.measure(NOW, HostId(host as u32), measured).unwrap();
    }
    (scheduler, next)
}

fn promise() {
    for (what, target_ppm) in [("without a promise", None), ("with a promise about CPU", Some(10_000))] {
        let (scheduler, next) = overcommitted(target_ppm);
        let took = time(DECISIONS / 10, |n| {
            let _ = black_box(scheduler.choose(NOW, &vm(next + n)));
        });
        line(&format!("all rules, 720 overcommitted servers, {what}"), took);
    }
}

fn main() {
    promise();
    for hosts in [720, 1440, 2880, 5760, 11_520] {
        let (scheduler, next) = filled(hosts, |cluster| Policy::POWER.rules(cluster).1);
        let took = time(DECISIONS, |n| {
            let _ = black_box(scheduler.choose(NOW, &vm(next + n)));
        });
        line(&format!("all rules, {hosts} servers: choose"), took);

        if hosts == 720 {
            let took = time(DECISIONS, |n| {
                let _ = black_box(scheduler.score(NOW, &vm(next + n), 10));
            });
            line("all rules, 720 servers: ten best with reasons", took);
        }
    }

    for hosts in [500, 2000, 8000, 32_000] {
        let best_fit = |c: &Cluster| Ranking::new(vec![Tier::one(BestFit::new(c, Ties::Id))], Ties::Id);
        let (mut scheduler, next) = filled(hosts, best_fit);
        let took = time(DECISIONS, |n| {
            let _ = black_box(scheduler.choose(NOW, &vm(next + n)));
        });
        line(&format!("best fit, {hosts} hosts: choose"), took);
        let took = time(DECISIONS, |n| {
            let request = vm(next + n);
            if scheduler.place(NOW, &request).is_ok() {
                let _ = black_box(scheduler.remove(NOW, request.id));
            }
        });

        line(&format!("best fit, {hosts} hosts: place and remove"), took);
        let took = time(DECISIONS / 10, |n| {
            black_box(scan(scheduler.cluster(), &vm(next + n)));
        });
        line(&format!("a full scan, {hosts} hosts"), took);

        for n in 0..2000 {
            let request = vm(next + n);
            assert_eq!(scheduler.choose(NOW, &request).ok(), scan(scheduler.cluster(), &request));
        }
    }
}
