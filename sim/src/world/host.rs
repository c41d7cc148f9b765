//! One server as its agent's daemon sees it: clock, journal, meter.

use core::time::Duration;

use ballast_agent_core::{ControlledVm, Memory, Reading, RecoveredQuota, RecoveredState, SensorFault};
use ballast_types::{CoreId, Instant, KiloHertz, OnExtreme, ServerId, VmClass, VmId, Watts};

use super::faults::MeterFault;
use super::tape::AgentTape;
use crate::plant::{MeterReading, ServerSpec};

/// A meter that shows the same for this many reads is called frozen.
const FROZEN_AFTER: u32 = 15;

#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) id: ServerId,
    /// Its agent's clock is this far ahead of the world's: no clocks are shared.
    pub(crate) ahead: Duration,
    pub(crate) instance: u32,
    /// The instance whose writes under way were lost when it was killed.
    pub(crate) cut: Option<u32>,
    /// Its agent only watches: nothing of what it wants is done.
    pub(crate) is_dry_run: bool,
    /// Its agent lowers p-states; else the bandwidth or frequency of VMs.
    pub(crate) uses_pstates: bool,
    pub(crate) memory: Memory,
    /// The first memory that was written: an old backup.
    pub(crate) first_memory: Memory,
    /// When its agent last obeyed a message.
    pub(crate) obeyed_at: Option<Instant>,
    /// What its agent last said that the server draws.
    pub(crate) reported: Watts,
    pub(crate) leased: bool,
    pub(crate) boots: u32,
    pub(crate) vms: Vec<ControlledVm>,
    /// By VM: it was killed.
    gone: Vec<bool>,
    cores: Vec<CoreState>,
    quotas: Vec<QuotaState>,
    pub(crate) server_limit: Option<Watts>,
    /// The journal says that it may be on.
    pub(crate) limit_journalled: bool,
    last: Option<MeterReading>,
    repeats: u32,
    pub(crate) tape: Option<AgentTape>,
}

#[derive(Clone, Copy, Debug)]
struct CoreState {
    id: CoreId,
    min: KiloHertz,
    max: KiloHertz,
    low: bool,
    /// What the journal says that it may be capped to.
    journal: Option<KiloHertz>,
    written: Option<KiloHertz>,
    changes: u32,
}

/// What a VM's bandwidth is limited to, in millicores.
#[derive(Clone, Copy, Debug, Default)]
struct QuotaState {
    journal: Option<u32>,
    written: Option<u32>,
    changes: u32,
    /// Periods in which the VM was stopped, as last read.
    stops: u64,
}

/// What a meter shows that is off by so many parts per million.
pub(crate) fn biased(watts: Watts, ppm: i32) -> Watts {
    watts.ppm(1_000_000_u32.saturating_add_signed(ppm))
}

impl Host {
    pub(crate) fn new(spec: &ServerSpec, ahead: Duration, tape: Option<AgentTape>) -> Self {
        let vms: Vec<_> = (spec.vms.iter())
            .map(|vm| ControlledVm {
                id: vm.id.clone(),
                class: vm.class,
                throttle_order: vm.throttle_order,
                cores: vm.cores.clone(),
                vcpus: vm.vcpus,
                on_extreme: vm.on_extreme,
            })
            .collect();
        let has = |class, core: &CoreId| {
            vms.iter().any(|vm: &ControlledVm| vm.class == class && vm.cores.contains(core))
        };
        let cores = (spec.cores.iter())
            .map(|core| CoreState {
                id: core.id,
                min: core.ladder.floor(),
                max: core.ladder.max(),
                low: has(VmClass::NonUserFacing, &core.id) && !has(VmClass::UserFacing, &core.id),
                journal: None,
                written: None,
                changes: 0,
            })
            .collect();
        Self {
            id: spec.id.clone(),
            ahead,
            instance: 0,
            cut: None,
            is_dry_run: false,
            uses_pstates: true,
            memory: Memory::default(),
            first_memory: Memory::default(),
            obeyed_at: None,
            reported: Watts::ZERO,
            leased: false,
            boots: 1,
            quotas: vec![QuotaState::default(); vms.len()],
            gone: vec![false; vms.len()],
            vms,
            cores,
            server_limit: None,
            limit_journalled: false,
            last: None,
            repeats: 0,
            tape,
        }
    }

