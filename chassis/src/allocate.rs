//! Who gets how many watts: one allocation for caps, fallbacks and hardware caps.
//!
//! Levels are filled one after the other. What a server asks for is its [`Claim`].
//!
//! | level | what everybody gets | if the watts end here |
//! |---|---|---|
//! | 1 | its minimum | all minima are cut in proportion |
//! | 2 | its base: what it draws with every low-priority core at its floor | cut in proportion above the minima |
//! | 3 | its base with a guard for its meter's noise | every server the same part of its guard |
//! | 4 | its demand: what it draws unrestricted | in proportion to what each lacks × its weight |
//! | 5 | its recent peak | water-filling by cores × weight |
//! | 6 | what is left | by cores × weight |
//!
//! Level 4 is low-priority work. Its draw rises more steeply than its speed, so least work is lost where all
//! low-priority cores of the chassis run at one frequency: then every server gets the same part of what its
//! cores lack, however many of them are busy.
//!
//! So low-priority work pays before user-facing work, nobody gets more than it needs while another lacks,
//! and nobody is limited below its need while everything fits. The paper's even shares are this
//! allocation with claims that ask for nothing.
//!
//! **Grants.** A cap falls when the sum must fall, or when another server needs the watts. A cap rises only
//! as far as the watts are free: what every other server may still hold ([`Holds`]) is taken off first. A
//! server that was told to draw less still counts with its old cap until a fresh reading shows that it obeys.
//!
//! [`Holds`]: crate::holds::Holds

use ballast_types::Watts;

/// Caps are whole tenths of a watt.
const STEP_MW: i64 = 100;

/// A cap rises by no less, and only a need of more cuts others: noise of the meters moves nothing.
const WORTHWHILE: Watts = Watts::from_whole(4);

/// What one server asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claim {
    /// What it gets before anybody gets more.
    pub(crate) min: Watts,
    /// Its draw with every low-priority core at its floor.
    pub(crate) base: Watts,
    /// The same with a guard.
    pub(crate) guarded: Watts,
    /// Its draw with nothing restricted.
    pub(crate) demand: Watts,
    /// The most that it lately drew.
    pub(crate) peak: Watts,
    /// How many times its usual part it gets of what is not enough for everybody; 0 counts as 1.
    pub(crate) weight: u32,
    /// Its size; 0 counts as 1.
    pub(crate) cores: u32,
}

impl Claim {
    /// What it needs for its user-facing work.
    pub(crate) fn guarded_base(&self) -> Watts {
        self.guarded.max(self.base).max(self.min).at_least_zero()
    }

    /// Its part of watts that nobody needs.
    fn by_size(&self) -> u128 {
        u128::from(self.cores.max(1)) * u128::from(self.weight.max(1))
    }

    /// Its part of watts that are needed, if it lacks `lack`; never zero, which no order could be made of.
    fn by_need(&self, lack: Watts) -> u128 {
        mw(lack).clamp(1, u128::from(u32::MAX)) * u128::from(self.weight.max(1))
    }
}

/// One server that takes part in a round of grants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Party {
    /// What it should get.
    pub(crate) target: Watts,
    /// Its cap; `None` while it has none.
    pub(crate) cap: Option<Watts>,
    /// What it may hold besides; `None` if that is not known.
    pub(crate) holds: Option<Watts>,
    /// Whether it should be raised at all.
    pub(crate) needs: bool,
    /// Whether it has low-priority cores: it is raised after those that have none.
    pub(crate) sheds: bool,
}

/// Splits `pool`. The sum of what everybody gets is at most `pool`, and nothing of it is left.
pub(crate) fn allocate(pool: Watts, claims: &[Claim]) -> Vec<Watts> {
    let mut shares = vec![Watts::ZERO; claims.len()];
    let sizes: Vec<u128> = claims.iter().map(Claim::by_size).collect();
    let mut rest = pool.at_least_zero();

    let min = |c: &Claim| c.min.at_least_zero();
    let demand = |c: &Claim| c.demand.max(c.guarded_base());
    fill_in_proportion(&mut shares, &mut rest, claims.iter().map(min));
    fill_in_proportion(&mut shares, &mut rest, claims.iter().map(|c| c.base.max(min(c))));
    fill_in_proportion(&mut shares, &mut rest, claims.iter().map(Claim::guarded_base));
    let needs: Vec<u128> = claims.iter().map(|c| c.by_need(demand(c) - c.guarded_base())).collect();
    fill_by_weight(&mut shares, &mut rest, &needs, claims.iter().map(demand));
    fill_by_weight(&mut shares, &mut rest, &sizes, claims.iter().map(|c| c.peak.max(demand(c))));

    let all = sizes.iter().sum();
    for (share, size) in shares.iter_mut().zip(&sizes) {
        *share += part(rest, *size, all);
    }
    round(pool, &mut shares);

    shares
}

