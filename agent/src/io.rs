//! What the agent's controller is told, and what it wants done.

use ballast_types::wire::{Alert, Event, Refusal, Report};
use ballast_types::{
    ActionId, CoreId, Epoch, Instant, KiloHertz, Utilisation, VmClass, VmId, Watts,
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
    Vms(Vec<Vm>),
    /// An actuator's answer.
    Applied {
        /// Which action.
        id: ActionId,
        /// How it went.
        result: Result<(), ActuatorError>,
    },
    /// The daemon stops: lift everything, and say `leaving` in reports from now on.
    Leave,
}

/// One reading of the server's power meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    /// A plausible value.
    Sample {
        /// The draw.
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
    Absurd,
    /// The value has not changed for many refreshes.
    Frozen,
}

/// One VM's CPU use.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VmUsage {
    /// Which VM.
    pub vm: VmId,
    /// Share of its cores' time that it ran.
    pub utilisation: Utilisation,
}

/// One VM and the cores that are its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Vm {
    /// Which VM.
    pub id: VmId,
    /// Who it works for.
    pub class: VmClass,
    /// Lower is throttled first.
    pub throttle_order: u8,
    /// Its cores. A core that a user-facing VM also has counts as high-priority.
    pub cores: Vec<CoreId>,
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
        /// Which action.
        id: ActionId,
        /// Which core.
        core: CoreId,
        /// The highest frequency it may run at.
        khz: KiloHertz,
    },
    /// Release one core. Answered.
    Lift {
        /// Which action.
        id: ActionId,
        /// Which core.
        core: CoreId,
    },
    /// Limit the whole server by its own hardware (RAPL). Answered.
    SetServerLimit {
        /// Which action.
        id: ActionId,
        /// The server's draw, at most.
        watts: Watts,
    },
    /// Release that limit. Answered.
    LiftServerLimit {
        /// Which action.
        id: ActionId,
    },
    /// The answer to the alert that was just handled.
    Report(Report),
    /// The alert that was just handled is not obeyed.
    Refuse(Refusal),
    /// Keep this for the next start.
    Remember(Memory),
    /// Something that an operator may want to see.
    Event(Event),
}

/// What an agent keeps over a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Memory {
    /// The newest epoch obeyed.
    pub epoch: Epoch,
    /// What the server may draw when nobody tells it anything.
    pub fallback_w: Option<Watts>,
}

/// What a starting agent found already restricted on its server, by its own journal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Found {
    /// What the agent kept from before.
    pub memory: Memory,
    /// Cores that an earlier life had capped, and to what.
    pub capped: Vec<(CoreId, KiloHertz)>,
    /// Whether an earlier life had the server's own limit on.
    pub server_limit: bool,
}
