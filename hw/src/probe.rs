//! What this machine is, for those who must know before they act on it.

use crate::Root;
use crate::root::read_start;

/// Whether this is a virtual machine: the CPU's `hypervisor` flag, which only x86 has.
///
/// A file that cannot be read says nothing, and then the answer is no.
///
/// Source: arch/x86/include/asm/cpufeatures.h, `X86_FEATURE_HYPERVISOR`.
#[must_use]
pub fn in_vm(root: &Root) -> bool {
    // The first CPU's paragraph will do: the whole file may be megabytes.
    let text = read_start(&root.path("proc/cpuinfo")).unwrap_or_default();
    let mut flags = text.lines().filter(|line| line.starts_with("flags"));
    flags.any(|line| line.split_ascii_whitespace().any(|flag| flag == "hypervisor"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn a_virtual_machine_is_told_by_its_cpu() {
        for (text, vm) in [
            ("processor\t: 0\nflags\t\t: fpu vme hypervisor lahf_lm\n", true),
            ("processor\t: 0\nflags\t\t: fpu vme lahf_lm\n", false),
            ("processor\t: 0\nmodel name\t: a hypervisor\nflags\t\t: fpu\n", false),
            ("processor\t: 0\nFeatures\t: fp asimd\n", false),
            ("", false),
        ] {
            let tree = Tree::new();
            tree.write("proc/cpuinfo", text);
            assert_eq!(in_vm(tree.root()), vm, "{text}");
        }
        assert!(!in_vm(Tree::new().root()));
        // Two hundred CPUs: more than a small kernel file holds.
        let tree = Tree::new();
        tree.write("proc/cpuinfo", &"processor\t: 0\nflags\t\t: fpu hypervisor\n\n".repeat(4000));
        assert!(in_vm(tree.root()));
    }
}
