//! Who keeps the budget in a run, and by which rules.

use core::time::Duration;

use ballast_agent_core::{Actuator, Policy, Steps};
use ballast_types::wire::SharePolicy;

use super::Scenario;
use crate::plant::PlantSpec;

/// How agents throttle, and how the chassis manager splits the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// How the agents throttle. With `none`, the plant's hardware caps are to be off too.
    pub policy: Policy,
    pub actuator: Actuator,
    /// How the budget is split; `None` for the manager's default, or the paper's.
    pub shares: Option<SharePolicy>,
    /// The rules of the paper, where nothing else is said: even shares, a plain timer at an event's end.
    pub paper: bool,
}

impl Control {
    /// The paper's controller: steps, even shares, a plain timer.
    pub const PAPER: Self =
        Self { policy: Policy::Stepwise, actuator: Actuator::Pstate, shares: None, paper: true };

    /// Agents of this policy, and the defaults for all else.
    pub const fn new(policy: Policy) -> Self {
        Self { policy, actuator: Actuator::Pstate, shares: None, paper: false }
    }

    pub fn scenario(&self, plant: PlantSpec, seed: u64, length: Duration) -> Scenario {
        let mut scenario = Scenario::new(plant, self.policy, seed, length);
        for agent in &mut scenario.agents {
            agent.actuator = self.actuator;
            if self.paper {
                agent.steps = Steps::Paper;
            }
        }
        if self.paper {
            scenario.chassis = scenario.chassis.as_in_the_paper();
        }
        scenario.chassis.shares = self.shares.unwrap_or(scenario.chassis.shares);
        scenario.control = *self;
        scenario
    }
}
