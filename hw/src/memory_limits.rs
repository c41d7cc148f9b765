//! The memory limits of VMs: `memory.high` and `memory.max` of their cgroups (version 2), in bytes or `max`.
//!
//! What to write, and when, is decided elsewhere: a `memory.max` below what is in use kills. Here every write is read back; what
//! was there is kept, and put back at the end, `memory.max` first. A unit's group is limited through systemd (`MemoryHigh`,
//! `MemoryMax`), as runtime properties. Whoever else writes a file while a limit of ours is on it is told of, not fought.
//!
//! Source: Documentation/admin-guide/cgroup-v2.rst. A group has these files only where its parent's `cgroup.subtree_control` has
//! `memory`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ballast_types::VmId;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::bandwidth::{Through, Unit};
use crate::error::{HwError, Operation};
use crate::root::{look_until, optional, read_value, write_value};
use crate::{Cgroup, Root};

const FILES: [MemoryFile; 2] = [MemoryFile::Max, MemoryFile::High];
const ALLOWED: &str = "\"max\" or a number of bytes";
/// The group of a machine that QEMU runs: its memory is the guest's, which no limit makes smaller.
const MACHINES: &str = "machine-qemu";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryFile {
    High,
    Max,
}

impl MemoryFile {
    const fn name(self) -> &'static str {
        match self {
            Self::High => "memory.high",
            Self::Max => "memory.max",
        }
    }

    const fn property(self) -> &'static str {
        match self {
            Self::High => "MemoryHigh",
            Self::Max => "MemoryMax",
        }
    }
}

/// Both limits; `None` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPair {
    pub high_bytes: Option<u64>,
    pub max_bytes: Option<u64>,
}

impl MemoryPair {
    /// The limit of one file; `u64::MAX` is none.
    pub const fn of(self, file: MemoryFile) -> u64 {
        let limit = match file {
            MemoryFile::High => self.high_bytes,
            MemoryFile::Max => self.max_bytes,
        };
        match limit {
            Some(bytes) => bytes,
            None => u64::MAX,
        }
    }

    const fn with(mut self, file: MemoryFile, bytes: u64) -> Self {
        let limit = if bytes == u64::MAX { None } else { Some(bytes) };
        match file {
            MemoryFile::High => self.high_bytes = limit,
            MemoryFile::Max => self.max_bytes = limit,
        }
        self
    }
}

/// The limits of a VM's group as they were before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryOriginal {
    pub vm: VmId,
    /// The inode of the group's folder: a group that was made anew by the same name has limits of its own.
    pub inode: u64,
    pub limits: MemoryPair,
    /// The unit that systemd is told to limit; without one the files are written.
    pub unit: Option<String>,
}

#[derive(Debug)]
struct MemoryGroup {
    path: String,
    dir: PathBuf,
    inode: u64,
    unit: Option<Unit>,
    original: MemoryPair,
    /// What we have put there; `None` where a previous instance did.
    written: Option<MemoryPair>,
    /// What systemd was told and has not answered: it may still come.
    pending: Option<MemoryPair>,
}

#[derive(Debug)]
pub struct MemoryLimits {
    root: Root,
    through: Through,
    groups: BTreeMap<VmId, MemoryGroup>,
}

impl MemoryLimits {
    /// Knows of no VM yet; VMs that become known are limited through `through`.
    pub fn new(root: &Root, through: Through) -> Self {
        Self { root: root.clone(), through, groups: BTreeMap::new() }
    }

    /// Has to do with `vm` from now on, whose originals must be on disk before the first write: they may be others than before.
    /// Fails if the group is not there, has no memory controller, is a virtual machine's, or belongs to somebody who
    /// is not asked; then nothing is known of the VM.
    pub fn know(&mut self, vm: &VmId, path: &str) -> Result<(), HwError> {
        let cgroup = Cgroup::at(&self.root, path)?;
        let (dir, inode) = (cgroup.dir().to_owned(), cgroup.inode()?);
        if path.contains(MACHINES) {
            let allowed = "no virtual machine: a limit does not make the guest's memory smaller";
            return Err(HwError::value(&dir, Operation::Write, path, allowed));
        }
        if let Some(it) = self.groups.get_mut(vm).filter(|it| it.path == path && it.inode == inode) {
            let now = read_pair(&it.dir)?;
            it.arrived(now);
            if it.written.is_none() {
                // What a previous instance left could not be put back before.
                it.put_back()?;
                it.written = Some(it.original);
            } else if it.written == Some(it.original) && it.pending.is_none() {
                // While nothing of ours is on it, what others set is what was there.
                (it.original, it.written) = (now, Some(now));
            }
            return Ok(());
        }
        let before = self.groups.get(vm);

        let unit = self.through.unit(&self.root, path, "memory.max")?;
        let now = read_pair(&dir)?;
        // What systemd was told outlives the unit's group, and is no original.
        let told = before.filter(|it| it.path == path && unit.is_some() && it.written == Some(now));
        let (original, written) = told.map_or((now, now), |it| (it.original, now));
        if before.is_some_and(|it| it.path != path) {
            self.forget(vm)?;
        }
        let (path, written) = (path.to_owned(), Some(written));
        let group = MemoryGroup { path, dir, inode, unit, original, written, pending: None };
        self.groups.insert(vm.clone(), group);
        Ok(())
    }

