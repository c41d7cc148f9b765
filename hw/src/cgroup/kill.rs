//! Killing everything in a cgroup at once: `cgroup.kill`, since Linux 5.14.
//!
//! Source: Documentation/admin-guide/cgroup-v2.rst (`cgroup.kill`, `cgroup.events`).

use procfs_core::{FromRead, ProcessCGroups};

use crate::error::{HwError, Operation};
use crate::root::{optional, read_text, write_value};
use crate::{Cgroup, Root};

const KILL: &str = "cgroup.kill, which every group but the root has since Linux 5.14";

impl Cgroup {
    /// Sends SIGKILL to every process in it and below it, if it still is the group with this `inode`. Done
    /// twice is done once. Fails if it was made anew, this process is in it, the kernel has no such file, or
    /// it refuses.
    pub fn kill(&self, root: &Root, inode: u64) -> Result<(), HwError> {
        let file = self.dir.join("cgroup.kill");
        let now = self.inode()?;
        if now != inode {
            let allowed = format!("inode {inode}: the group was made anew, somebody else may be in it");
            return Err(HwError::value(&self.dir, Operation::Verify, now, allowed));
        }

        let own = root.path("proc/self/cgroup");
        let text = optional(read_text(&own))?.unwrap_or_default();
        let groups = ProcessCGroups::from_read(text.as_bytes()).map_err(|e| {
            HwError::value(&own, Operation::Read, e, "lines with a number, controllers and a path")
        })?;

        // The hierarchy of version 2 has the number 0.
        let own = groups.0.iter().find(|group| group.hierarchy == 0);
        let own = own.map(|group| group.pathname.trim_start_matches('/'));

        if own.is_some_and(|own| root.path("sys/fs/cgroup").join(own).starts_with(&self.dir)) {
            let allowed = "a group that the agent is not in itself";
            return Err(HwError::value(&file, Operation::Write, 1, allowed));
        }

        write_value(&file, 1).map_err(|mut error| {
            if error.is_missing() {
                KILL.clone_into(&mut error.allowed);
            }
            error
        })
    }

    /// Whether any process is in it or below it; one that is gone has none. Fails if `cgroup.events` is
    /// unreadable or does not say.
    pub fn populated(&self) -> Result<bool, HwError> {
        let file = self.dir.join("cgroup.events");
        let Some(text) = optional(read_text(&file))? else { return Ok(false) };
        match text.lines().find_map(|line| line.strip_prefix("populated ")).map(str::trim) {
            Some("0") => Ok(false),
            Some("1") => Ok(true),
            other => {
                let allowed = "a line populated with 0 or 1";
                Err(HwError::value(&file, Operation::Read, other.unwrap_or_default(), allowed))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    const DIR: &str = "sys/fs/cgroup/machine.slice/vm1.scope";

    fn group(tree: &Tree, path: &str) -> Cgroup {
        Cgroup::at(tree.root(), path).unwrap()
    }
    fn kill(tree: &Tree, path: &str) -> Result<(), HwError> {
        let group = group(tree, path);
        group.kill(tree.root(), group.inode()?)
    }

    #[test]
    fn a_kill_is_one_write_into_that_group_alone() {
        let tree = Tree::new();
        let other = "sys/fs/cgroup/machine.slice/vm2.scope/cgroup.kill";
        tree.folder(DIR, &[("cgroup.kill", "")]);
        tree.write(other, "");
        tree.write("sys/fs/cgroup/machine.slice/cgroup.kill", "");
        tree.write("proc/self/cgroup", "1:name=systemd:/\n0::/system.slice/agent.service\n");
        kill(&tree, "machine.slice/vm1.scope").unwrap();
        assert_eq!(tree.read(&format!("{DIR}/cgroup.kill")), "1\n");
        for file in [other, "sys/fs/cgroup/machine.slice/cgroup.kill"] {
            assert_eq!(tree.read(file), "");
        }
    }

    #[test]
    fn a_group_made_anew_is_not_killed() {
        let tree = Tree::new();
        tree.folder(DIR, &[("cgroup.kill", "")]);
        let group = group(&tree, "machine.slice/vm1.scope");
        let inode = group.inode().unwrap();
        // Kept, so that its inode is not used again at once.
        std::fs::rename(tree.root().path(DIR), tree.root().path("old")).unwrap();
        assert!(group.kill(tree.root(), inode).unwrap_err().is_missing());
        tree.folder(DIR, &[("cgroup.kill", "")]);
        let error = group.kill(tree.root(), inode).unwrap_err();
        assert!(error.to_string().contains("made anew") && !error.is_transient(), "{error}");
        assert_eq!(tree.read(&format!("{DIR}/cgroup.kill")).trim(), "");
    }

    #[test]
    fn an_older_kernel_is_told_apart() {
        let tree = Tree::new();
        tree.folder(DIR, &[("cgroup.procs", "1")]);
        let error = kill(&tree, "machine.slice/vm1.scope").unwrap_err();
        assert!(error.to_string().contains("Linux 5.14") && !error.is_transient(), "{error}");
        assert!(!tree.root().path(&format!("{DIR}/cgroup.kill")).exists());
    }

    #[test]
    fn nobody_kills_the_group_that_he_is_in() {
        let tree = Tree::new();
        for own in ["vm1.scope", "vm1.scope/inner"] {
            tree.folder(DIR, &[("cgroup.kill", "")]);
            tree.write("proc/self/cgroup", &format!("0::/machine.slice/{own}\n"));
            for path in ["machine.slice", "machine.slice/vm1.scope"] {
                let error = kill(&tree, path).unwrap_err();
                assert!(error.to_string().contains("not in itself"), "{error}");
            }
        }
    }

    #[test]
    fn a_group_is_empty_when_it_says_so_or_is_gone() {
        let tree = Tree::new();
        let vm = group(&tree, "machine.slice/vm1.scope");
        assert!(!vm.populated().unwrap());
        let file = format!("{DIR}/cgroup.events");
        for (text, populated) in [("populated 1\nfrozen 0\n", true), ("frozen 0\npopulated 0\n", false)] {
            tree.write(&file, text);
            assert_eq!(vm.populated().unwrap(), populated);
        }
        for bad in ["", "populated\n", "populated 2\n", "frozen 0\n"] {
            tree.write(&file, bad);
            assert!(vm.populated().is_err(), "{bad:?}");
        }
    }
}
