//! A VM's cgroup (version 2): the CPUs it may use, and the CPU time it used.
//!
//! Moving CPU sets takes a global lock and migrates tasks: it belongs to placement, not to the
//! capping loop. `cpuset.cpus` of a populated group cannot be emptied (ENOSPC), so a restore always
//! writes an explicit list. A write that cannot be granted succeeds all the same and falls back to the
//! parent's set, so `cpuset.cpus.effective` is checked.
//!
//! Source: Documentation/admin-guide/cgroup-v2.rst.

mod kill;

use core::time::Duration;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;

use ballast_types::{Instant, Utilisation};
use serde::{Deserialize, Serialize};

use crate::Root;
use crate::error::{HwError, Operation};
use crate::lists::CpuList;
use crate::root::{read_text, read_value, write_value};

const LIST: &str = "a CPU list such as 0-3,8";
/// Bytes of a group's path; deeper ones are no VM's.
const MAX_PATH: usize = 512;
/// How often, and after what pause, the grant is looked at again.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(5);

/// The CPU set of a group as it was before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpusetOriginal {
    /// The list to write back; never empty.
    pub cpus: String,
}

/// One cgroup below `sys/fs/cgroup`.
#[derive(Clone, Debug)]
pub struct Cgroup {
    dir: PathBuf,
}

impl Cgroup {
    /// The paths that are allowed, in words.
    pub const PATHS: &str =
        "a path below sys/fs/cgroup of at most 512 bytes, without \"..\", not in kubepods";

    /// The group at `path`, relative to the root of the hierarchy.
    ///
    /// # Errors
    /// If the path is none of [`Cgroup::PATHS`]: empty, absolute, too long, leaves the hierarchy, or belongs
    /// to the kubelet, which puts its own sets back.
    pub fn at(root: &Root, path: &str) -> Result<Self, HwError> {
        let top = root.path("sys/fs/cgroup");
        if !Self::is_path(path) {
            return Err(HwError::value(&top, Operation::Read, path, Self::PATHS));
        }
        Ok(Self { dir: top.join(path) })
    }

    /// Whether `path` is one of [`Cgroup::PATHS`]. Config and API ask this too, so that nothing is accepted
    /// there that is refused here.
    #[must_use]
    pub fn is_path(path: &str) -> bool {
        let plain = |part: &str| {
            !matches!(part, "" | "." | "..")
                && !part.contains('\0')
                && !part.starts_with("kubepods")
        };
        path.len() <= MAX_PATH && path.split('/').all(plain)
    }

    /// Its folder.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The inode of its folder. A group that was made anew has another one, though by the same name.
    ///
    /// # Errors
    /// If there is no such group.
    pub fn inode(&self) -> Result<u64, HwError> {
        let failed = |e| HwError::io(&self.dir, Operation::Read, "the cgroup of a VM that runs", e);
        Ok(self.dir.metadata().map_err(failed)?.ino())
    }

    /// The CPUs it may use now.
    ///
    /// # Errors
    /// If the file is unreadable or garbage.
    pub fn effective(&self) -> Result<CpuList, HwError> {
        read_value(&self.dir.join("cpuset.cpus.effective"), LIST)
    }

    /// What must be put back: its own list, or the granted one where it has none of its own.
    ///
    /// # Errors
    /// If the files are unreadable, garbage, or both empty.
    pub fn original(&self) -> Result<CpusetOriginal, HwError> {
        let file = self.dir.join("cpuset.cpus");
        let own: CpuList = read_value(&file, LIST)?;
        let cpus = if own.is_empty() { self.effective()? } else { own };
        if cpus.is_empty() {
            return Err(HwError::value(&file, Operation::Read, "", "at least one CPU"));
        }
        Ok(CpusetOriginal { cpus: cpus.to_string() })
    }

    /// Confines it to `cpus`, and checks the grant.
    ///
    /// # Errors
    /// If the list is empty, the kernel refuses, or it grants another set.
    pub fn confine(&self, cpus: &CpuList) -> Result<(), HwError> {
        let file = self.dir.join("cpuset.cpus");
        if cpus.is_empty() {
            return Err(HwError::value(&file, Operation::Write, "", "at least one CPU"));
        }
        write_value(&file, cpus)?;
        let mut granted = self.effective()?;
        for _ in 1..TRIES {
            if granted == *cpus {
                break;
            }
            thread::sleep(PAUSE);
            granted = self.effective()?;
        }
        if granted == *cpus {
            return Ok(());
        }
        let effective = self.dir.join("cpuset.cpus.effective");
        Err(HwError::value(&effective, Operation::Verify, granted, format!("{cpus}, as written")))
    }

    /// Puts the CPU set back.
    ///
    /// # Errors
    /// If the kernel refuses, or it grants another set.
    pub fn restore(&self, original: &CpusetOriginal) -> Result<(), HwError> {
        let cpus = original.cpus.parse().map_err(|e: crate::lists::CpuListError| {
            HwError::value(
                &self.dir.join("cpuset.cpus"),
                Operation::Write,
                &original.cpus,
                e.to_string(),
            )
        })?;
        self.confine(&cpus)
    }

    /// What `cpu.stat` has counted since it was made.
    ///
    /// # Errors
    /// If the file is unreadable or has no `usage_usec`.
    pub fn times(&self) -> Result<CpuTimes, HwError> {
        let file = self.dir.join("cpu.stat");
        let text = read_text(&file)?;
        let word = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let number = |name| word(name).and_then(|number| number.trim().parse::<u64>().ok());
        let Some(used) = number("usage_usec ") else {
            let allowed = "a line usage_usec with a whole number";
            let value = word("usage_usec ").unwrap_or_default();
            return Err(HwError::value(&file, Operation::Read, value, allowed));
        };
        // Only where the group's bandwidth can be limited.
        let stopped_periods = number("nr_throttled ").unwrap_or(0);
        Ok(CpuTimes { used: Duration::from_micros(used), stopped_periods })
    }
}

