//! The agent's own end, wanted or not.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ballast_types::wire::Level;
use serde_json::Value;

use crate::lab::{Lab, PATIENCE};
use crate::machine::CPUS;
use crate::plant::{FLOOR, Sample, TOP};
use crate::report::Notes;

/// Agents killed at random instants.
const KILLS: u32 = 20;
/// An instant lies at most this long after an alert: the floor, and the first steps back up.
const KILL_WITHIN_MS: u64 = 1500;

pub(super) fn killed(lab: &mut Lab, notes: &mut Notes) -> anyhow::Result<()> {
    lab.fresh()?;
    lab.throttle(Level::Emergency, Some(205))?;
    let pid = lab.agent_pid()?;
    let dead = Instant::now();
    lab.shell.run(&format!("kill -9 {pid}"))?;
    let status = lab.status_when("an agent that answers again", |_| true)?;
    notes.put_ms("killed_to_answer", dead.elapsed());
    if lab.agent_pid()? == pid {
        bail!("process {pid} was not killed");
    }
    if status.report.min_khz.is_none() {
        bail!("what was capped was not adopted: {:?}", status.report);
    }
    for sample in lab.plant.since(dead) {
        if lab.low.iter().any(|cpu| sample.registers[*cpu] < FLOOR) {
            bail!("raised while the agent was dead: {:?}", sample.registers);
        }
    }
    notes.put_ms("release", lab.release()?);
    notes.put_ms("killed_to_released", dead.elapsed());
    Ok(())
}

pub(super) fn kill_random(lab: &mut Lab, notes: &mut Notes) -> anyhow::Result<()> {
    let mut seed = 7_u64;
    let mut restored = 0;
    let mut times = vec![];
    for n in 0..KILLS {
        lab.fresh()?;
        // Some files are Ballast's as long as it runs.
        let running = lab.dump()?;
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let delay = Duration::from_millis((seed >> 33) % KILL_WITHIN_MS);
        let pid = lab.agent_pid()?;
        let cap = if n % 2 == 0 { 205 } else { 225 };
        lab.agent.alert(Level::Cap, Some(cap))?;
        thread::sleep(delay);
        let dead = Instant::now();
        lab.shell.run(&format!("kill -9 {pid}"))?;
        lab.status_when("an agent that answers again", |_| true)?;
        lab.release().with_context(|| format!("kill {n}, {delay:?} after the alert"))?;
        times.push(dead.elapsed());
        let now = lab.dump()?;
        if now != running {
            bail!("kill {n}, {delay:?} after the alert: {now:?} instead of {running:?}");
        }
        restored += 1;
    }
    notes.put("restored", f64::from(restored));
    notes.put_spread("killed_to_released", &mut times);
    Ok(())
}

/// What `ballast check` says of this machine; its write test puts everything back.
pub(super) fn check(lab: &mut Lab, _: &mut Notes) -> anyhow::Result<()> {
    lab.shell.run("systemctl stop ballast-agent")?;
    let said = lab.shell.try_run("ballast check --json --seconds 3 --write-test", PATIENCE)?;
    // 1: not everything is there, such as RAPL.
    if !(0..=1).contains(&said.code) {
        bail!("exit code {}: {}", said.code, said.text);
    }
    let from = said.text.find('{').context("no JSON")?;
    let report: Value = serde_json::from_str(&said.text[from..]).context("JSON")?;
    let functions = report["functions"].as_array().context("functions")?;
    for id in ["pstate", "meter", "core_groups"] {
        let function = functions.iter().find(|function| function["id"] == id);
        match function.and_then(|function| function["state"].as_str()) {
            Some("works" | "degraded") => {}
            _ => bail!("{id}: {function:?}"),
        }
    }
    if !report.to_string().contains("acpi-cpufreq") {
        bail!("the driver is not named: {report}");
    }
    let written = report["write_test"].as_array().context("write_test")?;
    match written.iter().find(|written| !written["error"].is_null()) {
        _ if written.is_empty() => bail!("nothing was written"),
        Some(failed) => bail!("{failed}"),
        None => lab.restored(),
    }
}

/// The agent dies and cannot come back: its config is refused.
pub(super) fn orphan(lab: &mut Lab, notes: &mut Notes) -> anyhow::Result<()> {
    lab.fresh()?;
    lab.throttle(Level::Emergency, Some(205))?;
    let pid = lab.agent_pid()?;
    lab.shell.run("sed -i '1i orphan_hold_s = 5\\nno_such_key = 1' /etc/ballast/agent.toml")?;
    let dead = Instant::now();
    lab.shell.run(&format!("kill -9 {pid}"))?;
    let all = |sample: &Sample| sample.at > dead && sample.registers == [TOP; CPUS];
    let released = lab.plant.wait(&"released without an agent", dead, PATIENCE, all)?;
    notes.put_ms("killed_to_released", released.at - dead);
    let alone = lab.shell.try_run("systemctl is-active ballast-agent", PATIENCE)?.code != 0;
    lab.with_config(&[], "", |_| Ok(()))?;
    if !alone {
        bail!("the agent ran with a config that must be refused");
    }
    lab.fresh()
}

pub(super) fn stop(lab: &mut Lab, notes: &mut Notes) -> anyhow::Result<()> {
    lab.fresh()?;
    lab.throttle(Level::Emergency, Some(205))?;
    let stopping = Instant::now();
    lab.shell.run("systemctl stop ballast-agent")?;
    notes.put_ms("stop", stopping.elapsed());
    lab.restored().context("after systemctl stop")?;
    let result = lab.shell.run("systemctl show -p Result --value ballast-agent")?;
    if result.trim() != "success" {
        bail!("systemctl stop ended with {result}");
    }
    Ok(())
}

pub(super) fn purge(lab: &mut Lab, notes: &mut Notes) -> anyhow::Result<()> {
    lab.fresh()?;
    lab.throttle(Level::Emergency, Some(205))?;
    let purging = Instant::now();
    lab.shell.run("dpkg --purge ballast ballast-agent")?;
    notes.put_ms("purge", purging.elapsed());
    lab.restored().context("after dpkg --purge")?;
    let left: Vec<_> = lab.files()?.difference(&lab.without).cloned().collect();
    if !left.is_empty() {
        bail!("left behind: {}", left.join(" "));
    }
    let failed = lab.shell.run("systemctl list-units --all --no-legend 'ballast*'")?;
    if !failed.trim().is_empty() {
        bail!("systemd still knows {failed}");
    }
    Ok(())
}
