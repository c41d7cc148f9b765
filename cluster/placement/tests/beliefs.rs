//! Moments of beliefs against exact values, and the demand of many deployments against a full evaluation.

use ballast_placement::admission::demand::{
    Demand, DemandError, HORIZONS, Prior, Threshold, cantelli, horizons,
};
use ballast_placement::admission::fit::{FitError, History, fit};
use ballast_placement::admission::{Belief, Form, Gamma, Observed};
use ballast_types::SplitMix64;
use proptest::prelude::*;

/// A prior, its observations (number, core lives in hours, further cores, scale-outs), cores now, hours ahead; and mean
/// and variance to 13 digits: the formula of [`Belief::moments`], evaluated with 60 digits by mpmath's `gamma`:
///
/// H(s, k) = gamma(a + s) / gamma(a) * b^a / (b + k t)^(a + s),
/// E = C H(0, d+1) + L m (H(K-1, d) - H(K-1, d+1)),
/// E2 = C (H(0, d+1) - H(0, d+2)) + C^2 H(0, d+2) + L (m (H(K-1, d) - H(K-1, d+1)) + f/2 (H(K-1, d) - H(K-1, d+2)))
///   + 2 C L m (H(K-1, d+1) - H(K-1, d+2)) + L2 (1+f) (H(2K-2, d) - 2 H(2K-2, d+1) + H(2K-2, d+2)),
///
/// with L, L2 the first two moments of lambda, m = 1 + E sigma, f = E(2 sigma + sigma^2); the variance is E2 - E^2.
///
/// Of `SUB_B` without observations a + 2K - 2 is -0.29, where gamma is negative.
type Vector = (Belief, [f64; 4], f64, f64, f64, f64);

