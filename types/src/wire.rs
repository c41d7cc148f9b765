//! What crosses the network: HTTP/1.1 bodies in JSON.
//!
//! Unknown fields are ignored, so that a later version can add some; `tests` pins the bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

mod alarm;
mod drain;
mod history;
mod kubernetes;
mod limits;
mod place;
mod prediction;
mod usage;

pub use crate::impact::{VmImpact, VmKill};
pub use alarm::{Alarm, AlarmId, Severity};
pub use drain::{DrainAnswer, DrainHost, DrainMove, DrainState, DrainStatus, MoveState};
pub use history::History;
pub use kubernetes::{FollowStatus, KubernetesStatus, ShadowStatus};
pub use limits::{FleetLimits, LimitAdvice, LimitSums, Limits, LimitsMode, VmLimits};
pub use place::{
    AdmissionStatus, AgentsStatus, ChassisBalance, HoldOut, InventoryStatus, LifetimeHistoryStatus,
    LifetimeModelStatus, ModelStatus, OvercommitStatus, PlaceStatus, PlacedVm, PredictStatus,
};
pub use prediction::{HeldPredictions, Predictions, VmPrediction};
pub use usage::{OverflowHour, Usage, VmCpuUse};

use crate::{
    BootId, ChassisId, Epoch, Instance, Instant, KiloHertz, OnExtreme, Role, Seq, ServerId, VmClass, VmId,
    Watts,
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
    /// A level of a newer version: it counts as [`Level::Cap`].
    #[serde(other)]
    Unknown,
}

/// `POST /v1/alert`, chassis to agent: desired state, complete in itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Alert {
    /// Whose budget this is.
    pub chassis_id: ChassisId,
    /// The chassis manager's instance. Nobody obeys 0: it asks whom the agent obeys.
    pub epoch: Epoch,
    /// The message's number within the epoch, for this server.
    pub seq: Seq,
    /// How urgent the message is.
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
    /// Which start of a chassis manager sends it.
    pub instance: Option<Instance>,
    /// The common height of all low-priority cores, in parts per million of the way from their floor to free. While
    /// the lease is live the server follows the height instead of its cap. `null`: the server keeps under its cap.
    pub height_ppm: Option<u32>,
    /// Whether the server also uses its own limit, and user-facing cores where the operator allows that, to hold its
    /// cap. With `false` and a live lease it lowers low-priority cores only. `null`: the agent decides.
    pub own_limit: Option<bool>,
    /// How many polls this start of the manager has judged, by supplies or reports. As long as it stands still,
    /// no lease is renewed. `null`: an older manager.
    pub judgements: Option<u64>,
}

impl Alert {
    /// A message that only watches: it names no cap and echoes no report.
    pub fn watch(chassis_id: ChassisId, epoch: Epoch, seq: Seq) -> Self {
        Self {
            chassis_id,
            epoch,
            seq,
            level: Level::Watch,
            echo_boot_id: None,
            echo_agent_ms: None,
            chassis_power_w: None,
            chassis_limit_w: Watts::ZERO,
            cap_w: None,
            fallback_w: Watts::ZERO,
            valid_for_ms: 0,
            instance: None,
            height_ppm: None,
            own_limit: None,
            judgements: None,
        }
    }
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
    /// A state of a newer version.
    #[serde(other)]
    Unknown,
}

/// What throttling one class can do, in [`Report`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClassWatts {
    /// Who its VMs work for.
    pub class: VmClass,
    /// Its place in the throttle list: lower is throttled first.
    pub order: u8,
    /// How many cores it has.
    pub cores: u16,
    /// Watts that it can still shed.
    pub sheddable_w: Watts,
    /// Watts that would come back if its restrictions were lifted; an upper estimate.
    pub restorable_w: Watts,
}

/// Another manager, that an agent refused, in [`Report`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OtherManager {
    /// Which start of a manager.
    pub instance: Instance,
    /// The epoch of the manager that sends.
    pub epoch: Epoch,
    /// The number of that manager's newest message.
    pub seq: Seq,
    /// How long ago that came.
    pub age_ms: u64,
}

