//! What a placement daemon says of itself.

use serde::{Deserialize, Serialize};

use super::{Alarm, DrainStatus, KubernetesStatus, TlsStatus};
use crate::PeerName;

/// `GET /v1/status` of a placement daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlaceStatus {
    /// The kind of daemon: always `"place"`.
    pub role: String,
    /// Its name among the placement daemons.
    pub name: PeerName,
    /// Its clock, in milliseconds since boot.
    pub now_ms: u64,
    /// How it answers questions for predictions.
    pub predict: PredictStatus,
    /// The hosts and VMs that it knows.
    pub inventory: InventoryStatus,
    /// How the agents of the hosts are told what is predicted; absent from daemons that tell none.
    pub agents: AgentsStatus,
    /// The drain under way; absent where none is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainStatus>,
    /// Whether new deployments may come; absent where nobody asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionStatus>,
    /// The history of lifetimes; absent where none is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifetime_history: Option<LifetimeHistoryStatus>,
    /// What is promised of overcommitted hosts; absent where nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overcommit: Option<OvercommitStatus>,
    /// The scheduler extender; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<KubernetesStatus>,
    /// Its certificate; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsStatus>,
    /// What an operator should look at.
    pub alarms: Vec<Alarm>,
}

/// The promise about the CPU of overcommitted hosts, in [`PlaceStatus`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OvercommitStatus {
    /// For at most this share of the time a host's VMs demand more than its cores.
    pub target: f64,
    /// How VMs' use is added up: the estimator in force.
    pub estimator: String,
    /// What that may say of a host with a newcomer: the target, or what was measured to keep it.
    pub allowed_risk: f64,
    /// Hosts whose agent has told what their VMs use, not too long ago.
    pub measured_hosts: u64,
    /// VMs there of which enough is known.
    pub measured_vms: u64,
    /// Hosts whose agent has not: their VMs count with all their cores.
    pub unmeasured_hosts: u64,
    /// Hosts that take nobody, since their VMs demanded too much too often.
    pub closed_hosts: u64,
}

/// The state of predictions, in [`PlaceStatus`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictStatus {
    /// The model in force; `null` when there is none, and every answer is conservative.
    pub model: Option<ModelStatus>,
    /// Models taken since start.
    pub loads: u64,
    /// Files since start that could not be used.
    pub failed_loads: u64,
    /// Requests for predictions that were answered.
    pub requests: u64,
    /// Requests refused for what was in them.
    pub refused_requests: u64,
    /// VMs whose prediction was answered.
    pub predictions: u64,
    /// Those of them whose class or P95 was not sure enough to act on.
    pub conservative: u64,
}

/// The model in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelStatus {
    /// Where it came from.
    pub file: String,
    /// The file's checksum, in hexadecimal.
    pub checksum: String,
    /// The version of the file's format.
    pub version: u32,
    /// How many subscriptions it knows the past of.
    pub subscriptions: u64,
    /// Up to when it knows them, in seconds since 1970.
    pub history_until_s: i64,
    /// How long ago that is.
    pub age_s: u64,
    /// How good its classes were on VMs that it was not trained on.
    pub class: HoldOut,
    /// How good its P95 buckets were.
    pub p95: HoldOut,
    /// What it knows of lifetimes; absent where they were not learnt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<LifetimeModelStatus>,
}

/// What a model knows of lifetimes, in [`ModelStatus`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LifetimeModelStatus {
    /// From how many VMs it has learnt them.
    pub vms: u64,
    /// How many distinct curves it has.
    pub curves: u64,
    /// The last thing that was known then, in seconds since 1970.
    pub until_s: i64,
    /// How long ago that is.
    pub age_s: u64,
    /// Whether what is known of a VM at its start says anything about its lifetime.
    pub better_than_kaplan_meier: bool,
}

