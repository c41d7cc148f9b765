//! The CPUs that a group may use.
//!
//! Moving CPU sets takes a global lock and migrates tasks: it belongs to placement, not to the capping loop.
//! `cpuset.cpus` of a populated group cannot be emptied (ENOSPC), so nothing is ever put back by emptying it.
//! A write that cannot be granted succeeds all the same and falls back to the parent's set, so
//! `cpuset.cpus.effective` is checked. `cpuset.mems` is not touched: that would move memory.
//!
//! Source: Documentation/admin-guide/cgroup-v2.rst; `kernel/cgroup/cpuset.c`.

use nix::errno::Errno;

use super::Cgroup;
use crate::error::{HwError, Operation};
use crate::lists::CpuList;
use crate::root::{look_until, optional, read_text, read_value, write_value};

const LIST: &str = "a CPU list such as 0-3,8";
/// How often the grant is looked at.
const LOOKS: u32 = 40;

impl Cgroup {
    /// The CPUs it may use now: `cpuset.cpus.effective`. Fails if the file is unreadable or garbage;
    /// `is_missing` only if the group is gone.
    pub fn effective(&self) -> Result<CpuList, HwError> {
        let file = self.dir().join("cpuset.cpus.effective");
        read_value(&file, LIST).map_err(|error| self.explain(error))
    }

    /// The CPUs it may use now, by itself or, where it has no set, by the nearest group above it that has one. Fails
    /// as [`Cgroup::effective`] does.
    pub fn inherited(&self) -> Result<CpuList, HwError> {
        // The root of the hierarchy has no events.
        let groups = self.dir().ancestors().take_while(|dir| dir.join("cgroup.events").exists());
        for dir in groups {
            if let Some(cpus) = optional(read_value(&dir.join("cpuset.cpus.effective"), LIST))? {
                return Ok(cpus);
            }
        }
        self.effective()
    }

    /// The CPUs that it was given itself, empty when none were: `cpuset.cpus`.
    pub fn own_cpus(&self) -> Result<CpuList, HwError> {
        read_value(&self.dir().join("cpuset.cpus"), LIST).map_err(|error| self.explain(error))
    }

    /// Gives it `cpus`, and checks the grant.
    pub fn confine(&self, cpus: &CpuList) -> Result<(), HwError> {
        self.write_cpus(cpus)?;
        self.granted(cpus)
    }

    /// The same with what it had before, as [`Cgroup::returned`] checks.
    pub fn give_back(&self, cpus: &CpuList) -> Result<(), HwError> {
        self.write_cpus(cpus)?;
        self.returned(cpus)
    }

    fn write_cpus(&self, cpus: &CpuList) -> Result<(), HwError> {
        let file = self.dir().join("cpuset.cpus");
        if cpus.is_empty() {
            return Err(HwError::value(&file, Operation::Write, "", "at least one CPU"));
        }
        write_value(&file, cpus).map_err(|error| self.explain(error))
    }

    /// Checks that exactly these CPUs were granted; whoever was told to do it may take a moment. Fails if
    /// others were, or the file is unreadable.
    pub fn granted(&self, cpus: &CpuList) -> Result<(), HwError> {
        let granted = look_until(LOOKS, || self.effective(), |granted| granted == cpus)?;
        self.check_grant(&granted, cpus, cpus)
    }

    /// Checks that of these CPUs, which it had before, it was granted all that there still are: what went
    /// offline meanwhile, or was taken from its parent, cannot be granted, and comes back by itself. Of a
    /// list of which nothing is left the kernel makes all that the parent has. Fails if others were granted,
    /// or a file is unreadable.
    pub fn returned(&self, cpus: &CpuList) -> Result<(), HwError> {
        let look = || {
            let parent = self.dir().parent().map(|dir| dir.join("cpuset.cpus.effective"));
            let parent: Option<CpuList> = match parent {
                Some(file) => optional(read_value(&file, LIST))?,
                None => None,
            };
            let still = parent.map_or_else(
                || cpus.clone(),
                |parent| {
                    let both: CpuList = cpus.iter().filter(|cpu| parent.contains(*cpu)).collect();
                    if both.is_empty() { parent } else { both }
                },
            );
            Ok((self.effective()?, still))
        };
        let (granted, still) = look_until(LOOKS, look, |(granted, still)| granted == still)?;
        self.check_grant(&granted, &still, cpus)
    }

