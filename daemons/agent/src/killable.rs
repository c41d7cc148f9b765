//! The cgroups of the VMs that may be killed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ballast_hw::Cgroup;
use ballast_runtime::lock;
use ballast_types::VmId;

/// Which group one VM runs in.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// As in the VM's spec.
    pub(super) path: String,
    pub(super) group: Cgroup,
    /// The folder's inode when the VM was looked up: what has been made anew by that name is not killed.
    pub(super) inode: u64,
}

impl Target {
    /// Whether the group has been made anew since, by the same name.
    pub(super) fn is_replaced(&self) -> bool {
        self.group.inode().is_ok_and(|inode| inode != self.inode)
    }
}

/// The cgroups of the VMs that may be killed. The set of VMs writes it; its lock is held for a moment
/// only, so that the control thread never waits for cores that are being moved.
#[derive(Clone, Default)]
pub(super) struct Killable(Arc<Mutex<BTreeMap<VmId, Target>>>);

impl Killable {
    pub(super) fn replace(&self, groups: BTreeMap<VmId, Target>) {
        *lock(&self.0) = groups;
    }

    #[cfg(test)]
    pub(super) fn inode(&self, vm: &VmId) -> Option<u64> {
        self.get(vm).map(|target| target.inode)
    }

    pub(super) fn get(&self, vm: &VmId) -> Option<Target> {
        lock(&self.0).get(vm).cloned()
    }
}