/// Whether new deployments may come, in [`PlaceStatus`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AdmissionStatus {
    /// What decides: `reserve`, `zeroth`, `first-moment` or `second-moment`.
    pub policy: String,
    /// Whether nothing is refused, and only counted.
    pub shadow: bool,
    /// The file of priors; `null` without one.
    pub priors: Option<String>,
    /// The mean share of scale-outs that may fail, for which the priors are tuned.
    pub sla: Option<f64>,
    /// The cores that deployments may come to need.
    pub capacity_cores: f64,
    /// Cores that are admitted, and that no VM has taken yet.
    pub committed_cores: f64,
    /// Deployments that are counted; a VM without one is its own.
    pub deployments: u64,
    /// New deployments since start that were admitted.
    pub admitted: u64,
    /// Those that were refused.
    pub refused: u64,
    /// Those that were admitted, and would not have been without shadow mode.
    pub would_refuse: u64,
}

/// When VMs started and ended, as it is kept for the training of lifetimes, in [`PlaceStatus`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LifetimeHistoryStatus {
    /// Where `ballast train --target lifetime` finds it.
    pub file: String,
    /// How long it is.
    pub bytes: u64,
    /// Rows written since start.
    pub written: u64,
    /// Rows that the disk did not take since start.
    pub dropped: u64,
}

/// How good a model was on VMs that it was not trained on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HoldOut {
    /// How many VMs there were.
    pub vms: u64,
    /// The share of answers that were sure enough to act on, 0 to 1.
    pub confident: Option<f64>,
    /// The share of right ones among those, 0 to 1; `null` where there were none.
    pub accuracy: Option<f64>,
}

/// Hosts and VMs, in [`PlaceStatus`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InventoryStatus {
    /// How many hosts there are.
    pub hosts: u64,
    /// Those that VMs may not come to.
    pub cordoned_hosts: u64,
    /// Those that VMs may not come to and are to leave.
    pub draining_hosts: u64,
    /// Those with a VM.
    pub used_hosts: u64,
    /// Those whose VMs take more than they have.
    pub overcommitted_hosts: u64,
    /// How many VMs there are.
    pub vms: u64,
    /// What the hosts have together.
    pub cores: f64,
    /// What the VMs take of it.
    pub allocated_cores: f64,
    /// What the hosts have together.
    pub memory_gb: f64,
    /// What the VMs take of it.
    pub allocated_memory_gb: f64,
    /// The standard deviation of the chassis scores: how evenly power is spread over chassis.
    pub chassis_score_std: f64,
    /// The standard deviation of the server scores: how evenly what can be throttled is spread over servers.
    pub server_score_std: f64,
    /// VMs placed since start.
    pub placed: u64,
    /// VMs removed since start.
    pub removed: u64,
    /// Changes and questions refused since start.
    pub refused: u64,
    /// Every chassis, by name.
    pub chassis: Vec<ChassisBalance>,
}

/// A chassis, in [`InventoryStatus`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChassisBalance {
    /// The name of the chassis.
    pub chassis: String,
    /// How many hosts it has.
    pub hosts: u64,
    /// How many VMs these have.
    pub vms: u64,
    /// What the hosts have together.
    pub cores: f64,
    /// What the VMs take of it.
    pub allocated_cores: f64,
    /// 1 less the P95 load of its cores: the higher, the more power is left.
    pub score: f64,
}

/// How agents are told of the VMs that were placed on their servers, in [`PlaceStatus`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentsStatus {
    /// Hosts whose agent has the newest.
    pub current: u64,
    /// Hosts whose agent does not have it yet.
    pub behind: u64,
    /// Hosts without an `agent`: nobody is told what is predicted of their VMs.
    pub silent_hosts: u64,
    /// VMs that no agent can be told of: their names are none for an agent, or a host has more than 400.
    pub untellable_vms: u64,
    /// Messages since start that an agent has taken.
    pub told: u64,
    /// Messages since start that no agent has taken.
    pub failed: u64,
}

/// A VM and its host, by their names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PlacedVm {
    /// The name of the VM.
    pub vm: String,
    /// The name of its host.
    pub host: String,
}
