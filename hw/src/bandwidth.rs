//! The CPU bandwidth of VMs: `cpu.max` of their cgroups (version 2), `"QUOTA PERIOD"` in microseconds or
//! `"max PERIOD"`; or their frequency, by `cpu.uclamp.max`, a percentage or `"max"`.
//!
//! Traps that shape this module (Linux 6.12, `kernel/sched/core.c`, Documentation/admin-guide/cgroup-v2.rst):
//! - The file is there only where the parent's `cgroup.subtree_control` has `cpu`. Nothing is enabled
//!   here: the hierarchy belongs to systemd or to whoever was delegated it.
//! - Quotas below 1 ms are refused, so a small share gets a longer period.
//! - A `cpu.max.burst` above the quota makes the write fail (EINVAL), and below it breaks the quota.
//! - The limit of a parent holds as well, so a quota may be looser than what the VM can use.
//!
//! A unit's group is limited through systemd (`CPUQuotaPerSecUSec`), whose next change of the unit would
//! undo what is written into its file. `cpu.uclamp.max` it knows nothing of (systemd issue 26705): that file is
//! written in its groups too, and stays as it is for as long as the group has the `cpu` controller.
//!
//! A VM may be limited for power and by what it uses at once: the lower limit is in force.
//!
//! A limit that the operator has set is never raised and is put back at the end. Whoever else writes the
//! file while a quota of ours is on it is told of, not fought: the file is then theirs.

#[cfg(test)]
mod tests;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use ballast_types::VmId;
use ballast_types::wire::{Alarm, AlarmId};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::cgroup::{ClampScale, CpuLimit, Kind};
use crate::error::{HwError, Operation};
use crate::root::{look_until, optional, read_value, write_value};
use crate::systemd::Systemd;
use crate::systemd::owner::{refuse_systemds, unit_at};
use crate::{Cgroup, Root};

/// The bandwidth of a VM's cgroup as it was before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaOriginal {
    pub vm: VmId,
    pub cores: u16,
    /// What to write back; its kind tells the file.
    #[serde(rename = "cpu_max")]
    pub limit: CpuLimit,
    /// The unit that systemd is told to limit; without one the file is written.
    pub unit: Option<String>,
}

#[derive(Clone, Debug)]
pub enum Through {
    /// The agent, by writing `cpu.max`; in groups of systemd's units only if told so.
    Files {
        even_units: bool,
    },
    Systemd(Systemd),
}

impl Through {
    /// The unit that a previous instance had limited, with the configured systemd or this machine's.
    pub(crate) fn left(&self, root: &Root, unit: Option<&String>) -> Result<Option<Unit>, HwError> {
        let Some(unit) = unit else { return Ok(None) };
        let systemd = match self {
            Self::Systemd(systemd) => systemd.clone(),
            Self::Files { .. } => Systemd::start(root)?,
        };
        Ok(Some((systemd, unit.clone())))
    }

    /// The unit through which systemd limits a group; `None`: `file` is written instead.
    pub(crate) fn unit(&self, root: &Root, path: &str, file: &str) -> Result<Option<Unit>, HwError> {
        match self {
            Self::Systemd(systemd) => {
                let unit = unit_at(&Cgroup::of_vm_or_pod(root, path)?, path)?;
                Ok(Some((systemd.clone(), unit.to_owned())))
            }
            Self::Files { even_units } => {
                refuse_systemds(root, path, file, *even_units)?;
                Ok(None)
            }
        }
    }
}

/// A systemd connection, and the unit's name.
pub(crate) type Unit = (Systemd, String);

#[derive(Debug)]
struct Limited {
    path: String,
    file: PathBuf,
    /// The folder's inode: a VM that was started anew has another group, though by the same name.
    inode: u64,
    cores: u16,
    unit: Option<Unit>,
    original: CpuLimit,
    /// What the controller has asked for, in thousandths of a core.
    goal: Option<u32>,
    /// What the VM should get by what it uses; the lower of the two is in force.
    recommended: Option<u32>,
    /// What we have put there, or a previous instance of ours.
    written: Option<CpuLimit>,
    /// What systemd was told and has not answered: it may still come.
    pending: Option<CpuLimit>,
    /// Somebody else's value over ours.
    foreign: Option<CpuLimit>,
    /// The VM is in the set, not only left over from a previous instance.
    listed: bool,
}