    fn check_grant(&self, is: &CpuList, must: &CpuList, told: &CpuList) -> Result<(), HwError> {
        if is == must {
            return Ok(());
        }
        let effective = self.dir().join("cpuset.cpus.effective");
        let allowed = format!("{must}: of {told}, as written, those that are online and its parent's");
        Err(HwError::value(&effective, Operation::Verify, is, allowed))
    }

    /// Checks that it is an ordinary member of its parent's partition. A partition root takes its CPUs away
    /// from its neighbours, an isolated one even from the load balancer: both are somebody's decision. Fails
    /// if it is anything else.
    pub fn is_member(&self) -> Result<(), HwError> {
        let file = self.dir().join("cpuset.cpus.partition");
        match optional(read_text(&file))? {
            Some(text) if text.trim() != "member" => {
                let allowed = "member: partitions are left alone";
                Err(HwError::value(&file, Operation::Read, text.trim(), allowed))
            }
            _ => Ok(()),
        }
    }

    /// Says what the operator can do about it. A group that vanishes while it is used shows as ENODEV,
    /// and one without the controller as if its files were gone.
    fn explain(&self, error: HwError) -> HwError {
        let errno = error.source.as_ref().and_then(std::io::Error::raw_os_error);
        let allowed = match errno.map(Errno::from_raw) {
            Some(Errno::ENODEV) => {
                return HwError { source: Some(Errno::ENOENT.into()), ..error };
            }
            Some(Errno::ENOENT) if self.dir().is_dir() => {
                let allowed = "a group with the cpuset controller: the parent's \
                               cgroup.subtree_control must have \"cpuset\" (systemd enables it where \
                               AllowedCPUs= is set, or below Delegate=cpuset)";
                // Not «missing»: the group is there.
                let source = Some(Errno::EOPNOTSUPP.into());
                return HwError { allowed: allowed.into(), source, ..error };
            }
            Some(Errno::ENOSPC) => "CPUs that it can have: a populated group cannot be without any",
            Some(Errno::EBUSY) => "CPUs that carry the deadline tasks in it",
            Some(Errno::EINVAL) => "CPUs that no exclusive neighbour or partition has",
            Some(Errno::EACCES | Errno::EPERM) => "a file that the agent may write: it runs as root",
            Some(Errno::EROFS) => "a writable /sys/fs/cgroup: ProtectControlGroups=no in the agent's unit",
            _ => return error,
        };

        HwError { allowed: allowed.into(), ..error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    const DIR: &str = "sys/fs/cgroup/vms/vm1";

    fn tree(cpus: &str, effective: &str) -> Tree {
        let tree = Tree::new();
        tree.folder(DIR, &[("cpuset.cpus", cpus), ("cpuset.cpus.effective", effective)]);
        tree
    }
    fn group(tree: &Tree) -> Cgroup {
        Cgroup::at(tree.root(), "vms/vm1").unwrap()
    }
    fn list(text: &str) -> CpuList {
        text.parse().unwrap()
    }

    #[test]
    fn a_grant_that_differs_from_the_wish_is_an_error() {
        let tree = tree("0-7", "0-7");
        let error = group(&tree).confine(&list("0-3")).unwrap_err();
        assert!(error.to_string().contains("of 0-3, as written"), "{error}");
        assert_eq!(tree.read(&format!("{DIR}/cpuset.cpus")), "0-3\n");
        tree.write(&format!("{DIR}/cpuset.cpus.effective"), "0-3\n");
        group(&tree).confine(&list("0-3")).unwrap();
        assert!(group(&tree).confine(&CpuList::default()).is_err());
        assert_eq!(tree.read(&format!("{DIR}/cpuset.cpus")), "0-3\n");
    }

    /// CPUs it had, that its parent has, that it is granted; whether it is back.
    #[test]
    fn what_it_had_is_back_when_all_that_there_still_is_was_granted() {
        for (had, parent, granted, back) in [
            ("0-7", Some("0-7"), "0-7", true),
            ("0-7", None, "0-7", true),
            // CPU 5 went offline.
            ("0-7", Some("0-4,6-15"), "0-4,6-7", true),
            ("0-7", Some("0-4,6-15"), "0-4", false),
            ("4-5", Some("0-3"), "0-3", true),
            ("4-5", Some("0-5"), "4", false),
            ("0-7", None, "0-6", false),
        ] {
            let tree = tree("4-5", granted);
            if let Some(parent) = parent {
                tree.write("sys/fs/cgroup/vms/cpuset.cpus.effective", parent);
            }
            let done = group(&tree).give_back(&list(had));
            assert_eq!(done.is_ok(), back, "{had} {parent:?} {granted}: {done:?}");
            assert_eq!(tree.read(&format!("{DIR}/cpuset.cpus")).trim(), had);
        }
    }

    /// What the kernel answers, what the operator reads, whether it may pass, whether the VM has ended.
    #[test]
    fn every_refusal_of_a_write_says_what_to_do() {
        for (errno, says, transient, missing) in [
            (Errno::ENOSPC, "cannot be without any", false, false),
            (Errno::EBUSY, "deadline tasks", true, false),
            (Errno::EINVAL, "exclusive neighbour or partition", false, false),
            (Errno::EACCES, "runs as root", false, false),
            (Errno::EPERM, "runs as root", false, false),
            (Errno::EROFS, "ProtectControlGroups=no", false, false),
            (Errno::ENODEV, "", false, true),
            (Errno::ENOENT, "subtree_control must have \"cpuset\"", false, false),
            (Errno::EIO, "a writable kernel file", false, false),
        ] {
            let tree = tree("0-7", "0-7");
            tree.fail(&format!("{DIR}/cpuset.cpus"), Operation::Write, errno);
            let error = group(&tree).confine(&list("1")).unwrap_err();
            assert!(error.to_string().contains(says), "{errno}: {error}");
            assert_eq!((error.is_transient(), error.is_missing()), (transient, missing), "{errno}");
            assert!(tree.written().is_empty(), "{errno}");
        }
    }

    #[test]
    fn a_group_that_is_gone_between_two_looks_is_gone() {
        let tree = tree("0-7", "0-7");
        let group = group(&tree);
        group.effective().unwrap();
        tree.remove(DIR);
        assert!(group.effective().unwrap_err().is_missing());
        assert!(group.confine(&list("1")).unwrap_err().is_missing());
        // Or the write succeeds, and it is gone before it is read back.
        let tree = self::tree("0-7", "0-7");
        let group = self::group(&tree);
        tree.fail(&format!("{DIR}/cpuset.cpus.effective"), Operation::Read, Errno::ENODEV);
        assert!(group.confine(&list("1")).unwrap_err().is_missing());
    }

    #[test]
    fn partitions_are_told_from_members() {
        let tree = tree("0-7", "0-7");
        group(&tree).is_member().unwrap();
        tree.write(&format!("{DIR}/cpuset.cpus.partition"), "member\n");
        group(&tree).is_member().unwrap();
        for other in ["root", "isolated", "isolated invalid (Cpu list in cpuset.cpus not exclusive)"] {
            tree.write(&format!("{DIR}/cpuset.cpus.partition"), other);
            let error = group(&tree).is_member().unwrap_err();
            assert!(error.to_string().contains("partitions are left alone"), "{error}");
        }
    }

    #[test]
    fn files_that_are_missing_or_garbage_are_errors_that_name_them() {
        type Look = fn(&Cgroup) -> Result<CpuList, HwError>;
        let looks: [(&str, Look); 2] =
            [("cpuset.cpus", Cgroup::own_cpus), ("cpuset.cpus.effective", Cgroup::effective)];
        for (file, look) in looks {
            for bad in ["x", "3-1", "0-99999999"] {
                let tree = tree("", "0");
                tree.write(&format!("{DIR}/{file}"), bad);
                assert!(look(&group(&tree)).unwrap_err().to_string().contains(file));
            }
            let tree = tree("", "0");
            tree.remove(&format!("{DIR}/{file}"));
            let error = look(&group(&tree)).unwrap_err();
            assert!(error.to_string().contains("cpuset controller"), "{error}");
            assert!(!error.is_missing(), "the VM has not ended");
        }
    }
}
