//! Replacing files that others read and write at any moment.
//!
//! A reader must never see an empty or half file, so a value is written to a hidden file and renamed
//! over the old one: a plain write into the file could be seen torn, even within a page.
//!
//! A file that daemons write is harder: between our look at it and the rename a daemon may write, and
//! that write must not be lost. So the two files are *exchanged*, and the old one is looked at once
//! more. Whoever had opened it before may even write to it later; so the old file stays watched.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::rig::error::RigError;

#[derive(Debug)]
pub(crate) struct Publisher {
    next: PathBuf,
    retired: PathBuf,
}

impl Publisher {
    /// Prepares `dir`, which must be empty or not there yet.
    pub(crate) fn create(dir: &Path) -> Result<Self, RigError> {
        fs::create_dir_all(dir).map_err(RigError::file("make", dir))?;
        let mut entries = fs::read_dir(dir).map_err(RigError::file("read", dir))?;
        if entries.next().is_some() {
            return Err(RigError::InUse { path: dir.to_owned() });
        }
        // Hidden files must be on the same file system to be renamed into place.
        let retired = retired(dir);
        fs::create_dir_all(&retired).map_err(RigError::file("make", &retired))?;
        Ok(Self { next: dir.join(".rig/next"), retired })
    }

    /// Replaces a file that only the rig writes.
    pub(crate) fn replace(&self, path: &Path, text: &str) -> Result<(), RigError> {
        fs::write(&self.next, text).map_err(RigError::file("write", &self.next))?;
        fs::rename(&self.next, path).map_err(RigError::file("replace", path))
    }

    /// Replaces a file that daemons write too, and answers with what it held: perhaps more than was
    /// known when `text` was worked out. `number` tells the file apart from others.
    pub(crate) fn exchange(&self, path: &Path, number: usize, text: &str) -> Result<String, RigError> {
        let old = self.retired_file(number);
        // A new file each time: the one that is there may still be open elsewhere.
        match fs::remove_file(&old) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(RigError::file("remove", &old)(e));
            }
            _ => {}
        }
        fs::write(&old, text).map_err(RigError::file("write", &old))?;
        // nix has no `renameat2` for musl.
        renameat_with(CWD, &old, CWD, path, RenameFlags::EXCHANGE)
            .map_err(RigError::file("exchange", path))?;
        read(&old)
    }

    /// Where the old file of [`Publisher::exchange`] is.
    pub(crate) fn retired_file(&self, number: usize) -> PathBuf {
        self.retired.join(number.to_string())
    }
}

/// The folder of exchanged files.
pub(crate) fn retired(dir: &Path) -> PathBuf {
    dir.join(".rig/retired")
}

/// A file's text; bytes that are no text count as garbage, not as a failure.
pub(crate) fn read(path: &Path) -> Result<String, RigError> {
    let bytes = fs::read(path).map_err(RigError::file("read", path))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_gives_back_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let publisher = Publisher::create(dir.path()).unwrap();
        let file = dir.path().join("f");
        for old in ["1\n", "", "5\n"] {
            fs::write(&file, old).unwrap();
            assert_eq!(publisher.exchange(&file, 0, "2\n").unwrap(), old);
            assert_eq!(read(&file).unwrap(), "2\n");
            assert_eq!(read(&publisher.retired_file(0)).unwrap(), old);
        }
    }

    #[test]
    fn a_folder_in_use_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("precious"), "x").unwrap();
        assert!(matches!(Publisher::create(dir.path()), Err(RigError::InUse { .. })));
        assert!(dir.path().join("precious").exists());
    }
}