/// The answer to [`Alert`], and the agent's view of itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Report {
    /// The server that reports.
    pub server: ServerId,
    /// The kernel's id of the machine's boot.
    pub boot_id: BootId,
    /// The agent's clock, in milliseconds since boot.
    pub agent_ms: u64,
    /// The newest epoch obeyed.
    pub epoch_obeyed: Epoch,
    /// The newest message obeyed.
    pub seq_obeyed: Seq,
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
    /// The lowest p-state that the agent has set; `null` when nothing is capped, and where VMs float.
    pub min_khz: Option<KiloHertz>,
    /// Where VMs float: the smallest share of its full CPU bandwidth, or frequency, that a VM has; `null` when none
    /// is limited.
    pub min_share_percent: Option<u8>,
    /// Whether the server's own hardware limit is on.
    pub server_limit: bool,
    /// Whether the agent is stopping: it will restore everything and fall silent.
    pub leaving: bool,
    /// Actions given up after the last retry.
    pub actuator_failures: u64,
    /// Whether nothing is written on this server: what the agent would do it only logs. Then nothing of it
    /// can be shed, and no cap is respected but by chance.
    pub dry_run: bool,
    /// Which start of a chassis manager is obeyed.
    pub instance_obeyed: Option<Instance>,
    /// The newest other manager whose messages were refused.
    pub refused: Option<OtherManager>,
    /// How many cores the server has; its weight where the operator gives it none.
    pub cores: Option<u16>,
    /// What throttling can do, class by class in the order of throttling.
    pub classes: Vec<ClassWatts>,
    /// How long restrictions outlive this agent, should it die: whoever watches over it lifts them then.
    pub orphan_hold_ms: Option<u64>,
}

impl Report {
    /// The report of an agent before its first alert and its first reading.
    pub const fn blank(server: ServerId, boot_id: BootId) -> Self {
        Self {
            server,
            boot_id,
            agent_ms: 0,
            epoch_obeyed: Epoch(0),
            seq_obeyed: Seq(0),
            enforced_seq: None,
            state: AgentState::Boot,
            power_w: None,
            cap_w: None,
            sheddable_w: Watts::ZERO,
            restorable_w: Watts::ZERO,
            low_cores: 0,
            min_khz: None,
            min_share_percent: None,
            server_limit: false,
            leaving: false,
            actuator_failures: 0,
            dry_run: false,
            instance_obeyed: None,
            refused: None,
            cores: None,
            classes: Vec::new(),
            orphan_hold_ms: None,
        }
    }
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
    /// Another manager of the same epoch is obeyed.
    OtherInstance,
    /// A reason of a newer version.
    #[serde(other)]
    Unknown,
}

/// The body of a 409.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Refusal {
    /// Why the alert is refused.
    pub reason: RefusalReason,
    /// The newest epoch that this agent has seen.
    pub newest_epoch: Epoch,
    /// The newest message of that epoch.
    pub newest_seq: Seq,
    /// Which start of a chassis manager is obeyed.
    pub instance: Option<Instance>,
}

/// The body of every other error answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What is wrong and what is allowed.
    pub error: String,
    /// All reasons why the daemon is not ready, one by one: of `/readyz` alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

/// `PUT /v1/vms/{id}`, to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmSpec {
    /// Who the VM works for. Untold it is user-facing, until its own use says otherwise (`auto_class`).
    pub class: Option<VmClass>,
    /// Lower is throttled first; VMs with the same number are throttled together.
    #[serde(default)]
    pub throttle_order: u8,
    /// How many CPUs it has. It gets whole physical cores with at least as many threads.
    pub cores: u16,
    /// Its cgroup, relative to the cgroup root; without one its cores are not moved.
    pub cgroup: Option<String>,
    /// What may be done when throttling is not enough.
    #[serde(default)]
    pub on_extreme: OnExtreme,
    /// Whose it is, or from which template: with too little history of its own its limits are those of others of the same.
    pub tenant: Option<String>,
    /// Whether it has cores of its own where others share those of a pool.
    #[serde(default)]
    pub pinned: bool,
}

impl VmSpec {
    /// The longest name of a tenant, in bytes.
    pub const TENANT_MAX: usize = 256;

    /// Who it counts as working for.
    pub fn class(&self) -> VmClass {
        self.class.unwrap_or(VmClass::UserFacing)
    }

