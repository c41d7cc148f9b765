//! libvirt's own pinning, through the command `virsh`: it knows which threads of QEMU are vCPUs, and keeps
//! its own record of where they belong.
//!
//! The command is run without a shell, with arguments that are numbers and CPU lists of ours alone; it has
//! [`DEADLINE`] to answer, since a domain's job lock can hold it up.
//!
//! Source: virsh(1) (`vcpupin`, `emulatorpin`, `iothreadinfo`, `iothreadpin`); libvirt's cgroups.rst. The
//! tables were checked with virsh 9.0.

use core::time::Duration;
use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::error::{HwError, Operation};
use crate::lists::CpuList;
use crate::systemd::ShutdownDeadline;

/// How long one command may take.
const DEADLINE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(2);
/// More of an answer is not read.
const MAX_ANSWER: u64 = 64 * 1024;

/// Where the threads of a domain may run: CPU lists, as text so that the journal can be read by people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pins {
    /// By number of the vCPU.
    pub vcpus: BTreeMap<u32, String>,
    pub emulator: String,
    /// By number of the I/O thread.
    #[serde(default)]
    pub iothreads: BTreeMap<u32, String>,
}

impl Pins {
    /// What the tables of `vcpupin`, `emulatorpin` and `iothreadinfo` say; `None` if one of them is no such
    /// table, names no CPU for a thread, or has no vCPU.
    fn read(vcpus: &str, emulator: &str, iothreads: &str) -> Option<Self> {
        let emulator = emulator.lines().find_map(|line| line.trim().strip_prefix("*:"))?;
        let emulator = emulator.trim().to_owned();
        let pins = Self { vcpus: rows(vcpus)?, iothreads: rows(iothreads)?, emulator };

        let names_cpus = |list: &String| list.parse::<CpuList>().is_ok_and(|list| !list.is_empty());
        let sound = pins.vcpus.values().chain(pins.iothreads.values()).all(names_cpus);
        (sound && names_cpus(&pins.emulator) && !pins.vcpus.is_empty()).then_some(pins)
    }

    /// The same for every thread of this domain.
    pub(crate) fn all_on(&self, cpus: &CpuList) -> Self {
        let cpus = cpus.to_string();
        let same = |pins: &BTreeMap<u32, String>| pins.keys().map(|n| (*n, cpus.clone())).collect();
        Self { vcpus: same(&self.vcpus), iothreads: same(&self.iothreads), emulator: cpus.clone() }
    }
}

/// What the tables of `vcpupin`, `emulatorpin` and `iothreadinfo` say of where a domain's threads may run, for
/// tests that bring tables of their own.
#[cfg(feature = "testing")]
pub fn pins(vcpus: &str, emulator: &str, iothreads: &str) -> Option<Pins> {
    Pins::read(vcpus, emulator, iothreads)
}

/// The command.
#[derive(Clone, Debug)]
pub(crate) struct Virsh {
    program: PathBuf,
    uri: String,
    deadline: Duration,
    shutdown_deadline: ShutdownDeadline,
}

impl Virsh {
    pub(crate) fn new(program: PathBuf, uri: String, shutdown_deadline: ShutdownDeadline) -> Self {
        Self { program, uri, deadline: DEADLINE, shutdown_deadline }
    }

    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    #[cfg(test)]
    pub(crate) fn within(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Where the threads of a domain may run now.
    pub(crate) fn pins(&self, domain: u32) -> Result<Pins, HwError> {
        let ask = |command| self.run(Operation::Read, domain, &[command, &domain.to_string(), "--live"]);
        let (vcpus, emulator, iothreads) = (ask("vcpupin")?, ask("emulatorpin")?, ask("iothreadinfo")?);

        Pins::read(&vcpus, &emulator, &iothreads).ok_or_else(|| {
            let allowed = "tables of numbers and CPU lists, as virsh 9 prints them";
            self.failed(Operation::Read, domain, io::ErrorKind::InvalidData.into(), allowed)
        })
    }

    /// Pins every thread; all are tried.
    pub(crate) fn pin(&self, domain: u32, pins: &Pins) -> Result<(), HwError> {
        let id = domain.to_string();
        let run = |words: &[&str]| self.run(Operation::Write, domain, words).map(drop);
        let vcpus = pins.vcpus.iter().map(|(n, cpus)| ("vcpupin", n, cpus));
        let threads = vcpus.chain(pins.iothreads.iter().map(|(n, cpus)| ("iothreadpin", n, cpus)));
        let one =
            |(command, n, cpus): (&str, &u32, &String)| run(&[command, &id, &n.to_string(), cpus, "--live"]);
        let emulator = run(&["emulatorpin", &id, &pins.emulator, "--live"]);
        threads.map(one).fold(emulator, Result::and)
    }

    fn failed(&self, operation: Operation, domain: u32, source: io::Error, allowed: &str) -> HwError {
        HwError::io(&self.program.join(domain.to_string()), operation, allowed, source)
    }

    fn run(&self, operation: Operation, domain: u32, words: &[&str]) -> Result<String, HwError> {
        let failed = |source: io::Error, allowed: &str| self.failed(operation, domain, source, allowed);
        let missing = |error: io::Error| match error.kind() {
            // No command is not a VM that has ended.
            io::ErrorKind::NotFound => io::Error::new(io::ErrorKind::Unsupported, error.to_string()),
            _ => error,
        };

        let mut child = Command::new(&self.program)
            .args(["--connect", &self.uri])
            .args(words)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| failed(missing(error), "the command virsh (package libvirt-clients)"))?;
        // Read beside the waiting: an answer that fills a pipe must not hold the command up.
        let (out, err) = (drain(child.stdout.take()), drain(child.stderr.take()));
        let until = Instant::now() + self.shutdown_deadline.left(self.deadline);
        let late = || failed(io::ErrorKind::TimedOut.into(), "an answer in time");
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < until => thread::sleep(PAUSE),
                other => {
                    // Ours, and it does not end by itself.
                    let _ = child.kill();
                    let _ = child.wait();
                    let why = other.err().map(|error| failed(error, "a command that ends"));
                    return Err(why.unwrap_or_else(late));
                }
            }
        };

        // Whoever the command has left behind may hold its output open for ever.
        let all = |pipe: Receiver<String>| {
            pipe.recv_timeout(until.saturating_duration_since(Instant::now())).map_err(|_| late())
        };
        let (out, err) = (all(out)?, all(err)?);

        if status.success() {
            return Ok(out);
        }
        let gone = err.contains("failed to get domain") || err.contains("Domain not found");
        let kind = if gone { io::ErrorKind::NotFound } else { io::ErrorKind::Other };
        let text: String = err.split_whitespace().collect::<Vec<_>>().join(" ");
        let text = text.chars().take(200).collect::<String>();

        Err(failed(io::Error::new(kind, text), "a domain that runs, and a libvirt that pins it"))
    }
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

/// The rows of a table of numbers and CPU lists; `None` if one says something else.
fn rows(table: &str) -> Option<BTreeMap<u32, String>> {
    let numbered = |line: &&str| line.trim_start().starts_with(|c: char| c.is_ascii_digit());
    let row = |line: &str| {
        let (number, cpus) = line.trim().split_once(char::is_whitespace)?;
        Some((number.parse().ok()?, cpus.trim().to_owned()))
    };
    table.lines().filter(numbered).map(row).collect()
}
