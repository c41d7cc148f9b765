use core::fmt::Display;
use core::str::FromStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use ballast_types::BootId;

use crate::error::{HwError, Operation};

/// Where the kernel's folders `sys` and `proc` are: `/` on a server, a folder in tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// A file below the root; `relative` has no leading slash.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.0.join(relative.trim_start_matches('/'))
    }

    /// Whether this is the machine itself, not a folder that looks like one.
    pub fn is_machine(&self) -> bool {
        self.0 == Path::new("/")
    }
}

/// This boot of this machine: `/proc/sys/kernel/random/boot_id`. Fails if the file cannot be read or holds no
/// id.
pub fn boot_id(root: &Root) -> Result<BootId, HwError> {
    let path = root.path("proc/sys/kernel/random/boot_id");
    let text = read_text(&path)?;
    BootId::new(text.trim()).map_err(|e| HwError::value(&path, Operation::Read, text.trim(), e.to_string()))
}

/// More than any file read here holds; a larger one is not what it should be.
const MAX_FILE: u64 = 64 * 1024;

/// The whole text of a small kernel file.
pub(crate) fn read_text(path: &Path) -> Result<String, HwError> {
    let allowed = "a readable text file of at most 64 KiB";
    let failed = |e| HwError::io(path, Operation::Read, allowed, e);
    #[cfg(test)]
    crate::testing::on_read(path).map_err(failed)?;
    let mut text = String::new();
    File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text)).map_err(failed)?;
    if text.len() as u64 > MAX_FILE {
        return Err(HwError::value(path, Operation::Read, &text, allowed));
    }
    Ok(text)
}

/// The first 64 KiB of a text file that may be larger, such as `/proc/cpuinfo`.
pub(crate) fn read_start(path: &Path) -> Result<String, HwError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes))
        .map_err(|e| HwError::io(path, Operation::Read, "a readable text file", e))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// One value that fills a file; `allowed` says what it must be.
pub(crate) fn read_value<T: FromStr>(path: &Path, allowed: &str) -> Result<T, HwError> {
    let text = read_text(path)?;
    let text = text.trim();
    text.parse().map_err(|_| HwError::value(path, Operation::Read, text, allowed))
}

/// Turns a missing file into `None`; every other failure stays one.
pub(crate) fn optional<T>(result: Result<T, HwError>) -> Result<Option<T>, HwError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.is_missing() => Ok(None),
        Err(e) => Err(e),
    }
}

/// Between two looks at what others were told to do.
const PAUSE: Duration = Duration::from_millis(5);

/// Looks until `done`, `looks` times at most; gives what was seen last.
pub(crate) fn look_until<T>(
    looks: u32,
    mut look: impl FnMut() -> Result<T, HwError>,
    done: impl Fn(&T) -> bool,
) -> Result<T, HwError> {
    let mut seen = look()?;
    for _ in 1..looks {
        if done(&seen) {
            break;
        }
        thread::sleep(PAUSE);
        seen = look()?;
    }
    Ok(seen)
}

/// Where every write of a kernel file is told, at level TRACE, once it has succeeded: `file` and `value`.
///
/// `RUST_LOG=info,ballast_hw::writes=trace` shows them all, in order.
pub const WRITES: &str = "ballast_hw::writes";

/// Writes one value with a trailing newline, in a single write call.
///
/// The file is opened anew each time: so a policy that went and came back (CPU hotplug) is written,
/// not a dead descriptor. Truncation makes a short value over a longer one right on a folder; sysfs
/// ignores it. Padding would not do: the kernel's `kstrtoul` takes one newline and nothing else.
pub(crate) fn write_value(path: &Path, value: impl Display) -> Result<(), HwError> {
    let line = format!("{value}\n");
    let failed = |source| HwError {
        value: Some(line.trim_end().to_owned()),
        ..HwError::io(path, Operation::Write, "a writable kernel file that takes this value", source)
    };
    #[cfg(test)]
    if crate::testing::on_write(path, line.trim_end()).map_err(failed)? {
        return Ok(());
    }
    let mut file = OpenOptions::new().write(true).truncate(true).open(path).map_err(failed)?;
    let written = file.write(line.as_bytes()).map_err(failed)?;

    if written != line.len() {
        return Err(failed(io::ErrorKind::WriteZero.into()));
    }
    tracing::trace!(target: WRITES, file = %path.display(), value = line.trim_end());

    Ok(())
}

/// The entries of a folder whose name is `prefix` and a number, ascending by that number.
pub(crate) fn numbered(dir: &Path, prefix: &str) -> Result<Vec<(u32, PathBuf)>, HwError> {
    let failed = |e| HwError::io(dir, Operation::Read, &format!("a folder with {prefix}N"), e);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|n| n.strip_prefix(prefix)).and_then(|n| n.parse().ok());
        if let Some(number) = number {
            found.push((number, entry.path()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn the_boot_id_is_read_or_refused() {
        let tree = Tree::new();
        assert!(boot_id(tree.root()).unwrap_err().is_missing());
        let file = "proc/sys/kernel/random/boot_id";
        tree.write(file, "3a9d6c1e-0d0e-4a53-9f5e-0d6f7a2b1c3d\n");
        assert_eq!(boot_id(tree.root()).unwrap().as_str(), "3a9d6c1e-0d0e-4a53-9f5e-0d6f7a2b1c3d");
        for bad in ["", "\n", "a b", "../../etc"] {
            tree.write(file, bad);
            assert!(boot_id(tree.root()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_short_value_over_a_long_one_leaves_nothing_behind() {
        let tree = Tree::new();
        tree.write("f", "2147483647\n");
        write_value(&tree.root().path("f"), 1_200_000).unwrap();
        assert_eq!(tree.read("f"), "1200000\n");
    }

    #[test]
    fn nothing_is_created_where_the_kernel_has_no_file() {
        let tree = Tree::new();
        assert!(write_value(&tree.root().path("f"), 1).unwrap_err().is_missing());
        assert!(!tree.root().path("f").exists());
    }

    #[test]
    fn huge_or_binary_files_are_refused() {
        let tree = Tree::new();
        tree.write("big", &"1".repeat(70_000));
        assert!(read_text(&tree.root().path("big")).is_err());
        std::fs::write(tree.root().path("bin"), [0xff, 0xfe, 0x00]).unwrap();
        assert!(read_text(&tree.root().path("bin")).is_err());
    }

    #[test]
    fn numbered_folders_come_in_order_of_their_number() {
        let tree = Tree::new();
        for name in ["policy10", "policy2", "policyX", "other3"] {
            tree.write(&format!("d/{name}/x"), "");
        }
        let found = numbered(&tree.root().path("d"), "policy").unwrap();
        assert_eq!(found.iter().map(|f| f.0).collect::<Vec<_>>(), [2, 10]);
    }
}
