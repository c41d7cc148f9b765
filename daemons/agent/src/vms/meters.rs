//! How busy every VM is.

use std::collections::BTreeMap;

use ballast_agent_core::VmUsage;
use ballast_hw::CpuUse;
use ballast_hw::cgroup::{Cgroup, UsageMeter};
use ballast_types::{Instant, VmId};

/// How busy one VM is, between two looks.
struct Meter {
    /// The inode of its group: what another one counts is not what this one did.
    inode: u64,
    cpus: usize,
    usage: UsageMeter,
}

/// How busy every VM is that has a cgroup.
#[derive(Default)]
pub(super) struct Meters(BTreeMap<VmId, Meter>);

impl Meters {
    /// Measures `vm` on `cpus` CPUs in its group from now on; an older one of it goes on in `before`.
    pub(super) fn measure(
        &mut self,
        vm: &VmId,
        cpus: usize,
        (group, inode): (Cgroup, u64),
        before: &mut Self,
    ) {
        let old = before.0.remove(vm).filter(|old| old.inode == inode);
        let old = old.map(|old| Meter { cpus, ..old });
        let meter = old.unwrap_or_else(|| Meter { inode, cpus, usage: UsageMeter::new(group) });
        self.0.insert(vm.clone(), meter);
    }

    /// How many CPUs every VM's use is a share of.
    pub(super) fn cpus(&self) -> BTreeMap<VmId, usize> {
        self.0.iter().map(|(vm, meter)| (vm.clone(), meter.cpus)).collect()
    }

    /// CPU use of every VM since the last call; a VM whose use is not known is left out.
    pub(super) fn sample(&mut self, now: Instant) -> Vec<VmUsage> {
        let sample = |(vm, meter): (&VmId, &mut Meter)| {
            let cpus = meter.cpus;
            let CpuUse { utilisation, stopped } = meter.usage.sample(now, cpus).ok().flatten()?;
            Some(VmUsage { vm: vm.clone(), utilisation, throttled: stopped })
        };
        self.0.iter_mut().filter_map(sample).collect()
    }
}
