//! Small files that outlive the process.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use ballast_hw::durable;
use ballast_types::wire::{Alarm, AlarmId, Event, EventKind};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::events::Events;
use crate::threads::supervise;
use crate::{clock, lock as mutex};

/// Writes `value` as JSON so that a reader, or a crash, sees the old or the new text, never half.
///
/// On return it is on disk; see [`durable::replace`].
pub fn write<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    durable::replace(path, &serde_json::to_vec_pretty(value)?)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// Reads what [`write()`] wrote; `None` when there is nothing.
///
/// A file that cannot be understood is kept as `….bad`, where the disk lets it be, and named in the log: the
/// daemon starts as if there had been none.
pub fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(named(error)),
    };

    match serde_json::from_slice(&text) {
        Ok(value) => Ok(Some(value)),
        Err(error) => {
            let aside = path.with_extension("bad");
            tracing::error!(
                path = %path.display(), aside = %aside.display(), %error,
                "the state file cannot be read as JSON and is renamed; the daemon starts without it"
            );

            if let Err(error) = fs::rename(path, &aside) {
                tracing::error!(
                    path = %path.display(),
                    %error,
                    "the damaged state file could not be renamed"
                );
            }
            Ok(None)
        }
    }
}

/// Takes the state folder for this process alone, until the file is dropped. Fails when another process has
/// it, with the path.
pub fn lock(folder: &Path) -> io::Result<durable::Lock> {
    durable::lock(folder).map_err(|error| {
        let folder = folder.display();
        match error.kind() {
            ErrorKind::WouldBlock => io::Error::new(
                ErrorKind::AddrInUse,
                format!("{folder}: {error}: another daemon runs on this state_dir"),
            ),
            kind => io::Error::new(kind, format!("{folder}: {error}")),
        }
    })
}

/// The recording, among what the disk does not take.
pub const RECORDING: &str = "recording";
/// Steps of the recording, while the disk takes none and they are lost.
pub const RECORDING_STEPS: &str = "steps of the recording";

/// What the disk does not take at present: alarms in status, events when it begins, metrics.
#[derive(Clone, Default)]
pub struct DiskFaults {
    /// By what is not written: why.
    now: Arc<Mutex<BTreeMap<&'static str, String>>>,
    dropped_steps: Arc<AtomicU64>,
    events: Events,
}

impl DiskFaults {
    /// None yet; new ones become `events`.
    pub fn new(events: Events) -> Self {
        Self { events, ..Self::default() }
    }

    /// `what` cannot be written, and why; or (`None`) it was.
    pub fn note(&self, what: &'static str, why: Option<String>) {
        let mut now = mutex(&self.now);
        let Some(why) = why else {
            if now.remove(what).is_some() {
                tracing::info!(what, "written again");
            }
            return;
        };
        let Alarm { message, .. } = alarm(what, &why);
        if now.insert(what, why).is_none() {
            self.events.push(Event { at_ns: clock::now(), kind: EventKind::Alarm { message } });
        }
    }

    /// What an operator should know.
    pub fn alarms(&self) -> Vec<Alarm> {
        mutex(&self.now).iter().map(|(what, why)| alarm(what, why)).collect()
    }

    /// What cannot be written, by name.
    pub fn unwritten(&self) -> Vec<&'static str> {
        mutex(&self.now).keys().copied().collect()
    }

    pub fn count_dropped_step(&self) {
        self.dropped_steps.fetch_add(1, Ordering::Relaxed);
    }

    pub fn dropped_steps(&self) -> u64 {
        self.dropped_steps.load(Ordering::Relaxed)
    }
}

fn alarm(what: &str, why: &str) -> Alarm {
    let message = format!("{what} not written: {why}");
    match what {
        RECORDING => Alarm::new(AlarmId::RecordingNotWritten, message),
        RECORDING_STEPS => Alarm::new(AlarmId::RecordingLosesSteps, message),
        file => Alarm::about(AlarmId::StateNotWritten, file, message),
    }
}

