//! The VMs of this server: who owns which core, how busy it is, how long it was throttled.

use core::time::Duration;
use std::collections::BTreeMap;

use ballast_types::wire::VmStatus;
use ballast_types::{Core, Instant, Utilisation, VmClass};

use crate::throttle::{Class, Throttle};
use crate::{Vm, VmUsage};

/// After this without news a VM's CPU use is unknown.
const USAGE_LIFE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
struct Member {
    vm: Vm,
    /// Indices of those of its cores that exist.
    cores: Vec<u16>,
    usage: Option<(Utilisation, Instant)>,
    /// How many of its cores are restricted.
    capped: u64,
    /// Core-nanoseconds up to `Fleet::since`.
    throttled_ns: u64,
}

/// The newest set of VMs.
#[derive(Clone, Debug)]
pub(crate) struct Fleet {
    members: Vec<Member>,
    /// Which VM a core belongs to; the last one that names it.
    owner: Vec<Option<u16>>,
    since: Instant,
}

impl Fleet {
    pub(crate) fn new(cores: usize, now: Instant) -> Self {
        Self { members: Vec::new(), owner: vec![None; cores], since: now }
    }

    /// Takes the whole set. A VM that stays keeps its use and its account.
    pub(crate) fn replace(&mut self, vms: Vec<Vm>, cores: &[Core]) {
        let mut old = core::mem::take(&mut self.members);
        self.owner.fill(None);
        for vm in vms {
            let indices: Vec<u16> = vm
                .cores
                .iter()
                .filter_map(|id| cores.binary_search_by_key(id, |core| core.id).ok())
                .map(|index| index as u16)
                .collect();
            for index in &indices {
                self.owner[usize::from(*index)] = Some(self.members.len() as u16);
            }
            let kept = old.iter().position(|m| m.vm.id == vm.id).map(|n| old.swap_remove(n));
            self.members.push(Member {
                vm,
                cores: indices,
                usage: kept.as_ref().and_then(|m| m.usage),
                capped: 0,
                throttled_ns: kept.map_or(0, |m| m.throttled_ns),
            });
        }
    }

    /// Cores that only non-user-facing VMs have, by throttle order.
    ///
    /// A core that VMs of different orders share is throttled with the last of them.
    pub(crate) fn low_classes(&self) -> Vec<Class> {
        let mut order: Vec<Option<u8>> = vec![None; self.owner.len()];
        let mut high = vec![false; self.owner.len()];
        for member in &self.members {
            for core in member.cores.iter().map(|c| usize::from(*c)) {
                high[core] |= member.vm.class == VmClass::UserFacing;
                order[core] = order[core].max(Some(member.vm.throttle_order));
            }
        }
        let mut classes: BTreeMap<u8, Vec<u16>> = BTreeMap::new();
        for (core, order) in order.into_iter().enumerate() {
            if let Some(order) = order.filter(|_| !high[core]) {
                classes.entry(order).or_default().push(core as u16);
            }
        }
        classes.into_iter().map(|(order, cores)| Class { order, cores }).collect()
    }

    pub(crate) fn usage(&mut self, now: Instant, usage: &[VmUsage]) {
        for (n, use_) in usage.iter().enumerate() {
            // Mostly in the set's own order.
            let hit = match self.members.get(n) {
                Some(member) if member.vm.id == use_.vm => Some(n),
                _ => self.members.iter().position(|member| member.vm.id == use_.vm),
            };
            if let Some(n) = hit {
                self.members[n].usage = Some((use_.utilisation, now));
            }
        }
    }

    /// How busy a core is, if that is known.
    pub(crate) fn core_usage(&self, now: Instant, core: usize) -> Option<f64> {
        let (utilisation, at) = self.members[usize::from(self.owner[core]?)].usage?;
        (now.since(at) <= USAGE_LIFE).then(|| utilisation.ratio())
    }

    /// Accounts for the time since the last call at the old counts, then counts anew.
    pub(crate) fn account(&mut self, now: Instant, throttle: &Throttle) {
        let span = nanos(now.since(self.since));
        self.since = now;
        for member in &mut self.members {
            member.throttled_ns =
                member.throttled_ns.saturating_add(span.saturating_mul(member.capped));
            let restricted = |core: &&u16| throttle.restricted(usize::from(**core));
            member.capped = member.cores.iter().filter(restricted).count() as u64;
        }
    }

