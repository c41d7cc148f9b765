//! What crosses the network: HTTP/1.1 bodies in JSON.
//!
//! Unknown fields are ignored, so that newer peers can speak to older ones; `tests` pins the bytes.

use serde::{Deserialize, Serialize};

use crate::{
    BootId, ChassisId, Epoch, Instant, KiloHertz, OnExtreme, Seq, ServerId, VmClass, VmId, Watts,
};

/// How urgent an alert is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// No capping episode: the message keeps the lease and the report fresh.
    Watch,
    /// Keep under `cap_w`.
    Cap,
    /// Every low-priority class to its floor, at once.
    Emergency,
}

/// `POST /v1/alert`, chassis to agent: desired state, complete in itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Alert {
    /// Whose budget this is.
    pub chassis_id: ChassisId,
    /// The chassis manager's life.
    pub epoch: Epoch,
    /// The message's number within the epoch, for this server.
    pub seq: Seq,
    /// How urgent.
    pub level: Level,
    /// `boot_id` of the newest report that the chassis has from this agent.
    pub echo_boot_id: Option<BootId>,
    /// `agent_ms` of that report. A lease runs from here, so that a delayed message grants nothing.
    pub echo_agent_ms: Option<u64>,
    /// The chassis's draw, as last measured.
    pub chassis_power_w: Option<Watts>,
    /// The least of the budget and what the power supplies can carry.
    pub chassis_limit_w: Watts,
    /// The server's cap; `null` is uncapped.
    pub cap_w: Option<Watts>,
    /// What the server may draw when nobody tells it anything.
    pub fallback_w: Watts,
    /// How long a raise lasts after the echoed report.
    pub valid_for_ms: u64,
}

/// What an agent is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentState {
    /// No valid power sample yet: restrictions found at start stay.
    Boot,
    /// Nothing is restricted.
    Uncapped,
    /// The low-priority cores are at their floor, or on the way there.
    Throttled,
    /// Frequency is given back step by step under the cap.
    Recovering,
    /// The floor was not enough: the server's own hardware limit is on.
    Shedding,
    /// No usable power reading: restrictions stay, nothing rises.
    Blind,
}

/// The answer to [`Alert`], and the agent's view of itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Report {
    /// Who reports.
    pub server: ServerId,
    /// The machine's boot.
    pub boot_id: BootId,
    /// The agent's clock, in milliseconds since boot.
    pub agent_ms: u64,
    /// The newest epoch obeyed.
    pub epoch_seen: Epoch,
    /// The newest message obeyed.
    pub seq_seen: Seq,
    /// The newest message whose cap a fresh sample shows respected; only this frees watts for others.
    pub enforced_seq: Option<Seq>,
    /// What the agent is doing.
    pub state: AgentState,
    /// The server's draw; `null` when there is no usable reading.
    pub power_w: Option<Watts>,
    /// The cap in force, lease rules included; `null` is uncapped.
    pub cap_w: Option<Watts>,
    /// Watts that the low-priority cores can still shed.
    pub sheddable_w: Watts,
    /// Watts that would come back if every restriction were lifted; an upper estimate.
    pub restorable_w: Watts,
    /// How many cores are low-priority.
    pub low_cores: u16,
    /// The lowest p-state that the agent has set; `null` when nothing is capped.
    pub min_khz: Option<KiloHertz>,
    /// Whether the server's own hardware limit is on.
    pub server_limit: bool,
    /// Whether the agent is stopping: it will restore everything and fall silent.
    pub leaving: bool,
    /// Actions given up after the last retry.
    pub actuator_failures: u64,
}

/// Why an alert was not obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalReason {
    /// Not newer than what was seen.
    Stale,
    /// From a chassis that this agent does not belong to.
    ForeignChassis,
    /// An epoch that no restart explains.
    EpochJump,
}

/// The body of a 409.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Refusal {
    /// Why.
    pub reason: RefusalReason,
    /// The newest epoch that this agent has seen.
    pub newest_epoch: Epoch,
    /// The newest message of that epoch.
    pub newest_seq: Seq,
}

/// The body of every other error answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What is wrong and what is allowed.
    pub error: String,
}

/// `PUT /v1/vms/{id}`, to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmSpec {
    /// Who the VM works for.
    pub class: VmClass,
    /// Lower is throttled first; VMs with the same number are throttled together.
    #[serde(default)]
    pub throttle_order: u8,
    /// How many physical cores it gets.
    pub cores: u16,
    /// Its cgroup, relative to the cgroup root; without one its cores are not moved.
    #[serde(default)]
    pub cgroup: Option<String>,
    /// What may be done when throttling is not enough.
    #[serde(default)]
    pub on_extreme: OnExtreme,
}

/// `PUT /v1/budget`, to a chassis. May only lower the budget below the configured one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetRequest {
    /// The new budget.
    pub budget_w: Watts,
}

