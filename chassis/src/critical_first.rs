//! The `critical-first` split: what each server gets follows what it can still shed from low-priority
//! cores, and no watt is promised twice.
//!
//! **Targets.** Levels are filled one after the other; where the sharable watts end between two, every
//! server gets the same part of its own step. So all low-priority work loses the same share of its watts.
//!
//! | level | a server with low-priority cores | a server without |
//! |---|---|---|
//! | 1 | base: its draw with them at the floor | its recent peak |
//! | 2 | and a guard, for noise and movement | and a guard |
//! | 3 | its demand, nothing restricted, and a guard | – |
//! | 4 | – | up to twice its peak |
//! | 5 | what is left, evenly | what is left, evenly |
//!
//! In an episode's first seconds level 4 comes before level 3: reports lag behind the rise that began it,
//! low-priority cores are at their floor anyway, and what a server without them did not need is quickly
//! taken back, while its hardware limit would stay on for seconds.
//!
//! Where even level 1 does not fit, all are cut in proportion. A server whose need is not known gets
//! the even share.
//!
//! **Grants.** A cap falls when the sum must fall, or when another server needs the watts. It rises only
//! as far as the watts are free: what every other server may still hold ([`Holds`]) is taken off first.
//! So between a cut and its proof the watts belong to nobody.
//!
//! [`Holds`]: crate::holds::Holds

use core::time::Duration;

use ballast_types::{Instant, Watts};

use crate::chassis::Chassis;
use crate::needs::Need;

/// Caps are whole tenths of a watt.
const STEP_MW: i64 = 100;

/// A cap rises by no less, and only a need of more cuts others: noise of the meters moves nothing.
const WORTHWHILE: Watts = Watts::from_whole(4);

/// The guard over base and demand: this share (4 %), and not less than [`GUARD_LEAST`]. A meter is 1 %
/// off, the agent keeps 2 % under its cap, and user-facing load moves from one sample to the next.
const GUARD_PPM: u32 = 40_000;
/// See [`GUARD_PPM`].
const GUARD_LEAST: Watts = Watts::from_whole(6);

/// For so long an episode is young: the agents' first floor drop, its proof, and one look at CPU use.
const YOUNG: Duration = Duration::from_secs(2);

/// One server that takes part.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// What it should get.
    target: Watts,
    /// Its cap; `None` while it has none.
    cap: Option<Watts>,
    /// What it may hold besides; `None` if that is not known.
    holds: Option<Watts>,
    /// Whether it has low-priority cores.
    sheds: bool,
}

/// The levels up to which a server is filled, before what is left is spread.
fn levels(need: Option<Need>, even: Watts, young: bool) -> [Watts; 4] {
    let guarded = |w: Watts| w + w.ppm(GUARD_PPM).max(GUARD_LEAST);
    match need {
        None => [even; 4],
        Some(Need { base, demand, sheds: true }) => {
            let (low, high) = (guarded(base), guarded(demand));
            if young { [base, low, low, high] } else { [base, low, high, high] }
        }
        Some(Need { base, sheds: false, .. }) => {
            let (low, twice) = (guarded(base), guarded(base + base));
            if young { [base, low, twice, twice] } else { [base, low, low, twice] }
        }
    }
}

/// Splits `pool` by the servers' levels. The sum of the targets is at most `pool`.
fn targets(pool: Watts, levels: &[[Watts; 4]]) -> Vec<Watts> {
    let mut targets = vec![Watts::ZERO; levels.len()];
    let mut rest = pool.at_least_zero();
    for level in 0..4 {
        let steps: Vec<_> = levels.iter().zip(&targets).map(|(l, t)| l[level] - *t).collect();
        let sum: Watts = steps.iter().copied().sum();
        for (target, step) in targets.iter_mut().zip(steps) {
            *target += if sum <= rest { step } else { part(rest, step, sum) };
        }
        rest = (rest - sum).at_least_zero();
    }
    let each = rest.per(levels.len() as u64);
    for target in &mut targets {
        *target = whole(*target + each);
    }
    // Roundings add up to less than a step for each server: the first ones get them.
    let given: Watts = targets.iter().copied().sum();
    let mut left = (pool - given).milli() / STEP_MW;
    for target in &mut targets {
        if left <= 0 {
            break;
        }
        left -= 1;
        *target += Watts::from_milli(STEP_MW);
    }
    targets
}

/// Rounded towards zero to whole steps.
fn whole(watts: Watts) -> Watts {
    Watts::from_milli(watts.milli() / STEP_MW * STEP_MW)
}