    /// Whether what may be done to it goes together with what it is.
    ///
    /// # Errors
    /// Says which key is wrong and what is allowed.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.tenant.as_ref().is_some_and(|tenant| !(1..=Self::TENANT_MAX).contains(&tenant.len())) {
            return Err("tenant: 1 to 256 bytes");
        }
        if self.on_extreme == OnExtreme::None {
            return Ok(());
        }
        if self.class() == VmClass::UserFacing {
            return Err("on_extreme = \"kill\": only for class \"non-user-facing\"");
        }
        match &self.cgroup {
            None => Err("on_extreme = \"kill\": only with a cgroup, which is what is killed"),
            Some(path) if path.ends_with(".slice") => {
                Err("on_extreme = \"kill\": only with a cgroup of the VM alone, not a slice")
            }
            // `machine`, `docker`: cgroupfs drivers put every VM of theirs below it.
            Some(path) if !path.trim_matches('/').contains('/') => {
                Err("on_extreme = \"kill\": only with a cgroup below another, not one at the top")
            }
            Some(_) => Ok(()),
        }
    }
}

/// `PUT /v1/budget`, to a chassis. May only lower the budget below the configured one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetRequest {
    /// The budget that is to be in force, in watts.
    pub budget_w: Watts,
    /// Only says what it would take; nothing is changed.
    #[serde(default)]
    pub dry_run: bool,
    /// Sets it although batch work alone cannot make room for it.
    #[serde(default)]
    pub force: bool,
    /// Seconds until the configured budget is restored; `null`: the order holds until it is reset.
    pub for_s: Option<u64>,
}

/// The answer to `GET`, `PUT` and `DELETE /v1/budget`: what is in force, and what the budget that was
/// asked about takes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BudgetAnswer {
    /// The budget in force.
    pub budget_w: Watts,
    /// The configured one: the most that may be set.
    pub configured_w: Watts,
    /// When the configured budget comes back by itself, in seconds since 1970; `null`: it does not, or it
    /// is in force already.
    pub until_unix_s: Option<u64>,
    /// The chassis's draw: the higher of what its power supplies read and what its servers report; `null`
    /// without a usable reading.
    pub power_w: Option<Watts>,
    /// The budget that was asked about.
    pub requested_w: Watts,
    /// Whether that was set; in a dry run, whether it would be.
    pub accepted: bool,
    /// Whether the draw is under the budget in force.
    pub enforced: bool,
    /// Watts that the chassis draws above what was asked about; `null` without a usable reading.
    pub needs_w: Option<Watts>,
    /// Watts that the servers' low-priority cores can still shed, by their fresh reports.
    pub batch_can_shed_w: Watts,
    /// Whether hardware caps would have to shed the rest, or may have to: nobody can tell without a reading.
    pub hardware_would_act: bool,
    /// Whether user-facing VMs may be slowed by them.
    pub user_facing_hit: bool,
    /// All that in words.
    pub reason: String,
}

/// `POST /v1/power`, to a chassis: its draw, as somebody else measures it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerReading {
    /// Who reports; the one that is configured.
    pub source: String,
    /// The boot of the source's machine, or any id that it takes anew at every start.
    pub source_boot_id: BootId,
    /// The source's clock when it sent this, in milliseconds from an origin of its own; ascending
    /// within a boot.
    pub source_ms: u64,
    /// How old the reading was then.
    pub age_ms: u64,
    /// The draw, at the supplies' input.
    pub watts: Watts,
    /// The reading's number, ascending within a boot.
    pub seq: u64,
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
    /// Software was not enough, or did not answer: hardware caps are on.
    HardwareCaps,
    /// No usable power reading.
    Blind,
    /// Another manager rules this chassis: nothing is ordered any more.
    Fenced,
    /// A state of a newer version.
    #[serde(other)]
    Unknown,
}

/// How a chassis manager splits what its servers may share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SharePolicy {
    /// Every server the same: the paper's.
    #[default]
    Even,
    /// By what each server can still shed from low-priority cores.
    CriticalFirst,
}

