//! Memory limits by what VMs used, on the kernel's own `memory.high` and `memory.max`.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ballast_types::SplitMix64;

use crate::guest::{Guest, PATIENCE};
use crate::history;
use crate::report::Notes;

const GROUP: &str = "system.slice/guest-vms.service/batch-1";
const CONFIG: &str = "\n[limits]\nmode = \"apply\"\napply_memory = true\n";
const RECORDS: &str = "/var/lib/ballast-agent/usage";
/// Attempts, and those of a quick run.
const TRIES: [u32; 2] = [20, 3];
/// One attempt in so many is one in which the load grows beyond the limit that is coming.
const GROWS_EVERY: u32 = 3;
/// What the load has in use, in MiB: below the limit of about 240, with files far above; and when it grows, above.
const LOAD_MIB: [u32; 3] = [100, 170, 330];
/// More than any limit here, in MiB.
const OOM_MIB: u32 = 600;
/// The agent waits two minutes at most for a VM to become quiet.
const DECIDED_WITHIN: Duration = Duration::from_secs(180);
/// Setting a limit takes at least ten seconds, of which `memory.high` alone is lowered; so long after the start of the agent, or
/// after a kill for lack of memory, it is killed at the latest.
const LOWERING_MS: u64 = 12_000;
const RAISING_MS: u64 = 1500;
/// From a kill for lack of memory until the limit is raised.
const RAISED_WITHIN: Duration = Duration::from_secs(1);

/// How often limits were not in force, by why.
type Held = BTreeMap<String, u64>;

fn tries(guest: &Guest) -> u32 {
    guest.tries.unwrap_or(TRIES[usize::from(guest.quick)])
}

/// What the kernel says of the group, in bytes; `u64::MAX` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memory {
    high: u64,
    max: u64,
    kills: u64,
}

impl Memory {
    const fn is_open(self) -> bool {
        self.high == u64::MAX && self.max == u64::MAX
    }
    const fn is_limited(self) -> bool {
        self.high != u64::MAX && self.max != u64::MAX
    }
    /// `memory.high` is lowered, and `memory.max` is not.
    const fn is_between(self) -> bool {
        self.high != u64::MAX && self.max == u64::MAX
    }
}

/// After `first` has run, in the same command: what the agent would write meanwhile is not waited for.
fn memory_after(guest: &mut Guest, first: &str) -> anyhow::Result<Memory> {
    let command = format!(
        "{first}cd /sys/fs/cgroup/{GROUP} && cat memory.high memory.max && \
         sed -n 's/^oom_kill //p' memory.events"
    );
    let text = guest.shell.run(&command)?;
    let numbers: Vec<u64> = text.lines().map(|line| line.parse().unwrap_or(u64::MAX)).collect();
    let [high, max, kills] = numbers[..] else { bail!("{GROUP}: {text}") };
    Ok(Memory { high, max, kills })
}

fn memory(guest: &mut Guest) -> anyhow::Result<Memory> {
    memory_after(guest, "")
}

