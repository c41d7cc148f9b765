//! The VMs of this server: which there are, on disk; which cores they have, in cgroups; how busy they are.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, bail};
use ballast_agent_core::{Vm, VmUsage, core_groups};
use ballast_hw::cgroup::{Cgroup, UsageMeter};
use ballast_hw::{Bandwidth, CpuList, CpuUse, HwError, Journal, Originals, Root};
use ballast_types::wire::VmSpec;
use ballast_types::{Core, CoreId, Instant, OnExtreme, VmClass, VmId};
use thiserror::Error;

use super::floating;
use super::kill::{Killable, Target};
use crate::config::has_nothing_to_limit;
use crate::state;

/// Why a change of the VM set was refused.
#[derive(Debug, Error)]
pub(super) enum VmsError {
    /// There is no such VM.
    #[error("there is no VM {0}")]
    Unknown(VmId),
    /// It asks for something that is not allowed.
    #[error("{0}")]
    Refused(String),
    /// It could not be written down.
    #[error("{0}")]
    Io(io::Error),
}

/// How busy one VM is, between two looks of each of those who look.
struct Meters {
    cores: usize,
    slow: UsageMeter,
    fast: UsageMeter,
}

/// Every VM of this server.
pub(super) struct Vms {
    pub(super) root: Root,
    cores: Vec<CoreId>,
    specs: BTreeMap<VmId, VmSpec>,
    configured: BTreeSet<VmId>,
    /// What the API added (`Some`) or removed (`None`) since the config file was written.
    changes: BTreeMap<VmId, Option<VmSpec>>,
    changes_path: PathBuf,
    meters: BTreeMap<VmId, Meters>,
    killable: Killable,
    pub(super) originals: Originals,
    /// `None` once everything has been put back.
    pub(super) journal: Option<Journal>,
    /// With `cpu-max`: what limits them, instead of cores of their own.
    pub(super) floating: Option<Arc<Mutex<Bandwidth>>>,
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
        cores: &[Core],
        config: BTreeMap<VmId, VmSpec>,
        changes_path: PathBuf,
        mut journal: Journal,
        originals: Originals,
        floating: Option<Arc<Mutex<Bandwidth>>>,
    ) -> anyhow::Result<(Self, Vec<Vm>)> {
        let changes: BTreeMap<VmId, Option<VmSpec>> =
            state::read(&changes_path)?.unwrap_or_default();
        let cores: Vec<_> = cores.iter().map(|core| core.id).collect();
        let configured = config.keys().cloned().collect();
        let mut specs = merged(config, &changes);
        for (id, spec) in &mut specs {
            // Written down by a version that allowed it.
            if let Err(why) = spec.check() {
                tracing::warn!(vm = %id, cgroup = ?spec.cgroup, why, "not killed, whatever happens");
                spec.on_extreme = OnExtreme::None;
            }
        }
        let from = format!("the config's VMs with the changes of {}", changes_path.display());
        let set = groups(&cores, &specs, floating.is_some()).context(from)?;
        journal.begin(&originals)?;
        let mut vms = Self {
            root: root.clone(),
            cores,
            specs,
            configured,
            changes,
            changes_path,
            meters: BTreeMap::new(),
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
        self.specs.clone()
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
        if let Some(path) = spec.as_ref().and_then(|spec| spec.cgroup.as_deref())
            && !Cgroup::is_path(path)
        {
            return Err(VmsError::Refused(format!("cgroup = {path:?}: {}", Cgroup::PATHS)));
        }
        if let Some(Err(why)) = spec.as_ref().map(VmSpec::check) {
            return Err(VmsError::Refused(why.into()));
        }
        let floating = self.floating.is_some();
        if let Some(why) = spec.as_ref().filter(|_| floating).and_then(has_nothing_to_limit) {
            return Err(VmsError::Refused(why.into()));
        }
        if self.journal.is_none() {
            return Err(VmsError::Refused("the agent stops".into()));
        }
        let mut specs = self.specs.clone();
        match &spec {
            Some(spec) => drop(specs.insert(id.clone(), spec.clone())),
            None if specs.remove(&id).is_none() => return Err(VmsError::Unknown(id)),
            None => {}
        }
        let set = groups(&self.cores, &specs, floating)
            .map_err(|error| VmsError::Refused(error.to_string()))?;
        let mut changes = self.changes.clone();
        if spec.is_none() && !self.configured.contains(&id) {
            changes.remove(&id);
        } else {
            changes.insert(id.clone(), spec);
        }
        state::write(&self.changes_path, &changes).map_err(VmsError::Io)?;
        self.changes = changes;
        let left = self.specs.get(&id).and_then(|spec| spec.cgroup.clone());
        self.specs = specs;
        // A VM that is gone, or in another cgroup now, gives its old cores back.
        let used = self.specs.values().any(|spec| spec.cgroup == left);
        if let Some(path) = left.filter(|_| !used) {
            self.give_back(&path)
                .unwrap_or_else(|error| tracing::warn!(%error, "cores not given back"));
        }
        Ok(self.move_all(set))
    }

    /// Confines every VM to its cores, or follows it where it floats. One that could not be confined may
    /// run anywhere: it and its cores count as user-facing, so that nothing is throttled on a wrong
    /// belief. So does one that floats and could not be limited.
    fn move_all(&mut self, set: Vec<Vm>) -> Vec<Vm> {
        let mut meters = BTreeMap::new();
        let mut targets = BTreeMap::new();
        let mut moved = Vec::with_capacity(set.len());
        for mut vm in set {
            let path = self.specs.get(&vm.id).and_then(|spec| spec.cgroup.clone());
            if let Some(path) = path {
                let placed = match self.floating {
                    Some(_) => self.follow(&path, &vm),
                    None => self.confine(&path, &vm.cores),
                };
                match placed.and_then(|group| Ok((group.inode()?, group))) {
                    Ok((inode, group)) => {
                        targets.insert(vm.id.clone(), Target { path, group: group.clone(), inode });
                        let cores = vm.cores.len();
                        let old = self.meters.remove(&vm.id).map(|old| Meters { cores, ..old });
                        let new = || {
                            let meter = UsageMeter::new(group);
                            Meters { cores, slow: meter.clone(), fast: meter }
                        };
                        meters.insert(vm.id.clone(), old.unwrap_or_else(new));
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

    fn confine(&mut self, path: &str, cores: &[CoreId]) -> Result<Cgroup, HwError> {
        let group = Cgroup::at(&self.root, path)?;
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
        let cpus: CpuList = cores.iter().map(|core| u32::from(core.0)).collect();
        if group.effective()? != cpus {
            group.confine(&cpus)?;
        }
        Ok(group)
    }

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

    /// CPU use of every VM since the last call; a VM whose use is not known is left out.
    pub(super) fn usage(&mut self, now: Instant) -> Vec<VmUsage> {
        self.look();
        self.sample(now, |meters| &mut meters.slow)
    }

    /// The same for fast windows.
    pub(super) fn fast_usage(&mut self, now: Instant) -> Vec<VmUsage> {
        self.sample(now, |meters| &mut meters.fast)
    }

    fn sample(
        &mut self,
        now: Instant,
        of: impl Fn(&mut Meters) -> &mut UsageMeter,
    ) -> Vec<VmUsage> {
        let sample = |(vm, meters): (&VmId, &mut Meters)| {
            let cores = meters.cores;
            let CpuUse { utilisation, stopped } = of(meters).sample(now, cores).ok().flatten()?;
            Some(VmUsage { vm: vm.clone(), utilisation, throttled: stopped })
        };
        self.meters.iter_mut().filter_map(sample).collect()
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

fn merged(
    mut specs: BTreeMap<VmId, VmSpec>,
    changes: &BTreeMap<VmId, Option<VmSpec>>,
) -> BTreeMap<VmId, VmSpec> {
    for (id, change) in changes {
        match change {
            Some(spec) => drop(specs.insert(id.clone(), spec.clone())),
            None => drop(specs.remove(id)),
        }
    }
    specs
}

/// Cores for every VM; no two of them in one cgroup, or one inside the other's: moving one would move
/// both.
fn groups(
    cores: &[CoreId],
    specs: &BTreeMap<VmId, VmSpec>,
    floating: bool,
) -> anyhow::Result<Vec<Vm>> {
    let cgroups: Vec<_> =
        specs.iter().filter_map(|(id, spec)| Some((id, spec.cgroup.as_deref()?))).collect();
    for (n, (id, path)) in cgroups.iter().enumerate() {
        let inside = |a: &str, b: &str| a == b || a.starts_with(&format!("{b}/"));
        let clash = cgroups[..n].iter().find(|(_, p)| inside(p, path) || inside(path, p));
        if let Some((other, _)) = clash {
            bail!("VM {id}: cgroup = {path:?}: a cgroup of its own, not shared with VM {other}");
        }
    }
    if floating {
        return floating::set(cores, specs);
    }
    let specs: Vec<_> = specs.iter().map(|(id, spec)| (id.clone(), spec.clone())).collect();
    Ok(core_groups(cores, &specs)?)
}