impl SharePolicy {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Even, Self::CriticalFirst];

    /// Its name in config, options and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Even => "even",
            Self::CriticalFirst => "critical-first",
        }
    }
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
    /// Something of a newer version. A manager of this version never says it.
    #[serde(other)]
    Unknown,
}

/// One server in [`ChassisStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// The server that this is about.
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
    /// The hardware cap in force.
    pub hardware_cap_w: Option<Watts>,
    /// Why the last message was not answered, if it was not.
    pub last_error: Option<String>,
}

/// One power sensor, in [`AgentStatus`] and [`ChassisStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SensorStatus {
    /// What it is: source, driver name, label.
    pub sensor: String,
    /// Its measured refresh: the median time between two changes, once 20 were seen; never shorter
    /// than the period of reading.
    pub refresh_ms: Option<u64>,
    /// How old its newest value is; `null` before the first.
    pub age_ms: Option<u64>,
    /// Readings that were missing, implausible or refused since start.
    pub faults: u64,
    /// Why there is no usable reading now, or why one is doubted.
    pub problem: Option<String>,
}

/// A daemon's own certificate, in its status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsStatus {
    /// Who it says that the daemon is.
    pub role: Role,
    /// When it ends, in seconds since 1970.
    pub not_after_s: u64,
    /// How long that still is; negative when it has ended.
    pub expires_in_s: i64,
    /// Why newer files are not in force, if they are not.
    pub problem: Option<String>,
}

/// `GET /v1/status` of a chassis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChassisStatus {
    /// The kind of daemon: always `"chassis"`.
    pub role: String,
    /// The chassis that it manages.
    pub chassis_id: ChassisId,
    /// The epoch in which this manager rules.
    pub epoch: Epoch,
    /// What it is doing.
    pub state: ChassisState,
    /// Whether the manager only watches: it sends no alerts and sets no caps.
    pub dry_run: bool,
    /// Its clock, in milliseconds since boot.
    pub now_ms: u64,
    /// The same by clocks on the wall, in milliseconds since 1970; `null` in recordings.
    pub at_unix_ms: Option<u64>,
    /// What the power supplies read together; `null` when there is no usable reading.
    pub power_w: Option<Watts>,
    /// The sum of the servers' fresh reports; `null` without reports. Where that is lastingly above
    /// `power_w`, the manager judges it instead.
    pub reported_w: Option<Watts>,
    /// The budget in force.
    pub budget_w: Watts,
    /// The least of the budget and what the power supplies can carry.
    pub limit_w: Watts,
    /// Watts that no agent's meter sees: fans, conversion loss, switch.
    pub shared_w: Watts,
    /// What the servers may share.
    pub sharable_w: Watts,
    /// How the servers share it.
    pub shares: SharePolicy,
    /// Capping episodes since start.
    pub alerts: u64,
    /// Milliseconds that hardware caps were on since start.
    pub hardware_caps_ms: u64,
    /// Inputs refused since start.
    pub refused_inputs: u64,
    /// Every server, in configured order.
    pub servers: Vec<ServerStatus>,
    /// The state of every power sensor.
    pub sensors: Vec<SensorStatus>,
    /// The manager's certificate; `null` without one.
    pub tls: Option<TlsStatus>,
    /// What an operator should look at.
    pub alarms: Vec<Alarm>,
}

/// One VM in [`AgentStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmStatus {
    /// The VM that this is about.
    pub vm: VmId,
    /// Who it works for.
    pub class: VmClass,
    /// How many physical cores it has; CPUs, if it floats or shares its cores.
    pub cores: u16,
    /// The number of physical cores of its pool; `null` for a VM with cores of its own.
    pub shares_cores: Option<u16>,
    /// The lowest frequency cap on its cores; `null` when none is capped.
    pub min_khz: Option<KiloHertz>,
    /// Its CPU bandwidth limit, or with `uclamp` that of its frequency, in thousandths of a core; `null` when it has
    /// none of this agent's.
    pub quota_millicores: Option<u32>,
    /// Its place in the throttle list: lower is throttled first.
    pub throttle_order: u8,
    /// What may be done to it when throttling is not enough.
    pub on_extreme: OnExtreme,
    /// Where it comes from: `config`, `api`, or `found by` a pattern; `auto` where its own use has made it
    /// non-user-facing, `predicted` where its class is what placement predicts.
    pub origin: Option<String>,
    /// The class that its CPU use suggests; `null` if its class is configured, or its use is not analysed.
    pub advised_class: Option<VmClass>,
    /// Why its use says so.
    pub advised_why: Option<String>,
    /// What placement predicts of it; `null` where nothing is predicted.
    pub predicted: Option<VmPrediction>,
    /// What it draws, by its share of all VMs' CPU use: an estimate, idle power included; `null` where a use or the
    /// draw is not known.
    pub estimated_w: Option<Watts>,
    /// Whether it was killed, and its cgroup has not been seen empty yet.
    pub killed: bool,
    /// How long and how hard it was capped.
    #[serde(flatten)]
    pub impact: VmImpact,
}

