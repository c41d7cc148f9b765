//! A fault campaign: whole runs drawn from seeds, judged by the oracles.
//!
//! A seed draws everything: the chassis and its servers, their load, the controllers' parameters, and what
//! goes wrong, several things at once, some of them for good. First comes a minute of load and faults, in
//! which no promise may be broken. Then the load falls, the faults that do not last end, and who has no
//! fault must be free again.
//!
//! Nothing here knows of another seed: a campaign can be run in parts, on any number of threads.

mod draw;
pub mod kills;
mod kind;
mod overload;

use serde::Serialize;

pub use kind::Kind;
pub use overload::Overload;

use crate::scenario::{Report, Scenario};
use crate::world::{Promise, Violation};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Size {
    /// Up to 64 servers and about 1,000 cores, 150 s.
    Usual,
    /// 65 to 128 servers.
    Larger,
    /// 600 s.
    Longer,
}

/// One run, about to begin.
#[derive(Clone, Debug)]
pub struct Case {
    seed: u64,
    size: Size,
    kinds: Vec<Kind>,
    scenario: Scenario,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    pub seed: u64,
    pub size: Size,
    /// What went wrong in it, each kind once.
    pub kinds: Vec<Kind>,
    /// The first promise that was broken.
    pub violation: Option<Violation>,
    /// Server-seconds that the oracles did not judge, because no chassis manager reached the server.
    pub unjudged_server_s: u64,
    /// Seconds in which user-facing cores were slowed while low-priority cores ran above their floor. Counted and not
    /// judged: hardware caps that faults cause last longer than a reaction time.
    pub inversion_s: f64,
}

impl Case {
    /// Draws the run of `seed`. With `only` nothing but that kind goes wrong: once, and to the end.
    pub fn draw(seed: u64, only: Option<Kind>) -> Self {
        draw::case(seed, only)
    }

    /// Draws the run of `seed` with nothing that goes wrong.
    pub fn faultless(seed: u64) -> Self {
        draw::without_troubles(seed).1
    }

    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// Runs it to the end, or to the first broken promise.
    pub fn run(&self) -> Verdict {
        let report = self.scenario.clone().run(&mut []);
        let outcome = report.outcome().unwrap_or_default();
        let (unjudged_server_s, inversion_s) = (outcome.unjudged_server_s, outcome.inversion_s);
        let violation = self.left_behind(&report);
        let violation = report.violation.or(violation);
        let kinds = self.kinds.clone();
        Verdict { seed: self.seed, size: self.size, kinds, violation, unjudged_server_s, inversion_s }
    }

    /// The first server without a fault on which agents that were told to stop left something behind.
    fn left_behind(&self, report: &Report) -> Option<Violation> {
        let world = report.run().world()?;
        let agents = self.scenario.agents.iter().enumerate();
        let mut left = agents.filter(|&(n, _)| !world.is_faulty(n) && !world.is_restored(n));
        let what = format!("{} has restrictions left behind", left.next()?.1.server);
        let (seed, at, promise) = (self.seed, world.now(), Promise::Restored);
        Some(Violation { seed, at, promise, what, excuse: None })
    }
}
