//! The set of VMs: what config and API ask for, on disk, and whether it can be.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use ballast_agent_core::{Place, Vm, core_groups};
use ballast_hw::{Cgroup, CpuList, Domain};
use ballast_types::wire::VmSpec;
use ballast_types::{CoreId, OnExtreme, VmId};
use thiserror::Error;

use super::floating;
use crate::config::has_nothing_to_limit;
use crate::state;

/// Why a change of the VM set was refused.
#[derive(Debug, Error)]
pub(in crate::agent) enum VmsError {
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

/// Every VM as it was asked for.
pub(super) struct Specs {
    all: BTreeMap<VmId, VmSpec>,
    configured: BTreeSet<VmId>,
    /// What the API added (`Some`) or removed (`None`) since the config file was written.
    changes: BTreeMap<VmId, Option<VmSpec>>,
    changes_path: PathBuf,
    /// Every core as it was at start: who gets which does not change when CPUs go and come.
    places: Vec<Place>,
    /// The CPUs of every core that are online now.
    online: BTreeMap<CoreId, CpuList>,
    floating: bool,
}

impl Specs {
    /// The VMs of config and of earlier calls of the API.
    ///
    /// # Errors
    /// When the changes on disk cannot be read.
    pub(super) fn read(
        config: BTreeMap<VmId, VmSpec>,
        changes_path: PathBuf,
        domains: &[Domain],
        floating: bool,
    ) -> io::Result<Self> {
        let changes: BTreeMap<VmId, Option<VmSpec>> =
            state::read(&changes_path)?.unwrap_or_default();
        let configured = config.keys().cloned().collect();
        let mut all = merged(config, &changes);
        for (id, spec) in &mut all {
            // Written down by a version that allowed it.
            if let Err(why) = spec.check() {
                tracing::warn!(vm = %id, cgroup = ?spec.cgroup, why, "not killed, whatever happens");
                spec.on_extreme = OnExtreme::None;
            }
        }
        let place = |domain: &Domain| Place {
            core: domain.id,
            cpus: domain.cpus.len() as u16,
            node: domain.node,
        };
        let places = domains.iter().map(place).collect();
        let online = BTreeMap::new();
        let mut specs = Self { all, configured, changes, changes_path, places, online, floating };
        specs.hotplug(domains);
        Ok(specs)
    }

    /// Every VM.
    pub(super) fn all(&self) -> &BTreeMap<VmId, VmSpec> {
        &self.all
    }

    /// Where one VM runs.
    pub(super) fn cgroup(&self, vm: &VmId) -> Option<String> {
        self.all.get(vm)?.cgroup.clone()
    }

    /// The CPUs that a VM may use: all of its cores', or as many as it has where it floats.
    pub(super) fn cpus(&self, vm: &Vm) -> CpuList {
        if self.floating {
            return vm.cores.iter().map(|cpu| u32::from(cpu.0)).collect();
        }
        vm.cores.iter().filter_map(|core| self.online.get(core)).flat_map(CpuList::iter).collect()
    }

    /// CPUs went or came.
    pub(super) fn hotplug(&mut self, domains: &[Domain]) {
        let online = domains.iter().filter(|domain| !domain.cpus.is_empty());
        self.online = online.map(|domain| (domain.id, domain.cpus.clone())).collect();
    }

    /// Cores for every VM.
    ///
    /// # Errors
    /// When they need more than there are.
    pub(super) fn groups(&self) -> anyhow::Result<Vec<Vm>> {
        let from =
            || format!("the config's VMs with the changes of {}", self.changes_path.display());
        self.groups_of(&self.all).with_context(from)
    }

    /// Adds, replaces or (`None`) removes one VM; gives the whole new set.
    ///
    /// # Errors
    /// When the VM is unknown or asks for too much; then nothing has changed.
    pub(super) fn change(&mut self, id: VmId, spec: Option<VmSpec>) -> Result<Vec<Vm>, VmsError> {
        let refused = |why: String| Err(VmsError::Refused(why));
        if let Some(spec) = &spec {
            if let Some(path) = spec.cgroup.as_deref().filter(|path| !Cgroup::is_path(path)) {
                return refused(format!("cgroup = {path:?}: {}", Cgroup::PATHS));
            }
            if let Err(why) = spec.check() {
                return refused(why.into());
            }
            if let Some(why) = has_nothing_to_limit(spec).filter(|_| self.floating) {
                return refused(why.into());
            }
        }
        let mut all = self.all.clone();
        match &spec {
            Some(spec) => drop(all.insert(id.clone(), spec.clone())),
            None if all.remove(&id).is_none() => return Err(VmsError::Unknown(id)),
            None => {}
        }
        let set = self.groups_of(&all).map_err(|error| VmsError::Refused(error.to_string()))?;
        let mut changes = self.changes.clone();
        if spec.is_none() && !self.configured.contains(&id) {
            changes.remove(&id);
        } else {
            changes.insert(id, spec);
        }
        state::write(&self.changes_path, &changes).map_err(VmsError::Io)?;
        (self.changes, self.all) = (changes, all);
        Ok(set)
    }

    /// Cores for these VMs. A core that is offline is nobody's until it is back.
    fn groups_of(&self, specs: &BTreeMap<VmId, VmSpec>) -> anyhow::Result<Vec<Vm>> {
        let mut set = groups(&self.places, specs, self.floating)?;
        if !self.floating {
            for vm in &mut set {
                vm.cores.retain(|core| self.online.contains_key(core));
            }
        }
        Ok(set)
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
    places: &[Place],
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
        return floating::set(places.iter().map(|place| place.cpus).sum(), specs);
    }
    let specs: Vec<_> = specs.iter().map(|(id, spec)| (id.clone(), spec.clone())).collect();
    Ok(core_groups(places, &specs)?)
}
