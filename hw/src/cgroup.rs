//! A VM's cgroup (version 2): the CPUs it may use, and the CPU time it used.
//!
//! Source: Documentation/admin-guide/cgroup-v2.rst.

mod cpu_max;
mod cpuset;
mod kill;
mod memory;
mod mode;
mod usage;

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::Root;
use crate::error::{HwError, Operation};
pub(crate) use cpu_max::CPU_MAX;
pub use cpu_max::{CpuMax, CpuMaxError};
pub use memory::MemoryUse;
pub use mode::check_mode;
pub use usage::{CpuTimes, CpuUse, UsageMeter};

/// Bytes of a group's path; deeper ones are no VM's.
const MAX_PATH: usize = 512;

/// One cgroup below `sys/fs/cgroup`.
#[derive(Clone, Debug)]
pub struct Cgroup {
    dir: PathBuf,
}

impl Cgroup {
    /// The paths that are allowed, in words.
    pub const PATHS: &str =
        "a path below sys/fs/cgroup of at most 512 bytes, without \"..\", not in kubepods";

    /// The group at `path`, relative to the root of the hierarchy. Fails if the path is none of
    /// [`Cgroup::PATHS`]: empty, absolute, too long, leaves the hierarchy, or belongs to the kubelet, which
    /// puts its own sets back.
    pub fn at(root: &Root, path: &str) -> Result<Self, HwError> {
        let top = root.path("sys/fs/cgroup");
        if !Self::is_path(path) {
            return Err(HwError::value(&top, Operation::Read, path, Self::PATHS));
        }
        Ok(Self { dir: top.join(path) })
    }

    /// The root of the hierarchy.
    pub(crate) fn top(root: &Root) -> Self {
        Self { dir: root.path("sys/fs/cgroup") }
    }

    /// Whether `path` is one of [`Cgroup::PATHS`]. Config and API ask this too, so that nothing is accepted
    /// there that is refused here.
    pub fn is_path(path: &str) -> bool {
        let plain = |part: &str| {
            !matches!(part, "" | "." | "..") && !part.contains('\0') && !part.starts_with("kubepods")
        };
        path.len() <= MAX_PATH && path.split('/').all(plain)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The inode of its folder. A group that was made anew has another one, though by the same name.
    pub fn inode(&self) -> Result<u64, HwError> {
        let failed = |e| HwError::io(&self.dir, Operation::Read, "the cgroup of a VM that runs", e);
        Ok(self.dir.metadata().map_err(failed)?.ino())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn paths_that_leave_the_hierarchy_or_belong_to_others_are_refused() {
        let tree = Tree::new();
        for bad in [
            "",
            "/machine.slice",
            "../etc",
            "a/../../b",
            ".",
            "a\0b",
            "kubepods.slice/x",
            "a/kubepods-burstable.slice",
            "x/kubepods.slice/y",
            "a//b",
            "a/",
            "a/./b",
            &"a/".repeat(257),
        ] {
            assert!(!Cgroup::is_path(bad), "{bad:?}");
            let error = Cgroup::at(tree.root(), bad).unwrap_err();
            assert!(error.to_string().contains(Cgroup::PATHS), "{error}");
        }

        let good = r"machine.slice/machine-qemu\x2d1\x2dweb.scope/libvirt";
        assert!(Cgroup::at(tree.root(), good).is_ok());
    }
}
