//! Binding VMs to CPUs: by cgroup file, by systemd, or by libvirt.
//!
//! Whoever made a VM's cgroup keeps a record of where the VM belongs and puts that back sooner or later. So
//! the CPUs are set through him: a group that systemd made by systemd, a domain's threads by libvirt, and
//! files only where nobody else has a record. Nothing is ever done below `kubepods`: the kubelet puts its
//! own sets back.
//!
//! Whatever the way, what counts is what the kernel granted: `cpuset.cpus.effective` is checked after each
//! binding. And what is put back is always an explicit list, since a populated group cannot be emptied.

mod domains;
mod files;
#[cfg(test)]
mod tests;
mod units;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::bandwidth::Through;
use crate::cgroup::check_mode;
use crate::error::{HwError, Operation};
pub use crate::libvirt::Pins;
use crate::libvirt::Virsh;
use crate::systemd::{ShutdownDeadline, Systemd};
use crate::{Cgroup, CpuList, Root};
use domains::Domains;
use files::Files;
pub(crate) use files::refuse_systemds;
use units::Units;
pub(crate) use units::unit_at;

/// Who binds VMs to CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// The agent, by writing `cpuset.cpus` (and `cpu.max`).
    #[default]
    Cgroup,
    /// The same, in groups of systemd's units too, whatever systemd does there later.
    CgroupEvenUnits,
    /// systemd: `AllowedCPUs` (and `CPUQuota`) of slices, scopes and services.
    Systemd,
    /// libvirt at this URI: `virsh vcpupin` and the like. `CPUQuota` goes through systemd, which made the
    /// scope.
    Libvirt(String),
}

/// The CPUs of a VM as they were before, and how they are put back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpusetOriginal {
    /// The list to write back; never empty.
    pub cpus: String,
    /// Through whom.
    #[serde(default)]
    pub via: Via,
}

/// Through whom a VM was bound, with what only he knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// Its file.
    Cgroup {
        /// The folder's inode: a group that was made anew by the same name has never been bound. `None` was
        /// written by a version that did not know it.
        inode: Option<u64>,
    },
    /// Its unit.
    Systemd {
        unit: String,
        /// `AllowedCPUs`; empty when it had none of its own.
        allowed: String,
    },
    /// Its domain.
    Libvirt {
        uri: String,
        /// Which one, in this boot.
        domain: u32,
        /// Where its threads were.
        pins: Pins,
    },
}

impl Default for Via {
    fn default() -> Self {
        Self::Cgroup { inode: None }
    }
}

/// One way to bind a VM. `path` is that of its cgroup, as in its spec.
pub trait Binder {
    /// What must be put back. It must be on disk before [`Binder::bind`].
    ///
    /// # Errors
    /// If the VM is not there, or cannot be bound this way: then it says how it can.
    fn original(&self, path: &str) -> Result<CpusetOriginal, HwError>;

    /// Binds the VM, and checks what was granted.
    ///
    /// # Errors
    /// If it is refused, or another set is granted.
    fn bind(&self, path: &str, cpus: &CpuList) -> Result<(), HwError>;

    /// Puts back what was there. A VM that has ended needs nothing.
    ///
    /// # Errors
    /// If it is refused, or another set is granted.
    fn restore(&self, path: &str, original: &CpusetOriginal) -> Result<(), HwError>;

    /// The CPUs that the VM may use now.
    ///
    /// # Errors
    /// If they cannot be read; `is_missing` if the VM is not there.
    fn effective(&self, path: &str) -> Result<CpuList, HwError>;
}

/// Every way to bind VMs on this machine.
#[derive(Debug)]
pub struct Binders {
    root: Root,
    by: By,
    systemd: Option<Systemd>,
    virsh: PathBuf,
    shutdown_deadline: ShutdownDeadline,
}

