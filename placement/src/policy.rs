//! The standard policy: what the simulator plays is what the daemon does.

use ballast_types::Instant;

use crate::fits::{AntiAffinity, Capacity, Open};
use crate::rules::{Alpha, BestFit, Power};
use crate::{Cluster, Fit, Ranking, Rule, Scheduler, Tier};

/// Constraints, and the weights of the preferences. Hosts need room, and are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The packing rule's weight; 0 leaves it out.
    pub best_fit: u32,
    /// The power rule's weight; 0 leaves it out. Without any rule the lowest id wins: first fit.
    pub power: u32,
    /// The power rule's weight of chassis against server.
    pub alpha: Alpha,
    /// Whether deployments can ask to be spread over hosts.
    pub anti_affinity: bool,
}

impl Policy {
    /// Both rules weighed alike, α = 0.8, deployments spread where they ask for it.
    pub const PAPER: Self = Self { best_fit: 1, power: 1, alpha: Alpha::PAPER, anti_affinity: true };

    /// A scheduler of this inventory.
    pub fn scheduler(&self, cluster: Cluster, now: Instant) -> Scheduler {
        let (fits, ranking) = self.rules(&cluster);
        Scheduler::new(cluster, fits, ranking, now)
    }

    /// Constraints and ranking for this inventory: what [`Scheduler::set_policy`] takes.
    pub fn rules(&self, cluster: &Cluster) -> (Vec<Box<dyn Fit>>, Ranking) {
        let mut fits: Vec<Box<dyn Fit>> = vec![Box::new(Capacity), Box::new(Open)];
        if self.anti_affinity {
            fits.push(Box::new(AntiAffinity::default()));
        }
        let mut rules: Vec<(u32, Box<dyn Rule>)> = Vec::new();
        if self.best_fit > 0 {
            rules.push((self.best_fit, Box::new(BestFit::new(cluster))));
        }
        if self.power > 0 {
            rules.push((self.power, Box::new(Power::new(cluster, self.alpha))));
        }
        let tiers = if rules.is_empty() { Vec::new() } else { vec![Tier::weighted(rules)] };
        (fits, Ranking::new(tiers))
    }
}
