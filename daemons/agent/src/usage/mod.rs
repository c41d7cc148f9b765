//! What every VM uses: read once a second, recorded every five minutes, and made into advice once a day.
//!
//! ```text
//!   usage (reads cgroups; no lock is held meanwhile) ──records──▶ records (disk, labels) ──▶ VMs, status
//! ```

mod advice;
mod record_writer;
mod summary;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use ballast_agent_core::{OverflowMeter, SlowReading, UsageReading, UsageRecorder};
use ballast_hw::Root;
use ballast_types::wire::AgentStatus;
use ballast_types::{UsageRecord, VmId, VmStart};

use super::message::Message;
use super::vms::{Measured, Vms};
use crate::config::AgentConfig;
use crate::job_limits::Recommendations;
use crate::records;
use ballast_runtime::control::Snapshot;
use ballast_runtime::threads::supervise;
use ballast_runtime::{clock, lock};
use record_writer::RecordWriter;

/// Between two looks at CPU use.
const SECOND: Duration = Duration::from_secs(1);
/// Looks at CPU use for one at memory and what else is counted.
const SLOW_EVERY: u64 = 10;
/// A CPU that is used for so much of a second, in millicores, is taken for used up.
const FULL_MC: u64 = 990;
/// Batches that wait for a slow disk; more are dropped.
const WAITING: usize = 4;

/// A instance of a VM.
type VmInstance = (VmId, VmStart);

/// What goes to the disk's thread.
struct Batch {
    records: Vec<UsageRecord>,
    /// The VMs whose class nobody has told; `None` at the end, when nothing is made of them any more.
    classless: Option<Vec<VmInstance>>,
}

