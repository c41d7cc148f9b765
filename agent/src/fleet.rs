//! The VMs of this server: who owns which core, how busy it is, how long it was throttled.

use core::time::Duration;
use std::collections::BTreeMap;

use ballast_types::wire::VmStatus;
use ballast_types::{Core, Instant, OnExtreme, Utilisation, VmClass, VmId};
use serde::{Deserialize, Serialize};

use crate::impact::{Impact, PPM};
use crate::throttle::{Class, Floors, Throttle};
use crate::units::{AT_QUOTA, UnitIndices, millicores};
use crate::{ControlledVm, VmUsage};

/// After this without news a VM's CPU use is unknown.
const USAGE_VALID_FOR: Duration = Duration::from_secs(5);

/// What is known of a VM's CPU use.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct ObservedUse {
    usage: Option<(Utilisation, Instant)>,
    /// Its bandwidth limit stopped it in the time of `usage`.
    stopped: bool,
}

impl ObservedUse {
    /// The use as last read, while that is known.
    fn known(&self, now: Instant) -> Option<f64> {
        let (utilisation, at) = self.usage?;
        (now.since(at) <= USAGE_VALID_FOR).then(|| utilisation.ratio())
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Member {
    vm: ControlledVm,
    /// Indices of those of its cores that exist; a floating VM's units.
    cores: Vec<u16>,
    /// Its part of these cores: all of them, unless it shares them.
    part_ppm: u32,
    observed: ObservedUse,
    /// What capping did to it, up to `Fleet::since`.
    impact: Impact,
}

impl Member {
    fn new(vm: ControlledVm, cores: Vec<u16>, kept: Option<Self>) -> Self {
        Self {
            vm,
            cores,
            part_ppm: PPM,
            observed: kept.as_ref().map_or_else(ObservedUse::default, |m| m.observed),
            impact: kept.map_or_else(Impact::default, |m| m.impact),
        }
    }

    /// Its quota in millicores, if its units are those of a floating VM that is limited.
    fn quota(&self, throttle: &Throttle) -> Option<u32> {
        let units = self.cores.iter().map(|unit| usize::from(*unit));
        let limited = units.clone().any(|unit| throttle.restricted(unit));
        limited.then(|| units.map(|s| millicores(throttle.ladder(s), throttle.level(s))).sum())
    }

    /// Whether a floating VM that used such a share of its cores may want more than its quota.
    fn is_held(&self, used: f64, stopped: bool, throttle: &Throttle) -> bool {
        let quota = self.quota(throttle).map(|millicores| f64::from(millicores) / 1000.0);
        let used = used * self.vm.cores.len() as f64;
        stopped || quota.is_some_and(|quota| used >= AT_QUOTA * quota)
    }
}

/// The newest set of VMs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Fleet {
    members: Vec<Member>,
    owners: Vec<Vec<u16>>,
    /// Which of the owners a core, or unit, belongs to.
    owner: Vec<Option<u16>>,
    /// Where VMs float: the units that they have.
    units: UnitIndices,
    since: Instant,
    limited: bool,
}

impl Fleet {
    pub(crate) fn new(cores: usize, now: Instant) -> Self {
        let units = UnitIndices::default();
        let (members, owners) = (Vec::new(), Vec::new());
        Self { members, owners, owner: vec![None; cores], units, since: now, limited: false }
    }

    /// Takes the whole set. A VM that stays keeps its use and its account.
    pub(crate) fn replace(&mut self, vms: Vec<ControlledVm>, cores: &[Core]) {
        let mut old = core::mem::take(&mut self.members);
        for vm in vms {
            let indices: Vec<u16> = vm
                .cores
                .iter()
                .filter_map(|id| cores.binary_search_by_key(id, |core| core.id).ok())
                .map(|index| index as u16)
                .collect();
            let kept = old.iter().position(|m| m.vm.id == vm.id).map(|n| old.swap_remove(n));
            self.members.push(Member::new(vm, indices, kept));
        }
        self.find_owners(cores.len());
    }

