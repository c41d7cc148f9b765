//! The set of VMs: what config and API ask for, on disk, and whether it can be.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

use anyhow::bail;
use ballast_agent_core::{ControlledVm, PhysicalCore, core_groups};
use ballast_hw::{CpuList, Domain, Root, possible};
use ballast_types::wire::{Alarm, AlarmId, VmPrediction, VmSpec};
use ballast_types::{CoreId, Instant, OnExtreme, VmClass, VmId, VmStart};
use thiserror::Error;

use super::discovery::DiscoveredVm;
use super::predicted::Predicted;
use super::{floating, given};
use crate::config::{AgentConfig, PoolsConfig, Slices, has_nothing_to_limit};
use ballast_runtime::state;

/// What the API has changed, in the state folder.
pub(crate) const CHANGES: &str = "vms.json";

/// Which VM, of the config and what the API has changed, has more cores than this machine can ever have CPUs: that VM
/// never fits, while others may once CPUs come back.
pub(crate) fn misfit(config: &AgentConfig) -> Option<String> {
    if config.throttle.actuator.floats() || config.kubernetes.is_some() {
        return None;
    }
    let has = possible(&Root::at(&config.daemon.root)).ok()??.len();
    let changes = state::read(&config.daemon.state_dir.join(CHANGES)).ok()?.unwrap_or_default();
    let vms = merged(config.vms.clone(), &changes);
    let (id, spec) = vms.iter().find(|(_, spec)| has > 0 && usize::from(spec.cores) > has)?;
    Some(format!("VM {id}: cores = {}: at most {has}, the CPUs of this machine", spec.cores))
}

/// Why a change of the VM set was refused.
#[derive(Debug, Error)]
pub(crate) enum VmsError {
    #[error("there is no VM {0}")]
    Unknown(VmId),
    /// It asks for something that is not allowed.
    #[error("{0}")]
    Refused(String),
    /// It could not be written down.
    #[error("{0}")]
    Io(io::Error),
}

/// How VMs come by their CPUs.
pub(super) enum Layout {
    /// Whole cores of their own.
    Own,
    /// Any: their bandwidth is limited.
    Floating,
    /// Those of their class's pool.
    Pools(PoolsConfig),
}

/// Every VM as it was asked for, or found.
pub(super) struct Specs {
    /// Those of config and API.
    explicit: BTreeMap<VmId, VmSpec>,
    configured: BTreeSet<VmId>,
    /// What the API added (`Some`) or removed (`None`) since the config file was written.
    changes: BTreeMap<VmId, Option<VmSpec>>,
    changes_path: PathBuf,
    discovered: Vec<DiscoveredVm>,
    /// Those that are batch by their own use, each in this instance of it alone.
    auto: BTreeMap<VmId, VmStart>,
    /// Where that is written down; `None` if their use does not count.
    auto_path: Option<PathBuf>,
    pub(super) predicted: Predicted,
    /// Those of `explicit`, and of `found` as many as fit.
    all: BTreeMap<VmId, VmSpec>,
    /// Why others that were found are not among them.
    left_out: BTreeMap<VmId, String>,
    /// Every core with the most CPUs that it has had: who gets which does not change when CPUs go and come
    /// back, only when there are more than ever.
    places: Vec<PhysicalCore>,
    /// The CPUs of every core that are online now.
    online: BTreeMap<CoreId, CpuList>,
    layout: Layout,
    /// Somebody else gives out the CPUs of all VMs, and says which there are.
    given: bool,
}

impl Specs {
    /// The VMs of config and of earlier calls of the API. Those that do not fit on the machine as it is now are left
    /// out. Fails when the changes on disk cannot be read.
    pub(super) fn read(
        config: BTreeMap<VmId, VmSpec>,
        changes_path: PathBuf,
        auto_path: Option<PathBuf>,
        domains: &[Domain],
        layout: Layout,
    ) -> anyhow::Result<Self> {
        let changes: BTreeMap<VmId, Option<VmSpec>> = state::read(&changes_path)?.unwrap_or_default();
        let auto = auto_path.as_deref().map(state::read).transpose()?.flatten().unwrap_or_default();
        let configured = config.keys().cloned().collect();
        let explicit = merged(config, &changes);
        let cpus = |domain: &Domain| domain.cpus.len() as u16;

        let mut specs = Self {
            all: BTreeMap::new(),
            explicit,
            configured,
            changes,
            changes_path,
            discovered: vec![],
            auto,
            auto_path,
            predicted: Predicted::default(),
            left_out: BTreeMap::new(),
            places: domains
                .iter()
                .map(|it| PhysicalCore { core: it.id, cpus: cpus(it), node: it.node })
                .collect(),
            online: BTreeMap::new(),
            layout,
            given: false,
        };

        specs.hotplug(domains);
        specs.refit();

        Ok(specs)
    }

