//! By systemd: `AllowedCPUs` of the unit whose group it is.

use core::time::Duration;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::binder::{Binder, CpusetOriginal, Via};
use crate::error::{HwError, Operation};
use crate::root::optional;
use crate::systemd::owner::unit_at;
use crate::systemd::{Systemd, late};
use crate::{Cgroup, CpuList, Root};

/// A systemd that did not answer in time is left alone for so long. Whoever binds VMs holds others up: once for all
/// VMs, and not for each.
const PAUSE: Duration = Duration::from_secs(5);

/// Until when systemd is not asked again. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Silence(Arc<Mutex<Option<Instant>>>);

pub(super) struct Units {
    pub(super) root: Root,
    pub(super) systemd: Systemd,
    pub(super) silence: Silence,
    /// Whether systemd is asked all the same, as at the end.
    pub(super) waits: bool,
}

impl Units {
    fn ask<T>(&self, unit: &str, call: impl FnOnce(&Systemd) -> Result<T, HwError>) -> Result<T, HwError> {
        let mut until = self.silence.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.waits && until.is_some_and(|until| Instant::now() < until) {
            return Err(late(unit, Operation::Write));
        }
        let done = call(&self.systemd);
        let is_late = |error: &HwError| {
            error.source.as_ref().is_some_and(|source| source.kind() == ErrorKind::TimedOut)
        };
        *until = done.as_ref().err().filter(|error| is_late(error)).map(|_| Instant::now() + PAUSE);
        done
    }
}

impl Binder for Units {
    fn original(&self, path: &str) -> Result<CpusetOriginal, HwError> {
        let group = Cgroup::at(&self.root, path)?;
        let unit = unit_at(&group, path)?;
        group.inode()?;
        let state = self.ask(unit, |systemd| systemd.unit(unit))?;
        if state.cgroup != path {
            let allowed = format!("{path}: that is where its cgroup is, says systemd");
            return Err(HwError::value(group.dir(), Operation::Read, state.cgroup, allowed));
        }
        group.is_member()?;
        let cpus = if state.allowed.is_empty() { self.effective(path)? } else { state.allowed.clone() };
        let via = Via::Systemd { unit: unit.to_owned(), allowed: state.allowed.to_string() };
        let original = CpusetOriginal { cpus: cpus.to_string(), via };
        original.list(&group)?;
        Ok(original)
    }

    fn bind(&self, path: &str, cpus: &CpuList) -> Result<(), HwError> {
        let group = Cgroup::at(&self.root, path)?;
        if cpus.is_empty() {
            // systemd would take the property away, and the VM would stay where it is.
            return Err(HwError::value(group.dir(), Operation::Write, "", "at least one CPU"));
        }
        let unit = unit_at(&group, path)?;
        self.ask(unit, |systemd| systemd.allow_cpus(unit, cpus))?;
        group.granted(cpus)
    }

    /// The explicit list first: emptied at once, the kernel would keep the old one (ENOSPC, of which systemd
    /// only writes in its log). Then, where there was none, the property is taken away, so that the unit
    /// is not held there for good. It outlives the unit's group: one that is stopped is put back as well.
    fn restore(&self, path: &str, original: &CpusetOriginal) -> Result<(), HwError> {
        let group = Cgroup::at(&self.root, path)?;
        let Via::Systemd { unit, allowed } = &original.via else { return Ok(()) };
        let cpus = original.list(&group)?;
        if optional(self.ask(unit, |systemd| systemd.allow_cpus(unit, &cpus)))?.is_none() {
            return Ok(());
        }
        optional(group.returned(&cpus))?;
        if allowed.is_empty() {
            optional(self.ask(unit, |systemd| systemd.allow_cpus(unit, &CpuList::default())))?;
        }
        Ok(())
    }

    /// Before the first `AllowedCPUs` in its slice the unit has no CPU set of its own: its parent's holds.
    fn effective(&self, path: &str) -> Result<CpuList, HwError> {
        let group = Cgroup::at(&self.root, path)?;
        group.inode()?;
        let mut above = path;
        loop {
            match (Cgroup::at(&self.root, above)?.effective(), above.rsplit_once('/')) {
                (Err(error), Some((parent, _))) if error.has_no_controller() => above = parent,
                (Err(error), None) if error.has_no_controller() => {
                    return Cgroup::top(&self.root).effective();
                }
                (done, _) => return done,
            }
        }
    }
}
