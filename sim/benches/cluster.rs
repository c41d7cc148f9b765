//! How long a month of Table I takes with all rules, on one thread.
//!
//! `cargo bench -p ballast-sim --bench cluster` prints the time to make 30 days of load for 720 servers, and to play
//! them: best fit alone, and best fit and the power rule. Before that a recorded trace is played of which all VMs stay, to say
//! how many bytes each takes.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::io::{self, Read};
use std::time::Instant as Clock;

use ballast_placement::{ChassisId, Cluster, Host, MemoryKb, MilliCores, Policy, Resources, Ties};
use ballast_sim::cluster::{
    Arm, Arrivals, Batches, Copies, Plan, Probe, Recorded, Setup, Site, Workload, replay, run,
};
use ballast_types::PowerModel;

/// A little after the hash table of the scheduler has grown: near the worst case.
const LIVE: u64 = 1_000_000;
const HOSTS: u32 = 20_000;

fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Clock::now();
    let result = work();
    println!("{what:58} {:8.3} s", start.elapsed().as_secs_f64());
    result
}

/// A trace that is made while it is read: 20 VMs a second, that all live for weeks.
struct SyntheticTrace {
    row: u64,
    text: io::Cursor<String>,
}

impl Read for SyntheticTrace {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.text.read(buffer)?;
        if count > 0 || self.row == LIVE {
            return Ok(count);
        }
        let (row, at_ms) = (self.row, self.row * 50);
        let life_s = 1_209_600 + row.wrapping_mul(7919) % 1_209_600;
        let line = format!("{row},{},{}.{:03},1,4,{life_s},0\n", row / 3, at_ms / 1000, at_ms % 1000);
        self.text = io::Cursor::new(line);
        self.row += 1;
        self.text.read(buffer)
    }
}

struct Nobody;

impl Probe for Nobody {}

/// The most memory that this process has had, in bytes.
fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(1024 * peak.trim().strip_suffix(" kB")?.parse::<u64>().ok()?)
}

fn recorded() {
    let capacity = Resources::new(MilliCores::from_cores(64), MemoryKb::from_gb(256.0).unwrap_or_default());
    let hosts = vec![Host::new(ChassisId(0), capacity); HOSTS as usize];
    let mut scheduler =
        Policy { ties: Ties::Id, anti_affinity: false, ..Policy::BEST_FIT }.scheduler(Cluster::new(&hosts));
    let header = "vm_id,batch_id,arrival_s,cores,mem_gb,dur_hi_s,censored\n".to_owned();
    let trace = SyntheticTrace { row: 0, text: io::Cursor::new(header) };

    let before = peak_bytes();
    let outcome = timed("1,000,000 recorded VMs that all stay, on 20,000 hosts", || {
        let arrivals = Arrivals::new(trace, "made").expect("a header");
        let mut source = Recorded::new(arrivals, None, Copies::ONE).expect("a VM");
        replay(&mut source, &mut scheduler, Batches::Split, &Plan::default(), &mut Nobody)
    });
    assert_eq!(outcome.expect("a sound trace").placed, LIVE, "there is room for all");

    if let (Some(before), Some(after)) = (before, peak_bytes()) {
        println!("{} bytes of memory at most for each", (after - before) / LIVE);
    }
}

fn main() {
    recorded();

    let site = Site { chassis: 60, servers: 12, cores: 40, model: PowerModel::PAPER, load: 0.65, days: 30 };

    let load = timed("30 days of Table I for 720 servers: made", || {
        Workload::generate(1, 28_800, site.load, site.days)
    });
    let vms: usize = load.deployments.iter().map(|deployment| deployment.vms.len()).sum();
    println!("{} deployments, {vms} VMs, {} residents", load.deployments.len(), load.residents.len());

    let played = |what: &str, arm: Arm, policy| {
        let setup = Setup { prediction: arm.prediction(), policy };
        let month = timed(what, || run(&site, &setup, &load, Some(2400.0)))
            .expect("every VM has a host that is large enough");
        assert_eq!(month.requests as usize, load.deployments.len(), "every deployment is asked for");
    };

    played("played with best fit alone", Arm::None, Policy::BEST_FIT);
    played("played with all rules", Arm::Model, Policy::POWER);
}
