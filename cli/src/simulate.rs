//! `ballast simulate`: a recorded trace of VMs, placed on a cluster in virtual time.

mod lifetimes;
mod plan;
mod policy;
mod power_down;
mod tape;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use ballast_placement::{ChassisId, Cluster, Host, MemoryKb, MilliCores, Resources, Ties};
use ballast_sim::cluster::{
    Arrivals, Batches, Copies, Drained, Outcome, PowerDownOutcome, Reason, Recorded, replay,
};
use clap::Args;
use nix::time::ClockId;
use serde::Serialize;

use crate::common::numbers::positive;
use crate::common::table;
use crate::common::terminal::answer;
use lifetimes::LifetimesArg;
use plan::{Named, PlanArgs, drained_line};
use policy::{PolicyArg, alpha};
use power_down::{PowerDownArgs, Watchers};
use tape::Tape;

#[derive(Args, Debug)]
pub(crate) struct SimulateArgs {
    /// The trace (CSV, also .zst): `vm_id,batch_id,arrival_s,cores,mem_gb,dur_hi_s,censored`
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Servers in the cluster
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    servers: u32,
    /// Cores of each server
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    host_cores: u16,
    /// Memory of each, in GB as the trace has them
    #[arg(long, value_name = "GB", allow_negative_numbers = true, value_parser = memory)]
    host_mem_gb: MemoryKb,
    /// How a host is chosen
    #[arg(long, value_enum, default_value_t = PolicyArg::BestFit)]
    policy: PolicyArg,
    /// What the scheduler is told of when VMs end: nothing; the truth, where a VM that the trace ends before counts as living
    /// for 28 days; the truth for this share of the VMs, and far from that for the others; what a model of `ballast train
    /// --target lifetime` says
    #[arg(long, value_name = "none|oracle|noisy:ACCURACY[:SEED]|model:FILE", default_value = "none")]
    lifetimes: LifetimesArg,
    /// With `power`: weight of the chassis score against the server score, from 0 to 1. It changes nothing while the
    /// trace says neither class nor P95 of any VM, as those that are read do
    #[arg(long, value_name = "F", default_value = "0.8", allow_negative_numbers = true, value_parser = alpha)]
    alpha: ballast_placement::rules::Alpha,
    /// Who wins among hosts that the policy does not tell apart: the lowest id, or the lowest hash of a seed and the id
    #[arg(long, value_name = "id|hash[:SEED]", default_value_t = Ties::HASH)]
    ties: Ties,
    /// With `power`: hosts of one chassis
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..))]
    chassis_hosts: u32,
    /// VMs come for so many seconds from the first arrival, inclusive [default: all]
    #[arg(long, value_name = "S", allow_negative_numbers = true, value_parser = seconds)]
    until_s: Option<u64>,
    /// Copies of the trace, played at the same time with ids of their own
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeat: u32,
    /// Place the VMs of a batch all or none, instead of one by one
    #[arg(long)]
    atomic_batches: bool,
    #[command(flatten)]
    plan: PlanArgs,
    #[command(flatten)]
    power_down: PowerDownArgs,
    /// Write a line `vm_id,host` for every VM in the order of decisions; no host where it failed
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print one JSON object, alone on stdout
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Printed {
    placed: u64,
    failed: u64,
    empty_host_ratio: f64,
    packing_density: f64,
    bound_empty_ratio: f64,
    cpu_s: f64,
    vms_per_cpu_s: f64,
    placement_hash: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    failures: BTreeMap<Reason, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    phases: Option<Vec<Named>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drained: Option<Drained>,
    #[serde(skip_serializing_if = "Option::is_none")]
    power_down: Option<PowerDownOutcome>,
}

