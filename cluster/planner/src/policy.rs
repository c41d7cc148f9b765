//! What an operator accepts: how often VMs are capped, and how deep.

use serde::{Deserialize, Serialize};

/// Accepted rates and floors.
///
/// Rates are millionths of all readings; an event is a reading above the budget. Floors are shares of the
/// highest frequency, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind", deny_unknown_fields)]
pub enum Policy {
    /// The chassis is provisioned for its nameplate power: nothing is oversubscribed.
    Provisioned,
    /// Capping hits every core of a server: all VMs alike.
    FullServer { emax_ppm: u32, fmin_ppm: u32 },
    /// Capping hits non-user-facing VMs first, and user-facing ones only when that is not enough.
    PerVm {
        /// How often user-facing VMs may be capped.
        emax_user_facing_ppm: u32,
        /// How often only non-user-facing VMs may be capped.
        emax_non_user_facing_ppm: u32,
        /// How deep user-facing VMs go; a million is not at all.
        fmin_user_facing_ppm: u32,
        /// How deep the others go.
        fmin_non_user_facing_ppm: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {ppm} ppm: {allowed}")]
pub struct PolicyError {
    pub key: &'static str,
    pub ppm: u32,
    pub allowed: &'static str,
}

const ONE: u32 = 1_000_000;

impl Policy {
    /// Full-server capping, rare and light (the paper's state of the art).
    pub const FULL_SERVER: Self = Self::FullServer { emax_ppm: 1_000, fmin_ppm: 750_000 };

    /// Per-VM capping that never touches user-facing VMs.
    pub const NO_IMPACT: Self = Self::PerVm {
        emax_user_facing_ppm: 0,
        emax_non_user_facing_ppm: 10_000,
        fmin_user_facing_ppm: ONE,
        fmin_non_user_facing_ppm: 500_000,
    };

    /// Per-VM capping that touches user-facing VMs rarely and lightly.
    pub const MINIMAL_IMPACT: Self = Self::PerVm {
        emax_user_facing_ppm: 1_000,
        emax_non_user_facing_ppm: 9_000,
        fmin_user_facing_ppm: 750_000,
        fmin_non_user_facing_ppm: 500_000,
    };

    /// How often any VM may be capped, and how often a user-facing one.
    pub const fn rates_ppm(&self) -> (u32, u32) {
        match *self {
            Self::Provisioned => (0, 0),
            // Every event hits both classes: only the total is a limit.
            Self::FullServer { emax_ppm, .. } => (emax_ppm, emax_ppm),
            Self::PerVm { emax_user_facing_ppm: user, emax_non_user_facing_ppm: others, .. } => {
                (user.saturating_add(others), user)
            }
        }
    }

    /// The floors of non-user-facing and of user-facing VMs, as shares of the highest frequency.
    pub fn floors(&self) -> (f64, f64) {
        let share = |ppm: u32| f64::from(ppm) / f64::from(ONE);
        match *self {
            Self::Provisioned => (1.0, 1.0),
            Self::FullServer { fmin_ppm, .. } => (share(fmin_ppm), share(fmin_ppm)),
            Self::PerVm { fmin_user_facing_ppm: user, fmin_non_user_facing_ppm: others, .. } => {
                (share(others), share(user))
            }
        }
    }

    /// Says what is wrong with these numbers, if anything.
    pub const fn check(&self) -> Result<(), PolicyError> {
        let (total, _) = self.rates_ppm();
        if total >= ONE {
            let allowed = "all rates together are less than every reading, 1000000";
            return Err(PolicyError { key: "emax", ppm: total, allowed });
        }

        let (first, second) = match *self {
            Self::Provisioned => return Ok(()),
            Self::FullServer { fmin_ppm, .. } => (("fmin", fmin_ppm), ("fmin", fmin_ppm)),
            Self::PerVm { fmin_user_facing_ppm: user, fmin_non_user_facing_ppm: others, .. } => {
                (("fmin_user_facing", user), ("fmin_non_user_facing", others))
            }
        };

        if first.1 < ONE / 2 || first.1 > ONE {
            return Err(PolicyError { key: first.0, ppm: first.1, allowed: FLOORS });
        }
        if second.1 < ONE / 2 || second.1 > ONE {
            return Err(PolicyError { key: second.0, ppm: second.1, allowed: FLOORS });
        }
        Ok(())
    }
}

const FLOORS: &str = "500000 to 1000000: a server's curves are measured at half and at full frequency";

/// Which VMs count as non-user-facing when their class is predicted so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Treated {
    All,
    /// Only the provider's own: third parties are all user-facing.
    Internal,
    /// The provider's own, and those of third parties that do not pay for a premium.
    InternalAndNonPremium,
}

/// A row of the paper's Table IV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Approach {
    pub name: &'static str,
    pub policy: Policy,
    pub treated: Treated,
}

impl Approach {
    /// The eight rows, in the paper's order.
    pub const ALL: [Self; 8] = {
        use Treated::{All, Internal, InternalAndNonPremium};
        const fn row(name: &'static str, policy: Policy, treated: Treated) -> Approach {
            Approach { name, policy, treated }
        }
        let (none, some) = (Policy::NO_IMPACT, Policy::MINIMAL_IMPACT);
        [
            row("traditional", Policy::Provisioned, All),
            row("full-server", Policy::FULL_SERVER, All),
            row("no-impact", none, All),
            row("minimal-impact", some, All),
            row("no-impact-internal", none, Internal),
            row("minimal-impact-internal", some, Internal),
            row("no-impact-non-premium", none, InternalAndNonPremium),
            row("minimal-impact-non-premium", some, InternalAndNonPremium),
        ]
    };

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|approach| approach.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_policies_are_possible() {
        for approach in Approach::ALL {
            assert_eq!(approach.policy.check(), Ok(()));
            assert_eq!(Approach::named(approach.name), Some(approach));
        }
        assert_eq!(Policy::MINIMAL_IMPACT.rates_ppm(), (10_000, 1_000));
        assert_eq!(Approach::named("no-such"), None);
    }

    #[test]
    fn impossible_ones_are_refused_by_name() {
        let deep = Policy::FullServer { emax_ppm: 0, fmin_ppm: 499_999 };
        assert!(deep.check().unwrap_err().to_string().starts_with("fmin = 499999 ppm: 500000 to"));
        let often = Policy::PerVm {
            emax_user_facing_ppm: 500_000,
            emax_non_user_facing_ppm: 500_000,
            fmin_user_facing_ppm: ONE,
            fmin_non_user_facing_ppm: ONE,
        };
        assert_eq!(often.check().unwrap_err().key, "emax");
    }
}
