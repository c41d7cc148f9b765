//! Which cores belong to which VM.

use core::cmp::Reverse;
use std::collections::VecDeque;

use ballast_types::wire::VmSpec;
use ballast_types::{CoreId, VmClass, VmId};

use crate::ControlledVm;

/// Why the VMs do not fit on the cores.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("VM {vm}: cores = {requested}: at most the {left} that are left")]
pub struct GroupError {
    /// The first VM that does not get its cores.
    pub vm: VmId,
    /// How many CPUs it wants.
    pub requested: u16,
    /// How many CPUs the cores have that are left for it.
    pub left: usize,
}

/// One physical core (a clock domain), as placement sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhysicalCore {
    pub core: CoreId,
    /// How many CPUs (threads) it has; none where it is offline, and then no VM gets it.
    pub cpus: u16,
    pub node: u16,
}

impl From<CoreId> for PhysicalCore {
    /// A core with one thread, on node 0.
    fn from(core: CoreId) -> Self {
        Self { core, cpus: 1, node: 0 }
    }
}

/// The free cores of one NUMA node, ascending.
type Node = VecDeque<PhysicalCore>;

/// Gives every VM whole cores of its own, with at least as many CPUs as it has.
///
/// User-facing VMs get cores from the lowest node and core upward, non-user-facing ones from the highest
/// downward, so that the two classes share a socket as late as possible; in each class the largest VM first,
/// then in order of id. A VM stays on one NUMA node where one has room for all of it. The lowest core is kept
/// for the host while the VMs fit without it. The result is in order of class, then id. The error names the
/// first VM for which too few cores are left.
pub fn core_groups(places: &[PhysicalCore], vms: &[(VmId, VmSpec)]) -> Result<Vec<ControlledVm>, GroupError> {
    let pool = usable(places);
    let mut order: Vec<&(VmId, VmSpec)> = vms.iter().collect();
    order.sort_by_key(|(id, spec)| (spec.class(), Reverse(spec.cores), id));
    let mut groups = match pool.get(1..).map(|spared| groups(spared, &order)) {
        Some(Ok(groups)) => groups,
        _ => groups(&pool, &order)?,
    };
    groups.sort_by(|a, b| (a.class, &a.id).cmp(&(b.class, &b.id)));
    Ok(groups)
}

/// The cores that have a CPU, each once, in order of node and id.
pub(crate) fn usable(places: &[PhysicalCore]) -> Vec<PhysicalCore> {
    let mut pool = places.to_vec();
    pool.sort_unstable_by_key(|place| (place.node, place.core));
    pool.dedup_by_key(|place| place.core);
    pool.retain(|place| place.cpus > 0);
    pool
}

/// Places VMs in this order on a pool that is in order of node and core.
fn groups(pool: &[PhysicalCore], vms: &[&(VmId, VmSpec)]) -> Result<Vec<ControlledVm>, GroupError> {
    let mut nodes: Vec<Node> =
        pool.chunk_by(|a, b| a.node == b.node).map(|node| node.to_vec().into()).collect();
    let place = |(id, spec): &&(VmId, VmSpec)| {
        let left = nodes.iter().map(room).sum();
        let mut cores = take(&mut nodes, spec.class(), spec.cores.into()).ok_or_else(|| GroupError {
            vm: id.clone(),
            requested: spec.cores,
            left,
        })?;
        cores.sort_unstable();
        let (class, throttle_order) = (spec.class(), spec.throttle_order);
        let on_extreme = spec.on_extreme;
        Ok(ControlledVm { id: id.clone(), class, throttle_order, cores, vcpus: None, on_extreme })
    };
    vms.iter().map(place).collect()
}

fn room(node: &Node) -> usize {
    node.iter().map(|place| usize::from(place.cpus)).sum()
}

