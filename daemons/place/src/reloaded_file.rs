//! A value that is read from a file, and follows it.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use ballast_runtime::fingerprint::Fingerprint;
use ballast_runtime::lock;

/// No model and no history comes near this; what is larger is somebody else's file.
const BYTES_MAX: u64 = 1 << 30;

/// The newest good value of a file.
///
/// Readers take an [`Arc`] and never wait for a file: who has one keeps it while the next comes in. A
/// file that cannot be used, or is gone, leaves the old value in force.
pub(super) struct ReloadedFile<T> {
    path: PathBuf,
    read: fn(&[u8]) -> Result<T, String>,
    value: RwLock<Option<Arc<T>>>,
    watched: Mutex<Watched>,
}

struct Watched {
    fingerprint: Option<Fingerprint>,
    /// Why it cannot be used, if it cannot.
    problem: Option<String>,
    /// Whether that was still so at a second look: not everybody replaces a file in one step.
    lasting: bool,
}

/// What a look at the file has brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reload {
    Same,
    Taken,
    /// The file cannot be used: told once for each state of the file.
    Refused(String),
}

impl<T> ReloadedFile<T> {
    /// Of the file at `path`, as `read` understands it. Nothing is read yet.
    pub(super) fn new(path: &Path, read: fn(&[u8]) -> Result<T, String>) -> Self {
        let watched = Mutex::new(Watched { fingerprint: None, problem: None, lasting: false });
        Self { path: path.to_owned(), read, value: RwLock::default(), watched }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The value in force; `None` before the first good file.
    pub(super) fn get(&self) -> Option<Arc<T>> {
        self.value.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why the file as it is now is not in force, if it is not.
    pub(super) fn problem(&self) -> Option<String> {
        let watched = lock(&self.watched);
        watched.problem.clone().filter(|_| watched.lasting)
    }

    /// Reads the file if it has changed since the last look, or could not be used at the first look at
    /// it; whatever it looks like, if `ordered` to.
    pub(super) fn look(&self, ordered: bool) -> Reload {
        let fingerprint = Fingerprint::of(&self.path);
        let first = {
            let watched = lock(&self.watched);
            let moved = watched.fingerprint.as_ref() != Some(&fingerprint);
            let unsure = watched.problem.is_some() && !watched.lasting;

            if !moved && !unsure && !ordered {
                return Reload::Same;
            }

            // At the start and by order there is no second look.
            moved && !ordered && watched.fingerprint.is_some()
        };

        // Without a lock: a slow disk must not hold up who asks for the status.
        let (problem, seen) = match self.contents().and_then(|bytes| (self.read)(&bytes)) {
            Ok(value) => {
                let value = Some(Arc::new(value));
                *self.value.write().unwrap_or_else(PoisonError::into_inner) = value;
                (None, Reload::Taken)
            }
            Err(why) => {
                let why = format!("{}: {why}", self.path.display());
                (Some(why.clone()), if first { Reload::Same } else { Reload::Refused(why) })
            }
        };

        let lasting = problem.is_some() && !first;
        *lock(&self.watched) = Watched { fingerprint: Some(fingerprint), problem, lasting };

        seen
    }

    fn contents(&self) -> Result<Vec<u8>, String> {
        let said = |error: std::io::Error| error.to_string();
        // Looked at before it is opened: opening a pipe would wait for a writer.
        let found = fs::metadata(&self.path).map_err(said)?;
        if !found.is_file() {
            return Err("not a file".into());
        }
        let mut bytes = vec![];
        let file = File::open(&self.path).map_err(said)?;
        file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(said)?;
        if bytes.len() as u64 > BYTES_MAX {
            return Err(format!("longer than {BYTES_MAX} bytes"));
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(bytes: &[u8]) -> Result<u32, String> {
        let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
        text.parse().map_err(|_| format!("{text:?} is no number"))
    }

    fn refused<T>(live: &ReloadedFile<T>, ordered: bool) -> String {
        match live.look(ordered) {
            Reload::Refused(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_good_file_is_taken_and_a_bad_one_leaves_the_old_value() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("value");
        let live = ReloadedFile::new(&path, number);
        assert!(refused(&live, false).contains("No such file"));
        assert_eq!((live.look(false), live.get()), (Reload::Same, None));
        fs::write(&path, "1").unwrap();
        assert_eq!(live.look(false), Reload::Taken);
        assert_eq!((live.get().as_deref(), live.problem()), (Some(&1), None));
        assert_eq!(live.look(false), Reload::Same);

        fs::write(&path, "two").unwrap();

        // It may still be written.
        assert_eq!((live.look(false), live.problem()), (Reload::Same, None));
        assert!(refused(&live, false).contains("\"two\" is no number"));
        assert!(live.problem().is_some());
        assert_eq!(live.look(false), Reload::Same, "told once");
        assert!(refused(&live, true).contains("no number"), "told again when asked to look");
        assert_eq!(live.get().as_deref(), Some(&1));

        fs::remove_file(&path).unwrap();
        assert_eq!(live.look(false), Reload::Same);
        assert!(refused(&live, false).contains("No such file"));
        assert_eq!(live.get().as_deref(), Some(&1));

        fs::write(&path, "33").unwrap();
        assert_eq!(live.look(false), Reload::Taken);
        assert_eq!((live.get().as_deref(), live.problem()), (Some(&33), None));
        assert_eq!(live.look(true), Reload::Taken, "by order it is read whatever it looks like");
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        assert!(refused(&ReloadedFile::new(dir.path(), number), false).contains("not a file"));
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(refused(&ReloadedFile::new(&pipe, number), false).contains("not a file"));
    }

    #[test]
    fn who_holds_a_value_keeps_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("value");
        fs::write(&path, "1").unwrap();
        let live = ReloadedFile::new(&path, number);
        live.look(false);
        let held = live.get();
        fs::write(&path, "22").unwrap();
        assert_eq!(live.look(false), Reload::Taken);
        assert_eq!((held.as_deref(), live.get().as_deref()), (Some(&1), Some(&22)));
    }
}
