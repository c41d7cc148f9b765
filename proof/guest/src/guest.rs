//! The guest with everything around it: plant, BMC, shell, and the agent inside.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ballast_testbed::stage::Certs;
use ballast_types::wire::{AgentState, AgentStatus, Level};
use ballast_types::{Role, ServerId};

use crate::agent::{Agent, SERVER};
use crate::bmc::Bmc;
use crate::machine::{CPUS, Machine, Registers};
use crate::plant::{FLOOR, Plant, Sample, TOP};
use crate::shell::Shell;
use crate::{image, report::Notes};

const CONFIG: &str = include_str!("../recipe/agent.toml");
/// A guest boots within this, however busy the host is.
const BOOTS_WITHIN: Duration = Duration::from_secs(300);
/// Whatever must happen soon, but for which no time is promised.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Every file that Ballast may change, with its value; what comes and goes with units is left out.
const DUMP: &str = "grep -rH '' /sys/devices/system/cpu/cpufreq/policy*/scaling_max_freq \
    /sys/devices/system/cpu/cpufreq/policy*/scaling_min_freq \
    /sys/devices/system/cpu/cpufreq/policy*/scaling_governor /sys/devices/system/cpu/cpu*/online \
    /sys/class/hwmon/hwmon*/device/power1_cap /sys/class/hwmon/hwmon*/device/power1_average_interval; find \
    /sys/class/powercap/ /sys/fs/cgroup/system.slice/guest-vms.service /sys/fs/cgroup -maxdepth 2 '(' -name \
    'cpuset.cpus*' -o -name 'cpu.max*' -o -name 'cpu.uclamp.*' -o -name 'memory.high' -o -name 'memory.max' \
    -o -name \
    'cgroup.subtree_control' ')' ! -path '*ballast*' -exec grep -H '' '{}' +";

/// Everything that a scenario works with.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) shell: Shell,
    pub(crate) plant: Plant,
    pub(crate) agent: Agent,
    /// CPUs of the VMs that may be throttled, and of the others.
    pub(crate) low: Vec<usize>,
    pub(crate) high: Vec<usize>,
    /// The files before anything of Ballast ran.
    pub(crate) before: BTreeMap<String, String>,
    /// The chassis manager's program, on the host.
    pub(crate) manager: PathBuf,
    /// Every file of the guest before the packages were installed.
    pub(crate) without: BTreeSet<String>,
    /// Whether times beyond the figures to reach are failures.
    pub(crate) judge: bool,
    /// Whether a scenario that repeats what it does repeats it less.
    pub(crate) quick: bool,
    /// How often each memory limit is tried, where somebody has said so.
    pub(crate) tries: Option<u32>,
    /// Dropped last: the others talk to it.
    pub(crate) machine: Machine,
}

impl Guest {
    /// Boots a guest and takes the dump; nothing of Ballast is in it yet.
    pub(crate) fn boot(
        image: &Path,
        kernel: Option<&Path>,
        packages: &Path,
        dir: &Path,
        notes: &mut Notes,
    ) -> anyhow::Result<Self> {
        let stage = dir.join("stage");
        let payload = dir.join("payload.tar");
        let certs = Certs::make(dir)?;
        certs.issue(&Role::Agent(ServerId::new(SERVER)?))?;
        let manager = image::pack(packages, &dir.join("certs"), &stage, &payload)?;
        let bmc = Bmc::start(&dir.join("bmc.sock"))?;
        let began = Instant::now();
        let mut machine = Machine::start(image, kernel, &payload, dir)?;
        let registers = Registers::new(machine.connect("qtest")?);
        let ram = machine.ram.try_clone()?;
        let plant = Plant::start(registers, ram, bmc, dir.join("chassis-root"))?;
        let shell = Shell::open(machine.connect("shell")?, BOOTS_WITHIN);
        let shell = shell.with_context(|| format!("console: {}", machine.console()))?;
        notes.put("boot_s", began.elapsed().as_secs_f64());
        let agent = Agent::new(machine.agent_port, &certs)?;
        let before = BTreeMap::new();
        let (low, high) = (vec![], vec![]);
        let without = BTreeSet::new();
        let mut guest = Self {
            shell,
            plant,
            agent,
            low,
            high,
            before,
            manager,
            without,
            judge: true,
            quick: false,
            tries: None,
            machine,
        };
        // Drivers come while systemd is still at work.
        let ready = "for i in $(seq 600); do [ -e /dev/ipmi0 ] && ls /sys/devices/system/cpu/cpufreq/policy3 \
            /sys/class/hwmon/hwmon0 && exit; sleep 0.2; done; dmesg | tail -20; exit 1";
        guest.shell.run(ready).context("the guest's drivers are not there")?;

        Ok(guest)
    }

