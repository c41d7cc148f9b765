//! VMs whose CPUs somebody else gives out: the pods of a Kubernetes node. None is bound, and no core is slowed that
//! anybody but a non-user-facing VM may run on.

use std::collections::{BTreeMap, BTreeSet};

use ballast_agent_core::ControlledVm;
use ballast_hw::{Cgroup, CpuList, HwError, Operation};
use ballast_types::wire::VmSpec;
use ballast_types::{CoreId, VmClass, VmId};

use super::Vms;
use super::discovery::DiscoveredVm;
use crate::pods::PodVm;

/// Every VM with the cores that are wholly its class's: all of a core's online CPUs are exclusive, and those of a
/// core that a non-user-facing VM gets are exclusive to such VMs. A core with one CPU that others share is nobody's.
pub(super) fn set(
    online: &BTreeMap<CoreId, CpuList>,
    specs: &BTreeMap<VmId, VmSpec>,
    given: &BTreeMap<VmId, CpuList>,
) -> Vec<ControlledVm> {
    let exclusive = |only_low: bool| -> BTreeSet<u32> {
        let counts = |id: &&VmId| {
            let class = specs.get(*id).map(VmSpec::class);
            class.is_some_and(|class| !only_low || class == VmClass::NonUserFacing)
        };
        given.iter().filter(|(id, _)| counts(id)).flat_map(|(_, cpus)| cpus.iter()).collect()
    };
    let (low, all) = (exclusive(true), exclusive(false));

    let vm = |(id, spec): (&VmId, &VmSpec)| {
        let (class, own) = (spec.class(), given.get(id).cloned().unwrap_or_default());
        let of_class = if class == VmClass::NonUserFacing { &low } else { &all };
        let is_its = |cpus: &CpuList| {
            cpus.iter().any(|cpu| own.contains(cpu)) && cpus.iter().all(|cpu| of_class.contains(&cpu))
        };
        let cores = online.iter().filter(|(_, cpus)| is_its(cpus)).map(|(core, _)| *core).collect();
        let (throttle_order, on_extreme) = (spec.throttle_order, spec.on_extreme);
        ControlledVm { id: id.clone(), class, throttle_order, cores, vcpus: None, on_extreme }
    };
    let mut set: Vec<_> = specs.iter().map(vm).collect();
    set.sort_by(|a, b| (a.class, &a.id).cmp(&(b.class, &b.id)));
    set
}

impl From<PodVm> for DiscoveredVm {
    fn from(PodVm { id, spec, cpus, by }: PodVm) -> Self {
        Self { id, spec, by, cpus: Some(cpus) }
    }
}

impl Vms {
    /// Every VM that is there now: this node's pods, or what the patterns find.
    pub(super) fn found(&mut self) -> Vec<DiscoveredVm> {
        match &mut self.pods {
            Some(pods) => pods.look().into_iter().map(DiscoveredVm::from).collect(),
            None => self.discovery.look(&self.root, &self.originals),
        }
    }

    /// The group of a pod, of which only the use is read.
    pub(super) fn watch(&self, path: &str) -> Result<Cgroup, HwError> {
        Cgroup::of_vm_or_pod(&self.root, path)
    }

    /// Refuses a pod whose bandwidth somebody else has limited: the kubelet, whatever its file says.
    pub(super) fn refuse_limited(&self, path: &str, group: &Cgroup) -> Result<(), HwError> {
        let Some(quotas) = self.floating.as_ref().filter(|_| self.pods.is_some()) else { return Ok(()) };
        let limit = group.cpu_max()?;
        let is_ours = quotas.with(|bandwidth| bandwidth.originals()).contains_key(path);
        if limit.millicores().is_some() && !is_ours {
            let file = self.root.path("sys/fs/cgroup").join(path).join("cpu.max");
            let allowed = "max: the kubelet, or somebody else, limits this pod itself";
            return Err(HwError::value(&file, Operation::Read, limit, allowed));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ballast_types::OnExtreme;

    use super::*;

    #[test]
    fn nothing_but_pods_is_there_and_none_is_wider_than_the_server() {
        use crate::vms::specs::{Layout, Specs};
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("vms.json");
        std::fs::write(&file, r#"{"api":{"class":"non-user-facing","cores":1,"cgroup":null}}"#).unwrap();
        let domains = [0, 1].map(|id| CoreId(id).into());
        for floating in [false, true] {
            let layout = if floating { Layout::Floating } else { Layout::Own };
            let mut specs = Specs::read(BTreeMap::new(), file.clone(), None, &domains, layout).unwrap();
            specs.only_given();
            let spec = VmSpec {
                class: Some(VmClass::NonUserFacing),
                throttle_order: 0,
                cores: 900,
                cgroup: Some("kubepods/podu".into()),
                on_extreme: OnExtreme::None,
                tenant: None,
                pinned: false,
            };
            let id = VmId::new("n:p").unwrap();
            let cpus = "1".parse().unwrap();
            specs.find(vec![PodVm { id, spec, cpus, by: String::new() }.into()]);
            specs.reload(BTreeMap::new()).unwrap();
            let set = specs.groups();
            let cores: Vec<_> = set.iter().map(|vm| (vm.id.as_str(), vm.cores.len())).collect();
            assert_eq!(cores, [("n:p", if floating { 2 } else { 1 })]);
            assert_eq!(specs.all().len(), 1, "what the API has changed is left out");
        }
    }

    #[test]
    fn a_core_is_low_only_if_all_its_cpus_are_low_pods_own() {
        // Four cores of two threads each: 0,4 1,5 2,6 3,7; of the last, thread 7 is offline.
        let online = [(0, "0,4"), (1, "1,5"), (2, "2,6"), (3, "3")];
        let online = online.map(|(core, cpus)| (CoreId(core), cpus.parse().unwrap())).into();
        let vm = |id: &str, class| {
            let (cgroup, tenant) = (Some(format!("kubepods/pod{id}")), None);
            let on_extreme = OnExtreme::None;
            let spec = VmSpec {
                class: Some(class),
                throttle_order: 0,
                cores: 1,
                cgroup,
                on_extreme,
                tenant,
                pinned: false,
            };
            (VmId::new(id).unwrap(), spec)
        };
        use VmClass::{NonUserFacing as Nuf, UserFacing as Uf};
        let specs = BTreeMap::from([vm("a", Nuf), vm("b", Nuf), vm("shared", Nuf), vm("web", Uf)]);
        let shown = |given: &[(&str, &str)]| -> Vec<String> {
            let given =
                given.iter().map(|(id, cpus)| (VmId::new(id).unwrap(), cpus.parse().unwrap())).collect();
            let cores = |vm: &ControlledVm| {
                vm.cores.iter().map(|core| core.0.to_string()).collect::<Vec<_>>().join(",")
            };
            let set = set(&online, &specs, &given);
            set.iter()
                .filter(|vm| !vm.cores.is_empty())
                .map(|vm| format!("{} {}", vm.id, cores(vm)))
                .collect()
        };
        for (given, expected) in [
            (&[("a", "1,5")][..], &["a 1"][..]),
            // The sibling is in the shared pool.
            (&[("a", "1,2,6")], &["a 2"]),
            // Two low pods share a core: it is both's.
            (&[("a", "1"), ("b", "5")], &["a 1", "b 1"]),
            // A user-facing pod has the sibling: the core is its alone.
            (&[("a", "1,2"), ("web", "5,6")], &["web 1,2"]),
            // An offline sibling stands in nobody's way.
            (&[("a", "3")], &["a 3"]),
            (&[], &[]),
        ] {
            assert_eq!(shown(given), expected, "{given:?}");
        }
    }
}
