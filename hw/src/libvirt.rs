//! libvirt's own pinning: it knows which threads of QEMU are vCPUs, and keeps its own record of where they
//! belong.
//!
//! libvirt may hang, for one domain or for all. So it is asked on a thread of its own, about all domains
//! that wait at once, within [`DEADLINE`]; whoever asks while the daemon runs is not held up: the answer is
//! there the next time.
//!
//! It is asked over D-Bus where `libvirt-dbus` serves it, and by the command `virsh` where not.

mod bus;
#[cfg(test)]
pub(crate) mod testing;
mod virsh;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::error::{HwError, Operation};
use crate::lists::CpuList;
use crate::panics;
use crate::systemd::ShutdownDeadline;
use bus::Bus;
use virsh::Virsh;

/// How long libvirt may take for all domains that wait, together.
pub(crate) const DEADLINE: Duration = Duration::from_secs(5);
/// An answer that nobody has come for is of no use any more.
const FRESH: Duration = Duration::from_secs(30);

/// Where the threads of a domain may run: CPU lists, as text so that the journal can be read by people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pins {
    pub vcpus: BTreeMap<u32, String>,
    pub emulator: String,
    pub iothreads: BTreeMap<u32, String>,
}

impl Pins {
    /// What the tables of `vcpupin`, `emulatorpin` and `iothreadinfo` say; `None` if one of them is no such
    /// table, names no CPU for a thread, or has no vCPU.
    fn read(vcpus: &str, emulator: &str, iothreads: &str) -> Option<Self> {
        let emulator = emulator.lines().find_map(|line| line.trim().strip_prefix("*:"))?;
        let emulator = emulator.trim().to_owned();
        Self { vcpus: rows(vcpus)?, iothreads: rows(iothreads)?, emulator }.sound()
    }

    /// `None` if a thread has no CPU, or there is no vCPU.
    fn sound(self) -> Option<Self> {
        let names_cpus = |list: &String| list.parse::<CpuList>().is_ok_and(|list| !list.is_empty());
        let sound = self.vcpus.values().chain(self.iothreads.values()).all(names_cpus);
        (sound && names_cpus(&self.emulator) && !self.vcpus.is_empty()).then_some(self)
    }

    /// The same for every thread of this domain.
    fn all_on(&self, cpus: &CpuList) -> Self {
        let cpus = cpus.to_string();
        let same = |pins: &BTreeMap<u32, String>| pins.keys().map(|n| (*n, cpus.clone())).collect();
        Self { vcpus: same(&self.vcpus), iothreads: same(&self.iothreads), emulator: cpus.clone() }
    }

    /// With the vCPUs that were there `before` and are unplugged now: libvirt may remember where they were.
    fn with_absent(mut self, before: &Self) -> Self {
        for (n, cpus) in &before.vcpus {
            self.vcpus.entry(*n).or_insert_with(|| cpus.clone());
        }
        self
    }

    /// The threads of this domain where they were `before`. One that has come since was never anywhere else:
    /// it goes where QEMU's own threads were.
    fn back(&self, before: &Self) -> Self {
        let back = |now: &BTreeMap<u32, String>, before: &BTreeMap<u32, String>, other: &String| {
            now.keys().map(|n| (*n, before.get(n).unwrap_or(other).clone())).collect()
        };
        Self {
            vcpus: back(&self.vcpus, &before.vcpus, &before.emulator),
            iothreads: back(&self.iothreads, &before.iothreads, &before.emulator),
            emulator: before.emulator.clone(),
        }
    }
}

/// What the tables of `vcpupin`, `emulatorpin` and `iothreadinfo` say of where a domain's threads may run, for
/// tests that bring tables of their own.
#[cfg(feature = "testing")]
pub fn pins(vcpus: &str, emulator: &str, iothreads: &str) -> Option<Pins> {
    Pins::read(vcpus, emulator, iothreads)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    Read,
    /// Pins every thread to these CPUs.
    Bind(CpuList),
    /// Puts every thread back, and looks whether it is there.
    Restore(Pins),
}

/// Where the threads are, or are to be by now; and what libvirt complained of.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) pins: Pins,
    pub(crate) said: String,
}

type Answers = BTreeMap<u32, Result<Pins, Failure>>;

