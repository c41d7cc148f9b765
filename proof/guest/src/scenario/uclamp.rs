//! Two classes on the same CPUs, and the frequency goes with whoever runs: `cpu.uclamp.max`.
//!
//! A worker of a class on each of two CPUs says while it runs (`recipe/guest-work`), so that the plant knows whose watts a
//! register's are.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ballast_types::PowerModel;
use ballast_types::wire::Level;

use crate::guest::{Guest, PATIENCE};
use crate::plant::{FLOOR, Sample, TOP, share};
use crate::report::Notes;

/// The numbers of both VMs' workers.
const WEB: u8 = 1;
const BATCH: u8 = 2;
/// Where both work.
const CPUS: [usize; 2] = [2, 3];
/// Below what batch draws at its floor: it stays there.
const CAP_W: i64 = 120;
/// What the clamp of half the highest frequency is before Linux 6.8.
const HALF: &str = "39.94";
/// The figure to reach: of the dynamic power of batch.
const TO_SHED: f64 = 0.65;

const GROUPS: &str = "/sys/fs/cgroup/system.slice/guest-vms.service";
/// At the floor and above the cap the server's own limit would come, and hide what clamps alone do.
const NO_LIMIT: &str = "[server_limit]\nenabled = false\n";
const ACTUATOR: [(&str, &str); 1] = [("[throttle]\n", "[throttle]\nactuator = \"uclamp\"\n")];

/// What a class drew while it ran.
#[derive(Clone, Copy, Debug, Default)]
struct Drawn {
    /// Samples of one CPU in which it ran.
    count: u32,
    at_top: u32,
    at_floor: u32,
    /// Its dynamic power of what it would draw at the highest frequency, summed.
    power: f64,
}

impl Drawn {
    fn of(samples: &[Sample], who: u8) -> Self {
        let mut drawn = Self::default();
        for sample in samples {
            for cpu in CPUS.iter().filter(|cpu| sample.runs[**cpu] == who) {
                let register = sample.registers[*cpu];
                drawn.count += 1;
                drawn.at_top += u32::from(register <= TOP);
                drawn.at_floor += u32::from(register >= FLOOR);
                drawn.power += PowerModel::PAPER.scale(share(register));
            }
        }
        drawn
    }

    fn part(self, count: u32) -> f64 {
        f64::from(count) / f64::from(self.count.max(1))
    }

    /// Of its dynamic power.
    fn shed(self) -> f64 {
        1.0 - self.power / f64::from(self.count.max(1))
    }
}

/// Runs `test` under schedutil with an agent that clamps.
fn clamped(guest: &mut Guest, test: impl FnOnce(&mut Guest) -> anyhow::Result<()>) -> anyhow::Result<()> {
    guest.fresh()?;
    let before = clamp_of(guest, "batch-1")?;
    guest.governor("schedutil")?;
    guest.plant.set(|knobs| knobs.is_told = true);
    let result = guest.with_config(&ACTUATOR, NO_LIMIT, |guest| {
        guest.agent.begin_again();
        guest.agent.lease = Duration::from_secs(600);
        // An agent that was started anew holds down what it can until it is told otherwise.
        guest.agent.alert(Level::Watch, None)?;
        clamp_is(guest, "batch-1", &before)?;
        test(guest)
    });
    guest.shell.run("systemctl stop 'work-*'")?;
    guest.plant.set(|knobs| knobs.is_told = false);
    guest.governor("performance")?;
    guest.agent.begin_again();
    result
}

/// Starts a VM's worker on each CPU; those that it had end.
fn work(guest: &mut Guest, vm: &str, who: u8, percent: u32) -> anyhow::Result<()> {
    guest.shell.run(&format!("systemctl stop 'work-{vm}-*'"))?;
    if percent == 0 {
        return Ok(());
    }
    for cpu in CPUS {
        guest.shell.run(&format!(
            "systemd-run -q --collect --unit=work-{vm}-{cpu} /usr/local/sbin/guest-work \
             system.slice/guest-vms.service/{vm} {cpu} {who} {percent}"
        ))?;
    }
    let from = Instant::now();
    let runs = |sample: &Sample| CPUS.iter().any(|cpu| sample.runs[*cpu] == who);
    guest.plant.wait(&format_args!("a worker of {vm}"), from, PATIENCE, runs).map(drop)
}