fn memory_when(
    guest: &mut Guest,
    what: &str,
    within: Duration,
    condition: impl Fn(Memory) -> bool,
) -> anyhow::Result<Memory> {
    let from = Instant::now();
    loop {
        let now = memory(guest)?;
        if condition(now) {
            return Ok(now);
        }
        if from.elapsed() > within {
            let log = "journalctl -b -o cat -u ballast-agent | grep -v ' state ' | tail -n 20";
            let log = guest.shell.run(log)?;
            bail!("{what}: not within {within:?}: {now:?}\n{log}");
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Runs `test` with an agent that sets limits by two days of records. In the end there is neither, and no load.
fn with_limits(guest: &mut Guest, test: impl FnOnce(&mut Guest) -> anyhow::Result<()>) -> anyhow::Result<()> {
    guest.fresh()?;
    guest.shell.run(&format!("systemctl stop ballast-agent && {}", history()))?;
    let result = guest.with_config(&[], CONFIG, test);

    end_load(guest)?;
    let clean = format!("systemctl stop ballast-agent && rm -rf {RECORDS} && systemctl start ballast-agent");
    guest.shell.run(&clean)?;
    guest.status_when("an agent that answers", |_| true)?;
    let left = memory(guest)?;
    result?;
    if !left.is_open() {
        bail!("left limited: {left:?}");
    }
    Ok(())
}

/// Has the two days on record, and nothing else: what an attempt uses must not change the next one's limit.
fn history() -> String {
    format!("rm -rf {RECORDS} && mkdir -p {RECORDS} && cp /{}/* {RECORDS}", history::FOLDER)
}

/// An agent that begins to set limits, with the group as it was before; `before` runs while there is none.
fn restart(guest: &mut Guest, before: impl FnOnce(&mut Guest) -> anyhow::Result<()>) -> anyhow::Result<()> {
    guest.shell.run("systemctl stop ballast-agent")?;
    let stopped = memory(guest)?;
    if !stopped.is_open() {
        bail!("after systemctl stop: {stopped:?}");
    }
    before(guest)?;
    guest.shell.run(&format!("{} && systemctl start ballast-agent", history()))?;
    guest.status_when("an agent that answers", |_| true).map(drop)
}

fn end_load(guest: &mut Guest) -> anyhow::Result<()> {
    guest.shell.run("systemctl stop guest-load; systemctl reset-failed guest-load; true").map(drop)
}

/// Files in the cache of the group, and memory that comes and goes.
fn start_load(guest: &mut Guest) -> anyhow::Result<()> {
    end_load(guest)?;
    let [low, high, more] = LOAD_MIB;
    guest.shell.run(&format!(
        "echo 3 >/proc/sys/vm/drop_caches; systemd-run --quiet --unit guest-load -p MemoryAccounting=no \
         guest-load {GROUP} {low} {high} {more}"
    ))?;
    // It has read its files once it has memory of its own.
    let own = format!("sed -n 's/^anon //p' /sys/fs/cgroup/{GROUP}/memory.stat");
    let from = Instant::now();
    loop {
        let own: u64 = guest.shell.run(&own)?.trim().parse()?;
        if own > u64::from(low) << 20 {
            return Ok(());
        }
        if from.elapsed() > DECIDED_WITHIN {
            bail!("the load has {own} bytes of its own, {low} MiB were asked for");
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// Waits until the limit is being lowered, or was.
fn lowering(guest: &mut Guest) -> anyhow::Result<()> {
    held_when(guest, "not lowered", |now, held| now.high != u64::MAX || held.contains_key("lowering"))
        .map(drop)
}

/// Waits until the limit that is lowered is in force, or given up; gives whether it is in force.
fn decided(guest: &mut Guest) -> anyhow::Result<bool> {
    let is_decided =
        |now: Memory, held: &Held| now.is_limited() || now.is_open() && held.contains_key("pressed");
    held_when(guest, "neither lowered nor given up", is_decided).map(Memory::is_limited)
}

/// Waits for a state of the files, and of what the agent says about limits that are not in force.
fn held_when(
    guest: &mut Guest,
    otherwise: &str,
    condition: impl Fn(Memory, &Held) -> bool,
) -> anyhow::Result<Memory> {
    let from = Instant::now();
    loop {
        let now = memory(guest)?;
        let held = guest.agent.status()?.records.map(|records| records.limits_held).unwrap_or_default();
        if condition(now, &held) {
            return Ok(now);
        }
        if from.elapsed() > DECIDED_WITHIN {
            bail!("{otherwise} within {DECIDED_WITHIN:?}: {now:?}, {held:?}");
        }
        thread::sleep(Duration::from_millis(100));
    }
}

pub(super) fn lowered(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    with_limits(guest, |guest| {
        let (mut steady, mut lowered, mut given_up, mut times) = (0, 0, 0, vec![]);
        let kills = memory(guest)?.kills;

        for n in 0..tries(guest) {
            restart(guest, start_load)?;
            let from = Instant::now();
            let grows = n % GROWS_EVERY == GROWS_EVERY - 1;
            if grows {
                lowering(guest)?;
                guest.shell.run("systemctl kill --signal USR1 guest-load")?;
            }
            let is_lowered =
                decided(guest).with_context(|| format!("attempt {n}, the load grows: {grows}"))?;
            if is_lowered {
                times.push(from.elapsed());
            }

            // A limit that has just been lowered is one under load, too.
            thread::sleep(Duration::from_secs(2));
            let killed = memory(guest)?.kills - kills;
            if killed > 0 {
                bail!(
                    "attempt {n}, the load grows: {grows}, lowered: {is_lowered}: {killed} tasks were killed"
                );
            }
            steady += u32::from(!grows);
            lowered += u32::from(!grows && is_lowered);
            given_up += u32::from(!is_lowered);
        }

        notes.put("steady_loads", f64::from(steady));
        notes.put("lowered", f64::from(lowered));
        notes.put("given_up", f64::from(given_up));
        notes.put("oom_kills", (memory(guest)?.kills - kills) as f64);
        notes.put_spread("start_to_lowered", &mut times);
        if lowered * 2 < steady {
            bail!("of {steady} limits of a VM that uses less, {lowered} were lowered");
        }
        Ok(())
    })
}

pub(super) fn oom(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    with_limits(guest, |guest| {
        let mut times = vec![];
        for n in 0..tries(guest) {
            restart(guest, |_| Ok(()))?;
            let limited = memory_when(guest, "limits in force", DECIDED_WITHIN, Memory::is_limited)?;

            let said = guest.shell.run(&format!("guest-oom {GROUP} {OOM_MIB}"))?;
            let numbers: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            let [had, centiseconds] = numbers[..] else { bail!("guest-oom: {said}") };
            times.push(Duration::from_millis(10 * centiseconds));
            let raised = memory_when(guest, "both raised", PATIENCE, |now| {
                now.max >= had / 5 * 6 && now.high >= had / 5 * 6
            })?;
            if raised.max < raised.high || raised.kills <= limited.kills || had < limited.max {
                bail!("attempt {n}: {limited:?}, killed with memory.max at {had}, then {raised:?}");
            }
        }

        notes.put_spread("kill_to_raised", &mut times);
        let longest = times.last().copied().unwrap_or_default();
        guest.within("from the kill until memory.max is raised", longest, RAISED_WITHIN)
    })
}

pub(super) fn killed(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    with_limits(guest, |guest| {
        let mut random = SplitMix64::new(11);
        let (mut open, mut between, mut limited) = (0, 0, 0);

        let tries = tries(guest);
        for n in 0..tries {
            restart(guest, |_| Ok(()))?;
            let raises = n % 2 == 1;
            if raises {
                memory_when(guest, "limits in force", DECIDED_WITHIN, Memory::is_limited)?;
                let oom = format!("guest-oom {GROUP} {OOM_MIB} >/dev/null 2>&1 &");
                guest.shell.run(&oom)?;
            }
            // One instant in each part of the time, so that few attempts are not all late.
            let part = if raises { RAISING_MS } else { LOWERING_MS } / u64::from(tries.div_ceil(2));
            let delay = Duration::from_millis(part * u64::from(n / 2) + random.draw() % part);
            thread::sleep(delay);
            let left = kill(guest)?;
            if left.max < left.high {
                bail!("kill {n}, after {delay:?}: memory.max is below memory.high: {left:?}");
            }
            open += u32::from(left.is_open());
            between += u32::from(left.is_between());
            limited += u32::from(left.is_limited());
            guest.status_when("an agent that answers again", |_| true)?;
        }

        notes.put("killed_before", f64::from(open));
        notes.put("killed_between", f64::from(between));
        notes.put("killed_after", f64::from(limited));
        for (name, state) in
            [("between", Memory::is_between as fn(Memory) -> bool), ("after", Memory::is_limited)]
        {
            restart(guest, |_| Ok(()))?;
            memory_when(guest, name, DECIDED_WITHIN, state)?;
            let time = orphaned(guest).with_context(|| format!("killed {name} the writes"))?;
            notes.put_ms(&format!("killed_{name}_to_released"), time);
        }
        Ok(())
    })
}

/// Kills the agent, and gives what is there before the next one is.
fn kill(guest: &mut Guest) -> anyhow::Result<Memory> {
    let pid = guest.agent_pid()?;
    memory_after(guest, &format!("kill -9 {pid}; "))
}

/// The agent dies and cannot come back; gives the time until both files are as they were.
fn orphaned(guest: &mut Guest) -> anyhow::Result<Duration> {
    let config = "/etc/ballast/agent.toml";
    guest.shell.run(&format!(
        "cp {config} /root/agent.toml && sed -i '1i orphan_hold_s = 5\\nno_such_key = 1' {config}"
    ))?;
    let dead = Instant::now();
    let left = kill(guest)?;
    let released = memory_when(guest, "released without an agent", PATIENCE, Memory::is_open);
    let took = dead.elapsed();
    let alone = guest.shell.try_run("systemctl is-active ballast-agent", PATIENCE)?.code != 0;
    guest.shell.run(&format!("mv /root/agent.toml {config}; systemctl reset-failed ballast-agent; true"))?;

    if left.is_open() || left.max < left.high {
        bail!("the agent left {left:?}");
    }
    if !alone {
        bail!("the agent ran with a config that must be refused");
    }
    released?;
    Ok(took)
}
