//! The command `virsh`, run without a shell: its arguments are numbers and CPU lists of ours alone.
//!
//! One run asks about all domains: `echo` puts a mark before every table. virsh goes on after a command
//! that failed, and its exit code is that of the last one, so what counts is which tables there are.
//!
//! Source: virsh(1) (`vcpupin`, `emulatorpin`, `iothreadinfo`, `iothreadpin`, `echo`). Tables and marks were
//! checked with virsh 9.0; with `--quiet` it leaves out the ends of lines.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::{Answers, Failure, Pins, Service};

const PAUSE: Duration = Duration::from_millis(2);
/// More of an answer is not read.
const MAX_ANSWER: u64 = 8 << 20;
/// The kernel takes 128 KiB as one argument.
const MAX_LINE: usize = 100 << 10;
/// How long the output of a command that was killed may take to end.
const AFTER_KILL: Duration = Duration::from_millis(100);
pub(super) const TELLS: &str = "a domain that runs, and a libvirt that tells of it";
const TABLES: &str = "tables of numbers and CPU lists, as virsh 9 prints them";

#[derive(Clone, Debug)]
pub(super) struct Virsh {
    pub(super) program: PathBuf,
    pub(super) uri: String,
}

/// What one run, or several, have said.
#[derive(Default)]
struct Said {
    out: String,
    err: String,
    failed: Option<Failure>,
}

impl Service for Virsh {
    fn name(&self) -> &Path {
        &self.program
    }

    /// One that holds the others up is the first without an answer.
    fn read(&self, domains: &[u32], over: &dyn Fn() -> bool) -> Answers {
        let ask = |id: &u32| {
            format!(
                "echo @v{id}; vcpupin {id} --live; echo @e{id}; emulatorpin {id} --live; \
                 echo @i{id}; iothreadinfo {id} --live"
            )
        };
        let said = self.run(domains.iter().map(ask), over);
        let tables = tables(said.whole());

        let pins = |id: u32| {
            let table = |kind: &str| tables.get(format!("{kind}{id}").as_str()).copied();
            Pins::read(table("v")?, table("e")?, table("i").filter(|text| !text.trim().is_empty())?)
        };
        domains.iter().map(|id| (*id, pins(*id).ok_or_else(|| said.why(*id)))).collect()
    }

    fn pin(&self, goals: &BTreeMap<u32, Pins>, over: &dyn Fn() -> bool) -> Result<String, Failure> {
        let pins = goals.iter().flat_map(|(id, pins)| {
            let emulator = format!("emulatorpin {id} {} --live", pins.emulator);
            let vcpus = pins.vcpus.iter().map(move |(n, cpus)| format!("vcpupin {id} {n} {cpus} --live"));
            let threads = pins.iothreads.iter();
            let threads = threads.map(move |(n, cpus)| format!("iothreadpin {id} {n} {cpus} --live"));
            std::iter::once(emulator).chain(vcpus).chain(threads)
        });
        let said = self.run(pins, over);
        said.failed.map_or(Ok(one_line(&said.err)), Err)
    }
}

impl Virsh {
    /// Runs these commands, in as few processes as hold them, until one does not end in time.
    fn run(&self, commands: impl Iterator<Item = String>, over: &dyn Fn() -> bool) -> Said {
        let mut lines: Vec<String> = vec![];
        for command in commands {
            match lines.last_mut().filter(|line| line.len() + command.len() < MAX_LINE) {
                Some(line) => {
                    line.push_str("; ");
                    line.push_str(&command);
                }
                None => lines.push(command),
            }
        }

        let mut all = Said::default();
        for line in lines {
            let said = self.run_line(&line, over);
            all.out.push_str(&said.out);
            all.err.push_str(&said.err);
            all.failed = said.failed;
            if all.failed.is_some() {
                break;
            }
        }
        all
    }

    fn run_line(&self, line: &str, over: &dyn Fn() -> bool) -> Said {
        let spawned = Command::new(&self.program)
            .args(["--connect", &self.uri, line])
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) => {
                // No command is not a VM that has ended.
                let is_missing = error.kind() == io::ErrorKind::NotFound;
                let kind = if is_missing { io::ErrorKind::Unsupported } else { error.kind() };
                let failed = Failure::new(kind, &error, "the command virsh (package libvirt-clients)");
                return Said { failed: Some(failed), ..Said::default() };
            }
        };

        // Read beside the waiting: an answer that fills a pipe must not hold the command up.
        let (out, err) = (drain(child.stdout.take()), drain(child.stderr.take()));
        let mut failed = loop {
            match child.try_wait() {
                Ok(Some(_)) => break None,
                Ok(None) if !over() => thread::sleep(PAUSE),
                other => {
                    // Ours, and it does not end by itself.
                    let _ = child.kill();
                    let _ = child.wait();
                    let late = Failure::late();
                    break Some(other.err().map_or(late, |e| Failure::new(e.kind(), &e, "an end")));
                }
            }
        };

        // Whoever the command has left behind may hold its output open for ever.
        let mut all = |pipe: &Receiver<String>| loop {
            match pipe.recv_timeout(AFTER_KILL) {
                Ok(text) => return text,
                Err(RecvTimeoutError::Timeout) if failed.is_none() && !over() => {}
                Err(_) => {
                    failed.get_or_insert_with(Failure::late);
                    return String::new();
                }
            }
        };
        let (out, err) = (all(&out), all(&err));

        Said { out, err, failed }
    }
}

impl Said {
    /// All tables but the one that was being written when a command did not end.
    fn whole(&self) -> &str {
        let end = self.failed.as_ref().map(|_| self.out.rfind('@').unwrap_or_default());
        &self.out[..end.unwrap_or(self.out.len())]
    }

    fn why(&self, domain: u32) -> Failure {
        if self.err.contains(&format!("failed to get domain '{domain}'")) {
            return Failure::ended();
        }
        if let Some(failed) = &self.failed {
            return failed.clone();
        }
        match one_line(&self.err) {
            text if text.is_empty() => Failure::new(io::ErrorKind::InvalidData, &"no such answer", TABLES),
            text => Failure::new(io::ErrorKind::Other, &text, TELLS),
        }
    }
}

/// The start of what virsh complained of.
pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect()
}

/// The tables by their marks. No table has an `@` in it.
fn tables(out: &str) -> BTreeMap<&str, &str> {
    out.split('@').filter_map(|part| part.split_once('\n')).collect()
}

fn drain(pipe: Option<impl io::Read + Send + 'static>) -> Receiver<String> {
    let (answer, all) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let mut bytes = vec![];
        if let Some(pipe) = pipe {
            // What was read before an error is all there is.
            let _ = pipe.take(MAX_ANSWER).read_to_end(&mut bytes);
        }
        // Fails only when nobody waits any more.
        let _ = answer.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    all
}