    /// What must be put back at the end, by cgroup path.
    pub fn originals(&self) -> BTreeMap<String, MemoryOriginal> {
        let original = |(vm, it): (&VmId, &MemoryGroup)| {
            let unit = it.unit.as_ref().map(|(_, unit)| unit.clone());
            let original = MemoryOriginal { vm: vm.clone(), inode: it.inode, limits: it.original, unit };
            (it.path.clone(), original)
        };
        self.groups.iter().map(original).collect()
    }

    pub fn vms(&self) -> Vec<VmId> {
        self.groups.keys().cloned().collect()
    }

    /// What is in force, and what was there. Fails if the group is gone, or somebody else has written over a limit of ours.
    pub fn read(&self, vm: &VmId) -> Result<Option<(MemoryPair, MemoryPair)>, HwError> {
        let Some(it) = self.groups.get(vm) else { return Ok(None) };
        let now = read_pair(&it.dir)?;
        let written = it.written.unwrap_or(it.original);
        if now == written {
            return Ok(Some((now, it.original)));
        }
        let allowed =
            format!("{}, as written: somebody else writes memory.high or memory.max", show(written));
        Err(HwError::value(&it.dir, Operation::Verify, show(now), &allowed))
    }

    /// Writes one limit, never above what was there, and reads it back. A group that is gone is none to limit.
    pub fn write(&mut self, vm: &VmId, file: MemoryFile, bytes: u64) -> Result<(), HwError> {
        let Some(it) = self.groups.get_mut(vm) else { return Ok(()) };
        it.write(file, bytes.min(it.original.of(file)))
    }

    /// Has nothing to do with `vm` any more: what it had is put back. Fails if that cannot be done; the VM then stays known.
    pub fn forget(&mut self, vm: &VmId) -> Result<(), HwError> {
        if let Some(it) = self.groups.get_mut(vm) {
            it.put_back()?;
        }
        self.groups.remove(vm);
        Ok(())
    }

    /// Puts back what every VM had.
    ///
    /// # Errors
    /// One for each that could not be put back.
    pub fn release_all(&mut self) -> Vec<HwError> {
        self.vms().iter().filter_map(|vm| self.forget(vm).err()).collect()
    }

    /// Takes over what a previous instance has left, by cgroup path, to put it back: nothing of it is kept in force.
    ///
    /// # Errors
    /// One for each that cannot be read.
    pub fn adopt(&mut self, saved: &BTreeMap<String, MemoryOriginal>) -> Vec<HwError> {
        saved.iter().filter_map(|(path, saved)| self.left_over(path, saved).err()).collect()
    }

    fn left_over(&mut self, path: &str, saved: &MemoryOriginal) -> Result<(), HwError> {
        let unit = self.through.left(&self.root, saved.unit.as_ref())?;
        let cgroup = Cgroup::at(&self.root, path)?;
        let dir = cgroup.dir().to_owned();
        let inode = optional(cgroup.inode())?;
        if unit.is_none() && inode != Some(saved.inode) {
            // It ended with its limits.
            return Ok(());
        }
        let inode = inode.unwrap_or(saved.inode);
        let (path, original) = (path.to_owned(), saved.limits);
        let group = MemoryGroup { path, dir, inode, unit, original, written: None, pending: None };
        self.groups.insert(saved.vm.clone(), group);
        Ok(())
    }
}