    /// From now on there are only VMs whose CPUs somebody else gives out: what config and API have asked for is left out.
    pub(super) fn only_given(&mut self) {
        self.given = true;
        self.explicit.clear();
        self.changes.clear();
        self.refit();
    }

    /// As many of these as fit, user-facing ones first, and why the others do not.
    fn fit(&self, asked: &BTreeMap<VmId, VmSpec>) -> (BTreeMap<VmId, VmSpec>, BTreeMap<VmId, String>) {
        if self.layout.groups(&self.places, asked).is_ok() {
            return (asked.clone(), BTreeMap::new());
        }
        let (mut fitting, mut left_out) = (BTreeMap::new(), BTreeMap::new());
        let mut order: Vec<_> = asked.iter().collect();
        order.sort_by_key(|(_, spec)| spec.class());
        for (id, spec) in order {
            self.add(&mut fitting, &mut left_out, id, spec.clone());
        }
        (fitting, left_out)
    }

    /// Takes one more VM, or one otherwise than before; as it was where that does not fit.
    fn add(
        &self,
        fitting: &mut BTreeMap<VmId, VmSpec>,
        left_out: &mut BTreeMap<VmId, String>,
        id: &VmId,
        spec: VmSpec,
    ) {
        if self.given {
            // No VM is wider than the server, whatever it is allowed.
            let all: u16 = self.places.iter().map(|place| place.cpus).sum();
            fitting.insert(id.clone(), VmSpec { cores: spec.cores.min(all), ..spec });
            return;
        }
        let before = fitting.insert(id.clone(), spec);
        if let Err(why) = self.layout.groups(&self.places, fitting) {
            match before {
                Some(before) => fitting.insert(id.clone(), before),
                None => fitting.remove(id),
            };
            left_out.insert(id.clone(), why.to_string());
        }
    }

    /// Why these cannot be asked for: one would be left out that is not now.
    fn refusal(&self, asked: &BTreeMap<VmId, VmSpec>) -> Option<String> {
        let (_, left_out) = self.fit(asked);
        left_out.into_iter().find(|(id, _)| !self.left_out.contains_key(id)).map(|(_, why)| why)
    }

    /// Takes other VMs of the config, which count from the next [`Self::refit_with`] on; what the API has changed
    /// stays. Fails when one more would not fit, or one cannot be limited; then nothing has changed.
    pub(super) fn reload(&mut self, config: BTreeMap<VmId, VmSpec>) -> anyhow::Result<()> {
        let configured = config.keys().cloned().collect();
        let explicit = merged(config, &self.changes);
        let unlimited =
            |(id, spec): (&VmId, &VmSpec)| Some(format!("VM {id}: {}", has_nothing_to_limit(spec)?));
        if let Some(why) = explicit.iter().find_map(unlimited).filter(|_| self.floats()) {
            bail!(why);
        }
        if let Some(why) = self.refusal(&explicit) {
            let changes = self.changes_path.display();
            bail!("the config's VMs with the changes of {changes}: {why}");
        }

        (self.configured, self.explicit) = (configured, explicit);
        Ok(())
    }

    /// Whether this cgroup is a VM's.
    pub(super) fn uses(&self, path: &str) -> bool {
        self.all.values().any(|spec| spec.cgroup.as_deref() == Some(path))
    }

    pub(super) fn all(&self) -> &BTreeMap<VmId, VmSpec> {
        &self.all
    }

    pub(super) fn cgroup(&self, vm: &VmId) -> Option<String> {
        self.all.get(vm)?.cgroup.clone()
    }

