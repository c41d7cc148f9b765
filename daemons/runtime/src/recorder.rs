//! Writes down what moved a machine and what it then wanted, for `ballast replay`.
//!
//! The control thread only hands steps over; a thread of its own serialises, compresses and writes them. Every
//! file after the first begins with the whole machine, so that each can be replayed without those before it.
//! Therefore any finished file may be removed: the oldest go, so that all of this machine's files stay under a
//! size. A crash loses no more than a second.
//!
//! A disk that is full, or stalls, ends no daemon. Steps wait for it, `STEPS_WAITING` at most; those that come
//! then are lost and counted. Once there is room again the recording goes on in another file.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant as Clock, SystemTime};

use ballast_types::recording::{Header, MachineState, Step};
use ballast_types::{Instant, Machine};
use serde::Serialize;

use crate::state::{DiskFaults, RECORDING, RECORDING_STEPS, RETRY};
use crate::threads::{self, supervise};

/// A file that has grown to this size, or to a part of all that may be kept, is followed by another.
const ROTATE_BYTES: u64 = 16 << 20;
const FILES_KEPT: u64 = 8;
/// Steps repeat each other: a higher level takes more memory and saves little.
const LEVEL: i32 = 3;
/// What is written stands on disk after so long; a crash loses no more.
const FLUSH: Duration = Duration::from_secs(1);
/// Steps that wait for the disk: minutes of a daemon's, and a few megabytes.
const STEPS_WAITING: usize = 2048;
/// How long an ending daemon waits for its last steps to be on disk.
const END_WITHIN: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 2 });

/// What the control thread hands over.
enum Entry<M: Machine> {
    Step(Step<M::Input, M::Output>),
    /// Another file begins here.
    State(Box<MachineState<M>>),
}

/// What the two threads tell each other beside the steps.
#[derive(Default)]
struct Flags {
    /// The daemon ends: what cannot be written now is left out.
    is_last_try: AtomicBool,
    /// The file is large: another should begin.
    wants_state: AtomicBool,
}

/// The control thread's end of a recording.
pub struct Recorder<M: Machine> {
    /// `None` once the daemon ends.
    entries: Option<SyncSender<Entry<M>>>,
    /// Steps since the machine's start.
    steps: u64,
    /// While steps are lost: when room for another file's begin is looked for.
    resumes_at: Option<Instant>,
    faults: DiskFaults,
    flags: Arc<Flags>,
    ended: Receiver<()>,
}

impl<M> Recorder<M>
where
    M: Machine<Input: Serialize + Send, Output: Serialize + Send> + Clone + Serialize + Send + 'static,
{
    /// Starts a recording in `folder`, named by machine and start, and keeps that machine's files there under
    /// `max_bytes`. What cannot be written is told to `faults`, and tried again.
    pub fn start<P, S>(
        folder: &Path,
        max_bytes: u64,
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
        let (entries, inbox) = mpsc::sync_channel(STEPS_WAITING);
        let (end, ended) = mpsc::channel();
        let flags = Arc::new(Flags::default());
        let mut files = Files {
            folder: folder.to_owned(),
            header,
            number: 0,
            file: None,
            written: 0,
            encoder: zstd::Encoder::new(vec![], LEVEL)?,
            max_bytes,
            faults: faults.clone(),
            flags: Arc::clone(&flags),
        };

        let mut begun = false;
        supervise("recorder", (inbox, end), move |(inbox, _)| {
            loop {
                let again = mem::replace(&mut begun, true);
                let written = if again { files.resume(inbox) } else { files.start(inbox) };
                let Err(error) = written else { return };
                // No fault of the disk's: those are tried again.
                threads::note("recorder", &error);
            }
        })?;

        Ok(Self { entries: Some(entries), steps: 0, resumes_at: None, faults: faults.clone(), flags, ended })
    }

    /// Takes the step that `machine` has made, at once.
    pub fn record(&mut self, step: Step<M::Input, M::Output>, machine: &M) {
        let at = step.at;
        self.steps += 1;

        if self.resumes_at.is_some() || !self.hand_over(Entry::Step(step)) {
            self.faults.count_dropped_step();
            let why = "the disk was too slow or full for too long: the recording goes on in another file \
                       once there is room";
            self.faults.note(RECORDING_STEPS, Some(why.into()));
            self.resumes_at.get_or_insert(at + RETRY);
        }

        let is_due = match self.resumes_at {
            Some(resumes_at) => at >= resumes_at,
            None => self.flags.wants_state.swap(false, Ordering::Relaxed),
        };
        if is_due {
            let state = MachineState { at, steps: self.steps, machine: machine.clone() };
            if self.hand_over(Entry::State(Box::new(state))) {
                self.resumes_at = None;
                self.faults.note(RECORDING_STEPS, None);
            } else {
                self.resumes_at = Some(at + RETRY);
            }
        }
    }

    /// Whether there was room.
    fn hand_over(&self, entry: Entry<M>) -> bool {
        self.entries.as_ref().is_some_and(|entries| entries.try_send(entry).is_ok())
    }
}

