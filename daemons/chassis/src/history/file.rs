//! The rows of 10 s on disk, so that a restart keeps the day: one line of JSON for each.
//!
//! Rows are appended by a thread of its own. After a day's rows the file becomes the one before, whose rows are then older
//! than a day once the new one is full; so there are never more than two.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender};

use ballast_runtime::state::DiskFaults;
use ballast_runtime::threads::supervise;
use ballast_types::ServerId;
use serde::{Deserialize, Serialize};

use super::Kept;

/// A day.
const ROWS_MAX: u64 = 8_640;
/// Rows that wait for the disk: more than two minutes of them.
const ROWS_WAITING: usize = 16;
/// A line of the largest chassis is far shorter; what is longer is no row.
const LINE_BYTES_MAX: usize = 1 << 20;
/// Alarms and metrics call it so.
const NAME: &str = "history";

/// 10 s: minimum, mean and maximum of draw and limit, where they were known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FileRow {
    pub(crate) at_unix_ms: u64,
    pub(crate) chassis: [Option<[f32; 3]>; 2],
    pub(crate) servers: BTreeMap<ServerId, [Option<[f32; 3]>; 2]>,
}

/// Reads back what an earlier instance has written in `folder`; lines that cannot be read are left out. Then writes what
/// comes by the sender.
pub(crate) fn open(folder: &Path, kept: &mut Kept, faults: DiskFaults) -> io::Result<SyncSender<FileRow>> {
    let now = [folder.join("history.jsonl"), folder.join("history.1.jsonl")];
    let [_, before] = &now;
    let earlier = restore(before, kept);
    let rows = restore(&now[0], kept);
    if earlier + rows > 0 {
        tracing::info!(rows = earlier + rows, "history read");
    }

    let (sender, inbox) = mpsc::sync_channel(ROWS_WAITING);
    let mut writer = Writer { files: now, rows, file: None };
    supervise("history-writer", inbox, move |inbox: &mut Receiver<FileRow>| {
        while let Ok(row) = inbox.recv() {
            let written = writer.append(&row);
            if written.is_err() {
                // Another try begins on another line, whatever stands there.
                writer.file = None;
            }
            faults.note(NAME, written.err().map(|error| error.to_string()));
        }
    })?;
    Ok(sender)
}

/// Reads a file into `kept`; says how many rows it has.
fn restore(path: &Path, kept: &mut Kept) -> u64 {
    let Ok(file) = File::open(path) else { return 0 };
    let mut rows = 0;
    for line in BufReader::new(file).split(b'\n').map_while(Result::ok) {
        rows += 1;
        if rows > 2 * ROWS_MAX || line.len() > LINE_BYTES_MAX {
            break;
        }
        if let Ok(row) = serde_json::from_slice(&line) {
            kept.restore(&row);
        }
    }
    rows
}

struct Writer {
    /// The one that grows, and the one before.
    files: [PathBuf; 2],
    /// How many the one that grows has.
    rows: u64,
    file: Option<File>,
}

impl Writer {
    fn append(&mut self, row: &FileRow) -> io::Result<()> {
        let [path, before] = &self.files;
        if self.rows >= ROWS_MAX {
            self.file = None;
            fs::rename(path, before)?;
            self.rows = 0;
        }

        let mut line = serde_json::to_vec(row)?;
        line.push(b'\n');
        if self.file.is_none() {
            self.file = Some(OpenOptions::new().create(true).append(true).open(path)?);
            // What stands there may end in half a line.
            line.insert(0, b'\n');
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        file.write_all(&line)?;
        self.rows += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_damaged_is_left_out_and_the_files_stay_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let files = [folder.path().join("history.jsonl"), folder.path().join("history.1.jsonl")];
        let row = |n: u64| FileRow {
            at_unix_ms: 1_764_000_000_000 + n * super::super::COARSE_MS,
            chassis: [Some([1.0, 2.0, n as f32]), None],
            servers: BTreeMap::new(),
        };
        let mut writer = Writer { files: files.clone(), rows: ROWS_MAX - 1, file: None };
        writer.append(&row(0)).unwrap();
        writer.append(&row(1)).unwrap();
        let text = |path| fs::read_to_string(path).unwrap();
        assert_eq!(
            (text(&files[1]).trim(), text(&files[0]).trim().lines().count()),
            (serde_json::to_string(&row(0)).unwrap().as_str(), 1)
        );

        // A crash in the middle of a line, and then a new start.
        fs::write(&files[0], format!("{}{{\"at_unix", text(&files[0]))).unwrap();
        let mut writer = Writer { file: None, ..writer };
        writer.append(&row(2)).unwrap();
        let mut kept = Kept::new([]);
        assert_eq!(restore(&files[1], &mut kept), 2);
        restore(&files[0], &mut kept);
        let question =
            super::super::Question { since_unix_ms: 0, step_ms: super::super::COARSE_MS, server: None };
        let found: Vec<_> = kept.answer(&question).unwrap().power_max_w.into_iter().flatten().collect();
        assert_eq!(found, [0.0, 1.0, 2.0]);
    }
}
