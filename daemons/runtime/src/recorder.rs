//! Writes down what moved a machine and what it then wanted, for `ballast replay`.
//!
//! The control thread only hands steps over; a thread of its own serialises and writes them. Files
//! rotate at `ROTATE_BYTES` and are never removed here: that is the operator's choice.
//!
//! A disk that is full, or stalls, ends no daemon. Steps wait for it, `STEPS_WAITING` at most. When that was
//! too few, the recording ends with those: what comes after a gap cannot be replayed. The next start begins
//! another.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant as Clock, SystemTime};

use ballast_types::Instant;
use ballast_types::recording::{Header, Step};
use serde::Serialize;

use crate::state::{DiskFaults, RETRY};

/// A file that has grown to this size is followed by another.
const ROTATE_BYTES: u64 = 64 << 20;
/// So much is written at once, and a crash loses no more than [`FLUSH`] of a recording.
const CHUNK_BYTES: usize = 64 << 10;
const FLUSH: Duration = Duration::from_secs(1);
/// Steps that wait for the disk: minutes of a daemon's, and a few megabytes.
const STEPS_WAITING: usize = 2048;
/// How long an ending daemon waits for its last steps to be on disk.
const END_WITHIN: Duration = Duration::from_secs(2);

/// What a full disk keeps from being written, in alarms and metrics.
const RECORDING: &str = "recording";
/// The same, after steps were lost.
const ENDED: &str = "recording after a gap";

/// The control thread's end of a recording.
pub struct Recorder<I, O> {
    /// `None` once steps were lost: then it is over.
    steps: Option<SyncSender<Step<I, O>>>,
    faults: DiskFaults,
    /// The daemon ends: what cannot be written now is left out.
    is_last_try: Arc<AtomicBool>,
    ended: Receiver<()>,
}

impl<I, O> Recorder<I, O>
where
    I: Serialize + Send + 'static,
    O: Serialize + Send + 'static,
{
    /// Starts a recording in `folder`, named by machine and start. What cannot be written is told to
    /// `faults`, and tried again.
    pub fn start<P, S>(
        folder: &Path,
        machine: &str,
        at: Instant,
        params: P,
        start: S,
        faults: &DiskFaults,
    ) -> io::Result<Self>
    where
        P: Serialize + Send + 'static,
        S: Serialize + Send + 'static,
    {
        let header = Header { unix_ms: unix_ms(), ..Header::new(machine, at, params, start) };
        let stem = folder.join(format!("{machine}-{:020}", at.as_nanos()));
        let (steps, inbox) = mpsc::sync_channel(STEPS_WAITING);
        let (end, ended) = mpsc::channel();
        let is_last_try = Arc::new(AtomicBool::new(false));
        let mut files = Files {
            stem,
            header,
            number: 0,
            file: None,
            written: 0,
            pending: vec![],
            faults: faults.clone(),
            is_last_try: Arc::clone(&is_last_try),
        };

        thread::Builder::new().name("recorder".into()).spawn(move || {
            if let Err(error) = files.write_all(&inbox) {
                tracing::error!(%error, "recording stopped");
            }
            drop(end);
        })?;

        Ok(Self { steps: Some(steps), faults: faults.clone(), is_last_try, ended })
    }

    /// Takes one step, at once.
    pub fn record(&mut self, step: Step<I, O>) {
        let Some(steps) = &self.steps else { return self.faults.count_dropped_step() };
        if steps.try_send(step).is_err() {
            self.steps = None;
            self.faults.count_dropped_step();
            let why =
                "the disk was too slow or full for too long: it ends here, and the next start begins another";
            self.faults.note(ENDED, Some(why.into()));
        }
    }
}

impl<I, O> Drop for Recorder<I, O> {
    /// Waits until everything is on disk, but not for a disk that stalls: an ending agent has cores to put
    /// back.
    fn drop(&mut self) {
        self.is_last_try.store(true, Ordering::Relaxed);
        self.steps = None;
        let _ = self.ended.recv_timeout(END_WITHIN);
    }
}

/// What clocks on the wall show.
fn unix_ms() -> Option<i64> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
    i64::try_from(since.as_millis()).ok()
}

struct Files<P, S> {
    stem: PathBuf,
    header: Header<P, S>,
    number: u32,
    /// `None` until it could be made.
    file: Option<File>,
    written: u64,
    /// Whole lines, but for what of the first is in the file already.
    pending: Vec<u8>,
    faults: DiskFaults,
    is_last_try: Arc<AtomicBool>,
}

impl<P: Serialize, S: Serialize> Files<P, S> {
    fn write_all<I: Serialize, O: Serialize>(&mut self, inbox: &Receiver<Step<I, O>>) -> io::Result<()> {
        self.begin()?;
        self.flush()?;
        let mut flushed = Clock::now();

        loop {
            let more = match inbox.recv_timeout(FLUSH) {
                Ok(step) => {
                    serde_json::to_writer(&mut self.pending, &step)?;
                    self.pending.push(b'\n');
                    true
                }
                Err(RecvTimeoutError::Timeout) => true,
                Err(RecvTimeoutError::Disconnected) => false,
            };

            if !more || self.pending.len() >= CHUNK_BYTES || flushed.elapsed() >= FLUSH {
                self.flush()?;
                flushed = Clock::now();
            }

            if !more {
                return self.file.as_ref().map_or(Ok(()), File::sync_all);
            }
            if self.written >= ROTATE_BYTES && self.pending.is_empty() {
                self.number += 1;
                self.file = None;
                self.begin()?;
            }
        }
    }