    /// Whether its tenant prefers a VM's death, and nobody waits for it.
    pub(crate) fn may_kill(&self, id: &VmId) -> bool {
        let may = |vm: &ControlledVm| vm.class == VmClass::NonUserFacing && vm.on_extreme == OnExtreme::Kill;
        self.vms.iter().any(|vm| vm.id == *id && may(vm))
    }

    /// A VM is gone: it keeps its number, and its cores belong to nobody.
    pub(crate) fn reap(&mut self, id: &VmId) {
        for (vm, gone) in self.vms.iter().zip(&mut self.gone) {
            *gone |= vm.id == *id;
        }
        let there = self.there();
        for core in &mut self.cores {
            core.low &= there.iter().any(|vm| vm.cores.contains(&core.id));
        }
    }

    pub(crate) fn remember(&mut self, memory: Memory) {
        if self.first_memory == Memory::default() {
            self.first_memory = memory.clone();
        }
        self.memory = memory;
    }

    /// The machine boots: nothing is capped, and the journal of the boot before is void.
    pub(crate) fn boot(&mut self) {
        self.boots += 1;
        for core in &mut self.cores {
            (core.journal, core.written) = (None, None);
        }
        for quota in &mut self.quotas {
            (quota.journal, quota.written) = (None, None);
        }
        (self.server_limit, self.limit_journalled) = (None, false);
        (self.last, self.repeats) = (None, 0);
    }

    /// Whether its agent holds anything down.
    pub(crate) fn is_restricted(&self) -> bool {
        self.server_limit.is_some() || self.capped() > 0 || self.limited() > 0
    }

    /// Low-priority cores above their lowest p-state, or, without p-states, low-priority VMs without any limit.
    pub(crate) fn above_floor(&self) -> usize {
        if self.uses_pstates {
            return self
                .cores
                .iter()
                .filter(|core| core.low && core.written.is_none_or(|khz| khz > core.min))
                .count();
        }
        let vms = self.vms.iter().zip(&self.gone).zip(&self.quotas);
        vms.filter(|((vm, gone), quota)| {
            vm.class == VmClass::NonUserFacing && !**gone && quota.written.is_none()
        })
        .count()
    }

    /// Whether the journal is empty: every original value is back.
    pub(crate) fn is_restored(&self) -> bool {
        let cores = self.cores.iter().all(|core| core.journal.is_none());
        let quotas = self.quotas.iter().all(|quota| quota.journal.is_none());
        cores && quotas && !self.limit_journalled && !self.is_restricted()
    }

    /// What is changed and stands in no journal: nobody would put it back.
    pub(crate) fn lost_originals(&self) -> usize {
        let cores = self.cores.iter().filter(|core| core.written.is_some() && core.journal.is_none());
        let quotas = self.quotas.iter().filter(|quota| quota.written.is_some() && quota.journal.is_none());
        let limit = self.server_limit.is_some() && !self.limit_journalled;
        cores.count() + quotas.count() + usize::from(limit)
    }

    pub(crate) fn there(&self) -> Vec<ControlledVm> {
        let vms = self.vms.iter().zip(&self.gone).filter(|(_, gone)| !**gone);
        vms.map(|(vm, _)| vm.clone()).collect()
    }

    /// What a starting agent reads from its journal.
    pub(crate) fn found(&self) -> RecoveredState {
        RecoveredState {
            memory: self.memory.clone(),
            capped: self.cores.iter().filter_map(|c| Some((c.id, c.journal?))).collect(),
            server_limit: self.limit_journalled,
            quotas: (self.vms.iter().zip(&self.quotas))
                .filter_map(|(vm, quota)| {
                    let cores = vm.cores.len() as u16;
                    Some(RecoveredQuota { vm: vm.id.clone(), cores, millicores: quota.journal? })
                })
                .collect(),
        }
    }

    /// Journals a quota before it is written; false if it takes from a user-facing VM.
    pub(crate) fn journal_quota(&mut self, vm: usize, millicores: u32) -> bool {
        self.quotas[vm].journal = Some(millicores);
        self.vms[vm].class == VmClass::NonUserFacing
    }