/// The bandwidth of every VM that may be limited.
#[derive(Debug)]
pub struct Bandwidth {
    root: Root,
    kind: Kind,
    through: Through,
    vms: BTreeMap<VmId, Limited>,
    /// By cgroup path: what a previous instance has left where it could not be read.
    unread: BTreeMap<String, QuotaOriginal>,
}

impl Bandwidth {
    /// Knows of no VM yet; quotas are set in periods of `period`.
    pub fn new(root: &Root, period: Duration) -> Self {
        Self::of(root, Kind::Time(period))
    }

    /// The same of VMs' frequencies: a thousandth of a core is one of its highest frequency.
    pub fn clamps(root: &Root, scale: ClampScale) -> Self {
        Self::of(root, Kind::Frequency(scale))
    }

    fn of(root: &Root, kind: Kind) -> Self {
        let (vms, unread) = (BTreeMap::new(), BTreeMap::new());
        Self { root: root.clone(), kind, through: Through::Files { even_units: true }, vms, unread }
    }

    /// From now on VMs that become known are limited through `through`.
    pub fn through(self, through: Through) -> Self {
        Self { through, ..self }
    }

    /// Takes over what a previous instance had found, by cgroup path, and tells which VMs it left limited:
    /// with their cores, and to how many thousandths of a core.
    ///
    /// A VM counts as limited if its limit is stricter than its original. One that is not was changed by
    /// somebody else since, or is gone.
    ///
    /// One of another kind than is set now is not told: [`Bandwidth::release_others`] puts it back.
    ///
    /// One whose file cannot be read is warned of and stays among the originals. Nothing is done to it until
    /// it can be put back, which every call that concerns it tries again.
    pub fn adopt(&mut self, saved: &BTreeMap<String, QuotaOriginal>) -> Vec<(VmId, u16, u32)> {
        let mut found = Vec::new();
        for (path, original) in saved {
            match self.left_over(path, original) {
                Ok(Some(group)) => {
                    let told = group.goal.map(|goal| (original.vm.clone(), original.cores, goal));
                    found.extend(told);
                    self.vms.insert(original.vm.clone(), group);
                }
                Ok(None) => {}
                Err(error) => {
                    warn!(vm = %original.vm, %error, "a CPU limit of a previous instance cannot be read: it \
                        is put back at the end");
                    self.unread.insert(path.clone(), original.clone());
                }
            }
        }
        found
    }

    /// A group that a previous instance left limited; its goal is how many thousandths of a core, where that is
    /// of the kind that is set now.
    fn left_over(&self, path: &str, saved: &QuotaOriginal) -> Result<Option<Limited>, HwError> {
        let unit = self.through.left(&self.root, saved.unit.as_ref())?;
        let Some(group) = optional(self.open(path, saved.limit.file(), saved.cores, unit.clone()))? else {
            if let Some((systemd, unit)) = unit {
                // What systemd was told outlives the unit's group.
                saved.limit.time().map(|limit| optional(systemd.limit_cpu(&unit, limit))).transpose()?;
            }

            return Ok(None);
        };

        let now = group.original;
        let original = saved.limit;
        let goal = self.kind.millicores(now, saved.cores);
        let written = Some(now).filter(|now| now.is_stricter_than(original));

        Ok(written.is_some().then_some(Limited { original, goal, written, listed: false, ..group }))
    }

    /// Puts back what could not be read before: of this VM, or on this group.
    fn reclaim(&mut self, vm: &VmId, path: Option<&str>) -> Result<(), HwError> {
        let concerns = |(at, it): &(&String, &QuotaOriginal)| it.vm == *vm || path == Some(at);
        let due: Vec<_> =
            self.unread.iter().filter(concerns).map(|(at, it)| (at.clone(), it.clone())).collect();
        for (at, saved) in due {
            if let Some(mut group) = self.left_over(&at, &saved)? {
                group.put_back()?;
            }
            self.unread.remove(&at);
        }
        Ok(())
    }

