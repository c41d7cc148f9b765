//! Which version of cgroups the machine runs.
//!
//! Source: systemd's `cg_unified`; Documentation/admin-guide/cgroup-v2.rst ("Mounting").

use std::path::Path;

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, TMPFS_MAGIC, statfs};

use crate::Root;
use crate::error::{HwError, Operation};

const UNIFIED: &str = "version 2 alone: start the kernel with systemd.unified_cgroup_hierarchy=1 and \
                       without cgroup_no_v1; on this machine VMs are not bound to cores";

/// Checks that `sys/fs/cgroup` is version 2 and nothing else, which is all that is used here. On a hybrid
/// machine cpuset and cpu are controllers of version 1, and systemd ignores `AllowedCPUs=`. The error names
/// what is there instead, and the remedy.
pub fn check_mode(root: &Root) -> Result<(), HwError> {
    let dir = root.path("sys/fs/cgroup");
    let found = if root.is_machine() { mounted(&dir)? } else { None };
    let found = found.or_else(|| {
        // A folder has no file system type; neither has a machine whose type says nothing.
        let has = |name: &str| dir.join(name).exists();
        match () {
            () if has("cgroup.controllers") => None,
            () if has("unified/cgroup.controllers") => Some("hybrid"),
            () if has("cpu") || has("cpuset") || has("systemd") => Some("legacy (version 1)"),
            () => Some("not mounted"),
        }
    });
    match found {
        Some(found) => Err(HwError::value(&dir, Operation::Read, found, UNIFIED)),
        None => Ok(()),
    }
}

/// What the file system's type says: `None` if it is that of version 2, or says nothing.
fn mounted(dir: &Path) -> Result<Option<&'static str>, HwError> {
    let kind =
        statfs(dir).map_err(|e| HwError::io(dir, Operation::Read, UNIFIED, e.into()))?.filesystem_type();
    if kind == CGROUP2_SUPER_MAGIC {
        return Ok(None);
    }
    let inner = statfs(&dir.join("unified")).map(|inner| inner.filesystem_type());
    Ok(match inner {
        _ if kind != TMPFS_MAGIC => None,
        Ok(CGROUP2_SUPER_MAGIC) => Some("hybrid"),
        _ => Some("legacy (version 1)"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn a_machine_that_is_not_unified_is_named_with_the_remedy() {
        for (file, found) in [
            ("sys/fs/cgroup/unified/cgroup.controllers", Some("hybrid")),
            ("sys/fs/cgroup/cpuset/tasks", Some("legacy (version 1)")),
            ("sys/fs/cgroup/systemd/tasks", Some("legacy (version 1)")),
            ("sys/fs/other", Some("not mounted")),
            ("sys/fs/cgroup/cgroup.controllers", None),
        ] {
            let tree = Tree::new();
            tree.write(file, "");
            match (check_mode(tree.root()), found) {
                (Ok(()), None) => {}
                (Err(error), Some(found)) => {
                    let text = error.to_string();
                    assert!(text.contains(found) && text.contains("unified_cgroup_hierarchy"), "{text}");

                    assert!(!error.is_missing());
                }
                (got, _) => panic!("{file}: {got:?}"),
            }
        }
    }

    #[test]
    fn the_file_systems_type_decides_on_a_machine() {
        // Whatever machine this runs on: /proc is no cgroup file system and no tmpfs.
        assert_eq!(mounted(Path::new("/proc")).unwrap(), None);
        assert!(mounted(Path::new("/nonexistent")).is_err());
        if statfs("/dev/shm").is_ok_and(|it| it.filesystem_type() == TMPFS_MAGIC) {
            assert_eq!(mounted(Path::new("/dev/shm")).unwrap(), Some("legacy (version 1)"));
        }
    }
}
