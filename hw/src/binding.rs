//! Binding VMs to CPUs: by cgroup file, by systemd, or by libvirt.
//!
//! Whoever made a VM's cgroup keeps a record of where the VM belongs and puts that back sooner or later. So
//! the CPUs are set through him: a group that systemd made by systemd, a domain's threads by libvirt, and
//! files only where nobody else has a record. Nothing is ever done below `kubepods`: the kubelet puts its
//! own sets back.
//!
//! Whatever the way, what counts is what the kernel granted: `cpuset.cpus.effective` is checked after each
//! binding. And what is put back is always an explicit list, since a populated group cannot be emptied.

mod binder;
mod domains;
mod files;
#[cfg(test)]
mod tests;
mod units;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::Sender;

use crate::Root;
use crate::bandwidth::Through;
use crate::cgroup::check_mode;
use crate::error::HwError;
use crate::libvirt::{DEADLINE, Libvirt};
use crate::systemd::{BUS, ShutdownDeadline, Systemd};
use crate::topology::present;
pub use binder::{Binder, CpusetOriginal, Via};
use domains::Domains;
use files::Files;
use units::{Silence, Units};

/// libvirt-dbus 1.4 reads the CPUs of an I/O thread beyond the end of a short map; up to so many CPUs that is memory
/// which the C library has zeroed.
const DBUS_CPUS: usize = 192;

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
    /// libvirt at this URI: over D-Bus, or by `virsh vcpupin` and the like. `CPUQuota` goes through systemd, which made the
    /// scope.
    Libvirt(String),
}

/// Every way to bind VMs on this machine.
#[derive(Debug)]
pub struct Binders {
    root: Root,
    by: By,
    systemd: Option<Systemd>,
    silence: Silence,
    virsh: PathBuf,
    /// By URI: what was bound at another one is put back there.
    libvirts: BTreeMap<String, Libvirt>,
    on_answer: Option<Sender<()>>,
    waits: bool,
    shutdown_deadline: ShutdownDeadline,
}

impl Binders {
    /// New VMs are bound by `by`; what was bound otherwise is put back as it was bound.
    pub fn new(root: &Root, by: By) -> Self {
        let virsh = if root.is_machine() { "virsh".into() } else { root.path("usr/bin/virsh") };
        Self {
            root: root.clone(),
            by,
            systemd: None,
            silence: Silence::default(),
            virsh,
            libvirts: BTreeMap::new(),
            on_answer: None,
            waits: false,
            shutdown_deadline: ShutdownDeadline::default(),
        }
    }

    /// libvirt is not waited for: what it has not answered yet fails with an error that `is_pending`, and
    /// `on_answer` is told when trying again will help.
    pub fn tell(&mut self, on_answer: Sender<()>) {
        self.on_answer = Some(on_answer);
    }

    /// libvirt is waited for, as at the end.
    #[must_use]
    pub fn waiting(self) -> Self {
        Self { waits: true, ..self }
    }

    /// After it neither systemd nor libvirt is waited for.
    pub fn shutdown_deadline(&self) -> ShutdownDeadline {
        self.shutdown_deadline.clone()
    }

    /// systemd on this machine; the thread is started when it is first asked for.
    pub fn systemd(&mut self) -> Result<Systemd, HwError> {
        if let Some(systemd) = &self.systemd {
            return Ok(systemd.clone());
        }
        Ok(self.systemd.insert(Systemd::until(&self.root, self.shutdown_deadline())?).clone())
    }

    /// Who limits VMs' bandwidth then: whoever keeps a record of their groups. A domain's scope is a unit.
    pub fn through(&mut self) -> Result<Through, HwError> {
        Ok(match self.by {
            By::Cgroup => Through::Files { even_units: false },
            By::CgroupEvenUnits => Through::Files { even_units: true },
            By::Systemd | By::Libvirt(_) => Through::Systemd(self.systemd()?),
        })
    }

    /// Binds VMs as the config says. Fails if that way is not there at all.
    pub fn binder(&mut self) -> Result<Box<dyn Binder>, HwError> {
        check_mode(&self.root)?;
        self.way(&self.by.clone())
    }

    /// Whether a VM would be bound so today.
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
        let waits = self.waits || self.shutdown_deadline.is_set();
        Ok(match by {
            By::Cgroup => Box::new(Files { root, even_units: false }),
            By::CgroupEvenUnits => Box::new(Files { root, even_units: true }),
            By::Systemd => {
                let silence = self.silence.clone();
                Box::new(Units { root, systemd: self.systemd()?, silence, waits })
            }
            By::Libvirt(uri) => Box::new(Domains { root, libvirt: self.libvirt(uri)?, waits }),
        })
    }

    fn libvirt(&mut self, uri: &str) -> Result<Libvirt, HwError> {
        if let Some(libvirt) = self.libvirts.get(uri) {
            return Ok(libvirt.clone());
        }
        let has_many_cpus = present(&self.root).ok().flatten().is_some_and(|cpus| cpus.len() > DBUS_CPUS);
        let (bus, virsh) = ((!has_many_cpus).then(|| self.root.path(BUS)), self.virsh.clone());
        let end = self.shutdown_deadline();
        let libvirt = Libvirt::start(DEADLINE, bus, virsh, uri.to_owned(), end, self.on_answer.clone())?;
        Ok(self.libvirts.entry(uri.to_owned()).or_insert(libvirt).clone())
    }

    /// Puts all of these back, the way they were bound; tells what could not be. One failure never stands in
    /// the way of the rest.
    pub fn restore_all(&mut self, originals: &BTreeMap<String, CpusetOriginal>) -> BTreeMap<String, HwError> {
        // libvirt is asked for all before any is waited for.
        for (path, original) in originals {
            if let Via::Libvirt { uri, .. } = &original.via
                && let Ok(libvirt) = self.libvirt(uri)
            {
                let domains = Domains { root: self.root.clone(), libvirt, waits: false };
                // Pending; what else is wrong is found below.
                let _ = domains.restore(path, original);
            }
        }

        let failed = |(path, original): (&String, &CpusetOriginal)| {
            Some((path.clone(), self.restore(path, original).err()?))
        };
        originals.iter().filter_map(failed).collect()
    }

    /// Puts one VM back, the way it was bound.
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