/// `rest · step ÷ sum`, rounded down.
fn part(rest: Watts, step: Watts, sum: Watts) -> Watts {
    let exact =
        i128::from(rest.milli()) * i128::from(step.milli()) / i128::from(sum.milli().max(1));
    Watts::from_milli(i64::try_from(exact).unwrap_or(0))
}

/// The caps that follow: cuts where they must be, raises where watts are free.
fn grants(pool: Watts, places: &[Place]) -> Vec<Watts> {
    // A first cap is no raise: up to what the server may hold it is granted at once.
    let first = |p: &Place| p.cap.unwrap_or(p.holds.map_or(p.target, |h| h.min(p.target)));
    let mut caps: Vec<_> = places.iter().map(first).collect();
    let wants = |p: &Place, cap: Watts| p.target - cap >= WORTHWHILE;
    let wanted: Watts = (places.iter().zip(&caps))
        .filter(|(p, cap)| wants(p, **cap))
        .map(|(p, cap)| p.target - *cap)
        .sum();
    let sum: Watts = caps.iter().copied().sum();
    if sum + wanted > pool {
        for (cap, place) in caps.iter_mut().zip(places) {
            *cap = (*cap).min(place.target);
        }
    }
    // What nobody may hold; as long as one server may hold anything, that is nothing.
    let held = places.iter().zip(&caps).map(|(p, cap)| p.holds.map(|h| h.max(*cap)));
    let Some(held) = held.sum::<Option<Watts>>().filter(|&held| held <= pool) else { return caps };
    // Back up to what it may hold itself costs the others nothing.
    for (cap, place) in caps.iter_mut().zip(places) {
        if wants(place, *cap) {
            *cap = (*cap).max(place.holds.map_or(*cap, |h| h.min(place.target)));
        }
    }
    let mut room = pool - held;
    let mut order: Vec<_> = (0..places.len()).filter(|&i| wants(&places[i], caps[i])).collect();
    order.sort_by_key(|&i| (places[i].sheds, caps[i] - places[i].target));
    for i in order {
        let rise = whole((places[i].target - caps[i]).min(room));
        if rise >= WORTHWHILE {
            caps[i] += rise;
            room -= rise;
        }
    }
    caps
}