/// What `cpu.stat` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTimes {
    /// CPU time used: `usage_usec`.
    pub used: Duration,
    /// Periods in which a bandwidth limit stopped the group: `nr_throttled`.
    pub stopped_periods: u64,
}

/// What a group did between two reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuUse {
    /// Share of the offered cores' time.
    pub utilisation: Utilisation,
    /// A bandwidth limit stopped it.
    pub stopped: bool,
}

/// The CPU use of one group between two reads.
#[derive(Clone, Debug)]
pub struct UsageMeter {
    group: Cgroup,
    last: Option<(Instant, CpuTimes)>,
}

impl UsageMeter {
    /// Measures `group`.
    #[must_use]
    pub fn new(group: Cgroup) -> Self {
        Self { group, last: None }
    }

    /// The share of `cores` cores' time since the last read; `None` at the first read, or when the
    /// counter went back (the group was made anew). `now` must be taken just before the call.
    ///
    /// # Errors
    /// If the counter cannot be read.
    pub fn sample(&mut self, now: Instant, cores: usize) -> Result<Option<CpuUse>, HwError> {
        let times = self.group.times()?;
        let last = self.last.replace((now, times));
        Ok(last.and_then(|(then, before)| {
            let used = times.used.checked_sub(before.used)?.as_secs_f64();
            let offered = now.since(then).as_secs_f64() * cores as f64;
            let utilisation =
                (offered > 0.0).then(|| Utilisation::from_ratio(used / offered))??;
            let stopped = times.stopped_periods != before.stopped_periods;
            Some(CpuUse { utilisation, stopped })
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    const DIR: &str = "sys/fs/cgroup/machine.slice/vm1.scope";

    fn tree(cpus: &str, effective: &str) -> Tree {
        let tree = Tree::new();
        let stat = "usage_usec 1000000\nuser_usec 900000\nsystem_usec 100000";
        tree.folder(
            DIR,
            &[("cpuset.cpus", cpus), ("cpuset.cpus.effective", effective), ("cpu.stat", stat)],
        );
        tree
    }
    fn group(tree: &Tree) -> Cgroup {
        Cgroup::at(tree.root(), "machine.slice/vm1.scope").unwrap()
    }

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

    #[test]
    fn a_grant_that_differs_from_the_wish_is_an_error() {
        let tree = tree("0-7", "0-7");
        assert!(group(&tree).confine(&"0-3".parse().unwrap()).is_err());
        assert_eq!(tree.read(&format!("{DIR}/cpuset.cpus")), "0-3\n");
        tree.write(&format!("{DIR}/cpuset.cpus.effective"), "0-3\n");
        group(&tree).confine(&"0-3".parse().unwrap()).unwrap();
        assert!(group(&tree).confine(&CpuList::default()).is_err());
    }

    #[test]
    fn a_restore_writes_an_explicit_list() {
        for (own, expected) in [("4-7", "4-7"), ("", "0-7")] {
            let tree = tree(own, "0-7");
            let original = group(&tree).original().unwrap();
            assert_eq!(original.cpus, expected);
            tree.write(&format!("{DIR}/cpuset.cpus.effective"), expected);
            group(&tree).restore(&original).unwrap();
            assert_eq!(tree.read(&format!("{DIR}/cpuset.cpus")).trim(), expected);
        }
        assert!(group(&tree("", "")).original().is_err());
        let garbage = CpusetOriginal { cpus: "x".into() };
        assert!(group(&tree("", "0")).restore(&garbage).is_err());
    }

    #[test]
    fn utilisation_is_cpu_time_over_offered_time() {
        let tree = tree("0-3", "0-3");
        let stat = format!("{DIR}/cpu.stat");
        let mut meter = UsageMeter::new(group(&tree));
        assert_eq!(meter.sample(Instant::ZERO, 4).unwrap(), None);
        tree.write(&stat, "user_usec 5\nusage_usec 1400000\n");
        let half =
            |stopped| Some(CpuUse { utilisation: Utilisation::from_ratio(0.5).unwrap(), stopped });
        assert_eq!(meter.sample(Instant::from_millis(200), 4).unwrap(), half(false));
        tree.write(&stat, "usage_usec 1800000\nnr_periods 9\nnr_throttled 3\nthrottled_usec 5\n");
        assert_eq!(meter.sample(Instant::from_millis(400), 4).unwrap(), half(true));
        tree.write(&stat, "usage_usec 7\n");
        assert_eq!(meter.sample(Instant::from_millis(400), 4).unwrap(), None);
        assert_eq!(meter.sample(Instant::from_millis(400), 0).unwrap(), None);
        for bad in ["", "usage_usec", "usage_usec x\n", "usage_usec -1\n"] {
            tree.write(&stat, bad);
            assert!(meter.sample(Instant::from_millis(600), 4).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn every_file_missing_or_garbage_is_an_error_that_names_it() {
        for file in ["cpuset.cpus", "cpuset.cpus.effective"] {
            for bad in ["x", "3-1", "0-99999999"] {
                let tree = tree("", "0");
                tree.write(&format!("{DIR}/{file}"), bad);
                assert!(group(&tree).original().unwrap_err().to_string().contains(file));
            }
            let tree = tree("", "0");
            tree.remove(&format!("{DIR}/{file}"));
            assert!(group(&tree).original().unwrap_err().is_missing());
        }
    }
}
