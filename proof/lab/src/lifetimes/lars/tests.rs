//! LARS on pools: what each order saves.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;

use ballast_placement::rules::Alpha;
use ballast_placement::{
    ChassisId, DeploymentId, ExpectedEnd, Host, MemoryKb, MilliCores, Policy, Ties, VmRequest,
};
use ballast_predict::lifetime::{
    LifetimeFeatures, LifetimeModel, LifetimeTrial, Lifetimes, VmEnd, VmLifetime,
};
use ballast_sim::cluster::{Arrival, Arrivals, Batches, Engine, EngineError, Source};
use ballast_types::SplitMix64;
use ballast_types::survival::{BINS, CurveId, Curves, SurvivalCurve, edge_s};

use super::*;

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;

/// A list of VMs, each with its arrival in milliseconds.
struct Listed {
    vms: Vec<(u64, RequestedVm)>,
    next: usize,
}

impl Source for Listed {
    fn name(&self) -> &str {
        "pool"
    }

    fn next_group(&mut self, group: &mut Vec<RequestedVm>) -> Result<Option<u64>, EngineError> {
        group.clear();
        let Some((at_ms, _)) = self.vms.get(self.next) else { return Ok(None) };
        let same = self.vms[self.next..].iter().take_while(|vm| vm.0 == *at_ms);
        group.extend(same.map(|vm| vm.1));
        self.next += group.len();
        Ok(Some(*at_ms))
    }
}

