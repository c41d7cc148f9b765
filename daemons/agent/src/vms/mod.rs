//! The VMs of this server: which there are, on disk; which cores they have, in cgroups; how busy they are.

mod binding;
pub(super) mod discovery;
mod floating;
mod given;
mod limits;
mod meters;
mod notes;
mod pooled;
#[cfg(test)]
mod pooled_tests;
mod predicted;
mod specs;
#[cfg(test)]
mod tests;
mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use ballast_agent_core::{ControlledVm, VmUsage};
use ballast_hw::cpufreq::CpufreqOriginals;
use ballast_hw::{Binders, Cgroup, CpuList, Domain, HwError, Journal, MemoryLimits, Originals, Root};
use ballast_types::wire::{Alarm, AlarmId, VmSpec};
use ballast_types::{BootId, Instant, OnExtreme, VmClass, VmId};

use super::killable::{Killable, Target};
use super::quota::Quotas;
use crate::config::{DiscoverConfig, GroupsConfig};
use crate::pods::Pods;
use ballast_runtime::clock;
use binding::Bound;
use discovery::Discovery;
use limits::Limiting;
use meters::Meters;
pub(super) use notes::Notes;
pub(super) use predicted::TellError;
use predicted::{FILE, Predicted};
pub(super) use specs::{CHANGES, VmsError, misfit};
use specs::{Layout, Specs};
pub(super) use usage::Measured;

/// Why a VM without a cgroup is in no pool.
const NO_GROUP: &str = "it has no cgroup, which is what is bound to a pool";

/// Every VM of this server.
pub(super) struct Vms {
    root: Root,
    specs: Specs,
    discovery: Discovery,
    /// With `[kubernetes]`: where VMs are found, instead.
    pods: Option<Pods>,
    meters: Meters,
    /// Those whose use is recorded.
    measured: Vec<Measured>,
    /// Where a VM began counts from this; without, none is known.
    boot_id: Option<BootId>,
    binders: Binders,
    /// By cgroup path: where VMs were bound.
    bound: BTreeMap<String, Bound>,
    /// By cgroup path: the inodes of the groups that were bound or followed.
    inodes: BTreeMap<String, u64>,
    /// Why VMs cannot be throttled.
    troubles: BTreeMap<VmId, String>,
    /// By path: why slices of pools are not bound.
    slice_troubles: BTreeMap<String, String>,
    /// libvirt was asked for some of them, and has not answered yet.
    waits_for_answers: bool,
    /// The same, for cgroups that are to get back what they had.
    to_give_back: BTreeSet<String>,
    /// The set that the controller was last told of.
    set: Vec<ControlledVm>,
    killable: Killable,
    notes: Notes,
    originals: Originals,
    /// `None` once everything has been put back.
    journal: Option<Journal>,
    /// Where they float: what limits them, instead of cores of their own.
    floating: Option<Arc<Quotas>>,
    /// What sets limits by what VMs use, if they are set.
    limiting: Option<Limiting>,
    /// What did so, until it has put back what was there.
    leaving_memory: Option<MemoryLimits>,
}

/// What the config says of VMs.
pub(super) struct VmSources {
    /// Those that it names.
    pub(super) vms: BTreeMap<VmId, VmSpec>,
    /// Where others are found, and who binds them.
    pub(super) groups: GroupsConfig,
    /// With `[kubernetes]`: the node's pods, and no others.
    pub(super) pods: Option<Pods>,
    /// What the API has changed, on disk.
    pub(super) changes_path: PathBuf,
    /// Which are batch by their own use, on disk; `None` if that is not to count.
    pub(super) auto_path: Option<PathBuf>,
}