/// How an agent's cores obey, in [`AgentStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoresStatus {
    /// The name of the kernel's cpufreq driver.
    pub driver: String,
    /// How many physical cores can be capped.
    pub cores: u16,
    /// How many of them are offline.
    pub offline: u16,
    /// How many somebody else has raised above their cap.
    pub raised: u16,
    /// How many somebody stronger (firmware, heat, an operator) limits below their cap.
    pub limited: u16,
    /// How often somebody else has raised a cap, since start.
    pub foreign_writes: u64,
}

/// `GET /v1/status` of an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// The kind of daemon: always `"agent"`.
    pub role: String,
    /// Which chassis it belongs to.
    pub chassis_id: ChassisId,
    /// The policy that was chosen.
    pub policy: String,
    /// The policy in force: `full-server` is `stepwise` where VMs float over all cores.
    pub policy_effective: String,
    /// Why nothing is written on this server, and what would be done is only logged; `null` when it acts.
    pub dry_run: Option<String>,
    /// The report that the chassis would get now.
    pub report: Report,
    /// What the server may draw when nobody tells it anything.
    pub fallback_w: Option<Watts>,
    /// The mean cap on the low-priority cores, as a share of their highest frequency; `null` without such cores,
    /// where bandwidth is limited instead, and in a dry run.
    pub frequency_ratio: Option<f64>,
    /// How long the lease still runs; `null` without one.
    pub lease_ms: Option<u64>,
    /// Alerts refused since start.
    pub refused_alerts: u64,
    /// Power readings that were missing or implausible since start.
    pub power_faults: u64,
    /// The state of every VM.
    pub vms: Vec<VmStatus>,
    /// VMs killed since the agent started.
    pub vm_kills: u64,
    /// The newest of them, at most 16, oldest first.
    pub last_vm_kills: Vec<VmKill>,
    /// The state of every power sensor.
    pub sensors: Vec<SensorStatus>,
    /// The agent's certificate; `null` without one.
    pub tls: Option<TlsStatus>,
    /// How the cores obey; `null` if nobody looks after them.
    pub cores: Option<CoresStatus>,
    /// Its records of what VMs use; `null` if none are kept.
    pub records: Option<RecordsStatus>,
    /// The predictions that placement sent; `null` without a valid one.
    pub predictions: Option<HeldPredictions>,
    /// What an operator should look at.
    pub alarms: Vec<Alarm>,
}

/// An agent's usage records, in [`AgentStatus`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordsStatus {
    /// Seconds of VMs measured since the agent started; those while throttled count.
    pub measured_s: u64,
    /// Written since the agent started.
    pub written: u64,
    /// Lost since then: not written, or found damaged.
    pub dropped: u64,
    /// What all of them take on disk.
    pub bytes: u64,
    /// How many of those written do not know a value, by its name: the kernel does not tell it, or it could not be read.
    pub missing: BTreeMap<String, u64>,
    /// How often a memory limit that was recommended was held, by why.
    pub limits_held: BTreeMap<String, u64>,
}

/// One message of `GET /v1/events`: an event, and when that was by clocks on the wall.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentEvent {
    /// When the daemon took note of it, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// What happened, and since when by the daemon's own clock.
    #[serde(flatten)]
    pub event: Event,
}