/// Recording, until it is dropped; then what is under way is written down.
pub(super) struct Usage {
    stop: Option<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Usage {
    fn drop(&mut self) {
        self.stop = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

pub(super) fn start(
    config: &AgentConfig,
    root: &Root,
    vms: Arc<Mutex<Vms>>,
    snapshot: Arc<Snapshot<AgentStatus>>,
    messages: Sender<Message>,
) -> anyhow::Result<Usage> {
    let notes = lock(&vms).notes();
    let folder = records::folder(&config.daemon.state_dir);
    let memory_bytes = ballast_hw::memory_bytes(root);
    let limits = Recommendations::new(config.job_limits.clone(), &folder, memory_bytes);
    let (records, notes_of_writer) = (config.records.clone(), notes.clone());
    let writer = RecordWriter::new(folder, records, limits, Arc::clone(&vms), notes_of_writer, messages);

    let (batches, inbox) = mpsc::sync_channel(WAITING);
    let keeping = supervise("records", writer, move |writer| {
        for batch in &inbox {
            writer.take(batch);
        }
    })?;

    let (stop, stopped) = mpsc::channel();
    let sampler = Sampler {
        root: root.clone(),
        vms,
        snapshot,
        batches,
        notes,
        measured: vec![],
        promised_cpus: None,
        restricted: BTreeMap::new(),
        looks: 0,
        recorder: UsageRecorder::default(),
        cpus: None,
        overflow: OverflowMeter::default(),
    };

    let sampling = supervise("usage", sampler, move |sampler| {
        sampler.run(&stopped);
        sampler.end();
    })?;

    Ok(Usage { stop: Some(stop), threads: vec![sampling, keeping] })
}

struct Sampler {
    root: Root,
    vms: Arc<Mutex<Vms>>,
    snapshot: Arc<Snapshot<AgentStatus>>,
    batches: SyncSender<Batch>,
    notes: super::vms::Notes,
    /// As they were when the VMs could last be asked.
    measured: Vec<Measured>,
    /// How many CPUs the promise is about, if not all.
    promised_cpus: Option<u64>,
    /// For how many core-milliseconds each VM had been restricted at the last look.
    restricted: BTreeMap<VmId, u64>,
    looks: u64,
    recorder: UsageRecorder,
    /// How many CPUs are online; `None` where that is not known.
    cpus: Option<u64>,
    overflow: OverflowMeter,
}

impl Sampler {
    /// Looks once a second, until it is told to stop. Looks that a slow one left no time for are not made
    /// up for.
    fn run(&mut self, stopped: &Receiver<()>) {
        let mut next = clock::now();
        loop {
            self.look();
            let now = clock::now();
            next = (next + SECOND).max(now);
            match stopped.recv_timeout(next - now) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn look(&mut self) {
        // While cores are being moved the VMs are those of before; the first time there are none.
        let first = self.looks == 0;
        let vms = if first { Some(lock(&self.vms)) } else { self.vms.try_lock().ok() };

        if let Some(now) = vms.map(|vms| (vms.measured().to_vec(), vms.promised_cpus())) {
            (self.measured, self.promised_cpus) = now;
        }
        let throttled = self.throttled();

        // The first look counts for nothing.
        let is_slow = self.looks % SLOW_EVERY == 1;
        self.looks += 1;
        let (mut readings, mut classless) = (vec![], vec![]);

        for it in &self.measured {
            let from = clock::now();

            // One that has gone is not read, and so missing.
            let Ok(start) = it.start() else { continue };
            let times = it.group.times().ok();
            let used_us = times.map(|times| times.used.as_micros() as u64);
            let to = clock::now();
            let counters = || it.group.counters(times.as_ref());
            let slow = is_slow.then(|| SlowReading { memory: it.group.memory(), counters: counters() });

            if it.classless {
                classless.push((it.vm.clone(), start));
            }
            let (vm, cores, promised) = (it.vm.clone(), it.cores, it.promised);
            let throttled = throttled.contains(&it.vm);
            readings.push(UsageReading { vm, start, cores, from, to, used_us, promised, throttled, slow });
        }

        let wall = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let records = self.recorder.look(clock::now(), wall, readings);
        self.count_overflow(wall.as_secs(), is_slow);
        let counted = self.recorder.counted();
        let hours = self.overflow.hours().collect();
        self.notes.usage(|usage| (usage.records.measured_s, usage.hours) = (counted, hours));

        // At once for what a previous instance has recorded; later it does not haste.
        if first || !records.is_empty() {
            self.send(Batch { records, classless: Some(classless) });
        }
    }

    /// Whether the VMs have used all that the server has, where they have more cores than that together; in pools,
    /// whether the user-facing ones have used all of theirs.
    fn count_overflow(&mut self, unix_s: u64, looks_anew: bool) {
        if looks_anew || self.cpus.is_none() {
            let online = ballast_hw::online(&self.root).ok().flatten();
            self.cpus = online.map(|cpus| cpus.iter().count() as u64).filter(|cpus| *cpus > 0);
        }
        let second = self.recorder.second().zip(self.promised_cpus.or(self.cpus));
        let over = second.map(|(it, cpus)| it.cores > cpus && it.used_mc >= cpus * FULL_MC);
        self.overflow.second(unix_s, over);
    }

    /// Which VMs were restricted at any time since the last look, by the controller's own account. With a
    /// dry run nobody is.
    fn throttled(&mut self) -> Vec<VmId> {
        let Some(status) = self.snapshot.get().filter(|status| status.dry_run.is_none()) else {
            return vec![];
        };
        let before = std::mem::take(&mut self.restricted);
        let mut throttled = vec![];
        for vm in &status.vms {
            let restricted = vm.impact.throttled_core_ms + vm.impact.limited_core_ms;
            let more = before.get(&vm.vm).is_some_and(|before| restricted > *before);
            let now = vm.min_khz.is_some() || vm.quota_millicores.is_some();
            if more || now || status.report.server_limit {
                throttled.push(vm.vm.clone());
            }
            self.restricted.insert(vm.vm.clone(), restricted);
        }
        throttled
    }

    fn send(&self, batch: Batch) {
        if let Err(TrySendError::Full(batch)) = self.batches.try_send(batch) {
            let lost = batch.records.len() as u64;
            self.notes.usage(|usage| usage.records.dropped += lost);
            tracing::warn!(lost, "usage records were dropped: the disk does not keep up");
        }
    }

    fn end(&mut self) {
        let records = std::mem::take(&mut self.recorder).finish();
        self.send(Batch { records, classless: None });
    }
}