    pub(crate) fn status(&self, now: Instant, throttle: &Throttle) -> Vec<VmStatus> {
        let span = nanos(now.since(self.since));
        let status = |member: &Member| {
            let cores = member.cores.iter().map(|core| usize::from(*core));
            let throttled_ns =
                member.throttled_ns.saturating_add(span.saturating_mul(member.capped));
            VmStatus {
                vm: member.vm.id.clone(),
                class: member.vm.class,
                cores: member.vm.cores.len() as u16,
                min_khz: cores
                    .filter(|core| throttle.restricted(*core))
                    .map(|core| throttle.khz(core))
                    .min(),
                throttled_core_ms: throttled_ns / 1_000_000,
            }
        };
        self.members.iter().map(status).collect()
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_types::{CoreId, KiloHertz, Ladder, VmId};

    fn cores() -> Vec<Core> {
        let mhz = KiloHertz::from_mhz;
        let ladder = Ladder::new(&[mhz(1000), mhz(2000)]).unwrap();
        (0..6).map(|n| Core { id: CoreId(10 + n), ladder: ladder.clone() }).collect()
    }
    fn vm(id: &str, class: VmClass, throttle_order: u8, cores: &[u16]) -> Vm {
        let cores = cores.iter().copied().map(CoreId).collect();
        Vm { id: VmId::new(id).unwrap(), class, throttle_order, cores }
    }
    use VmClass::{NonUserFacing as Nuf, UserFacing as Uf};

    #[test]
    fn only_cores_exclusive_to_non_user_facing_vms_are_low() {
        let mut fleet = Fleet::new(6, Instant::ZERO);
        let vms = vec![
            vm("a", Nuf, 7, &[10, 11]),
            vm("b", Uf, 0, &[11, 12]),
            vm("c", Nuf, 2, &[13, 14, 99]), // 99 does not exist
            vm("d", Nuf, 7, &[14]),
        ];
        fleet.replace(vms, &cores());
        let expected = [Class { order: 2, cores: vec![3] }, Class { order: 7, cores: vec![0, 4] }];
        assert_eq!(fleet.low_classes(), expected);
    }

    #[test]
    fn throttled_time_is_core_time_and_survives_a_new_set() {
        let mut fleet = Fleet::new(6, Instant::ZERO);
        let mut throttle = Throttle::new(cores(), 4, false);
        fleet.replace(vec![vm("a", Nuf, 0, &[10, 11, 12])], &cores());
        throttle.found(0, 0);
        throttle.found(1, 0);
        let ms = Instant::from_millis;
        fleet.account(ms(100), &throttle);
        assert_eq!(fleet.status(ms(150), &throttle)[0].throttled_core_ms, 100);
        fleet.account(ms(200), &throttle);
        fleet.replace(vec![vm("a", Nuf, 0, &[12]), vm("b", Nuf, 0, &[10])], &cores());
        fleet.account(ms(200), &throttle);
        let status = fleet.status(ms(300), &throttle);
        assert_eq!((status[0].throttled_core_ms, status[0].min_khz), (200, None));
        assert_eq!((status[1].throttled_core_ms, status[1].cores), (100, 1));
        assert_eq!(status[1].min_khz, Some(KiloHertz::from_mhz(1000)));
    }

    #[test]
    fn old_usage_is_unknown() {
        let mut fleet = Fleet::new(6, Instant::ZERO);
        fleet.replace(vec![vm("a", Nuf, 0, &[10])], &cores());
        let ms = Instant::from_millis;
        let usage = |id: &str| VmUsage {
            vm: VmId::new(id).unwrap(),
            utilisation: Utilisation::from_ratio(0.5).unwrap(),
        };
        fleet.usage(ms(0), &[usage("nobody"), usage("a")]);
        assert_eq!(fleet.core_usage(ms(5000), 0), Some(0.5));
        assert_eq!(fleet.core_usage(ms(5001), 0), None);
        assert_eq!(fleet.core_usage(ms(0), 1), None);
    }
}
