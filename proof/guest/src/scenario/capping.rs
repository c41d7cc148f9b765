//! Caps and releases.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ballast_types::wire::Level;

use crate::guest::{Guest, PATIENCE};
use crate::plant::{FLOOR, Sample, TOP};
use crate::report::Notes;

/// Below the usual load's 270 W and above what its floor draws, 200 W.
pub(super) const CAP_W: i64 = 225;

pub(super) fn cap(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    guest.fresh()?;
    let began = Instant::now();
    notes.put_ms("alert_to_floor", guest.throttle(Level::Cap, Some(CAP_W))?);
    let under = |sample: &Sample| sample.watts <= CAP_W as f64;
    let met = guest.plant.wait(&"the draw under the cap", began, PATIENCE, under)?;
    notes.put_ms("alert_to_under_cap", met.at - began);

    // Frequency comes back as far as it fits.
    let low = guest.low.clone();
    let above = |sample: &Sample| low.iter().any(|cpu| sample.registers[*cpu] < FLOOR);
    let met_at = met.at;
    let raised = guest
        .plant
        .wait(&"frequency given back", met_at, PATIENCE, move |sample| sample.at > met_at && above(sample))?;
    notes.put_ms("under_cap_to_first_step_up", raised.at - met_at);
    let used = |sample: &Sample| sample.at > met_at && sample.watts >= CAP_W as f64 * 0.9;
    guest.plant.wait(&"most of the cap used", met_at, PATIENCE, used)?;
    thread::sleep(Duration::from_secs(2));
    let samples = guest.plant.since(met_at);
    let highest = samples.iter().map(|sample| sample.watts).fold(0.0, f64::max);
    notes.put("highest_while_capped_w", highest);

    if highest > CAP_W as f64 {
        bail!("{highest:.1} W under a cap of {CAP_W} W");
    }
    let last = samples.last().context("samples")?;
    notes.put("settled_w", last.watts);
    notes.put_ms("release", guest.release()?);

    guest.high_untouched(began)
}

pub(super) fn schedutil(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    guest.fresh()?;
    guest.governor("schedutil")?;
    let result = under_schedutil(guest, notes);
    guest.governor("performance")?;
    result
}

fn under_schedutil(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    // Work for every CPU of the guest, so that the governor wants the highest p-state.
    guest.shell.run(
        "for cpu in 0 1 2 3; do systemd-run -q --unit=busy$cpu -p CPUAffinity=$cpu \
         -p RuntimeMaxSec=300 sh -c 'while :; do :; done'; done",
    )?;

    let busy = Instant::now();
    let low = guest.low.clone();
    let wants = |sample: &Sample| low.iter().all(|cpu| sample.registers[*cpu] == TOP);
    guest.plant.wait(&"the governor at the highest p-state", busy, PATIENCE, wants)?;
    notes.put_ms("alert_to_floor", guest.throttle(Level::Emergency, Some(CAP_W))?);
    let capped = Instant::now();
    thread::sleep(Duration::from_secs(2));

    for sample in guest.plant.since(capped) {
        if low.iter().any(|cpu| sample.registers[*cpu] < FLOOR) {
            bail!("the governor went above the cap: {:?}", sample.registers);
        }
    }

    let from = Instant::now();
    guest.agent.alert(Level::Watch, None)?;
    let up = guest.plant.wait(&"the governor at the highest p-state again", from, PATIENCE, wants)?;
    notes.put_ms("release", up.at - from);

    guest.shell.run("systemctl stop busy0 busy1 busy2 busy3").map(drop)
}

pub(super) fn groups(guest: &mut Guest, _: &mut Notes) -> anyhow::Result<()> {
    guest.fresh()?;
    let sets = "grep -H '' /sys/fs/cgroup/system.slice/guest-vms.service/*-1/cpuset.cpus.effective";
    let before = guest.shell.run(sets)?;
    guest.shell.run("systemctl daemon-reload")?;
    guest.shell.run("systemd-run -q --wait -p AllowedCPUs=1 true")?;
    let after = guest.shell.run(sets)?;
    if before != after {
        bail!("CPU sets changed from\n{before}to\n{after}");
    }
    Ok(())
}

/// VMs that are systemd's own services, bound by `AllowedCPUs` over D-Bus.
pub(super) fn systemd(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    for vm in ["web-1", "batch-1"] {
        guest.shell.run(&format!("systemd-run -q --unit={vm} sleep infinity"))?;
    }
    let groups =
        [("guest-vms.service/web-1", "web-1.service"), ("guest-vms.service/batch-1", "batch-1.service")];

    let usual = (guest.low.clone(), guest.high.clone());
    let result = guest.with_config(&groups, "[groups]\nby = \"systemd\"\n", |guest| bound(guest, notes));
    (guest.low, guest.high) = usual;

    // Back among all CPUs, by systemd's own word too.
    for vm in ["web-1", "batch-1"] {
        let cpus = guest.cpus_of(&format!("{vm}.service"));
        guest.shell.run(&format!("systemctl stop {vm}"))?;
        if result.is_ok() && cpus? != [0, 1, 2, 3] {
            bail!("{vm} is still bound after the agent's end");
        }
    }

    result
}

fn bound(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    guest.status_when("VMs that are bound", |status| status.report.low_cores == 2)?;
    let sets = |guest: &mut Guest| -> anyhow::Result<_> {
        Ok((guest.cpus_of("batch-1.service")?, guest.cpus_of("web-1.service")?))
    };
    (guest.low, guest.high) = sets(guest)?;

    if guest.low.len() != 2 || guest.low.iter().any(|cpu| guest.high.contains(cpu)) {
        bail!("two CPUs each: batch-1 has {:?}, web-1 {:?}", guest.low, guest.high);
    }
    let allowed = guest.shell.run("systemctl show --property AllowedCPUs --value batch-1")?;

    if allowed.trim().is_empty() {
        bail!("systemd knows of no AllowedCPUs of batch-1");
    }
    guest.shell.run("systemctl daemon-reload")?;
    let after = sets(guest)?;

    if after != (guest.low.clone(), guest.high.clone()) {
        bail!("after systemctl daemon-reload the CPUs are {after:?}");
    }
    guest.fresh()?;
    let began = Instant::now();
    notes.put_ms("alert_to_floor", guest.throttle(Level::Emergency, Some(CAP_W))?);

    guest.high_untouched(began)
}