pub(crate) fn run(args: &SimulateArgs) -> anyhow::Result<ExitCode> {
    // What cannot be written is said before the work.
    let tape = Tape::new(args.output.as_deref())?;
    let mut watchers = Watchers { tape, power: args.power_down.probe()? };
    let until_ms = args.until_s.map(|s| s.saturating_mul(1000));
    let source = Recorded::new(args.arrivals()?, until_ms, args.copies(until_ms)?)?;
    let weighs = args.plan.last_policy().unwrap_or(args.policy).weighs();
    let (lifetimes, curves) = args.lifetimes.source(weighs, || args.arrivals_again("--lifetimes noisy"))?;
    let mut source = source.with_lifetimes(lifetimes);
    let mut scheduler =
        args.policy.policy(args.alpha, args.ties).scheduler(args.cluster().with_curves(curves));

    if let Some(reserve) = args.plan.admission() {
        scheduler.add_admission(Box::new(reserve));
    }
    let batches = if args.atomic_batches { Batches::Atomic } else { Batches::Split };

    let plan = args.plan.plan(args.alpha, args.ties);
    let outcome = replay(&mut source, &mut scheduler, batches, &plan, &mut watchers)?;
    let placement_hash = watchers.tape.finish()?;
    let cpu_s = cpu_s()?;
    let Outcome { placed, failed, empty_host_ratio, packing_density, bound_empty_ratio, .. } = outcome;
    let printed = Printed {
        placed,
        failed,
        empty_host_ratio,
        packing_density,
        bound_empty_ratio,
        cpu_s,
        vms_per_cpu_s: (placed + failed) as f64 / cpu_s,
        placement_hash,
        phases: args.plan.named(args.policy, &outcome.phases),
        drained: args.plan.drained(outcome.drained),
        power_down: watchers.power.map(|power| power.outcome()),
        failures: outcome.failures,
    };

    answer(args.json, &printed, || printed.text(args.servers))?;
    Ok(ExitCode::SUCCESS)
}

impl Printed {
    fn text(&self, hosts: u32) -> String {
        let Self { placed, failed, .. } = self;
        let reasons = self.failures.iter();
        let reasons = reasons.map(|(reason, n)| format!("{n} for {}", policy::words(*reason)));
        let reasons = reasons.collect::<Vec<_>>().join(", ");
        let colon = if reasons.is_empty() { "" } else { ": " };
        let mut lines = vec![
            format!(
                "{} VMs on {hosts} hosts: {placed} placed, {failed} failed{colon}{reasons}",
                placed + failed
            ),
            format!(
                "hosts without a VM {:.2} % of at most {:.2} %, cores in use on the others {:.2} %",
                self.empty_host_ratio * 100.0,
                self.bound_empty_ratio * 100.0,
                self.packing_density * 100.0
            ),
        ];

        lines.extend(self.phases.iter().flatten().map(Named::line));
        lines.extend(self.drained.as_ref().map(drained_line));
        lines.extend(self.power_down.as_ref().map(power_down::line));
        lines.push(format!("{:.3} s of CPU time, {:.0} VMs a second", self.cpu_s, self.vms_per_cpu_s));

        lines.push(format!("placements SHA-256 {}", self.placement_hash));

        lines.join("\n")
    }
}

impl SimulateArgs {
    fn cluster(&self) -> Cluster {
        let cores = MilliCores::from_cores(self.host_cores);
        let capacity = Resources::new(cores, self.host_mem_gb);
        let hosts = (0..self.servers).map(|n| Host::new(ChassisId(n / self.chassis_hosts), capacity));
        Cluster::new(&hosts.collect::<Vec<_>>())
    }

    fn arrivals(&self) -> anyhow::Result<Arrivals<'static>> {
        let name = self.trace.display().to_string();
        let file = table::plain(&self.trace).with_context(|| format!("--trace {name}"))?;
        Ok(Arrivals::new(file, &name)?)
    }

    /// The file is read once more where its largest ids are needed.
    fn copies(&self, until_ms: Option<u64>) -> anyhow::Result<Copies> {
        let repeat = self.repeat;
        if repeat == 1 {
            return Ok(Copies::ONE);
        }
        let arrivals = self.arrivals_again(&format!("--repeat {repeat}"))?;
        Ok(Copies::of(arrivals, until_ms, repeat)?)
    }

    fn arrivals_again(&self, option: &str) -> anyhow::Result<Arrivals<'static>> {
        if !self.trace.is_file() {
            let trace = self.trace.display();
            bail!("{option}: the trace is read twice, so it must be a file, and {trace} is a pipe");
        }
        self.arrivals()
    }
}

/// What this process has used so far, user and system.
fn cpu_s() -> anyhow::Result<f64> {
    let used = ClockId::CLOCK_PROCESS_CPUTIME_ID.now()?;
    Ok(std::time::Duration::from(used).as_secs_f64())
}

fn memory(text: &str) -> Result<MemoryKb, String> {
    let gb = positive(text)?;
    MemoryKb::from_gb(gb).ok_or_else(|| "at most 100000 GB".to_owned())
}

fn seconds(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "a whole number of seconds, 0 or above, is needed".to_owned())
}
