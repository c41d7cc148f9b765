//! What a run came to, and what there is to see of it.

use ballast_types::Instant;
use ballast_types::wire::{AgentStatus, ChassisStatus};
use serde::Serialize;

use super::World;
use super::environment::Environment;
use super::host::Host;
use super::observer::Observer;
use super::tally::{self, Bucket};
use super::tape::{AgentTape, ChassisTape};
use crate::plant::{Plant, Truth};

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// In seconds of virtual time.
    pub elapsed_s: f64,
    pub polls: u64,
    pub alerts_sent: u64,
    pub capping_events: u64,
    /// Longest stretch above the limit, surviving supplies included, in seconds.
    pub over_limit_s_max: f64,
    /// How far the breaker went towards its trip, by means over 100 ms; 1 or more is a trip.
    pub trip_fraction_max: f64,
    /// Server-seconds without a fault that the oracles did not judge, because no chassis manager reached
    /// the agent.
    pub unjudged_server_s: u64,
    /// Seconds in which user-facing cores were slowed while low-priority cores ran above their floor, beyond one
    /// reaction time.
    pub inversion_s: f64,
    /// Slowed user-facing core-seconds that [`Promise::Inversion`](crate::world::Promise) does not judge: those of
    /// servers with a fault or out of a manager's reach.
    pub inversion_left_out_core_s: f64,
    /// Seconds in which some agent was told `emergency`.
    pub emergency_s: f64,
    /// Seconds in which some server had an out-of-band cap.
    pub out_of_band_s: f64,
    /// Seconds in which some server had its own hardware limit.
    pub server_limit_s: f64,
    /// Lowest mean frequency of the batch VMs' cores, as a share of the highest.
    pub batch_frequency_ratio_min: f64,
    pub outputs: u64,
    /// 128 bits over all of them and their instants.
    pub outputs_hash: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restrictions {
    /// Cores capped below their maximum.
    pub cores: usize,
    pub vms: usize,
    pub server_limits: usize,
    pub out_of_band: usize,
}

impl World {
    pub fn now(&self) -> Instant {
        self.environment.now
    }

    /// The plant, and with it the truth.
    pub fn plant(&self) -> &Plant {
        &self.environment.plant
    }

    pub fn truth(&self) -> &Truth {
        self.environment.plant.truth()
    }

    pub fn outcome(&self) -> Outcome {
        let Environment { managers, network, observer, .. } = &self.environment;
        let Observer { tally, breaker, capping_events, outputs, hash, conservation, inversion, .. } =
            observer;
        Outcome {
            elapsed_s: self.truth().elapsed_s,
            polls: managers.iter().map(|manager| manager.polls).sum(),
            alerts_sent: network.alerts_sent,
            capping_events: *capping_events,
            over_limit_s_max: tally::seconds(tally.over_limit_max),
            trip_fraction_max: breaker.fraction().max(),
            unjudged_server_s: conservation.unjudged_s(),
            inversion_s: inversion.broken_s(),
            inversion_left_out_core_s: inversion.left_out_s(),
            emergency_s: tally.emergency_s(),
            out_of_band_s: tally.out_of_band_s(),
            server_limit_s: tally.server_limit_s(),
            batch_frequency_ratio_min: tally.batch_ratio_min,
            outputs: *outputs,
            outputs_hash: hash.hex(),
        }
    }

    /// The chassis manager as operators see it; `None` while it is down.
    pub fn chassis_status(&self) -> Option<ChassisStatus> {
        self.status_of_manager(0)
    }

    /// Chassis manager `n` as operators see it: 1 is the second one; `None` while it is down.
    pub fn status_of_manager(&self, n: usize) -> Option<ChassisStatus> {
        let now = self.environment.now + self.environment.managers.get(n)?.ahead;
        self.chassis.get(n)?.as_ref().map(|chassis| chassis.status(now))
    }

    /// An agent as operators see it; `None` while it is down.
    pub fn agent_status(&self, server: usize) -> Option<AgentStatus> {
        let now = self.environment.now + self.environment.hosts.get(server)?.ahead;
        self.agents.get(server)?.as_ref().map(|agent| agent.status(now))
    }

    pub fn curve(&self) -> &[Bucket] {
        self.environment.observer.tally.buckets()
    }

    pub fn restrictions(&self) -> Restrictions {
        let hosts = &self.environment.hosts;
        Restrictions {
            cores: hosts.iter().map(Host::capped).sum(),
            vms: hosts.iter().map(Host::limited).sum(),
            server_limits: hosts.iter().filter(|h| h.server_limit.is_some()).count(),
            out_of_band: self.environment.bmcs.caps.iter().filter(|cap| cap.is_some()).count(),
        }
    }

    /// Nothing is restricted, nor would any agent restrict anything: no capping event, and no cap in force.
    pub fn is_quiet(&self) -> bool {
        let capping = self.chassis[0].as_ref().is_none_or(ballast_chassis_core::Chassis::is_capping);
        let capped = self.agents.iter().any(|a| a.as_ref().is_none_or(|a| a.cap().is_some()));
        !capping && !capped && self.restrictions() == Restrictions::default()
    }

    /// The hardware cap that a server's BMC keeps, if there is one.
    pub fn hardware_cap(&self, server: usize) -> Option<ballast_types::Watts> {
        self.environment.bmcs.caps.get(server).copied().flatten()
    }

    /// Whether its agent left nothing behind on a server: the journal is empty, and nothing is held down.
    pub fn is_restored(&self, server: usize) -> bool {
        self.environment.hosts.get(server).is_none_or(Host::is_restored)
    }

    /// Whether nothing is left behind on any server, and no BMC keeps a cap.
    pub fn is_restored_everywhere(&self) -> bool {
        let agents = self.environment.hosts.iter().all(Host::is_restored);
        agents && self.restrictions() == Restrictions::default()
    }

    /// What agents have changed and no journal knows of, over all servers.
    pub fn lost_originals(&self) -> usize {
        self.environment.hosts.iter().map(Host::lost_originals).sum()
    }

    /// How many processes were killed between two effects.
    pub fn kills(&self) -> u64 {
        self.environment.kills.done
    }

    /// Whether some fault of this server is on.
    pub fn is_faulty(&self, server: usize) -> bool {
        self.environment.active.affects(server)
    }

    /// Cores of one server that are capped now, below their maximum.
    pub fn capped_cores(&self, server: usize) -> usize {
        self.environment.hosts.get(server).map_or(0, Host::capped)
    }

    /// P-state changes so far of the core that had the most, or quota changes of the VM.
    pub fn pstate_changes_max(&self) -> u32 {
        self.environment.hosts.iter().map(Host::changes_max).max().unwrap_or(0)
    }

    /// The tape of one agent, if the run is recorded.
    pub fn agent_tape(&self, server: usize) -> Option<&AgentTape> {
        self.environment.hosts.get(server)?.tape.as_ref()
    }

    /// The tape of the chassis manager, if the run is recorded.
    pub fn chassis_tape(&self) -> Option<&ChassisTape> {
        self.environment.managers[0].tape.as_ref()
    }
}