#[rustfmt::skip]
const VECTORS: [Vector; 54] = [
    (Belief::SUB_A, [0.0, 0.0, 0.0, 0.0], 1.0, 1.0, 3.457807791291, 69.10231458029),
    (Belief::SUB_A, [0.0, 0.0, 0.0, 0.0], 1.0, 720.0, 2.275097075845, 99.41066278709),
    (Belief::SUB_A, [0.0, 0.0, 0.0, 0.0], 1.0, 26280.0, 1.011302458097, 60.00412277912),
    (Belief::SUB_A, [0.0, 0.0, 0.0, 0.0], 4.0, 24.0, 5.099059032263, 134.7430755922),
    (Belief::SUB_A, [0.0, 0.0, 0.0, 0.0], 4.0, 720.0, 2.542975347775, 100.7633684311),
    (Belief::SUB_A, [0.0, 0.0, 0.0, 0.0], 4.0, 26280.0, 1.100411966213, 60.8671605487),
    (Belief::SUB_A, [0.0, 0.0, 0.0, 0.0], 5e3, 1.0, 3111.563671053, 3386894.573143),
    (Belief::SUB_A, [0.0, 0.0, 0.0, 0.0], 5e3, 24.0, 1264.051505289, 3533897.139597),
    (Belief::SUB_A, [0.0, 0.0, 0.0, 0.0], 5e3, 26280.0, 149.4974461483, 582071.7002741),
    (Belief::SUB_A, [1.0, 0.5, 0.0, 3.0], 1.0, 1.0, 2.783421207332, 8.931827562712),
    (Belief::SUB_A, [1.0, 0.5, 0.0, 3.0], 1.0, 720.0, 0.07056152156547, 0.6731368973535),
    (Belief::SUB_A, [1.0, 0.5, 0.0, 3.0], 1.0, 26280.0, 0.0009029179354528, 0.01112264883849),
    (Belief::SUB_A, [1.0, 0.5, 0.0, 3.0], 4.0, 24.0, 1.873950999462, 11.39626732324),
    (Belief::SUB_A, [1.0, 0.5, 0.0, 3.0], 4.0, 720.0, 0.07094627432965, 0.6772098112154),
    (Belief::SUB_A, [1.0, 0.5, 0.0, 3.0], 4.0, 26280.0, 0.0009064287278478, 0.01117004633135),
    (Belief::SUB_A, [1.0, 0.5, 0.0, 3.0], 5e3, 1.0, 1663.529816114, 1908647.042765),
    (Belief::SUB_A, [1.0, 0.5, 0.0, 3.0], 5e3, 24.0, 54.21443217702, 107438.9323669),
    (Belief::SUB_A, [1.0, 0.5, 0.0, 3.0], 5e3, 26280.0, 0.006753068329663, 12.12687707338),
    (Belief::SUB_A, [50.0, 900.0, 30.0, 170.0], 1.0, 1.0, 1.318504181109, 0.7948787301366),
    (Belief::SUB_A, [50.0, 900.0, 30.0, 170.0], 1.0, 720.0, 2.246581270661, 14.04792314247),
    (Belief::SUB_A, [50.0, 900.0, 30.0, 170.0], 1.0, 26280.0, 5.067595094664e-13, 4.479988146913e-12),
    (Belief::SUB_A, [50.0, 900.0, 30.0, 170.0], 4.0, 24.0, 5.905091330325, 10.31872496976),
    (Belief::SUB_A, [50.0, 900.0, 30.0, 170.0], 4.0, 720.0, 2.246581270661, 14.04792314248),
    (Belief::SUB_A, [50.0, 900.0, 30.0, 170.0], 4.0, 26280.0, 5.067595094664e-13, 4.479988146913e-12),
    (Belief::SUB_A, [50.0, 900.0, 30.0, 170.0], 5e3, 1.0, 4721.328437525, 36913.11781808),
    (Belief::SUB_A, [50.0, 900.0, 30.0, 170.0], 5e3, 24.0, 1287.577899416, 123798.0548873),
    (Belief::SUB_A, [50.0, 900.0, 30.0, 170.0], 5e3, 26280.0, 5.067595094664e-13, 4.479988146913e-12),
    (Belief::SUB_B, [0.0, 0.0, 0.0, 0.0], 1.0, 1.0, 2.914460531394, 18.70668800204),
    (Belief::SUB_B, [0.0, 0.0, 0.0, 0.0], 1.0, 720.0, 4.259040417191, 219.633876241),
    (Belief::SUB_B, [0.0, 0.0, 0.0, 0.0], 1.0, 26280.0, 4.031561734579, 634.0528143697),
    (Belief::SUB_B, [0.0, 0.0, 0.0, 0.0], 4.0, 24.0, 4.902014635831, 75.62433880906),
    (Belief::SUB_B, [0.0, 0.0, 0.0, 0.0], 4.0, 720.0, 4.454003140319, 223.0525295966),
    (Belief::SUB_B, [0.0, 0.0, 0.0, 0.0], 4.0, 26280.0, 4.094617662172, 637.9043496836),
    (Belief::SUB_B, [0.0, 0.0, 0.0, 0.0], 5e3, 1.0, 2475.144539793, 4030345.177623),
    (Belief::SUB_B, [0.0, 0.0, 0.0, 0.0], 5e3, 24.0, 947.4943046158, 2919818.037199),
    (Belief::SUB_B, [0.0, 0.0, 0.0, 0.0], 5e3, 26280.0, 109.1037557464, 419703.9071642),
    (Belief::SUB_B, [1.0, 0.5, 0.0, 3.0], 1.0, 1.0, 2.598678506192, 5.793053904198),
    (Belief::SUB_B, [1.0, 0.5, 0.0, 3.0], 1.0, 720.0, 0.146243040809, 2.35734842306),
    (Belief::SUB_B, [1.0, 0.5, 0.0, 3.0], 1.0, 26280.0, 0.003981090099474, 0.17896618877),
    (Belief::SUB_B, [1.0, 0.5, 0.0, 3.0], 4.0, 24.0, 2.088408582096, 12.07686901711),
    (Belief::SUB_B, [1.0, 0.5, 0.0, 3.0], 4.0, 720.0, 0.1465179439133, 2.36700387044),
    (Belief::SUB_B, [1.0, 0.5, 0.0, 3.0], 4.0, 26280.0, 0.003983528516783, 0.1792085134598),
    (Belief::SUB_B, [1.0, 0.5, 0.0, 3.0], 5e3, 1.0, 1396.438219411, 1787668.450509),
    (Belief::SUB_B, [1.0, 0.5, 0.0, 3.0], 5e3, 24.0, 40.77139407138, 79037.71556406),
    (Belief::SUB_B, [1.0, 0.5, 0.0, 3.0], 5e3, 26280.0, 0.008044306141288, 8.859331316006),
    (Belief::SUB_B, [50.0, 900.0, 30.0, 170.0], 1.0, 1.0, 1.647436389221, 1.439556469567),
    (Belief::SUB_B, [50.0, 900.0, 30.0, 170.0], 1.0, 720.0, 5.705213879297, 51.58054127451),
    (Belief::SUB_B, [50.0, 900.0, 30.0, 170.0], 1.0, 26280.0, 6.363112781423e-10, 1.062944151385e-08),
    (Belief::SUB_B, [50.0, 900.0, 30.0, 170.0], 4.0, 24.0, 10.30576731684, 19.73497359748),
    (Belief::SUB_B, [50.0, 900.0, 30.0, 170.0], 4.0, 720.0, 5.705213879297, 51.58054127452),
    (Belief::SUB_B, [50.0, 900.0, 30.0, 170.0], 4.0, 26280.0, 6.363112781423e-10, 1.062944151385e-08),
    (Belief::SUB_B, [50.0, 900.0, 30.0, 170.0], 5e3, 1.0, 4723.54295499, 27604.5960886),
    (Belief::SUB_B, [50.0, 900.0, 30.0, 170.0], 5e3, 24.0, 1304.003976846, 108419.3728276),
    (Belief::SUB_B, [50.0, 900.0, 30.0, 170.0], 5e3, 26280.0, 6.363112781423e-10, 1.062944151385e-08),
];