impl Vms {
    /// The VMs of config, of earlier calls of the API and those that are found, each moved to cores of its
    /// own. What the machine was before, `originals`, is in the journal first. Fails when the changes on disk
    /// cannot be read, or the journal cannot be written; then nothing has changed.
    pub(super) fn start(
        root: &Root,
        domains: &[Domain],
        sources: VmSources,
        binders: Binders,
        mut journal: Journal,
        originals: Originals,
        floating: Option<Arc<Quotas>>,
    ) -> anyhow::Result<(Self, Vec<ControlledVm>)> {
        let VmSources { vms, groups, pods, changes_path, auto_path } = sources;
        let boot_id = ballast_hw::boot_id(root).ok();
        let predicted = Predicted::read(journal.folder().join(FILE), boot_id.clone(), clock::now());
        let layout = match (&floating, groups.pools) {
            (Some(_), _) => Layout::Floating,
            (None, Some(pools)) => Layout::Pools(pools),
            (None, None) => Layout::Own,
        };
        let mut specs = Specs::read(vms, changes_path, auto_path, domains, layout)?;
        specs.predicted = predicted;
        if pods.is_some() {
            specs.only_given();
        }
        journal.begin(&originals)?;
        let mut vms = Self {
            root: root.clone(),
            specs,
            discovery: Discovery::new(groups.discover),
            pods,
            meters: Meters::default(),
            measured: vec![],
            boot_id,
            binders,
            bound: BTreeMap::new(),
            inodes: BTreeMap::new(),
            troubles: BTreeMap::new(),
            slice_troubles: BTreeMap::new(),
            waits_for_answers: false,
            to_give_back: BTreeSet::new(),
            set: vec![],
            killable: Killable::default(),
            notes: Notes::default(),
            originals,
            journal: Some(journal),
            floating,
            limiting: None,
            leaving_memory: None,
        };

        let found = vms.found();
        vms.specs.find(found);
        vms.specs.advance(clock::now());
        // What a previous instance bound, and this one does not.
        let left = |path: &&String| vms.pods.is_some() || !vms.specs.binds(path);
        vms.give_all_back(vms.originals.cpusets.keys().filter(left).cloned().collect());
        let set = vms.move_all();

        Ok((vms, set))
    }

    /// Every VM as it was asked for, or found.
    pub(super) fn specs(&self) -> BTreeMap<VmId, VmSpec> {
        self.specs.all().clone()
    }

    /// The cgroups of those that may be killed, as they are at any time.
    pub(super) fn killable(&self) -> Killable {
        self.killable.clone()
    }

    /// What an operator should know of them, as it is at any time.
    pub(super) fn notes(&self) -> Notes {
        self.notes.clone()
    }

    /// Adds, replaces or (`None`) removes one VM; gives the whole new set. Fails when the VM is unknown or
    /// asks for too much; then nothing has changed.
    pub(super) fn change(&mut self, id: VmId, spec: Option<VmSpec>) -> Result<Vec<ControlledVm>, VmsError> {
        if self.journal.is_none() {
            return Err(VmsError::Refused("the agent stops".into()));
        }
        if self.pods.is_some() {
            let why = "with [kubernetes] the VMs of this server are its pods: the API server says which";
            return Err(VmsError::Refused(why.into()));
        }
        if let Some(path) = spec.as_ref().and_then(|spec| spec.cgroup.as_deref()) {
            Cgroup::check_vm(&self.root, path)
                .map_err(|error| VmsError::Refused(format!("cgroup = {path:?}: {error}")))?;
        }
        let left = self.specs.change(id, spec)?;
        self.give_all_back(left);
        Ok(self.move_all())
    }

    /// The configuration says other things of VMs: which it names, and where others are found. Gives the whole new
    /// set. Fails when one more would not fit, or one cannot be limited; then nothing has changed.
    pub(crate) fn reload(
        &mut self,
        vms: BTreeMap<VmId, VmSpec>,
        discover: Vec<DiscoverConfig>,
    ) -> anyhow::Result<Vec<ControlledVm>> {
        if self.journal.is_none() {
            bail!("the agent stops");
        }
        self.specs.reload(vms)?;
        self.discovery.follow(discover);
        let found = self.found();
        let left = self.specs.refit_with(found);
        self.give_all_back(left);
        Ok(self.move_all())
    }

