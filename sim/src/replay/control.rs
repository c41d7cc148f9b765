//! Who keeps the budget in a run, and by which rules.

use core::time::Duration;

use ballast_agent_core::{Actuator, Policy};
use ballast_chassis_core::LiftRule;
use ballast_types::wire::SharePolicy;

use crate::plant::PlantSpec;
use crate::world::Setup;

/// How agents throttle, and how the chassis manager splits the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// How the agents throttle. With `none`, the plant's hardware caps are to be off too.
    pub policy: Policy,
    /// What throttling acts on.
    pub actuator: Actuator,
    /// How the budget is split; `None` for the manager's default.
    pub shares: Option<SharePolicy>,
    /// How a capping event ends; `None` for the manager's default.
    pub lift_rule: Option<LiftRule>,
}

impl Control {
    /// The paper's controller: steps, even shares, a plain timer.
    pub const PAPER: Self = Self {
        policy: Policy::Stepwise,
        actuator: Actuator::Pstate,
        shares: Some(SharePolicy::Even),
        lift_rule: Some(LiftRule::Paper),
    };

    /// Agents of this policy, and the defaults for all else.
    #[must_use]
    pub const fn new(policy: Policy) -> Self {
        Self { policy, actuator: Actuator::Pstate, shares: None, lift_rule: None }
    }

    /// A run of this plant under it.
    pub(crate) fn setup(&self, plant: PlantSpec, seed: u64, length: Duration) -> Setup {
        let mut setup = Setup::new(plant, self.policy, seed, length);
        for agent in &mut setup.agents {
            agent.actuator = self.actuator;
        }
        setup.chassis.shares = self.shares.unwrap_or(setup.chassis.shares);
        setup.chassis.lift_rule = self.lift_rule.unwrap_or(setup.chassis.lift_rule);
        setup
    }
}