#[test]
fn exact_moments_are_those_of_sixty_digits() {
    for (prior, [n, lives, cores, outs], c, hours, mean, variance) in VECTORS {
        let it = prior.observing(n, lives, cores, outs).moments(Form::Exact, c, hours);
        assert!((it.mean / mean - 1.0).abs() < 1e-10, "{prior:?} {n} {c} {hours}: {it:?} {mean}");
        assert!((it.variance / variance - 1.0).abs() < 1e-8, "{prior:?} {n} {c} {hours}: {it:?} {variance}");
    }
}

#[test]
fn near_a_pole_of_gamma_the_moments_are_those_of_their_neighbours() {
    for (shape, kappa) in [(0.3, 0.7), (0.3, 0.85), (0.5, 0.25), (0.2, 0.4)] {
        let at = |kappa| {
            let mut belief = Belief { kappa, ..Belief::SUB_B };
            belief.mu.shape = shape;
            belief.moments(Form::Exact, 4.0, 168.0)
        };
        let (pole, beside) = (at(kappa), at(kappa + 0.004));
        assert!((pole.mean / beside.mean - 1.0).abs() < 0.02, "{pole:?} {beside:?}");
        assert!((pole.variance / beside.variance - 1.0).abs() < 0.05, "{pole:?} {beside:?}");
    }

    // Laws of three digits lie beside a pole, at a step from one, and on both sides.
    let hours = [1.0, 168.0, 26_280.0];
    for (shape, kappa) in (1..1000).flat_map(|shape| (0..12).map(move |step| (shape, step))) {
        let shape = f64::from(shape) / 1e3;
        let to_pole = if kappa < 6 { 1.0 - shape } else { 1.0 - 0.5 * shape };
        let kappa = to_pole + f64::from(kappa % 6 - 3) / 1e3;
        let belief = Belief { kappa, mu: Gamma::new(shape, 0.1211), ..Belief::SUB_B };
        for it in hours.map(|hours| belief.moments(Form::Exact, 4.0, hours)) {
            assert!(it.mean > 0.0 && it.variance > 0.0 && it.mean < 1e4, "{shape} {kappa}: {it:?}");
        }
    }
}

/// Where the laws are certain nothing depends on each other, and the paper's form is exact. Where they are not it is too high.
#[test]
fn the_papers_form_is_exact_for_certain_laws_and_too_high_else() {
    let sharp = |mean: f64| ballast_placement::admission::Gamma::new(1e7, 1e7 / mean);
    let certain = Belief { kappa: 0.7, delta: 0.02, mu: sharp(0.05), lambda: sharp(1.5), sigma: sharp(0.8) };
    for hours in [1.0, 24.0, 168.0, 720.0] {
        let of = |belief: &Belief, form| belief.moments(form, 4.0, hours);
        let (exact, paper) = (of(&certain, Form::Exact), of(&certain, Form::PaperLike));
        assert!((paper.mean / exact.mean - 1.0).abs() < 1e-4, "{hours} h: {paper:?} {exact:?}");
        assert!((paper.variance / exact.variance - 1.0).abs() < 1e-3, "{hours} h: {paper:?} {exact:?}");

        let uncertain = Belief::SUB_B.observing(5.0, 100.0, 4.0, 15.0);
        let (exact, paper) = (of(&uncertain, Form::Exact), of(&uncertain, Form::PaperLike));
        assert!(paper.mean > exact.mean, "{hours} h: {paper:?} {exact:?}");
    }
}

