//! The policies by their names.

use ballast_placement::Policy;
use ballast_placement::rules::Alpha;
use ballast_sim::cluster::Reason;
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
    pub(super) const fn policy(self, alpha: Alpha) -> Policy {
        let (best_fit, power) = match self {
            Self::FirstFit => (0, 0),
            Self::BestFit => (1, 0),
            Self::Power => (1, 1),
        };
        // A trace does not say whether a deployment is to be spread.
        Policy { best_fit, power, alpha, anti_affinity: false }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::FirstFit => "first-fit",
            Self::BestFit => "best-fit",
            Self::Power => "power",
        }
    }
}

pub(super) fn alpha(text: &str) -> Result<Alpha, String> {
    let alpha = text.parse().ok().and_then(Alpha::new);
    alpha.ok_or_else(|| "a number from 0 to 1 is needed".to_owned())
}

pub(super) const fn words(reason: Reason) -> &'static str {
    match reason {
        Reason::Cores => "too few cores",
        Reason::Memory => "too little memory",
        Reason::Fragmentation => "fragmentation",
        Reason::Admission => "admission",
    }
}