/// One way to ask libvirt; `over` says when nobody waits any more.
trait Service {
    /// How it is named where something is wrong.
    fn name(&self) -> &Path;

    /// Where the threads of these domains may run now; asked for in this order.
    fn read(&self, domains: &[u32], over: &dyn Fn() -> bool) -> Answers;

    /// Pins every thread; all are tried. Gives what libvirt complained of.
    fn pin(&self, goals: &BTreeMap<u32, Pins>, over: &dyn Fn() -> bool) -> Result<String, Failure>;
}

#[derive(Clone, Debug)]
struct Failure {
    kind: io::ErrorKind,
    why: String,
    allowed: &'static str,
}

impl Failure {
    fn new(kind: io::ErrorKind, why: &dyn fmt::Display, allowed: &'static str) -> Self {
        Self { kind, why: why.to_string(), allowed }
    }

    fn late() -> Self {
        Self::new(io::ErrorKind::TimedOut, &"libvirt does not answer", "an answer in time")
    }

    fn ended() -> Self {
        Self::new(io::ErrorKind::NotFound, &"it has ended", "a domain that runs")
    }

    fn of(self, path: &Path, operation: Operation) -> HwError {
        HwError::io(path, operation, self.allowed, io::Error::new(self.kind, self.why))
    }
}

/// libvirt at one URI. Clones share a thread, which ends with the last of them.
#[derive(Clone, Debug)]
pub(crate) struct Libvirt {
    program: PathBuf,
    uri: String,
    shared: Arc<Shared>,
    wake: Sender<()>,
    deadline: Duration,
    shutdown_deadline: ShutdownDeadline,
}

#[derive(Debug, Default)]
struct Shared {
    jobs: Mutex<Jobs>,
    answered: Condvar,
}

#[derive(Debug, Default)]
struct Jobs {
    pending: BTreeMap<u32, Job>,
    running: BTreeMap<u32, Job>,
    done: BTreeMap<u32, Done>,
}

#[derive(Debug)]
struct Done {
    job: Job,
    answer: Result<Answer, HwError>,
    at: Instant,
}