    fn open(&self, path: &str, file: &str, cores: u16, unit: Option<Unit>) -> Result<Limited, HwError> {
        let group = Cgroup::of_vm_or_pod(&self.root, path)?;
        let file = group.dir().join(file);
        let inode = group.inode()?;
        let original = CpuLimit::read(&file)?;

        Ok(Limited {
            path: path.to_owned(),
            file,
            inode,
            cores,
            unit,
            original,
            goal: None,
            recommended: None,
            written: None,
            pending: None,
            foreign: None,
            listed: true,
        })
    }

    /// Has to do with `vm` from now on. Its original must be on disk before [`Bandwidth::settle`]. Fails if
    /// the group is not there, has no bandwidth control, lets bursts exceed a quota, or belongs to somebody
    /// who is not asked.
    pub fn know(&mut self, vm: &VmId, path: &str, cores: u16) -> Result<(), HwError> {
        self.reclaim(vm, Some(path))?;
        let unit = match self.kind {
            // systemd has no property for it, and so never writes it.
            Kind::Frequency(_) => None,
            Kind::Time(_) => self.through.unit(&self.root, path, "cpu.max")?,
        };

        let group = self.open(path, self.kind.file(), cores, unit).map_err(|e| HwError {
            allowed: if e.is_missing() {
                let file = self.kind.file();
                format!("a group with {file}: its parent's cgroup.subtree_control has \"cpu\"")
            } else {
                e.allowed.clone()
            },
            ..e
        })?;

        let burst = group.file.with_file_name("cpu.max.burst");
        let bursts = optional(read_value::<u64>(&burst, "a whole number of us"))?.unwrap_or(0);

        if bursts > 0 && matches!(self.kind, Kind::Time(_)) {
            let allowed = "0: bursts would exceed the quota";
            return Err(HwError::value(&burst, Operation::Read, bursts, allowed));
        }

        match self.vms.get_mut(vm) {
            Some(old) if old.file == group.file && old.inode == group.inode => {
                (old.cores, old.listed) = (cores, true);
            }

            // The quota moves with the VM.
            Some(_) => {
                self.free(vm)?;
                let old = self.vms.get(vm).map(|old| (old.goal, old.recommended));
                let (goal, recommended) = old.unwrap_or_default();
                self.vms.insert(vm.clone(), Limited { goal, recommended, ..group });
            }
            None => drop(self.vms.insert(vm.clone(), group)),
        }

        Ok(())
    }

    /// Has nothing to do with `vm` any more: its limit is put back. Fails if that cannot be done; the VM then
    /// stays known.
    pub fn forget(&mut self, vm: &VmId) -> Result<(), HwError> {
        self.free(vm)?;
        self.vms.remove(vm);
        Ok(())
    }

    /// What must be put back at the end, by cgroup path.
    pub fn originals(&self) -> BTreeMap<String, QuotaOriginal> {
        let original = |(vm, it): (&VmId, &Limited)| {
            let unit = it.unit.as_ref().map(|(_, unit)| unit.clone());
            let original = QuotaOriginal { vm: vm.clone(), cores: it.cores, limit: it.original, unit };
            (it.path.clone(), original)
        };
        self.unread.clone().into_iter().chain(self.vms.iter().map(original)).collect()
    }

    /// Limits a VM. One that is not known, or whose group is gone, has ended: nothing is to be done. Fails if
    /// the kernel refuses, or somebody else has written the file.
    pub fn set(&mut self, vm: &VmId, millicores: u32) -> Result<(), HwError> {
        let kind = self.kind;
        let Some(it) = self.vms.get_mut(vm) else { return Ok(()) };
        it.goal = Some(millicores);
        it.enforce(kind)
    }

