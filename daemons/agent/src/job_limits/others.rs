//! Limits of VMs with too little history, by others of the same tenant on this server.

use std::collections::BTreeMap;

use ballast_types::VmId;
use ballast_types::wire::VmLimits;
use ballast_usage::limits::job::JobLimit;

use super::choosing::cpu_bounds;
use super::{Recommendations, VmJob, in_cores};

/// So many others must have a limit: one alone may be of another kind.
const OTHERS_MIN: usize = 2;

/// The highest share that others of a tenant should get, and how many others there are.
type Highest<'a> = BTreeMap<&'a str, (usize, f32)>;

impl Recommendations {
    /// Gives VMs that are on record, but have no limit yet, the highest of their tenant: of CPU by the share of the cores.
    pub(super) fn by_others(&self, vms: &mut BTreeMap<VmId, VmLimits>, tenants: &BTreeMap<VmId, String>) {
        let Some(jobs) = &self.jobs else { return };
        let cpu = highest(jobs, tenants, |job| job.cpu.limit());
        let memory = highest(jobs, tenants, |job| job.memory.as_ref().and_then(JobLimit::limit));

        for (vm, limits) in vms {
            let Some(tenant) = tenants.get(vm) else { continue };
            let told = |others: usize| format!("the highest of {others} others of tenant {tenant:?}");
            if let Some((others, share)) = cpu.get(&**tenant).filter(|_| limits.cpu_limit_cores.is_none()) {
                // In cores they may be out of what the user allows, which is the same for all sizes.
                let bounds = cpu_bounds(&self.config, limits.cores);
                let share = share.max(bounds.min).min(bounds.max);
                limits.cpu_limit_cores = Some(in_cores(share, limits.cores));
                (limits.cpu.settings, limits.cpu.why) = (told(*others), None);
            }
            if let Some((others, share)) = memory.get(&**tenant).filter(|_| limits.memory_limit_mib.is_none())
            {
                limits.memory_limit_mib = self.mib(*share);
                (limits.memory.settings, limits.memory.why) = (told(*others), None);
            }
        }
    }
}

fn highest<'a>(
    jobs: &BTreeMap<VmId, VmJob>,
    tenants: &'a BTreeMap<VmId, String>,
    limit: impl Fn(&VmJob) -> Option<f32>,
) -> Highest<'a> {
    let mut highest = Highest::new();
    for (vm, tenant) in tenants {
        let Some(limit) = jobs.get(vm).and_then(&limit) else { continue };
        let (others, share) = highest.entry(tenant).or_default();
        (*others, *share) = (*others + 1, share.max(limit));
    }
    highest.retain(|_, (others, _)| *others >= OTHERS_MIN);
    highest
}
