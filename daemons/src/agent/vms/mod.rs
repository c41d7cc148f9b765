//! The VMs of this server: which there are, on disk; which cores they have, in cgroups; how busy they are.

mod binding;
mod floating;
mod meters;
mod specs;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use anyhow::bail;
use ballast_agent_core::{Vm, VmUsage};
use ballast_hw::cpufreq::CpufreqOriginals;
use ballast_hw::{Bandwidth, Domain, HwError, Journal, Originals, Root};
use ballast_types::wire::VmSpec;
use ballast_types::{Instant, OnExtreme, VmClass, VmId};

use super::kill::{Killable, Target};
use meters::Meters;
use specs::Specs;
pub(super) use specs::VmsError;

/// Every VM of this server.
pub(super) struct Vms {
    root: Root,
    specs: Specs,
    meters: Meters,
    killable: Killable,
    originals: Originals,
    /// `None` once everything has been put back.
    journal: Option<Journal>,
    /// With `cpu-max`: what limits them, instead of cores of their own.
    floating: Option<Arc<Mutex<Bandwidth>>>,
}

impl Vms {
    /// The VMs of config and of earlier calls of the API, each moved to cores of its own. What the
    /// machine was before, `originals`, is in the journal first.
    ///
    /// # Errors
    /// When the changes on disk cannot be read, the VMs need more cores than there are, or the journal
    /// cannot be written; then nothing has changed.
    pub(super) fn start(
        root: &Root,
        domains: &[Domain],
        config: BTreeMap<VmId, VmSpec>,
        changes_path: PathBuf,
        mut journal: Journal,
        originals: Originals,
        floating: Option<Arc<Mutex<Bandwidth>>>,
    ) -> anyhow::Result<(Self, Vec<Vm>)> {
        let specs = Specs::read(config, changes_path, domains, floating.is_some())?;
        let set = specs.groups()?;
        journal.begin(&originals)?;
        let mut vms = Self {
            root: root.clone(),
            specs,
            meters: Meters::default(),
            killable: Killable::default(),
            originals,
            journal: Some(journal),
            floating,
        };
        let set = vms.move_all(set);
        Ok((vms, set))
    }

    /// Every VM as it was asked for.
    pub(super) fn specs(&self) -> BTreeMap<VmId, VmSpec> {
        self.specs.all().clone()
    }

    /// The cgroups of those that may be killed, as they are at any time.
    pub(super) fn killable(&self) -> Killable {
        self.killable.clone()
    }

    /// Adds, replaces or (`None`) removes one VM; gives the whole new set.
    ///
    /// # Errors
    /// When the VM is unknown or asks for too much; then nothing has changed.
    pub(super) fn change(&mut self, id: VmId, spec: Option<VmSpec>) -> Result<Vec<Vm>, VmsError> {
        if self.journal.is_none() {
            return Err(VmsError::Refused("the agent stops".into()));
        }
        let left = self.specs.cgroup(&id);
        let set = self.specs.change(id, spec)?;
        // A VM that is gone, or in another cgroup now, gives its old cores back.
        let used = self.specs.all().values().any(|spec| spec.cgroup == left);
        if let Some(path) = left.filter(|_| !used) {
            self.give_back(&path)
                .unwrap_or_else(|error| tracing::warn!(%error, "cores not given back"));
        }
        Ok(self.move_all(set))
    }

    /// CPUs went or came: gives the whole new set.
    ///
    /// # Errors
    /// Does not fail for what fitted before.
    pub(super) fn hotplug(&mut self, domains: &[Domain]) -> anyhow::Result<Vec<Vm>> {
        self.specs.hotplug(domains);
        let set = self.specs.groups()?;
        Ok(self.move_all(set))
    }

    /// What the cores were before has changed: writes it down.
    ///
    /// # Errors
    /// When the journal cannot be written.
    pub(super) fn journal_cores(&mut self, originals: CpufreqOriginals) -> Result<(), HwError> {
        self.originals.cpufreq = Some(originals);
        self.journal.as_mut().map_or(Ok(()), |journal| journal.begin(&self.originals))
    }

    /// Confines every VM to its cores, or follows it where it floats. One that could not be confined may
    /// run anywhere: it and its cores count as user-facing, so that nothing is throttled on a wrong
    /// belief. So does one that floats and could not be limited.
    fn move_all(&mut self, set: Vec<Vm>) -> Vec<Vm> {
        let mut meters = Meters::default();
        let mut targets = BTreeMap::new();
        let mut moved = Vec::with_capacity(set.len());
        for mut vm in set {
            if let Some(path) = self.specs.cgroup(&vm.id) {
                let cpus = self.specs.cpus(&vm);
                let placed = match self.floating {
                    Some(_) => self.follow(&path, &vm),
                    None => self.confine(&path, &cpus),
                };
                match placed.and_then(|group| Ok((group.inode()?, group))) {
                    Ok((inode, group)) => {
                        targets.insert(vm.id.clone(), Target { path, group: group.clone(), inode });
                        meters.measure(&vm.id, cpus.len(), group, &mut self.meters);
                    }
                    Err(error) => {
                        tracing::warn!(vm = %vm.id, %error, "cannot be throttled: counted as user-facing");
                        vm.class = VmClass::UserFacing;
                        vm.on_extreme = OnExtreme::None;
                    }
                }
            }
            moved.push(vm);
        }
        self.meters = meters;
        let set = self.followed(moved);
        // Last: only who is still low-priority may be killed.
        let may = |vm: &&Vm| vm.class == VmClass::NonUserFacing && vm.on_extreme == OnExtreme::Kill;
        let target = |vm: &Vm| Some((vm.id.clone(), targets.remove(&vm.id)?));
        self.killable.replace(set.iter().filter(may).filter_map(target).collect());
        set
    }

    /// CPU use of every VM since the last call; a VM whose use is not known is left out.
    pub(super) fn usage(&mut self, now: Instant) -> Vec<VmUsage> {
        self.look();
        self.meters.slow(now)
    }

    /// The same for fast windows.
    pub(super) fn fast_usage(&mut self, now: Instant) -> Vec<VmUsage> {
        self.meters.fast(now)
    }

    /// Gives every VM its old cores back, and ends the journal if all the rest is `clean` too.
    ///
    /// # Errors
    /// Names all that could not be put back; the journal then stays for the next start.
    pub(super) fn restore(&mut self, clean: bool) -> anyhow::Result<()> {
        let paths: Vec<_> = self.originals.cpusets.keys().cloned().collect();
        let failed: Vec<_> =
            paths.iter().filter_map(|path| Some(self.give_back(path).err()?.to_string())).collect();
        if !failed.is_empty() {
            bail!("not put back: {}", failed.join("; "));
        }
        match self.journal.take().filter(|_| clean) {
            Some(journal) => Ok(journal.finish()?),
            None => Ok(()),
        }
    }
}
