//! Load on all cores alike: threads of our own on this machine, a file on a rig.

use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ballast_hw::{Domain, Root};
use ballast_testbed::rig::{OWN_LOAD, load_file};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// A thread is busy for a part of every such period: shorter than any meter's.
const PERIOD: Duration = Duration::from_millis(50);
/// Work between two looks at the clock: some microseconds.
const BATCH: u32 = 2_000;

/// Load that can be set, and is gone when this is dropped.
pub(super) enum Load {
    /// This machine.
    Threads(Threads),
    Rig(PathBuf),
}

impl Load {
    pub(super) fn start(root: &Root, domains: &[Domain]) -> anyhow::Result<Self> {
        if root.is_machine() {
            return Ok(Self::Threads(Threads::start(domains)?));
        }
        let file = load_file(&root.path(""));
        if !file.is_file() {
            bail!(
                "{} is not this machine, so threads here would not load it, and there is no {}, which a rig \
                 has",
                root.path("").display(),
                file.display()
            );
        }
        Ok(Self::Rig(file))
    }

    /// Keeps every core busy for this share of its time.
    pub(super) fn set(&self, share: f64) -> anyhow::Result<()> {
        match self {
            Self::Threads(threads) => threads.set(share),
            Self::Rig(file) => {
                fs::write(file, format!("{share}\n")).with_context(|| file.display().to_string())?;
            }
        }
        Ok(())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if let Self::Rig(file) = self {
            // There is nobody to tell: the rig may have ended.
            let _ = fs::write(file, OWN_LOAD);
        }
    }
}

/// One thread on every CPU, busy for a part of each period.
pub(super) struct Threads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    ppm: AtomicU32,
    ended: AtomicBool,
}

impl Threads {
    fn start(domains: &[Domain]) -> anyhow::Result<Self> {
        let mut all = Self { shared: Arc::default(), threads: vec![] };
        for (n, domain) in domains.iter().enumerate() {
            // The siblings of a core work together, so that it is busy when they are; the cores one after the
            // other, so that the server's draw is even.
            let offset = PERIOD.mul_f64(n as f64 / domains.len() as f64);

            for cpu in domain.cpus.iter() {
                let (shared, name) = (Arc::clone(&all.shared), format!("load-{cpu}"));
                let (pinned, told) = std::sync::mpsc::channel();
                let thread = thread::Builder::new().name(name).spawn(move || {
                    // Fails only when the other end gave up.
                    let _ = pinned.send(pin(cpu));
                    shared.work(offset);
                })?;

                all.threads.push(thread);
                told.recv().context("a load thread ended")?.with_context(|| format!("CPU {cpu}"))?;
            }
        }

        Ok(all)
    }

    fn set(&self, share: f64) {
        self.shared.ppm.store((share.clamp(0.0, 1.0) * 1e6) as u32, Ordering::Relaxed);
        self.wake();
    }

    fn wake(&self) {
        self.threads.iter().for_each(|thread| thread.thread().unpark());
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.wake();
        for thread in self.threads.drain(..) {
            // One that has panicked has ended, too.
            let _ = thread.join();
        }
    }
}

fn pin(cpu: u32) -> nix::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu as usize)?;
    sched_setaffinity(Pid::from_raw(0), &cpus)
}

impl Shared {
    fn work(&self, offset: Duration) {
        let start = Instant::now();
        let mut sum = 1.0_f64;
        while !self.ended.load(Ordering::Relaxed) {
            let ppm = self.ppm.load(Ordering::Relaxed);
            if ppm == 0 {
                // Nothing wakes a core that is to be idle.
                thread::park();
                continue;
            }

            let since = start.elapsed() + offset;
            let into = Duration::from_nanos((since.as_nanos() % PERIOD.as_nanos()) as u64);
            let busy = PERIOD.mul_f64(f64::from(ppm) / 1e6);

            if into >= busy {
                thread::sleep(PERIOD - into);
                continue;
            }

            sum = batch(sum);
        }

        black_box(sum);
    }
}

/// Integer and floating-point work that stays in the core.
fn batch(from: f64) -> f64 {
    let (mut number, mut sum) = (from.to_bits() | 1, from);
    for _ in 0..BATCH {
        number ^= number << 13;
        number ^= number >> 7;
        number ^= number << 17;
        sum = black_box(sum * 0.999 + (number >> 40) as f64);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_types::CoreId;

    /// CPU time of the thread of that name, as the scheduler counts it.
    fn cpu_time(name: &str) -> Option<Duration> {
        let tasks = fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path());
        let named =
            |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name);
        let stat = fs::read_to_string(tasks.into_iter().find(named)?.join("schedstat")).ok()?;
        Some(Duration::from_nanos(stat.split(' ').next()?.parse().ok()?))
    }

    #[test]
    fn a_thread_is_busy_for_its_share_and_ends_with_its_owner() {
        let allowed = nix::sched::sched_getaffinity(Pid::from_raw(0)).unwrap();
        let cpu = (0..CpuSet::count()).find(|&n| allowed.is_set(n).unwrap()).unwrap();
        let cpus = [cpu as u32].into_iter().collect();
        let domain = Domain { cpus, ..Domain::from(CoreId(cpu as u16)) };
        let (start, name) = (Instant::now(), format!("load-{cpu}"));
        let threads = Threads::start(&[domain]).unwrap();
        threads.set(0.5);

        // However little this machine lets it run, it comes so far, and never further than its share.
        let enough = Duration::from_millis(300);
        let used = loop {
            let used = cpu_time(&name).unwrap();
            if used >= enough {
                break used;
            }
            assert!(start.elapsed() < Duration::from_secs(120), "{used:?}");
            thread::sleep(Duration::from_millis(5));
        };

        assert!(used <= start.elapsed() / 2 + PERIOD, "{used:?} of {:?}", start.elapsed());
        drop(threads);
        assert_eq!(cpu_time(&name), None);
    }

    #[test]
    fn a_folder_that_is_no_rig_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        let error = Load::start(&root, &[]).err().unwrap().to_string();
        assert!(error.contains("is not this machine"), "{error}");
        fs::write(dir.path().join("load"), OWN_LOAD).unwrap();
        let load = Load::start(&root, &[]).unwrap();
        load.set(0.25).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("load")).unwrap(), "0.25\n");
        drop(load);
        assert_eq!(fs::read_to_string(dir.path().join("load")).unwrap(), OWN_LOAD);
    }
}