/// What a chassis manager is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChassisState {
    /// No complete power reading yet.
    Boot,
    /// Under the threshold; agents are watched.
    Normal,
    /// A capping episode.
    Alerting,
    /// Software was not enough, or did not answer: out-of-band caps are on.
    OutOfBand,
    /// No usable power reading.
    Blind,
    /// Another manager rules this chassis: nothing is sent any more.
    Fenced,
}

/// What is known of one server's agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Slot {
    /// Its agent answers.
    Managed,
    /// Its agent should answer and does not.
    Silent,
    /// Switched off, by the BMC's word; its reserve is kept.
    Off,
    /// Set aside by the operator; its reserve is kept.
    Maintenance,
    /// Has no agent by configuration; its reserve is kept.
    Unmanaged,
}

/// One server in [`ChassisStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Which server.
    pub server: ServerId,
    /// What is known of its agent.
    pub slot: Slot,
    /// The newest report, if there is one.
    pub report: Option<Report>,
    /// How old that report is.
    pub report_age_ms: Option<u64>,
    /// What was last granted; `null` is uncapped.
    pub granted_w: Option<Watts>,
    /// What is reserved for it in the sum of shares.
    pub reserved_w: Watts,
    /// The out-of-band cap in force.
    pub out_of_band_w: Option<Watts>,
    /// Why the last message was not answered, if it was not.
    pub last_error: Option<String>,
}

/// `GET /v1/status` of a chassis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChassisStatus {
    /// Always `"chassis"`.
    pub role: String,
    /// Which chassis.
    pub chassis_id: ChassisId,
    /// This manager's life.
    pub epoch: Epoch,
    /// What it is doing.
    pub state: ChassisState,
    /// Its clock, in milliseconds since boot.
    pub now_ms: u64,
    /// The chassis's draw; `null` when there is no usable reading.
    pub power_w: Option<Watts>,
    /// The budget in force.
    pub budget_w: Watts,
    /// The least of the budget and what the power supplies can carry.
    pub limit_w: Watts,
    /// Watts that no agent's meter sees: fans, conversion loss, switch.
    pub shared_w: Watts,
    /// What the servers may share.
    pub sharable_w: Watts,
    /// Capping episodes since start.
    pub alerts: u64,
    /// Seconds the hardware fallback was on since start.
    pub out_of_band_ms: u64,
    /// Inputs refused since start.
    pub refused_inputs: u64,
    /// Every server, in configured order.
    pub servers: Vec<ServerStatus>,
    /// What an operator should look at.
    pub alarms: Vec<String>,
}

/// One VM in [`AgentStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmStatus {
    /// Which VM.
    pub vm: VmId,
    /// Who it works for.
    pub class: VmClass,
    /// How many cores it has.
    pub cores: u16,
    /// The lowest frequency cap on its cores; `null` when none is capped.
    pub min_khz: Option<KiloHertz>,
    /// Core-milliseconds that its cores were capped, since the agent started.
    pub throttled_core_ms: u64,
}

/// `GET /v1/status` of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Always `"agent"`.
    pub role: String,
    /// Which chassis it belongs to.
    pub chassis_id: ChassisId,
    /// The policy in force.
    pub policy: String,
    /// The report that the chassis would get now.
    pub report: Report,
    /// What the server may draw when nobody tells it anything.
    pub fallback_w: Option<Watts>,
    /// How long the lease still runs; `null` without one.
    pub lease_ms: Option<u64>,
    /// Alerts refused since start.
    pub refused_alerts: u64,
    /// Power readings that were missing or absurd since start.
    pub power_faults: u64,
    /// Every VM.
    pub vms: Vec<VmStatus>,
    /// What an operator should look at.
    pub alarms: Vec<String>,
}

/// One line of `GET /v1/events`.
///
/// `at_ns` counts from boot, so events of daemons on one machine share a clock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Event {
    /// When.
    pub at_ns: Instant,
    /// What.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// An agent changed its state.
    AgentState {
        /// From.
        from: AgentState,
        /// To.
        to: AgentState,
        /// The one cause.
        cause: String,
    },
    /// A chassis manager changed its state.
    ChassisState {
        /// From.
        from: ChassisState,
        /// To.
        to: ChassisState,
        /// The one cause.
        cause: String,
    },
    /// A chassis handed a message of a higher level to its sender.
    AlertSent {
        /// To whom.
        server: ServerId,
        /// Its epoch.
        epoch: Epoch,
        /// Its number.
        seq: Seq,
        /// Its level.
        level: Level,
    },
    /// The last low-priority core was written down to its floor, on behalf of this message.
    FloorReached {
        /// The message's epoch.
        epoch: Epoch,
        /// The message's number.
        seq: Seq,
        /// How many cores were written.
        cores: u16,
    },
    /// A server's slot changed.
    SlotChanged {
        /// Which server.
        server: ServerId,
        /// From.
        from: Slot,
        /// To.
        to: Slot,
        /// Why.
        cause: String,
    },
    /// Something an operator should look at.
    Alarm {
        /// What.
        message: String,
    },
}