/// Everybody up to its goal; where the watts end, everybody the same part of its own step.
fn fill_in_proportion(shares: &mut [Watts], rest: &mut Watts, goals: impl Iterator<Item = Watts>) {
    let steps: Vec<Watts> =
        goals.zip(shares.iter()).map(|(goal, share)| (goal - *share).at_least_zero()).collect();
    let sum: Watts = steps.iter().copied().sum();
    for (share, step) in shares.iter_mut().zip(steps) {
        *share += if sum <= *rest { step } else { part(*rest, mw(step), mw(sum)) };
    }
    *rest = (*rest - sum).at_least_zero();
}

/// Everybody up to its goal; where the watts end, everybody the same for each unit of weight, and nobody
/// more than to its goal.
fn fill_by_weight(
    shares: &mut [Watts],
    rest: &mut Watts,
    weights: &[u128],
    goals: impl Iterator<Item = Watts>,
) {
    let steps: Vec<Watts> =
        goals.zip(shares.iter()).map(|(goal, share)| (goal - *share).at_least_zero()).collect();
    let lacks = |i: usize| mw(steps[i]);

    // Those that lack least for their weight are content first.
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by(|&a, &b| {
        (lacks(a).saturating_mul(weights[b])).cmp(&lacks(b).saturating_mul(weights[a])).then(a.cmp(&b))
    });

    let mut all: u128 = weights.iter().sum();

    for i in order {
        let given = steps[i].min(part(*rest, weights[i], all));
        shares[i] += given;
        *rest -= given;
        all -= weights[i];
    }
}

/// `watts · some ÷ all`, rounded down.
fn part(watts: Watts, some: u128, all: u128) -> Watts {
    let exact = mw(watts).saturating_mul(some) / all.max(1);
    Watts::from_milli(i64::try_from(exact).unwrap_or(0))
}

/// Milliwatts, at least zero.
fn mw(watts: Watts) -> u128 {
    watts.at_least_zero().milli().unsigned_abs().into()
}

/// Rounded towards zero to whole steps.
fn whole(watts: Watts) -> Watts {
    Watts::from_milli(watts.milli() / STEP_MW * STEP_MW)
}

/// Rounds every share to whole steps; what that leaves goes to the first ones.
fn round(pool: Watts, shares: &mut [Watts]) {
    for share in shares.iter_mut() {
        *share = whole(*share);
    }
    let given: Watts = shares.iter().copied().sum();
    let left = usize::try_from((pool - given).milli() / STEP_MW).unwrap_or(0);
    for share in shares.iter_mut().take(left) {
        *share += Watts::from_milli(STEP_MW);
    }
}

