//! By the group's own file.

use super::{Binder, CpusetOriginal, Via};
use crate::error::{HwError, Operation};
use crate::root::optional;
use crate::systemd::{Systemd, unit};
use crate::{Cgroup, CpuList, Root};

/// What may be done about a group that is systemd's.
const UNIT: &str = "a group that nobody but the agent writes: below a unit with Delegate=cpuset cpu, \
                               or not of systemd. A unit itself is bound with groups.by = \"systemd\", a \
                               libvirt domain with \"libvirt\"; groups.even_units = true writes all the same, \
                               until systemd writes it again";

/// Whether systemd owns the group at `path`: it is that of a unit. What is below one is left to whom it was
/// delegated; systemd itself makes nothing there.
fn is_systemds(root: &Root, path: &str) -> bool {
    Systemd::is_booted(root) && unit::unit_of(path).is_some()
}

/// Refuses to write `file` of a group that is systemd's.
pub(crate) fn refuse_systemds(root: &Root, path: &str, file: &str, even_units: bool) -> Result<(), HwError> {
    if even_units || !is_systemds(root, path) {
        return Ok(());
    }
    let file = Cgroup::at(root, path)?.dir().join(file);
    Err(HwError::value(&file, Operation::Write, "", UNIT))
}

pub(super) struct Files {
    pub(super) root: Root,
    /// Writes units' groups too.
    pub(super) even_units: bool,
}

impl Binder for Files {
    fn original(&self, path: &str) -> Result<CpusetOriginal, HwError> {
        let group = Cgroup::at(&self.root, path)?;
        refuse_systemds(&self.root, path, "cpuset.cpus", self.even_units)?;
        let inode = Some(group.inode()?);
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