    /// Whether a VM is there only because it was found.
    pub(super) fn is_discovered(&self, vm: &VmId) -> bool {
        !self.explicit.contains_key(vm) && self.all.contains_key(vm)
    }

    pub(super) fn origins(&self) -> BTreeMap<VmId, String> {
        let origin = |id: &VmId| match self.discovered.iter().find(|it| it.id == *id) {
            _ if self.is_auto(id) => "auto".to_owned(),
            _ if self.expected(id).is_some() => "predicted".to_owned(),
            _ if matches!(self.changes.get(id), Some(Some(_))) => "api".to_owned(),
            Some(found) if !self.explicit.contains_key(id) => format!("found by {}", found.by),
            _ => "config".to_owned(),
        };
        self.all.keys().map(|id| (id.clone(), origin(id))).collect()
    }

    /// Why VMs that were found are left out.
    pub(super) fn left_out(&self) -> impl Iterator<Item = Alarm> {
        self.left_out.iter().map(|(id, why)| {
            let message = format!("VM {id} is left out and may run on any core: {why}");
            Alarm::about(AlarmId::VmLeftOut, id, message)
        })
    }

    /// The CPUs that a VM may use: all of its cores', or as many as it has where it floats.
    pub(super) fn cpus(&self, vm: &ControlledVm) -> CpuList {
        if self.floats() {
            return vm.cores.iter().map(|cpu| u32::from(cpu.0)).collect();
        }
        if self.given {
            // What shares its CPUs may use as many as it is meant to, of whichever.
            let own = self.given_cpus(&vm.id).filter(|cpus| !cpus.is_empty()).cloned();
            let cores = self.all.get(&vm.id).map_or(0, |spec| u32::from(spec.cores));
            return own.unwrap_or_else(|| (0..cores).collect());
        }
        self.cpus_of(&vm.cores)
    }

    /// The CPUs of these cores that are online.
    pub(super) fn cpus_of(&self, cores: &[CoreId]) -> CpuList {
        cores.iter().filter_map(|core| self.online.get(core)).flat_map(CpuList::iter).collect()
    }

    /// The cores that have one of these CPUs; all where `cpus` are not known.
    pub(super) fn cores_with(&self, cpus: Option<&CpuList>) -> Vec<CoreId> {
        let has =
            |(_, own): &(&CoreId, &CpuList)| cpus.is_none_or(|cpus| own.iter().any(|cpu| cpus.contains(cpu)));
        self.online.iter().filter(has).map(|(core, _)| *core).collect()
    }

    /// Whether VMs run on any CPU, and their bandwidth is limited.
    fn floats(&self) -> bool {
        matches!(self.layout, Layout::Floating)
    }

    /// Whether VMs that are not pinned share cores.
    pub(super) fn has_pools(&self) -> bool {
        matches!(self.layout, Layout::Pools(_))
    }

    /// The slices of the pools, if these are what is bound, each with its CPUs.
    pub(super) fn slices(&self) -> Option<(&Slices, [(VmClass, CpuList); 2])> {
        let Layout::Pools(PoolsConfig { pools, slices: Some(slices) }) = &self.layout else { return None };
        let vms: Vec<_> = self.classed().into_iter().collect();
        let (_, cores) = pools.groups(&self.shared_places(), &vms).ok()?;
        Some((slices, VmClass::ALL.map(|class| (class, self.cpus_of(cores.of(class))))))
    }

    /// The cores that VMs are given now: in pools those that are online, since whoever is in a pool shares the rest.
    fn shared_places(&self) -> Vec<PhysicalCore> {
        let cpus = |place: &PhysicalCore| self.online.get(&place.core).map_or(0, |cpus| cpus.len() as u16);
        let now = |place: &PhysicalCore| PhysicalCore { cpus: cpus(place), ..*place };
        if self.has_pools() { self.places.iter().map(now).collect() } else { self.places.clone() }
    }

    /// Whether this group is what is bound: a VM's own, or the slice of a pool.
    pub(super) fn binds(&self, path: &str) -> bool {
        let is_one = |slices: &Slices| VmClass::ALL.iter().any(|class| slices.of(*class) == path);
        self.uses(path) || self.layout.slices().is_some_and(is_one)
    }