    /// Finds who uses which of `count` cores, or units, and each VM's part of what it shares.
    fn find_owners(&mut self, count: usize) {
        let mut users: Vec<Vec<u16>> = vec![Vec::new(); count];
        for (n, member) in self.members.iter().enumerate() {
            for core in &member.cores {
                users[usize::from(*core)].push(n as u16);
            }
        }

        self.owners.clear();
        let of_core = |members: Vec<u16>| {
            let known = self.owners.iter().position(|owner| *owner == members);
            let index = known.or_else(|| {
                self.owners.push(members.clone());
                Some(self.owners.len() - 1)
            });
            index.filter(|_| !members.is_empty()).map(|index| index as u16)
        };
        self.owner = users.into_iter().map(of_core).collect();

        for n in 0..self.members.len() {
            self.members[n].part_ppm = self.part_ppm(n);
        }
    }

    /// A VM's part of its cores, by the CPUs of those that share them.
    fn part_ppm(&self, n: usize) -> u32 {
        let member = &self.members[n];
        let Some(mine) = member.vm.vcpus else { return PPM };
        let owner = member.cores.first().and_then(|core| self.owner[usize::from(*core)]);
        let sharers = owner.map_or(&[][..], |owner| &self.owners[usize::from(owner)][..]);
        let vcpus = |n: &u16| u64::from(self.members[usize::from(*n)].vm.vcpus.unwrap_or(0));
        let all = sharers.iter().map(vcpus).sum::<u64>().max(1);
        // At most the whole.
        (u64::from(mine) * u64::from(PPM) / all).min(u64::from(PPM)) as u32
    }

    /// The same for floating VMs, of which those that may be throttled have as many units as cores. Gives the
    /// units that stand for nothing any more.
    pub(crate) fn replace_floating(
        &mut self,
        vms: &[ControlledVm],
        has_units: impl Fn(&ControlledVm) -> bool,
    ) -> Vec<u16> {
        let mut old = core::mem::take(&mut self.members);
        let mut freed = Vec::new();
        for (n, vm) in vms.iter().enumerate() {
            // Two quotas for one VM would fight: of two with one id the last counts.
            if vms[n + 1..].iter().any(|other| other.id == vm.id) {
                continue;
            }
            let mut kept = old.iter().position(|m| m.vm.id == vm.id).map(|n| old.swap_remove(n));
            let has = kept.as_mut().map(|m| core::mem::take(&mut m.cores)).unwrap_or_default();
            let count = if has_units(vm) { vm.cores.len() } else { 0 };
            let mine = self.units.give(has, count, &mut freed);
            self.members.push(Member::new(vm.clone(), mine, kept));
        }

        for unit in old.into_iter().flat_map(|member| member.cores) {
            self.units.take_back(unit, &mut freed);
        }
        self.find_owners(self.units.len());
        freed
    }

    /// How many units there have been.
    pub(crate) fn unit_count(&self) -> usize {
        self.units.len()
    }

    pub(crate) fn units(&self, vm: &VmId) -> &[u16] {
        self.members.iter().find(|member| member.vm.id == *vm).map_or(&[], |m| &m.cores)
    }

    /// The VMs that these units stand for, each once.
    pub(crate) fn owners(&self, units: &[u16]) -> Vec<VmId> {
        let users = units.iter().flat_map(|unit| self.users(usize::from(*unit)));
        let mut users: Vec<_> = users.map(|member| &member.vm.id).collect();
        users.sort_unstable();
        users.dedup();
        users.into_iter().cloned().collect()
    }

    /// Who uses a core, or unit.
    fn owner(&self, core: usize) -> Option<&[u16]> {
        self.owner[core].map(|owner| &self.owners[usize::from(owner)][..])
    }

    fn users(&self, core: usize) -> impl Iterator<Item = &Member> {
        let members = self.owner(core).map_or(&[][..], |owner| owner);
        members.iter().map(|n| &self.members[usize::from(*n)])
    }

    /// The only VM of a core, or unit.
    fn only_user(&self, core: usize) -> Option<&Member> {
        self.users(core).next().filter(|_| self.owner(core).is_some_and(|owner| owner.len() == 1))
    }

    /// Every VM with its units and, where known, its use as a share and whether it was stopped.
    pub(crate) fn floating(
        &self,
        now: Instant,
    ) -> impl Iterator<Item = (&ControlledVm, &[u16], Option<(f64, bool)>)> {
        self.members.iter().map(move |member| {
            let usage = member.observed.known(now).map(|share| (share, member.observed.stopped));
            (&member.vm, &member.cores[..], usage)
        })
    }

