//! By libvirt: the threads of a domain, each on its own.

use super::binder::{Binder, CpusetOriginal, Via};
use crate::error::{HwError, Operation};
use crate::libvirt::{Pins, Virsh};
use crate::root::optional;
use crate::systemd::unit;
use crate::{Cgroup, CpuList, Root};

const DOMAIN: &str = "the scope of a libvirt domain, such as machine.slice/machine-qemu\\x2d3\\x2dweb.scope";

pub(super) struct Domains {
    pub(super) root: Root,
    pub(super) virsh: Virsh,
}

impl Domains {
    fn domain(&self, path: &str) -> Result<(Cgroup, u32), HwError> {
        let group = Cgroup::at(&self.root, path)?;
        let refused = || HwError::value(group.dir(), Operation::Read, path, DOMAIN);
        let (id, _) = unit::domain_of(path).ok_or_else(refused)?;
        Ok((group, id))
    }
}

impl Binder for Domains {
    fn original(&self, path: &str) -> Result<CpusetOriginal, HwError> {
        let (group, domain) = self.domain(path)?;
        group.is_member()?;
        let cpus = self.effective(path)?;
        let pins = self.virsh.pins(domain)?;
        let via = Via::Libvirt { uri: self.virsh.uri().to_owned(), domain, pins };
        let original = CpusetOriginal { cpus: cpus.to_string(), via };
        original.list(&group)?;
        Ok(original)
    }

    fn bind(&self, path: &str, cpus: &CpuList) -> Result<(), HwError> {
        let (group, domain) = self.domain(path)?;
        if cpus.is_empty() {
            return Err(HwError::value(group.dir(), Operation::Write, "", "at least one CPU"));
        }
        // Asked anew: vCPUs and I/O threads come and go while a domain runs.
        self.virsh.pin(domain, &self.virsh.pins(domain)?.all_on(cpus))?;
        let granted = self.effective(path)?;
        if granted == *cpus {
            return Ok(());
        }
        let allowed = format!("{cpus}, as pinned: CPUs that are online and its scope's");
        Err(HwError::value(&group.dir().join("libvirt"), Operation::Verify, granted, allowed))
    }

    fn restore(&self, path: &str, original: &CpusetOriginal) -> Result<(), HwError> {
        let Via::Libvirt { domain, pins: before, .. } = &original.via else { return Ok(()) };
        let Some(now) = optional(self.virsh.pins(*domain))? else { return Ok(()) };

        // What has come since was never anywhere else: it goes where QEMU's own threads were.
        let back = |now: &std::collections::BTreeMap<u32, String>,
                    before: &std::collections::BTreeMap<u32, String>,
                    other: &String| {
            now.keys().map(|n| (*n, before.get(n).unwrap_or(other).clone())).collect()
        };

        let pins = Pins {
            vcpus: back(&now.vcpus, &before.vcpus, &before.emulator),
            iothreads: back(&now.iothreads, &before.iothreads, &before.emulator),
            emulator: before.emulator.clone(),
        };

        optional(self.virsh.pin(*domain, &pins)).map(drop)?;
        let shown = optional(self.virsh.pins(*domain))?.filter(|shown| *shown != pins);

        match shown {
            Some(shown) => {
                let allowed = format!("{pins:?}, as pinned");
                let dir = Cgroup::at(&self.root, path)?;
                Err(HwError::value(dir.dir(), Operation::Verify, format_args!("{shown:?}"), allowed))
            }
            None => Ok(()),
        }
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
