//! A folder that looks like a machine, as far as one target reads of it.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use ballast_hw::Root;
use tempfile::TempDir;

use super::parts;

/// The folder, in memory where that can be had.
pub(crate) struct Machine(TempDir);

impl Machine {
    pub(crate) fn new() -> Self {
        let in_memory = tempfile::tempdir_in("/dev/shm");
        Self(in_memory.or_else(|_| tempfile::tempdir()).expect("a folder"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn root(&self) -> Root {
        Root::at(self.path())
    }

    /// Fills these files with the parts of an input.
    pub(crate) fn fill(&self, files: &[&str], bytes: &[u8]) {
        files.iter().zip(parts(bytes)).for_each(|(file, part)| self.write(file, part));
    }

    pub(crate) fn write(&self, file: &str, bytes: &[u8]) {
        let path = self.path().join(file);
        let written = fs::write(&path, bytes).or_else(|error| match path.parent() {
            Some(folder) if error.kind() == ErrorKind::NotFound => {
                fs::create_dir_all(folder)?;
                fs::write(&path, bytes)
            }
            _ => Err(error),
        });
        written.expect("a file in a folder of ours");
    }
}
