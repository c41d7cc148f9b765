//! One server as its agent's daemon sees it: clock, journal, meter.

use core::time::Duration;

use ballast_agent_core::{Found, Memory, Reading, SensorFault, Vm};
use ballast_types::{CoreId, Instant, KiloHertz, ServerId, VmClass, Watts};

use super::AgentTape;
use super::faults::MeterFault;
use crate::plant::{MeterReading, ServerSpec};

/// A meter that shows the same for this many reads is called frozen.
const FROZEN_AFTER: u32 = 15;

/// See the module.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) id: ServerId,
    /// Its agent's clock is this far ahead of the world's: no clocks are shared.
    pub(crate) ahead: Duration,
    pub(crate) life: u32,
    pub(crate) memory: Memory,
    pub(crate) vms: Vec<Vm>,
    cores: Vec<CoreState>,
    /// The limit that an actuator has set.
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
    max: KiloHertz,
    low: bool,
    /// What the journal says that it may be capped to.
    journal: Option<KiloHertz>,
    written: Option<KiloHertz>,
    changes: u32,
}

impl Host {
    pub(crate) fn new(spec: &ServerSpec, ahead: Duration, tape: Option<AgentTape>) -> Self {
        let vms: Vec<_> = (spec.vms.iter())
            .map(|vm| Vm {
                id: vm.id.clone(),
                class: vm.class,
                throttle_order: vm.throttle_order,
                cores: vm.cores.clone(),
            })
            .collect();
        let has = |class, core: &CoreId| {
            vms.iter().any(|vm: &Vm| vm.class == class && vm.cores.contains(core))
        };
        let cores = (spec.cores.iter())
            .map(|core| CoreState {
                id: core.id,
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
            life: 0,
            memory: Memory::default(),
            vms,
            cores,
            server_limit: None,
            limit_journalled: false,
            last: None,
            repeats: 0,
            tape,
        }
    }

    /// What a starting agent reads from its journal.
    pub(crate) fn found(&self) -> Found {
        Found {
            memory: self.memory,
            capped: self.cores.iter().filter_map(|c| Some((c.id, c.journal?))).collect(),
            server_limit: self.limit_journalled,
        }
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

    /// A cap was written, or lifted.
    pub(crate) fn wrote(&mut self, id: CoreId, khz: Option<KiloHertz>) {
        if let Some(core) = self.core(id) {
            core.changes += u32::from(core.written != khz);
            core.written = khz;
            if khz.is_none() {
                core.journal = None;
            }
        }
    }

    /// Cores that are capped now.
    pub(crate) fn capped(&self) -> usize {
        self.cores.iter().filter(|c| c.written.is_some_and(|khz| khz < c.max)).count()
    }

    /// P-state changes of the core that had the most.
    pub(crate) fn changes_max(&self) -> u32 {
        self.cores.iter().map(|c| c.changes).max().unwrap_or(0)
    }

    /// What the agent's daemon makes of its meter.
    pub(crate) fn read(&mut self, meter: MeterReading, fault: Option<MeterFault>) -> Reading {
        let shown = match (fault, self.last) {
            (Some(MeterFault::Missing), _) => return Reading::Fault(SensorFault::Unreadable),
            (Some(MeterFault::Frozen), Some(last)) => last,
            (Some(MeterFault::Zero), _) => MeterReading { watts: Watts::ZERO, ..meter },
            (Some(MeterFault::Absurd), _) => {
                MeterReading { watts: Watts::from_milli(meter.watts.milli() * 100), ..meter }
            }
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
