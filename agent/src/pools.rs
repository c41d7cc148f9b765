//! Pools: on a host that promises more CPUs than it has, VMs share cores by class instead of having some of
//! their own.
//!
//! ```text
//!   core 0                                                                             last core
//!   │◀─────────── user-facing ───────────▶│◀──────────────── batch ────────────────▶│
//!   │  (lowest node and core upward)    split         (the rest)                     │
//! ```
//! Within its pool a VM runs anywhere. The split follows the sum of the classes' CPUs, one core at a time, because
//! every move of the split rebinds whoever is in a pool. A pinned VM has cores of its own, which are in neither
//! pool.

use core::time::Duration;

use ballast_types::wire::VmSpec;
use ballast_types::{CoreId, Instant, VmClass, VmId};

use crate::ControlledVm;
use crate::groups::{GroupError, PhysicalCore, core_groups, usable};

/// How cores are split into two pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pools {
    /// Neither pool has fewer physical cores.
    pub min_cores: u16,
    /// Between two moves of one core from pool to pool.
    pub step: Duration,
    /// The first core of the batch pool, in order of node and id; `None` before the first VMs. A core and not a count,
    /// so that cores which are pinned, or go offline, move nobody else.
    border: Option<(u16, CoreId)>,
    moved_at: Instant,
    /// Whether there were VMs of each class.
    had: [bool; 2],
}

/// The cores of both pools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolCores {
    pub user_facing: Vec<CoreId>,
    pub batch: Vec<CoreId>,
}

impl PoolCores {
    /// The pool of a class.
    pub fn of(&self, class: VmClass) -> &[CoreId] {
        match class {
            VmClass::UserFacing => &self.user_facing,
            VmClass::NonUserFacing => &self.batch,
        }
    }
}

impl Pools {
    /// Pools of at least `min_cores` each, whose split moves by one core every `step` at most. At first it is
    /// where it belongs.
    pub fn new(min_cores: u16, step: Duration) -> Self {
        Self { min_cores, step, border: None, moved_at: Instant::ZERO, had: [false; 2] }
    }

    /// Moves the split by one core towards where it belongs with these VMs, if it is time to; at once with the first
    /// VM of a class. Says whether it has moved.
    pub fn advance(&mut self, now: Instant, places: &[PhysicalCore], vms: &[(VmId, VmSpec)]) -> bool {
        let Ok((_, shared)) = split_off_pinned(places, vms) else { return false };
        let has_class =
            VmClass::ALL.map(|class| vms.iter().any(|(_, spec)| !spec.pinned && spec.class() == class));
        if has_class == [false; 2] {
            return false;
        }
        let is_first = has_class.iter().zip(self.had).any(|(has, had)| *has && !had);
        self.had = has_class;

        let target = self.target(&shared, vms);
        let next = match self.split(&shared).filter(|_| !is_first) {
            Some(split) if split == target || now.since(self.moved_at) < self.step => return false,
            Some(split) if split < target => split + 1,
            Some(split) => split - 1,
            None => target,
        };
        let Some(first) = shared.get(next) else { return false };
        (self.border, self.moved_at) = (Some((first.node, first.core)), now);
        true
    }

    /// Cores for every VM: a pinned one's own as [`core_groups`] has it, else all of its pool's; and both pools. In
    /// order of class, then id. Fails when the pinned ones do not fit, or a VM is wider than all that is
    /// shared.
    pub fn groups(
        &self,
        places: &[PhysicalCore],
        vms: &[(VmId, VmSpec)],
    ) -> Result<(Vec<ControlledVm>, PoolCores), GroupError> {
        let (mut set, shared) = split_off_pinned(places, vms)?;
        let cpus: usize = shared.iter().map(|place| usize::from(place.cpus)).sum();
        let pooled = || vms.iter().filter(|(_, spec)| !spec.pinned);
        let left = if shared.len() < 2 { 0 } else { cpus };
        if let Some((vm, spec)) = pooled().find(|(_, spec)| usize::from(spec.cores) > left) {
            return Err(GroupError { vm: vm.clone(), requested: spec.cores, left });
        }

        let split = self.split(&shared).unwrap_or_else(|| self.target(&shared, vms));
        let ids = |places: &[PhysicalCore]| places.iter().map(|place| place.core).collect();
        let (low, high) = shared.split_at(split);
        let pools = PoolCores { user_facing: ids(low), batch: ids(high) };
        set.extend(pooled().map(|(id, spec)| ControlledVm {
            id: id.clone(),
            class: spec.class(),
            throttle_order: spec.throttle_order,
            cores: pools.of(spec.class()).to_vec(),
            vcpus: Some(spec.cores),
            on_extreme: spec.on_extreme,
        }));
        set.sort_by(|a, b| (a.class, &a.id).cmp(&(b.class, &b.id)));
        Ok((set, pools))
    }

