//! The policies by their names.

use ballast_placement::fits::{Capacity, Open};
use ballast_placement::rules::{Alpha, BestFit, Power};
use ballast_placement::{Cluster, Fit, Ranking, Scheduler, Tier};
use ballast_sim::cluster::Reason;
use ballast_types::Instant;
use clap::ValueEnum;

/// How a host is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PolicyArg {
    /// The smallest max(free core share, free memory share) after placement, the lowest id on a tie
    BestFit,
    /// The lowest id that has room
    FirstFit,
    /// Best fit and the power rule (Algorithm 1) weighed alike; a trace's VMs count as user-facing at 100 %
    Power,
}

impl PolicyArg {
    /// A scheduler of this cluster.
    pub(super) fn scheduler(self, cluster: Cluster, alpha: Alpha) -> Scheduler {
        let best_fit = || BestFit::new(&cluster);
        let tiers = match self {
            Self::FirstFit => Vec::new(),
            Self::BestFit => vec![Tier::one(best_fit())],
            Self::Power => vec![Tier::weighted(vec![
                (1, Box::new(best_fit())),
                (1, Box::new(Power::new(&cluster, alpha))),
            ])],
        };
        let fits: Vec<Box<dyn Fit>> = vec![Box::new(Capacity), Box::new(Open)];
        Scheduler::new(cluster, fits, Ranking::new(tiers), Instant::ZERO)
    }
}

/// From 0 to 1.
pub(super) fn alpha(text: &str) -> Result<Alpha, String> {
    let alpha = text.parse().ok().and_then(Alpha::new);
    alpha.ok_or_else(|| "a number from 0 to 1 is needed".to_owned())
}

/// A reason for people.
pub(super) const fn words(reason: Reason) -> &'static str {
    match reason {
        Reason::Cores => "want of cores",
        Reason::Memory => "want of memory",
        Reason::Fragmentation => "fragmentation",
    }
}
