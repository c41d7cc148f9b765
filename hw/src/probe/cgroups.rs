use serde::Serialize;

use super::files::{line, writable};
use crate::Root;

/// Which version of control groups a machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CgroupMode {
    /// Version 2 alone: what Ballast needs.
    Unified,
    /// Version 2 beside version 1, which has the controllers.
    Hybrid,
    /// Version 1.
    Legacy,
    /// None is mounted.
    Absent,
}

#[derive(Clone, Debug, Serialize)]
pub struct Cgroups {
    pub mode: CgroupMode,
    /// Controllers that the kernel offers.
    pub controllers: Vec<String>,
    /// Those of them that the groups below the root have.
    pub enabled: Vec<String>,
    /// Those that VMs below `machine.slice` have; `None` where there is no such slice.
    pub machine_slice: Option<Vec<String>>,
    /// Whether groups with CPU control have `cpu.uclamp.max`; `None` where no group below the root has CPU control.
    pub uclamp: Option<bool>,
    /// Whether this process may make groups and move controllers at the root.
    pub writable: bool,
}

impl Cgroups {
    /// Source: Documentation/admin-guide/cgroup-v2.rst, "Mounting" and "Controlling Controllers".
    pub(super) fn read(root: &Root) -> Self {
        let top = "sys/fs/cgroup";
        let has = |path: &str| root.path(&format!("{top}/{path}")).exists();
        let mode = if has("cgroup.controllers") {
            CgroupMode::Unified
        } else if has("unified/cgroup.controllers") {
            CgroupMode::Hybrid
        } else if has("cpu") || has("cpuset") || has("systemd") {
            CgroupMode::Legacy
        } else {
            CgroupMode::Absent
        };

        let words = |path: &str| {
            line(root, &format!("{top}/{path}"))
                .map(|text| text.split_whitespace().map(str::to_owned).collect())
        };

        Self {
            mode,
            controllers: words("cgroup.controllers").unwrap_or_default(),
            enabled: words("cgroup.subtree_control").unwrap_or_default(),
            machine_slice: has("machine.slice")
                .then(|| words("machine.slice/cgroup.controllers").unwrap_or_default()),
            uclamp: crate::uclamp::is_missing(root).map(|missing| !missing),
            writable: writable(&root.path(&format!("{top}/cgroup.subtree_control"))),
        }
    }

    /// Whether groups below the root have a controller.
    pub fn has(&self, controller: &str) -> bool {
        self.enabled.iter().any(|name| name == controller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn the_mode_is_told_by_what_is_mounted() {
        for (file, mode) in [
            ("cgroup.controllers", CgroupMode::Unified),
            ("unified/cgroup.controllers", CgroupMode::Hybrid),
            ("cpuset/tasks", CgroupMode::Legacy),
            ("other", CgroupMode::Absent),
        ] {
            let tree = Tree::new();
            tree.write(&format!("sys/fs/cgroup/{file}"), "cpuset cpu\n");
            assert_eq!(Cgroups::read(tree.root()).mode, mode, "{file}");
        }
    }

    #[test]
    fn controllers_count_where_groups_below_have_them() {
        let tree = Tree::new();
        tree.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory\n");
        tree.write("sys/fs/cgroup/cgroup.subtree_control", "cpu memory\n");
        tree.write("sys/fs/cgroup/machine.slice/cgroup.controllers", "cpu\n");
        let cgroups = Cgroups::read(tree.root());
        assert!(cgroups.has("cpu") && !cgroups.has("cpuset"));
        assert_eq!(cgroups.machine_slice, Some(vec!["cpu".to_owned()]));
    }
}
