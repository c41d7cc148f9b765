//! The services' surroundings: their disk, their sockets.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ballast_types::wire::{AgentStatus, Level};
use serde_json::Value;

use super::chassis::forget;
use crate::guest::{Guest, PATIENCE};
use crate::machine::CPUS;
use crate::manager::{CONFIG, Manager};
use crate::plant::TOP;
use crate::report::Notes;

/// The state folders that are full; a filler takes what is free.
const AGENT: &str = "/var/lib/ballast-agent";
const MANAGER: &str = "/var/lib/ballast-chassis";
/// Where the agent's journal lies, and what keeps it from being written there.
const RUN: &str = "/run/ballast-agent";
const BLOCKERS: [&str; 2] = ["journal.json.tmp", "probe.tmp.tmp"];
/// Nobody that any file names.
const UID: u32 = 4242;

fn says(alarms: &[ballast_types::wire::Alarm], what: &str) -> bool {
    alarms.iter().any(|alarm| alarm.message.starts_with(&format!("{what} not written")))
}

/// Daemons that start on a full disk, and one that becomes full while cores are capped.
pub(super) fn disk_full(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    guest.fresh()?;
    forget(guest)?;
    guest.shell.run("systemctl stop ballast-agent")?;
    for folder in [AGENT, MANAGER] {
        guest.shell.run(&format!("mount -t tmpfs -o size=2m,mode=0750 tmpfs {folder}"))?;
        fill(guest, folder)?;
    }

    let manager = Manager(None);
    let result = full(guest, manager, notes);
    manager.remove(&mut guest.shell)?;
    guest.shell.run(&format!("systemctl stop ballast-agent; umount -l {AGENT} {MANAGER}"))?;
    forget(guest)?;
    result
}

fn fill(guest: &mut Guest, folder: &str) -> anyhow::Result<()> {
    let said = guest.shell.run(&format!("cat /dev/zero >{folder}/filler 2>&1; df {folder} | tail -1"))?;
    if !said.contains("100%") {
        bail!("{folder} has room left: {said}");
    }
    Ok(())
}

fn empty(guest: &mut Guest, folder: &str) -> anyhow::Result<()> {
    guest.shell.run(&format!("rm {folder}/filler")).map(drop)
}

fn full(guest: &mut Guest, manager: Manager, notes: &mut Notes) -> anyhow::Result<()> {
    manager.start(&mut guest.shell, &CONFIG.replace("guest-chassis", "other"))?;
    manager.status_when(&mut guest.shell, "an alarm about the ledger", |status| {
        says(&status.alarms, "ledger")
    })?;

    // The journal is in memory: a full disk keeps no agent from acting.
    guest.shell.run("systemctl start ballast-agent")?;
    guest.agent.begin_again();
    guest.status_when("an agent that acts", |status| status.dry_run.is_none())?;
    guest.throttle(Level::Emergency, Some(205))?;
    guest.shell.run(&format!("test -e {RUN}/journal.json && test ! -e {AGENT}/journal.json"))?;
    guest.release()?;

    let pid = watches_without_room(guest)?;

    // Room: the agent is started anew by systemd, and acts; the manager goes on.
    let room = Instant::now();
    for folder in [AGENT, MANAGER] {
        empty(guest, folder)?;
    }
    guest.status_when("an agent that acts", |status| {
        status.dry_run.is_none() && status.report.power_w.is_some()
    })?;
    notes.put_ms("room_to_acting", room.elapsed());
    guest.shell.run(&BLOCKERS.map(|file| format!("rmdir {RUN}/{file}")).join("; "))?;
    if guest.agent_pid()? == pid {
        bail!("the agent acts without having been started anew");
    }
    manager.status_when(&mut guest.shell, "no alarm about the ledger", |status| {
        !says(&status.alarms, "ledger")
    })?;

    // Full again while cores are capped: the next agent adopts by the journal that is there, and releases.
    guest.agent.begin_again();
    guest.throttle(Level::Emergency, Some(205))?;
    fill(guest, AGENT)?;
    let pid = guest.agent_pid()?;
    guest.shell.run(&format!("kill -9 {pid}"))?;
    let adopted = |status: &AgentStatus| status.dry_run.is_none() && status.report.min_khz.is_some();
    guest.status_when("an agent that has adopted its caps", adopted)?;
    notes.put_ms("release", guest.release()?);
    empty(guest, AGENT)?;
    guest
        .status_when("no alarm about the disk", |status| {
            !status.alarms.iter().any(|a| a.message.contains("not written"))
        })
        .map(drop)
}

