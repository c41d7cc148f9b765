//! A fault run on one kind of chassis: it is overloaded, things go wrong, and then it is calm.

use core::time::Duration;

use ballast_agent_core::{Actuator, Policy};
use ballast_types::Instant;
use ballast_types::wire::SharePolicy;

use crate::demo::overloaded;
use crate::scenario::{Probe, Run, Scenario};
use crate::world::{Extent, FaultPlan, Outcome, Promise, Restrictions, Violation, World};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overload {
    /// Of the faults and of all other chance.
    pub seed: u64,
    pub servers: usize,
    /// Faults, some of them at the same time.
    pub faults: usize,
    pub actuator: Actuator,
    pub shares: SharePolicy,
}

/// Faults begin no earlier.
const FIRST: Instant = Instant::from_millis(1000);
/// No fault lasts longer.
const FAULTS_END: Instant = Instant::from_millis(25_000);
/// The load falls, for good.
const FALLS: Instant = Instant::from_millis(30_000);
/// Nothing may be restricted any more. Bounded by the hold of hardware caps, which relapses double, and the
/// stagger over the servers.
const FREE: Instant = Instant::from_millis(300_000);
/// What is lifted must stay lifted for this long after the load fell.
const SETTLED: Duration = Duration::from_secs(60);

impl Overload {
    /// Of even shares and the paper's steps on p-states.
    pub fn new(seed: u64, servers: usize, faults: usize) -> Self {
        let (actuator, shares) = (Actuator::Pstate, SharePolicy::Even);
        Self { seed, servers, faults, actuator, shares }
    }

    pub fn scenario(&self) -> Scenario {
        let plant = overloaded(self.servers, 1.0, FALLS.as_secs_f64());
        let extent = Extent { servers: self.servers, supplies: plant.supplies.len() };
        let faults = FaultPlan::draw(self.seed, extent, self.faults, FIRST, FAULTS_END);

        let mut scenario = Scenario::new(plant, Policy::Stepwise, self.seed, FREE.since(Instant::ZERO));
        for agent in &mut scenario.agents {
            agent.actuator = self.actuator;
        }
        scenario.chassis.shares = self.shares;
        Scenario { faults, ..scenario }
    }

    /// Runs it: nothing may be broken while things go wrong, and everything must be given back after.
    pub fn run(&self) -> Result<Outcome, Violation> {
        Self::judge(self.scenario())
    }

    /// The same of a scenario that was changed.
    pub fn judge(scenario: Scenario) -> Result<Outcome, Violation> {
        let seed = scenario.seed;
        let mut left = LeftBehind::default();
        let report = scenario.run(&mut [&mut left]).kept()?;
        if left.restrictions == Restrictions::default() {
            return Ok(report.outcome().unwrap_or_default());
        }
        let what = format!("{:?} left behind by faults that have ended", left.restrictions);
        let (at, promise) = (report.run().now(), Promise::Restored);
        Err(Violation { seed, at, promise, what, excuse: None })
    }
}

/// Looks every ten seconds for what is still restricted.
#[derive(Debug, Default)]
struct LeftBehind {
    restrictions: Restrictions,
    at: Instant,
}

impl Probe for LeftBehind {
    fn next(&self, now: Instant) -> Instant {
        if now < FALLS { FALLS } else { now + Duration::from_secs(10) }
    }

    fn ends(&mut self, run: &Run) {
        self.at = run.now();
        self.restrictions = run.world().map(World::restrictions).unwrap_or_default();
    }

    fn is_done(&self) -> bool {
        self.at > FALLS + SETTLED && self.restrictions == Restrictions::default()
    }
}