    /// The class of the pool's slice that this group is in.
    pub(super) fn slice_class(&self, path: &str) -> Option<VmClass> {
        self.layout.slices()?.class(path)
    }

    /// Lets the pools follow their VMs. Says whether a core has moved from one to the other.
    pub(super) fn advance(&mut self, now: Instant) -> bool {
        if !self.has_pools() {
            return false;
        }
        let (vms, places): (Vec<_>, _) = (self.classed().into_iter().collect(), self.shared_places());
        let Layout::Pools(PoolsConfig { pools, .. }) = &mut self.layout else { return false };
        pools.advance(now, &places, &vms)
    }

    /// CPUs went or came. What was left out for want of CPUs may fit now.
    pub(super) fn hotplug(&mut self, domains: &[Domain]) -> Vec<String> {
        let mut more = false;
        for place in &mut self.places {
            let now = domains
                .iter()
                .find(|domain| domain.id == place.core)
                .filter(|it| it.cpus.len() > place.cpus.into());
            if let Some(domain) = now {
                (place.cpus, place.node) = (domain.cpus.len() as u16, domain.node);
                more = true;
            }
        }
        let left = if more { self.refit() } else { vec![] };
        let online = domains.iter().filter(|domain| !domain.cpus.is_empty());
        self.online = online.map(|domain| (domain.id, domain.cpus.clone())).collect();
        left
    }

    /// Cores for every VM. A core that is offline is nobody's until it is back.
    pub(super) fn groups(&self) -> Vec<ControlledVm> {
        let all = self.classed();
        if self.given && !self.floats() {
            let cpus = |id: &VmId| Some((id.clone(), self.given_cpus(id)?.clone()));
            return given::set(&self.online, &all, &all.keys().filter_map(cpus).collect());
        }
        let fitted = |places: &[PhysicalCore], all| self.layout.groups(places, all);
        // Whatever is in the set was checked to fit, on the cores with all their CPUs.
        let set = fitted(&self.shared_places(), &all).or_else(|_| fitted(&self.places, &all));
        let mut set = set.or_else(|_| fitted(&self.places, &self.all)).unwrap_or_default();
        if !self.floats() {
            for vm in &mut set {
                vm.cores.retain(|core| self.online.contains_key(core));
            }
        }
        set
    }

    /// Every VM with the class that counts.
    fn classed(&self) -> BTreeMap<VmId, VmSpec> {
        let mut all = self.all.clone();
        for (id, spec) in &mut all {
            if let Some(expected) = self.expected(id) {
                spec.class = Some(expected.class);
                if spec.throttle_order == 0 {
                    spec.throttle_order = expected.throttle_order;
                }
            }
            if self.is_auto(id) {
                spec.class = Some(VmClass::NonUserFacing);
            }
            // The kernel keeps it there, whoever says what.
            spec.class = spec.cgroup.as_deref().and_then(|path| self.slice_class(path)).or(spec.class);
            if spec.class() == VmClass::UserFacing {
                spec.on_extreme = OnExtreme::None;
            }
        }
        all
    }

    fn given_cpus(&self, vm: &VmId) -> Option<&CpuList> {
        self.discovered.iter().find(|it| it.id == *vm)?.cpus.as_ref()
    }

    /// Whether a VM's own use makes it batch: only while nobody has told its class.
    fn is_auto(&self, vm: &VmId) -> bool {
        self.auto.contains_key(vm) && self.all.get(vm).is_some_and(|spec| spec.class.is_none())
    }

    /// What is predicted of a VM, where that counts: nobody has told its class, and there is what could be limited.
    fn expected(&self, vm: &VmId) -> Option<&VmPrediction> {
        let spec = self.all.get(vm)?;
        let counts = spec.class.is_none() && (spec.cgroup.is_some() || !self.floats());
        self.predicted.vms().get(vm).filter(|_| counts)
    }

    /// Those that are batch by their own use, and in which instance.
    pub(super) fn auto(&self) -> &BTreeMap<VmId, VmStart> {
        &self.auto
    }

