//! The policies by their names.

use ballast_placement::rules::Alpha;
use ballast_placement::{LifetimeRule, Policy, Shortage, Ties};
use ballast_sim::cluster::Reason;
use clap::ValueEnum;

/// How a host is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PolicyArg {
    /// The smallest max(free core share, free memory share) after placement
    BestFit,
    /// The first host that has room, in the order of --ties
    FirstFit,
    /// What the daemon does: best fit and the power rule (Algorithm 1); a trace knows neither class nor P95 of its VMs,
    /// so the power rule says nothing of them
    Power,
    /// The less a VM outlives its host the better, by --lifetimes; then best fit
    Nilas,
    /// The least expected extra host time, by --lifetimes
    ExpectedExit,
}

impl PolicyArg {
    pub(super) const fn policy(self, alpha: Alpha, ties: Ties) -> Policy {
        let policy = match self {
            Self::FirstFit => Policy::FIRST_FIT,
            Self::BestFit => Policy::BEST_FIT,
            Self::Power => Policy::POWER,
            Self::Nilas => Policy { lifetimes: LifetimeRule::Nilas, ..Policy::BEST_FIT },
            Self::ExpectedExit => Policy { lifetimes: LifetimeRule::ExpectedExit, ..Policy::BEST_FIT },
        };
        // A trace does not say whether a deployment is to be spread.
        Policy { alpha, ties, anti_affinity: false, ..policy }
    }

    /// Whether the policy weighs chances, rather than one time at which a VM ends.
    pub(super) fn weighs(self) -> bool {
        self == Self::ExpectedExit
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::FirstFit => "first-fit",
            Self::BestFit => "best-fit",
            Self::Power => "power",
            Self::Nilas => "nilas",
            Self::ExpectedExit => "expected-exit",
        }
    }
}

pub(super) fn alpha(text: &str) -> Result<Alpha, String> {
    let alpha = text.parse().ok().and_then(Alpha::new);
    alpha.ok_or_else(|| "a number from 0 to 1 is needed".to_owned())
}

pub(super) const fn words(reason: Reason) -> &'static str {
    match reason {
        Reason::Cores => Shortage::Cores.words(),
        Reason::Memory => Shortage::Memory.words(),
        Reason::Extras => Shortage::Extras.words(),
        Reason::Fragmentation => Shortage::Fragmentation.words(),
        Reason::Admission => "admission",
    }
}