    /// How many of these cores, in order of node and id, the user-facing pool has now; each pool its least.
    fn split(&self, shared: &[PhysicalCore]) -> Option<usize> {
        let border = self.border?;
        let split = shared.partition_point(|place| (place.node, place.core) < border);
        let least = self.least(shared.len());
        Some(split.clamp(least, shared.len().saturating_sub(least).max(least)).min(shared.len()))
    }

    /// The fewest cores of a pool, of so many.
    fn least(&self, count: usize) -> usize {
        usize::from(self.min_cores).clamp(1, (count / 2).max(1))
    }

    /// Where the split belongs: in proportion to the CPUs of both classes, with the least of each; and a pool is as
    /// wide as its widest VM where there is room, the user-facing one first.
    fn target(&self, shared: &[PhysicalCore], vms: &[(VmId, VmSpec)]) -> usize {
        let count = shared.len();
        let of = |class| vms.iter().filter(move |(_, spec)| !spec.pinned && spec.class() == class);
        let sum = |class| of(class).map(|(_, spec)| usize::from(spec.cores)).sum::<usize>();
        let widest = |class| of(class).map(|(_, spec)| usize::from(spec.cores)).max().unwrap_or(0);
        let (high, low) = (sum(VmClass::UserFacing), sum(VmClass::NonUserFacing));

        let all: usize = shared.iter().map(|place| usize::from(place.cpus)).sum();
        // Without a VM both pools are alike.
        let share = if high + low == 0 { all / 2 } else { (all * high).div_ceil(high + low) };
        let least = self.least(count);
        let wide = |cpus| cores_for(shared.iter(), cpus).max(least);
        let most =
            count.saturating_sub(cores_for(shared.iter().rev(), widest(VmClass::NonUserFacing)).max(least));
        let wanted = cores_for(shared.iter(), share).min(most);
        wanted.max(wide(widest(VmClass::UserFacing))).min(count.saturating_sub(least))
    }
}

/// How many of these cores have so many CPUs together; all if they have fewer.
fn cores_for<'a>(places: impl Iterator<Item = &'a PhysicalCore>, cpus: usize) -> usize {
    let mut got = 0;
    let short = places.take_while(|place| {
        let is_short = got < cpus;
        got += usize::from(place.cpus);
        is_short
    });
    short.count()
}