    /// A quota was written, or lifted.
    pub(crate) fn wrote_quota(&mut self, vm: usize, millicores: Option<u32>) {
        let it = &mut self.quotas[vm];
        it.changes += u32::from(it.written != millicores);
        it.written = millicores;
        if millicores.is_none() {
            it.journal = None;
        }
    }

    /// Whether a VM was stopped since the last look.
    pub(crate) fn stopped(&mut self, vm: usize, periods: u64) -> bool {
        core::mem::replace(&mut self.quotas[vm].stops, periods) != periods
    }

    /// VMs whose bandwidth is limited now.
    pub(crate) fn limited(&self) -> usize {
        self.quotas.iter().filter(|quota| quota.written.is_some()).count()
    }

    fn core(&mut self, id: CoreId) -> Option<&mut CoreState> {
        // Ids mostly are positions.
        let guess = usize::from(id.0);
        let at = match self.cores.get(guess) {
            Some(core) if core.id == id => guess,
            _ => self.cores.iter().position(|c| c.id == id)?,
        };
        self.cores.get_mut(at)
    }

    /// Journals a cap before it is written; false if it lowers a core that is not low-priority.
    pub(crate) fn journal(&mut self, id: CoreId, khz: KiloHertz) -> bool {
        self.core(id).is_none_or(|core| {
            core.journal = Some(khz);
            core.low || khz >= core.max
        })
    }

    pub(crate) fn wrote(&mut self, id: CoreId, khz: Option<KiloHertz>) {
        if let Some(core) = self.core(id) {
            core.changes += u32::from(core.written != khz);
            core.written = khz;
            if khz.is_none() {
                core.journal = None;
            }
        }
    }

    pub(crate) fn capped(&self) -> usize {
        self.cores.iter().filter(|c| c.written.is_some_and(|khz| khz < c.max)).count()
    }

    /// Changes of the core, or of the VM's quota, that had the most.
    pub(crate) fn changes_max(&self) -> u32 {
        let quotas = self.quotas.iter().map(|q| q.changes);
        self.cores.iter().map(|c| c.changes).chain(quotas).max().unwrap_or(0)
    }

    /// What the agent's daemon makes of its meter.
    pub(crate) fn read(&mut self, meter: MeterReading, fault: Option<MeterFault>) -> Reading {
        let shown = match (fault, self.last) {
            (Some(MeterFault::Missing), _) => return Reading::Fault(SensorFault::Unreadable),
            (Some(MeterFault::Frozen), Some(last)) => last,
            (Some(MeterFault::Zero), _) => MeterReading { watts: Watts::ZERO, ..meter },
            (Some(MeterFault::Implausible), _) => {
                MeterReading { watts: Watts::from_milli(meter.watts.milli() * 100), ..meter }
            }
            (Some(MeterFault::Biased(ppm)), _) => MeterReading { watts: biased(meter.watts, ppm), ..meter },
            (Some(MeterFault::Frozen), None) | (None, _) => meter,
        };

        self.repeats = if self.last == Some(shown) { self.repeats + 1 } else { 0 };
        self.last = Some(shown);

        if self.repeats >= FROZEN_AFTER {
            return Reading::Fault(SensorFault::Frozen);
        }
        let taken_at = Instant::from_nanos(shown.refreshed_at.as_nanos()) + self.ahead;

        Reading::Sample { watts: shown.watts, taken_at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::overloaded;

    #[test]
    fn a_change_without_its_journal_is_a_lost_original() {
        let mut host = Host::new(&overloaded(1, 1.0, 1.0).servers[0], Duration::ZERO, None);
        let (core, khz) = (CoreId(0), KiloHertz::from_mhz(1200));
        host.journal(core, khz);
        host.journal_quota(0, 500);
        assert_eq!((host.lost_originals(), host.is_restored()), (0, false));
        host.wrote(core, Some(khz));
        host.wrote_quota(0, Some(500));
        assert_eq!(host.lost_originals(), 0);
        (host.cores[0].journal, host.quotas[0].journal) = (None, None);
        assert_eq!(host.lost_originals(), 2);
    }
}
