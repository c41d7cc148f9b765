//! The agent's own end, wanted or not.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ballast_types::wire::{AgentStatus, Level};
use serde_json::Value;

use crate::lab::{Lab, PATIENCE, differences};
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
    adopted(lab, &status, dead)?;
    notes.put_ms("release", lab.release()?);
    notes.put_ms("killed_to_released", dead.elapsed());
    Ok(())
}

/// Fails if the agent that came back does not know what was capped, or if anything was raised since `from`.
fn adopted(lab: &Lab, status: &AgentStatus, from: Instant) -> anyhow::Result<()> {
    if status.report.min_khz.is_none() {
        bail!("what was capped was not adopted: {:?}", status.report);
    }
    for sample in lab.plant.since(from) {
        if lab.low.iter().any(|cpu| sample.registers[*cpu] < FLOOR) {
            bail!("raised while the agent was dead: {:?}", sample.registers);
        }
    }
    Ok(())
}

/// The agent stands still at the floor: the watchdog kills it, and the next one adopts.
pub(super) fn hung(lab: &mut Lab, notes: &mut Notes) -> anyhow::Result<()> {
    lab.fresh()?;
    lab.throttle(Level::Emergency, Some(205))?;
    let pid = lab.agent_pid()?;
    let hung = Instant::now();
    lab.shell.run(&format!("kill -STOP {pid}"))?;

    while matches!(lab.agent_pid(), Ok(now) if now == pid) {
        if hung.elapsed() > PATIENCE {
            bail!("process {pid} stands still and is not killed");
        }
        thread::sleep(Duration::from_millis(100));
    }

    notes.put_ms("hung_to_killed", hung.elapsed());
    let status = lab.status_when("an agent that answers again", |_| true)?;
    notes.put_ms("hung_to_answer", hung.elapsed());
    adopted(lab, &status, hung)?;
    let said = lab.shell.run("journalctl -b -o cat -u ballast-agent")?;

    if !said.contains("Watchdog timeout") {
        bail!("it was not the watchdog that killed process {pid}: {said}");
    }
    notes.put_ms("release", lab.release()?);
    notes.put_ms("hung_to_released", hung.elapsed());

    Ok(())
}

/// What LimitRTPRIO and LimitMEMLOCK of the shipped unit are for.
pub(super) fn realtime(lab: &mut Lab, notes: &mut Notes) -> anyhow::Result<()> {
    lab.fresh()?;
    let pid = lab.agent_pid()?;

    // rt_priority and policy of every thread (proc_pid_stat(5): fields 40 and 41; the name may hold spaces).
    let threads = lab.shell.run(&format!(
        "for task in /proc/{pid}/task/*; do \
         echo \"$(sed 's/.*) //' $task/stat | cut -d' ' -f38,39) $(cat $task/comm)\"; done"
    ))?;

    if !threads.lines().any(|line| line == "10 1 control") {
        bail!("the control thread is not SCHED_FIFO at 10: {threads}");
    }
    let others = threads.lines().filter(|line| !line.ends_with(" control"));

    if let Some(other) = others.clone().find(|line| !line.starts_with("0 0 ")) {
        bail!("another thread is not a normal one: {other}");
    }
    notes.put("normal_threads", others.count() as f64);
    let locked = lab.shell.run(&format!("awk '/VmLck/ {{print $2}}' /proc/{pid}/status"))?;
    let locked: f64 = locked.trim().parse().context("VmLck")?;
    notes.put("locked_kib", locked);

    if locked == 0.0 {
        bail!("no memory is locked");
    }
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
        let wrong = differences(&running, &now);

        if !wrong.is_empty() {
            bail!("kill {n}, {delay:?} after the alert: {}", wrong.join("; "));
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
    left_alone(lab, notes)
}

/// The same, and what shall arm the release hangs and is killed as well.
pub(super) fn orphan_unarmed(lab: &mut Lab, notes: &mut Notes) -> anyhow::Result<()> {
    let folder = "/run/systemd/system/ballast-agent.service.d";
    lab.shell.run(&format!(
        "mkdir -p {folder} && printf '[Service]\\nTimeoutStopSec=1s\\nExecStopPost=\\nExecStopPost=sleep 999\\n' \
         >{folder}/hang.conf && systemctl daemon-reload"
    ))?;
    let done = left_alone(lab, notes);
    lab.shell.run(&format!("rm -r {folder} && systemctl daemon-reload"))?;
    done
}

fn left_alone(lab: &mut Lab, notes: &mut Notes) -> anyhow::Result<()> {
    lab.fresh()?;
    lab.throttle(Level::Emergency, Some(205))?;
    let pid = lab.agent_pid()?;
    lab.shell.run("sed -i '1i orphan_hold_s = 5\\nno_such_key = 1' /etc/ballast/agent.toml")?;
    let dead = Instant::now();
    lab.shell.run(&format!("kill -9 {pid}"))?;
    let all = |sample: &Sample| sample.at > dead && sample.registers == [TOP; CPUS];
    let released = lab.plant.wait(&"released without an agent", dead, PATIENCE, all);
    let alone = lab.shell.try_run("systemctl is-active ballast-agent", PATIENCE)?.code != 0;
    lab.with_config(&[], "", |_| Ok(()))?;
    notes.put_ms("killed_to_released", released?.at - dead);
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