    /// Forgets that a VM was batch by its own use: it has been started anew.
    pub(super) fn forget_auto(&mut self, vm: &VmId) {
        self.auto.remove(vm);
    }

    /// Takes which VMs are batch by their own use. It is on disk first. Fails when it cannot be written: then
    /// nobody becomes batch, but who is it no more is it no more.
    pub(super) fn take_auto(&mut self, auto: BTreeMap<VmId, VmStart>) -> io::Result<()> {
        let Some(path) = self.auto_path.as_deref().filter(|_| auto != self.auto) else {
            return Ok(());
        };
        let written = state::write(path, &auto);
        match written {
            Ok(()) => self.auto = auto,
            Err(_) => self.auto.retain(|vm, start| auto.get(vm) == Some(start)),
        }
        written
    }

    /// Adds, replaces or (`None`) removes one VM; gives the cgroups that are no VM's any more. Fails when the
    /// VM is unknown or asks for too much; then nothing has changed.
    pub(super) fn change(&mut self, id: VmId, spec: Option<VmSpec>) -> Result<Vec<String>, VmsError> {
        let refused = |why: String| Err(VmsError::Refused(why));
        if let Some(spec) = &spec {
            if let Err(why) = spec.check() {
                return refused(why.into());
            }
            if let Some(why) = has_nothing_to_limit(spec).filter(|_| self.floats()) {
                return refused(why.into());
            }
        }

        let mut explicit = self.explicit.clone();

        match &spec {
            Some(spec) => drop(explicit.insert(id.clone(), spec.clone())),
            None if explicit.remove(&id).is_some() => {}
            None if self.all.contains_key(&id) => {
                return refused(format!("VM {id} was found by its cgroup, and leaves with it"));
            }
            None => return Err(VmsError::Unknown(id)),
        }

        if let Some(why) = self.refusal(&explicit) {
            return refused(why);
        }
        let mut changes = self.changes.clone();

        if spec.is_none() && !self.configured.contains(&id) {
            changes.remove(&id);
        } else {
            changes.insert(id, spec);
        }

        state::write(&self.changes_path, &changes).map_err(VmsError::Io)?;
        (self.changes, self.explicit) = (changes, explicit);

        Ok(self.refit())
    }

    /// Takes what was found now; gives the cgroups that are no VM's any more, or `None` if nothing changed.
    pub(super) fn find(&mut self, found: Vec<DiscoveredVm>) -> Option<Vec<String>> {
        (found != self.discovered).then(|| self.refit_with(found))
    }

    /// The same, whether it is new or not.
    pub(super) fn refit_with(&mut self, found: Vec<DiscoveredVm>) -> Vec<String> {
        self.discovered = found;
        self.refit()
    }

    /// Puts what was found beside what was asked for, which comes first. A VM that was asked for without a
    /// cgroup has that of the one that was found by its name.
    fn refit(&mut self) -> Vec<String> {
        let (mut all, mut left_out) = self.fit(&self.explicit);
        for DiscoveredVm { id, spec, .. } in &self.discovered {
            let spec = match all.get(id) {
                Some(asked) if asked.cgroup.is_some() => continue,
                Some(asked) => {
                    let class = asked.class.or(spec.class);
                    let tenant = asked.tenant.clone().or_else(|| spec.tenant.clone());
                    VmSpec { cgroup: spec.cgroup.clone(), class, tenant, ..asked.clone() }
                }
                // It was asked for, and does not fit as it was asked for.
                None if left_out.contains_key(id) => continue,
                None => spec.clone(),
            };

            let path = spec.cgroup.as_deref();
            if self.explicit.values().any(|it| it.cgroup.as_deref() == path) {
                // The same VM, by another name.
                continue;
            }
            self.add(&mut all, &mut left_out, id, spec);
        }

        for (id, why) in &left_out {
            if self.left_out.get(id) != Some(why) {
                tracing::warn!(vm = %id, why, "the VM is left out and may run on any core");
            }
        }

        self.left_out = left_out;
        let before = std::mem::replace(&mut self.all, all);
        before.into_values().filter_map(|spec| spec.cgroup).filter(|path| !self.uses(path)).collect()
    }
}

