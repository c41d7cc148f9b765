//! What a file looks like from outside.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Differs when the file was written or replaced; links are followed.
///
/// The change time moves with every write, chmod and rename, but by no less than a tick of the kernel's
/// clock: most writes within one show in the size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint(Option<Look>);

/// Device, inode, size, and the seconds and nanoseconds of its change and of its text's.
type Look = ([u64; 3], [(i64, i64); 2]);

impl Fingerprint {
    /// As it is now; of a file that is not there, always the same.
    pub fn of(path: &Path) -> Self {
        Self(fs::metadata(path).ok().map(|found| {
            let changed = (found.ctime(), found.ctime_nsec());
            let written = (found.mtime(), found.mtime_nsec());
            ([found.dev(), found.ino(), found.size()], [changed, written])
        }))
    }
}