    /// Quota in millicores and number of cores of every floating VM that is limited.
    pub(crate) fn quotas<'a>(&'a self, throttle: &'a Throttle) -> impl Iterator<Item = (u32, u32)> + 'a {
        self.members.iter().filter_map(|member| Some((member.quota(throttle)?, member.vm.cores.len() as u32)))
    }

    /// Cores that only non-user-facing VMs have, by throttle order; and last, where that is allowed, those
    /// that user-facing VMs have.
    ///
    /// A core that VMs of different orders share is throttled with the last of them.
    pub(crate) fn classes(&self, floors: &Floors<'_>) -> Vec<Class> {
        let mut order: Vec<Option<u8>> = vec![None; self.owner.len()];
        let mut high = vec![false; self.owner.len()];
        for member in &self.members {
            for core in member.cores.iter().map(|c| usize::from(*c)) {
                high[core] |= member.vm.class == VmClass::UserFacing;
                order[core] = order[core].max(Some(member.vm.throttle_order));
            }
        }

        let mut classes: BTreeMap<u8, Vec<u16>> = BTreeMap::new();
        let mut user_facing = Vec::new();

        for (core, order) in order.into_iter().enumerate() {
            match order {
                Some(_) if high[core] => user_facing.push(core as u16),
                Some(order) => classes.entry(order).or_default().push(core as u16),
                None => {}
            }
        }

        let low = classes.into_iter().map(|(order, cores)| {
            let floor_percent = floors.by_order.get(&order).copied().unwrap_or(0);
            Class { order, user_facing: false, floor_percent, cores }
        });

        let last = floors.user_facing.filter(|_| !user_facing.is_empty()).map(|floor_percent| Class {
            order: u8::MAX,
            user_facing: true,
            floor_percent,
            cores: user_facing,
        });

        low.chain(last).collect()
    }

    pub(crate) fn usage(&mut self, now: Instant, usage: &[VmUsage]) {
        for (n, use_) in usage.iter().enumerate() {
            // Mostly in the set's own order.
            let hit = match self.members.get(n) {
                Some(member) if member.vm.id == use_.vm => Some(n),
                _ => self.members.iter().position(|member| member.vm.id == use_.vm),
            };
            if let Some(n) = hit {
                self.members[n].observed.usage = Some((use_.utilisation, now));
                self.members[n].observed.stopped = use_.throttled;
            }
        }
    }

    /// How busy a unit of a floating VM may want to be, by its use as last read: all the time if its quota held it back;
    /// `None` if the use is not known.
    pub(crate) fn demand(&self, now: Instant, unit: usize, throttle: &Throttle) -> Option<f64> {
        let member = self.only_user(unit)?;
        let used = self.core_usage(now, unit)?;
        Some(if member.is_held(used, member.observed.stopped, throttle) { 1.0 } else { used })
    }

    /// How busy a core is, if that is known of all that use it.
    pub(crate) fn core_usage(&self, now: Instant, core: usize) -> Option<f64> {
        self.owner(core)?;
        let used = self.users(core).map(|member| member.observed.known(now));
        used.sum::<Option<f64>>().map(|used| used.min(1.0))
    }

    /// How busy it is at least, by those of whom it is known.
    pub(crate) fn least_usage(&self, now: Instant, core: usize) -> f64 {
        let used = self.users(core).filter_map(|member| member.observed.known(now));
        used.sum::<f64>().min(1.0)
    }

    /// Books the time since the last call at what was seen then, and looks anew.
    pub(crate) fn account(&mut self, now: Instant, throttle: &Throttle, limited: bool) {
        let span = now.since(self.since);
        (self.since, self.limited) = (now, limited);
        for member in &mut self.members {
            member.impact.pass(span);
            let all = if limited { member.vm.cores.len() } else { 0 };
            member.impact.look(now, &member.cores, throttle, all, member.part_ppm);
        }
    }

    /// Whether the server's own limit was on when it was last looked at.
    pub(crate) fn limited(&self) -> bool {
        self.limited
    }

