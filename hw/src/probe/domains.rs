use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::Root;
use crate::root::numbered;
use crate::systemd::unit;

/// Domains of libvirt that run on this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Domains {
    pub count: usize,
    /// Of all of them together.
    pub vcpus: usize,
}

impl Domains {
    /// Those in `machine.slice` and in the slices right below it.
    pub(super) fn read(root: &Root) -> Self {
        let entries = |dir: &Path| dir.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
        let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let is_domain = |path: &PathBuf| name(path).is_some_and(|name| unit::domain_of(&name).is_some());

        let top = root.path("sys/fs/cgroup/machine.slice");
        let below = entries(&top)
            .filter(|path| name(path).is_some_and(|name| name.ends_with(".slice")))
            .flat_map(|slice| entries(&slice));
        let mut found = Self::default();
        for scope in entries(&top).chain(below).filter(is_domain) {
            found.count += 1;
            found.vcpus += numbered(&scope.join("libvirt"), "vcpu").map_or(0, |it| it.len());
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn domains_are_counted_with_their_vcpus() {
        let tree = Tree::new();
        assert_eq!(Domains::read(tree.root()), Domains::default());
        for (path, vcpus) in [
            (r"machine.slice/machine-qemu\x2d1\x2dweb.scope", 4),
            (r"machine.slice/machine-batch.slice/machine-qemu\x2d2\x2dx.scope", 2),
            (r"machine.slice/machine-a.slice/machine-b.slice/machine-qemu\x2d3\x2dx.scope", 8),
            ("machine.slice/other.scope", 16),
        ] {
            for n in 0..vcpus {
                tree.write(&format!("sys/fs/cgroup/{path}/libvirt/vcpu{n}/cpu.stat"), "");
            }
        }
        assert_eq!(Domains::read(tree.root()), Domains { count: 2, vcpus: 6 });
    }
}
