//! Runs in which processes are killed between any two of their effects, and started again.

use core::time::Duration;

use ballast_agent_core::{Actuator, Policy};
use ballast_types::Instant;
use ballast_types::wire::SharePolicy;

use crate::demo::overloaded;
use crate::scenario::{Probe, Run, Scenario};
use crate::world::{Chance, Kill, Victim, Violation, World};

/// The load falls, for good: what was capped is lifted.
const FALLS: Instant = Instant::from_millis(8_000);
/// Kills begin no later, so that they hit the lifting too.
const KILLS_END: Instant = Instant::from_millis(14_000);
/// Everybody is back, and nothing may be restricted any more.
const BACK: Instant = Instant::from_millis(20_000);
/// Bounded by the hold of hardware caps, which relapses double.
const FREE: Instant = Instant::from_millis(300_000);
/// What is lifted must stay lifted.
const SETTLED: Duration = Duration::from_secs(5);
/// A process does at most so many effects more before it dies: more than all cores of a server.
const EFFECTS: u32 = 128;
/// As systemd starts a daemon again, and longer.
const DOWN: (Duration, Duration) = (Duration::from_millis(200), Duration::from_millis(1800));

#[derive(Clone, Debug, Default, PartialEq)]
pub struct KillVerdict {
    /// How many processes were killed.
    pub kills: u64,
    /// Everything that was changed is as it was.
    pub restored: bool,
    /// Changes that were in no journal, or never put back.
    pub lost_originals: usize,
    /// How far the breaker went towards its trip; 1 or more is a trip.
    pub trip_fraction_max: f64,
    pub violation: Option<Violation>,
}

impl KillVerdict {
    /// Whether nothing went wrong.
    pub fn is_kept(&self) -> bool {
        self.restored && self.lost_originals == 0 && self.trip_fraction_max < 1.0
    }
}

pub fn scenario(seed: u64) -> Scenario {
    let mut chance = Chance::new(seed, 0x4B);
    let servers = 1 + chance.below(3);
    let mut either = || chance.happens(500_000);
    let actuator = if either() { Actuator::Pstate } else { Actuator::CpuMax };
    let shares = if either() { SharePolicy::Even } else { SharePolicy::CriticalFirst };
    let plant = overloaded(servers as usize, 1.0, FALLS.as_secs_f64());
    let mut scenario = Scenario::new(plant, Policy::Stepwise, seed, FREE.since(Instant::ZERO));

    for agent in &mut scenario.agents {
        agent.actuator = actuator;
    }
    scenario.chassis.shares = shares;

    for _ in 0..=chance.below(4) {
        let victim = match chance.below(servers + 1) {
            0 => Victim::Manager,
            n => Victim::Agent(n as usize - 1),
        };
        let from = Instant::ZERO + chance.span(KILLS_END.since(Instant::ZERO));
        let bound = 1 + chance.below(u64::from(EFFECTS));
        let effects = chance.below(bound) as u32;
        let (loses_writes, down) = (chance.happens(500_000), DOWN.0 + chance.span(DOWN.1));
        scenario.kills.push(Kill { victim, from, effects, loses_writes, down });
    }

    scenario
}

pub fn run(seed: u64) -> KillVerdict {
    let mut originals = Originals::default();
    let report = scenario(seed).run(&mut [&mut originals]);
    let Some(world) = report.run().world() else { return KillVerdict::default() };

    let changed = world.lost_originals();
    KillVerdict {
        kills: world.kills(),
        restored: originals.free_since.is_some() && report.violation.is_none(),
        lost_originals: originals.lost.max(changed),
        trip_fraction_max: world.outcome().trip_fraction_max,
        violation: report.violation,
    }
}

/// Looks every half second for originals that nobody would put back, and for what is still changed.
#[derive(Debug, Default)]
struct Originals {
    lost: usize,
    free_since: Option<Instant>,
    now: Instant,
}

impl Probe for Originals {
    fn next(&self, now: Instant) -> Instant {
        now + Duration::from_millis(500)
    }

    fn ends(&mut self, run: &Run) {
        self.now = run.now();
        let is_free = run.world().is_some_and(World::is_restored_everywhere);
        self.lost = self.lost.max(run.world().map_or(0, World::lost_originals));
        self.free_since = if is_free { self.free_since.or(Some(self.now)) } else { None };
    }

    fn is_done(&self) -> bool {
        self.now >= BACK && self.free_since.is_some_and(|since| self.now.since(since) >= SETTLED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_kills_between_any_two_effects_every_original_is_back_and_no_breaker_trips() {
        let mut kills = 0;
        for seed in 0..50 {
            let verdict = run(seed);
            assert!(verdict.is_kept(), "seed {seed}: {verdict:?}");
            kills += verdict.kills;
        }
        assert!(kills >= 50, "only {kills} kills");
    }

    /// The manager dies after the first messages of what it shares anew: they count with that.
    #[test]
    fn what_a_dying_manager_has_sent_is_judged_by_what_it_shared() {
        let verdict = run(1290);
        assert!(verdict.is_kept(), "{verdict:?}");
    }

    /// An agent dies before the first cap reaches it, and the manager before it misses that agent. The agent
    /// comes back with its fallback, and the others hold what was granted with the lower cap.
    #[test]
    fn what_a_manager_granted_before_it_noticed_who_is_gone_runs_out_within_a_lease_of_its_death() {
        let verdict = run(20_274_497);
        assert!(verdict.is_kept(), "{verdict:?}");
    }

    #[test]
    fn a_run_is_its_seed() {
        assert_eq!(run(3), run(3));
        assert_ne!(scenario(3).kills, scenario(4).kills);
    }
}
