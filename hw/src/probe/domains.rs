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
        let mut found = Self::default();
        let mut slices = vec![root.path("sys/fs/cgroup/machine.slice")];
        let mut depth = 0;
        while let Some(slice) = slices.pop() {
            depth += 1;
            for entry in slice.read_dir().into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if unit::domain_of(&name).is_some() {
                    found.count += 1;
                    found.vcpus += numbered(&entry.path().join("libvirt"), "vcpu").map_or(0, |it| it.len());
                } else if depth == 1 && name.ends_with(".slice") {
                    slices.push(entry.path());
                }
            }
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