/// The config's VMs with what the API has changed.
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

    for (id, spec) in &mut specs {
        // Written down by a version that allowed it.
        if let Err(why) = spec.check() {
            tracing::warn!(
                vm = %id,
                cgroup = spec.cgroup.as_deref(),
                why,
                "the VM is never killed: its settings do not allow it"
            );
            spec.on_extreme = OnExtreme::None;
        }
    }
    specs
}

impl Layout {
    /// What is bound instead of every VM, if anything is.
    fn slices(&self) -> Option<&Slices> {
        match self {
            Self::Pools(pools) => pools.slices.as_ref(),
            Self::Own | Self::Floating => None,
        }
    }

    /// Cores for every VM; no two of them in one cgroup, or one inside the other's: moving one would move both.
    fn groups(
        &self,
        places: &[PhysicalCore],
        specs: &BTreeMap<VmId, VmSpec>,
    ) -> anyhow::Result<Vec<ControlledVm>> {
        refuse_nested(specs)?;
        let all = || -> Vec<_> { specs.iter().map(|(id, spec)| (id.clone(), spec.clone())).collect() };
        Ok(match self {
            Self::Own => core_groups(places, &all())?,
            Self::Floating => floating::set(places.iter().map(|place| place.cpus).sum(), specs)?,
            Self::Pools(config) => {
                if let Some(why) = config.contradiction(specs) {
                    bail!(why);
                }
                config.pools.groups(places, &all())?.0
            }
        })
    }
}

