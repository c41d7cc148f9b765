//! Everything that makes a run.

use core::time::Duration;

use ballast_agent_core as agent;
use ballast_chassis_core as chassis;
use ballast_types::{BootId, Instant, Watts};

use super::{Checks, FaultPlan};
use crate::plant::PlantSpec;

/// The lowest cap that a slot of the plant takes: what a server draws at full load and a third of its
/// frequency, rounded up.
const OUT_OF_BAND_FLOOR: Watts = Watts::from_whole(150);

/// How long things take that are not the plant's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A message, one way (1 ms).
    pub latency: Duration,
    /// Added to it by chance, up to this (0.5 ms).
    pub jitter: Duration,
    /// From an output to the write and its answer (0.2 ms).
    pub actuation: Duration,
    /// The same through a BMC (50 ms).
    pub out_of_band: Duration,
    /// Without an answer for this long a message counts as unanswered (1 s).
    pub request_timeout: Duration,
    /// From a kill until the VM's cgroup is seen empty (200 ms).
    pub reap_delay: Duration,
    /// Between two looks at CPU use (1 s).
    pub usage_period: Duration,
    /// The period of a floating VM's bandwidth (20 ms).
    pub quota_period: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            latency: Duration::from_millis(1),
            jitter: Duration::from_micros(500),
            actuation: Duration::from_micros(200),
            out_of_band: Duration::from_millis(50),
            request_timeout: Duration::from_secs(1),
            reap_delay: Duration::from_millis(200),
            usage_period: Duration::from_secs(1),
            quota_period: Duration::from_millis(20),
        }
    }
}

/// Everything that makes a run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Of all chance: the plant's noise, latencies, clocks.
    pub seed: u64,
    /// The chassis; its budget is what the controllers get too.
    pub plant: PlantSpec,
    pub chassis: chassis::Params,
    /// Numbers of its control loop, where they are not those that fit its parameters.
    pub tuning: Option<chassis::Tuning>,
    /// What the chassis manager finds on disk at its first start.
    pub ledger: chassis::Ledger,
    /// No chassis manager, but this cap for every server, told again and again: what an agent does alone.
    pub fixed_cap: Option<Watts>,
    /// With `fixed_cap`: also told is the margin that a chassis of that one server would keep. Without it
    /// the agent keeps a margin of its own.
    pub tells_margin: bool,
    /// One agent for every server, in the plant's order.
    pub agents: Vec<agent::Params>,
    /// How long things take.
    pub timing: Timing,
    pub faults: FaultPlan,
    /// When an operator sets the budget, and to what; `None` goes back to the configured one.
    pub budgets: Vec<(Instant, Option<Watts>)>,
    /// From here on nothing changes but by faults that last, and who has none must come free.
    pub calm_from: Instant,
    pub checks: Checks,
    /// Keep every input and output: for tests, it takes memory.
    pub record: bool,
    /// How long the run will be: for the curve.
    pub length: Duration,
    /// Points of the curve; 0 for none.
    pub points: usize,
}

impl Setup {
    /// Default controllers for this plant, no faults, everything watched.
    ///
    /// # Panics
    /// Never: the ids are constants.
    #[must_use]
    pub fn new(plant: PlantSpec, policy: agent::Policy, seed: u64, length: Duration) -> Self {
        let id = |text: &str| ballast_types::ChassisId::new(text).expect("a valid constant");
        let chassis_id = id("chassis");
        let agents = (plant.servers.iter())
            .map(|server| {
                let boot = BootId::new("boot-1").expect("a valid constant");
                let params = agent::Params::defaults(
                    server.id.clone(),
                    boot,
                    chassis_id.clone(),
                    server.cores.clone(),
                );

                agent::Params { policy, model: server.model, ..params }
            })
            .collect();
        let rated = plant.supplies.iter().map(|s| s.rated).collect();
        let servers = (plant.servers.iter())
            .map(|s| chassis::Server::new(s.id.clone(), Some(OUT_OF_BAND_FLOOR)))
            .collect();
        let chassis = chassis::Params::defaults(chassis_id, plant.budget, rated, servers);
        let checks = if matches!(policy, agent::Policy::Stepwise | agent::Policy::Predictive) {
            Checks::USUAL
        } else {
            Checks::NONE
        };

        Self {
            seed,
            plant,
            chassis,
            tuning: None,
            ledger: chassis::Ledger::default(),
            fixed_cap: None,
            tells_margin: true,
            agents,
            timing: Timing::default(),
            faults: FaultPlan::default(),
            budgets: Vec::new(),
            calm_from: Instant::ZERO,
            checks,
            record: false,
            length,
            points: 0,
        }
    }
}
