//! What a chassis can shed.

use ballast_types::{PowerModel, Watts};
use serde::{Deserialize, Serialize};

use crate::policy::{Policy, Treated};

/// A chassis of one hardware generation, and how busy its VMs were.
///
/// The defaults are the paper's: 12 servers of 112 to 310 W, 40 % of allocated cores user-facing, P95
/// utilisations of 65 and 44 %. The paper does not name `alloc`; 0.51 is what its results imply.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Chassis {
    pub servers: u32,
    /// One server's draw by load and frequency.
    pub server: PowerModel,
    /// Allocated cores, as a share of the physical ones.
    pub alloc: f64,
    /// User-facing cores, as a share of the allocated ones.
    pub beta: f64,
    /// Utilisation of user-facing VMs, 0 to 1.
    pub util_user_facing: f64,
    /// Utilisation of the others, 0 to 1.
    pub util_non_user_facing: f64,
    /// How much of the non-user-facing load is the provider's own ([`Treated::Internal`]).
    pub internal_share: f64,
    /// The same with third parties that pay for no premium.
    pub internal_and_non_premium_share: f64,
}

impl Default for Chassis {
    fn default() -> Self {
        Self {
            servers: 12,
            server: PowerModel::PAPER,
            alloc: 0.51,
            beta: 0.40,
            util_user_facing: 0.65,
            util_non_user_facing: 0.44,
            internal_share: 0.61,
            internal_and_non_premium_share: 0.94,
        }
    }
}

/// A chassis that cannot be.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{key} = {value}: {allowed}")]
pub struct ChassisError {
    pub key: &'static str,
    pub value: f64,
    /// What it may be.
    pub allowed: &'static str,
}

/// What capping can take off a chassis's draw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reductions {
    /// From non-user-facing VMs alone; under full-server capping from everyone.
    #[serde(rename = "first_w")]
    pub first: Watts,
    /// From user-facing VMs besides.
    #[serde(rename = "user_facing_w")]
    pub user_facing: Watts,
}

impl Chassis {
    /// Says what is wrong with these numbers, if anything.
    pub fn check(&self) -> Result<(), ChassisError> {
        let refuse = |key, value, allowed| Err(ChassisError { key, value, allowed });
        if !(1..=10_000).contains(&self.servers) {
            return refuse("servers", f64::from(self.servers), "1 to 10000");
        }
        if let Err(allowed) = self.server.check() {
            return refuse("server", self.server.full_w, allowed);
        }
        for (key, value) in [
            ("alloc", self.alloc),
            ("beta", self.beta),
            ("util_user_facing", self.util_user_facing),
            ("util_non_user_facing", self.util_non_user_facing),
            ("internal_share", self.internal_share),
            ("internal_and_non_premium_share", self.internal_and_non_premium_share),
        ] {
            if !(0.0..=1.0).contains(&value) {
                return refuse(key, value, "0 to 1");
            }
        }

        Ok(())
    }

    /// What the servers draw when all of them are at full load: the provisioned power.
    pub fn nameplate(&self) -> Watts {
        watts(f64::from(self.servers) * self.server.full_w)
    }

    /// What the policy's floors take off the draw, at the utilisations of the past. Rounded down: what is
    /// promised can be shed.
    ///
    /// Only the dynamic part counts. Source: Section III-E, steps 1 and 2, with the curves of Section IV-A.
    pub fn reductions(&self, policy: &Policy, treated: Treated) -> Reductions {
        let dynamic = f64::from(self.servers) * self.alloc * self.server.dynamic_w();
        let shed = |floor: f64| 1.0 - self.server.scale(floor);
        let (floor, floor_user_facing) = policy.floors();
        let share = match treated {
            Treated::All => 1.0,
            Treated::Internal => self.internal_share,
            Treated::InternalAndNonPremium => self.internal_and_non_premium_share,
        };

        let others = dynamic * (1.0 - self.beta) * self.util_non_user_facing * share * shed(floor);
        let user_facing = dynamic * self.beta * self.util_user_facing * shed(floor_user_facing);

        match policy {
            Policy::Provisioned => Reductions { first: Watts::ZERO, user_facing: Watts::ZERO },
            Policy::FullServer { .. } => {
                Reductions { first: watts(others + user_facing), user_facing: Watts::ZERO }
            }
            Policy::PerVm { .. } => Reductions { first: watts(others), user_facing: watts(user_facing) },
        }
    }
}

/// Whole milliwatts, rounded down.
fn watts(w: f64) -> Watts {
    Watts::from_milli((w * 1000.0) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_chassis_sheds_what_its_results_imply() {
        // Fractions of the provisioned 3720 W: .061 by arithmetic on the curves; .0609 by the results.
        let (chassis, policy) = (Chassis::default(), Policy::NO_IMPACT);
        let share =
            |treated| chassis.reductions(&policy, treated).first.as_f64() / chassis.nameplate().as_f64();
        assert_eq!(chassis.nameplate(), Watts::from_whole(3720));
        assert!((share(Treated::All) - 0.0609).abs() < 2e-4, "{}", share(Treated::All));
        assert!((share(Treated::Internal) - 0.0373).abs() < 3e-4);
        assert!((share(Treated::InternalAndNonPremium) - 0.0573).abs() < 3e-4);
        assert_eq!(chassis.reductions(&policy, Treated::All).user_facing, Watts::ZERO);
        // Full-server capping at 75 % sheds 1.12 times that.
        let full = chassis.reductions(&Policy::FULL_SERVER, Treated::All);
        let ratio = full.first.as_f64() / chassis.nameplate().as_f64() / share(Treated::All);
        assert!((ratio - 1.12).abs() < 0.01, "{ratio}");
    }

    #[test]
    fn impossible_chassis_are_refused_by_name() {
        assert_eq!(Chassis::default().check(), Ok(()));
        let odd = Chassis { beta: f64::NAN, ..Chassis::default() };
        assert_eq!(odd.check().unwrap_err().key, "beta");
        let odd = Chassis { servers: 0, ..Chassis::default() };
        assert_eq!(odd.check().unwrap_err().to_string(), "servers = 0: 1 to 10000");
        let server = PowerModel { idle_w: 400.0, ..PowerModel::PAPER };
        assert_eq!(Chassis { server, ..Chassis::default() }.check().unwrap_err().key, "server");
    }
}
