//! What is throttled: the p-states of cores, or the bandwidth of floating VMs.
//!
//! The throttle moves both alike, as levels on a ladder. Only here is it known what a level means to the
//! machine, and what a previous instance may have left on it.

use ballast_types::{CoreId, Instant, KiloHertz, OnExtreme, VmClass, VmId};

use super::Agent;
use crate::actuators::Goal;
use crate::throttle::{Class, Joining};
use crate::units::{ladder, levels, millicores};
use crate::{ControlledVm, RecoveredQuota, RecoveredState};

/// One way to throttle.
pub(super) trait Mechanism {
    /// Takes over what a previous instance left. Until the VMs are told, that alone counts as low-priority: it
    /// was.
    fn adopt(&self, agent: &mut Agent, now: Instant, recovered: RecoveredState);

    /// Another set of VMs.
    fn replace(&self, agent: &mut Agent, vms: Vec<ControlledVm>);

    /// The new set has its classes: what nobody owns any more is lifted.
    fn replaced(&self, agent: &mut Agent, now: Instant);

    /// Has written what the throttle has changed.
    fn write(&self, agent: &mut Agent, now: Instant, changed: &[u16], of_drop: bool);

    /// Wants everything lifted.
    fn lift(&self, agent: &mut Agent, now: Instant);

    /// What did not obey is not at its floor, whatever it was told.
    fn floor_obeyed(&self, agent: &Agent) -> bool;

    /// The lowest p-state that is set.
    fn min_khz(&self, agent: &Agent) -> Option<KiloHertz>;

    /// The smallest share of its full bandwidth that a VM has, in percent; `None` if none is limited.
    fn min_share_percent(&self, agent: &Agent) -> Option<u8>;
}

/// Cores, by their p-states.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pstates;

impl Mechanism for Pstates {
    fn adopt(&self, agent: &mut Agent, now: Instant, recovered: RecoveredState) {
        let mut low = Vec::new();
        for (id, khz) in recovered.capped {
            let Ok(core) = agent.params.cores.binary_search_by_key(&id, |core| core.id) else {
                continue;
            };
            let ladder = &agent.params.cores[core].ladder;
            let level = ladder.at_or_below(khz);
            let ours = ladder.khz(level) == khz && level < ladder.top();
            agent.throttle.recover(core, level);
            agent.actuators.recover(core, if ours { Goal::Pstate(khz) } else { Goal::Unknown });
            low.push(core as u16);
        }

        low.sort_unstable();
        low.dedup();
        let cores = if agent.params.equal() { (0..agent.throttle.len() as u16).collect() } else { low };
        let class = Class { order: 0, user_facing: false, floor_percent: 0, cores };
        agent.throttle.reclass(vec![class], Joining::Free);

        // What is capped at the top of its ladder or above is not restricted, only untidy.
        for core in (0..agent.throttle.len()).filter(|core| !agent.throttle.restricted(*core)) {
            agent.actuators.request(now, core, Goal::Lift, false, &mut agent.out);
        }
    }

    fn replace(&self, agent: &mut Agent, vms: Vec<ControlledVm>) {
        agent.fleet.replace(vms, &agent.params.cores);
    }

    fn replaced(&self, _: &mut Agent, _: Instant) {}

    fn write(&self, agent: &mut Agent, now: Instant, changed: &[u16], of_drop: bool) {
        for core in changed.iter().map(|core| usize::from(*core)) {
            let free = !agent.throttle.restricted(core);
            let goal = if free { Goal::Lift } else { Goal::Pstate(agent.throttle.khz(core)) };
            agent.actuators.request(now, core, goal, of_drop, &mut agent.out);
        }
    }

    fn lift(&self, agent: &mut Agent, now: Instant) {
        for core in 0..agent.throttle.len() {
            agent.actuators.request(now, core, Goal::Lift, false, &mut agent.out);
        }
    }

    fn floor_obeyed(&self, agent: &Agent) -> bool {
        agent.throttle.low().all(|core| agent.actuators.obeyed(core))
    }

    fn min_khz(&self, agent: &Agent) -> Option<KiloHertz> {
        agent.throttle.min_khz()
    }