    /// Limits a VM to what it should get by what it uses, or no more. Beside a limit by [`Bandwidth::set`] the lower one is in
    /// force, and neither is above what was there. Fails as [`Bandwidth::set`].
    pub fn recommend(&mut self, vm: &VmId, millicores: Option<u32>) -> Result<(), HwError> {
        let kind = self.kind;
        let Some(it) = self.vms.get_mut(vm).filter(|it| it.recommended != millicores) else { return Ok(()) };
        let before = std::mem::replace(&mut it.recommended, millicores);
        it.enforce(kind).inspect_err(|_| it.recommended = before)
    }

    /// The VMs that are limited by what they use.
    pub fn recommended(&self) -> Vec<VmId> {
        self.vms.iter().filter_map(|(vm, it)| it.recommended.map(|_| vm.clone())).collect()
    }

    /// The controller limits a VM no more: what the VM had is put back, or what it should get stays in force.
    pub fn release(&mut self, vm: &VmId) -> Result<(), HwError> {
        self.reclaim(vm, None)?;
        let kind = self.kind;
        if let Some(it) = self.vms.get_mut(vm) {
            let goal = it.goal.take();
            it.enforce(kind).inspect_err(|_| it.goal = goal)?;
        }
        if self.vms.get(vm).is_some_and(|it| !it.listed) {
            self.vms.remove(vm);
        }
        Ok(())
    }

    /// Puts back what every VM had.
    ///
    /// # Errors
    /// One for each that could not be put back.
    pub fn release_all(&mut self) -> Vec<HwError> {
        self.vms.values_mut().for_each(|it| it.recommended = None);
        let unread = self.unread.values().map(|it| &it.vm);
        let vms: BTreeSet<_> = self.vms.keys().chain(unread).cloned().collect();
        vms.iter().filter_map(|vm| self.release(vm).err()).collect()
    }

    /// Puts back what a previous instance has limited in the other way.
    ///
    /// # Errors
    /// One for each that could not be put back.
    pub fn release_others(&mut self) -> Vec<HwError> {
        let file = self.kind.file();
        let others = self.vms.iter().filter(|(_, it)| it.original.file() != file);
        let vms: Vec<_> = others.map(|(vm, _)| vm.clone()).collect();
        vms.iter().filter_map(|vm| self.release(vm).err()).collect()
    }

    fn free(&mut self, vm: &VmId) -> Result<(), HwError> {
        self.reclaim(vm, None)?;
        self.vms.get_mut(vm).map_or(Ok(()), Limited::put_back)
    }

    /// Looks at every group. True if an original has changed: somebody else set another limit while none
    /// of ours was on, or the VM was started anew. It must then be on disk before [`Bandwidth::settle`].
    pub fn look(&mut self) -> bool {
        let mut changed = false;
        for (vm, it) in &mut self.vms {
            // A group that is gone, or comes as this looks, is looked at the next time.
            let Ok(dir) = it.dir().metadata() else { continue };
            let Ok(now) = CpuLimit::read(&it.file) else { continue };
            it.arrived(now);

            if dir.ino() != it.inode && it.unit.is_some() && it.written == Some(now) {
                // The unit was started anew, and what systemd was told still holds.
                it.inode = dir.ino();
            } else if dir.ino() != it.inode {
                (it.inode, it.original, it.written, it.foreign) = (dir.ino(), now, None, None);
                changed = true;
            } else if let Some(written) = it.written {
                let foreign = (now != written).then_some(now);
                if foreign.is_some() && foreign != it.foreign {
                    warn!(%vm, file = %it.file.display(), is = %now, ours = %written, "another program \
                        writes it while a limit of the agent is on it");
                }
                it.foreign = foreign;
            } else if now != it.original {
                it.original = now;
                changed = true;
            }
        }

        changed
    }

    /// Sets the quotas that are wanted on groups that have come anew.
    pub fn settle(&mut self) {
        let kind = self.kind;
        for (vm, it) in &mut self.vms {
            if it.written.is_none()
                && let Err(error) = it.enforce(kind)
            {
                warn!(%vm, %error, "the CPU limit of a VM could not be set: it is tried again");
            }
        }
    }