    /// The VMs that may be killed, first to last.
    pub(crate) fn killable(&self) -> Vec<&ControlledVm> {
        let may = |m: &&Member| {
            m.vm.class == VmClass::NonUserFacing && m.vm.on_extreme == OnExtreme::Kill && !m.cores.is_empty()
        };
        let mut vms: Vec<_> = self.members.iter().filter(may).map(|member| &member.vm).collect();
        vms.sort_by_key(|vm| (vm.throttle_order, &vm.id));
        vms
    }

    /// Whether there is such a VM.
    pub(crate) fn has(&self, vm: &VmId) -> bool {
        self.members.iter().any(|member| member.vm.id == *vm)
    }

    pub(crate) fn status(
        &self,
        now: Instant,
        throttle: &Throttle,
        floating: bool,
        killed: impl Fn(&VmId) -> bool,
    ) -> Vec<VmStatus> {
        let span = now.since(self.since);
        let status = |member: &Member| {
            let cores = member.cores.iter().map(|core| usize::from(*core));
            let restricted = cores.filter(|core| throttle.restricted(*core));
            VmStatus {
                vm: member.vm.id.clone(),
                class: member.vm.class,
                cores: member.vm.vcpus.unwrap_or(member.vm.cores.len() as u16),
                shares_cores: member.vm.vcpus.map(|_| member.vm.cores.len() as u16),
                min_khz: restricted.map(|core| throttle.khz(core)).min().filter(|_| !floating),
                quota_millicores: member.quota(throttle).filter(|_| floating),
                throttle_order: member.vm.throttle_order,
                on_extreme: member.vm.on_extreme,
                origin: None,
                advised_class: None,
                advised_why: None,
                predicted: None,
                estimated_w: None,
                killed: killed(&member.vm.id),
                impact: member.impact.status(now, span, floating),
            }
        };

        self.members.iter().map(status).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_types::{CoreId, KiloHertz, Ladder};

    fn cores() -> Vec<Core> {
        let mhz = KiloHertz::from_mhz;
        let ladder = Ladder::new(&[mhz(1000), mhz(2000)]).unwrap();
        (0..6).map(|n| Core { id: CoreId(10 + n), ladder: ladder.clone() }).collect()
    }
    fn vm(id: &str, class: VmClass, throttle_order: u8, cores: &[u16]) -> ControlledVm {
        let cores = cores.iter().copied().map(CoreId).collect();
        let on_extreme = OnExtreme::None;
        ControlledVm { id: VmId::new(id).unwrap(), class, throttle_order, cores, vcpus: None, on_extreme }
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
        let class = |order, floor_percent, cores: &[u16]| Class {
            order,
            user_facing: false,
            floor_percent,
            cores: cores.to_vec(),
        };

        let by_order = BTreeMap::from([(7, 60)]);
        let floors = Floors { by_order: &by_order, user_facing: None };
        let low = [class(2, 0, &[3]), class(7, 60, &[0, 4])];
        assert_eq!(fleet.classes(&floors), low);
        let floors = Floors { user_facing: Some(80), ..floors };
        let last = Class { user_facing: true, ..class(255, 80, &[1, 2]) };
        assert_eq!(fleet.classes(&floors), [&low[..], &[last]].concat());
    }

    #[test]
    fn throttled_time_is_core_time_and_survives_a_new_set() {
        let mut fleet = Fleet::new(6, Instant::ZERO);
        let mut throttle = Throttle::new(cores(), false);
        fleet.replace(vec![vm("a", Nuf, 0, &[10, 11, 12])], &cores());
        throttle.recover(0, 0);
        throttle.recover(1, 0);
        let ms = Instant::from_millis;
        fleet.account(ms(100), &throttle, false);
        assert_eq!(fleet.status(ms(150), &throttle, false, |_| false)[0].impact.throttled_core_ms, 100);

        fleet.account(ms(200), &throttle, false);
        fleet.replace(vec![vm("a", Nuf, 0, &[12]), vm("b", Nuf, 0, &[10])], &cores());
        fleet.account(ms(200), &throttle, false);
        let status = fleet.status(ms(300), &throttle, false, |_| false);
        assert_eq!((status[0].impact.throttled_core_ms, status[0].min_khz), (200, None));
        assert_eq!((status[1].impact.throttled_core_ms, status[1].cores), (100, 1));
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
            throttled: false,
        };
        fleet.usage(ms(0), &[usage("nobody"), usage("a")]);
        assert_eq!(fleet.core_usage(ms(5000), 0), Some(0.5));
        assert_eq!(fleet.core_usage(ms(5001), 0), None);
        assert_eq!(fleet.core_usage(ms(0), 1), None);
    }

