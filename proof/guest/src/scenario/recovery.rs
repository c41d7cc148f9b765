//! The agent's own end, wanted or not.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ballast_types::SplitMix64;
use ballast_types::wire::{AgentStatus, Level};
use serde_json::Value;

use crate::guest::{Guest, PATIENCE, differences};
use crate::machine::CPUS;
use crate::plant::{FLOOR, Sample, TOP};
use crate::report::Notes;

/// Agents killed at random instants, and those of a quick run.
const KILLS: [u32; 2] = [20, 5];
/// An instant lies at most this long after an alert: the floor, and the first steps back up.
const KILL_WITHIN_MS: u64 = 1500;

pub(super) fn killed(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    guest.fresh()?;
    guest.throttle(Level::Emergency, Some(205))?;
    let pid = guest.agent_pid()?;
    let dead = Instant::now();
    guest.shell.run(&format!("kill -9 {pid}"))?;
    let status = guest.status_when("an agent that answers again", |_| true)?;
    notes.put_ms("killed_to_answer", dead.elapsed());
    if guest.agent_pid()? == pid {
        bail!("process {pid} was not killed");
    }
    adopted(guest, &status, dead)?;
    notes.put_ms("release", guest.release()?);
    notes.put_ms("killed_to_released", dead.elapsed());
    Ok(())
}

/// Fails if the agent that came back does not know what was capped, or if anything was raised since `from`.
fn adopted(guest: &Guest, status: &AgentStatus, from: Instant) -> anyhow::Result<()> {
    if status.report.min_khz.is_none() {
        bail!("what was capped was not adopted: {:?}", status.report);
    }
    for sample in guest.plant.since(from) {
        if guest.low.iter().any(|cpu| sample.registers[*cpu] < FLOOR) {
            bail!("raised while the agent was dead: {:?}", sample.registers);
        }
    }
    Ok(())
}

/// The agent stands still at the floor: the watchdog kills it, and the next one adopts.
pub(super) fn hung(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    guest.fresh()?;
    guest.throttle(Level::Emergency, Some(205))?;
    let pid = guest.agent_pid()?;
    let hung = Instant::now();
    guest.shell.run(&format!("kill -STOP {pid}"))?;

    while matches!(guest.agent_pid(), Ok(now) if now == pid) {
        if hung.elapsed() > PATIENCE {
            bail!("process {pid} stands still and is not killed");
        }
        thread::sleep(Duration::from_millis(100));
    }

    notes.put_ms("hung_to_killed", hung.elapsed());
    let status = guest.status_when("an agent that answers again", |_| true)?;
    notes.put_ms("hung_to_answer", hung.elapsed());
    adopted(guest, &status, hung)?;
    let said = guest.shell.run("journalctl -b -o cat -u ballast-agent")?;

    if !said.contains("Watchdog timeout") {
        bail!("it was not the watchdog that killed process {pid}: {said}");
    }
    notes.put_ms("release", guest.release()?);
    notes.put_ms("hung_to_released", hung.elapsed());

    Ok(())
}

