//! The policies by their names: what the experiments measure is what the simulator plays and the daemon does.

use crate::fits::{AntiAffinity, Capacity, CpuPromise, FaultDomains, Open};
use crate::rules::{Alpha, BestFit, ExpectedExit, Nilas, Power, SpareExtras};
use crate::{Cluster, Fit, Ranking, Rule, Scheduler, Tier, Ties};

/// Whether VMs that end together go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifetimeRule {
    /// When VMs end is not looked at.
    None,
    /// [`Nilas`] before the other rules.
    Nilas,
    /// [`ExpectedExit`] in place of best fit, which is part of it.
    ExpectedExit,
}

/// Constraints, and the weights of the preferences. Hosts need room, and are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What is made of the ends of VMs, where they are known.
    pub lifetimes: LifetimeRule,
    /// The packing rule's weight; 0 leaves it out.
    pub best_fit: u32,
    /// The power rule's weight; 0 leaves it out. Without any rule the ties decide: first fit.
    pub power: u32,
    /// The power rule's weight of chassis against server.
    pub alpha: Alpha,
    /// Whether deployments can ask to be spread over hosts and fault domains.
    pub anti_affinity: bool,
    /// Who wins where the rules tie.
    pub ties: Ties,
    /// The promise of [`CpuPromise`], in millionths of the time; `None` where nothing is promised.
    pub cpu_target_ppm: Option<u32>,
    /// Whether hosts' VMs share two pools of cores by class, so that the promise is one to user-facing VMs.
    pub cpu_pools: bool,
}

impl Policy {
    /// What ships: best fit and the power rule. How the weights were chosen: proof/results, "Weights of the two
    /// rules".
    pub const POWER: Self = Self {
        lifetimes: LifetimeRule::None,
        best_fit: 4,
        power: 1,
        alpha: Alpha::PAPER,
        anti_affinity: true,
        ties: Ties::HASH,
        cpu_target_ppm: None,
        cpu_pools: false,
    };
    /// Best fit alone.
    pub const BEST_FIT: Self = Self { best_fit: 1, power: 0, ..Self::POWER };
    /// The first host with room, in the order of ties.
    pub const FIRST_FIT: Self = Self { best_fit: 0, ..Self::BEST_FIT };

    /// A scheduler of this inventory.
    pub fn scheduler(&self, cluster: Cluster) -> Scheduler {
        let (fits, ranking) = self.rules(&cluster);
        Scheduler::new(cluster, fits, ranking)
    }

    /// Constraints and ranking for this inventory: what [`Scheduler::set_policy`] takes.
    pub fn rules(&self, cluster: &Cluster) -> (Vec<Box<dyn Fit>>, Ranking) {
        let mut fits: Vec<Box<dyn Fit>> = vec![Box::new(Capacity), Box::new(Open)];
        if self.anti_affinity {
            fits.push(Box::new(AntiAffinity::default()));
            fits.push(Box::new(FaultDomains::default()));
        }
        if let Some(target_ppm) = self.cpu_target_ppm {
            fits.push(Box::new(CpuPromise::new(target_ppm, self.cpu_pools)));
        }
        let ties = self.ties;
        // Where nothing is weighed against best fit, one search finds the class and the best within it.
        let nilas_packs = self.lifetimes == LifetimeRule::Nilas && self.best_fit > 0 && self.power == 0;
        let mut tiers = vec![Tier::one(SpareExtras::new(cluster, ties))];
        match self.lifetimes {
            LifetimeRule::Nilas if nilas_packs => tiers.push(Tier::one(Nilas::packing(cluster, ties))),
            LifetimeRule::Nilas => tiers.push(Tier::one(Nilas::classes(cluster, ties))),
            LifetimeRule::None | LifetimeRule::ExpectedExit => {}
        }

        let mut rules: Vec<(u32, Box<dyn Rule>)> = Vec::new();
        if self.best_fit > 0 && self.lifetimes == LifetimeRule::ExpectedExit {
            rules.push((self.best_fit, Box::new(ExpectedExit::new(cluster, ties))));
        } else if self.best_fit > 0 && !nilas_packs {
            rules.push((self.best_fit, Box::new(BestFit::new(cluster, ties))));
        }
        if self.power > 0 {
            rules.push((self.power, Box::new(Power::in_order(cluster, self.alpha, ties))));
        }
        if !rules.is_empty() {
            tiers.push(Tier::weighted(rules));
        }
        (fits, Ranking::new(tiers, self.ties))
    }
}