    #[test]
    fn vms_of_a_pool_are_as_busy_together_as_its_cores() {
        let pooled = |id: &str, class, vcpus, cores: &[u16]| {
            let vcpus = Some(vcpus);
            ControlledVm { vcpus, ..vm(id, class, 0, cores) }
        };
        let usage = |id: &str, ratio: f64| VmUsage {
            vm: VmId::new(id).unwrap(),
            utilisation: Utilisation::from_ratio(ratio).unwrap(),
            throttled: false,
        };
        let mut fleet = Fleet::new(6, Instant::ZERO);
        let batch = [12, 13, 14, 15];
        let vms =
            vec![pooled("web", Uf, 4, &[10, 11]), pooled("a", Nuf, 6, &batch), pooled("b", Nuf, 2, &batch)];
        fleet.replace(vms, &cores());
        assert_eq!(
            fleet.classes(&Floors { by_order: &BTreeMap::new(), user_facing: None })[0].cores,
            [2, 3, 4, 5]
        );
        let now = Instant::from_millis(0);
        fleet.usage(now, &[usage("a", 0.3)]);
        assert_eq!(fleet.core_usage(now, 3), None, "one is not known");
        assert!((fleet.least_usage(now, 3) - 0.3).abs() < 1e-9);
        fleet.usage(now, &[usage("a", 0.3), usage("b", 0.9)]);
        assert_eq!(fleet.core_usage(now, 3), Some(1.0), "a core is no busier than that");

        // Four cores that are capped are four, shared out by the VMs' CPUs.
        let mut throttle = Throttle::new(cores(), false);
        for core in 2..6 {
            throttle.recover(core, 0);
        }
        fleet.account(now, &throttle, false);
        fleet.account(Instant::from_millis(4000), &throttle, false);
        let status = fleet.status(Instant::from_millis(4000), &throttle, false, |_| false);
        let shown: Vec<_> = status.iter().map(|vm| (vm.cores, vm.impact.throttled_core_ms)).collect();
        assert_eq!(shown, [(4, 0), (6, 12_000), (2, 4000)]);
        assert_eq!(status[1].shares_cores, Some(4));
    }

    #[test]
    fn a_floating_vm_is_held_when_it_uses_its_quota() {
        let mut fleet = Fleet::new(6, Instant::ZERO);
        fleet.replace(vec![vm("a", Nuf, 0, &[10, 11, 12, 13])], &cores());
        let mut throttle = Throttle::new(cores(), false);
        let member = &fleet.members[0];
        assert!(!member.is_held(1.0, false, &throttle), "no quota");
        let low = Class { order: 0, user_facing: false, floor_percent: 0, cores: vec![0, 1, 2, 3] };
        throttle.reclass(vec![low], crate::throttle::Joining::Floor);
        let quota = f64::from(member.quota(&throttle).unwrap()) / 1000.0;
        let share = quota / 4.0;
        for (used, stopped, is_held) in
            [(share, false, true), (share / 2.0, false, false), (share / 2.0, true, true)]
        {
            assert_eq!(member.is_held(used, stopped, &throttle), is_held, "{used} {stopped}");
        }

        // One of its units wants all its time then. A unit that two VMs have says nothing of either.
        let now = Instant::ZERO;
        for (used, wants) in [(share, 1.0), (share / 2.0, share / 2.0)] {
            let id = VmId::new("a").unwrap();
            let utilisation = Utilisation::from_ratio(used).unwrap();
            fleet.usage(now, &[VmUsage { vm: id, utilisation, throttled: false }]);
            let demand = fleet.demand(now, 0, &throttle).unwrap();
            assert!((demand - wants).abs() < 1e-3, "{used}: {demand}");
        }
        fleet.replace(vec![vm("a", Nuf, 0, &[10]), vm("b", Nuf, 0, &[10])], &cores());
        assert_eq!(fleet.demand(now, 0, &throttle), None);
    }
}