    /// Installs the packages as an operator does, takes the dump, and starts the agent.
    pub(crate) fn install(&mut self, notes: &mut Notes) -> anyhow::Result<()> {
        self.shell.run("tar -C / -xf /dev/vdb && systemctl daemon-reload")?;
        self.shell.run("systemctl start guest-vms && sleep 1")?;
        self.governor("performance")?;
        self.before = self.dump()?;
        self.without = self.files()?;
        self.shell.run("dpkg -i /root/*.deb")?;
        self.shell.run("systemctl enable ballast-agent")?;
        self.configure(CONFIG)?;
        let resident =
            "awk '/VmRSS/ {print $2}' /proc/$(systemctl show -p MainPID --value ballast-agent)/status";
        notes.put("agent_rss_kib", self.shell.run(resident)?.trim().parse()?);
        self.low = self.cpus_of("guest-vms.service/batch-1")?;
        self.high = self.cpus_of("guest-vms.service/web-1")?;
        if self.low.len() != 2 || self.low.iter().any(|cpu| self.high.contains(cpu)) {
            bail!("two CPUs each: batch-1 has {:?}, web-1 {:?}", self.low, self.high);
        }
        Ok(())
    }

    /// Runs `test` with an agent whose config has texts replaced by others and `more` at its end; then the
    /// usual config is back.
    pub(crate) fn with_config(
        &mut self,
        replace: &[(&str, &str)],
        more: &str,
        test: impl FnOnce(&mut Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let text = CONFIG.to_owned() + more;
        let text = replace.iter().fold(text, |text, (from, to)| text.replace(from, to));
        let result = self.configure(&text).and_then(|()| test(self));
        self.configure(CONFIG).context("the usual config")?;
        result
    }

    fn configure(&mut self, text: &str) -> anyhow::Result<()> {
        self.shell.run(&format!(
            "systemctl stop ballast-agent; cat >/etc/ballast/agent.toml <<'END'\n{text}\nEND\n\
             ballast-agent --check-config --config /etc/ballast/agent.toml && \
             systemctl reset-failed ballast-agent; systemctl start ballast-agent"
        ))?;
        self.status_when("an agent that answers", |_| true).map(drop)
    }

    /// Every file on the guest's disk, without what any program leaves behind: logs, caches, and the
    /// records of dpkg and systemd.
    pub(crate) fn files(&mut self) -> anyhow::Result<BTreeSet<String>> {
        let find = "find / -xdev '(' -path /var/log -o -path /var/cache -o -path /var/lib/dpkg \
            -o -path /var/lib/systemd -o -path /tmp -o -path /var/tmp -o -path /root ')' -prune -o -print";
        Ok(self.shell.run(find)?.lines().map(str::to_owned).collect())
    }

    /// The CPUs that the kernel grants to a group below `system.slice`.
    pub(crate) fn cpus_of(&mut self, group: &str) -> anyhow::Result<Vec<usize>> {
        let file = format!("system.slice/{group}/cpuset.cpus.effective");
        let list = self.shell.run(&format!("cat /sys/fs/cgroup/{file}"))?;
        parse_list(list.trim()).with_context(|| format!("{file}: {list}"))
    }

    /// Everything as at the beginning: usual load, agent up, no cap, highest p-states in the registers.
    pub(crate) fn fresh(&mut self) -> anyhow::Result<()> {
        self.plant.set(|knobs| knobs.meter_gone = false);
        self.load(0.6, 1.0);
        self.agent.lease = Duration::from_secs(60);
        self.agent.fallback_w = 400;
        self.shell.run("systemctl is-active -q ballast-agent || systemctl start ballast-agent")?;
        self.status_when("an agent that sees its meter", |status| status.report.power_w.is_some())?;
        self.release()?;
        Ok(())
    }

    /// Ends all capping; gives the time until the last register is at the highest p-state.
    pub(crate) fn release(&mut self) -> anyhow::Result<Duration> {
        let from = Instant::now();
        self.agent.alert(Level::Watch, None)?;
        let all = |sample: &Sample| sample.registers == [TOP; CPUS];
        let sample = self.plant.wait(&"all p-states at their highest", from, PATIENCE, all)?;
        Ok(sample.at - from)
    }

    /// Sends an alert and gives the time until the last low-priority register is at the floor, or below.
    pub(crate) fn throttle(&mut self, level: Level, cap_w: Option<i64>) -> anyhow::Result<Duration> {
        let from = Instant::now();
        self.agent.alert(level, cap_w)?;
        let low = self.low.clone();
        let down = |sample: &Sample| low.iter().all(|cpu| sample.registers[*cpu] >= FLOOR);
        let sample = self.plant.wait(&"low-priority p-states at the floor", from, PATIENCE, down)?;
        Ok(sample.at - from)
    }

    /// Fails if a user-facing core was below its highest p-state at any time since `from`.
    pub(crate) fn high_untouched(&self, from: Instant) -> anyhow::Result<()> {
        let lowered = |sample: &&Sample| self.high.iter().any(|cpu| sample.registers[*cpu] != TOP);
        match self.plant.since(from).iter().find(lowered) {
            Some(sample) => bail!("a user-facing core was lowered: {:?}", sample.registers),
            None => Ok(()),
        }
    }

    /// Utilisation of user-facing and other VMs.
    pub(crate) fn load(&self, web: f64, batch: f64) {
        let low = self.low.clone();
        self.plant.set(|knobs| {
            for (cpu, load) in knobs.load.iter_mut().enumerate() {
                *load = if low.contains(&cpu) { batch } else { web };
            }
        });
    }

    pub(crate) fn governor(&mut self, name: &str) -> anyhow::Result<()> {
        let files = "/sys/devices/system/cpu/cpufreq/policy*/scaling_governor";
        self.shell.run(&format!("for file in {files}; do echo {name} >$file; done")).map(drop)
    }

    /// Asks the agent until its status meets a condition.
    pub(crate) fn status_when(
        &mut self,
        what: &str,
        condition: impl Fn(&AgentStatus) -> bool,
    ) -> anyhow::Result<AgentStatus> {
        let from = Instant::now();
        loop {
            let answer = self.agent.status();
            match answer {
                Ok(status) if condition(&status) => return Ok(status),
                answer if from.elapsed() > PATIENCE => {
                    let log = self.shell.run("systemctl status -n 20 ballast-agent || true")?;
                    bail!("{what}: not within {PATIENCE:?}: {answer:?}\n{log}");
                }
                _ => thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Fails if a time is beyond the figure to reach, on a host that is quiet enough to judge.
    pub(crate) fn within(&self, what: &str, time: Duration, figure: Duration) -> anyhow::Result<()> {
        if self.judge && time > figure {
            bail!("{what}: {time:.1?}, to reach: {figure:?}");
        }
        Ok(())
    }

    /// Waits for a state; gives the time that it took since `from`.
    pub(crate) fn state(&mut self, state: AgentState, from: Instant) -> anyhow::Result<Duration> {
        self.status_when(&format!("state {state:?}"), |status| status.report.state == state)?;
        Ok(from.elapsed())
    }

    pub(crate) fn agent_pid(&mut self) -> anyhow::Result<u32> {
        let show = "systemctl show --property MainPID --value ballast-agent";
        let pid: u32 = self.shell.run(show)?.trim().parse()?;
        if pid == 0 {
            bail!("the agent does not run");
        }
        Ok(pid)
    }

    /// Every file that Ballast may change.
    pub(crate) fn dump(&mut self) -> anyhow::Result<BTreeMap<String, String>> {
        let text = self.shell.try_run(DUMP, PATIENCE)?.text;
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        Ok(pairs.map(|(path, text)| (path.to_owned(), text.to_owned())).collect())
    }

    /// Fails if a file is not as it was before Ballast ran; names every one.
    pub(crate) fn restored(&mut self) -> anyhow::Result<()> {
        let now = self.dump()?;
        let wrong = differences(&self.before, &now);
        if !wrong.is_empty() {
            bail!("not as before: {}", wrong.join("; "));
        }
        Ok(())
    }
}

/// Every file whose value is another, or that came or went. Where a group had no CPU set of its own, all CPUs
/// are as good: a populated group's cannot be emptied again (ENOSPC). Not the other way round.
pub(crate) fn differences(before: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> Vec<String> {
    let mut wrong = Vec::new();
    let all = format!("0-{}", CPUS - 1);
    for (path, value) in before {
        match now.get(path) {
            Some(new) if new == value => {}
            Some(new) if path.ends_with("/cpuset.cpus") && value.is_empty() && *new == all => {}
            Some(new) => wrong.push(format!("{path} was {value:?}, is {new:?}")),
            None => wrong.push(format!("{path} is gone")),
        }
    }
    let new = now.iter().filter(|(path, _)| !before.contains_key(*path));
    wrong.extend(new.map(|(path, value)| format!("{path} is new: {value:?}")));
    wrong
}

/// `0-1,3` as numbers.
fn parse_list(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_the_kernels() {
        for (list, cpus) in [("0", Some(vec![0])), ("0-1,3", Some(vec![0, 1, 3])), ("", None), ("x", None)] {
            assert_eq!(parse_list(list), cpus, "{list:?}");
        }
    }

    #[test]
    fn every_change_of_a_dump_is_named() {
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(path, value)| ((*path).into(), (*value).into())).collect()
        };
        let before = map(&[("a", "1"), ("b", "2"), ("c", "3")]);
        assert!(differences(&before, &before).is_empty());
        let wrong = differences(&before, &map(&[("a", "1"), ("b", "9"), ("d", "4")]));
        assert_eq!(wrong, ["b was \"2\", is \"9\"", "c is gone", "d is new: \"4\""]);
        for (was, is, good) in [("", "0-3", true), ("0-3", "", false), ("", "0-1", false)] {
            let [was, is] = [was, is].map(|value| map(&[("/g/cpuset.cpus", value)]));
            assert_eq!(differences(&was, &is).is_empty(), good, "{was:?} {is:?}");
        }
    }
}