/// Something that happened.
///
/// `at_ns` counts from boot, so events of daemons on one machine share a clock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Event {
    /// When it happened, in nanoseconds since boot.
    pub at_ns: Instant,
    /// What happened, with its details.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// An agent changed its state.
    AgentState {
        /// The state before the change.
        from: AgentState,
        /// The state after the change.
        to: AgentState,
        /// The one cause of the change.
        cause: String,
    },
    /// A chassis manager changed its state.
    ChassisState {
        /// The state before the change.
        from: ChassisState,
        /// The state after the change.
        to: ChassisState,
        /// The one cause of the change.
        cause: String,
    },
    /// A chassis handed a message of a higher level to its sender.
    AlertSent {
        /// The server that the message goes to.
        server: ServerId,
        /// The epoch of the manager that sends.
        epoch: Epoch,
        /// The number of the message.
        seq: Seq,
        /// The level of the message.
        level: Level,
    },
    /// The last low-priority core was written down to its floor, on behalf of this message.
    FloorReached {
        /// The epoch of the message.
        epoch: Epoch,
        /// The number of the message.
        seq: Seq,
        /// How many cores were written; with `cpu-max`, VMs.
        cores: u16,
    },
    /// A placement daemon has taken a new model.
    ModelLoaded {
        /// The path of the model file.
        file: String,
        /// The file's checksum, in hexadecimal.
        checksum: String,
    },
    /// A placement daemon has placed VMs: all of one request.
    VmsPlaced {
        /// The VMs, each with its host.
        vms: Vec<PlacedVm>,
    },
    /// A placement daemon has found no place for the VMs of a request.
    PlacementRefused {
        /// Why, with the first VM that it is about.
        why: String,
    },
    /// A placement daemon has not admitted a new deployment.
    DeploymentRefused {
        /// The deployment, or several that were asked for together.
        deployment: String,
        /// Whether it was admitted all the same: shadow mode refuses nothing.
        shadow: bool,
        /// What speaks against it.
        why: String,
    },
    /// A placement daemon was told that a VM has gone.
    VmRemoved {
        /// The name of the VM.
        vm: String,
        /// The name of the host that it was on.
        host: String,
    },
    /// A placement daemon was told of a host that is new, or otherwise than before.
    HostChanged {
        /// The name of the host.
        host: String,
    },
    /// A placement daemon was told that a host has gone.
    HostRemoved {
        /// The name of the host.
        host: String,
        /// How many VMs went with it.
        vms: u64,
    },
    /// In shadow mode, a pod has its node: what would have been chosen beside what was.
    ShadowPlacement {
        /// The pod, as `namespace/name`.
        pod: String,
        /// The node that it has.
        chosen: String,
        /// One of the best, the first by name.
        best: String,
        /// How the chosen node stood; 1 is the best. `null` where it was not asked about, or could not have it.
        standing: Option<u64>,
        /// How many standings there were.
        of: u64,
        /// What the rules said of the best one, in words.
        why: String,
    },
    /// An agent has killed a VM: its low-priority cores were at their floor, and that was not enough.
    VmKilled {
        /// The VM that this is about.
        vm: VmId,
        /// The draw that made it necessary.
        power_w: Watts,
        /// The cap at that time.
        cap_w: Watts,
    },
    /// Somebody with the right has given an order: to set a budget, a VM or a host.
    Order {
        /// Who: a certificate's role, or the user and the process at the daemon's socket.
        who: String,
        /// The request's method and path.
        what: String,
        /// What was in force before; `null` where there was nothing, or the order was not read.
        before: Option<String>,
        /// What was asked for, as it came; `null` without a body.
        after: Option<String>,
        /// The status of the answer, and why where the order was not done.
        outcome: String,
    },
    /// The configuration was read anew, on SIGHUP.
    Reload {
        /// The keys that have changed, and are in force now.
        changed: Vec<String>,
        /// The keys that have changed, and that only a restart changes.
        needs_restart: Vec<String>,
        /// Why nothing was changed; `null` where the configuration was taken.
        refused: Option<String>,
    },
    /// A server's slot changed.
    SlotChanged {
        /// The server that this is about.
        server: ServerId,
        /// The state before the change.
        from: Slot,
        /// The state after the change.
        to: Slot,
        /// Why the slot changed.
        cause: String,
    },
    /// Something an operator should look at.
    Alarm {
        /// What is wrong, in words for people.
        message: String,
    },
}
