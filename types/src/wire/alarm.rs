//! What an operator should look at: which alarms there are, and one of them.

use core::fmt;

use serde::{Deserialize, Serialize};

/// How soon somebody should act on an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Now: the power or user-facing VMs are at stake, or nobody protects them.
    Critical,
    /// Soon: protection goes on with less than it should have.
    Warning,
    /// When there is time: nothing is at stake.
    Info,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
            Self::Info => "info",
        })
    }
}

/// One alarm, in the status of every daemon: a condition of now, not a log.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Alarm {
    /// [Which alarm](#alarms) it is; the same words in every version.
    pub id: AlarmId,
    /// The server, supply, sensor, VM or file that it is about: with `id` it names the alarm; `null` where
    /// there is one alone.
    pub subject: Option<String>,
    /// How soon somebody should act.
    pub severity: Severity,
    /// When it began, in milliseconds since 1970; since the daemon's start at the most.
    pub since_unix_ms: u64,
    /// What is wrong, in words for people.
    pub message: String,
    /// The part of the book that says what to do.
    pub link: String,
}

impl Alarm {
    /// The one alarm with this id. It is dated where there is a clock.
    pub fn new(id: AlarmId, message: impl Into<String>) -> Self {
        let (severity, link) = (id.severity(), id.link());
        Self { id, subject: None, severity, since_unix_ms: 0, message: message.into(), link }
    }

    /// One of several with this id: that about `subject`.
    pub fn about(id: AlarmId, subject: impl fmt::Display, message: impl Into<String>) -> Self {
        Self { subject: Some(subject.to_string()), ..Self::new(id, message) }
    }
}

/// `Name "its_name" Severity "What it says.";`
macro_rules! alarms {
    ($($id:ident $name:literal $severity:ident $help:literal;)*) => {
        /// Which alarm it is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum AlarmId {
            $(#[doc = $help] #[serde(rename = $name)] $id,)*
            /// One of a newer version.
            #[serde(other, rename = "unknown")]
            Unknown,
        }

        impl AlarmId {
            /// Those that this version knows.
            pub const ALL: &[Self] = &[$(Self::$id),*];

            /// The name in JSON, metrics and the book.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$id => $name,)* Self::Unknown => "unknown" }
            }

            /// How soon somebody should act.
            pub const fn severity(self) -> Severity {
                match self { $(Self::$id => Severity::$severity,)* Self::Unknown => Severity::Warning }
            }

            /// What it says, in one sentence.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$id => $help,)* Self::Unknown => "An alarm of a newer version." }
            }
        }
    };
}