impl<M: Machine> Drop for Recorder<M> {
    /// Waits until everything is on disk, but not for a disk that stalls: an ending agent has cores to put
    /// back.
    fn drop(&mut self) {
        self.flags.is_last_try.store(true, Ordering::Relaxed);
        self.entries = None;
        let _ = self.ended.recv_timeout(END_WITHIN);
    }
}

/// What clocks on the wall show.
fn unix_ms() -> Option<i64> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
    i64::try_from(since.as_millis()).ok()
}

struct Files<P, S, M> {
    folder: PathBuf,
    header: Header<P, S, M>,
    number: u32,
    /// `None` until it could be made.
    file: Option<File>,
    written: u64,
    /// Holds what is compressed and not in the file yet.
    encoder: zstd::Encoder<'static, Vec<u8>>,
    max_bytes: u64,
    faults: DiskFaults,
    flags: Arc<Flags>,
}

impl<P: Serialize, S: Serialize, M> Files<P, S, M>
where
    M: Machine<Input: Serialize, Output: Serialize> + Serialize,
{
    fn start(&mut self, inbox: &Receiver<Entry<M>>) -> io::Result<()> {
        line(&mut self.encoder, &self.header)?;
        self.header.start = None;
        self.flush()?;
        self.write_all(inbox)
    }

    /// Goes on after a panic: what was being written may be half, so that another file begins with the machine's state.
    fn resume(&mut self, inbox: &Receiver<Entry<M>>) -> io::Result<()> {
        self.header.start = None;
        self.flags.wants_state.store(true, Ordering::Relaxed);
        while let Ok(entry) = inbox.recv() {
            match entry {
                Entry::Step(_) => self.faults.count_dropped_step(),
                Entry::State(state) => {
                    self.begin(*state)?;
                    return self.write_all(inbox);
                }
            }
        }
        Ok(())
    }

    fn write_all(&mut self, inbox: &Receiver<Entry<M>>) -> io::Result<()> {
        let (mut is_asked, mut flushed) = (false, Clock::now());

        loop {
            match inbox.recv_timeout(FLUSH) {
                Ok(Entry::Step(step)) => line(&mut self.encoder, &step)?,
                Ok(Entry::State(state)) => {
                    self.finish()?;
                    self.begin(*state)?;
                    is_asked = false;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.finish(),
            }

            if flushed.elapsed() >= FLUSH {
                self.flush()?;
                flushed = Clock::now();
            }
            if self.written >= self.rotate_bytes() && !is_asked {
                self.flags.wants_state.store(true, Ordering::Relaxed);
                is_asked = true;
            }
        }
    }

    fn rotate_bytes(&self) -> u64 {
        ROTATE_BYTES.min(self.max_bytes / FILES_KEPT)
    }

    /// Begins another file, with the machine as it is between two steps.
    fn begin(&mut self, state: MachineState<M>) -> io::Result<()> {
        self.number += 1;
        self.file = None;
        self.written = 0;
        self.encoder = zstd::Encoder::new(vec![], LEVEL)?;
        self.header.state = Some(state);
        line(&mut self.encoder, &self.header)?;
        self.header.state = None;
        Ok(())
    }

    /// Ends the file, on disk.
    fn finish(&mut self) -> io::Result<()> {
        self.encoder.do_finish()?;
        self.write_out()?;
        self.file.as_ref().map_or(Ok(()), File::sync_all)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.encoder.flush()?;
        self.write_out()
    }

    /// Writes all that is compressed, however long the disk refuses it; the daemon's end is waited for no
    /// longer.
    fn write_out(&mut self) -> io::Result<()> {
        loop {
            match self.try_write_out() {
                Ok(()) => {
                    self.faults.note(RECORDING, None);
                    return Ok(());
                }
                Err(error) if self.flags.is_last_try.load(Ordering::Relaxed) => return Err(error),
                Err(error) => self.faults.note(RECORDING, Some(error.to_string())),
            }
            thread::sleep(RETRY);
        }
    }

    /// Goes on in the middle of a line where the disk has refused before.
    fn try_write_out(&mut self) -> io::Result<()> {
        let Header { machine, at, .. } = &self.header;
        let name = format!("{machine}-{:020}-{:04}.jsonl.zst", at.as_nanos(), self.number);
        let path = self.folder.join(name);
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let room = self.max_bytes - self.rotate_bytes();
        let pending = self.encoder.get_mut();

        while !pending.is_empty() {
            let file = match &mut self.file {
                Some(file) => file,
                none => {
                    fs::create_dir_all(&self.folder).map_err(named)?;
                    remove_oldest(&self.folder, machine, room)?;
                    none.insert(File::create_new(&path).map_err(named)?)
                }
            };

            match file.write(pending) {
                Ok(0) => return Err(named(ErrorKind::WriteZero.into())),
                Ok(n) => {
                    pending.drain(..n);
                    self.written += n as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(named(error)),
            }
        }

        Ok(())
    }
}

fn line(out: &mut impl io::Write, value: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    out.write_all(&text)
}

/// Removes the oldest files of one machine until all together take `room` at most.
fn remove_oldest(folder: &Path, machine: &str, room: u64) -> io::Result<()> {
    let mut files = vec![];
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_ours = name.strip_prefix(machine).is_some_and(|rest| rest.starts_with('-'));
        if is_ours && name.ends_with(".jsonl.zst") {
            let about = entry.metadata()?;
            files.push((about.modified()?, entry.path(), about.len()));
        }
    }
    files.sort();

    let mut all: u64 = files.iter().map(|file| file.2).sum();
    for (_, path, bytes) in files {
        if all > room {
            fs::remove_file(&path)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
            tracing::info!(file = %path.display(), "old recording removed: record_max_mb");
            all -= bytes;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use ballast_types::{Cause, Why};

    use super::*;

    /// Adds up what it is told.
    #[derive(Clone, Default, Serialize)]
    struct Sum(u64);

    impl Machine for Sum {
        type Input = u64;
        type Output = u64;
        fn handle_input(&mut self, _: Instant, input: u64) {
            self.0 += input;
        }
        fn handle_timeout(&mut self, _: Instant) {}
        fn poll_timeout(&self) -> Option<(Instant, Why)> {
            None
        }
        fn poll_output(&mut self) -> Option<u64> {
            None
        }
    }

    /// One input for each second; the machine has taken it.
    fn step(n: u64) -> Step<u64, u64> {
        Step { at: Instant::from_millis(1000 * n), cause: Cause::Input(n), outputs: vec![n] }
    }

    fn record(recorder: &mut Recorder<Sum>, n: u64) {
        recorder.record(step(n), &Sum(n));
    }

    fn wait(what: &str, done: impl Fn() -> bool) {
        let begun = Clock::now();
        while !done() {
            assert!(begun.elapsed() < Duration::from_secs(20), "never: {what}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(folder) else { return vec![] };
        let mut files: Vec<_> = entries.map(|it| it.unwrap().path()).collect();
        files.sort();
        files
    }

    /// The lines of a file, as far as it is written.
    fn lines(file: &Path) -> Vec<serde_json::Value> {
        let mut text = vec![];
        let _ = zstd::Decoder::new(File::open(file).unwrap()).unwrap().read_to_end(&mut text);
        let text = String::from_utf8(text).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn steps(lines: &[serde_json::Value]) -> Vec<u64> {
        lines[1..].iter().map(|line| line["cause"]["input"].as_u64().unwrap()).collect()
    }

    fn start(folder: &Path, max_bytes: u64, faults: &DiskFaults) -> Recorder<Sum> {
        Recorder::start(folder, max_bytes, "test", Instant::ZERO, (), (), faults).unwrap()
    }

    #[test]
    fn a_folder_that_comes_later_gets_every_step_from_the_first_on() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, faults) = (dir.path().join("recording"), DiskFaults::default());
        fs::write(&folder, "in the way").unwrap();
        let mut recorder = start(&folder, 1 << 30, &faults);
        wait("it is an alarm", || faults.alarms().iter().any(|it| it.message.contains("recording")));
        for n in 0..100 {
            record(&mut recorder, n);
        }
        fs::remove_file(&folder).unwrap();
        wait("it is over", || faults.alarms().is_empty());
        record(&mut recorder, 100);
        drop(recorder);
        let files = files(&folder);
        assert_eq!(files.len(), 1);
        assert_eq!(steps(&lines(&files[0])), Vec::from_iter(0..=100));
        assert_eq!(faults.dropped_steps(), 0);
    }

    #[test]
    fn what_was_recorded_can_be_read_a_second_later() {
        let dir = tempfile::tempdir().unwrap();
        let mut recorder = start(dir.path(), 1 << 30, &DiskFaults::default());
        record(&mut recorder, 1);
        let written = || files(dir.path()).first().is_some_and(|file| lines(file).len() == 2);
        wait("the step is on disk", written);
        record(&mut recorder, 2);
    }

    #[test]
    fn after_a_gap_the_recording_goes_on_in_a_file_of_its_own_and_what_is_lost_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, faults) = (dir.path().join("recording"), DiskFaults::default());
        fs::write(&folder, "in the way").unwrap();
        let mut recorder = start(&folder, 1 << 30, &faults);
        wait("it is an alarm", || !faults.alarms().is_empty());
        let sent = STEPS_WAITING as u64 + 10;

        for n in 0..sent {
            record(&mut recorder, n);
        }
        assert_eq!(faults.dropped_steps(), 10);
        assert!(faults.alarms().iter().any(|it| it.message.contains("goes on in another file")));
        fs::remove_file(&folder).unwrap();
        let first = || files(&folder).first().map_or(0, |file| lines(file).len());
        wait("what there was is written", || first() == STEPS_WAITING + 1);

        // This one is the last to be lost: the machine that has taken it is what the next file begins with.
        record(&mut recorder, sent);
        assert_eq!((faults.dropped_steps(), faults.alarms()), (11, vec![]));
        record(&mut recorder, sent + 1);
        drop(recorder);

        let files = files(&folder);
        assert_eq!(files.len(), 2);
        let (before, after) = (lines(&files[0]), lines(&files[1]));
        assert_eq!(steps(&before), Vec::from_iter(0..STEPS_WAITING as u64));
        assert_eq!(steps(&after), [sent + 1]);
        let state = serde_json::json!({"at": 1_000_000_000 * sent, "steps": sent + 1, "machine": sent});
        assert_eq!((&after[0]["start"], &after[0]["state"]), (&serde_json::Value::Null, &state));
    }

    /// A machine whose input 13 breaks the thread that writes it.
    #[derive(Clone, Serialize)]
    struct Unlucky;
    #[derive(Clone)]
    struct Word(u64);

    impl Serialize for Word {
        fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            assert!(self.0 != 13, "unlucky");
            to.serialize_u64(self.0)
        }
    }

    impl Machine for Unlucky {
        type Input = Word;
        type Output = ();
        fn handle_input(&mut self, _: Instant, _: Word) {}
        fn handle_timeout(&mut self, _: Instant) {}
        fn poll_timeout(&self) -> Option<(Instant, Why)> {
            None
        }
        fn poll_output(&mut self) -> Option<()> {
            None
        }
    }

    #[test]
    fn a_step_that_breaks_the_thread_is_lost_and_the_recording_goes_on_in_another_file() {
        let (dir, faults) = (tempfile::tempdir().unwrap(), DiskFaults::default());
        let mut recorder =
            Recorder::start(dir.path(), 1 << 30, "test", Instant::ZERO, (), (), &faults).unwrap();
        let (mut n, begun) = (10, Clock::now());
        while files(dir.path()).len() < 2 {
            assert!(begun.elapsed() < Duration::from_secs(20), "never another file");
            let cause = Cause::Input(Word(n));
            recorder.record(Step { at: Instant::from_millis(1000 * n), cause, outputs: vec![] }, &Unlucky);
            n += 1;
            thread::sleep(Duration::from_millis(5));
        }
        drop(recorder);

        let after = lines(&files(dir.path())[1]);
        let first = after[0]["state"]["steps"].as_u64().unwrap();
        assert!(faults.dropped_steps() >= 1);
        assert_eq!(steps(&after), Vec::from_iter(10 + first..n));
    }

    #[test]
    fn files_rotate_and_the_oldest_go_so_that_all_stay_under_the_size() {
        let dir = tempfile::tempdir().unwrap();
        let others = ["other-1-0000.jsonl.zst", "test.txt", "testing-1-0000.jsonl"];
        for name in others.into_iter().chain(["test-1-0000.jsonl.zst", "test-1-0001.jsonl.zst"]) {
            fs::write(dir.path().join(name), [0; 600]).unwrap();
        }
        let mut recorder = start(dir.path(), 1200, &DiskFaults::default());
        let is_ours = |file: &PathBuf| file.file_name().unwrap().to_string_lossy().starts_with("test-0");
        let ours = || files(dir.path()).into_iter().filter(is_ours).collect::<Vec<_>>();
        wait("the recording begins", || ours().len() == 1);

        let (mut n, begun) = (0, Clock::now());
        while ours().last().is_none_or(|file| !file.to_string_lossy().ends_with("-0004.jsonl.zst")) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", ours());
            record(&mut recorder, n);
            n += 1;
            thread::sleep(Duration::from_millis(10));
        }
        drop(recorder);

        let ours = ours();
        let bytes: u64 = ours.iter().map(|file| fs::metadata(file).unwrap().len()).sum();
        assert!(ours.len() < 5 && bytes <= 2400, "{bytes} bytes in {ours:?}");
        assert!(others.iter().all(|name| dir.path().join(name).exists()));
        let all: Vec<_> = ours.iter().map(|file| lines(file)).collect();
        let first = all[0][0]["state"]["steps"].as_u64().unwrap();
        assert!(first > 0, "none was removed");
        assert_eq!(all.iter().flat_map(|lines| steps(lines)).collect::<Vec<_>>(), Vec::from_iter(first..n));
    }

    #[test]
    fn an_end_does_not_wait_for_a_disk_that_takes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("recording");
        fs::write(&folder, "in the way").unwrap();
        let mut recorder = start(&folder, 1 << 30, &DiskFaults::default());
        record(&mut recorder, 1);
        let begun = Clock::now();
        drop(recorder);
        assert!(begun.elapsed() < END_WITHIN, "{:?}", begun.elapsed());
    }
}
