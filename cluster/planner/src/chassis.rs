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
    /// Allocated cores, as a share of the physical ones. Above 1 VMs share the cores of two pools, one for each class, that are
    /// in proportion to the classes' cores.
    pub alloc: f64,
    /// User-facing cores, as a share of the allocated ones.
    pub beta: f64,
    /// Utilisation of user-facing VMs, 0 to 1.
    pub util_user_facing: f64,
    /// Utilisation of the others, 0 to 1.
    pub util_non_user_facing: f64,
    /// How much of the non-user-facing load is the provider's own ([`Treated::Internal`]).
    pub internal_share: f64,
    /// How much of it is third parties' that pay for a premium: [`Treated::InternalAndNonPremium`] spares it.
    pub premium_share: f64,
    /// What is busy while a chassis draws most, where servers' loads were measured: then capping is counted on
    /// for that much, not for what the means say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_peak: Option<ClassLoad>,
}

/// How busy the servers of a chassis are, by class; 1 is one whole server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassLoad {
    pub user_facing: f64,
    pub others: f64,
}

/// One chassis in so many has less to shed than is planned with.
const SCARCE: usize = 20;

impl ClassLoad {
    /// What all but 5 % of the chassis have at their own peaks, of each class; below 20 chassis what all have.
    /// `None` without any.
    pub fn at_peaks(peaks: &[Self]) -> Option<Self> {
        let scarce = |of: fn(&Self) -> f64| {
            let mut all: Vec<f64> = peaks.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all.get(all.len() / SCARCE).copied()
        };
        Some(Self { user_facing: scarce(|load| load.user_facing)?, others: scarce(|load| load.others)? })
    }
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
            premium_share: 0.06,
            at_peak: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{key} = {value}: {allowed}")]
pub struct ChassisError {
    pub key: &'static str,
    pub value: f64,
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
    /// Nobody promises more cores, as a multiple of the physical ones.
    pub const ALLOC_MAX: f64 = 16.0;

    /// Says what is wrong with these numbers, if anything.
    pub fn check(&self) -> Result<(), ChassisError> {
        let refuse = |key, value, allowed| Err(ChassisError { key, value, allowed });
        if !(1..=10_000).contains(&self.servers) {
            return refuse("servers", f64::from(self.servers), "1 to 10000");
        }
        if let Err(allowed) = self.server.check() {
            return refuse("server", self.server.full_w, allowed);
        }
        if !(0.0..=Self::ALLOC_MAX).contains(&self.alloc) {
            return refuse("alloc", self.alloc, "0 to 16");
        }
        for (key, value) in [
            ("beta", self.beta),
            ("util_user_facing", self.util_user_facing),
            ("util_non_user_facing", self.util_non_user_facing),
            ("internal_share", self.internal_share),
            ("premium_share", self.premium_share),
        ] {
            if !(0.0..=1.0).contains(&value) {
                return refuse(key, value, "0 to 1");
            }
        }
        if self.internal_share + self.premium_share > 1.0 {
            return refuse("premium_share", self.premium_share, "with internal_share at most 1");
        }

        Ok(())
    }

    /// What the servers draw when all of them are at full load: the provisioned power.
    pub fn nameplate(&self) -> Watts {
        watts(f64::from(self.servers) * self.server.full_w)
    }

    /// How busy its servers are by the means: allocation and P95 utilisations.
    fn mean_load(&self) -> ClassLoad {
        // A class is as busy as its pool at most; where nothing is overcommitted it never is.
        let load = |share: f64, utilisation: f64| {
            f64::from(self.servers) * (self.alloc * share * utilisation).min(share)
        };
        ClassLoad {
            user_facing: load(self.beta, self.util_user_facing),
            others: load(1.0 - self.beta, self.util_non_user_facing),
        }
    }

    /// Which share of the non-user-facing load may be capped first.
    pub fn capped_first(&self, treated: Treated) -> f64 {
        match treated {
            Treated::All => 1.0,
            Treated::Internal => self.internal_share,
            Treated::InternalAndNonPremium => 1.0 - self.premium_share,
        }
    }

