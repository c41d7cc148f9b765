//! When VMs started and ended, in a table that `ballast train --target lifetime` reads.
//!
//! A VM has a row when it comes, without an end, and the same row again when it has ended, with one: of rows with one
//! `vm_id` and one `start_s` the last counts. The file is bounded: when it has grown too long, rows that count no more are
//! left out, and then the VMs that started first. So it has every VM that started after its first row did, whether it has
//! ended or not; a table with the long-lived ones of before alone would make all VMs look long-lived.
//!
//! Nothing waits for this file. Rows are not synced one by one: a power failure may cost the last half minute.

mod table;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::JoinHandle;

use ballast_placement::inventory::Placed;
use ballast_runtime::state::DiskFaults;
use ballast_runtime::threads::supervise;
use ballast_types::Instant;
use ballast_types::wire::LifetimeHistoryStatus;

use table::HistoryTable;

/// Its name in the state folder, in alarms and metrics.
const NAME: &str = "lifetimes.csv";
/// So many changes may wait for a slow disk; later ones are left out, and counted.
const WAITING_MAX: usize = 4096;

/// So many rows are written at once, and those of one request.
const TOGETHER: usize = 1000;

#[derive(Clone)]
pub(super) struct HistoryOptions {
    pub(super) bytes_max: u64,
    pub(super) faults: DiskFaults,
}

/// A VM that came or, with a time, has ended.
pub(super) type HistoryRow = (Placed, Option<Instant>);

/// Hands rows to the thread that writes them.
pub(super) struct LifetimeHistory {
    rows: Option<SyncSender<Vec<HistoryRow>>>,
    writer: Option<JoinHandle<()>>,
    counts: Arc<HistoryCounts>,
}

/// What became of rows since the start.
#[derive(Default)]
pub(super) struct HistoryCounts {
    path: PathBuf,
    bytes: AtomicU64,
    written: AtomicU64,
    dropped: AtomicU64,
}

impl LifetimeHistory {
    /// Goes on with the file in a folder; `there` are the VMs that are placed. Only a thread can fail to start: a file that
    /// cannot be written is an alarm.
    pub(super) fn start(
        folder: &Path,
        options: HistoryOptions,
        there: Vec<(String, Instant)>,
    ) -> io::Result<Self> {
        let path = folder.join(NAME);
        let counts = Arc::new(HistoryCounts { path: path.clone(), ..HistoryCounts::default() });
        let (rows, inbox) = mpsc::sync_channel(WAITING_MAX);
        let now = ballast_runtime::unix_now();
        let mut writer = HistoryWriter {
            table: HistoryTable::new(path, options.bytes_max, now),
            there: Some(there),
            faults: options.faults,
            counts: Arc::clone(&counts),
        };
        let writer = supervise("lifetimes", inbox, move |inbox| writer.run(inbox))?;
        Ok(Self { rows: Some(rows), writer: Some(writer), counts })
    }

    pub(super) fn counts(&self) -> Arc<HistoryCounts> {
        Arc::clone(&self.counts)
    }

    /// Takes note of VMs. It never waits.
    pub(super) fn note(&self, rows: Vec<HistoryRow>) {
        let count = rows.len() as u64;
        let Some(sender) = self.rows.as_ref().filter(|_| count > 0) else { return };
        if sender.try_send(rows).is_err() {
            self.counts.dropped.fetch_add(count, Ordering::Relaxed);
        }
    }
}

impl Drop for LifetimeHistory {
    /// Waits until all is written.
    fn drop(&mut self) {
        self.rows = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl HistoryCounts {
    pub(super) fn status(&self) -> LifetimeHistoryStatus {
        LifetimeHistoryStatus {
            file: self.path.display().to_string(),
            bytes: self.bytes.load(Ordering::Relaxed),
            written: self.written.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
        }
    }
}

struct HistoryWriter {
    table: HistoryTable,
    /// The VMs that were placed at the start, until the file is open.
    there: Option<Vec<(String, Instant)>>,
    faults: DiskFaults,
    counts: Arc<HistoryCounts>,
}

impl HistoryWriter {
    fn run(&mut self, inbox: &Receiver<Vec<HistoryRow>>) {
        self.write(&[]);
        while let Ok(mut rows) = inbox.recv() {
            while rows.len() < TOGETHER
                && let Ok(more) = inbox.try_recv()
            {
                rows.extend(more);
            }
            self.write(&rows);
        }
        let synced = self.table.sync();
        self.note(synced);
    }

    fn write(&mut self, rows: &[HistoryRow]) {
        let now = ballast_runtime::unix_now();
        let opened = match &self.there {
            Some(there) => self.table.open(there),
            None => Ok(()),
        };
        if opened.is_ok() {
            self.there = None;
        }

        let written = opened.and_then(|()| self.table.append(rows, now));
        let counter = if written.is_ok() { &self.counts.written } else { &self.counts.dropped };
        counter.fetch_add(rows.len() as u64, Ordering::Relaxed);
        self.counts.bytes.store(self.table.bytes(), Ordering::Relaxed);
        self.note(written);
    }

    fn note(&self, written: io::Result<()>) {
        self.faults.note(NAME, written.err().map(|error| error.to_string()));
    }
}
