//! Floating VMs (`cpu-max`, `uclamp`): none is bound to cores, and their quotas go where they go.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use ballast_agent_core::ControlledVm;
use ballast_hw::cgroup::check_mode;
use ballast_hw::{Bandwidth, Cgroup, HwError};
use ballast_types::wire::VmSpec;
use ballast_types::{CoreId, OnExtreme, VmClass, VmId};

use super::Vms;
use crate::quota::Quotas;

/// Every VM with as many CPUs as it has; which ones does not matter. No VM is wider than the server, but
/// together they may have more than its `cpus`.
pub(super) fn set(cpus: u16, specs: &BTreeMap<VmId, VmSpec>) -> anyhow::Result<Vec<ControlledVm>> {
    let vm = |(id, spec): (&VmId, &VmSpec)| -> anyhow::Result<ControlledVm> {
        if spec.cores > cpus {
            anyhow::bail!("VM {id}: cores = {}: at most the server's {cpus}", spec.cores);
        }
        Ok(ControlledVm {
            id: id.clone(),
            class: spec.class(),
            throttle_order: spec.throttle_order,
            cores: (0..spec.cores).map(CoreId).collect(),
            vcpus: None,
            on_extreme: spec.on_extreme,
        })
    };
    specs.iter().map(vm).collect()
}

impl Vms {
    /// Knows a VM's group, and what is on it.
    pub(super) fn follow(&self, path: &str, vm: &ControlledVm) -> Result<Cgroup, HwError> {
        check_mode(&self.root)?;
        let group = Cgroup::of_vm_or_pod(&self.root, path)?;
        if vm.class == VmClass::NonUserFacing {
            self.refuse_limited(path, &group)?;
        }
        if vm.class == VmClass::NonUserFacing
            && let Some(quotas) = &self.floating
        {
            quotas.with(|bandwidth| bandwidth.know(&vm.id, path, vm.cores.len() as u16))?;
        }
        Ok(group)
    }

    /// Every VM that floats is known: what is on their groups is journalled before the controller hears
    /// of them.
    pub(super) fn followed(&mut self, mut set: Vec<ControlledVm>) -> Vec<ControlledVm> {
        if self.floating.is_none() {
            return set;
        }
        // Of a previous instance that bound VMs to cores.
        self.give_all_back(self.originals.cpusets.keys().cloned().collect());
        self.forget_others(&set);
        if let Err(error) = self.settle() {
            tracing::error!(
                %error,
                "the VMs' bandwidth limits cannot be written to the journal: every VM is treated as \
                 user-facing"
            );
            for vm in &mut set {
                (vm.class, vm.on_extreme) = (VmClass::UserFacing, OnExtreme::None);
            }
        }
        set
    }

    /// Who is not limited any more gets back what it had.
    fn forget_others(&self, set: &[ControlledVm]) {
        let Some(quotas) = &self.floating else { return };
        let may = |vm: &ControlledVm| vm.class == VmClass::NonUserFacing || self.limiting.is_some();
        let limited = |id: &VmId| set.iter().any(|vm| vm.id == *id && may(vm));
        let known = quotas.with(|bandwidth| bandwidth.originals()).into_values().map(|it| it.vm);
        for vm in known.filter(|id| !limited(id)) {
            if let Err(error) = quotas.with(|bandwidth| bandwidth.forget(&vm)) {
                tracing::warn!(%vm, %error, "the VM's bandwidth limit could not be lifted");
            }
        }
    }

    /// Journals what is on the groups, then sets quotas on those that came anew.
    fn settle(&mut self) -> Result<(), HwError> {
        let Some(quotas) = self.floating.clone() else { return Ok(()) };
        self.settle_in(&quotas)
    }

    /// The same of the quotas that limit VMs by what they use.
    pub(super) fn settle_in(&mut self, quotas: &Quotas) -> Result<(), HwError> {
        let now = quotas.with(|bandwidth| bandwidth.originals());
        if now != self.originals.quotas {
            let before = mem::replace(&mut self.originals.quotas, now);
            if let Some(journal) = &mut self.journal
                && let Err(error) = journal.begin(&self.originals)
            {
                // Not on disk: the next call must try again.
                self.originals.quotas = before;
                return Err(error);
            }
        }
        quotas.with(Bandwidth::settle);
        Ok(())
    }

    /// Looks at what others do with the groups; where systemd is waited for, the next time: samples do not wait.
    pub(super) fn look(&mut self) {
        let quotas = self.floating.clone().or_else(|| Some(Arc::clone(&self.limiting.as_ref()?.quotas)));
        if let Some(quotas) = quotas.filter(|quotas| quotas.try_with(Bandwidth::look) == Some(true))
            && let Err(error) = self.settle_in(&quotas)
        {
            tracing::error!(%error, "the VMs' bandwidth limits cannot be written to the journal");
        }
    }
}
