//! VMs that share the cores of a pool: bound each by itself, or held by the slice of their class.

use ballast_agent_core::ControlledVm;
use ballast_hw::{Cgroup, CpuList, HwError, Journal, Operation};
use ballast_types::{OnExtreme, VmClass};

use super::Vms;

impl Vms {
    /// Binds the slices of both classes to their pools. A slice that is not there has no VM in it.
    pub(super) fn bind_slices(&mut self) {
        let Some((slices, pools)) = self.specs.slices() else { return };
        let slices = pools.map(|(class, cpus)| (slices.of(class).to_owned(), cpus));
        for (path, cpus) in slices {
            match self.confine(&path, &cpus) {
                Ok(_) => drop(self.slice_troubles.remove(&path)),
                Err(error) if error.is_missing() || error.is_pending() => {}
                Err(error) => {
                    let error = error.to_string();
                    if self.slice_troubles.get(&path) != Some(&error) {
                        tracing::warn!(slice = path, error, "the slice is not bound to its pool");
                    }
                    self.slice_troubles.insert(path, error);
                }
            }
        }
    }

    /// Whether the slice of its class holds a VM.
    pub(super) fn is_in_slice(&self, vm: &ControlledVm, path: &str) -> bool {
        vm.vcpus.is_some() && self.specs.slice_class(path) == Some(vm.class)
    }

    /// Checks that a VM in a slice runs on CPUs of its pool alone. Fails if it may run elsewhere.
    pub(super) fn check_slice(&mut self, path: &str, cpus: &CpuList) -> Result<Cgroup, HwError> {
        // Of a previous instance that bound it by itself.
        self.give_back(path)?;
        let group = Cgroup::at(&self.root, path)?;
        if self.journal.as_ref().is_some_and(Journal::is_idle) {
            return Ok(group);
        }
        let granted = group.inherited()?;
        if granted.is_empty() || !granted.is_subset(cpus) {
            let allowed = format!("CPUs of its pool alone: {cpus}");
            return Err(HwError::value(&self.root.path(path), Operation::Verify, granted, allowed));
        }
        Ok(group)
    }

    /// What is made of a VM that is not where it should be.
    ///
    /// One with cores of its own counts as user-facing, and its cores with it. In a pool that would free all the
    /// others: a batch VM stays batch, since running elsewhere only makes it faster; with a user-facing one all
    /// the cores that it may run on count as user-facing.
    pub(super) fn is_not_placed(&mut self, vm: &mut ControlledVm, path: &str, is_pending: bool) {
        vm.on_extreme = OnExtreme::None;
        let is_pooled = vm.vcpus.is_some();
        if !is_pooled {
            vm.class = VmClass::UserFacing;
            return;
        }
        if vm.class == VmClass::NonUserFacing {
            return;
        }

        let before = || self.bound.get(path).map(|bound| bound.cpus().clone());
        let now = || Cgroup::at(&self.root, path).and_then(|group| group.inherited()).ok();
        let cpus = if is_pending { Some(before().unwrap_or_default()) } else { now() };
        vm.cores.extend(self.specs.cores_with(cpus.as_ref()));
        vm.cores.sort_unstable();
        vm.cores.dedup();
    }
}