    fn begin(&mut self) -> io::Result<()> {
        serde_json::to_writer(&mut self.pending, &self.header)?;
        self.pending.push(b'\n');
        self.header.start = None;
        self.written = 0;
        Ok(())
    }

    /// Writes all that is pending, however long the disk refuses it; the daemon's end is waited for no
    /// longer.
    fn flush(&mut self) -> io::Result<()> {
        loop {
            match self.try_flush() {
                Ok(()) => {
                    self.faults.note(RECORDING, None);
                    return Ok(());
                }
                Err(error) if self.is_last_try.load(Ordering::Relaxed) => return Err(error),
                Err(error) => self.faults.note(RECORDING, Some(error.to_string())),
            }
            thread::sleep(RETRY);
        }
    }

    /// Goes on in the middle of a line where the disk has refused before.
    fn try_flush(&mut self) -> io::Result<()> {
        let path = PathBuf::from(format!("{}-{:04}.jsonl", self.stem.display(), self.number));
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        while !self.pending.is_empty() {
            let file = match &mut self.file {
                Some(file) => file,
                none => none.insert(create(&path).map_err(named)?),
            };

            match file.write(&self.pending) {
                Ok(0) => return Err(named(ErrorKind::WriteZero.into())),
                Ok(n) => {
                    self.pending.drain(..n);
                    self.written += n as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(named(error)),
            }
        }

        Ok(())
    }
}

fn create(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    File::create_new(path)
}

#[cfg(test)]
mod tests {
    use ballast_types::Cause;

    use super::*;

    fn step(n: u64) -> Step<u64, u64> {
        Step { at: Instant::from_millis(n), cause: Cause::Input(n), outputs: vec![n] }
    }

    fn wait(what: &str, done: impl Fn() -> bool) {
        let begun = Clock::now();
        while !done() {
            assert!(begun.elapsed() < Duration::from_secs(20), "never: {what}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn lines(folder: &Path) -> Vec<String> {
        let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
        files.sort();
        let text: String = files.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
        text.lines().map(str::to_owned).collect()
    }

    fn start(folder: &Path, faults: &DiskFaults) -> Recorder<u64, u64> {
        Recorder::start(folder, "test", Instant::ZERO, (), (), faults).unwrap()
    }

    #[test]
    fn a_folder_that_comes_later_gets_every_step_from_the_first_on() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, faults) = (dir.path().join("recording"), DiskFaults::default());
        fs::write(&folder, "in the way").unwrap();
        let mut recorder = start(&folder, &faults);
        wait("it is an alarm", || faults.alarms().iter().any(|it| it.contains("recording")));
        for n in 0..100 {
            recorder.record(step(n));
        }
        fs::remove_file(&folder).unwrap();
        wait("it is over", || faults.alarms().is_empty());
        recorder.record(step(100));
        drop(recorder);
        let lines = lines(&folder);
        assert_eq!(lines.len(), 102);
        let last: Step<u64, u64> = serde_json::from_str(&lines[101]).unwrap();
        assert_eq!((last, faults.dropped_steps()), (step(100), 0));
    }

    #[test]
    fn after_a_gap_the_recording_ends_and_what_is_lost_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, faults) = (dir.path().join("recording"), DiskFaults::default());
        fs::write(&folder, "in the way").unwrap();
        let mut recorder = start(&folder, &faults);
        wait("it is an alarm", || !faults.alarms().is_empty());
        let sent = STEPS_WAITING as u64 + 10;

        for n in 0..sent {
            recorder.record(step(n));
        }
        assert_eq!(faults.dropped_steps(), 10);
        fs::remove_file(&folder).unwrap();
        wait("what there was is written", || folder.exists() && lines(&folder).len() == STEPS_WAITING + 1);
        recorder.record(step(sent));
        drop(recorder);
        let lines = lines(&folder);
        let last: Step<u64, u64> = serde_json::from_str(lines.last().unwrap()).unwrap();
        assert_eq!((last, faults.dropped_steps()), (step(STEPS_WAITING as u64 - 1), 11));
        assert!(faults.alarms().iter().any(|it| it.contains("the next start begins another")));
    }

    #[test]
    fn an_end_does_not_wait_for_a_disk_that_takes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("recording");
        fs::write(&folder, "in the way").unwrap();
        let mut recorder = start(&folder, &DiskFaults::default());
        recorder.record(step(1));
        let begun = Clock::now();
        drop(recorder);
        assert!(begun.elapsed() < 2 * END_WITHIN, "{:?}", begun.elapsed());
    }
}
