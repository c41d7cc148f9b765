//! Which VMs' use is recorded, and what it makes of those whose class nobody has told.

use std::collections::BTreeMap;
use std::io;

use ballast_agent_core::ControlledVm;
use ballast_hw::{Cgroup, HwError};
use ballast_types::{BootId, VmClass, VmId, VmStart};

use super::Vms;

/// A VM whose use is recorded.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) vm: VmId,
    /// How many CPUs it asked for.
    pub(crate) cores: u16,
    /// Whether nobody has told its class.
    pub(crate) classless: bool,
    /// Whether CPU time was promised to it: to all, but in pools only to user-facing VMs, and not to pinned ones.
    pub(crate) promised: bool,
    pub(crate) group: Cgroup,
    boot_id: BootId,
    path: String,
}

impl Measured {
    /// Which instance of it runs now.
    pub(crate) fn start(&self) -> Result<VmStart, HwError> {
        Ok(VmStart::of(self.boot_id.as_str(), &self.path, self.group.inode()?))
    }
}

impl Vms {
    /// Every VM whose use can be recorded, as it is now.
    pub(crate) fn measured(&self) -> &[Measured] {
        &self.measured
    }

    /// How many CPUs the promise is about, where they are not all of the server's: those of the user-facing pool.
    pub(crate) fn promised_cpus(&self) -> Option<u64> {
        let promised = self.set.iter().find(|vm| self.specs.has_pools() && self.is_promised(vm))?;
        Some(self.specs.cpus(promised).len() as u64)
    }

    fn is_promised(&self, vm: &ControlledVm) -> bool {
        !self.specs.has_pools() || (vm.vcpus.is_some() && vm.class == VmClass::UserFacing)
    }

    pub(super) fn measure(&self, vm: &ControlledVm, path: &str, group: &Cgroup) -> Option<Measured> {
        let spec = self.specs.all().get(&vm.id)?;
        Some(Measured {
            vm: vm.id.clone(),
            promised: self.is_promised(vm),
            cores: spec.cores,
            classless: spec.class.is_none(),
            group: group.clone(),
            boot_id: self.boot_id.clone()?,
            path: path.to_owned(),
        })
    }

    /// Takes which VMs are batch by their own use, in which instance; gives the new set if it is another than
    /// before, and whether that is written down: if not, nobody becomes batch. A class that somebody has
    /// told wins.
    pub(crate) fn advise(
        &mut self,
        batch: BTreeMap<VmId, VmStart>,
    ) -> (Option<Vec<ControlledVm>>, io::Result<()>) {
        if self.journal.is_none() {
            // Everything has been put back.
            return (None, Ok(()));
        }
        let auto = self.specs.auto().clone();
        let written = self.specs.take_auto(batch);
        if auto == *self.specs.auto() {
            return (None, written);
        }
        let before = self.set.clone();
        let set = self.move_all();
        ((set != before).then_some(set), written)
    }

    /// What a VM's own use has made it ends with that instance.
    pub(super) fn forget_others_use(&mut self) {
        let lives = |(vm, start): (&VmId, &VmStart)| {
            let path = self.specs.cgroup(vm)?;
            let inode = Cgroup::at(&self.root, &path).ok()?.inode().ok()?;
            let now = VmStart::of(self.boot_id.as_ref()?.as_str(), &path, inode);
            (now == *start).then_some(())
        };
        let ended = |it: &(&VmId, &VmStart)| lives(*it).is_none();
        let ended: Vec<VmId> = self.specs.auto().iter().filter(ended).map(|(vm, _)| vm.clone()).collect();
        for vm in ended {
            tracing::info!(%vm, "the VM was started again: the class from its use is forgotten");
            self.specs.forget_auto(&vm);
        }
    }
}
