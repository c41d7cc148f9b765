//! VMs that share the cores of a pool: bound each by itself, or held by the slice of their class.

use ballast_agent_core::ControlledVm;
use ballast_hw::{Cgroup, CpuList, HwError, Journal, Operation};
use ballast_types::wire::{Alarm, AlarmId};
use ballast_types::{OnExtreme, VmClass};

use super::Vms;

impl Vms {
    /// Binds the slices of both classes to their pools. A slice that is not there has no VM in it.
    pub(super) fn bind_slices(&mut self) {
        let Some((slices, pools)) = self.specs.slices() else { return };
        let slices = pools.map(|(class, cpus)| (slices.of(class).to_owned(), cpus));
        for (path, cpus) in slices {
            let bound = Cgroup::check_vm(&self.root, &path).and_then(|()| self.confine(&path, &cpus));
            match bound {
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

    /// What is made of a VM that is not where it should be; without a `path` nobody binds it.
    ///
    /// One with cores of its own counts as user-facing, and its cores with it. In a pool that would free all the
    /// others: a batch VM stays batch, since running elsewhere only makes it faster; with a user-facing one all
    /// the cores that it may run on count as user-facing.
    pub(super) fn is_not_placed(&mut self, vm: &mut ControlledVm, path: Option<&str>) {
        vm.on_extreme = OnExtreme::None;
        if vm.vcpus.is_none() {
            vm.class = VmClass::UserFacing;
        } else if vm.class == VmClass::UserFacing {
            let cpus = path.and_then(|path| self.known_cpus(path));
            vm.cores.extend(self.specs.cores_with(cpus.as_ref()));
            vm.cores.sort_unstable();
            vm.cores.dedup();
        }
    }

    /// The CPUs that a VM may run on: by whoever binds it, or as it was last bound, or by its group.
    fn known_cpus(&mut self, path: &str) -> Option<CpuList> {
        let told = self.binders.binder().and_then(|binder| binder.effective(path)).ok();
        told.or_else(|| self.bound.get(path).map(|bound| bound.cpus().clone()))
            .or_else(|| Cgroup::at(&self.root, path).and_then(|group| group.inherited()).ok())
    }

    /// Which slices are not bound to their pools, and why.
    pub(super) fn slice_alarms(&self) -> impl Iterator<Item = Alarm> {
        self.slice_troubles.iter().map(|(path, why)| {
            let message = format!("the slice {path} is not bound to its pool: {why}");
            Alarm::about(AlarmId::VmNotBound, path, message)
        })
    }
}
