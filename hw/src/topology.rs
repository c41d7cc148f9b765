//! Which CPUs share a clock, a package and a NUMA node.
//!
//! SMT siblings share their core's clock: the highest request wins, so capping one alone does nothing.
//! What must be capped together is a [`Domain`]: the union of `topology/thread_siblings_list`, of the
//! cpufreq policies' `related_cpus`, and of acpi-cpufreq's `freqdomain_cpus`. Where the kernel shows none
//! of them, every CPU is a domain of its own, on node 0.
//!
//! Sources: Documentation/admin-guide/cputopology.rst, Documentation/admin-guide/pm/cpufreq.rst,
//! Documentation/ABI/testing/sysfs-devices-system-cpu, Documentation/ABI/stable/sysfs-devices-node.

use std::collections::BTreeMap;
use std::path::Path;

use ballast_types::CoreId;
use nix::errno::Errno;

use crate::error::{HwError, Operation};
use crate::root::{numbered, optional, read_text, read_value};
use crate::{CpuList, Root};

/// What a file with CPU numbers must hold.
const CPUS: &str = "CPU numbers and rising ranges up to 8191, such as 0-3,8";
/// Where the kernel shows its CPUs.
const CPU: &str = "sys/devices/system/cpu";

/// CPUs that share a clock, and so are capped together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Its lowest CPU number, be that CPU online or not.
    pub id: CoreId,
    /// Its CPUs that are online.
    pub cpus: CpuList,
    /// The NUMA node of its lowest online CPU.
    pub node: u16,
    /// The package (socket) of that CPU.
    pub package: u16,
}

impl From<CoreId> for Domain {
    /// One CPU that shares its clock with no other, on node 0.
    fn from(id: CoreId) -> Self {
        Self { id, cpus: [u32::from(id.0)].into_iter().collect(), node: 0, package: 0 }
    }
}

/// Every online CPU of this machine, by clock domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    domains: Vec<Domain>,
    /// CPUs that are there and offline.
    offline: CpuList,
    clocks: Clocks,
}

impl Topology {
    /// Reads which CPUs are online, and which of them share what. CPUs that go or come meanwhile are counted
    /// as they were when they were looked at. Fails if a file holds garbage or cannot be read, or there is no
    /// CPU at all.
    pub fn read(root: &Root) -> Result<Self, HwError> {
        let dir = root.path(CPU);
        let mut clocks = Clocks::default();
        let mut of_policies = CpuList::default();

        for (number, policy) in optional(numbered(&dir.join("cpufreq"), "policy"))?.into_iter().flatten() {
            let related =
                cpus(&policy.join("related_cpus"))?.unwrap_or_else(|| [number].into_iter().collect());
            clocks.unite(&related);
            if let Some(shared) = cpus(&policy.join("freqdomain_cpus"))? {
                clocks.unite(&[number].into_iter().chain(shared.iter()).collect());
            }
            of_policies.extend(related.iter());
        }

        let online = online(root)?.unwrap_or(of_policies);
        let nodes = nodes(root)?;
        let mut domains = BTreeMap::<u32, Domain>::new();

        for cpu in online.iter() {
            if let Some(siblings) = cpus(&dir.join(format!("cpu{cpu}/topology/thread_siblings_list")))? {
                clocks.unite(&[cpu].into_iter().chain(siblings.iter()).collect());
            }
        }

        for cpu in online.iter() {
            let first = clocks.first(cpu);
            if let Some(domain) = domains.get_mut(&first) {
                domain.cpus.extend([cpu]);
                continue;
            }

            let node = nodes.iter().find(|(_, cpus)| cpus.contains(cpu)).map_or(0, |(node, _)| *node);
            let package = package(&dir.join(format!("cpu{cpu}/topology/physical_package_id")))?;
            let cpus = [cpu].into_iter().collect();
            domains.insert(first, Domain { id: CoreId(first as u16), cpus, node, package });
        }

        if domains.is_empty() {
            let allowed = "at least one CPU in online, or a cpufreq/policyN";
            return Err(HwError::value(&dir, Operation::Read, "no CPU", allowed));
        }

        let present = present(root)?.unwrap_or_default();
        let offline = present.iter().filter(|cpu| !online.contains(*cpu)).collect();

        Ok(Self { domains: domains.into_values().collect(), offline, clocks })
    }

    /// Every domain with an online CPU, ascending by id.
    pub fn domains(&self) -> &[Domain] {
        &self.domains
    }