/// What happens to a cluster, drawn from a seed.
struct Play {
    demand: Demand,
    live: Vec<ballast_placement::admission::demand::DemandId>,
    now_h: f64,
}

impl Play {
    fn new(seed: u64, steps: u32) -> Self {
        let mut it = Self { demand: Demand::default(), live: vec![], now_h: 0.0 };
        let mut random = SplitMix64::new(seed);
        for _ in 0..steps {
            it.step(&mut random);
        }
        it
    }

    fn step(&mut self, random: &mut SplitMix64) {
        let mut below = |n: u64| random.draw() % n;
        self.now_h += below(1000) as f64 / 20.0;
        let cores = (1 + below(6)) as f64;
        let (now, kind) = (self.now_h, below(8));
        if self.live.is_empty() || kind < 2 {
            self.live.push(self.demand.insert(now, &Belief::SUB_B.into(), cores).unwrap());
            return;
        }
        let index = below(self.live.len() as u64) as usize;
        let id = self.live[index];
        let over = match kind {
            2..=4 => self.demand.scale_out(now, id, cores, kind != 4).map(|()| false),
            5..=6 => {
                self.demand.end_cores(now, id, cores.min(self.demand.cores_of(id).unwrap())).map(|it| !it)
            }
            _ => self.demand.remove(now, id).map(|()| true),
        };
        if over.unwrap() {
            self.live.swap_remove(index);
        }
        if kind % 3 == 0 {
            self.demand.refresh(now).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Sums that are kept up by differences are those of a full evaluation, but for beliefs that moved by less than 3 %.
    #[test]
    fn sums_kept_up_are_those_added_up_anew(seed in any::<u64>(), steps in 1..300_u32) {
        let mut play = Play::new(seed, steps);
        play.demand.refresh(play.now_h).unwrap();
        let hours = horizons();
        let full = play.demand.forecast(play.now_h, &hours);
        let threshold = Threshold::Second { capacity: 2000.0, risk: 0.5 };
        let newcomer = Belief::SUB_B.posterior(&Observed::first(4.0));
        let binds = play.demand.decide(threshold, &Belief::SUB_B.into(), 4.0, false).binds.unwrap();
        let i = hours.iter().position(|it| *it == binds.after_h).unwrap();
        let own = newcomer.moments(Form::Exact, 4.0, hours[i]);
        let (mean, variance) = (full[i].mean + own.mean, full[i].variance + own.variance);
        prop_assert!((binds.expected_cores / mean - 1.0).abs() < 0.04, "{binds:?} {mean}");
        prop_assert!((binds.sd_cores / libm::sqrt(variance) - 1.0).abs() < 0.06, "{binds:?} {variance}");
        prop_assert!(hours.len() == HORIZONS);
    }
}

#[test]
fn removing_everything_leaves_nothing() {
    let mut play = Play::new(7, 400);
    for id in std::mem::take(&mut play.live) {
        play.demand.remove(play.now_h, id).unwrap();
    }
    assert_eq!((play.demand.cores(), play.demand.len()), (0.0, 0));
    play.demand.refresh(play.now_h).unwrap();
    let alone = play.demand.decide(Threshold::First { cores: 5.0 }, &Belief::SUB_A.into(), 3.0, false);
    assert!(alone.admit, "{alone:?}");
}

/// Where the next move is nearer than two numbers of hours are apart.
#[test]
fn a_belief_that_moves_faster_than_the_clock_can_tell_is_worked_off_once() {
    let mut demand = Demand::default();
    let hasty = Belief { mu: Gamma::new(0.3, 1e-6), ..Belief::SUB_B };
    let id = demand.insert(5e5, &hasty.into(), 5_000.0).unwrap();
    for now_h in [5e5, 5e5, 5e5_f64.next_up(), 6e5] {
        demand.refresh(now_h).unwrap();
    }
    demand.end_cores(6e5, id, 1.0).unwrap();
    demand.refresh(6e5).unwrap();
    assert!(demand.refreshes() < 10, "{}", demand.refreshes());
}

#[test]
fn events_that_cannot_be_are_errors_and_change_nothing() {
    let mut demand = Demand::default();
    let id = demand.insert(10.0, &Belief::SUB_B.into(), 4.0).unwrap();
    assert_eq!(demand.end_cores(11.0, id, 5.0), Err(DemandError::TooMany { cores: 4.0, ended: 5.0 }));
    assert_eq!(
        demand.scale_out(9.0, id, 1.0, true),
        Err(DemandError::OutOfOrder { at_h: 9.0, last_h: 10.0 })
    );
    assert_eq!(demand.insert(11.0, &Belief::SUB_B.into(), 0.0), Err(DemandError::Cores(0.0)));
    assert!(matches!(demand.insert(11.0, &Belief::SUB_B.into(), f64::NAN), Err(DemandError::Cores(_))));
    assert!(matches!(demand.refresh(f64::NAN), Err(DemandError::OutOfOrder { .. })));
    assert_eq!((demand.cores(), demand.len()), (4.0, 1));

    assert_eq!(demand.end_cores(12.0, id, 4.0), Ok(false));
    assert_eq!(demand.end_cores(12.0, id, 1.0), Err(DemandError::Unknown));
    assert_eq!(demand.scale_out(12.0, id, 1.0, true), Err(DemandError::Unknown));
}

#[test]
fn thresholds_decide_by_their_moment_and_the_marginal_may_come() {
    let mut demand = Demand::default();
    demand.insert(0.0, &Belief::SUB_B.into(), 100.0).unwrap();
    demand.refresh(0.0).unwrap();
    let decide = |threshold, marginal| demand.decide(threshold, &Belief::SUB_B.into(), 4.0, marginal);

    // Fewer than so many: 104 is not below 104.
    assert!(!decide(Threshold::Zeroth { cores: 104.0 }, false).admit);
    assert!(decide(Threshold::Zeroth { cores: 105.0 }, false).admit);
    let peak = decide(Threshold::First { cores: 1e9 }, false).binds.unwrap().expected_cores;
    assert!(decide(Threshold::First { cores: peak + 104.0 }, false).admit);
    assert!(!decide(Threshold::First { cores: peak.min(104.0) }, false).admit);

    let second = |risk| decide(Threshold::Second { capacity: 1000.0, risk }, false);
    let risk = second(1.0).risk.unwrap();
    assert!(second(risk * 1.001).admit && !second(risk * 0.999).admit);
    let binds = second(1.0).binds.unwrap();
    let bound = cantelli(binds.expected_cores, binds.sd_cores * binds.sd_cores, 1000.0);
    assert!((bound / risk - 1.0).abs() < 1e-9);

    // Nothing is marginal without a prior; one that ends within the hour is, from then on.
    assert!(!decide(Threshold::Second { capacity: 1000.0, risk: 1e-9 }, true).marginal);
    let brief = Belief::SUB_B.observing(50.0, 0.05, 0.0, 0.0).into();
    let tight = Threshold::First { cores: 101.0 };
    let (with, without) = (demand.decide(tight, &brief, 0.5, true), demand.decide(tight, &brief, 0.5, false));
    assert!(with.admit && with.marginal != without.admit, "{with:?} {without:?}");
}

#[test]
fn a_belief_that_cannot_be_computed_refuses() {
    let mut demand = Demand::default();
    let broken = Prior::from(Belief { kappa: f64::NAN, ..Belief::SUB_B });
    let wide = Threshold::Second { capacity: 1e9, risk: 1.0 };
    let decision = demand.decide(wide, &broken, 1.0, true);
    assert!(decision.incomputable && !decision.admit, "{decision:?}");

    // One of those that are there is enough; when it has gone, all is well again.
    let id = demand.insert(0.0, &broken, 1.0).unwrap();
    demand.refresh(0.0).unwrap();
    let decision = demand.decide(wide, &Belief::SUB_B.into(), 1.0, true);
    assert!(decision.incomputable && !decision.admit && decision.binds.is_none(), "{decision:?}");
    demand.remove(1.0, id).unwrap();
    demand.refresh(1.0).unwrap();
    assert!(demand.decide(wide, &Belief::SUB_B.into(), 1.0, true).admit);
}

#[test]
fn a_mixture_of_two_types_has_their_mean_and_more_than_their_variance() {
    let [brief, long] = [0.5, 500.0].map(|lives| Belief::SUB_B.observing(1.0, lives, 1.0, 3.0));
    let alone = |prior: Prior| {
        let mut demand = Demand::default();
        demand.insert(0.0, &prior, 4.0).unwrap();
        demand.refresh(0.0).unwrap();
        demand.forecast(0.0, &[168.0])[0]
    };
    let [a, b, mixed] = [brief.into(), long.into(), Prior::either(brief, long)].map(alone);
    assert!((mixed.mean / (0.5 * (a.mean + b.mean)) - 1.0).abs() < 1e-12, "{mixed:?}");
    assert!(mixed.variance > 0.5 * (a.variance + b.variance), "{mixed:?} {a:?} {b:?}");
}

#[test]
fn histories_are_read_from_events_and_impossible_events_named() {
    use ballast_placement::admission::events::{EventError, Histories};

    let mut all = Histories::default();
    for (name, at_h, cores) in [
        ("a", 0.0, 3.0),
        ("b", 1.0, 1.0),
        ("a", 2.0, 2.0),
        ("a", 4.0, -1.0),
        ("b", 5.0, -1.0),
        ("a", 6.0, -4.0),
    ] {
        all.add(name, name, at_h, cores).unwrap();
    }
    assert_eq!(all.add("a", "", 5.0, 1.0), Err(EventError::OutOfOrder { at_h: 5.0, last_h: 6.0 }));
    assert_eq!(all.add("a", "", 7.0, 0.0), Err(EventError::Cores(0.0)));
    for (at_h, shown) in [(1.7e12, "1700000000000"), (-1.0, "-1"), (f64::INFINITY, "inf")] {
        let why = all.add("a", "", at_h, 1.0).unwrap_err().to_string();
        assert_eq!(why, format!("time_h = {shown}: hours, 0 to 100000000"));
    }
    let gone = all.add("b", "", 7.0, -1.0).unwrap_err().to_string();
    assert_eq!(gone, "\"b\" loses 1 cores, and has 0");

    all.add("c", "", 8.0, 2.0).unwrap();
    let histories = all.until(10.0);
    let [(of_b, b), (_, a), (_, c)] = &histories[..] else { panic!("{histories:?}") };
    assert_eq!(of_b, "b");
    assert_eq!((b.ended_alone, b.shutdown, b.core_ends, b.core_hours), (true, false, 1.0, 4.0));
    assert_eq!((a.ended_alone, a.shutdown, a.core_ends, a.core_hours), (false, true, 1.0, 6.0 + 10.0 + 8.0));
    assert_eq!((a.scale_outs, a.requests, a.further_cores, a.age_h), (1.0, 2.0, 3.0, 6.0));
    assert_eq!((c.age_h, c.core_hours, c.ended_alone || c.shutdown), (2.0, 4.0, false));
}

#[test]
fn a_law_is_fitted_to_what_is_known_and_what_is_not_is_named() {
    let one = History {
        core_ends: 2.0,
        core_hours: 30.0,
        age_h: 20.0,
        scale_outs: 1.0,
        requests: 2.0,
        ..History::default()
    };
    let fitted = |change: fn(History) -> History, n: usize| fit(&vec![change(one); n]);
    assert_eq!(fitted(|it| it, 29), Err(FitError::Few(29)));
    assert_eq!(fitted(|it| History { core_hours: 0.0, age_h: 0.0, ..it }, 30), Err(FitError::NoTime));
    assert_eq!(fitted(|it| History { core_ends: 0.0, ..it }, 30), Err(FitError::NoEnds));
    assert_eq!(fitted(|it| History { scale_outs: 0.0, ..it }, 30), Err(FitError::NoScaleOuts));

    // Every request is of one core: a law of sizes that are one.
    let law = fitted(|it| it, 30).unwrap().law;
    law.check().unwrap();
    assert!(law.sigma.mean() < 1e-3, "{law:?}");
}

#[test]
fn a_label_is_believed_by_what_its_deployments_did_and_an_unknown_one_by_the_law() {
    use ballast_placement::admission::fit::History;
    use ballast_placement::admission::{Priors, PseudoObservations};

    let law = Belief::SUB_B;
    let lives = |hours: f64, outs: f64| History {
        core_ends: 4.0,
        core_hours: 4.0 * hours,
        age_h: 2.0 * hours,
        scale_outs: outs,
        requests: 1.0 + outs,
        further_cores: outs,
        ..History::default()
    };
    let mut priors = Priors::new(law);
    for (label, hours, outs) in [("short", 1.0, 0.0), ("long", 1000.0, 9.0)] {
        priors.labels.insert(label.into(), PseudoObservations::new(&law, &[lives(hours, outs); 8], 5.0));
    }
    priors.labels.insert("one".into(), PseudoObservations::new(&law, &[lives(1.0, 0.0)], 5.0));
    priors.labels.insert("none".into(), PseudoObservations::new(&law, &[], 5.0));
    priors.check().unwrap();

    // Five observations of a law as narrow as eight deployments made it, whose mean core lives an hour, or a thousand.
    let [short, long, one] = ["short", "long", "one"].map(|label| priors.of(Some(label)));
    assert_eq!((short.mu.shape, one.mu.shape), (5.3138, 1.3138));
    assert!((0.7..1.3).contains(&short.mu.mean()), "{short:?}");
    assert!((1.0 / long.mu.mean() / 1000.0 - 1.0).abs() < 0.3, "{long:?}");
    assert!(long.sigma.mean() > 0.8 && short.lambda.mean() < long.lambda.mean(), "{long:?}");
    assert_eq!([priors.of(Some("none")), priors.of(Some("unknown")), priors.of(None)], [law; 3]);

    // As a file, and again.
    let text = serde_json::to_string(&priors).unwrap();
    assert_eq!(serde_json::from_str::<Priors>(&text).unwrap(), priors);
}

#[test]
fn deployments_by_name_take_no_event_that_cannot_be_and_priors_change_under_them() {
    use ballast_placement::admission::demand::{DemandError, Threshold};
    use ballast_placement::admission::{Deployments, Priors};

    let mut all = Deployments::new(Priors::new(Belief::SUB_B));
    all.grow(1.0, "web", None, 4.0).unwrap();
    all.grow(2.0, "web", None, 2.0).unwrap();
    all.grow(2.0, "db", Some("x"), 1.0).unwrap();

    // A scale-out of one that is not there, a deployment that loses more than it has, time that goes back: refused, and
    // nothing has changed.
    let before = (all.member(3.0, "web"), all.cores());
    assert_eq!(all.grow_failed(3.0, "cache", 1.0), Err(DemandError::Unknown));
    assert_eq!(all.shrink(3.0, "cache", 1.0), Err(DemandError::Unknown));
    assert_eq!(all.resize(3.0, "cache", 1.0), Err(DemandError::Unknown));
    assert_eq!(all.shrink(3.0, "web", 7.0), Err(DemandError::TooMany { cores: 6.0, ended: 7.0 }));
    assert_eq!(all.grow(1.5, "web", None, 1.0), Err(DemandError::OutOfOrder { at_h: 1.5, last_h: 2.0 }));
    for cores in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(all.grow(3.0, "new", None, cores).is_err());
        assert!(all.decide(3.0, Threshold::Zeroth { cores: 1e9 }, &[(None, 1.0), (None, cores)]).is_err());
    }
    assert_eq!(
        (all.member(3.0, "web"), all.cores(), all.member(3.0, "new")),
        (before.0.clone(), before.1, None)
    );

    // A decision about several leaves nobody behind.
    let several = [(None, 3.0), (Some("x"), 3.0)];
    let decide = |all: &mut Deployments, cores| {
        all.decide(3.0, Threshold::First { cores }, &several).unwrap().unwrap()
    };
    assert!(decide(&mut all, 100.0).admit && !decide(&mut all, 12.9).admit);
    assert_eq!((all.cores(), all.len()), (7.0, 2));
    assert!(all.decide(3.0, Threshold::Zeroth { cores: 1.0 }, &[]).unwrap().is_none());

    // Other priors: what was seen stays, what is expected is otherwise.
    let week = |all: &Deployments| all.forecast(3.0, &[168.0])[0].mean;
    let old = week(&all);
    all.set_priors(3.0, Priors::new(Belief::SUB_A)).unwrap();
    assert_eq!((all.member(3.0, "web"), all.cores()), before);
    assert!((week(&all) / old - 1.0).abs() > 0.01);
    all.shrink(4.0, "web", 6.0).unwrap();
    assert_eq!(all.names().collect::<Vec<_>>(), ["db"]);
}
