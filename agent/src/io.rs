//! What the agent's controller is told, and what it wants done.

use ballast_types::wire::{Alert, Event, Refusal, Report};
use ballast_types::{
    ActionId, ChassisId, CoreId, Epoch, Instance, Instant, KiloHertz, OnExtreme, Utilisation, VmClass, VmId,
    Watts,
};
use serde::{Deserialize, Serialize};

/// What the agent's controller is told.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// A message from the chassis manager; answered by [`Output::Report`] or [`Output::Refuse`].
    Alert(Alert),
    /// The server's own power meter.
    Power(Reading),
    /// CPU use of every VM since the last one, as a share of its cores.
    Usage(Vec<VmUsage>),
    /// Every VM of this server: the whole set, never a delta.
    Vms(Vec<ControlledVm>),
    Applied {
        id: ActionId,
        result: Result<(), ActuatorError>,
    },
    /// The daemon stops: say `leaving` in reports from now on, and lift everything once one has gone out.
    Leave,
}

/// One reading of the server's power meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    /// A plausible value.
    Sample {
        watts: Watts,
        /// When the meter produced it. A reading whose `taken_at` has not moved is not fresh.
        taken_at: Instant,
    },
    /// No usable value: never taken for low power.
    Fault(SensorFault),
}

/// Why there is no usable reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SensorFault {
    /// The file is gone, or reading it failed or took too long.
    Unreadable,
    /// Zero, negative, not a number, or beyond what the server can draw.
    Implausible,
    /// The value has not changed for many refreshes.
    Frozen,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VmUsage {
    pub vm: VmId,
    /// Share of its cores' time that it ran.
    pub utilisation: Utilisation,
    /// Whether its bandwidth limit stopped it in that time (`nr_throttled` of `cpu.stat` moved).
    pub throttled: bool,
}

/// One VM and its cores: its own, or those of its pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ControlledVm {
    pub id: VmId,
    /// Who it works for.
    pub class: VmClass,
    /// Lower is throttled first.
    pub throttle_order: u8,
    /// Its physical cores. A core that a user-facing VM also has counts as high-priority. With `cpu-max`
    /// only their number matters, and it counts CPUs: a floating VM runs on any of them.
    pub cores: Vec<CoreId>,
    /// How many CPUs it has, if it shares these cores with the others of its pool; absent if they are its own.
    pub vcpus: Option<u16>,
    /// What may be done to it when throttling is not enough.
    pub on_extreme: OnExtreme,
}

/// Why an actuator did not do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActuatorError {
    /// May work when tried again (EBUSY, EAGAIN, a timeout).
    Transient,
    /// Will not work when tried again (EACCES, EROFS, ENODATA, no such file).
    Permanent,
}

/// What the agent's controller wants done. Desired state: doing it twice is doing it once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// Cap one core at one p-state. Answered by [`Input::Applied`].
    SetPstate {
        id: ActionId,
        core: CoreId,
        /// The highest frequency it may run at.
        khz: KiloHertz,
    },
    /// Release one core. Answered.
    Lift { id: ActionId, core: CoreId },
    /// Limit the CPU bandwidth of one VM (`cpu-max`), or its frequency (`uclamp`). Answered; a VM that is gone is
    /// done.
    SetQuota {
        id: ActionId,
        vm: VmId,
        /// CPU time per time, in thousandths of a core; or of a core's highest frequency, summed over its cores.
        millicores: u32,
    },
    /// Put back the bandwidth that a VM had before. Answered.
    LiftQuota { id: ActionId, vm: VmId },
    /// Limit the whole server by its own hardware (RAPL). Answered.
    SetServerLimit {
        id: ActionId,
        /// The server's draw, at most.
        watts: Watts,
    },
    /// Release that limit. Answered.
    LiftServerLimit { id: ActionId },
    /// Kill a VM, all of it, at once. Answered.
    KillVm { id: ActionId, vm: VmId },
    /// The answer to the alert that is being handled.
    Report(Report),
    /// The alert that was just handled is not obeyed.
    Refuse(Refusal),
    /// Keep this for the next start.
    Remember(Memory),
    /// Something that an operator may want to see.
    Event(Event),
}

impl Output {
    /// The number of the action, if this changes the machine: it is answered by [`Input::Applied`].
    pub fn action(&self) -> Option<ActionId> {
        match self {
            Self::SetPstate { id, .. }
            | Self::Lift { id, .. }
            | Self::SetQuota { id, .. }
            | Self::LiftQuota { id, .. }
            | Self::SetServerLimit { id, .. }
            | Self::LiftServerLimit { id }
            | Self::KillVm { id, .. } => Some(*id),
            Self::Report(_) | Self::Refuse(_) | Self::Remember(_) | Self::Event(_) => None,
        }
    }
}

/// What an agent keeps over a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Memory {
    /// Which chassis said all of this: in another one it holds nothing. Absent in what an agent kept that
    /// did not say it yet.
    pub chassis_id: Option<ChassisId>,
    /// The newest epoch obeyed; 0 before any.
    pub epoch: Epoch,
    /// Which start of a manager is obeyed in it, if that says so.
    pub instance: Option<Instance>,
    /// How long the newest message's lease was.
    pub lease_ms: Option<u64>,
    /// What the server may draw when nobody tells it anything.
    pub fallback_w: Option<Watts>,
}

/// What a starting agent found already restricted on its server, by its own journal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RecoveredState {
    /// What the agent kept from before.
    pub memory: Memory,
    /// Cores that a previous instance had capped, and to what.
    pub capped: Vec<(CoreId, KiloHertz)>,
    /// Whether a previous instance had the server's own limit on.
    pub server_limit: bool,
    /// VMs whose bandwidth, or frequency, a previous instance had limited; where VMs float.
    pub quotas: Vec<RecoveredQuota>,
}

/// A bandwidth limit that a previous instance left on a VM.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RecoveredQuota {
    pub vm: VmId,
    pub cores: u16,
    /// CPU time per time, or frequency, in thousandths of a core: as in [`Output::SetQuota`].
    pub millicores: u32,
}