/// Takes whole cores with at least `cpus` CPUs from the class's end; `None` if there are too few.
fn take(nodes: &mut [Node], class: VmClass, cpus: usize) -> Option<Vec<CoreId>> {
    let mut from: Vec<&mut Node> = nodes.iter_mut().collect();
    if class == VmClass::NonUserFacing {
        from.reverse();
    }
    if let Some(one) = from.iter().position(|node| room(node) >= cpus) {
        from = vec![from.swap_remove(one)];
    }
    let (mut cores, mut got) = (Vec::new(), 0);

    for node in from {
        while got < cpus {
            let next = match class {
                VmClass::UserFacing => node.pop_front(),
                VmClass::NonUserFacing => node.pop_back(),
            };

            let Some(next) = next else { break };
            cores.push(next.core);
            got += usize::from(next.cpus);
        }
    }

    (got >= cpus).then_some(cores)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_types::OnExtreme;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn cores(n: u16) -> Vec<PhysicalCore> {
        (0..n).map(|id| CoreId(id).into()).collect()
    }
    /// Nodes of so many cores with two threads each.
    fn smt(nodes: &[u16]) -> Vec<PhysicalCore> {
        let node = |(node, count): (usize, &u16)| vec![node as u16; usize::from(*count)];
        let nodes = nodes.iter().enumerate().flat_map(node).enumerate();
        nodes.map(|(id, node)| PhysicalCore { core: CoreId(id as u16), cpus: 2, node }).collect()
    }
    fn vm(id: &str, class: VmClass, cores: u16) -> (VmId, VmSpec) {
        let (class, on_extreme) = (Some(class), OnExtreme::None);
        let spec =
            VmSpec { class, throttle_order: 3, cores, cgroup: None, on_extreme, tenant: None, pinned: false };
        (VmId::new(id).unwrap(), spec)
    }
    fn ids(vm: &ControlledVm) -> Vec<u16> {
        vm.cores.iter().map(|c| c.0).collect()
    }
    fn shown(groups: &[ControlledVm]) -> Vec<(&str, Vec<u16>)> {
        groups.iter().map(|vm| (vm.id.as_str(), ids(vm))).collect()
    }
    use VmClass::{NonUserFacing as Nuf, UserFacing as Uf};

    #[test]
    fn nobody_gets_a_core_without_a_cpu() {
        let mut places = cores(6);
        for offline in [0, 5] {
            places[offline].cpus = 0;
        }
        let vms = [vm("web", Uf, 1), vm("batch", Nuf, 2)];
        let groups = core_groups(&places, &vms).unwrap();
        assert_eq!(shown(&groups), [("web", vec![2]), ("batch", vec![3, 4])]);
        assert_eq!(core_groups(&places, &[vm("big", Uf, 5)]).unwrap_err().left, 4);
    }

    #[test]
    fn classes_grow_towards_each_other_and_the_host_keeps_the_lowest_core() {
        let vms = [vm("z", Nuf, 2), vm("b", Uf, 2), vm("a", Uf, 1), vm("c", Nuf, 1)];
        let groups = core_groups(&cores(8), &vms).unwrap();
        let want = [("a", vec![3]), ("b", vec![1, 2]), ("c", vec![5]), ("z", vec![6, 7])];
        assert_eq!(shown(&groups), want);
        assert_eq!(groups[2].throttle_order, 3);
    }

    #[test]
    fn the_host_gives_its_core_up_when_none_is_spare() {
        let groups = core_groups(&cores(3), &[vm("a", Uf, 2), vm("b", Nuf, 1)]).unwrap();
        assert_eq!(shown(&groups), [("a", vec![0, 1]), ("b", vec![2])]);
        // Three CPUs need two cores of two threads: what is left of the second is nobody's.
        let groups = core_groups(&smt(&[3]), &[vm("a", Uf, 3), vm("b", Nuf, 2)]).unwrap();
        assert_eq!(shown(&groups), [("a", vec![0, 1]), ("b", vec![2])]);
    }

    #[test]
    fn a_vm_stays_on_one_node_where_there_is_room() {
        let vms = [vm("a", Uf, 5), vm("b", Uf, 6), vm("c", Nuf, 4), vm("d", Nuf, 4)];
        let groups = core_groups(&smt(&[4, 8]), &vms).unwrap();
        // `b` is placed first and fills what the host left of node 0, so `a` begins node 1; the others
        // come from its end.
        let want = [("a", vec![4, 5, 6]), ("b", vec![1, 2, 3]), ("c", vec![10, 11]), ("d", vec![8, 9])];
        assert_eq!(shown(&groups), want);
        // Only what fits on no node spans two.
        let groups = core_groups(&smt(&[3, 3]), &[vm("a", Uf, 8), vm("b", Nuf, 2)]).unwrap();
        assert_eq!(shown(&groups), [("a", vec![1, 2, 3, 4]), ("b", vec![5])]);
    }

    #[test]
    fn too_few_cores_name_the_vm() {
        let error = core_groups(&cores(4), &[vm("a", Uf, 2), vm("b", Nuf, 3)]).unwrap_err();
        assert_eq!((error.vm.as_str(), error.requested, error.left), ("b", 3, 2));
        assert_eq!(error.to_string(), "VM b: cores = 3: at most the 2 that are left");
        assert!(core_groups(&[], &[vm("a", Uf, 1)]).is_err());
        assert_eq!(core_groups(&[], &[]), Ok(vec![]));
    }

    fn machine() -> impl Strategy<Value = Vec<PhysicalCore>> {
        let core = |(id, (cpus, node))| PhysicalCore { core: CoreId(id as u16), cpus, node };
        proptest::collection::vec((1u16..=2, 0u16..3), 0..24)
            .prop_map(move |cores| cores.into_iter().enumerate().map(core).collect())
    }
    fn wishes() -> impl Strategy<Value = Vec<(VmId, VmSpec)>> {
        proptest::collection::vec((proptest::bool::ANY, 1u16..9), 0..8).prop_map(|vms| {
            let one = |(n, (high, cpus)): (usize, (bool, u16))| {
                vm(&format!("v{n}"), if high { Uf } else { Nuf }, cpus)
            };
            vms.into_iter().enumerate().map(one).collect()
        })
    }

    proptest! {
        #[test]
        fn every_vm_has_its_cpus_on_cores_that_nobody_else_has(
            places in machine(),
            vms in wishes(),
            turn in 0usize..24,
        ) {
            let of: BTreeMap<_, _> = places.iter().map(|p| (p.core, *p)).collect();
            let groups = core_groups(&places, &vms);
            let mut turned = places.clone();
            turned.rotate_left(turn % places.len().max(1));
            prop_assert_eq!(&core_groups(&turned, &vms), &groups, "the order of cores changes nothing");
            let size = |vm: &ControlledVm| vm.cores.iter().map(|core| of[core].cpus).sum::<u16>();
            let Ok(groups) = groups else {
                let requested: u16 = vms.iter().map(|(_, spec)| spec.cores + 1).sum();
                let all: u16 = places.iter().map(|p| p.cpus).sum();
                prop_assert!(requested > all, "only rounding up to whole cores may be in the way");
                return Ok(());
            };

            prop_assert_eq!(groups.len(), vms.len());
            let mut owner = BTreeMap::new();

            for vm in &groups {
                let (_, spec) = vms.iter().find(|(id, _)| *id == vm.id).unwrap();
                prop_assert!(size(vm) >= spec.cores, "{} has {} CPUs", vm.id, size(vm));
                let last = vm.cores.iter().map(|core| of[core].cpus).max().unwrap_or(0);
                prop_assert!(size(vm) - last < spec.cores, "a core too many");

                for core in &vm.cores {
                    prop_assert!(owner.insert(*core, vm.class).is_none(), "core {core} in two VMs");
                }
            }

            // On one node all of one class lie below all of the other.
            for (core, class) in &owner {
                for (other, another) in &owner {
                    if of[core].node == of[other].node && class == &Uf && another == &Nuf {
                        prop_assert!(core < other);
                    }
                }
            }

            let lowest = places.iter().min_by_key(|p| (p.node, p.core));
            let spare = lowest.filter(|lowest| owner.contains_key(&lowest.core));

            if let Some(lowest) = spare {
                let rest: Vec<_> = places.iter().filter(|p| p.core != lowest.core).copied().collect();
                prop_assert!(groups_of(&rest, &vms).is_err(), "the host has no core, yet one was spare");
            }

            // Who spans nodes was too large for any of them when the larger ones of its class had theirs.
            let mut nodes = BTreeMap::<u16, u16>::new();

            for place in &places {
                *nodes.entry(place.node).or_default() += place.cpus;
            }
            let most = nodes.values().max().copied().unwrap_or(0);

            if let [only] = &groups[..] && size(only) + 2 <= most {
                let on: Vec<_> = only.cores.iter().map(|core| of[core].node).collect();
                prop_assert!(on.windows(2).all(|w| w[0] == w[1]), "{on:?}");
            }
        }
    }

    /// The same without a core kept for the host: by a core that no VM can be on.
    fn groups_of(places: &[PhysicalCore], vms: &[(VmId, VmSpec)]) -> Result<Vec<ControlledVm>, GroupError> {
        let mut pool = places.to_vec();
        pool.sort_unstable_by_key(|place| (place.node, place.core));
        let mut order: Vec<_> = vms.iter().collect();
        order.sort_by_key(|(id, spec)| (spec.class(), Reverse(spec.cores), id));
        groups(&pool, &order)
    }
}
