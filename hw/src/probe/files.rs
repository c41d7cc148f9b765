//! What the parts of a probe read alike.

use std::path::Path;

use nix::unistd::{AccessFlags, access};

use crate::error::HwError;
use crate::root::{Root, read_text};

/// A file of one line; nothing if it cannot be read or is empty.
pub(super) fn line(root: &Root, path: &str) -> Option<String> {
    let text = read_text(&root.path(path)).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// An error as it is told: with paths below the root.
pub(super) fn told(root: &Root, error: &HwError) -> String {
    error.to_string().replace(&*root.path("").to_string_lossy(), "/")
}

/// Whether this process could open the file for writing; a read-only mount says no to root as well.
pub(super) fn writable(path: &Path) -> bool {
    access(path, AccessFlags::W_OK).is_ok()
}