impl Chassis {
    /// Splits what is left for the servers that answer, when the others may hold `reserved`.
    pub(crate) fn grant_critical_first(&mut self, now: Instant, reserved: Watts) {
        let (even, pool) = (self.shares.even, (self.sharable() - reserved).at_least_zero());
        // Before one, too: these are the caps that it would begin with.
        let young = self.state.episode().is_none_or(|e| now - e.began < YOUNG);
        let (mut wished, mut places) = (Vec::new(), Vec::new());
        for agent in self.agents.iter().filter(|a| a.shares()) {
            let need = agent.needs.need();
            wished.push(levels(need, even, young));
            places.push(Place {
                target: Watts::ZERO,
                cap: agent.cap.map(|_| agent.share),
                holds: agent.may_hold(),
                sheds: need.is_none_or(|n| n.sheds),
            });
        }
        for (place, target) in places.iter_mut().zip(targets(pool, &wished)) {
            place.target = target;
        }
        let mut caps = grants(pool, &places).into_iter();
        for agent in &mut self.agents {
            // Whoever does not answer is not raised: nobody would know what came of it.
            let kept = agent.cap.map_or(even, |_| agent.share.min(even));
            agent.share = if agent.shares() { caps.next().unwrap_or(Watts::ZERO) } else { kept };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const W: fn(i64) -> Watts = Watts::from_whole;

    fn need(base: i64, demand: i64, sheds: bool) -> Option<Need> {
        Some(Need { base: W(base), demand: W(demand), sheds })
    }

    /// One user-facing server, two with batch work, one unknown; the even share is 200 W.
    #[test]
    fn levels_are_filled_in_order() {
        let needs = [need(250, 250, false), need(150, 250, true), need(150, 200, true), None];
        let split = |pool, young| {
            let levels = needs.map(|n| levels(n, W(200), young));
            targets(W(pool), &levels).into_iter().map(Watts::milli).collect::<Vec<_>>()
        };
        for (pool, young, expected) in [
            // Not even the bases: in proportion.
            (375, false, [125_000, 75_000, 75_000, 100_000]),
            // Half of every guard: 10, 6, 6 W.
            (761, false, [255_000, 153_000, 153_000, 200_000]),
            // Half of what batch work loses: (260 - 156) and (208 - 156) W. Nobody else pays.
            (850, false, [260_000, 208_000, 182_000, 200_000]),
            // All demands, and something left for the server that cannot shed.
            (948, false, [280_000, 260_000, 208_000, 200_000]),
            // Before reports have followed the rise, it comes first.
            (850, true, [338_000, 156_000, 156_000, 200_000]),
            // Whatever is left, evenly.
            (1_196, false, [522_000, 262_000, 210_000, 202_000]),
        ] {
            assert_eq!(split(pool, young), expected, "{pool} W, young: {young}");
        }
    }

    fn place(target: i64, cap: Option<i64>, holds: Option<i64>, sheds: bool) -> Place {
        Place { target: W(target), cap: cap.map(W), holds: holds.map(W), sheds }
    }

    #[test]
    fn a_raise_waits_until_the_watts_are_free() {
        let (low, high) =
            (|cap, holds| place(150, cap, holds, true), |cap| place(250, cap, cap, false));
        for (places, caps, why) in [
            ([low(None, None), high(None)], [150, 250], "first caps are no raises"),
            ([low(None, None), high(Some(200))], [150, 200], "what one may hold is not known"),
            ([low(Some(200), Some(200)), high(Some(200))], [150, 200], "cut, but not proven"),
            ([low(Some(150), Some(170)), high(Some(200))], [150, 230], "some of it is proven"),
            ([low(Some(150), Some(150)), high(Some(200))], [150, 250], "all of it is"),
            ([low(Some(150), Some(150)), high(Some(247))], [150, 247], "not worth it"),
            ([low(Some(152), Some(152)), high(Some(247))], [152, 247], "and cuts nobody"),
            ([low(Some(180), Some(180)), high(Some(230))], [150, 230], "the sum must fall"),
        ] {
            assert_eq!(grants(W(400), &places), caps.map(W), "{why}");
        }
        // What a server may hold anyway it is granted again, where all of that fits.
        let mut back = place(200, Some(150), Some(180), true);
        assert_eq!(grants(W(380), &[back, high(Some(200))]), [W(180), W(200)]);
        back.holds = Some(W(210));
        assert_eq!(grants(W(380), &[back, high(Some(200))]), [W(150), W(200)]);
    }

    #[test]
    fn who_cannot_shed_is_raised_first_then_who_lacks_most() {
        let low = |target| place(target, Some(150), Some(150), true);
        let places = [low(170), low(190), place(170, Some(150), Some(150), false)];
        for (pool, caps) in [(465, [150, 150, 165]), (490, [150, 170, 170]), (530, [170, 190, 170])]
        {
            assert_eq!(grants(W(pool), &places), caps.map(W), "{pool} W");
        }
    }

    proptest! {
        #[test]
        fn no_watt_is_promised_twice(
            pool in 0i64..4_000_000,
            servers in prop::collection::vec(
                (prop::option::weighted(0.9, (0i64..400_000, 0i64..400_000, any::<bool>())),
                 prop::option::weighted(0.9, 0i64..400_000),
                 prop::option::weighted(0.95, 0i64..400_000)),
                1..14,
            ),
            young in any::<bool>(),
        ) {
            let mw = Watts::from_milli;
            let pool = mw(pool);
            let even = pool.per(servers.len() as u64);
            let needs = servers.iter().map(|(need, ..)| {
                need.map(|(base, more, sheds)| Need { base: mw(base), demand: mw(base + more), sheds })
            });
            let filled: Vec<_> = needs.map(|n| levels(n, even, young)).collect();
            let targets = targets(pool, &filled);
            prop_assert!(targets.iter().copied().sum::<Watts>() <= pool);
            prop_assert!(targets.iter().all(|t| *t >= Watts::ZERO));
            let places: Vec<_> = (servers.iter().zip(&targets))
                .map(|(&(need, cap, holds), &target)| {
                    let cap = cap.map(mw);
                    // What was granted may be held.
                    let holds = holds.map(|h| mw(h).max(cap.unwrap_or(Watts::ZERO)));
                    Place { target, cap, holds, sheds: need.is_none_or(|n| n.2) }
                })
                .collect();
            let caps = grants(pool, &places);
            prop_assert!(caps.iter().copied().sum::<Watts>() <= pool, "{:?}", caps);
            // Whoever is raised above what it may hold takes what nobody may.
            let raised = places.iter().zip(&caps).any(|(p, cap)| p.holds.is_some_and(|h| *cap > h));
            if raised {
                let held = places.iter().zip(&caps).map(|(p, cap)| p.holds.map(|h| h.max(*cap)));
                let held = held.sum::<Option<Watts>>();
                prop_assert!(held.is_some_and(|h| h <= pool), "{held:?} of {pool}");
            }
        }
    }
}