    /// What the policy's floors take off the draw: at chassis' peaks where loads were measured, else at the
    /// utilisations of the past. Rounded down: what is promised can be shed.
    pub fn reductions(&self, policy: &Policy, treated: Treated) -> Reductions {
        self.reductions_of(self.at_peak.unwrap_or_else(|| self.mean_load()), policy, treated)
    }

    /// The same while the servers are busy with `load`.
    ///
    /// Only the dynamic part counts. Source: Section III-E, steps 1 and 2, with the curves of Section IV-A.
    pub fn reductions_of(&self, load: ClassLoad, policy: &Policy, treated: Treated) -> Reductions {
        let dynamic = self.server.dynamic_w();
        let shed = |floor: f64| 1.0 - self.server.scale(floor);
        let (floor, floor_user_facing) = policy.floors();

        let others = dynamic * load.others * self.capped_first(treated) * shed(floor);
        let user_facing = dynamic * load.user_facing * shed(floor_user_facing);

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
    fn overcommitted_vms_are_as_busy_as_their_pools_at_most() {
        let shed = |alloc: f64, util: f64| {
            let chassis = Chassis { alloc, util_non_user_facing: util, ..Chassis::default() };
            chassis.reductions(&Policy::NO_IMPACT, Treated::All).first.as_f64()
        };
        // Batch has 60 % of the cores of 12 servers: at most that much can be slowed.
        let all = shed(1.0, 1.0);
        for (alloc, util, part) in [(0.5, 1.0, 0.5), (2.0, 0.25, 0.5), (2.0, 0.5, 1.0), (4.0, 0.9, 1.0)] {
            let is = shed(alloc, util) / all;
            assert!((is - part).abs() < 1e-4, "{alloc} {util}: {is}");
        }
        let refused = Chassis { alloc: 16.1, ..Chassis::default() }.check().unwrap_err();
        assert_eq!((refused.key, refused.allowed), ("alloc", "0 to 16"));
    }

    #[test]
    fn what_is_measured_at_the_peaks_comes_before_the_means() {
        let load = |others: u8| ClassLoad { user_facing: 1.0, others: f64::from(others) };
        let few: Vec<_> = (1..20).map(load).collect();
        let many: Vec<_> = (1..=40).rev().map(load).collect();
        let others = |peaks: &[ClassLoad]| ClassLoad::at_peaks(peaks).map(|load| load.others);
        assert_eq!((others(&[]), others(&few), others(&many)), (None, Some(1.0), Some(3.0)));

        // Two of twelve servers are busy with others' work: at half frequency they shed 140 of 198 W each.
        let chassis = Chassis { at_peak: Some(load(2)), ..Chassis::default() };
        let shed = chassis.reductions(&Policy::NO_IMPACT, Treated::All);
        assert_eq!(shed, Reductions { first: Watts::from_whole(280), user_facing: Watts::ZERO });
        let premium = Chassis { premium_share: 0.25, ..chassis };
        let shed = premium.reductions(&Policy::NO_IMPACT, Treated::InternalAndNonPremium);
        assert_eq!(shed.first, Watts::from_whole(210));
    }

    #[test]
    fn impossible_chassis_are_refused_by_name() {
        assert_eq!(Chassis::default().check(), Ok(()));
        let odd = Chassis { beta: f64::NAN, ..Chassis::default() };
        assert_eq!(odd.check().unwrap_err().key, "beta");
        let odd = Chassis { internal_share: 0.7, premium_share: 0.31, ..Chassis::default() };
        assert_eq!(odd.check().unwrap_err().key, "premium_share");
        let odd = Chassis { servers: 0, ..Chassis::default() };
        assert_eq!(odd.check().unwrap_err().to_string(), "servers = 0: 1 to 10000");
        let server = PowerModel { idle_w: 400.0, ..PowerModel::PAPER };
        assert_eq!(Chassis { server, ..Chassis::default() }.check().unwrap_err().key, "server");
    }
}