alarms! {
    // Chassis manager.
    Fenced "fenced" Critical "Another manager rules this chassis; this one orders nothing.";
    TwoManagers "two_managers" Critical "Agents refuse another manager for this one.";
    OverLimit "over_limit" Critical "The draw is over the limit although every server is capped.";
    NothingToShare "nothing_to_share" Critical "Fans and losses take all of the limit.";
    SuppliesDisagree "supplies_disagree" Critical "The servers report more than the power supplies read.";
    HardwareCapOn "hardware_cap_on" Critical "A hardware cap slows every core of a server.";
    HardwareCapMissing "hardware_cap_missing" Critical
        "A server is silent in a capping event, and has no hardware cap.";
    HardwareCapFailing "hardware_cap_failing" Critical "A server's hardware cap cannot be changed.";
    HardwareCapTooHigh "hardware_cap_too_high" Warning
        "A server's lowest hardware cap is above its share.";
    HardwareCapForeign "hardware_cap_foreign" Warning
        "A cap is left on a server that the configuration does not name, or names otherwise.";
    ServerSilent "server_silent" Warning "A server's agent does not answer.";
    ServerObeysAnother "server_obeys_another" Warning "One agent alone obeys another manager.";
    ServerMeterWrong "server_meter_wrong" Warning "A server reports more than can be true.";
    ServerWatchesOnly "server_watches_only" Info "A server's agent is in a dry run.";
    SupplyFailing "supply_failing" Warning "A power supply has no usable reading.";
    SupplyLost "supply_lost" Warning "A power supply carries nothing, so the limit is lower.";
    PollUnusable "poll_unusable" Warning "A reading of all power supplies cannot be used.";
    BudgetRefused "budget_refused" Warning "A budget was ordered that is not allowed.";

    // Agent.
    ActuatorFailing "actuator_failing" Warning
        "A core, a VM's bandwidth or the server's limit does not obey.";
    ServerLimitMissing "server_limit_missing" Critical
        "The draw is above the cap, nothing is left to lower, and there is no server limit.";
    CapOverwritten "cap_overwritten" Warning "Another program raises cores above their cap.";
    QuotaOverwritten "quota_overwritten" Warning "Another program writes a VM's bandwidth.";
    DriverChanged "driver_changed" Warning "The cpufreq driver is another than at the start.";
    VmNotKilled "vm_not_killed" Warning "A VM that should be killed lives on.";
    VmNotBound "vm_not_bound" Warning "A VM cannot be throttled, and counts as user-facing.";
    VmLeftOut "vm_left_out" Warning "A VM that was found does not fit, and runs anywhere.";
    VmNotTaken "vm_not_taken" Warning "A group that was found is not taken for a VM.";
    PodsUnknown "pods_unknown" Warning
        "The kubelet does not say which CPUs it gave to whom: no pod is slowed.";
    PodCpusDisputed "pod_cpus_disputed" Warning "Nobody can tell whose some CPUs are: they are not slowed.";
    JournalHeld "journal_held" Warning
        "A journal that cannot be read may name caps: the agent only watches.";
    RecordsNotWritten "records_not_written" Warning "Usage records cannot be written.";
    RecordsNotRead "records_not_read" Warning "Usage records cannot be read; VMs get no class by them.";
    RecordsSetAside "records_set_aside" Info "A damaged file of usage records was set aside.";

    // Several daemons.
    Blind "blind" Critical "There is no usable reading of the draw.";
    DryRun "dry_run" Info "The daemon only watches.";
    SensorFailing "sensor_failing" Warning "A power sensor has no usable reading.";
    SensorAdvice "sensor_advice" Info "A sensor works otherwise than the configuration says.";
    ThreadEnded "thread_ended" Warning "A part of the daemon has crashed, and began again.";
    StateNotWritten "state_not_written" Warning "What the daemon keeps over a restart cannot be written.";
    RecordingNotWritten "recording_not_written" Warning "The recording cannot be written.";
    RecordingLosesSteps "recording_loses_steps" Warning "Steps of the recording are lost.";
    ReloadRefused "reload_refused" Warning "A new configuration cannot be used; the old one stays.";
    RestartNeeded "restart_needed" Info "The configuration has changed in what only a restart changes.";
    CertificateExpires "certificate_expires" Warning "The daemon's certificate ends soon.";
    CertificateExpired "certificate_expired" Critical "The daemon's certificate has ended.";
    CertificateRefused "certificate_refused" Warning "New certificates cannot be used; the old ones stay.";

    // Placement daemon.
    ModelMissing "model_missing" Warning "There is no model: every answer is conservative.";
    ModelRefused "model_refused" Warning "A new model cannot be used; the old one stays.";
    ModelOld "model_old" Warning "The model knows nothing of the last days.";
    ModelFileHangs "model_file_hangs" Warning "The disk with the model's file does not answer.";
    InventoryNotWritten "inventory_not_written" Critical
        "Placements cannot be written down, and are refused.";
    LifetimesMissing "lifetimes_missing" Info
        "The policy goes by lifetimes, and there is no model that knows them.";
    HostsRefused "hosts_refused" Warning "The file of hosts cannot be used; the hosts stay as they were.";
    PriorsRefused "priors_refused" Warning "The file of priors cannot be used; the priors stay as they were.";
    ClockBehind "clock_behind" Warning
        "The clock is behind what was seen of deployments: for admission, time stands still.";
    HostLeaving "host_leaving" Info "A host is no longer in its file, and still has VMs.";
    DrainWaits "drain_waits" Info "Too few hosts are empty: a drain waits for approval.";
    DrainStuck "drain_stuck" Warning
        "A drain is under way, and no host has room for VMs of it: its hosts are closed, and not empty.";
    AgentUninformed "agent_uninformed" Warning
        "A host's agent does not hear what is predicted of its VMs: they count as user-facing.";
    HostOverflows "host_overflows" Warning
        "A host's VMs demand more CPU than it has for longer than is promised: it takes nobody.";
    UsageUnheard "usage_unheard" Warning
        "An agent does not tell what its VMs use: they count with all their cores.";
    KubernetesStale "kubernetes_stale" Warning
        "Nothing is heard of the cluster: scores are neutral, pods user-facing.";
    KubernetesUnlabelled "kubernetes_unlabelled" Warning
        "What is predicted of pods cannot be written on them.";
    KubernetesUnreadable "kubernetes_unreadable" Info "Objects of the cluster cannot be read.";
}

impl AlarmId {
    /// The part of the book that says what to do: a page and its heading.
    pub fn link(self) -> String {
        format!("operate/runbook.md#{}", self.name().replace('_', "-"))
    }
}

impl fmt::Display for AlarmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