    fn min_share_percent(&self, _: &Agent) -> Option<u8> {
        None
    }
}

/// Floating VMs, by their CPU bandwidth. No core is ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quotas;

impl Mechanism for Quotas {
    fn adopt(&self, agent: &mut Agent, now: Instant, recovered: RecoveredState) {
        let Some(ladder) = ladder(&agent.params.cores).cloned() else { return };
        let vms = recovered.quotas.iter().map(|RecoveredQuota { vm, cores, .. }| ControlledVm {
            id: vm.clone(),
            class: VmClass::NonUserFacing,
            throttle_order: 0,
            cores: (0..*cores).map(CoreId).collect(),
            vcpus: None,
            on_extreme: OnExtreme::None,
        });

        self.replace(agent, vms.collect());

        for RecoveredQuota { vm, millicores: quota, .. } in recovered.quotas {
            let index = agent.actuators.vm(&vm);
            let units = agent.fleet.units(&vm).to_vec();
            let mut sum = 0;

            for (unit, level) in units.iter().zip(levels(&ladder, units.len(), quota)) {
                agent.throttle.recover(usize::from(*unit), level);
                sum += millicores(&ladder, level);
            }

            let restricted = units.iter().any(|s| agent.throttle.restricted(usize::from(*s)));
            let ours = sum == quota && restricted;
            agent.actuators.recover(index, if ours { Goal::Quota(quota) } else { Goal::Unknown });

            // What is no limit to us is not restricted, only untidy.
            if !restricted {
                agent.actuators.request(now, index, Goal::Lift, false, &mut agent.out);
            }
        }

        let classes = agent.fleet.classes(&agent.params.floors());
        agent.throttle.reclass(classes, Joining::Free);
    }

    fn replace(&self, agent: &mut Agent, vms: Vec<ControlledVm>) {
        let params = &agent.params;
        for unit in agent.fleet.replace_floating(&vms, |vm| params.has_units(vm.class)) {
            agent.throttle.forget(unit);
        }
        if let Some(ladder) = ladder(&agent.params.cores) {
            agent.throttle.grow(agent.fleet.unit_count(), ladder);
        }
    }

    fn replaced(&self, agent: &mut Agent, now: Instant) {
        for vm in agent.actuators.vms() {
            let index = agent.actuators.vm(&vm);
            let goal = quota(agent, &vm);
            // What a previous instance left, and is no quota of ours, is no less strict than ours.
            if goal == Goal::Lift || agent.actuators.goal(index) != Goal::Unknown {
                agent.actuators.request(now, index, goal, false, &mut agent.out);
            }
        }
    }

    fn write(&self, agent: &mut Agent, now: Instant, changed: &[u16], of_drop: bool) {
        for vm in agent.fleet.owners(changed) {
            let (index, goal) = (agent.actuators.vm(&vm), quota(agent, &vm));
            agent.actuators.request(now, index, goal, of_drop, &mut agent.out);
        }
    }

    fn lift(&self, agent: &mut Agent, now: Instant) {
        for vm in agent.actuators.vms() {
            let index = agent.actuators.vm(&vm);
            agent.actuators.request(now, index, Goal::Lift, false, &mut agent.out);
        }
    }

    fn floor_obeyed(&self, agent: &Agent) -> bool {
        agent.actuators.vms_obeyed()
    }

    fn min_khz(&self, _: &Agent) -> Option<KiloHertz> {
        None
    }

    fn min_share_percent(&self, agent: &Agent) -> Option<u8> {
        let percent = |(quota, cores): (u32, u32)| (quota / (cores * 10).max(1)).min(100) as u8;
        agent.fleet.quotas(&agent.throttle).map(percent).min()
    }
}

/// What a VM's units come to.
fn quota(agent: &Agent, vm: &VmId) -> Goal {
    let units = agent.fleet.units(vm);
    if !units.iter().any(|unit| agent.throttle.restricted(usize::from(*unit))) {
        return Goal::Lift;
    }
    let share = |unit: &u16| {
        let unit = usize::from(*unit);
        millicores(agent.throttle.ladder(unit), agent.throttle.level(unit))
    };
    Goal::Quota(units.iter().map(share).sum())
}
