//! By the group's own file.

use super::binder::{Binder, CpusetOriginal, Via};
use crate::error::HwError;
use crate::root::optional;
use crate::systemd::owner::refuse_systemds;
use crate::{Cgroup, CpuList, Root};

pub(super) struct Files {
    pub(super) root: Root,
    /// Writes units' groups too.
    pub(super) even_units: bool,
}

impl Binder for Files {
    fn original(&self, path: &str) -> Result<CpusetOriginal, HwError> {
        let group = Cgroup::at(&self.root, path)?;
        refuse_systemds(&self.root, path, "cpuset.cpus", self.even_units)?;
        let inode = group.inode()?;
        group.is_member()?;
        let own = group.own_cpus()?;
        let cpus = if own.is_empty() { group.effective()? } else { own };
        let original = CpusetOriginal { cpus: cpus.to_string(), via: Via::Cgroup { inode } };
        original.list(&group)?;
        Ok(original)
    }

    fn bind(&self, path: &str, cpus: &CpuList) -> Result<(), HwError> {
        Cgroup::at(&self.root, path)?.confine(cpus)
    }

    fn restore(&self, path: &str, original: &CpusetOriginal) -> Result<(), HwError> {
        let group = Cgroup::at(&self.root, path)?;
        let Some(inode) = optional(group.inode())? else { return Ok(()) };
        if original.is_of_another(inode) {
            return Ok(());
        }
        optional(group.give_back(&original.list(&group)?)).map(drop)
    }

    fn effective(&self, path: &str) -> Result<CpuList, HwError> {
        Cgroup::at(&self.root, path)?.effective()
    }
}
