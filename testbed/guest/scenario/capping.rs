//! Caps and releases.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ballast_types::wire::Level;

use crate::lab::{Lab, PATIENCE};
use crate::plant::{FLOOR, Sample, TOP};
use crate::report::Notes;

/// Below the usual load's 270 W and above what its floor draws, 200 W.
const CAP_W: i64 = 225;

pub(super) fn cap(lab: &mut Lab, notes: &mut Notes) -> anyhow::Result<()> {
    lab.fresh()?;
    let began = Instant::now();
    notes.put_ms("alert_to_floor", lab.throttle(Level::Cap, Some(CAP_W))?);
    let under = |sample: &Sample| sample.watts <= CAP_W as f64;
    let met = lab.plant.wait(&"the draw under the cap", began, PATIENCE, under)?;
    notes.put_ms("alert_to_under_cap", met.at - began);

    // Frequency comes back as far as it fits.
    let low = lab.low.clone();
    let above = |sample: &Sample| low.iter().any(|cpu| sample.registers[*cpu] < FLOOR);
    let met_at = met.at;
    let raised = lab
        .plant
        .wait(&"frequency given back", met_at, PATIENCE, move |sample| sample.at > met_at && above(sample))?;
    notes.put_ms("under_cap_to_first_step_up", raised.at - met_at);
    let used = |sample: &Sample| sample.at > met_at && sample.watts >= CAP_W as f64 * 0.9;
    lab.plant.wait(&"most of the cap used", met_at, PATIENCE, used)?;
    thread::sleep(Duration::from_secs(2));
    let samples = lab.plant.since(met_at);
    let highest = samples.iter().map(|sample| sample.watts).fold(0.0, f64::max);
    notes.put("highest_while_capped_w", highest);

    if highest > CAP_W as f64 {
        bail!("{highest:.1} W under a cap of {CAP_W} W");
    }
    let last = samples.last().context("samples")?;
    notes.put("settled_w", last.watts);
    notes.put_ms("release", lab.release()?);

    lab.high_untouched(began)
}

pub(super) fn schedutil(lab: &mut Lab, notes: &mut Notes) -> anyhow::Result<()> {
    lab.fresh()?;
    lab.governor("schedutil")?;
    let result = under_schedutil(lab, notes);
    lab.governor("performance")?;
    result
}

fn under_schedutil(lab: &mut Lab, notes: &mut Notes) -> anyhow::Result<()> {
    // Work for every CPU of the guest, so that the governor wants the highest p-state.
    lab.shell.run(
        "for cpu in 0 1 2 3; do systemd-run -q --unit=busy$cpu -p CPUAffinity=$cpu \
         -p RuntimeMaxSec=300 sh -c 'while :; do :; done'; done",
    )?;

    let busy = Instant::now();
    let low = lab.low.clone();
    let wants = |sample: &Sample| low.iter().all(|cpu| sample.registers[*cpu] == TOP);
    lab.plant.wait(&"the governor at the highest p-state", busy, PATIENCE, wants)?;
    notes.put_ms("alert_to_floor", lab.throttle(Level::Emergency, Some(CAP_W))?);
    let capped = Instant::now();
    thread::sleep(Duration::from_secs(2));

    for sample in lab.plant.since(capped) {
        if low.iter().any(|cpu| sample.registers[*cpu] < FLOOR) {
            bail!("the governor went above the cap: {:?}", sample.registers);
        }
    }

    let from = Instant::now();
    lab.agent.alert(Level::Watch, None)?;
    let up = lab.plant.wait(&"the governor at the highest p-state again", from, PATIENCE, wants)?;
    notes.put_ms("release", up.at - from);

    lab.shell.run("systemctl stop busy0 busy1 busy2 busy3").map(drop)
}

pub(super) fn groups(lab: &mut Lab, _: &mut Notes) -> anyhow::Result<()> {
    lab.fresh()?;
    let sets = "grep -H '' /sys/fs/cgroup/system.slice/guest-vms.service/*-1/cpuset.cpus.effective";
    let before = lab.shell.run(sets)?;
    lab.shell.run("systemctl daemon-reload")?;
    lab.shell.run("systemd-run -q --wait -p AllowedCPUs=1 true")?;
    let after = lab.shell.run(sets)?;
    if before != after {
        bail!("CPU sets changed from\n{before}to\n{after}");
    }
    Ok(())
}

/// VMs that are systemd's own services, bound by `AllowedCPUs` over D-Bus.
pub(super) fn systemd(lab: &mut Lab, notes: &mut Notes) -> anyhow::Result<()> {
    for vm in ["web-1", "batch-1"] {
        lab.shell.run(&format!("systemd-run -q --unit={vm} sleep infinity"))?;
    }
    let groups =
        [("guest-vms.service/web-1", "web-1.service"), ("guest-vms.service/batch-1", "batch-1.service")];

    let usual = (lab.low.clone(), lab.high.clone());
    let result = lab.with_config(&groups, "[groups]\nby = \"systemd\"\n", |lab| bound(lab, notes));
    (lab.low, lab.high) = usual;

    // Back among all CPUs, by systemd's own word too.
    for vm in ["web-1", "batch-1"] {
        let cpus = lab.cpus_of(&format!("{vm}.service"));
        lab.shell.run(&format!("systemctl stop {vm}"))?;
        if result.is_ok() && cpus? != [0, 1, 2, 3] {
            bail!("{vm} is still bound after the agent's end");
        }
    }

    result
}

fn bound(lab: &mut Lab, notes: &mut Notes) -> anyhow::Result<()> {
    lab.status_when("VMs that are bound", |status| status.report.low_cores == 2)?;
    let sets = |lab: &mut Lab| -> anyhow::Result<_> {
        Ok((lab.cpus_of("batch-1.service")?, lab.cpus_of("web-1.service")?))
    };
    (lab.low, lab.high) = sets(lab)?;

    if lab.low.len() != 2 || lab.low.iter().any(|cpu| lab.high.contains(cpu)) {
        bail!("two CPUs each: batch-1 has {:?}, web-1 {:?}", lab.low, lab.high);
    }
    let allowed = lab.shell.run("systemctl show --property AllowedCPUs --value batch-1")?;

    if allowed.trim().is_empty() {
        bail!("systemd knows of no AllowedCPUs of batch-1");
    }
    lab.shell.run("systemctl daemon-reload")?;
    let after = sets(lab)?;

    if after != (lab.low.clone(), lab.high.clone()) {
        bail!("after systemctl daemon-reload the CPUs are {after:?}");
    }
    lab.fresh()?;
    let began = Instant::now();
    notes.put_ms("alert_to_floor", lab.throttle(Level::Emergency, Some(CAP_W))?);

    lab.high_untouched(began)
}