/// Where neither folder has room nothing is changed; gives the agent that only watches.
fn watches_without_room(guest: &mut Guest) -> anyhow::Result<u32> {
    guest.shell.run("systemctl stop ballast-agent")?;
    let block = BLOCKERS.map(|file| format!("mkdir {RUN}/{file}")).join("; ");
    guest.shell.run(&block)?;
    guest.shell.run("systemctl start ballast-agent")?;
    guest.agent.begin_again();
    guest.status_when("an agent that only watches", |status: &AgentStatus| {
        status.dry_run.is_some() && says(&status.alarms, "journal")
    })?;
    let pid = guest.agent_pid()?;
    let alert = Instant::now();
    guest.agent.alert(Level::Emergency, Some(205))?;
    thread::sleep(Duration::from_secs(2));
    if guest.plant.since(alert).iter().any(|sample| sample.registers != [TOP; CPUS]) {
        bail!("cores were capped without a journal");
    }
    Ok(pid)
}

/// Orders by the socket: the group's members and root may, nobody else, and who it was is written down.
pub(super) fn socket(guest: &mut Guest, _: &mut Notes) -> anyhow::Result<()> {
    guest.fresh()?;
    let manager = Manager(None);
    manager.start(&mut guest.shell, &CONFIG.replace("guest-chassis", "other"))?;
    let result = orders(guest, manager);
    manager.remove(&mut guest.shell)?;
    result
}

fn orders(guest: &mut Guest, manager: Manager) -> anyhow::Result<()> {
    let member =
        format!("setpriv --reuid {UID} --regid {UID} --groups $(getent group ballast | cut -d: -f3)");
    let other = format!("setpriv --reuid {UID} --regid {UID} --clear-groups");
    let set = |watts: u32, url: &str| format!("ballast budget set {watts} --yes --force {url}");
    let socket = format!("unix:{}", manager.socket());
    let loopback = "http://127.0.0.1:7100";
    let agent = "ballast status unix:/run/ballast-agent/ballast.sock";

    for (command, may) in [
        (format!("{other} {}", set(210, &socket)), false),
        (format!("{other} {agent}"), false),
        (format!("{other} ballast status {loopback}"), true),
        (set(220, loopback), false),
        (format!("{member} {agent}"), true),
        (format!("{member} {}", set(230, &socket)), true),
        (set(240, &socket), true),
    ] {
        let said = guest.shell.try_run(&command, PATIENCE)?;
        if (said.code == 0) != may {
            bail!("exit code {}: {command}\n{}", said.code, said.text);
        }
    }

    let log = guest.shell.run(&format!("cat {}/orders.jsonl", manager.state_dir()))?;
    let orders: Vec<Value> =
        log.lines().map(serde_json::from_str).collect::<Result<_, _>>().context("JSON")?;
    let told: Vec<_> = orders
        .iter()
        .map(|it| (it["who"].as_str().unwrap_or_default(), &it["before"], &it["outcome"]))
        .collect();
    match told[..] {
        [(first, before, _), (second, after, outcome)]
            if first.starts_with(&format!("uid {UID} (pid "))
                && second.starts_with("uid 0 (pid ")
                && before == "budget_w=270"
                && after == "budget_w=230"
                && outcome.as_str().is_some_and(|it| it.starts_with("20")) =>
        {
            Ok(())
        }
        _ => bail!("the audit log says {told:?}"),
    }
}
