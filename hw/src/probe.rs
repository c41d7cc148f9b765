//! What this machine is and has, read without changing anything: for the agent before it acts, and for
//! operators who ask what this machine can do.
//!
//! Facts only; what they are good for is judged elsewhere. A fact that cannot be read is missing, and
//! where it matters why, the kernel's error stands in its place.

mod cgroups;
mod competing_writers;
mod cpus;
mod domains;
mod files;
mod kubelet;
mod meters;
mod process;
mod rapl;
mod record;
mod refresh;
mod write_trial;

use procfs_core::{CpuInfo, FromRead};
use serde::Serialize;

pub use cgroups::{CgroupMode, Cgroups};
pub use competing_writers::{CompetingWriter, Setting};
pub use cpus::{Cpus, PolicyGroup, Scaling};
pub use domains::Domains;
pub use kubelet::Kubelet;
pub use meters::{Bmc, MeterFacts, meters};
pub use process::{Process, Services};
pub use rapl::{Constraint, RaplZone};
pub use record::{Manifest, record};
pub use refresh::{Refresh, Source, refresh};
pub use write_trial::{Written, write_trial};

use crate::root::{Root, boot_id, read_start};
use files::line;

/// Everything that can be read of a machine without waiting.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The kernel's release, as `uname -r` says it.
    pub kernel: Option<String>,
    pub boot_id: Option<String>,
    /// Whether the CPU says that it is a virtual one.
    pub virtual_machine: bool,
    /// The CPUs, and who shares what with whom.
    pub cpus: Cpus,
    /// Who scales their frequencies, and how far.
    pub scaling: Scaling,
    /// RAPL's zones, in the order of their folders.
    pub rapl: Vec<RaplZone>,
    /// Every power channel of hwmon.
    pub meters: Vec<MeterFacts>,
    pub bmc: Bmc,
    pub cgroups: Cgroups,
    pub domains: Domains,
    /// What else sets frequencies, limits or CPU sets here.
    pub competing_writers: Vec<CompetingWriter>,
    pub process: Process,
    pub services: Services,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<Kubelet>,
}

impl Machine {
    pub fn read(root: &Root) -> Self {
        Self {
            kernel: line(root, "proc/sys/kernel/osrelease"),
            boot_id: boot_id(root).ok().map(|id| id.as_str().to_owned()),
            virtual_machine: in_vm(root),
            cpus: Cpus::read(root),
            scaling: Scaling::read(root),
            rapl: rapl::zones(root),
            meters: meters(root),
            bmc: Bmc::read(root),
            cgroups: Cgroups::read(root),
            domains: Domains::read(root),
            competing_writers: competing_writers::find(root),
            process: Process::read(root),
            services: Services::read(root),
            kubelet: Kubelet::read(root),
        }
    }
}

/// Whether this is a virtual machine: the CPU's `hypervisor` flag, which only x86 has.
///
/// A file that cannot be read says nothing, and then the answer is no.
///
/// Source: arch/x86/include/asm/cpufeatures.h, `X86_FEATURE_HYPERVISOR`.
pub fn in_vm(root: &Root) -> bool {
    let cpu = CpuInfo::from_read(first_cpu(root).as_bytes());
    cpu.is_ok_and(|cpu| cpu.flags(0).is_some_and(|flags| flags.contains(&"hypervisor")))
}

/// What the first CPU is called, where the kernel says so.
pub fn cpu_model(root: &Root) -> Option<String> {
    // By hand: procfs ends a value at its second colon.
    let text = first_cpu(root);
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    let name = line.split_once(':')?.1.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

/// The paragraph of the first CPU: the whole file may be megabytes.
fn first_cpu(root: &Root) -> String {
    let text = read_start(&root.path("proc/cpuinfo")).unwrap_or_default();
    text.split("\n\n").next().unwrap_or_default().to_owned()
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
        assert_eq!(cpu_model(Tree::new().root()), None);

        // Two hundred CPUs: more than a small kernel file holds.
        let tree = Tree::new();
        tree.write("proc/cpuinfo", &"processor\t: 0\nflags\t\t: fpu hypervisor\n\n".repeat(4000));
        assert!(in_vm(tree.root()));
        tree.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Xeon: 8171M\nflags\t: fpu\n");
        assert_eq!(cpu_model(tree.root()).as_deref(), Some("Xeon: 8171M"));
    }
}
