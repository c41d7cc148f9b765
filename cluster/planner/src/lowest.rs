//! The lowest admissible budget.

use ballast_types::Watts;
use serde::{Deserialize, Serialize};

use crate::chassis::Reductions;
use crate::events::Events;
use crate::histogram::Histogram;
use crate::policy::Policy;

/// What keeps the budget from being lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Binding {
    /// How often any VM may be capped.
    TotalRate,
    /// How often a user-facing VM may be capped: more would need it.
    UserFacingRate,
    /// How deep: at the highest draw nothing more can be shed.
    Depth,
    /// Nothing is oversubscribed, or the history leaves nothing to gain.
    Provisioned,
}

impl Binding {
    pub const fn words(self) -> &'static str {
        match self {
            Self::TotalRate => "how often VMs may be capped",
            Self::UserFacingRate => "how often user-facing VMs may be capped",
            Self::Depth => "what can be shed at the highest draw",
            Self::Provisioned => "the provisioned power",
        }
    }
}

/// A budget without buffer, and what limits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lowest {
    /// The lowest budget that the policy admits, a step of the meter.
    pub budget: Watts,
    /// What keeps it there.
    pub binding: Binding,
}

/// The lowest budget under which `policy` would have been kept: the greatest of
///
/// - the draw that any event may exceed as often as VMs may be capped at all;
/// - the draw that may be exceeded as often as user-facing VMs may be capped, less what the others shed;
/// - the highest draw, less all that can be shed;
///
/// rounded up to the histogram's resolution. `None` without readings, and for [`Policy::Provisioned`].
///
/// It is what the walk of Section III-E converges to where draws are dense; see [`walk`].
pub fn lowest(draws: &Histogram, policy: &Policy, shed: Reductions) -> Option<Lowest> {
    if *policy == Policy::Provisioned {
        return None;
    }
    let (total_ppm, user_facing_ppm) = policy.rates_ppm();
    let total = draws.exceeded_by(total_ppm)?;
    let depth = draws.max()? - shed.first - shed.user_facing;
    let mut best = (total, Binding::TotalRate);
    // Under full-server capping every event hits all: there is no rate of user-facing events alone.
    let user_facing = draws.exceeded_by(user_facing_ppm)? - shed.first;
    for (budget, binding) in [(depth, Binding::Depth), (user_facing, Binding::UserFacingRate)] {
        let counts = binding != Binding::UserFacingRate || matches!(policy, Policy::PerVm { .. });
        if counts && budget > best.0 {
            best = (budget, binding);
        }
    }
    Some(Lowest { budget: draws.round_up(best.0), binding: best.1 })
}

/// The paper's walk (Section III-E, step 4): down the draws, highest first, as long as a budget of that
/// draw is admissible; the last admissible one. It can be higher than [`lowest`] where draws are sparse,
/// never lower. `None` where that is.
pub fn walk(draws: &Histogram, policy: &Policy, shed: Reductions) -> Option<Watts> {
    if *policy == Policy::Provisioned {
        return None;
    }
    let candidates = draws.iter().rev().map(|(draw, _)| draw);
    candidates.take_while(|&budget| is_admissible(draws, policy, shed, budget)).last()
}

