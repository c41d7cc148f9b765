//! The demo's processes: started, watched, measured, and ended whatever happens.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use procfs_core::FromRead;
use procfs_core::process::Status;
use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System};

/// Between two looks at a process that is ending.
const LOOK: Duration = Duration::from_millis(20);

pub struct Process {
    /// What it is, for messages; also the stem of its log file.
    pub name: String,
    child: Child,
    log: PathBuf,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts this program again as `args`. It ends when we do, and does not see our Ctrl-C.
    ///
    /// Must be called from the main thread: the kernel ties the child to the thread that forked it.
    pub fn start(name: &str, args: &[&str], logs: &Path) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(program);
        command.args(args).args(["--exit-with-parent", &std::process::id().to_string()]).process_group(0);
        Self::spawn(name, command, logs.join(format!("{name}.log")))
    }

    /// Starts a command; what it prints goes to the end of a log file. It is killed when dropped.
    pub fn spawn(name: &str, mut command: Command, log: PathBuf) -> anyhow::Result<Self> {
        let file = File::options().create(true).append(true).open(&log);
        let file = file.with_context(|| format!("cannot create {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name: name.to_owned(), child, log, ended: None })
    }

    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            // An error here means that there is no such child any more.
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal, unless it has ended.
    pub fn signal(&mut self, signal: Signal) {
        if self.ended().is_none() {
            // It is not reaped yet, so the number is still its own.
            let _ = kill(Pid::from_raw(self.child.id().cast_signed()), signal);
        }
    }

    pub fn wait(&mut self) -> std::io::Result<ExitStatus> {
        if let Some(status) = self.ended {
            return Ok(status);
        }
        let status = self.child.wait()?;
        self.ended = Some(status);
        Ok(status)
    }

    /// Resident memory and processor time so far.
    pub fn usage(&self) -> Option<Usage> {
        Usage::of(self.child.id())
    }

    pub fn last_words(&self, lines: usize) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        let _ = self.wait();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub rss_kib: u64,
    /// The most that it was.
    pub peak_rss_kib: u64,
    /// Processor time since its start.
    pub cpu: Duration,
}

impl Usage {
    /// Of the process with that number; `None` once it has ended.
    pub fn of(id: u32) -> Option<Self> {
        let pid = sysinfo::Pid::from_u32(id);
        let mut system = System::new().ok()?;
        let what = ProcessRefreshKind::nothing().without_tasks().with_cpu().with_memory();
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), true, what);
        let process = system.process(pid)?;

        // `sysinfo` does not know the peak.
        let status = Status::from_read(File::open(format!("/proc/{id}/status")).ok()?).ok()?;

        Some(Self {
            rss_kib: process.memory() / 1024,
            peak_rss_kib: status.vmhwm?,
            cpu: Duration::from_millis(process.accumulated_cpu_time()),
        })
    }
}

/// All processes; dropping it ends them all.
#[derive(Default)]
pub struct Fleet {
    /// The rig first, so that it is the last to end.
    pub rig: Option<Process>,
    /// The agents, in the servers' order.
    pub agents: Vec<Process>,
    pub chassis: Option<Process>,
}

impl Fleet {
    pub fn all(&mut self) -> impl Iterator<Item = &mut Process> {
        self.chassis.iter_mut().chain(&mut self.agents).chain(&mut self.rig)
    }

    /// Fails with its last words if any process has ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        for process in self.all() {
            if let Some(status) = process.ended() {
                bail!("{} ended: {status}\n{}", process.name, process.last_words(10));
            }
        }
        Ok(())
    }

    /// Ends the daemons, chassis first, so that they put everything back. Says which did not end well.
    pub fn end_daemons(&mut self, grace: Duration) -> Vec<String> {
        let mut problems = end(self.chassis.iter_mut().collect(), grace);
        problems.extend(end(self.agents.iter_mut().collect(), grace));
        problems
    }

    pub fn end_rig(&mut self, grace: Duration) -> Vec<String> {
        end(self.rig.iter_mut().collect(), grace)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let grace = Duration::from_secs(3);
        self.end_daemons(grace);
        self.end_rig(grace);
    }
}

/// SIGTERM to all, then SIGKILL to those that stay longer than `grace`.
fn end(mut processes: Vec<&mut Process>, grace: Duration) -> Vec<String> {
    let deadline = Instant::now() + grace;
    for process in &mut processes {
        process.signal(Signal::SIGTERM);
    }
    while Instant::now() < deadline && processes.iter_mut().any(|process| process.ended().is_none()) {
        std::thread::sleep(LOOK);
    }
    let mut problems = vec![];

    for process in processes {
        if process.ended().is_none() {
            process.signal(Signal::SIGKILL);
            let _ = process.wait();
            problems.push(format!(
                "{} did not end within {} s and was killed",
                process.name,
                grace.as_secs()
            ));
        } else if let Some(status) = process.ended.filter(|status| !status.success()) {
            problems.push(format!("{} ended: {status}", process.name));
        }
    }

    problems
}

/// `n` free loopback addresses. Another program may take one before it is used; then start again.
pub fn free_addresses(n: usize) -> anyhow::Result<Vec<SocketAddr>> {
    let held: Vec<TcpListener> = (0..n)
        .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .collect::<Result<_, _>>()
        .context("cannot find free ports on 127.0.0.1")?;
    held.iter().map(|listener| Ok(listener.local_addr()?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_uses_is_known_until_it_ends() {
        let usage = Usage::of(std::process::id()).unwrap();
        assert!(usage.rss_kib > 0 && usage.peak_rss_kib >= usage.rss_kib, "{usage:?}");

        let start = Instant::now();
        while Usage::of(std::process::id()).unwrap().cpu <= usage.cpu {
            assert!(start.elapsed() < Duration::from_secs(60), "{usage:?}");
        }
        // No process has the highest number.
        assert_eq!(Usage::of(u32::try_from(i32::MAX).unwrap()), None);
    }

    #[test]
    fn a_process_that_ignores_sigterm_is_killed_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("deaf.log");
        let child = Command::new("sh")
            .args(["-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"])
            .stdout(File::create(&log).unwrap())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut deaf = Process { name: "deaf".into(), child, log, ended: None };
        while deaf.last_words(1) != "ready" {
            std::thread::sleep(LOOK);
        }
        let problems = end(vec![&mut deaf], Duration::from_millis(100));
        assert!(problems[0].contains("deaf did not end"), "{problems:?}");
        assert!(deaf.ended().is_some());
    }

    #[test]
    fn free_addresses_differ() {
        let mut ports: Vec<_> = free_addresses(13).unwrap().iter().map(SocketAddr::port).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 13);
    }
}
