//! A fault campaign: whole runs drawn from seeds, judged by the oracles.
//!
//! A seed draws everything: the chassis and its servers, their load, the controllers' parameters, and what
//! goes wrong, several things at once, some of them for good. First comes a minute of load and faults, in
//! which no promise may be broken. Then the load falls, the faults that do not last end, and who has no
//! fault must be free again.
//!
//! Nothing here knows of another seed: a campaign can be run in parts, on any number of threads.

mod draw;
mod kind;

use core::time::Duration;

use ballast_types::Instant;
use serde::Serialize;

pub use kind::Kind;

use crate::world::{Outcome, Promise, Setup, Violation, World};

/// For so long agents that were told to stop may take to put everything back.
const STOPS_WITHIN: Duration = Duration::from_secs(2);

/// How large a run is.
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
    setup: Setup,
    end: Instant,
}

/// What one run came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    pub seed: u64,
    /// How large it was.
    pub size: Size,
    /// What went wrong in it, each kind once.
    pub kinds: Vec<Kind>,
    /// The first promise that was broken.
    pub violation: Option<Violation>,
    /// Server-seconds that the oracles did not judge, because no chassis manager reached the server.
    pub unjudged_server_s: u64,
}

impl Case {
    /// Draws the run of `seed`. With `only` nothing but that kind goes wrong: once, and to the end.
    #[must_use]
    pub fn draw(seed: u64, only: Option<Kind>) -> Self {
        draw::case(seed, only)
    }

    /// Everything that makes the run.
    #[must_use]
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Runs it to the end, or to the first broken promise.
    #[must_use]
    pub fn run(&self) -> Verdict {
        let mut world = World::new(self.setup.clone());
        let violation = self.judge(&mut world).err();
        let Outcome { unjudged_server_s, .. } = world.outcome();
        let (seed, size, kinds) = (self.seed, self.size, self.kinds.clone());
        Verdict { seed, size, kinds, violation, unjudged_server_s }
    }

    fn judge(&self, world: &mut World) -> Result<(), Violation> {
        world.run(self.end)?;

        // An agent that is down when all are stopped is up again soon: then it is stopped too.
        for _ in 0..2 {
            world.stop_agents();
            world.run(world.now() + STOPS_WITHIN)?;
        }
        let left = (0..self.setup.agents.len())
            .find(|&server| !world.is_faulty(server) && !world.is_restored(server));
        let Some(server) = left else { return Ok(()) };
        let what = format!("{} has restrictions left behind", self.setup.agents[server].server);
        let (seed, at, promise) = (self.seed, world.now(), Promise::Restored);
        Err(Violation { seed, at, promise, what, excuse: None })
    }
}
