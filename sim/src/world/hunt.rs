//! A hunt for faults that break a promise: high load and things going wrong, then calm.

use core::time::Duration;

use ballast_agent_core::{Actuator, Policy};
use ballast_types::Instant;
use ballast_types::wire::SharePolicy;

use super::{Extent, FaultPlan, Outcome, Promise, Restrictions, Setup, Violation, World};
use crate::scenario::overloaded;

/// One hunt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hunt {
    /// Of the faults and of all other chance.
    pub seed: u64,
    /// Servers in the chassis.
    pub servers: usize,
    /// Faults, some of them at the same time.
    pub faults: usize,
    /// How the agents find their p-states.
    pub policy: Policy,
    /// What the agents act on.
    pub actuator: Actuator,
    /// How the manager splits what may be shared.
    pub shares: SharePolicy,
}

/// Faults begin no earlier.
const FIRST: Instant = Instant::from_millis(1000);
/// Every fault is mended.
const MENDED: Instant = Instant::from_millis(25_000);
/// The load falls, for good.
const FALLS: Instant = Instant::from_millis(30_000);
/// Nothing may be restricted any more. Bounded by the out-of-band hold, which relapses double, and the
/// stagger over the servers.
const FREE: Instant = Instant::from_millis(300_000);

impl Hunt {
    /// Of even shares and the paper's steps on p-states.
    #[must_use]
    pub fn new(seed: u64, servers: usize, faults: usize) -> Self {
        let (policy, actuator, shares) = (Policy::Stepwise, Actuator::Pstate, SharePolicy::Even);
        Self { seed, servers, faults, policy, actuator, shares }
    }

    /// What goes wrong, and when.
    #[must_use]
    pub fn plan(&self) -> FaultPlan {
        let supplies = overloaded(self.servers, 1.0, FALLS.as_secs_f64()).supplies.len();
        let extent = Extent { servers: self.servers, supplies };
        FaultPlan::draw(self.seed, extent, self.faults, FIRST, MENDED)
    }

    /// The whole run.
    #[must_use]
    pub fn setup(&self) -> Setup {
        let length = FREE.since(Instant::ZERO);
        let mut setup =
            Setup::new(overloaded(self.servers, 1.0, FALLS.as_secs_f64()), self.policy, self.seed, length);
        for agent in &mut setup.agents {
            agent.actuator = self.actuator;
        }
        setup.chassis.shares = self.shares;
        Setup { faults: self.plan(), ..setup }
    }

    /// Runs it: nothing may be broken while things go wrong, and everything must be given back after.
    ///
    /// # Errors
    /// The first broken promise.
    pub fn run(&self) -> Result<Outcome, Violation> {
        self.run_with(|_| {})
    }

    /// The same, with something changed.
    ///
    /// # Errors
    /// The first broken promise.
    pub fn run_with(&self, change: impl FnOnce(&mut Setup)) -> Result<Outcome, Violation> {
        let mut setup = self.setup();
        change(&mut setup);
        let mut world = World::new(setup);
        world.run(FALLS)?;
        while world.now() < FREE {
            world.run(world.now() + Duration::from_secs(10))?;
            if world.restrictions() == Restrictions::default() && world.now() > FALLS + SETTLED {
                break;
            }
        }
        let left = world.restrictions();
        if left == Restrictions::default() {
            return Ok(world.outcome());
        }
        let what = format!("{left:?} left behind by faults that were mended");
        let (seed, at, promise) = (self.seed, world.now(), Promise::Restored);
        Err(Violation { seed, at, promise, what, excuse: None })
    }
}

/// What is lifted must stay lifted for this long after the load fell.
const SETTLED: Duration = Duration::from_secs(60);
