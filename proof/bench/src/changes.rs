//! `ballast-lab bench place`: how many VMs the real daemon places and takes away a second, each on disk when it is
//! answered, and how fast.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::net::UnixStream;

use super::load::{self, LoadArgs, Way, ask, bare, bench, post};
use super::score::{AT_ONCE, CHASSIS_HOSTS, cores, inventory, vm};
use ballast_cli::common::terminal::{say, tell};

/// Different VMs of a connection.
const OWN: u32 = 500;
/// How full the servers are, in percent of their cores.
const FULL: u32 = 75;

#[derive(Args, Debug)]
pub struct ChangesArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// Chassis of 12 servers, as large as three quarters of them hold the VMs
    #[arg(long, value_name = "N", default_value_t = 60,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    chassis: u32,
    /// VMs that are there all the time
    #[arg(long, value_name = "N", default_value_t = 100_000,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    vms: u32,
}

#[derive(Debug, Serialize)]
struct Measured {
    servers: u32,
    vms: u32,
    #[serde(flatten)]
    load: load::Measured,
}

pub(crate) fn run(args: &ChangesArgs) -> anyhow::Result<ExitCode> {
    let (vms, servers) = (args.vms, args.chassis * CHASSIS_HOSTS);
    let taken: u64 = (0..vms).map(|n| u64::from(cores(n))).sum();
    let room = (taken * 100).div_ceil(u64::from(FULL * servers)).max(16);
    let hosts = |folder: &Path| inventory(folder, args.chassis, room as u32, 4 * room as u32);

    let fill = async |stream: &mut UnixStream| {
        tell(&format!("placing {vms} VMs"));
        for first in (0..vms).step_by(AT_ONCE as usize) {
            let some: Vec<Value> = (first..vms.min(first + AT_ONCE)).map(vm).collect();
            ask(stream, &post("/v1/place", &json!({ "vms": some }).to_string()), &mut vec![]).await?;
        }

        Ok(())
    };

    // Each VM that comes goes again, so their number stays.
    let changes = |client: u16| -> Vec<Vec<u8>> {
        let own = (0..OWN).map(|n| vm(u32::MAX - u32::from(client) * OWN - n));
        let change = |vm: Value| {
            let path = format!("/v1/vms/{}", vm["vm_id"].as_str().unwrap_or_default());
            [post("/v1/place", &vm.to_string()), bare("DELETE", &path)]
        };

        own.flat_map(change).collect()
    };

    let load = bench(&args.load, Way::Socket, hosts, fill, changes)?;
    let text = load.text(&format!("half of them placements, {vms} VMs on {servers} servers"));
    let measured = Measured { servers, vms, load };
    say(&if args.load.json { serde_json::to_string_pretty(&measured)? } else { text })?;

    Ok(ExitCode::SUCCESS)
}