impl MemoryGroup {
    /// Puts back what is stricter than it was. What somebody else has written over a limit of ours is left.
    fn put_back(&mut self) -> Result<(), HwError> {
        let Some(now) = optional(read_pair(&self.dir))? else {
            return match self.unit {
                Some(_) => FILES.iter().try_for_each(|file| self.write(*file, self.original.of(*file))),
                None => Ok(()),
            };
        };
        self.arrived(now);
        for file in FILES {
            let (is, was) = (now.of(file), self.original.of(file));
            match self.written {
                // What systemd was told and has not answered may still come: it is told anew.
                _ if self.pending.is_some() => self.write(file, was)?,
                Some(written) if is != written.of(file) && is != was => {
                    warn!(dir = %self.dir.display(), file = file.name(), is, "another program \
                        has set this memory limit: it is left, not put back");
                }
                _ if is < was => self.write(file, was)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// What systemd was told and did not answer has come.
    fn arrived(&mut self, now: MemoryPair) {
        if self.pending == Some(now) {
            (self.written, self.pending) = (Some(now), None);
        }
    }

    fn write(&mut self, file: MemoryFile, bytes: u64) -> Result<(), HwError> {
        let path = self.dir.join(file.name());
        let done = match &self.unit {
            Some((systemd, unit)) => {
                self.pending = self.written.map(|written| written.with(file, bytes));
                systemd.limit_memory(unit, file.property(), bytes)
            }
            None => write_value(&path, show_bytes(bytes)),
        };
        if optional(done)?.is_none() {
            self.pending = None;
            return Ok(());
        }
        // Said before the look: what is refused half-way must be put back all the same.
        (self.written, self.pending) = (self.written.map(|written| written.with(file, bytes)), None);

        // systemd may take a moment; a file has it at once.
        let looks = if self.unit.is_some() { 20 } else { 1 };
        let read = || optional(read_limit(&path));
        match look_until(looks, read, |now| now.is_none_or(|now| now == bytes))? {
            Some(now) if now != bytes => {
                let allowed = format!("{}, as written", show_bytes(bytes));
                Err(HwError::value(&path, Operation::Verify, show_bytes(now), &allowed))
            }
            _ => Ok(()),
        }
    }
}

fn read_pair(dir: &std::path::Path) -> Result<MemoryPair, HwError> {
    let none = MemoryPair { high_bytes: None, max_bytes: None };
    FILES.iter().try_fold(none, |pair, file| Ok(pair.with(*file, read_limit(&dir.join(file.name()))?)))
}

fn read_limit(path: &std::path::Path) -> Result<u64, HwError> {
    let text: String = read_value(path, ALLOWED)?;
    match text.as_str() {
        "max" => Ok(u64::MAX),
        number => number.parse().map_err(|_| HwError::value(path, Operation::Read, number, ALLOWED)),
    }
}

fn show_bytes(bytes: u64) -> String {
    if bytes == u64::MAX { "max".to_owned() } else { bytes.to_string() }
}

fn show(pair: MemoryPair) -> String {
    let [max, high] = FILES.map(|file| show_bytes(pair.of(file)));
    format!("high {high}, max {max}")
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;
    use crate::systemd::Systemd;
    use crate::systemd::testing::Mock;
    use crate::testing::Tree;

    const PATH: &str = "work.slice/b.service";
    const DIR: &str = "sys/fs/cgroup/work.slice/b.service";
    const MIB: u64 = 1 << 20;

    fn vm() -> VmId {
        VmId::new("b").unwrap()
    }
    fn files(tree: &Tree) -> [String; 2] {
        ["high", "max"].map(|file| tree.read(&format!("{DIR}/memory.{file}")).trim().to_owned())
    }
    fn tree(high: &str, max: &str) -> (Tree, MemoryLimits) {
        let tree = Tree::new();
        tree.folder(DIR, &[("memory.high", high), ("memory.max", max)]);
        let limits = MemoryLimits::new(tree.root(), Through::Files { even_units: false });
        (tree, limits)
    }

    #[test]
    fn what_is_written_is_never_above_what_was_there_and_is_put_back_max_first() {
        let (tree, mut limits) = tree("max", "max");
        limits.know(&vm(), PATH).unwrap();
        tree.write(&format!("{DIR}/memory.max"), "1073741824\n");
        limits.know(&vm(), PATH).unwrap();
        let original = limits.read(&vm()).unwrap().unwrap().1;
        limits.write(&vm(), MemoryFile::High, 512 * MIB).unwrap();
        limits.write(&vm(), MemoryFile::Max, 512 * MIB).unwrap();
        assert_eq!(files(&tree), ["536870912", "536870912"]);
        limits.write(&vm(), MemoryFile::Max, 4096 * MIB).unwrap();
        assert_eq!(files(&tree)[1], "1073741824");
        assert_eq!(limits.originals()[PATH].limits, original);

        limits.write(&vm(), MemoryFile::Max, 512 * MIB).unwrap();
        drop(tree.written());
        assert!(limits.release_all().is_empty());
        assert_eq!(files(&tree), ["max", "1073741824"]);
        let order: Vec<_> = tree.written().into_iter().map(|(path, _)| path).collect();
        assert!(order[0].ends_with("memory.max") && order[1].ends_with("memory.high"), "{order:?}");
    }

    #[test]
    fn what_somebody_else_writes_is_told_and_left() {
        let (tree, mut limits) = tree("max", "max");
        limits.know(&vm(), PATH).unwrap();
        limits.write(&vm(), MemoryFile::High, 512 * MIB).unwrap();
        tree.write(&format!("{DIR}/memory.high"), "1048576\n");
        let error = limits.read(&vm()).unwrap_err().to_string();
        assert!(error.contains("somebody else writes"), "{error}");
        assert!(limits.release_all().is_empty());
        assert_eq!(files(&tree), ["1048576", "max"]);
    }

    #[test]
    fn a_group_that_vanishes_between_two_writes_is_an_error_of_reading_and_none_of_writing() {
        let (tree, mut limits) = tree("max", "max");
        limits.know(&vm(), PATH).unwrap();
        limits.write(&vm(), MemoryFile::High, 512 * MIB).unwrap();
        tree.remove(DIR);
        limits.write(&vm(), MemoryFile::Max, 512 * MIB).unwrap();
        assert!(limits.read(&vm()).unwrap_err().is_missing());
        assert!(limits.know(&vm(), PATH).unwrap_err().is_missing());
        assert!(limits.release_all().is_empty());
    }

    #[test]
    fn what_a_dead_instance_left_is_put_back_wherever_it_died_and_a_new_group_keeps_its_own() {
        for (high, max) in
            [("536870912", "max"), ("536870912", "536870912"), ("max", "536870912"), ("max", "max")]
        {
            let (tree, mut limits) = tree("max", "max");
            limits.know(&vm(), PATH).unwrap();
            let saved = limits.originals();
            drop(limits);
            tree.write(&format!("{DIR}/memory.high"), high);
            tree.write(&format!("{DIR}/memory.max"), max);
            let mut next = MemoryLimits::new(tree.root(), Through::Files { even_units: false });
            assert!(next.adopt(&saved).is_empty() && next.release_all().is_empty());
            assert_eq!(files(&tree), ["max", "max"], "{high} {max}");

            // The old folder is kept, so that its inode is not used again at once.
            std::fs::rename(tree.root().path(DIR), tree.root().path("ended")).unwrap();
            tree.folder(DIR, &[("memory.high", "max"), ("memory.max", "1048576")]);
            let mut next = MemoryLimits::new(tree.root(), Through::Files { even_units: false });
            assert!(next.adopt(&saved).is_empty() && next.release_all().is_empty());
            assert_eq!(files(&tree), ["max", "1048576"]);
        }
    }

    #[test]
    fn what_cannot_be_limited_is_refused_by_name() {
        let (tree, mut limits) = tree("max", "x");
        assert!(limits.know(&vm(), PATH).unwrap_err().to_string().contains("memory.max"));
        tree.folder("sys/fs/cgroup/bare", &[("cpu.max", "max 100000")]);
        assert!(limits.know(&vm(), "bare").unwrap_err().is_missing());
        let machine = "machine.slice/machine-qemu-1.scope";
        tree.folder(&format!("sys/fs/cgroup/{machine}"), &[("memory.high", "max"), ("memory.max", "max")]);
        assert!(limits.know(&vm(), machine).unwrap_err().to_string().contains("guest"));
        assert!(limits.originals().is_empty());

        tree.write(&format!("{DIR}/memory.max"), "max");
        limits.know(&vm(), PATH).unwrap();
        tree.fail(&format!("{DIR}/memory.high"), Operation::Write, Errno::EACCES);
        assert!(limits.write(&vm(), MemoryFile::High, MIB).is_err());
        assert_eq!(files(&tree), ["max", "max"]);
    }

    #[test]
    fn a_units_group_is_limited_by_its_properties() {
        let (tree, _) = tree("max", "max");
        let mock = Mock::start(tree.root());
        mock.unit(PATH);
        let through = Through::Systemd(Systemd::start(tree.root()).unwrap());
        let mut limits = MemoryLimits::new(tree.root(), through);
        limits.know(&vm(), PATH).unwrap();
        limits.write(&vm(), MemoryFile::High, 512 * MIB).unwrap();
        limits.write(&vm(), MemoryFile::Max, 512 * MIB).unwrap();
        assert_eq!(files(&tree), ["536870912", "536870912"]);
        assert!(limits.release_all().is_empty());
        assert_eq!(files(&tree), ["max", "max"]);
    }
}
