//! What every VM uses: read once a second, recorded every five minutes, and made into advice once a day.
//!
//! ```text
//!   usage (reads cgroups; no lock is held meanwhile) ──records──▶ records (disk, labels) ──▶ VMs, status
//! ```

mod advice;
mod record_writer;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use ballast_agent_core::{MemoryReading, UsageReading, UsageRecorder};
use ballast_types::wire::AgentStatus;
use ballast_types::{UsageRecord, VmId, VmStart};

use super::message::Message;
use super::vms::{Measured, Vms};
use crate::config::AgentConfig;
use crate::records;
use ballast_runtime::control::Snapshot;
use ballast_runtime::threads::supervise;
use ballast_runtime::{clock, lock};
use record_writer::RecordWriter;

/// Between two looks at CPU use.
const SECOND: Duration = Duration::from_secs(1);
/// Looks at CPU use for one at memory.
const MEMORY_EVERY: u64 = 10;
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
    vms: Arc<Mutex<Vms>>,
    snapshot: Arc<Snapshot<AgentStatus>>,
    messages: Sender<Message>,
) -> anyhow::Result<Usage> {
    let notes = lock(&vms).notes();
    let folder = records::folder(&config.daemon.state_dir);
    let writer = RecordWriter::new(folder, config.records.clone(), Arc::clone(&vms), notes.clone(), messages);

    let (batches, inbox) = mpsc::sync_channel(WAITING);
    let keeping = supervise("records", writer, move |writer| {
        for batch in &inbox {
            writer.take(batch);
        }
    })?;

    let (stop, stopped) = mpsc::channel();
    let (measured, restricted, recorder) = (vec![], BTreeMap::new(), UsageRecorder::default());
    let sampler = Sampler { vms, snapshot, batches, notes, measured, restricted, looks: 0, recorder };

    let sampling = supervise("usage", sampler, move |sampler| {
        sampler.run(&stopped);
        sampler.end();
    })?;

    Ok(Usage { stop: Some(stop), threads: vec![sampling, keeping] })
}

struct Sampler {
    vms: Arc<Mutex<Vms>>,
    snapshot: Arc<Snapshot<AgentStatus>>,
    batches: SyncSender<Batch>,
    notes: super::vms::Notes,
    /// As they were when the VMs could last be asked.
    measured: Vec<Measured>,
    /// For how many core-milliseconds each VM had been restricted at the last look.
    restricted: BTreeMap<VmId, u64>,
    looks: u64,
    recorder: UsageRecorder,
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

        if let Some(measured) = vms.map(|vms| vms.measured().to_vec()) {
            self.measured = measured;
        }
        let throttled = self.throttled();

        // The first look counts for nothing.
        let memory = self.looks % MEMORY_EVERY == 1;
        self.looks += 1;
        let (mut readings, mut classless) = (vec![], vec![]);

        for it in &self.measured {
            let from = clock::now();

            // One that has gone is not read, and so missing.
            let Ok(start) = it.start() else { continue };
            let used = it.group.times().ok().map(|times| times.used.as_micros() as u64);
            let to = clock::now();
            let memory = memory.then(|| {
                let memory = it.group.memory();
                MemoryReading {
                    current_bytes: memory.current_bytes,
                    peak_bytes: memory.peak_bytes,
                    oom_kills: memory.oom_kills,
                }
            });

            if it.classless {
                classless.push((it.vm.clone(), start));
            }
            let (vm, cores, throttled) = (it.vm.clone(), it.cores, throttled.contains(&it.vm));
            readings.push(UsageReading { vm, start, cores, from, to, used_us: used, throttled, memory });
        }

        let wall = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let records = self.recorder.look(clock::now(), wall, readings);
        let counted = self.recorder.counted();
        self.notes.usage(|usage| usage.records.measured_s = counted);

        // At once for what a previous instance has recorded; later it does not haste.
        if first || !records.is_empty() {
            self.send(Batch { records, classless: Some(classless) });
        }
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