    /// The lowest CPU of every domain that is wholly offline, as far as is known: the kernel does not tell
    /// whose sibling an offline CPU is.
    pub(crate) fn absent(&self) -> impl Iterator<Item = CoreId> {
        let lowest = |cpu: &u32| self.of(*cpu).is_none() && self.clocks.first(*cpu) == *cpu;
        self.offline.iter().filter(lowest).map(|cpu| CoreId(cpu as u16))
    }

    /// The domain of a CPU, be it online or not; `None` if no CPU of the domain is online.
    pub fn of(&self, cpu: u32) -> Option<&Domain> {
        let first = self.clocks.first(cpu);
        self.domains.iter().find(|domain| u32::from(domain.id.0) == first)
    }
}

/// Every CPU that the machine has, those that are offline among them; `None` if the kernel does not show them.
pub(crate) fn present(root: &Root) -> Result<Option<CpuList>, HwError> {
    cpus(&root.path(CPU).join("present"))
}

/// Every CPU that the machine can ever have while it runs; `None` if the kernel does not show them.
pub fn possible(root: &Root) -> Result<Option<CpuList>, HwError> {
    cpus(&root.path(CPU).join("possible"))
}

/// The CPUs that are online; `None` if the kernel does not show them.
pub fn online(root: &Root) -> Result<Option<CpuList>, HwError> {
    optional(read_value(&root.path(CPU).join("online"), CPUS))
}

/// Which CPUs share a clock, as a forest whose roots are the lowest CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Clocks(BTreeMap<u32, u32>);

impl Clocks {
    /// The lowest CPU that shares its clock with this one.
    fn first(&self, mut cpu: u32) -> u32 {
        while let Some(lower) = self.0.get(&cpu) {
            cpu = *lower;
        }
        cpu
    }

    fn unite(&mut self, cpus: &CpuList) {
        let mut cpus = cpus.iter();
        let Some(one) = cpus.next() else { return };
        for other in cpus {
            let (a, b) = (self.first(one), self.first(other));
            if a != b {
                self.0.insert(a.max(b), a.min(b));
            }
        }
    }
}

/// The CPU numbers in a file; `None` if there is no such file, or the CPUs that it is about are offline.
pub(crate) fn cpus(path: &Path) -> Result<Option<CpuList>, HwError> {
    let text = match optional(read_text(path)) {
        Ok(Some(text)) => text,
        Ok(None) => return Ok(None),
        Err(e) if e.is(&[Errno::EBUSY, Errno::ENODEV, Errno::ENXIO]) => return Ok(None),
        Err(e) => return Err(e),
    };
    // Policies write blanks between CPU numbers, topology writes commas.
    let list = text.split_whitespace().collect::<Vec<_>>().join(",");
    let list = list.parse().map_err(|_| HwError::value(path, Operation::Read, text.trim(), CPUS))?;
    Ok(Some(list))
}

/// The package of a CPU. A kernel that does not know says -1.
fn package(path: &Path) -> Result<u16, HwError> {
    let id = optional(read_value::<i32>(path, "a whole number, or -1 where unknown"))?;
    Ok(id.and_then(|id| u16::try_from(id).ok()).unwrap_or(0))
}