/// What `LimitRTPRIO` and `LimitMEMLOCK` of the shipped unit are for.
pub(super) fn realtime(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    guest.fresh()?;
    let pid = guest.agent_pid()?;

    // rt_priority and policy of every thread (proc_pid_stat(5): fields 40 and 41; the name may hold spaces).
    let threads = guest.shell.run(&format!(
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
    let locked = guest.shell.run(&format!("awk '/VmLck/ {{print $2}}' /proc/{pid}/status"))?;
    let locked: f64 = locked.trim().parse().context("VmLck")?;
    notes.put("locked_kib", locked);

    if locked == 0.0 {
        bail!("no memory is locked");
    }
    Ok(())
}

pub(super) fn kill_random(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    let mut random = SplitMix64::new(7);
    let mut restored = 0;
    let mut times = vec![];

    for n in 0..KILLS[usize::from(guest.quick)] {
        guest.fresh()?;

        // Some files are Ballast's as long as it runs.
        let running = guest.dump()?;
        let delay = Duration::from_millis(random.draw() % KILL_WITHIN_MS);
        let pid = guest.agent_pid()?;
        let cap = if n % 2 == 0 { 205 } else { 225 };
        guest.agent.alert(Level::Cap, Some(cap))?;
        thread::sleep(delay);
        let dead = Instant::now();
        guest.shell.run(&format!("kill -9 {pid}"))?;
        guest.status_when("an agent that answers again", |_| true)?;
        guest.release().with_context(|| format!("kill {n}, {delay:?} after the alert"))?;
        times.push(dead.elapsed());
        let now = guest.dump()?;
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
pub(super) fn check(guest: &mut Guest, _: &mut Notes) -> anyhow::Result<()> {
    guest.shell.run("systemctl stop ballast-agent")?;
    let said = guest.shell.try_run("ballast check --json --seconds 3 --write-test", PATIENCE)?;

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
        None => guest.restored(),
    }
}

/// The agent dies and cannot come back: its config is refused.
pub(super) fn orphan(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    left_alone(guest, notes)
}

/// The same, and what shall arm the release hangs and is killed as well.
pub(super) fn orphan_unarmed(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    let folder = "/run/systemd/system/ballast-agent.service.d";
    guest.shell.run(&format!(
        "mkdir -p {folder} && printf '[Service]\\nTimeoutStopSec=1s\\nExecStopPost=\\nExecStopPost=sleep \
         999\\n' >{folder}/hang.conf && systemctl daemon-reload"
    ))?;
    let done = left_alone(guest, notes);
    guest.shell.run(&format!("rm -r {folder} && systemctl daemon-reload"))?;
    done
}

fn left_alone(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    guest.fresh()?;
    guest.throttle(Level::Emergency, Some(205))?;
    let pid = guest.agent_pid()?;
    guest.shell.run("sed -i '1i orphan_hold_s = 5\\nno_such_key = 1' /etc/ballast/agent.toml")?;
    let dead = Instant::now();
    guest.shell.run(&format!("kill -9 {pid}"))?;
    let all = |sample: &Sample| sample.at > dead && sample.registers == [TOP; CPUS];
    let released = guest.plant.wait(&"released without an agent", dead, PATIENCE, all);
    let alone = guest.shell.try_run("systemctl is-active ballast-agent", PATIENCE)?.code != 0;
    guest.with_config(&[], "", |_| Ok(()))?;
    notes.put_ms("killed_to_released", released?.at - dead);
    if !alone {
        bail!("the agent ran with a config that must be refused");
    }
    guest.fresh()
}

pub(super) fn stop(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    guest.fresh()?;
    guest.throttle(Level::Emergency, Some(205))?;
    let stopping = Instant::now();
    guest.shell.run("systemctl stop ballast-agent")?;
    notes.put_ms("stop", stopping.elapsed());
    guest.restored().context("after systemctl stop")?;
    let result = guest.shell.run("systemctl show -p Result --value ballast-agent")?;
    if result.trim() != "success" {
        bail!("systemctl stop ended with {result}");
    }
    Ok(())
}

pub(super) fn purge(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    guest.fresh()?;
    guest.throttle(Level::Emergency, Some(205))?;
    let purging = Instant::now();
    guest.shell.run("dpkg --purge ballast ballast-agent ballast-chassis")?;
    notes.put_ms("purge", purging.elapsed());
    guest.restored().context("after dpkg --purge")?;
    let left: Vec<_> = guest.files()?.difference(&guest.without).cloned().collect();
    if !left.is_empty() {
        bail!("left behind: {}", left.join(" "));
    }
    let failed = guest.shell.run("systemctl list-units --all --no-legend 'ballast*'")?;
    if !failed.trim().is_empty() {
        bail!("systemd still knows {failed}");
    }
    Ok(())
}
