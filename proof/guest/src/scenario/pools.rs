//! VMs that share cores, held by two nested slices of systemd's.

use std::time::Instant;

use anyhow::{Context as _, bail};
use ballast_types::wire::Level;

use super::capping::CAP_W;
use crate::guest::{Guest, PATIENCE};
use crate::plant::{FLOOR, Sample, TOP};
use crate::report::Notes;

const VMS: &str = "[[vm]]\nid = \"web-1\"\nclass = \"user-facing\"\ncores = 2\n\
                   cgroup = \"system.slice/guest-vms.service/web-1\"\n\n\
                   [[vm]]\nid = \"batch-1\"\nclass = \"non-user-facing\"\ncores = 2\n\
                   cgroup = \"system.slice/guest-vms.service/batch-1\"\n";
/// Two VMs of two CPUs and four of one: twice what the guest has.
const POOLS: &str = "[groups]\nby = \"systemd\"\nrescan_ms = 500\n\
                     [[discover]]\npattern = \"machine.slice/machine-critical.slice/*.service\"\ncores = 2\n\
                     [[discover]]\npattern = \"machine.slice/machine-batch.slice/*.service\"\ncores = 1\n\
                     [pools]\nenabled = true\nstep_s = 1\n\
                     user_facing_slice = \"machine.slice/machine-critical.slice\"\n\
                     batch_slice = \"machine.slice/machine-batch.slice\"\n";

const BATCH: [&str; 4] = ["batch-a", "batch-b", "batch-c", "batch-d"];

/// Two classes of VMs in nested slices: batch is slowed in its pool, the pools follow their VMs, also while capped.
pub(super) fn slices(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    for vm in ["web-a", "web-b"] {
        begin(guest, vm, "critical")?;
    }
    for vm in BATCH {
        begin(guest, vm, "batch")?;
    }
    let usual = (guest.low.clone(), guest.high.clone());
    let result = guest.with_config(&[(VMS, "")], POOLS, |guest| capped(guest, notes));
    (guest.low, guest.high) = usual;
    let left = allowed(guest, "batch-a");
    for vm in ["web-a", "web-b", "web-c"].into_iter().chain(BATCH) {
        guest.shell.run(&format!("systemctl stop {vm} || true"))?;
    }
    // systemd keeps a slice that it has begun.
    guest.shell.run("systemctl stop machine-critical.slice machine-batch.slice machine.slice")?;
    result?;

    // Back among all CPUs by the end of the agent that bound it.
    let left = left?;
    if left != "0-3" {
        bail!("batch-a may run on {left} after the agent's end");
    }
    Ok(())
}

fn begin(guest: &mut Guest, vm: &str, slice: &str) -> anyhow::Result<()> {
    guest
        .shell
        .run(&format!("systemd-run -q --slice=machine-{slice}.slice --unit={vm} sleep infinity"))
        .map(drop)
}

/// The CPUs that a VM's process may run on, by the scheduler's word.
fn allowed(guest: &mut Guest, vm: &str) -> anyhow::Result<String> {
    let status = format!("/proc/$(systemctl show -p MainPID --value {vm})/status");
    let said = guest.shell.run(&format!("awk '/Cpus_allowed_list/ {{print $2}}' {status}"))?;
    Ok(said.trim().to_owned())
}

/// Waits until the VMs may run on these CPUs.
fn held(guest: &mut Guest, vms: &[(&str, &str)]) -> anyhow::Result<()> {
    let began = Instant::now();
    for (vm, cpus) in vms {
        loop {
            let is = allowed(guest, vm)?;
            if is == *cpus {
                break;
            }
            if began.elapsed() > PATIENCE {
                let log = guest.shell.run("journalctl -n 30 -u ballast-agent || true")?;
                bail!("{vm} may run on {is}, not on {cpus}\n{log}");
            }
        }
    }
    Ok(())
}

fn capped(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    held(guest, &[("web-a", "0-1"), ("batch-a", "2-3")])?;
    (guest.high, guest.low) = (vec![0, 1], vec![2, 3]);
    guest.fresh()?;
    let began = Instant::now();
    notes.put_ms("alert_to_floor", guest.throttle(Level::Emergency, Some(CAP_W))?);

    // One more user-facing VM: a core that is at its floor becomes theirs, and is free at once.
    begin(guest, "web-c", "critical")?;
    held(guest, &[("web-c", "0-2"), ("batch-a", "3")])?;
    let moved = |sample: &Sample| sample.registers[2] == TOP && sample.registers[3] >= FLOOR;
    guest.plant.wait(&"the core that moved is free", began, PATIENCE, moved)?;
    guest.high_untouched(began)?;

    guest.shell.run("systemctl daemon-reload")?;
    held(guest, &[("web-a", "0-2"), ("batch-a", "3")]).context("after systemctl daemon-reload")?;
    let status = guest.status_when("VMs in pools", |status| status.vms.len() == 7)?;
    if status.vms.iter().any(|vm| vm.shares_cores.is_none()) {
        bail!("not in pools: {:?}", status.vms);
    }
    Ok(())
}