/// Sends an alert, and says when. The agent may have closed the connection since the last one.
fn order(guest: &mut Guest, level: Level, cap_w: Option<i64>) -> anyhow::Result<Instant> {
    guest.status_when("an agent that answers", |_| true)?;
    let from = Instant::now();
    guest.agent.alert(level, cap_w)?;
    Ok(from)
}

fn clamp_of(guest: &mut Guest, vm: &str) -> anyhow::Result<String> {
    Ok(guest.shell.run(&format!("cat {GROUPS}/{vm}/cpu.uclamp.max"))?.trim().to_owned())
}

fn clamp_is(guest: &mut Guest, vm: &str, expected: &str) -> anyhow::Result<()> {
    let from = Instant::now();
    loop {
        let clamp = clamp_of(guest, vm)?;
        if clamp == expected {
            return Ok(());
        }
        if from.elapsed() > PATIENCE {
            let log = guest.shell.run("journalctl -b -o cat -n 20 -u ballast-agent")?;
            bail!("cpu.uclamp.max of {vm} is {clamp:?}, not {expected:?}\n{log}");
        }
        thread::sleep(Duration::from_millis(50));
    }
}

fn watch(guest: &Guest, seconds: u64) -> Vec<Sample> {
    // Until the kernel's averages of what has changed are the new ones.
    thread::sleep(Duration::from_secs(1));
    let from = Instant::now();
    thread::sleep(Duration::from_secs(seconds));
    guest.plant.since(from)
}

pub(super) fn refused(guest: &mut Guest, _: &mut Notes) -> anyhow::Result<()> {
    let said = guest.shell.try_run(
        "systemctl stop ballast-agent; \
         sed 's/^\\[throttle\\]/&\\nactuator = \"uclamp\"/' /etc/ballast/agent.toml >/run/uclamp.toml; \
         timeout 30 ballast-agent --config /run/uclamp.toml",
        PATIENCE,
    )?;
    guest.shell.run("systemctl start ballast-agent")?;
    guest.agent.begin_again();
    let expected = "found \"performance\" in /sys/devices/system/cpu/cpufreq/policy0/scaling_governor";
    if said.code == 0 || !said.text.contains(expected) {
        bail!("exit code {}: {}", said.code, said.text);
    }
    Ok(())
}

pub(super) fn shed(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    clamped(guest, |guest| {
        work(guest, "batch-1", BATCH, 100)?;
        let free = Drawn::of(&watch(guest, 5), BATCH);
        notes.put("free_at_top_share", free.part(free.at_top));
        clamp_is(guest, "batch-1", "max")?;
        at_least("of batch's time at the highest p-state without a cap", free.part(free.at_top), 0.95)?;

        let began = order(guest, Level::Emergency, Some(CAP_W))?;
        let slow = |sample: &Sample| CPUS.iter().all(|cpu| sample.registers[*cpu] >= FLOOR);
        let at_floor = guest.plant.wait(&"the floor", began, PATIENCE, slow)?;
        notes.put_ms("alert_to_floor", at_floor.at - began);
        clamp_is(guest, "batch-1", HALF)?;
        let capped = Drawn::of(&watch(guest, 10), BATCH);
        notes.put("at_floor_share", capped.part(capped.at_floor));
        notes.put("shed_share", capped.shed());

        // The neighbour alone, while the cap is on.
        work(guest, "batch-1", BATCH, 0)?;
        work(guest, "web-1", WEB, 100)?;
        let web = Drawn::of(&watch(guest, 5), WEB);
        notes.put("neighbour_at_top_share", web.part(web.at_top));
        if clamp_of(guest, "web-1")? != "max" {
            bail!("the user-facing VM has a clamp");
        }

        let from = order(guest, Level::Watch, None)?;
        clamp_is(guest, "batch-1", "max")?;
        notes.put_ms("release", from.elapsed());
        // What else runs in the guest has no clamp, and takes several times as long on a busy host.
        if guest.judge {
            at_least("of batch's dynamic power shed", capped.shed(), TO_SHED)?;
        }
        at_least("of the neighbour's time at the highest p-state", web.part(web.at_top), 0.95)
    })
}