impl Libvirt {
    /// Starts the thread; `on_answer` is told whenever there are answers.
    pub(crate) fn start(
        deadline: Duration,
        bus: Option<PathBuf>,
        program: PathBuf,
        uri: String,
        shutdown_deadline: ShutdownDeadline,
        on_answer: Option<Sender<()>>,
    ) -> Result<Self, HwError> {
        let failed = |e| HwError::io(&program, Operation::Read, "one more thread", e);
        let (wake, woken) = mpsc::channel();
        let shared = Arc::<Shared>::default();
        let worker = Worker {
            bus,
            uri: uri.clone(),
            virsh: Box::new(Virsh { program: program.clone(), uri: uri.clone() }),
            shared: Arc::clone(&shared),
            shutdown_deadline: shutdown_deadline.clone(),
            late: BTreeSet::new(),
            deadline,
            on_answer,
        };
        thread::Builder::new().name("libvirt".into()).spawn(move || worker.serve(&woken)).map_err(failed)?;
        Ok(Self { program, uri, shared, wake, deadline, shutdown_deadline })
    }

    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// Asks for a job, unless it is being done; gives its answer if it is there, and forgets it. `waits` for
    /// it as long as it may take.
    ///
    /// # Errors
    /// `is_pending` if the answer is not there yet.
    pub(crate) fn ask(&self, domain: u32, job: &Job, waits: bool) -> Result<Answer, HwError> {
        // What was under way before may take as long.
        let until = Instant::now() + self.shutdown_deadline.left(self.deadline * 2);
        let mut jobs = self.shared.lock();
        loop {
            if let Some(done) = jobs.done.remove(&domain)
                && done.job == *job
                && done.at.elapsed() < FRESH
            {
                return done.answer;
            }
            if jobs.running.get(&domain) != Some(job) && jobs.pending.get(&domain) != Some(job) {
                jobs.pending.insert(domain, job.clone());
                // Fails only when the thread has panicked, and then nobody answers.
                let _ = self.wake.send(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if !waits || left.is_zero() {
                let late = Failure::late();
                let kind = if waits { late.kind } else { io::ErrorKind::WouldBlock };
                return Err(Failure { kind, ..late }.of(&self.at(domain), Operation::Read));
            }
            let waited = self.shared.answered.wait_timeout(jobs, left);
            jobs = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// How a domain is named where something is wrong with it.
    fn at(&self, domain: u32) -> PathBuf {
        self.program.join(domain.to_string())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Worker {
    /// The socket of the system bus; `None` where virsh alone is asked.
    bus: Option<PathBuf>,
    uri: String,
    virsh: Box<dyn Service + Send>,
    shared: Arc<Shared>,
    shutdown_deadline: ShutdownDeadline,
    /// Domains that held libvirt up: they are asked about last.
    late: BTreeSet<u32>,
    deadline: Duration,
    on_answer: Option<Sender<()>>,
}

impl Worker {
    fn serve(mut self, woken: &Receiver<()>) {
        while let Ok(()) = woken.recv() {
            let jobs = {
                let mut jobs = self.shared.lock();
                jobs.running = mem::take(&mut jobs.pending);
                jobs.running.clone()
            };
            if jobs.is_empty() {
                continue;
            }

            let answers = panics::caught("libvirt", || self.work(&jobs)).unwrap_or_else(|why| {
                let panicked = Failure::new(io::ErrorKind::Other, &why, "work that goes on");
                let answer = |domain: &u32| {
                    let path = self.virsh.name().join(domain.to_string());
                    Err(panicked.clone().of(&path, Operation::Read))
                };
                jobs.keys().map(answer).collect()
            });
            let at = Instant::now();
            let done = jobs.into_iter().zip(answers);
            let done = done.map(|((domain, job), answer)| (domain, Done { job, answer, at }));
            let mut shared = self.shared.lock();
            shared.running.clear();
            shared.done.retain(|_, done| done.at.elapsed() < FRESH);
            shared.done.extend(done);
            drop(shared);
            self.shared.answered.notify_all();

            if let Some(on_answer) = &self.on_answer {
                // Fails only when nobody looks after VMs any more.
                let _ = on_answer.send(());
            }
        }
    }

    /// Does all of them, each as far as it goes; their answers, in their order.
    fn work(&mut self, jobs: &BTreeMap<u32, Job>) -> Vec<Result<Answer, HwError>> {
        let until = Instant::now() + self.deadline;
        let shutdown_deadline = self.shutdown_deadline.clone();
        let left = move || shutdown_deadline.left(until.saturating_duration_since(Instant::now()));
        let over = || left().is_zero();

        // libvirt-dbus may have come or gone since.
        let bus = self.bus.as_ref().and_then(|bus| Bus::find(bus, &self.uri, self.deadline / 5, &over));
        let libvirt: &dyn Service = bus.as_ref().map_or(&*self.virsh, |bus| bus);

        // Asked anew: vCPUs and I/O threads come and go while a domain runs.
        let mut order: Vec<_> = jobs.keys().copied().collect();
        order.sort_by_key(|domain| self.late.contains(domain));
        // Domains that hang leave time to pin the others.
        let reading = Instant::now() + left() / 2;
        let mut shown = libvirt.read(&order, &|| over() || Instant::now() >= reading);
        Self::note_late(&mut self.late, &order, &shown);

        let goal = |(domain, job): (&u32, &Job)| {
            let now = shown.get(domain)?.as_ref().ok()?;
            match job {
                Job::Read => None,
                Job::Bind(cpus) => Some((*domain, now.all_on(cpus))),
                Job::Restore(before) => Some((*domain, now.back(before).with_absent(before))),
            }
        };
        let goals: BTreeMap<_, _> = jobs.iter().filter_map(goal).collect();
        let pinned = if goals.is_empty() { Ok(String::new()) } else { libvirt.pin(&goals, &over) };

        let verified: Vec<_> =
            goals.keys().copied().filter(|domain| matches!(jobs[domain], Job::Restore(_))).collect();
        let mut again = match &pinned {
            Ok(_) if !verified.is_empty() => libvirt.read(&verified, &over),
            _ => Answers::new(),
        };

        let done = |domain: &u32| {
            let path = libvirt.name().join(domain.to_string());
            let shown = shown.remove(domain).unwrap_or_else(|| Err(Failure::late()));
            let shown = shown.map_err(|why| why.of(&path, Operation::Read))?;
            let Some(goal) = goals.get(domain) else {
                return Ok(Answer { pins: shown, said: String::new() });
            };
            let said = pinned.clone().map_err(|why| why.of(&path, Operation::Write))?;
            match again.remove(domain).transpose().map_err(|why| why.of(&path, Operation::Verify))? {
                Some(now) if now != now.back(goal) => {
                    let allowed = format!("{goal:?}, as pinned; libvirt said {said:?}");
                    Err(HwError::value(&path, Operation::Verify, format_args!("{now:?}"), allowed))
                }
                _ => Ok(Answer { pins: goal.clone(), said }),
            }
        };
        jobs.keys().map(done).collect()
    }

    /// Remembers who holds the others up: the first that was not answered in time.
    fn note_late(late: &mut BTreeSet<u32>, order: &[u32], shown: &Answers) {
        late.retain(|domain| !matches!(shown.get(domain), Some(Ok(_))));
        let is_late = |domain: &&u32| match shown.get(*domain) {
            Some(Err(why)) => why.kind == io::ErrorKind::TimedOut,
            _ => false,
        };
        late.extend(order.iter().find(is_late));
    }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// It panics when it is asked for the first time.
    struct Panics(AtomicBool);

    impl Service for Panics {
        fn name(&self) -> &Path {
            Path::new("panics")
        }
        fn read(&self, domains: &[u32], _: &dyn Fn() -> bool) -> Answers {
            assert!(self.0.swap(true, Ordering::Relaxed), "at domain {domains:?}");
            let pins = Pins { vcpus: [(0, "1".into())].into(), emulator: "1".into(), ..Pins::default() };
            domains.iter().map(|id| (*id, Ok(pins.clone()))).collect()
        }
        fn pin(&self, _: &BTreeMap<u32, Pins>, _: &dyn Fn() -> bool) -> Result<String, Failure> {
            Ok(String::new())
        }
    }

    #[test]
    fn a_panic_is_told_to_who_asks_and_to_who_supervises_and_the_thread_goes_on() {
        static TOLD: Mutex<Vec<String>> = Mutex::new(vec![]);
        panics::tell_panics(|thread, why| TOLD.lock().unwrap().push(format!("{thread}: {why}")));

        let (wake, woken) = mpsc::channel();
        let (shared, shutdown_deadline) = (Arc::<Shared>::default(), ShutdownDeadline::default());
        let worker = Worker {
            bus: None,
            uri: "qemu:///system".into(),
            virsh: Box::new(Panics(AtomicBool::new(false))),
            shared: Arc::clone(&shared),
            shutdown_deadline: shutdown_deadline.clone(),
            late: BTreeSet::new(),
            deadline: DEADLINE,
            on_answer: None,
        };
        thread::spawn(move || worker.serve(&woken));
        let (program, uri) = ("panics".into(), "qemu:///system".into());
        let libvirt = Libvirt { program, uri, shared, wake, deadline: DEADLINE, shutdown_deadline };

        let error = libvirt.ask(3, &Job::Read, true).unwrap_err();
        assert!(error.to_string().contains("it has panicked: at domain [3]"), "{error}");
        assert_eq!(*TOLD.lock().unwrap(), ["libvirt: it has panicked: at domain [3]"]);
        assert_eq!(libvirt.ask(3, &Job::Read, true).unwrap().pins.emulator, "1");
    }

    fn pins(vcpus: &[(u32, &str)]) -> Pins {
        let vcpus = vcpus.iter().map(|(n, cpus)| (*n, (*cpus).to_owned())).collect();
        Pins { vcpus, emulator: "0-15".into(), iothreads: BTreeMap::new() }
    }

    #[test]
    fn a_vcpu_that_is_unplugged_goes_back_with_the_others_and_is_not_waited_for() {
        let before = pins(&[(0, "0-3"), (1, "4-7")]);
        let now = pins(&[(0, "8"), (2, "8")]);
        let goal = now.back(&before).with_absent(&before);
        assert_eq!(goal, pins(&[(0, "0-3"), (1, "4-7"), (2, "0-15")]));

        let after = pins(&[(0, "0-3"), (2, "0-15")]);
        assert_eq!(after, after.back(&goal));
    }
}