/// The pinned VMs with their cores, and what is left of the cores, in order.
fn split_off_pinned(
    places: &[PhysicalCore],
    vms: &[(VmId, VmSpec)],
) -> Result<(Vec<ControlledVm>, Vec<PhysicalCore>), GroupError> {
    let pinned: Vec<_> = vms.iter().filter(|(_, spec)| spec.pinned).cloned().collect();
    let set = core_groups(places, &pinned)?;
    let mut shared = usable(places);
    shared.retain(|place| !set.iter().any(|vm| vm.cores.contains(&place.core)));
    Ok((set, shared))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_types::OnExtreme;
    use proptest::prelude::*;

    const STEP: Duration = Duration::from_secs(10);

    fn vm(id: &str, class: VmClass, cores: u16, pinned: bool) -> (VmId, VmSpec) {
        let spec = VmSpec {
            class: Some(class),
            throttle_order: 0,
            cores,
            cgroup: None,
            on_extreme: OnExtreme::None,
            tenant: None,
            pinned,
        };
        (VmId::new(id).unwrap(), spec)
    }
    /// Cores with two threads each, half of them on every node.
    fn places(count: u16) -> Vec<PhysicalCore> {
        (0..count).map(|n| PhysicalCore { core: CoreId(n), cpus: 2, node: n / (count / 2) }).collect()
    }
    fn pools(min_cores: u16) -> Pools {
        Pools::new(min_cores, STEP)
    }
    /// How many cores the user-facing pool has with these CPUs of user-facing and other VMs.
    fn user_facing(count: u16, min_cores: u16, vms: &[(VmId, VmSpec)]) -> usize {
        pools(min_cores).groups(&places(count), vms).unwrap().1.user_facing.len()
    }
    use VmClass::{NonUserFacing as Nuf, UserFacing as Uf};

    #[test]
    fn pools_are_in_proportion_to_their_vms_cpus_with_a_least_each() {
        for (high, low, cores) in [
            (&[8, 8][..], &[8, 8][..], 8),
            (&[8, 8, 8], &[8], 12),
            // Twice as many CPUs as there are, and four times.
            (&[8, 8, 8, 8], &[8, 8, 8, 8], 8),
            (&[16; 4], &[16; 4], 8),
            (&[], &[8], 2),
            (&[8], &[], 14),
            (&[], &[], 8),
            // As wide as its widest, though 1 to 9 would be less; and where both are too wide, user-facing first.
            (&[8], &[8; 9], 4),
            (&[24], &[24], 12),
        ] {
            let vms = |class, sizes: &[u16]| -> Vec<_> {
                let one = |(n, size): (usize, &u16)| vm(&format!("{class:?}{n}"), class, *size, false);
                sizes.iter().enumerate().map(one).collect()
            };
            let all = [vms(Uf, high), vms(Nuf, low)].concat();
            assert_eq!(user_facing(16, 2, &all), cores, "{high:?} {low:?}");
        }
    }

    #[test]
    fn every_vm_has_its_pools_cores_and_a_pinned_one_its_own() {
        let vms =
            [vm("a", Uf, 8, false), vm("b", Nuf, 4, false), vm("c", Nuf, 4, false), vm("d", Nuf, 3, true)];
        let (set, pools) = pools(1).groups(&places(8), &vms).unwrap();
        let ids = |cores: &[CoreId]| cores.iter().map(|core| core.0).collect::<Vec<_>>();
        let shown: Vec<_> = set.iter().map(|vm| (vm.id.as_str(), ids(&vm.cores), vm.vcpus)).collect();
        let (high, low) = (vec![0, 1, 2, 3], vec![4, 5]);
        assert_eq!(
            shown,
            [
                ("a", high.clone(), Some(8)),
                ("b", low.clone(), Some(4)),
                ("c", low.clone(), Some(4)),
                ("d", vec![6, 7], None),
            ]
        );
        assert_eq!((ids(&pools.user_facing), ids(&pools.batch)), (high, low));
    }

    #[test]
    fn the_split_moves_by_one_core_a_step() {
        let mut pools = pools(1);
        let (before, after) = ([vm("a", Uf, 8, false), vm("b", Nuf, 8, false)], [vm("b", Nuf, 8, false)]);
        let at = |second| Instant::ZERO + Duration::from_secs(second);
        let split = |pools: &Pools, vms: &[_]| pools.groups(&places(8), vms).unwrap().1.user_facing.len();
        assert!(pools.advance(at(100), &places(8), &before), "at first it is where it belongs");
        assert!(!pools.advance(at(200), &places(8), &before));
        assert_eq!(split(&pools, &before), 4);
        // (second, moved, cores of the user-facing pool)
        for (second, moved, cores) in
            [(201, true, 3), (210, false, 3), (211, true, 2), (230, true, 1), (300, false, 1)]
        {
            assert_eq!(pools.advance(at(second), &places(8), &after), moved, "{second}");
            assert_eq!(split(&pools, &after), cores, "{second}");
        }
        // Cores that are pinned are taken from whom they were, and neither pool is without one.
        for (class, cpus, high, low) in [(Uf, 4, 1, 5), (Nuf, 4, 1, 5), (Nuf, 12, 1, 1), (Uf, 12, 1, 1)] {
            let vms = [vm("b", Nuf, 2, false), vm("p", class, cpus, true)];
            let (_, cores) = pools.groups(&places(8), &vms).unwrap();
            assert_eq!((cores.user_facing.len(), cores.batch.len()), (high, low), "{class:?} {cpus}");
        }
        // The first VM of a class does not wait; and nobody is no reason to move.
        assert!(!pools.advance(at(400), &places(8), &[]));
        assert!(pools.advance(at(401), &places(8), &before));
        assert_eq!(split(&pools, &before), 4);
    }

    #[test]
    fn what_cannot_share_is_refused_by_name() {
        for (count, vms, name) in [
            (8, vec![vm("a", Uf, 17, false)], "a"),
            (8, vec![vm("p", Uf, 15, true), vm("b", Nuf, 2, false)], "b"),
            (2, vec![vm("p", Uf, 5, true), vm("b", Nuf, 2, false)], "p"),
        ] {
            let error = pools(1).groups(&places(count), &vms).unwrap_err();
            assert_eq!(error.vm.as_str(), name, "{error}");
        }
    }

    proptest! {
        #[test]
        fn both_pools_are_never_empty_and_never_overlap(
            count in 1u16..20,
            min_cores in 1u16..8,
            sizes in proptest::collection::vec((proptest::bool::ANY, 1u16..40), 0..12),
            pins in proptest::collection::vec((proptest::bool::ANY, 0u16..8), 0..30),
            seconds in proptest::collection::vec(0u64..40, 0..30),
        ) {
            let count = count * 2;
            let one = |(n, (high, size)): (usize, &(bool, u16))| {
                vm(&format!("v{n}"), if *high { Uf } else { Nuf }, (*size).min(count * 2), false)
            };
            let all: Vec<_> = sizes.iter().enumerate().map(one).collect();
            let (mut pools, mut now) = (pools(min_cores), Instant::ZERO);
            let mut before: Option<usize> = None;
            for (n, second) in seconds.iter().enumerate() {
                now += Duration::from_secs(*second);
                // One that is pinned comes and goes, of up to half of the cores.
                let (high, cpus) = pins.get(n).copied().unwrap_or((false, 0));
                let class = if high { Uf } else { Nuf };
                let pinned = (cpus > 0 && cpus <= count).then(|| vm("pinned", class, cpus, true));
                let most = count * 2 - pinned.as_ref().map_or(0, |_| cpus.next_multiple_of(2));
                let shared = all.iter().take(n).filter(|it| it.1.cores <= most);
                let vms: Vec<_> = shared.chain(&pinned).cloned().collect();
                let had = pools.had;
                pools.advance(now, &places(count), &vms);
                let is_same = pools.had == had && pinned.is_none();
                let set = pools.groups(&places(count), &vms);
                if most < 4 {
                    // Too few cores are left for two pools.
                    prop_assert!(set.is_err() || vms.iter().all(|(_, spec)| spec.pinned));
                    before = None;
                    continue;
                }
                let (_, cores) = set.unwrap();
                let (high, low) = (&cores.user_facing, &cores.batch);
                prop_assert_eq!(high.len() + low.len(), usize::from(most) / 2);
                let least = usize::from(min_cores).min(usize::from(most) / 4).max(1);
                prop_assert!(high.len() >= least && low.len() >= least, "{:?}", cores);
                prop_assert!(high.iter().all(|core| !low.contains(core)));
                if let Some(before) = before.filter(|_| is_same) {
                    prop_assert!(high.len().abs_diff(before) <= 1, "one core a step");
                }
                before = pinned.is_none().then_some(high.len());
            }
        }
    }
}