    /// CPUs went or came: gives the whole new set; `None` once everything has been put back.
    pub(super) fn hotplug(&mut self, domains: &[Domain]) -> Option<Vec<ControlledVm>> {
        self.journal.as_ref()?;
        let left = self.specs.hotplug(domains);
        self.give_all_back(left);
        Some(self.move_all())
    }

    /// What the cores were before has changed: writes it down.
    pub(super) fn journal_cores(&mut self, originals: CpufreqOriginals) -> Result<(), HwError> {
        self.originals.cpufreq = Some(originals);
        self.journal.as_mut().map_or(Ok(()), |journal| journal.begin(&self.originals))
    }

    /// Takes a VM out of the set that has died; gives the new set.
    pub(super) fn reap(&mut self, id: VmId) -> Result<Option<Vec<ControlledVm>>, VmsError> {
        // One that was found is found no more.
        if self.specs.is_discovered(&id) { Ok(self.rescan()) } else { self.change(id, None).map(Some) }
    }

    /// A VM that is gone, or in another cgroup now, gives its old cores back.
    fn give_all_back(&mut self, paths: Vec<String>) {
        let waiting = mem::take(&mut self.to_give_back);
        let paths: BTreeSet<_> = waiting.iter().cloned().chain(paths).collect();
        for path in paths {
            // It may be a VM's again; one that floats is bound nowhere.
            if self.floating.is_none() && self.specs.uses(&path) {
                continue;
            }
            match self.give_back(&path) {
                Ok(()) => {}
                // Who does not answer now is asked at the next look.
                Err(error) if error.is_transient() => {
                    if !error.is_pending() && !waiting.contains(&path) {
                        tracing::warn!(%error, "the VM's old cores are given back later");
                    }
                    self.to_give_back.insert(path);
                }
                Err(error) => tracing::warn!(%error, "the VM's old cores could not be given back"),
            }
        }
    }

    /// Binds every VM to its cores, or follows it where it floats. One that could not be bound may
    /// run anywhere: it and its cores count as user-facing, so that nothing is throttled on a wrong
    /// belief. So does one that floats and could not be limited; in pools, see [`Self::is_not_placed`].
    fn move_all(&mut self) -> Vec<ControlledVm> {
        let mut meters = Meters::default();
        let mut targets = BTreeMap::new();
        let mut troubles = BTreeMap::new();
        self.forget_others_use();
        let mut set = self.specs.groups();
        self.inodes.clear();
        self.measured.clear();
        self.waits_for_answers = false;
        self.bind_slices();

        for vm in &mut set {
            let Some(path) = self.specs.cgroup(&vm.id) else {
                if vm.vcpus.is_some() {
                    troubles.insert(vm.id.clone(), NO_GROUP.to_owned());
                    self.is_not_placed(vm, None);
                }
                continue;
            };
            let cpus = self.specs.cpus(vm);
            let placed = self.place(vm, &path, &cpus).and_then(|group| Ok((group.inode()?, group)));
            // In a pool its use counts all the same.
            if placed.is_err()
                && vm.vcpus.is_some()
                && let Ok(group) = Cgroup::at(&self.root, &path)
                && let Ok(inode) = group.inode()
            {
                meters.measure(&vm.id, cpus.len(), (group, inode), &mut self.meters);
            }
            match placed {
                Ok((inode, group)) => {
                    self.inodes.insert(path.clone(), inode);
                    meters.measure(&vm.id, cpus.len(), (group.clone(), inode), &mut self.meters);
                    self.measured.extend(self.measure(vm, &path, &group));
                    targets.insert(vm.id.clone(), Target { path, group, inode });
                }
                Err(error) if error.is_pending() => {
                    // What was wrong when it was last tried is wrong until it is tried again.
                    let before = self.troubles.get(&vm.id);
                    troubles.extend(before.map(|why| (vm.id.clone(), why.clone())));
                    self.waits_for_answers = true;
                    self.is_not_placed(vm, Some(&path));
                }
                Err(error) => {
                    troubles.insert(vm.id.clone(), self.trouble(&vm.id, &error));
                    self.is_not_placed(vm, Some(&path));
                }
            }
        }

        (self.meters, self.troubles) = (meters, troubles);
        let set = self.followed(set);
        self.may_kill(&set, targets);
        self.set.clone_from(&set);
        self.note();

        set
    }