    /// One for every VM whose limit somebody else has changed.
    pub fn alarms(&self) -> Vec<Alarm> {
        let alarm = |(vm, it): (&VmId, &Limited)| {
            let (foreign, written) = (it.foreign?, it.written?);
            let file = it.file.display();
            let message =
                format!("VM {vm}: another program writes {file}: \"{foreign}\" is there, not \"{written}\"");
            Some(Alarm::about(AlarmId::QuotaOverwritten, vm, message))
        };
        self.vms.iter().filter_map(alarm).collect()
    }
}

impl Limited {
    fn dir(&self) -> &std::path::Path {
        self.file.parent().unwrap_or(&self.file)
    }

    /// What the file says; `None` if the group is gone.
    fn read(&self) -> Result<Option<CpuLimit>, HwError> {
        optional(CpuLimit::read(&self.file))
    }

    /// Sets the lower of what the controller asks for and what the VM should get; without either, what was there.
    fn enforce(&mut self, kind: Kind) -> Result<(), HwError> {
        match self.goal.into_iter().chain(self.recommended).min() {
            Some(millicores) => self.apply(kind.limit(millicores, self.cores)),
            None => self.put_back(),
        }
    }

    fn apply(&mut self, ours: CpuLimit) -> Result<(), HwError> {
        let Some(now) = self.read()? else {
            self.written = None;
            return Ok(());
        };

        self.arrived(now);
        if let Some(written) = self.written.filter(|written| *written != now) {
            self.foreign = Some(now);
            let allowed = format!("{written}, as written: somebody else writes this file");
            return Err(HwError::value(&self.file, Operation::Verify, now, allowed));
        }

        if self.written.is_none() {
            // Newer than the one on disk, if it differs: the next look has it written down.
            self.original = now;
        }

        self.foreign = None;

        // Never looser than what the operator allows.
        let target = if ours.is_stricter_than(self.original) { ours } else { self.original };

        if target != now {
            // Said first: if the write is refused half-way it must be put back all the same.
            self.written = Some(now);
            self.pending = self.unit.is_some().then_some(target);
            self.write(target)?;
            self.pending = None;
        }

        self.written = (target != self.original).then_some(target);

        Ok(())
    }

    /// What systemd was told and did not answer has come.
    fn arrived(&mut self, now: CpuLimit) {
        if self.pending == Some(now) {
            (self.written, self.pending) = (Some(now), None);
        }
    }

    fn put_back(&mut self) -> Result<(), HwError> {
        if self.written.is_none() && self.pending.is_none() {
            return Ok(());
        }
        let now = self.read()?;
        now.into_iter().for_each(|now| self.arrived(now));
        let Some(written) = self.written else { return Ok(()) };

        match now {
            // What systemd was told outlives the unit's group.
            None if self.unit.is_some() => self.write(self.original)?,
            Some(now) if now == written && now != self.original => self.write(self.original)?,
            Some(now) if now != self.original => {
                warn!(file = %self.file.display(), is = %now, ours = %written, "another program has set \
                    this CPU limit: it is left, not put back");
                self.original = now;
            }

            // What systemd was told and has not answered may still come: it is told anew.
            Some(_) if self.pending.is_some() => self.write(self.original)?,
            _ => {}
        }

        (self.written, self.pending, self.foreign) = (None, None, None);

        Ok(())
    }

    /// Writes, and reads back.
    fn write(&self, value: CpuLimit) -> Result<(), HwError> {
        let done = match (&self.unit, value) {
            (Some((systemd, unit)), CpuLimit::Time(limit)) => systemd.limit_cpu(unit, limit),
            _ => write_value(&self.file, value),
        };

        match done {
            Err(e) if e.is_missing() => return Ok(()),
            done => done?,
        }

        // systemd may take a moment; a file has it at once.
        let looks = if self.unit.is_some() { 20 } else { 1 };
        let is_so = |now: &Option<CpuLimit>| now.is_none_or(|now| now == value);

        match look_until(looks, || self.read(), is_so)?.filter(|now| *now != value) {
            Some(now) => {
                let allowed = format!("{value}, as written");
                Err(HwError::value(&self.file, Operation::Verify, now, allowed))
            }
            None => Ok(()),
        }
    }
}
