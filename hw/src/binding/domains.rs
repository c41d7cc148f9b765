//! By libvirt: the threads of a domain, each on its own.

use super::binder::{Binder, CpusetOriginal, Via};
use crate::error::{HwError, Operation};
use crate::libvirt::{Job, Libvirt};
use crate::root::optional;
use crate::systemd::unit;
use crate::{Cgroup, CpuList, Root};

const DOMAIN: &str = "the scope of a libvirt domain, such as machine.slice/machine-qemu\\x2d3\\x2dweb.scope";

pub(super) struct Domains {
    pub(super) root: Root,
    pub(super) libvirt: Libvirt,
    /// Whether an answer is waited for.
    pub(super) waits: bool,
}

impl Domains {
    fn domain(&self, path: &str) -> Result<(Cgroup, u32), HwError> {
        let group = Cgroup::at(&self.root, path)?;
        let (id, _) = unit::domain_of(path)
            .ok_or_else(|| HwError::value(group.dir(), Operation::Read, path, DOMAIN))?;
        Ok((group, id))
    }
}

impl Binder for Domains {
    fn original(&self, path: &str) -> Result<CpusetOriginal, HwError> {
        let (group, domain) = self.domain(path)?;
        group.is_member()?;
        let cpus = self.effective(path)?;
        let pins = self.libvirt.ask(domain, &Job::Read, self.waits)?.pins;
        let via = Via::Libvirt { uri: self.libvirt.uri().to_owned(), domain, pins };
        let original = CpusetOriginal { cpus: cpus.to_string(), via };
        original.list(&group)?;
        Ok(original)
    }

    fn bind(&self, path: &str, cpus: &CpuList) -> Result<(), HwError> {
        let (group, domain) = self.domain(path)?;
        if cpus.is_empty() {
            return Err(HwError::value(group.dir(), Operation::Write, "", "at least one CPU"));
        }
        let said = self.libvirt.ask(domain, &Job::Bind(cpus.clone()), self.waits)?.said;
        let granted = self.effective(path)?;
        if granted == *cpus {
            return Ok(());
        }
        let mut allowed = format!("{cpus}, as pinned: CPUs that are online and its scope's");
        if !said.is_empty() {
            allowed.push_str(&format!("; libvirt said {said:?}"));
        }
        Err(HwError::value(&group.dir().join("libvirt"), Operation::Verify, granted, allowed))
    }

    fn restore(&self, path: &str, original: &CpusetOriginal) -> Result<(), HwError> {
        let Via::Libvirt { domain, pins, .. } = &original.via else { return Ok(()) };
        // Its scope ends with it.
        if optional(Cgroup::at(&self.root, path)?.inode())?.is_none() {
            return Ok(());
        }
        optional(self.libvirt.ask(*domain, &Job::Restore(pins.clone()), self.waits)).map(drop)
    }

    /// All that its threads may use together: the groups `libvirt/emulator`, `libvirt/vcpuN` and
    /// `libvirt/iothreadN`.
    fn effective(&self, path: &str) -> Result<CpuList, HwError> {
        let (group, _) = self.domain(path)?;
        group.inode()?;
        let dir = group.dir().join("libvirt");
        let allowed = "libvirt 7.1 or newer with the cpuset controller: one group for every thread";
        let failed = |e: std::io::Error| {
            // The scope is there, so the VM is.
            let e = std::io::Error::new(std::io::ErrorKind::Unsupported, e.to_string());
            HwError::io(&dir, Operation::Read, allowed, e)
        };
        let mut cpus = vec![];
        for entry in std::fs::read_dir(&dir).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let Some(name) = name.to_str().filter(|name| is_thread(name)) else { continue };
            let group = Cgroup::at(&self.root, &format!("{path}/libvirt/{name}"))?;
            cpus.extend(optional(group.effective())?.iter().flat_map(CpuList::iter));
        }
        Ok(cpus.into_iter().collect())
    }
}

/// Whether a group below `libvirt` is that of threads.
fn is_thread(name: &str) -> bool {
    ["emulator", "vcpu", "iothread"].iter().any(|kind| {
        name.strip_prefix(kind).is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
    })
}