/// The CPUs of every NUMA node; none where the kernel has no nodes.
fn nodes(root: &Root) -> Result<Vec<(u16, CpuList)>, HwError> {
    let dir = root.path("sys/devices/system/node");
    let mut nodes = Vec::new();
    for (number, node) in optional(numbered(&dir, "node"))?.into_iter().flatten() {
        let number = u16::try_from(number)
            .map_err(|_| HwError::value(&node, Operation::Read, number, "a node number up to 65535"))?;
        nodes.extend(cpus(&node.join("cpulist"))?.map(|cpus| (number, cpus)));
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    fn read(tree: &Tree) -> Vec<(u16, String, u16, u16)> {
        let topology = Topology::read(tree.root()).unwrap();
        topology.domains().iter().map(|d| (d.id.0, d.cpus.to_string(), d.node, d.package)).collect()
    }
    fn shown(domains: &[(u16, &str, u16, u16)]) -> Vec<(u16, String, u16, u16)> {
        domains.iter().map(|(id, cpus, node, package)| (*id, (*cpus).into(), *node, *package)).collect()
    }
    fn topology(tree: &Tree, cpu: u32, siblings: &str, package: &str) {
        let dir = format!("{CPU}/cpu{cpu}/topology");
        tree.folder(&dir, &[("thread_siblings_list", siblings), ("physical_package_id", package)]);
    }
    /// Two sockets of two cores with two threads: 0,4 1,5 | 2,6 3,7.
    fn smt() -> Tree {
        let tree = Tree::new();
        tree.folder(CPU, &[("online", "0-7")]);
        for cpu in 0..8 {
            topology(&tree, cpu, &format!("{},{}", cpu % 4, cpu % 4 + 4), &(cpu % 4 / 2).to_string());
            let policy = format!("{CPU}/cpufreq/policy{cpu}");
            tree.folder(&policy, &[("related_cpus", &cpu.to_string())]);
        }
        tree.folder("sys/devices/system/node/node0", &[("cpulist", "0-1,4-5")]);
        tree.folder("sys/devices/system/node/node1", &[("cpulist", "2-3,6-7")]);
        tree.write("sys/devices/system/node/online", "0-1\n");
        tree
    }

    #[test]
    fn siblings_with_policies_of_their_own_are_one_domain() {
        let want = [(0, "0,4", 0, 0), (1, "1,5", 0, 0), (2, "2,6", 1, 1), (3, "3,7", 1, 1)];
        assert_eq!(read(&smt()), shown(&want));
    }

    #[test]
    fn policies_and_frequency_domains_join_cores() {
        let tree = smt();
        tree.write(&format!("{CPU}/cpufreq/policy2/related_cpus"), "2 3\n");
        tree.write(&format!("{CPU}/cpufreq/policy0/freqdomain_cpus"), "0 1 4 5\n");
        assert_eq!(read(&tree), shown(&[(0, "0-1,4-5", 0, 0), (2, "2-3,6-7", 1, 1)]));
    }

    #[test]
    fn without_topology_every_cpu_is_alone_on_node_0() {
        let tree = Tree::new();
        for cpu in [0, 9, 10] {
            tree.write(&format!("{CPU}/cpufreq/policy{cpu}/scaling_driver"), "x\n");
        }
        let alone = shown(&[(0, "0", 0, 0), (9, "9", 0, 0), (10, "10", 0, 0)]);
        assert_eq!(read(&tree), alone);
        // Without cpufreq too: virtual machines have none.
        let tree = Tree::new();
        tree.folder(CPU, &[("online", "0-1")]);
        topology(&tree, 1, "1", "-1");
        assert_eq!(read(&tree), shown(&[(0, "0", 0, 0), (1, "1", 0, 0)]));
        assert!(Topology::read(Tree::new().root()).is_err());
    }

    #[test]
    fn offline_cpus_are_left_out_and_keep_the_name_of_their_domain() {
        let tree = smt();
        tree.folder(CPU, &[("online", "1-6")]);
        tree.remove(&format!("{CPU}/cpu0/topology"));
        tree.remove(&format!("{CPU}/cpu7/topology"));
        topology(&tree, 4, "4", "0");
        topology(&tree, 3, "3", "1");
        tree.write(&format!("{CPU}/cpufreq/policy0/related_cpus"), "0 4\n");

        for policy in ["policy0", "policy7"] {
            tree.fail(&format!("{CPU}/cpufreq/{policy}/freqdomain_cpus"), Operation::Read, Errno::EBUSY);
        }

        tree.fail(&format!("{CPU}/cpufreq/policy7/related_cpus"), Operation::Read, Errno::EBUSY);
        let want = [(0, "4", 0, 0), (1, "1,5", 0, 0), (2, "2,6", 1, 1), (3, "3", 1, 1)];
        assert_eq!(read(&tree), shown(&want));
        let topology = Topology::read(tree.root()).unwrap();
        assert_eq!(topology.of(6).map(|d| d.id), Some(CoreId(2)));
        assert_eq!(topology.of(0).map(|d| d.id), Some(CoreId(0)));
        assert_eq!(topology.of(7), None);
    }

    #[test]
    fn garbage_is_an_error_that_names_the_file() {
        for (file, bad) in [
            ("sys/devices/system/cpu/online", "0-99999"),
            ("sys/devices/system/cpu/online", "all"),
            ("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "1,x"),
            ("sys/devices/system/cpu/cpu1/topology/physical_package_id", "one"),
            ("sys/devices/system/cpu/cpufreq/policy3/related_cpus", "-3"),
            ("sys/devices/system/node/node1/cpulist", "3-1"),
        ] {
            let tree = smt();
            tree.write(file, bad);
            let e = Topology::read(tree.root()).unwrap_err();
            assert!(e.to_string().contains(file) && e.to_string().contains("expected"), "{e}");
        }
        let tree = smt();
        let file = format!("{CPU}/cpu1/topology/thread_siblings_list");
        tree.fail(&file, Operation::Read, Errno::EACCES);
        assert!(Topology::read(tree.root()).unwrap_err().to_string().contains(&file));
    }
}