impl Binders {
    /// New VMs are bound by `by`; what was bound otherwise is put back as it was bound.
    #[must_use]
    pub fn new(root: &Root, by: By) -> Self {
        let virsh = if root.is_machine() { "virsh".into() } else { root.path("usr/bin/virsh") };
        Self { root: root.clone(), by, systemd: None, virsh, shutdown_deadline: ShutdownDeadline::default() }
    }

    /// After it neither systemd nor libvirt is waited for.
    #[must_use]
    pub fn shutdown_deadline(&self) -> ShutdownDeadline {
        self.shutdown_deadline.clone()
    }

    /// systemd on this machine; the thread is started when it is first asked for.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn systemd(&mut self) -> Result<Systemd, HwError> {
        if let Some(systemd) = &self.systemd {
            return Ok(systemd.clone());
        }
        Ok(self.systemd.insert(Systemd::until(&self.root, self.shutdown_deadline())?).clone())
    }

    /// Who limits VMs' bandwidth then: whoever keeps a record of their groups. A domain's scope is a unit.
    ///
    /// # Errors
    /// As [`Binders::systemd`].
    pub fn through(&mut self) -> Result<Through, HwError> {
        Ok(match self.by {
            By::Cgroup => Through::Files { even_units: false },
            By::CgroupEvenUnits => Through::Files { even_units: true },
            By::Systemd | By::Libvirt(_) => Through::Systemd(self.systemd()?),
        })
    }

    /// Binds VMs as the config says.
    ///
    /// # Errors
    /// If that way is not there at all.
    pub fn binder(&mut self) -> Result<Box<dyn Binder>, HwError> {
        check_mode(&self.root)?;
        self.way(&self.by.clone())
    }

    /// Whether a VM would be bound so today.
    #[must_use]
    pub fn would_be(&self, via: &Via) -> bool {
        matches!(
            (via, &self.by),
            (Via::Cgroup { .. }, By::Cgroup | By::CgroupEvenUnits)
                | (Via::Systemd { .. }, By::Systemd)
                | (Via::Libvirt { .. }, By::Libvirt(_))
        )
    }

    fn way(&mut self, by: &By) -> Result<Box<dyn Binder>, HwError> {
        let root = self.root.clone();
        Ok(match by {
            By::Cgroup => Box::new(Files { root, even_units: false }),
            By::CgroupEvenUnits => Box::new(Files { root, even_units: true }),
            By::Systemd => Box::new(Units { root, systemd: self.systemd()? }),
            By::Libvirt(uri) => {
                let virsh = Virsh::new(self.virsh.clone(), uri.clone(), self.shutdown_deadline());
                Box::new(Domains { root, virsh })
            }
        })
    }

    /// Puts one VM back, the way it was bound.
    ///
    /// # Errors
    /// If it is refused, or another set is granted.
    pub fn restore(&mut self, path: &str, original: &CpusetOriginal) -> Result<(), HwError> {
        let by = match &original.via {
            Via::Cgroup { .. } => By::CgroupEvenUnits,
            Via::Systemd { .. } => By::Systemd,
            Via::Libvirt { uri, .. } => By::Libvirt(uri.clone()),
        };
        self.way(&by)?.restore(path, original)
    }
}

/// libvirt's system instance for QEMU.
pub const LIBVIRT_URI: &str = "qemu:///system";

impl CpusetOriginal {
    /// The list to put back.
    fn list(&self, group: &Cgroup) -> Result<CpuList, HwError> {
        let list: Option<CpuList> = self.cpus.parse().ok();
        list.filter(|list| !list.is_empty()).ok_or_else(|| {
            let allowed = "a CPU list such as 0-3,8";
            HwError::value(&group.dir().join("cpuset.cpus"), Operation::Write, &self.cpus, allowed)
        })
    }

    /// Whether this is of another group than the one that has the name now.
    #[must_use]
    pub fn is_of_another(&self, now: u64) -> bool {
        matches!(self.via, Via::Cgroup { inode: Some(inode) } if inode != now)
    }
}