/// Plays VMs on hosts of 64 cores and 256 GB under best fit; the second number is how many found no host.
fn play(vms: Vec<(u64, RequestedVm)>, hosts: u32, curves: Curves, from_ms: u64) -> (Vec<LarsRow>, u64) {
    struct Failed(u64);
    impl Probe for Failed {
        fn failed(&mut self, vms: &[&RequestedVm], _: ballast_sim::cluster::Reason) {
            self.0 += vms.len() as u64;
        }
    }

    let size = Resources::new(MilliCores::from_cores(64), MemoryKb::from_gb(256.0).unwrap());
    let hosts: Vec<Host> = (0..hosts).map(|n| Host::new(ChassisId(n / 12), size)).collect();
    let policy = Policy { power: 0, alpha: Alpha::PAPER, ties: Ties::HASH, ..Policy::POWER };
    let mut scheduler = policy.scheduler(Cluster::new(&hosts).with_curves(std::sync::Arc::new(curves)));
    let (mut lars, mut failed) = (Lars::new(LarsOptions::from(from_ms)), Failed(0));
    let probes: &mut [&mut dyn Probe] = &mut [&mut lars, &mut failed];
    let mut operator = ();
    let mut engine = Engine::new(&mut scheduler, &mut operator, probes, Batches::Split);
    engine.play(&mut Listed { vms, next: 0 }).unwrap();
    (lars.rows(), failed.0)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Knowledge {
    Oracle,
    Curves,
}

fn request(id: u64, cores: u16, gb: f64, batch: u64, end: Option<ExpectedEnd>) -> VmRequest {
    let size = Resources::new(MilliCores::from_cores(cores), MemoryKb::from_gb(gb).unwrap());
    VmRequest {
        deployment: Some(DeploymentId(batch)),
        end,
        ..VmRequest::new(ballast_placement::VmKey(id), size)
    }
}

fn normal(chance: &mut SplitMix64) -> f64 {
    let uniform = |chance: &mut SplitMix64| ((chance.draw() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    let (a, b) = (uniform(chance), uniform(chance));
    libm::sqrt(-2.0 * libm::log(a)) * libm::cos(core::f64::consts::TAU * b)
}

/// A pool of 120 types of VMs whose lives are log-normal, so that most end within the hour and most core-hours are of the
/// others; it is told how each type lives, or when each VM ends.
fn synthetic(seed: u64, told: Knowledge) -> (Vec<LarsRow>, u64) {
    let mut chance = SplitMix64::new(seed);
    let mut curves = Curves::default();
    let types: Vec<(f64, f64, u16, CurveId)> = (0..120)
        .map(|n| {
            let (middle, spread) = if n % 10 == 0 { (11.6, 1.6) } else { (6.5, 0.8) };
            let mean = middle + 0.7 * normal(&mut chance);
            let cores = [2, 2, 4, 4, 8, 16][(chance.draw() % 6) as usize];
            let survives = |s: f64| {
                0.5 * libm::erfc((libm::log(s.max(1e-9)) - mean) / (spread * core::f64::consts::SQRT_2))
            };
            let hazards: [f64; BINS] = core::array::from_fn(|bin| {
                let (from, to) = (survives(edge_s(bin).into()), survives(edge_s(bin + 1).into()));
                if from > 1e-12 { 1.0 - to / from } else { 0.5 }
            });
            (mean, spread, cores, curves.intern(SurvivalCurve::from_hazards(&hazards)))
        })
        .collect();

    let (mut at_ms, mut vms, mut id) = (0, Vec::new(), 0);
    while at_ms < 24 * DAY_MS {
        let uniform = ((chance.draw() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        at_ms += (-libm::log(uniform) * 72_000.0) as u64;
        let (mean, spread, cores, curve) = types[(chance.draw() % 120) as usize];
        for _ in 0..=chance.draw() % 3 {
            id += 1;
            let life_s = libm::exp(mean + spread * normal(&mut chance)).clamp(1.0, 28.0 * 86_400.0);
            let lifetime_ms = (life_s * 1e3) as u64;
            let end = match told {
                Knowledge::Oracle => ExpectedEnd::At(Instant::from_millis(at_ms + lifetime_ms)),
                Knowledge::Curves => ExpectedEnd::Curve(curve),
            };
            let request = request(id, cores, 4.0 * f64::from(cores), id, Some(end));
            vms.push((at_ms, RequestedVm { request, lifetime_ms: Some(lifetime_ms), index: id }));
        }
    }
    play(vms, 200, curves, 10 * DAY_MS)
}

fn saved(rows: &[LarsRow]) -> [f64; 3] {
    [rows[0].saved_percent, rows[1].saved_percent, rows[2].saved_percent]
}

#[expect(clippy::print_stderr, reason = "the figures")]
fn show(name: &str, (rows, failed): &(Vec<LarsRow>, u64)) {
    for row in rows {
        let LarsRow { order, rounds, scheduled, moved, saved_percent, host_free_s, last_free_s } = row;
        eprintln!(
            "{name}: {order:?}: {rounds} rounds, {scheduled} scheduled, {moved} moved ({:.1} % avoided), \
             saved {saved_percent:.2} %, host free {:.2} h, last {:.2} h, {failed} failed",
            100.0 - 100.0 * *moved as f64 / *scheduled as f64,
            host_free_s / 3600.0,
            last_free_s / 3600.0,
        );
    }
}

#[test]
fn the_order_by_lifetimes_saves_moves_on_a_synthetic_pool() {
    for told in [Knowledge::Oracle, Knowledge::Curves] {
        let made = synthetic(3, told);
        show(&format!("synthetic {told:?}"), &made);
        let [none, per_host, global] = saved(&made.0);
        assert_eq!(none, 0.0);
        assert!(global > per_host && per_host > 0.0, "{told:?}: {per_host} {global}");
    }
}

/// The Azure development trace, if it is there.
#[expect(clippy::print_stderr, reason = "a test that was skipped must say so")]
#[expect(clippy::disallowed_methods, reason = "a test reads the data that it is about")]
fn azure() -> Option<Vec<Arrival>> {
    let data = std::env::var_os("BALLAST_DATA").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data")),
        PathBuf::from,
    );
    let path = data.join("azure2017_arrivals/azure2017_dev.csv.zst");
    let Ok(file) = File::open(&path) else {
        eprintln!("skipped: there is no {}", path.display());
        return None;
    };
    let arrivals = Arrivals::new(file, "azure2017_dev.csv.zst").unwrap();
    Some(arrivals.map(Result::unwrap).collect())
}

fn features(vm: &Arrival, batches: &BTreeMap<u64, u32>) -> LifetimeFeatures {
    LifetimeFeatures {
        cores: Some(vm.resources.cores.cores()),
        memory_gb: Some(vm.resources.memory.gb()),
        batch_vms: batches.get(&vm.batch).copied(),
        ..LifetimeFeatures::default()
    }
}

/// Learnt from what was known half-way: figures are of what came later.
fn learnt(arrivals: &[Arrival], batches: &BTreeMap<u64, u32>, cut_ms: u64) -> LifetimeModel {
    let past = arrivals.iter().filter(|vm| vm.at_ms < cut_ms).map(|vm| {
        let seen_ms = cut_ms - vm.at_ms;
        let end = match vm.lifetime_ms.filter(|lifetime_ms| *lifetime_ms <= seen_ms) {
            Some(lifetime_ms) => VmEnd::At(((vm.at_ms + lifetime_ms) / 1000) as i64),
            None => VmEnd::Running { seen_s: (seen_ms / 1000) as i64 },
        };
        let start_s = (vm.at_ms / 1000) as i64;
        VmLifetime { start_s, end, deployment: vm.batch.to_string(), features: features(vm, batches) }
    });
    let lifetimes = Lifetimes::new(past.collect());
    LifetimeTrial::new(&lifetimes).unwrap().learn_all().model
}

#[test]
#[expect(clippy::print_stderr, reason = "the figures")]
fn one_list_over_all_hosts_saves_six_percent_of_the_moves_on_azure() {
    let Some(arrivals) = azure() else { return };
    let first_ms = arrivals[0].at_ms;
    let last_ms = arrivals.last().unwrap().at_ms;
    let cut_ms = first_ms + (last_ms - first_ms) / 2;
    let mut batches = BTreeMap::new();
    arrivals.iter().for_each(|vm| *batches.entry(vm.batch).or_default() += 1);
    let model = learnt(&arrivals, &batches, cut_ms);

    let pool = |quarter: u64, told: Knowledge| {
        let mine = arrivals.iter().filter(|vm| SplitMix64::first(vm.batch) % 4 == quarter);
        let vms = mine.map(|vm| {
            let end = match told {
                Knowledge::Oracle => {
                    ExpectedEnd::At(Instant::from_millis(vm.at_ms + vm.lifetime_ms.unwrap_or(28 * DAY_MS)))
                }
                Knowledge::Curves => {
                    let curve = model.curve(&features(vm, &batches), (vm.at_ms / 1000) as i64);
                    ExpectedEnd::Curve(curve)
                }
            };
            let (cores, gb) = (vm.resources.cores.cores() as u16, vm.resources.memory.gb());
            let request = request(vm.id, cores, gb, vm.batch, Some(end));
            (vm.at_ms, RequestedVm { request, lifetime_ms: vm.lifetime_ms, index: vm.line })
        });
        play(vms.collect(), 160, model.curves().clone(), cut_ms)
    };

    let mut sums: BTreeMap<&str, Vec<LarsRow>> = BTreeMap::new();
    for told in ["oracle", "curves"] {
        for quarter in 0..4 {
            let told_as = if told == "oracle" { Knowledge::Oracle } else { Knowledge::Curves };
            let made = pool(quarter, told_as);
            show(&format!("azure {quarter} {told}"), &made);
            sums.entry(told).or_default().extend(made.0);
        }
    }
    let sum = |told: &str, n: usize, of: fn(&LarsRow) -> f64| -> f64 {
        sums[told].iter().filter(|row| row.order == ORDERS[n]).map(of).sum()
    };
    let moved = |told, n| sum(told, n, |row| row.moved as f64);
    let saved = |told, n| 100.0 * (1.0 - moved(told, n) / moved(told, 0));
    for (told, n) in [("oracle", 0), ("oracle", 1), ("oracle", 2), ("curves", 1), ("curves", 2)] {
        eprintln!(
            "azure {told} {:?}: moved {} of {}, saved {:.2} %, host free {:.2} h, last {:.2} h",
            ORDERS[n],
            moved(told, n),
            sum(told, n, |row| row.scheduled as f64),
            saved(told, n),
            sum(told, n, |row| row.host_free_s) / 4.0 / 3600.0,
            sum(told, n, |row| row.last_free_s) / 4.0 / 3600.0,
        );
    }
    assert!(saved("oracle", 2) >= 6.0, "global, oracle: {}", saved("oracle", 2));
    assert!(saved("oracle", 1) >= 0.6, "per host, oracle: {}", saved("oracle", 1));
    assert!(saved("curves", 2) >= 2.5, "global, curves: {}", saved("curves", 2));
    assert!(saved("curves", 1) > 0.0, "per host, curves: {}", saved("curves", 1));
}