/// The caps that follow: cuts where they must be, raises where watts are free.
pub(crate) fn grants(pool: Watts, parties: &[Party]) -> Vec<Watts> {
    // A first cap is no raise: up to what the server may hold it is granted at once.
    let mut caps: Vec<_> =
        parties.iter().map(|p| p.cap.unwrap_or(p.holds.map_or(p.target, |h| h.min(p.target)))).collect();
    let wants = |p: &Party, cap: Watts| p.needs && p.target - cap >= WORTHWHILE;
    let wanted: Watts =
        (parties.iter().zip(&caps)).filter(|(p, cap)| wants(p, **cap)).map(|(p, cap)| p.target - *cap).sum();
    let sum: Watts = caps.iter().copied().sum();

    if sum + wanted > pool {
        for (cap, party) in caps.iter_mut().zip(parties) {
            *cap = (*cap).min(party.target);
        }
    }

    // What nobody may hold; as long as one server may hold anything, that is nothing.
    let held = parties.iter().zip(&caps).map(|(p, cap)| p.holds.map(|h| h.max(*cap)));
    let Some(held) = held.sum::<Option<Watts>>().filter(|&held| held <= pool) else { return caps };

    // Back up to what it may hold itself costs the others nothing.
    for (cap, party) in caps.iter_mut().zip(parties) {
        if wants(party, *cap) {
            *cap = (*cap).max(party.holds.map_or(*cap, |h| h.min(party.target)));
        }
    }

    let mut room = pool - held;
    let mut order: Vec<_> = (0..parties.len()).filter(|&i| wants(&parties[i], caps[i])).collect();
    order.sort_by_key(|&i| (parties[i].sheds, caps[i] - parties[i].target));

    for i in order {
        let rise = whole((parties[i].target - caps[i]).min(room));
        if rise >= WORTHWHILE {
            caps[i] += rise;
            room -= rise;
        }
    }

    caps
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const W: fn(i64) -> Watts = Watts::from_whole;

    fn claim(min: i64, base: i64, demand: i64, peak: i64, cores: u32) -> Claim {
        let (min, base, demand, peak) = (W(min), W(base), W(demand), W(peak));
        Claim { min, base, guarded: base, demand, peak, weight: 1, cores }
    }

    #[test]
    fn levels_are_filled_in_order() {
        // A user-facing server, a large and a small one with batch work.
        let claims =
            [claim(100, 250, 250, 280, 20), claim(100, 150, 270, 270, 40), claim(50, 100, 140, 140, 20)];
        for (pool, expected) in [
            (125, [50, 50, 25]),    // half of every minimum
            (375, [175, 125, 75]),  // and half of what the bases need more
            (500, [250, 150, 100]), // all bases
            (580, [250, 210, 120]), // half of what each lacks
            (660, [250, 270, 140]), // everything fits
            (675, [265, 270, 140]), // some of the peak
            (790, [305, 320, 165]), // the rest by size
        ] {
            assert_eq!(allocate(W(pool), &claims), expected.map(W), "{pool} W");
        }
    }

    #[test]
    fn a_weight_multiplies_what_a_need_gets() {
        let mut claims = [claim(50, 100, 220, 220, 40), claim(50, 100, 160, 160, 20)];
        assert_eq!(allocate(W(290), &claims), [W(160), W(130)]);
        claims[1].weight = 4;
        assert_eq!(allocate(W(260), &claims), [W(120), W(140)]);
        assert_eq!(allocate(W(290), &claims), [W(130), W(160)], "and never more than it lacks");
    }

    #[test]
    fn claims_that_ask_for_nothing_share_evenly() {
        assert_eq!(allocate(W(600), &[Claim::default(); 3]), [W(200); 3]);
        assert_eq!(allocate(W(-5), &[Claim::default(); 3]), [W(0); 3]);
        assert!(allocate(W(5), &[]).is_empty());
    }

    fn party(target: i64, cap: Option<i64>, holds: Option<i64>, sheds: bool) -> Party {
        Party { target: W(target), cap: cap.map(W), holds: holds.map(W), needs: true, sheds }
    }

    #[test]
    fn a_raise_waits_until_the_watts_are_free() {
        let (low, high) = (|cap, holds| party(150, cap, holds, true), |cap| party(250, cap, cap, false));
        for (parties, caps, why) in [
            ([low(None, None), high(None)], [150, 250], "first caps are no raises"),
            ([low(None, None), high(Some(200))], [150, 200], "what one may hold is not known"),
            ([low(Some(200), Some(200)), high(Some(200))], [150, 200], "cut, but not proven"),
            ([low(Some(150), Some(170)), high(Some(200))], [150, 230], "some of it is proven"),
            ([low(Some(150), Some(150)), high(Some(200))], [150, 250], "all of it is"),
            ([low(Some(150), Some(150)), high(Some(247))], [150, 247], "not worth it"),
            ([low(Some(152), Some(152)), high(Some(247))], [152, 247], "and cuts nobody"),
            ([low(Some(180), Some(180)), high(Some(230))], [150, 230], "the sum must fall"),
        ] {
            assert_eq!(grants(W(400), &parties), caps.map(W), "{why}");
        }

        // What a server may hold anyway it is granted again, where all of that fits.
        let mut back = party(200, Some(150), Some(180), true);
        assert_eq!(grants(W(380), &[back, high(Some(200))]), [W(180), W(200)]);
        back.holds = Some(W(210));
        assert_eq!(grants(W(380), &[back, high(Some(200))]), [W(150), W(200)]);
    }

    #[test]
    fn who_cannot_shed_is_raised_first_then_who_lacks_most() {
        let low = |target| party(target, Some(150), Some(150), true);
        let parties = [low(170), low(190), party(170, Some(150), Some(150), false)];
        for (pool, caps) in [(465, [150, 150, 165]), (490, [150, 170, 170]), (530, [170, 190, 170])] {
            assert_eq!(grants(W(pool), &parties), caps.map(W), "{pool} W");
        }
        let content = Party { needs: false, ..low(190) };
        assert_eq!(grants(W(600), &[content]), [W(150)], "who does not need it is not raised");
    }

    proptest! {
        #[test]
        fn no_watt_is_promised_twice_and_none_is_left(
            pool in 0i64..4_000_000,
            servers in prop::collection::vec(
                ((0i64..200_000, 0i64..400_000, 0i64..400_000, 0i64..400_000, (0u32..100, 0u32..100)),
                 prop::option::weighted(0.9, 0i64..400_000),
                 prop::option::weighted(0.95, 0i64..400_000),
                 any::<(bool, bool)>()),
                1..40,
            ),
        ) {
            let mw = Watts::from_milli;
            let pool = mw(pool);
            let claims: Vec<_> = servers.iter().map(|&((min, base, demand, peak, (weight, cores)), ..)| {
                let (min, base, demand, peak) = (mw(min), mw(base), mw(demand), mw(peak));
                let guarded = base + base.ppm(40_000);
                Claim { min, base, guarded, demand, peak, weight, cores }
            }).collect();

            let targets = allocate(pool, &claims);
            let sum = targets.iter().copied().sum::<Watts>();
            prop_assert!(sum <= pool && pool - sum < mw(STEP_MW * (claims.len() as i64 + 1)));
            prop_assert!(targets.iter().all(|t| *t >= Watts::ZERO));

            // Nobody gets more than it needs while another lacks.
            let step = mw(STEP_MW * 2);
            let need = |c: &Claim| c.demand.max(c.guarded_base());
            let lacks = targets.iter().zip(&claims).any(|(t, c)| *t + step < need(c));
            let more = targets.iter().zip(&claims).any(|(t, c)| *t > need(c) + step);
            prop_assert!(!(lacks && more), "{targets:?}");

            let parties: Vec<_> = (servers.iter().zip(&targets))
                .map(|(&(_, cap, holds, (needs, sheds)), &target)| {
                    let cap = cap.map(mw);

                    // What was granted may be held.
                    let holds = holds.map(|h| mw(h).max(cap.unwrap_or(Watts::ZERO)));
                    Party { target, cap, holds, needs, sheds }
                })
                .collect();
            let caps = grants(pool, &parties);
            prop_assert!(caps.iter().copied().sum::<Watts>() <= pool.max(
                parties.iter().map(|p| p.cap.unwrap_or_default().min(p.target)).sum()), "{:?}", caps);
            // Whoever is raised above what it may hold takes what nobody may.
            let raised = parties.iter().zip(&caps).any(|(p, cap)| {
                p.cap.is_some() && p.holds.is_some_and(|h| *cap > h)
            });

            if raised {
                let held = parties.iter().zip(&caps).map(|(p, cap)| p.holds.map(|h| h.max(*cap)));
                let held = held.sum::<Option<Watts>>();
                prop_assert!(held.is_some_and(|h| h <= pool), "{held:?} of {pool}");
            }
        }
    }

    /// A server that wants less keeps its cap while the pool has room for what the others want.
    #[test]
    fn caps_are_cut_only_for_a_raise_that_does_not_fit() {
        let parties = [party(150, Some(100), Some(100), true), party(100, Some(200), Some(200), true)];
        for (pool, other) in [(400, 200), (350, 200), (349, 100)] {
            let caps = grants(W(pool), &parties);
            assert_eq!(caps[1], W(other), "{pool} W");
        }
    }
}
