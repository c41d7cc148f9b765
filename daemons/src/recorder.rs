//! Writes down what moved a machine and what it then wanted, for `ballast replay`.
//!
//! The control thread only hands steps over; a thread of its own serialises and writes them. Files
//! rotate at [`ROTATE_BYTES`] and are never removed here: that is the operator's choice.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant as Clock, SystemTime};

use ballast_types::Instant;
use ballast_types::recording::{Header, Step};
use serde::Serialize;

/// A file that has grown to this size is followed by another.
const ROTATE_BYTES: u64 = 64 << 20;
/// A crash loses no more than this of a recording.
const FLUSH: Duration = Duration::from_secs(1);

/// The control thread's end of a recording.
pub struct Recorder<I, O> {
    steps: Option<Sender<Step<I, O>>>,
    writer: Option<JoinHandle<()>>,
}

impl<I, O> Recorder<I, O>
where
    I: Serialize + Send + 'static,
    O: Serialize + Send + 'static,
{
    /// Starts a recording in `folder`, named by machine and start.
    ///
    /// # Errors
    /// When the folder or the first file cannot be made.
    pub fn start<P, S>(
        folder: &Path,
        machine: &str,
        at: Instant,
        params: P,
        start: S,
    ) -> io::Result<Self>
    where
        P: Serialize + Send + 'static,
        S: Serialize + Send + 'static,
    {
        fs::create_dir_all(folder)?;
        let header = Header { unix_ms: unix_ms(), ..Header::new(machine, at, params, start) };
        let stem = folder.join(format!("{machine}-{:020}", at.as_nanos()));
        let mut files = Files::open(stem, header)?;
        let (steps, inbox) = mpsc::channel();
        let writer = thread::Builder::new().name("recorder".into()).spawn(move || {
            if let Err(error) = files.write_all(&inbox) {
                tracing::error!(%error, "recording stopped");
            }
        })?;
        Ok(Self { steps: Some(steps), writer: Some(writer) })
    }

    /// Takes one step.
    pub fn record(&self, step: Step<I, O>) {
        if let Some(steps) = &self.steps {
            // Fails only when the writer has stopped, which it has said.
            let _ = steps.send(step);
        }
    }
}

impl<I, O> Drop for Recorder<I, O> {
    /// Waits until everything is on disk.
    fn drop(&mut self) {
        self.steps = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
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
    file: BufWriter<File>,
    written: u64,
}

impl<P: Serialize, S: Serialize> Files<P, S> {
    fn open(stem: PathBuf, mut header: Header<P, S>) -> io::Result<Self> {
        let (file, written) = create(&stem, 0, &header)?;
        header.start = None;
        Ok(Self { stem, header, number: 0, file, written })
    }

    fn write_all<I: Serialize, O: Serialize>(
        &mut self,
        inbox: &Receiver<Step<I, O>>,
    ) -> io::Result<()> {
        let mut flushed = Clock::now();
        loop {
            if flushed.elapsed() >= FLUSH {
                self.file.flush()?;
                flushed = Clock::now();
            }
            match inbox.recv_timeout(FLUSH) {
                Ok(step) => {
                    let line = serde_json::to_vec(&step)?;
                    self.file.write_all(&line)?;
                    self.file.write_all(b"\n")?;
                    self.written += line.len() as u64 + 1;
                    if self.written >= ROTATE_BYTES {
                        self.file.flush()?;
                        self.number += 1;
                        (self.file, self.written) = create(&self.stem, self.number, &self.header)?;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.file.flush()?;
                    return self.file.get_ref().sync_all();
                }
            }
        }
    }
}

fn create<H: Serialize>(
    stem: &Path,
    number: u32,
    header: &H,
) -> io::Result<(BufWriter<File>, u64)> {
    let path = PathBuf::from(format!("{}-{number:04}.jsonl", stem.display()));
    let mut file = BufWriter::new(File::create_new(path)?);
    let line = serde_json::to_vec(header)?;
    file.write_all(&line)?;
    file.write_all(b"\n")?;
    file.flush()?;
    Ok((file, line.len() as u64 + 1))
}