    /// The reason why a VM is not bound to its cores. A new reason is logged.
    fn trouble(&self, vm: &VmId, error: &HwError) -> String {
        let error = error.to_string();
        if self.troubles.get(vm) != Some(&error) {
            tracing::warn!(%vm, error, "the VM is not held on its cores");
        }
        error
    }

    /// Sets which VMs may be killed: low-priority ones whose config allows it.
    fn may_kill(&mut self, set: &[ControlledVm], mut targets: BTreeMap<VmId, Target>) {
        let killable = set
            .iter()
            .filter(|vm| vm.class == VmClass::NonUserFacing && vm.on_extreme == OnExtreme::Kill)
            .filter_map(|vm| Some((vm.id.clone(), targets.remove(&vm.id)?)));
        self.killable.replace(killable.collect());
    }

    /// Binds a VM to its cores. A VM that floats, or whose groups belong to another program, is only followed or watched.
    fn place(&mut self, vm: &ControlledVm, path: &str, cpus: &CpuList) -> Result<Cgroup, HwError> {
        match (&self.pods, &self.floating) {
            (Some(_), None) => self.watch(path),
            (Some(_), Some(_)) => self.follow(path, vm),
            (None, _) => {
                Cgroup::check_vm(&self.root, path)?;
                match self.floating {
                    Some(_) => self.follow(path, vm),
                    None if self.is_in_slice(vm, path) => self.check_slice(path, cpus),
                    None => self.confine(path, cpus),
                }
            }
        }
    }

    /// Tells the status what an operator should know.
    fn note(&self) {
        let of_vm = |(id, why): (&VmId, &String)| {
            let what = match self.set.iter().any(|vm| vm.id == *id && vm.class == VmClass::NonUserFacing) {
                true => "may run outside its pool",
                false => "counts as user-facing",
            };
            Alarm::about(AlarmId::VmNotBound, id, format!("VM {id} {what}: {why}"))
        };
        let alarms = self.troubles.iter().map(of_vm).chain(self.specs.left_out());
        let alarms = alarms.chain(self.discovery.troubles().cloned()).chain(self.slice_alarms());
        let alarms = alarms.chain(self.pods.iter().flat_map(Pods::alarms).cloned()).collect();
        self.notes.replace(self.specs(), self.specs.origins(), alarms);
        self.notes.measure(self.meters.cpus());
        self.note_predictions();
    }

    /// CPU use of every VM since the last call; a VM whose use is not known is left out.
    pub(super) fn usage(&mut self, now: Instant) -> Vec<VmUsage> {
        self.look();
        self.meters.sample(now)
    }

    /// Gives every VM its old cores back, and ends the journal if all the rest is `clean` too. The error
    /// names all that could not be put back; the journal then stays for the next start.
    pub(super) fn restore(&mut self, clean: bool) -> anyhow::Result<()> {
        self.bound.clear();
        let mut failed = self.binders.restore_all(&self.originals.cpusets);
        let bound: Vec<_> = self.originals.cpusets.keys().cloned().collect();
        for path in bound {
            if !failed.contains_key(&path) {
                failed.extend(self.forget_original(&path).err().map(|error| (path, error)));
            }
        }
        let mut failed: Vec<_> = failed.values().map(ToString::to_string).collect();
        failed.extend(self.restore_memory());
        if !failed.is_empty() {
            bail!("not put back: {}", failed.join("; "));
        }
        match self.journal.take().filter(|_| clean) {
            Some(journal) => Ok(journal.finish()?),
            None => Ok(()),
        }
    }
}
