//! One pool, played under one policy with one kind of foresight.

use core::fmt;
use std::sync::Arc;

use ballast_placement::rules::{BestFit, SpareExtras};
use ballast_placement::{
    ChassisId, Cluster, Fit, Host, LifetimeRule, Policy, Ranking, Resources, Rule, Scheduler, Tier, Ties,
};
use ballast_sim::cluster::{
    Batches, Engine, EngineError, Noise, Operator, PowerDownOptions, PowerDownOutcome, Probe,
};
use ballast_types::survival::Curves;
use serde::Serialize;

use super::inflation::Inflation;
use super::la_binary::LaBinary;
use super::lava::{Lava, LavaReading};
use super::measures::{Figures, Measures};
use super::workload::{Foresight, PoolSource, Workload};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contestant {
    BestFit,
    FirstFit,
    LaBinary,
    Nilas,
    Lava,
    LavaFlat,
    ExpectedExit,
}

impl Contestant {
    /// Those that look at lifetimes.
    pub const FORESEEING: [Self; 5] =
        [Self::LaBinary, Self::Nilas, Self::Lava, Self::LavaFlat, Self::ExpectedExit];

    pub const fn name(self) -> &'static str {
        match self {
            Self::BestFit => "best-fit",
            Self::FirstFit => "first-fit",
            Self::LaBinary => "la-binary",
            Self::Nilas => "nilas",
            Self::Lava => "lava",
            Self::LavaFlat => "lava-flat",
            Self::ExpectedExit => "expected-exit",
        }
    }

    /// What the daemon offers; baselines of papers are rules of their own before best fit.
    const fn policy(self) -> Policy {
        let (policy, lifetimes) = match self {
            Self::FirstFit => (Policy::FIRST_FIT, LifetimeRule::None),
            Self::Nilas => (Policy::BEST_FIT, LifetimeRule::Nilas),
            Self::ExpectedExit => (Policy::BEST_FIT, LifetimeRule::ExpectedExit),
            Self::BestFit | Self::LaBinary | Self::Lava | Self::LavaFlat => {
                (Policy::BEST_FIT, LifetimeRule::None)
            }
        };
        // No pool asks for deployments to be spread.
        Policy { lifetimes, anti_affinity: false, ..policy }
    }

    /// Constraints and ranking for this inventory.
    pub(super) fn rules(self, cluster: &Cluster) -> (Vec<Box<dyn Fit>>, Ranking) {
        let policy = self.policy();
        let (fits, ranking) = policy.rules(cluster);
        let ties = policy.ties;
        let rule: Box<dyn Rule> = match self {
            Self::LaBinary => Box::new(LaBinary::new(cluster, ties)),
            Self::Lava => Box::new(Lava::new(cluster, ties, LavaReading::ClosestFirst)),
            Self::LavaFlat => Box::new(Lava::new(cluster, ties, LavaReading::Flat)),
            Self::BestFit | Self::FirstFit | Self::Nilas | Self::ExpectedExit => return (fits, ranking),
        };
        (fits, before_best_fit(cluster, rule, ties))
    }

    pub(super) fn scheduler(self, cluster: Cluster) -> Scheduler {
        let (fits, ranking) = self.rules(&cluster);
        Scheduler::new(cluster, fits, ranking)
    }
}

pub(super) fn before_best_fit(cluster: &Cluster, rule: Box<dyn Rule>, ties: Ties) -> Ranking {
    let spare = Tier::one(SpareExtras::new(cluster, ties));
    let tiers = vec![spare, Tier::weighted(vec![(1, rule)]), Tier::one(BestFit::new(cluster, ties))];
    Ranking::new(tiers, ties)
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Hosts that are all alike, and when what is scored.
#[derive(Clone, Debug)]
pub(super) struct Setting<'a> {
    pub hosts: u32,
    pub host: Resources,
    /// Who is there at this time comes before anything else.
    pub from_ms: u64,
    /// From here on the policy places, and is scored.
    pub switch_ms: u64,
    pub end_ms: u64,
    /// Whether the policy places from the first VM on.
    pub is_cold: bool,
    pub mix: &'a [Resources],
    pub inflate_every_ms: u64,
    pub inflations: u64,
    pub power: PowerDownOptions,
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Score {
    pub whole: Figures,
    pub second_half: Figures,
    pub power: PowerDownOutcome,
}

/// Why a pool cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("{policy}: hosts had more than they have room for {times} times")]
    Overcommitted { policy: Contestant, times: u64 },
}

/// Nobody watches beside the measures.
pub(super) struct Unwatched;

impl Probe for Unwatched {}

/// Changes the policy once, and says where what is scored begins and where its second half does.
struct Switch {
    /// The next one last.
    steps: Vec<(u64, Option<Contestant>)>,
}

impl Operator for Switch {
    fn next_ms(&self) -> Option<u64> {
        self.steps.last().map(|(at_ms, _)| *at_ms)
    }

    fn act(
        &mut self,
        at_ms: u64,
        _: bool,
        scheduler: &mut Scheduler,
        phase: &mut dyn FnMut(&Cluster),
    ) -> Result<(), EngineError> {
        while let Some((_, policy)) = self.steps.pop_if(|(due_ms, _)| *due_ms <= at_ms) {
            if let Some(policy) = policy {
                let (fits, ranking) = policy.rules(scheduler.cluster());
                scheduler.set_policy(fits, ranking);
            }
            phase(scheduler.cluster());
        }
        Ok(())
    }
}

impl Setting<'_> {
    /// Plays a workload. `curves` are those that the foresight names; the watcher sees all of it.
    pub(super) fn play<W: Workload>(
        &self,
        name: &str,
        workload: W,
        contestant: Contestant,
        foresight: Foresight<'_>,
        curves: Arc<Curves>,
        watcher: &mut dyn Probe,
    ) -> Result<Score, TrialError> {
        let host = Host::new(ChassisId(0), self.host);
        let cluster = Cluster::new(&vec![host; self.hosts as usize]).with_curves(curves);
        let inflation = Inflation::new(self.mix, self.seed, self.inflate_every_ms, self.inflations);
        let mut measures = Measures::new(&cluster, inflation, self.power);

        let first = if self.is_cold { contestant } else { Contestant::BestFit };
        let mut scheduler = first.scheduler(cluster);
        let middle_ms = u64::midpoint(self.switch_ms, self.end_ms);
        let changed = (!self.is_cold && contestant != Contestant::BestFit).then_some(contestant);
        let mut switch = Switch { steps: vec![(middle_ms, None), (self.switch_ms, changed)] };

        let noise: Option<Noise> = if let Foresight::Noisy(noise) = foresight { Some(noise) } else { None };
        let mut source = PoolSource::new(name, workload, foresight, self.from_ms, self.end_ms);
        let probes: &mut [&mut dyn Probe] = &mut [&mut measures, watcher];
        let engine = Engine::new(&mut scheduler, &mut switch, probes, Batches::Split);
        engine.with_noise(noise).play(&mut source)?;

        if measures.overcommitted() > 0 {
            let times = measures.overcommitted();
            return Err(TrialError::Overcommitted { policy: contestant, times });
        }
        let [whole, second_half] = measures.figures();
        Ok(Score { whole, second_half, power: measures.power().outcome() })
    }
}