/// Whether `budget` keeps the policy: every event can be shed, and events are rare enough.
pub(crate) fn is_admissible(draws: &Histogram, policy: &Policy, shed: Reductions, budget: Watts) -> bool {
    Events::under(budget, draws, policy, shed).keep(policy, draws.readings())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(draws: impl IntoIterator<Item = (i64, u64)>) -> Histogram {
        let mut histogram = Histogram::new(Watts::from_whole(1)).unwrap();
        for (w, times) in draws {
            histogram.add(Watts::from_whole(w), times);
        }
        histogram
    }

    fn shed(first: i64, user_facing: i64) -> Reductions {
        Reductions { first: Watts::from_whole(first), user_facing: Watts::from_whole(user_facing) }
    }

    #[test]
    fn the_papers_example() {
        // Section III-E: 10,000 draws, the highest 2900, 2850 and 2850 W; 0.1 % and 1 % accepted.
        let policy = Policy::PerVm {
            emax_user_facing_ppm: 1_000,
            emax_non_user_facing_ppm: 10_000,
            fmin_user_facing_ppm: 750_000,
            fmin_non_user_facing_ppm: 500_000,
        };

        let draws = of([(2900, 1), (2850, 2), (2000, 9_997)]);

        // 2890 W: one event of 10 W; 2840 W: 60, 10 and 10 W.
        for (budget, shed_w, fits) in
            [(2890, 10, true), (2890, 9, false), (2840, 60, true), (2840, 59, false)]
        {
            let admissible = is_admissible(&draws, &policy, shed(shed_w, 0), Watts::from_whole(budget));
            assert_eq!(admissible, fits, "{budget} W, {shed_w} W");
        }

        // One of three events needs user-facing VMs: 0.01 % of the readings, within 0.1 %.
        assert!(is_admissible(&draws, &policy, shed(10, 50), Watts::from_whole(2840)));

        // With 60 W to shed it ends at 2840 W by depth; the walk stops at the draw above.
        let answer = lowest(&draws, &policy, shed(60, 0)).unwrap();
        assert_eq!(answer, Lowest { budget: Watts::from_whole(2840), binding: Binding::Depth });
        assert_eq!(walk(&draws, &policy, shed(60, 0)), Some(Watts::from_whole(2850)));
    }

    #[test]
    fn what_limits_is_named() {
        // Of 100,000 draws 1 % may exceed 3000 W, and 0.1 % 3300 W.
        let draws = of([(3400, 10), (3300, 95), (3200, 890), (3000, 99_005)]);
        let policy = Policy::MINIMAL_IMPACT;

        for (first, user_facing, budget, binding) in [
            (500, 100, 3000, Binding::TotalRate),
            (50, 500, 3250, Binding::UserFacingRate),
            (50, 10, 3340, Binding::Depth),
            (0, 0, 3400, Binding::Depth),
        ] {
            let answer = lowest(&draws, &policy, shed(first, user_facing)).unwrap();
            assert_eq!(answer, Lowest { budget: Watts::from_whole(budget), binding }, "{first}");
        }

        // Full-server: 0.1 % in all, and depth.
        let answer = lowest(&draws, &Policy::FULL_SERVER, shed(60, 0)).unwrap();
        assert_eq!((answer.budget, answer.binding), (Watts::from_whole(3340), Binding::Depth));
        let answer = lowest(&draws, &Policy::FULL_SERVER, shed(200, 0)).unwrap();
        assert_eq!((answer.budget, answer.binding), (Watts::from_whole(3300), Binding::TotalRate));
        assert_eq!(lowest(&draws, &Policy::Provisioned, shed(0, 0)), None);
        assert_eq!(lowest(&of([]), &policy, shed(0, 0)), None);
    }

    proptest! {
        /// The walk is the definition; the closed form is the lowest of all budgets that keep it.
        #[test]
        fn closed_form_and_walk_agree(
            draws in prop::collection::vec((1_000i64..1_100, 1u64..40), 1..40),
            (first, user_facing) in (0i64..120, 0i64..60),
            (user_ppm, others_ppm) in (0u32..400_000, 0u32..400_000),
            full in prop::bool::ANY,
        ) {
            let draws = of(draws);
            let policy = if full {
                Policy::FullServer { emax_ppm: others_ppm, fmin_ppm: 750_000 }
            } else {
                Policy::PerVm {
                    emax_user_facing_ppm: user_ppm,
                    emax_non_user_facing_ppm: others_ppm,
                    fmin_user_facing_ppm: 750_000,
                    fmin_non_user_facing_ppm: 500_000,
                }
            };

            let shed = shed(first, if full { 0 } else { user_facing });
            let answer = lowest(&draws, &policy, shed).unwrap().budget;
            prop_assert!(is_admissible(&draws, &policy, shed, answer));
            prop_assert!(!is_admissible(&draws, &policy, shed, answer - Watts::from_whole(1)));
            let above = draws.iter().map(|(draw, _)| draw).find(|&draw| draw >= answer);
            prop_assert_eq!(walk(&draws, &policy, shed), above);
        }
    }
}
