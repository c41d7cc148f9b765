//! One scenario: what a chassis is, who holds its draw down, what goes wrong; and what comes of it.
//!
//! ```text
//!   load, topology ─┐
//!   policy, shares ─┤
//!   budget, faults ─┼─▶ Scenario ──▶ Run (one loop) ──▶ Report: truth, outcome, curve, violation
//!   probes ─────────┘
//! ```
//! The replay of telemetry, every experiment, the check of a plan and the fault campaign are front ends:
//! each makes a [`Scenario`], runs it with its own [`Probe`]s, and reads the [`Report`]. The demo plays one in wall
//! time: its rig runs the scenario's plant, and real daemons are configured from the rest. A scenario whose
//! controller is a [`Baseline`] runs on the bare plant, every other one in the [world](crate::world).

mod control;
mod run;

pub use control::Control;
pub use run::{Probe, Report, Run};

use core::time::Duration;

use ballast_agent_core as agent;
use ballast_chassis_core as chassis;
use ballast_types::{BootId, Instant, PowerModel, Watts};

use crate::baseline::Baseline;
use crate::plant::PlantSpec;
use crate::world::checks::Checks;
use crate::world::faults::FaultPlan;
use crate::world::kills::Kill;
use crate::world::timing::Timing;

/// The lowest cap that a slot of the plant takes: what a server draws at full load and a third of its
/// frequency, rounded up.
const OUT_OF_BAND_FLOOR: Watts = Watts::from_whole(150);

/// Who holds the draw down.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Controller {
    #[default]
    Manager,
    /// The agents without a manager: every server is told this cap, again and again.
    FixedCap { watts: Watts },
    /// Somebody else, or nobody: neither a manager nor agents run.
    Baseline(Baseline),
}

#[derive(Clone, Debug)]
pub struct Scenario {
    /// Of all chance: the plant's noise, latencies, clocks.
    pub seed: u64,
    /// Load, topology and budget of the chassis; the controllers get the budget too.
    pub plant: PlantSpec,
    /// Policy, actuator and shares, as they are asked for.
    pub control: Control,
    /// Who holds the draw down; the fields below that a baseline has no use for are then not looked at.
    pub controller: Controller,
    pub chassis: chassis::Params,
    /// Numbers of its control loop, where they are not those that fit its parameters.
    pub tuning: Option<chassis::Tuning>,
    /// Numbers of every agent's control loop, where they are not those that fit its parameters.
    pub agent_tuning: Option<agent::Tuning>,
    /// What the chassis manager finds on disk at its first start.
    pub ledger: chassis::Ledger,
    /// One agent for every server, in the plant's order.
    pub agents: Vec<agent::Params>,
    pub timing: Timing,
    pub faults: FaultPlan,
    /// Processes that are killed between two of their effects.
    pub kills: Vec<Kill>,
    /// When an operator sets the budget, and to what; `None` goes back to the configured one.
    pub budgets: Vec<(Instant, Option<Watts>)>,
    /// When all agents are told to stop, as at the end of a day.
    pub stops: Vec<Instant>,
    /// From here on nothing changes but by faults that last, and who has none must come free.
    pub quiet_from: Instant,
    pub checks: Checks,
    /// Keep every input and output: for tests, it takes memory.
    pub record: bool,
    pub length: Duration,
    /// Points of the curve; 0 for none.
    pub points: usize,
}

impl Scenario {
    /// Whether nothing fails and the budget stays.
    pub(crate) fn is_faultless(&self) -> bool {
        self.faults.windows.is_empty() && self.kills.is_empty() && self.budgets.is_empty()
    }

    /// Default controllers for this plant, no faults, everything watched.
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
        let checks = if policy == agent::Policy::Stepwise { Checks::USUAL } else { Checks::NONE };

        Self {
            seed,
            plant,
            control: Control::new(policy),
            controller: Controller::Manager,
            chassis,
            tuning: None,
            agent_tuning: None,
            ledger: chassis::Ledger::default(),
            agents,
            timing: Timing::default(),
            faults: FaultPlan::default(),
            kills: Vec::new(),
            budgets: Vec::new(),
            stops: Vec::new(),
            quiet_from: Instant::ZERO,
            checks,
            record: false,
            length,
            points: 0,
        }
    }

    /// Servers of this model take no limit that is lower than what full load draws at the slowest that hardware goes.
    pub fn limit_no_lower_than_hardware(&mut self, model: &PowerModel) {
        let floor = model.power(1.0, 1.0 / 3.0) + Watts::from_whole(10);
        for server in &mut self.chassis.servers {
            server.out_of_band_floor = Some(floor);
        }
        for agent in &mut self.agents {
            agent.server_limit_floor = Some(floor);
        }
    }
}
