//! Which CPUs every VM's cgroup is bound to, and what was there before.

use ballast_hw::cgroup::Cgroup;
use ballast_hw::{CpuList, HwError, Journal};

use super::Vms;

impl Vms {
    /// Confines a VM's group to these CPUs; what it had is journalled first.
    pub(super) fn confine(&mut self, path: &str, cpus: &CpuList) -> Result<Cgroup, HwError> {
        let group = Cgroup::at(&self.root, path)?;
        if self.journal.as_ref().is_some_and(Journal::is_idle) {
            if group.effective()? != *cpus {
                tracing::info!("dry run: would confine {path} to the CPUs {cpus}");
            }
            return Ok(group);
        }
        if !self.originals.cpusets.contains_key(path) {
            self.originals.cpusets.insert(path.to_owned(), group.original()?);
            if let Some(journal) = &mut self.journal
                && let Err(error) = journal.begin(&self.originals)
            {
                // Not on disk: the next call must try again.
                self.originals.cpusets.remove(path);
                return Err(error);
            }
        }
        if group.effective()? != *cpus {
            group.confine(cpus)?;
        }
        Ok(group)
    }

    /// Gives a group back what it had.
    pub(super) fn give_back(&mut self, path: &str) -> Result<(), HwError> {
        let Some(original) = self.originals.cpusets.get(path) else { return Ok(()) };
        match Cgroup::at(&self.root, path)?.restore(original) {
            // A VM that has ended took its cgroup with it.
            Err(error) if !error.is_missing() => return Err(error),
            _ => {}
        }
        self.originals.cpusets.remove(path);
        // Whoever has this cgroup next must not get these cores after a crash of ours.
        self.journal.as_mut().map_or(Ok(()), |journal| journal.begin(&self.originals))
    }
}
