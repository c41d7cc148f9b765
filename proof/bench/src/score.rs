//! `ballast-lab bench score`: how many scores a second the real daemon gives over loopback, and how fast.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use ballast_types::SplitMix64;
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::net::UnixStream;

use super::load::{self, LoadArgs, Way, ask, bench, post};
use ballast_cli::common::terminal::say;

/// Servers of a chassis, and what each has: the paper's.
pub(super) const CHASSIS_HOSTS: u32 = 12;
const CORES: u32 = 40;
const MEMORY_GB: u32 = 160;
/// VMs that are placed at once while the cluster is filled.
pub(super) const AT_ONCE: u32 = 200;
const QUESTIONS: u32 = 256;

#[derive(Args, Debug)]
pub struct ScoreArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// Chassis of 12 servers
    #[arg(long, value_name = "N", default_value_t = 60,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    chassis: u32,
    /// Servers that every answer names and explains
    #[arg(long, value_name = "N", default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    top: u32,
    /// How full the servers are, in percent of their cores
    #[arg(long, value_name = "PERCENT", default_value_t = 75,
        value_parser = clap::value_parser!(u32).range(0..=90))]
    full: u32,
}

#[derive(Debug, Serialize)]
struct Measured {
    servers: u32,
    top: u32,
    full_percent: u32,
    #[serde(flatten)]
    load: load::Measured,
}

pub(crate) fn run(args: &ScoreArgs) -> anyhow::Result<ExitCode> {
    let (top, full_percent, servers) = (args.top, args.full, args.chassis * CHASSIS_HOSTS);
    let hosts = |folder: &Path| inventory(folder, args.chassis, CORES, MEMORY_GB);

    let fill = async |stream: &mut UnixStream| {
        let (goal, mut taken, mut n) = (servers * CORES * full_percent / 100, 0, 0);
        while taken < goal {
            let next = n + AT_ONCE;
            let vms: Vec<Value> = (n..next).map(vm).collect();
            taken += (n..next).map(cores).sum::<u32>();
            n = next;
            let request = post("/v1/place", &json!({ "vms": vms }).to_string());
            ask(stream, &request, &mut vec![]).await?;
        }

        Ok(())
    };

    let question = |n| {
        let mut vm = vm(u32::MAX - n);
        vm["top"] = json!(top);
        post("/v1/score", &vm.to_string())
    };

    let mut questions: Vec<Vec<u8>> = (0..QUESTIONS).map(question).collect();
    questions.extend_from_within(..);
    let from =
        |n: u16| questions[mix(n.into()) as usize % QUESTIONS as usize..][..QUESTIONS as usize].to_vec();
    let load = bench(&args.load, Way::Loopback, hosts, fill, from)?;
    let text = load.text(&format!("{top} of {servers} servers explained, {full_percent} % full"));
    let measured = Measured { servers, top, full_percent, load };
    say(&if args.load.json { serde_json::to_string_pretty(&measured)? } else { text })?;

    Ok(ExitCode::SUCCESS)
}

/// Writes the hosts of so many chassis, all alike, and gives the daemon's section that names the file.
pub(super) fn inventory(folder: &Path, chassis: u32, cores: u32, memory_gb: u32) -> anyhow::Result<String> {
    let file = folder.join("hosts.json");
    let host = json!({"name": format!("s[00001-{:05}]", chassis * CHASSIS_HOSTS),
        "chassis": format!("c[0001-{chassis:04}]"), "cores": cores, "memory_gb": memory_gb});
    fs::write(&file, json!({ "hosts": [host] }).to_string())?;
    Ok(format!("[inventory]\nfile = {file:?}\n"))
}

/// A number as good as random.
fn mix(n: u32) -> u64 {
    SplitMix64::first(u64::from(n))
}

pub(super) fn cores(n: u32) -> u32 {
    [1, 1, 1, 2, 2, 4, 4, 8][(mix(n) % 8) as usize]
}

/// A VM as small and as large as these are; its class and P95 are left to the model.
pub(super) fn vm(n: u32) -> Value {
    let chance = mix(n);
    let gb = [1.75, 3.5][(chance >> 8) as usize % 2] * f64::from(cores(n));
    json!({"vm_id": format!("vm-{n}"), "subscription": format!("sub-{:05}", chance >> 16 & 0x1FF),
        "cores": cores(n), "memory_gb": gb, "vm_type": "general"})
}