/// After a write has failed, until the next try.
pub const RETRY: Duration = Duration::from_secs(1);

/// Writes the newest of what a daemon remembers, on a thread of its own: an fsync must delay nothing.
pub struct StateWriter<T> {
    newest: Option<Sender<T>>,
    writer: Option<JoinHandle<()>>,
}

impl<T: Serialize + Send + 'static> StateWriter<T> {
    /// Starts the thread. `what` names the file in alarms: what the disk refuses is tried again.
    pub fn start(path: PathBuf, what: &'static str, faults: DiskFaults) -> io::Result<Self> {
        let (newest, inbox) = mpsc::channel::<T>();
        // Nothing outside fills the queue: the control thread leaves one value a turn, and the newest takes the place of
        // all that wait, also while the disk refuses one.
        let work = move |inbox: &mut Receiver<T>| {
            while let Ok(value) = inbox.recv() {
                let mut value = inbox.try_iter().last().unwrap_or(value);
                while let Err(error) = write(&path, &value) {
                    faults.note(what, Some(error.to_string()));
                    match inbox.recv_timeout(RETRY) {
                        Ok(newer) => value = inbox.try_iter().last().unwrap_or(newer),
                        Err(RecvTimeoutError::Timeout) => {}
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                }
                faults.note(what, None);
            }
        };
        let writer = supervise("state-writer", inbox, work)?;
        Ok(Self { newest: Some(newest), writer: Some(writer) })
    }

    /// Leaves a newer value.
    pub fn keep(&self, value: T) {
        if let Some(newest) = &self.newest {
            // Cannot fail: the writer goes on until this ends.
            let _ = newest.send(value);
        }
    }
}

impl<T> Drop for StateWriter<T> {
    /// Waits until the newest is on disk.
    fn drop(&mut self) {
        self.newest = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_value_survives_and_a_damaged_file_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory.json");
        assert_eq!(read::<Vec<u8>>(&path).unwrap(), None);
        write(&path, &vec![1u8, 2]).unwrap();
        assert_eq!(read::<Vec<u8>>(&path).unwrap(), Some(vec![1, 2]));
        fs::write(&path, "[1,").unwrap();
        assert_eq!(read::<Vec<u8>>(&path).unwrap(), None);
        assert_eq!(fs::read_to_string(path.with_extension("bad")).unwrap(), "[1,");
    }

    #[test]
    fn what_the_disk_refuses_is_an_alarm_and_the_newest_is_written_when_there_is_room() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("away/memory.json");
        let faults = DiskFaults::default();
        let writer = StateWriter::start(path.clone(), "memory", faults.clone()).unwrap();
        let wait = |what: &str, done: &dyn Fn() -> bool| {
            let begun = std::time::Instant::now();
            while !done() {
                assert!(begun.elapsed() < Duration::from_secs(20), "never: {what}");
                thread::sleep(Duration::from_millis(5));
            }
        };

        writer.keep(1u8);
        wait("an alarm", &|| faults.alarms().iter().any(|it| it.message.contains("memory not written")));
        writer.keep(2);
        assert_eq!(faults.unwritten(), ["memory"]);
        fs::create_dir(folder.path().join("away")).unwrap();
        wait("it is over", &|| faults.alarms().is_empty());
        // It may just have been writing the other one.
        wait("the newest", &|| read::<u8>(&path).unwrap() == Some(2));
        assert_eq!(faults.events.subscribe(None).0.len(), 1, "told once");
    }

    #[test]
    fn a_folder_is_locked_even_where_no_file_can_be_made() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("lock")).unwrap();
        let held = lock(folder.path()).unwrap();
        assert_eq!(lock(folder.path()).unwrap_err().kind(), ErrorKind::AddrInUse);
        drop(held);
        lock(folder.path()).unwrap();
    }
}
