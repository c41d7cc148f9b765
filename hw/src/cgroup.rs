//! A VM's cgroup (version 2): the CPUs it may use, and the CPU time it used.
//!
//! Source: Documentation/admin-guide/cgroup-v2.rst.

mod cpu_limit;
mod cpu_max;
mod cpuset;
mod kill;
mod memory;
mod mode;
mod usage;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::Root;
use crate::error::{HwError, Operation};
use crate::kubelet::{is_pod_path, pod_paths};
use crate::root::read_value;
pub(crate) use cpu_limit::{CLAMP_FILE, Kind};
pub use cpu_limit::{ClampScale, CpuLimit};
pub use cpu_max::{CpuMax, CpuMaxError};
pub use memory::memory_bytes;
pub use mode::check_mode;
pub use usage::{CpuTimes, CpuUse, UsageMeter};

/// Groups of the host itself, with the services and sessions in them.
const HOSTS_OWN: [&str; 3] = ["system.slice", "user.slice", "init.scope"];
/// Bytes of a group's path; deeper ones are no VM's.
const MAX_PATH: usize = 512;

/// One cgroup below `sys/fs/cgroup`.
#[derive(Clone, Debug)]
pub struct Cgroup {
    dir: PathBuf,
}

impl Cgroup {
    /// The paths that are allowed, in words.
    pub const PATHS: &str = "a path below sys/fs/cgroup of at most 512 bytes, without \"..\", not in \
                             kubepods, and not system.slice, user.slice or init.scope: these are the \
                             host's own";

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

    /// The group at `path`, which may be a pod's own as well: its use may be read, and its bandwidth limited where
    /// the kubelet leaves that to others. Fails as [`Cgroup::at`], and for every other group in kubepods.
    pub fn of_vm_or_pod(root: &Root, path: &str) -> Result<Self, HwError> {
        if is_pod_path(path) {
            return Ok(Self { dir: root.path("sys/fs/cgroup").join(path) });
        }
        Self::at(root, path)
    }

    /// The path of a pod's own group, by the pod's UID; `None` while it has none.
    pub fn path_of_pod(root: &Root, uid: &str) -> Option<String> {
        let top = root.path("sys/fs/cgroup");
        pod_paths(uid).into_iter().find(|path| top.join(path).is_dir())
    }

    /// Its bandwidth limit. Fails if it cannot be read.
    pub fn cpu_max(&self) -> Result<CpuMax, HwError> {
        read_value(&self.dir.join("cpu.max"), cpu_max::CPU_MAX)
    }

    /// The root of the hierarchy.
    pub(crate) fn top(root: &Root) -> Self {
        Self { dir: root.path("sys/fs/cgroup") }
    }

    /// Whether `path` is one of [`Cgroup::PATHS`], and so may be a VM's.
    pub fn is_vm_path(path: &str) -> bool {
        Self::is_path(path) && !HOSTS_OWN.contains(&path) && !path.starts_with("init.scope/")
    }

    /// Refuses a group that cannot be a VM's: the host's own, or one that holds pid 1 or this process. Whatever
    /// is done to that would be done to the host.
    pub fn check_vm(root: &Root, path: &str) -> Result<(), HwError> {
        let top = root.path("sys/fs/cgroup");
        if !Self::is_vm_path(path) {
            return Err(HwError::value(&top, Operation::Read, path, Self::PATHS));
        }
        for (process, who) in [("1", "pid 1"), ("self", "the agent")] {
            // Where this is not to be read, as in a folder that plays a machine, nobody is in a group.
            let groups = fs::read_to_string(root.path(&format!("proc/{process}/cgroup"))).unwrap_or_default();
            let group = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
            let holds = group.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            if holds {
                let allowed = format!("a group of a VM alone: {who} is in this one");
                return Err(HwError::value(&top.join(path), Operation::Write, path, allowed));
            }
        }
        Ok(())
    }

    /// Whether `path` stays in the hierarchy, and out of the kubelet's part of it.
    fn is_path(path: &str) -> bool {
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

        for hosts in ["system.slice", "user.slice", "init.scope", "init.scope/x"] {
            assert!(!Cgroup::is_vm_path(hosts) && Cgroup::check_vm(tree.root(), hosts).is_err(), "{hosts}");
        }
        assert!(Cgroup::is_vm_path("system.slice/docker-1.scope"));

        let good = r"machine.slice/machine-qemu\x2d1\x2dweb.scope/libvirt";
        assert!(Cgroup::at(tree.root(), good).is_ok());
    }

    #[test]
    fn a_group_that_holds_pid_1_or_the_agent_is_no_vms() {
        let tree = Tree::new();
        tree.write("proc/1/cgroup", "0::/container/init\n");
        tree.write("proc/self/cgroup", "1:cpu:/old\n0::/system.slice/ballast-agent.service\n");
        for (path, who) in [
            ("container", Some("pid 1")),
            ("container/init", Some("pid 1")),
            ("system.slice/ballast-agent.service", Some("the agent")),
            ("system.slice/ballast-agent.service/vm", None),
            ("container/in", None),
            ("contain", None),
            ("machine.slice/web.scope", None),
        ] {
            let said = Cgroup::check_vm(tree.root(), path).err().map(|error| error.to_string());
            let as_expected =
                who.map_or(said.is_none(), |who| said.as_ref().is_some_and(|said| said.contains(who)));
            assert!(as_expected, "{path}: {said:?}");
        }
    }
}