fn refuse_nested(specs: &BTreeMap<VmId, VmSpec>) -> anyhow::Result<()> {
    let parts = |path: &str| -> Vec<String> { path.split('/').map(str::to_owned).collect() };
    let mut cgroups: Vec<_> =
        specs.iter().filter_map(|(id, spec)| Some((parts(spec.cgroup.as_deref()?), id.clone()))).collect();
    // In this order what is inside a group follows it.
    cgroups.sort();
    if let Some([(_, other), (path, id)]) = cgroups.windows(2).find(|pair| pair[1].0.starts_with(&pair[0].0))
    {
        let path = path.join("/");
        bail!("VM {id}: cgroup = {path:?}: a cgroup of its own, not shared with VM {other}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four cores with two threads each, two on every node: 0,4 1,5 | 2,6 3,7.
    fn domains(offline: &[u32]) -> Vec<Domain> {
        let domain = |n: u32| Domain {
            id: CoreId(n as u16),
            cpus: [n, n + 4].into_iter().filter(|cpu| !offline.contains(cpu)).collect(),
            node: (n / 2) as u16,
            package: (n / 2) as u16,
        };
        (0..4).map(domain).collect()
    }
    fn spec(class: VmClass, cores: u16) -> VmSpec {
        let (class, on_extreme) = (Some(class), OnExtreme::None);
        VmSpec { class, throttle_order: 0, cores, cgroup: None, on_extreme, tenant: None, pinned: false }
    }
    fn specs(dir: &tempfile::TempDir, vms: &[(&str, VmSpec)], floating: bool) -> anyhow::Result<Specs> {
        let vms = vms.iter().map(|(id, spec)| (VmId::new(id).unwrap(), spec.clone())).collect();
        let layout = if floating { Layout::Floating } else { Layout::Own };
        Specs::read(vms, dir.path().join("vms.json"), None, &domains(&[]), layout)
    }
    fn shown(specs: &Specs) -> Vec<(String, String)> {
        specs.groups().iter().map(|vm| (vm.id.to_string(), specs.cpus(vm).to_string())).collect()
    }
    fn want(vms: &[(&str, &str)]) -> Vec<(String, String)> {
        vms.iter().map(|(id, cpus)| ((*id).to_owned(), (*cpus).to_owned())).collect()
    }
    use VmClass::{NonUserFacing as Nuf, UserFacing as Uf};

    #[test]
    fn a_vm_gets_both_threads_of_its_cores_and_keeps_its_cores_over_hotplug() {
        let dir = tempfile::tempdir().unwrap();
        let mut specs = specs(&dir, &[("web", spec(Uf, 2)), ("batch", spec(Nuf, 3))], false).unwrap();
        assert_eq!(shown(&specs), want(&[("web", "1,5"), ("batch", "2-3,6-7")]));
        specs.hotplug(&domains(&[6]));
        assert_eq!(shown(&specs), want(&[("web", "1,5"), ("batch", "2-3,7")]));
        specs.hotplug(&domains(&[2, 6, 3]));
        assert_eq!(shown(&specs), want(&[("web", "1,5"), ("batch", "7")]));
        assert_eq!(specs.groups()[1].cores, [CoreId(3)], "an offline core is nobody's");
        specs.hotplug(&domains(&[]));
        assert_eq!(shown(&specs), want(&[("web", "1,5"), ("batch", "2-3,6-7")]));
    }

    #[test]
    fn what_does_not_fit_at_the_start_is_left_out_and_taken_when_its_cpus_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let vms = [("a-batch", spec(Nuf, 4)), ("b-batch", spec(Nuf, 2)), ("web", spec(Uf, 4))];
        let vms = vms.map(|(id, spec)| (VmId::new(id).unwrap(), spec));
        let config: BTreeMap<_, _> = vms.into_iter().collect();
        let path = dir.path().join("vms.json");
        // SMT is off: one thread on each of four cores.
        let smt_off = domains(&[4, 5, 6, 7]);
        let mut specs = Specs::read(config.clone(), path, None, &smt_off, Layout::Own).unwrap();
        assert_eq!(shown(&specs), want(&[("web", "0-3")]));
        let left_out = |specs: &Specs| specs.left_out().map(|it| it.subject.unwrap()).collect::<Vec<_>>();
        assert_eq!(left_out(&specs), ["a-batch", "b-batch"]);

        // What is left out already stands in nobody's way; who would be left out is refused.
        let (batch, web) = (VmId::new("a-batch").unwrap(), VmId::new("web").unwrap());
        assert!(specs.change(VmId::new("new").unwrap(), Some(spec(Nuf, 1))).is_err());
        let mut smaller = config.clone();
        smaller.get_mut(&web).unwrap().cores = 2;
        specs.reload(smaller.clone()).unwrap();
        specs.refit_with(vec![]);
        assert_eq!(left_out(&specs), ["a-batch"]);
        assert!(specs.reload(config).is_err(), "b-batch has its cores now");
        specs.change(batch, None).unwrap();
        assert!(left_out(&specs).is_empty());

        specs.hotplug(&domains(&[]));
        assert_eq!(shown(&specs).len(), 2);
    }

    #[test]
    fn cpus_that_come_for_the_first_time_are_given_out_as_well() {
        let dir = tempfile::tempdir().unwrap();
        let vms = [("web", spec(Uf, 2)), ("batch", spec(Nuf, 4))];
        let vms = vms.map(|(id, spec)| (VmId::new(id).unwrap(), spec));

        // Node 1 is offline at start.
        let start = domains(&[2, 3, 6, 7]);
        let mut specs = Specs::read(
            vms[..1].iter().cloned().collect(),
            dir.path().join("vms.json"),
            None,
            &start,
            Layout::Own,
        )
        .unwrap();
        let (id, mut spec) = vms[1].clone();
        spec.cgroup = Some("batch.slice/b.scope".into());
        let found = DiscoveredVm { id, spec, by: "*".into(), cpus: None };
        specs.find(vec![found]);
        assert_eq!(shown(&specs), want(&[("web", "1,5")]));
        assert!(specs.left_out().any(|it| it.message.contains("batch")));
        specs.hotplug(&domains(&[]));
        assert_eq!(shown(&specs), want(&[("web", "1,5"), ("batch", "2-3,6-7")]));
        assert_eq!(specs.left_out().count(), 0);
        specs.hotplug(&start);
        assert_eq!(shown(&specs), want(&[("web", "1,5"), ("batch", "")]));
    }

    #[test]
    fn what_floats_counts_cpus_and_not_cores() {
        let dir = tempfile::tempdir().unwrap();
        let set = |cores| specs(&dir, &[("batch", spec(Nuf, cores))], true).unwrap();
        assert_eq!(set(8).groups()[0].cores.len(), 8);
        let left_out = set(9).left_out().next().unwrap().message;
        assert!(left_out.contains("at most the server's 8"), "{left_out}");
    }
}
