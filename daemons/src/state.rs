//! Small files that outlive the process.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use ballast_hw::durable;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Writes `value` as JSON so that a reader, or a crash, sees the old or the new text, never half.
///
/// On return it is on disk; see [`durable::replace`].
///
/// # Errors
/// What the file system says, with the path.
pub(crate) fn write<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    durable::replace(path, &serde_json::to_vec_pretty(value)?).map_err(named)
}

/// Reads what [`write`] wrote; `None` when there is nothing.
///
/// A file that cannot be understood is kept as `….bad` and named in the log: nothing is lost, and the
/// daemon starts as if there had been none.
///
/// # Errors
/// When the file is there and cannot be read, or cannot be set aside.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
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
                "state file cannot be understood; set aside"
            );
            fs::rename(path, &aside).map_err(named)?;
            Ok(None)
        }
    }
}

/// Takes the state folder for this process alone, until the file is dropped.
///
/// # Errors
/// When another process has it, with the path.
pub(crate) fn lock(path: &Path) -> io::Result<File> {
    let file = File::create(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    file.try_lock().map_err(|error| {
        io::Error::new(
            ErrorKind::AddrInUse,
            format!("{}: {error}: another daemon runs on this state_dir", path.display()),
        )
    })?;
    Ok(file)
}

/// Writes the newest of what a daemon remembers, on a thread of its own: an fsync must delay nothing.
pub(crate) struct Keeper<T> {
    newest: Option<Sender<T>>,
    writer: Option<JoinHandle<()>>,
}

impl<T: Serialize + Send + 'static> Keeper<T> {
    /// Starts the thread.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn start(path: PathBuf) -> io::Result<Self> {
        let (newest, inbox) = mpsc::channel::<T>();
        let writer = thread::Builder::new().name("keeper".into()).spawn(move || {
            while let Ok(value) = inbox.recv() {
                let value = inbox.try_iter().last().unwrap_or(value);
                if let Err(error) = write(&path, &value) {
                    tracing::error!(%error, "not written");
                }
            }
        })?;
        Ok(Self { newest: Some(newest), writer: Some(writer) })
    }

    /// Leaves a newer value.
    pub(crate) fn keep(&self, value: T) {
        if let Some(newest) = &self.newest {
            // Fails only when the writer has panicked.
            let _ = newest.send(value);
        }
    }
}

impl<T> Drop for Keeper<T> {
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
}