fn at_least(what: &str, is: f64, least: f64) -> anyhow::Result<()> {
    if is.is_nan() || is < least {
        bail!("{:.1} % {what}, to reach: {:.0} %", is * 100.0, least * 100.0);
    }
    Ok(())
}

/// The clamp of a CPU is the highest of all that is runnable there: what that costs, by how much of each second the
/// user-facing VM works, with the same weight as batch and with ten times as much.
pub(super) fn cost(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    clamped(guest, |guest| {
        work(guest, "batch-1", BATCH, 100)?;
        order(guest, Level::Emergency, Some(CAP_W))?;
        clamp_is(guest, "batch-1", HALF)?;
        for weight in [100, 1000] {
            guest.shell.run(&format!("echo {weight} >{GROUPS}/web-1/cpu.weight"))?;
            for percent in [0, 10, 30, 60] {
                work(guest, "web-1", WEB, percent)?;
                let samples = watch(guest, 12);
                let (web, batch) = (Drawn::of(&samples, WEB), Drawn::of(&samples, BATCH));
                let name = format!("weight_{weight}_load_{percent}");
                let ran = f64::from(web.count) / f64::from((web.count + batch.count).max(1));
                notes.put(&format!("{name}_ran_share"), ran);
                notes.put(&format!("{name}_shed_share"), batch.shed());
                if percent > 0 {
                    notes.put(&format!("{name}_web_at_top_share"), web.part(web.at_top));
                    at_least(
                        "of the user-facing VM's time at the highest p-state",
                        web.part(web.at_top),
                        0.8,
                    )?;
                }
            }
        }
        guest.shell.run(&format!("echo 100 >{GROUPS}/web-1/cpu.weight")).map(drop)
    })
}

/// What an operator had set is there again after a kill, a release and a stop.
pub(super) fn killed(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    let operators = "80.00";
    guest.shell.run(&format!("echo {operators} >{GROUPS}/batch-1/cpu.uclamp.max"))?;
    clamped(guest, |guest| {
        work(guest, "batch-1", BATCH, 100)?;
        order(guest, Level::Emergency, Some(CAP_W))?;
        clamp_is(guest, "batch-1", HALF)?;

        let pid = guest.agent_pid()?;
        let dead = Instant::now();
        guest.shell.run(&format!("kill -9 {pid}"))?;
        clamp_is(guest, "batch-1", HALF).context("while the agent is dead")?;
        let status = guest.status_when("an agent that answers again", |_| true)?;
        notes.put_ms("killed_to_answer", dead.elapsed());
        if status.report.min_share_percent.is_none() {
            bail!("what was clamped was not adopted: {:?}", status.report);
        }
        guest.agent.begin_again();
        order(guest, Level::Watch, None)?;
        clamp_is(guest, "batch-1", operators).context("after a release")?;

        order(guest, Level::Emergency, Some(CAP_W))?;
        clamp_is(guest, "batch-1", HALF)?;
        guest.shell.run("systemctl daemon-reload")?;
        clamp_is(guest, "batch-1", HALF).context("after systemctl daemon-reload")?;
        guest.shell.run("systemctl stop ballast-agent")?;
        clamp_is(guest, "batch-1", operators).context("after systemctl stop")
    })?;
    guest.shell.run(&format!("echo max >{GROUPS}/batch-1/cpu.uclamp.max")).map(drop)
}
