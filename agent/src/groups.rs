//! Which cores belong to which VM.

use core::fmt;

use ballast_types::wire::VmSpec;
use ballast_types::{CoreId, VmClass, VmId};

use crate::Vm;

/// Why the VMs do not fit on the cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupError {
    /// The first VM that does not get its cores.
    pub vm: VmId,
    /// How many cores it wants.
    pub wanted: u16,
    /// How many are left for it.
    pub left: usize,
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vm, wanted, left } = self;
        write!(f, "VM {vm}: cores = {wanted}: at most the {left} that are left")
    }
}
impl std::error::Error for GroupError {}

/// Gives every VM cores of its own.
///
/// User-facing VMs get cores from the lowest upward, non-user-facing ones from the highest downward,
/// each in order of id, so that the two classes share a socket as late as possible. The lowest core
/// is kept for the host while at least one core is spare. The result is in order of class, then id.
///
/// # Errors
/// Names the first VM for which too few cores are left.
pub fn core_groups(cores: &[CoreId], vms: &[(VmId, VmSpec)]) -> Result<Vec<Vm>, GroupError> {
    let mut pool = cores.to_vec();
    pool.sort_unstable();
    pool.dedup();
    let wanted: usize = vms.iter().map(|(_, spec)| usize::from(spec.cores)).sum();
    let mut left = if wanted < pool.len() { &pool[1..] } else { &pool[..] };

    let mut order: Vec<&(VmId, VmSpec)> = vms.iter().collect();
    order.sort_by(|(a, x), (b, y)| (x.class, a).cmp(&(y.class, b)));
    let mut groups = Vec::with_capacity(order.len());
    for (id, spec) in order {
        let count = usize::from(spec.cores);
        if count > left.len() {
            return Err(GroupError { vm: id.clone(), wanted: spec.cores, left: left.len() });
        }
        let mine;
        match spec.class {
            VmClass::UserFacing => (mine, left) = left.split_at(count),
            VmClass::NonUserFacing => (left, mine) = left.split_at(left.len() - count),
        }
        groups.push(Vm {
            id: id.clone(),
            class: spec.class,
            throttle_order: spec.throttle_order,
            cores: mine.to_vec(),
            on_extreme: spec.on_extreme,
        });
    }
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_types::OnExtreme;

    fn cores(n: u16) -> Vec<CoreId> {
        (0..n).map(CoreId).collect()
    }
    fn vm(id: &str, class: VmClass, cores: u16) -> (VmId, VmSpec) {
        let spec =
            VmSpec { class, throttle_order: 3, cores, cgroup: None, on_extreme: OnExtreme::None };
        (VmId::new(id).unwrap(), spec)
    }
    fn ids(vm: &Vm) -> Vec<u16> {
        vm.cores.iter().map(|c| c.0).collect()
    }
    use VmClass::{NonUserFacing as Nuf, UserFacing as Uf};

    #[test]
    fn classes_grow_towards_each_other_and_the_host_keeps_the_lowest_core() {
        let vms = [vm("z", Nuf, 2), vm("b", Uf, 2), vm("a", Uf, 1), vm("c", Nuf, 1)];
        let groups = core_groups(&cores(8), &vms).unwrap();
        let shown: Vec<_> = groups.iter().map(|g| (g.id.as_str(), ids(g))).collect();
        let want = [("a", vec![1]), ("b", vec![2, 3]), ("c", vec![7]), ("z", vec![5, 6])];
        assert_eq!(shown, want);
        assert_eq!(groups[2].throttle_order, 3);
    }

    #[test]
    fn the_host_gives_its_core_up_when_none_is_spare() {
        let groups = core_groups(&cores(3), &[vm("a", Uf, 2), vm("b", Nuf, 1)]).unwrap();
        assert_eq!((ids(&groups[0]), ids(&groups[1])), (vec![0, 1], vec![2]));
    }

    #[test]
    fn too_few_cores_name_the_vm() {
        let error = core_groups(&cores(4), &[vm("a", Uf, 2), vm("b", Nuf, 3)]).unwrap_err();
        assert_eq!((error.vm.as_str(), error.wanted, error.left), ("b", 3, 2));
        assert_eq!(error.to_string(), "VM b: cores = 3: at most the 2 that are left");
        assert!(core_groups(&[], &[vm("a", Uf, 1)]).is_err());
        assert_eq!(core_groups(&[], &[]), Ok(vec![]));
    }
}
