//! Watts that no agent's meter sees: fans, conversion loss, switch.
//!
//! Meters lag, and do not lag alike, so single readings of both sides cannot be subtracted. Means over a
//! second are compared, and a line `a + b · total` is learnt through them: losses grow with the load. The
//! line forgets over minutes. What counts is the line raised by its confidence bound, and never more than
//! the supplies' total leaves beside what the servers report.
//!
//! While the draw moves fast, a lag of a few hundred milliseconds between the two sides looks like shared
//! watts. Such a second counts only where no calm one is known, and then it can only lower the guess that is
//! there: what the guess misses shows in the total, and the loop over that corrects it.

use core::time::Duration;

use ballast_types::{Instant, Watts};
use serde::{Deserialize, Serialize};

/// The length of one comparison.
const WINDOW: Duration = Duration::from_secs(1);

/// A comparison of so many seconds ago counts for about a third of a new one.
const FORGET_OVER: f64 = 120.0;

/// A second is steady when the draw moved less than this share of the limit in it (5 %): meter noise
/// of 1 % moves five readings by half of that.
const STEADY_PPM: u32 = 50_000;

/// Before anything was ever compared they are taken for this share of the budget (10 %). Caps that are
/// granted before would else be watts that are not there, and outlive a manager that dies early.
const GUESS_PPM: u32 = 100_000;

/// Losses and fans take at most this part of another watt of the total.
const STEEPEST: f64 = 0.3;

/// So much movement of the total, as a share of it, says as much of the slope as the belief in 5 %.
const PRIOR: (f64, f64) = (0.02, 0.05);

/// The regression is raised by so many standard deviations of its level.
const CONFIDENCE: f64 = 2.0;

/// With fewer seconds the regression has no confidence bound yet, and is not remembered.
const FEW: f64 = 5.0;

/// What is remembered is rounded up to this, so that it seldom has to be written down.
const REMEMBERED_MW: i64 = 10_000;

/// One second under way.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Window {
    began: Instant,
    readings: u64,
    total: Watts,
    servers: Watts,
    lowest: Watts,
    highest: Watts,
}

/// A regression line with exponential forgetting, of the difference over the total; all in watts.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Regression {
    points: f64,
    total: f64,
    difference: f64,
    variance: f64,
    covariance: f64,
    /// Mean square of what the regression missed.
    missed: f64,
}

impl Regression {
    fn add(&mut self, total: f64, difference: f64) {
        let missed = if self.points > 0.0 { difference - self.at(total) } else { 0.0 };
        self.points = (self.points + 1.0).min(FORGET_OVER);
        let weight = 1.0 / self.points;
        let (dx, dy) = (total - self.total, difference - self.difference);
        self.total += weight * dx;
        self.difference += weight * dy;
        self.variance = (1.0 - weight) * (self.variance + weight * dx * dx);
        self.covariance = (1.0 - weight) * (self.covariance + weight * dx * dy);
        self.missed += weight * (missed * missed - self.missed);
    }

    fn at(&self, total: f64) -> f64 {
        let (slope, _) = self.slope();
        self.difference + slope * (total - self.total)
    }

    /// The slope, and how much of it is belief: 1 where the total never moved.
    fn slope(&self) -> (f64, f64) {
        let prior = (PRIOR.0 * self.total) * (PRIOR.0 * self.total);
        let all = (self.variance + prior).max(1e-9);
        let slope = (self.covariance + PRIOR.1 * prior) / all;
        (slope.clamp(0.0, STEEPEST), prior / all)
    }

    /// The least that it may be: by its level, and, away from the totals that were seen, by the slope that
    /// is only believed in.
    fn lower_bound(&self, total: f64) -> f64 {
        let (slope, belief) = self.slope();
        let away = total - self.total;
        let worst = if away < 0.0 { STEEPEST } else { 0.0 };
        self.difference + (slope + belief * (worst - slope)) * away - self.bound()
    }

    /// How far its level may be off.
    fn bound(&self) -> f64 {
        CONFIDENCE * libm::sqrt(self.missed / self.points.max(1.0))
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Shared {
    floor: Watts,
    /// What counts before the first comparison when nothing else is known.
    unknown: Watts,
    /// What counts before the first comparison: an earlier instance's estimate.
    remembered: Watts,
    window: Option<Window>,
    steady: Regression,
    moving: Regression,
    /// The least that the supplies' total has left beside the servers' reports, in the newest second.
    room: Option<Watts>,
}

impl Shared {
    /// Nothing compared yet; never less than `floor`, nor at first than what was `remembered`. Where
    /// neither is told, `budget` is what a guess is made of.
    pub(crate) fn new(floor: Option<Watts>, remembered: Watts, budget: Watts) -> Self {
        let configured = floor.is_some() || remembered > Watts::ZERO;
        Self {
            unknown: if configured { Watts::ZERO } else { budget.ppm(GUESS_PPM) },
            floor: floor.unwrap_or_default().at_least_zero(),
            remembered: remembered.at_least_zero(),
            window: None,
            steady: Regression::default(),
            moving: Regression::default(),
            room: None,
        }
    }

    /// Another least, or another budget to guess by; what was learnt stays. The second under way is no comparison:
    /// the servers may be others at its end.
    pub(crate) fn follow(&mut self, floor: Option<Watts>, budget: Watts) {
        let (steady, moving) = (self.steady, self.moving);
        *self = Self { steady, moving, ..Self::new(floor, self.remembered, budget) };
    }

    /// So much more is drawn by what no agent's meter sees: servers that are configured no more draw on.
    pub(crate) fn add(&mut self, watts: Watts) {
        self.remembered += watts;
        for regression in [&mut self.steady, &mut self.moving] {
            if regression.points > 0.0 {
                regression.difference += watts.as_f64();
            }
        }
    }

    fn regression(&self) -> Option<&Regression> {
        [&self.steady, &self.moving].into_iter().find(|regression| regression.points > 0.0)
    }

    /// The estimate when the chassis draws `total`.
    pub(crate) fn at(&self, total: Watts) -> Watts {
        let watts = |w: f64| Watts::from_f64(w).unwrap_or_default();
        let guess = self.remembered.max(self.unknown).max(self.floor);
        let level = self.regression().map(|regression| (regression.at(total.as_f64()), regression.bound()));
        let estimate = match level {
            Some((level, bound)) if self.steady.points >= FEW => watts(level + bound),
            // Of a few seconds nobody knows how far they scatter.
            Some((level, bound)) if self.steady.points > 0.0 => {
                watts(level + bound).min(watts(level).max(guess))
            }
            // What was told is the least that they are, and no guess.
            Some((level, bound)) if guess > self.floor => watts(level + bound).min(guess),
            Some((level, bound)) => watts(level + bound),
            None => guess,
        };
        let room = self.room.unwrap_or(Watts::MAX);
        estimate.min(room).max(self.floor).at_least_zero()
    }

    /// The least that they may be when the chassis draws `total`: what is drawn beside the reports of the
    /// servers, and is not this, is drawn by servers that do not report.
    pub(crate) fn lower_bound(&self, total: Watts) -> Watts {
        let lowest =
            self.regression().and_then(|regression| Watts::from_f64(regression.lower_bound(total.as_f64())));
        lowest.unwrap_or_default().min(self.at(total)).max(self.floor).at_least_zero()
    }

    /// The estimate in whole steps: what a later instance begins with.
    pub(crate) fn to_remember(&self, total: Watts) -> Watts {
        let new = self.regression().filter(|regression| regression.points >= FEW).map(|_| self.at(total));
        let step = Watts::from_milli(REMEMBERED_MW);
        match new {
            // What is written down stays while it is right to a step.
            Some(new) if new > self.remembered || self.remembered - new > step + step => {
                let steps = (new.milli() + REMEMBERED_MW - 1) / REMEMBERED_MW;
                Watts::from_milli(steps * REMEMBERED_MW)
            }
            _ => self.remembered,
        }
    }

    /// That was written down.
    pub(crate) fn remember(&mut self, watts: Watts) {
        self.remembered = watts;
    }

    /// Takes a fresh reading of the chassis; the sum over its servers at that time, `None` if some server's
    /// draw is not known; and what the servers that do report add up to.
    pub(crate) fn compare(
        &mut self,
        now: Instant,
        total: Watts,
        servers: Option<Watts>,
        reported: Watts,
        limit: Watts,
    ) {
        // Reports are late: for a while after a fall they are too high, and leave too little.
        let room = (total - reported).at_least_zero();
        let before = self.room.unwrap_or(room);
        self.room = Some(before + (room - before).per(8));

        let Some(servers) = servers else {
            self.window = None;
            return;
        };

        let w = self.window.get_or_insert(Window {
            began: now,
            readings: 0,
            total: Watts::ZERO,
            servers: Watts::ZERO,
            lowest: total,
            highest: total,
        });

        w.readings += 1;
        w.total += total;
        w.servers += servers;
        w.lowest = w.lowest.min(total);
        w.highest = w.highest.max(total);

        if w.readings < 2 || now - w.began < WINDOW {
            return;
        }

        let total = w.total.per(w.readings);
        let difference = total - w.servers.per(w.readings);
        let steady = w.highest - w.lowest <= limit.ppm(STEADY_PPM);
        let regression = if steady { &mut self.steady } else { &mut self.moving };
        regression.add(total.as_f64(), difference.at_least_zero().as_f64());
        self.window = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: fn(i64) -> Watts = Watts::from_whole;

    fn seconds(shared: &mut Shared, from: u64, count: u64, total: i64, servers: Option<i64>) {
        for n in 0..count * 5 {
            let now = Instant::from_millis(from * 1000 + n * 200);
            // One meter flickers a little.
            let total = W(total + (n % 3) as i64 * 4 - 4);
            shared.compare(now, total, servers.map(W), W(servers.unwrap_or(0)), W(2400));
        }
    }

    fn near(watts: Watts, expected: i64) -> bool {
        (watts - W(expected)).milli().abs() < 12_000
    }

    #[test]
    fn before_anything_is_known_it_is_a_tenth_of_the_budget() {
        assert_eq!(Shared::new(None, W(0), W(2400)).at(W(2000)), W(240));
        assert_eq!(Shared::new(None, W(120), W(2400)).at(W(2000)), W(120));
        assert_eq!(Shared::new(Some(W(90)), W(0), W(2400)).at(W(2000)), W(90));
    }

    #[test]
    fn it_grows_with_the_load_as_it_was_seen_to() {
        let mut shared = Shared::new(None, W(0), W(2400));
        for round in 0..10 {
            seconds(&mut shared, round * 40, 12, 1000, Some(900));
            seconds(&mut shared, round * 40 + 20, 12, 2000, Some(1800));
        }
        assert!(near(shared.at(W(1000)), 100), "{}", shared.at(W(1000)));
        assert!(near(shared.at(W(2000)), 200), "{}", shared.at(W(2000)));
        assert!(near(shared.at(W(2400)), 200), "no more than is left: {}", shared.at(W(2400)));
    }

    #[test]
    fn a_second_that_moves_fast_raises_no_guess() {
        // The servers' meters are 400 ms behind while a chassis starts.
        let ramp = |shared: &mut Shared, per_reading: i64| {
            for n in 0..20 {
                let servers = W(900 + per_reading * (n - 2).max(0));
                let total = W(1000 + per_reading * n);
                shared.compare(Instant::from_millis(200 * n as u64), total, Some(servers), servers, W(2400));
            }
        };

        for (remembered, guess) in [(0, 240), (170, 170)] {
            let mut shared = Shared::new(None, W(remembered), W(2400));
            ramp(&mut shared, 100);
            assert_eq!(shared.at(W(2000)), W(guess));
            seconds(&mut shared, 10, 20, 2000, Some(1700));
            assert!(near(shared.at(W(2000)), 300), "calm seconds count: {}", shared.at(W(2000)));
        }

        let mut shared = Shared::new(Some(W(90)), W(0), W(2400));
        ramp(&mut shared, 100);
        assert!(shared.at(W(2000)) > W(200), "the least is no guess: {}", shared.at(W(2000)));
        let mut shared = Shared::new(None, W(400), W(2400));
        ramp(&mut shared, 50);
        assert!(shared.at(W(2000)) < W(300), "less is believed: {}", shared.at(W(2000)));
    }

    #[test]
    fn of_a_few_seconds_nobody_knows_how_far_they_scatter() {
        let mut shared = Shared::new(None, W(0), W(2400));
        seconds(&mut shared, 0, 2, 1000, Some(900));
        seconds(&mut shared, 3, 2, 1000, Some(600));
        // Once 100 W and then 400 W: their mean counts, and no multiple of what one missed.
        let estimate = shared.at(W(1000));
        assert!((W(200)..W(260)).contains(&estimate), "{estimate}");
    }

    #[test]
    fn where_the_total_never_was_the_least_is_far_less() {
        let mut shared = Shared::new(None, W(0), W(2400));
        assert_eq!(shared.lower_bound(W(2000)), W(0), "nothing was compared");
        seconds(&mut shared, 0, 60, 2000, Some(1800));
        assert!(near(shared.lower_bound(W(2000)), 200), "{}", shared.lower_bound(W(2000)));
        // At the steepest that losses and fans can be, 150 W less; of more nothing is known.
        assert!(shared.lower_bound(W(1500)) < W(60), "{}", shared.lower_bound(W(1500)));
        assert!(shared.lower_bound(W(2400)) <= W(200), "{}", shared.lower_bound(W(2400)));
        seconds(&mut shared, 100, 60, 1500, Some(1350));
        assert!(near(shared.lower_bound(W(1500)), 150), "{}", shared.lower_bound(W(1500)));
    }

    #[test]
    fn it_forgets_what_has_gone() {
        let mut shared = Shared::new(None, W(0), W(2400));
        seconds(&mut shared, 0, 60, 2000, Some(1700));
        assert!(near(shared.at(W(2000)), 300), "{}", shared.at(W(2000)));
        shared.remember(shared.to_remember(W(2000)));
        seconds(&mut shared, 100, 600, 2000, Some(1900));
        assert!(near(shared.at(W(2000)), 100), "{}", shared.at(W(2000)));
        assert!(near(shared.to_remember(W(2000)), 110), "{}", shared.to_remember(W(2000)));
    }

    #[test]
    fn an_excess_that_nothing_ends_is_not_taken_for_fans() {
        let mut shared = Shared::new(None, W(100), W(1000));
        // One server does not say what it draws; the other one reports 900 of 1,300 W.
        for n in 0..3000 {
            let now = Instant::from_millis(n * 200);
            shared.compare(now, W(1300), None, W(900), W(1000));
        }
        assert_eq!(shared.at(W(1000)), W(100));
        // Both sides agree that there is nothing beside the servers.
        seconds(&mut shared, 700, 5, 1300, Some(1299));
        assert!(shared.at(W(1000)) < W(20), "{}", shared.at(W(1000)));
    }

    #[test]
    fn servers_that_leave_the_configuration_draw_on() {
        let mut shared = Shared::new(None, W(0), W(2400));
        seconds(&mut shared, 0, 60, 2000, Some(1800));
        // From now on a server's 100 W are in no report.
        shared.add(W(100));
        seconds(&mut shared, 100, 20, 2000, None);
        assert!(near(shared.at(W(2000)), 300), "{}", shared.at(W(2000)));

        // Before the first comparison the remembered watts grow.
        let mut shared = Shared::new(None, W(120), W(2400));
        shared.add(W(100));
        assert_eq!(shared.at(W(2000)), W(220));
    }

    /// Within 5 %.
    fn is_near(value: f64, expected: f64) -> bool {
        (value - expected).abs() < expected.abs() / 20.0
    }

    #[test]
    fn the_regression_keeps_means_and_a_slope() {
        let mut regression = Regression::default();
        for _ in 0..100 {
            regression.add(1000.0, 100.0);
            regression.add(2000.0, 200.0);
        }
        assert!(is_near(regression.total, 1500.0) && is_near(regression.difference, 150.0), "{regression:?}");
        assert!(is_near(regression.variance, 250_000.0), "{regression:?}");
        assert!(is_near(regression.covariance, 25_000.0), "{regression:?}");
        assert!(
            is_near(regression.slope().0, 0.1) && is_near(regression.at(3000.0), 300.0),
            "{regression:?}"
        );
        assert!(regression.bound() < 5.0, "{regression:?}");

        // Differences that scatter by 20 W: two standard deviations of a mean over a hundred.
        let mut regression = Regression::default();
        for n in 0..200 {
            regression.add(1000.0, if n % 2 == 0 { 80.0 } else { 120.0 });
        }
        assert!((3.0..6.0).contains(&regression.bound()), "{regression:?}");
    }

    #[test]
    fn what_is_written_down_stays_while_it_is_right_to_two_steps() {
        let mut shared = Shared::new(None, W(0), W(2400));
        seconds(&mut shared, 0, 60, 2000, Some(1800));
        let estimate = shared.to_remember(W(2000));
        assert!(near(estimate, 200), "{estimate}");
        assert_eq!(estimate.milli() % REMEMBERED_MW, 0);
        for (above, stays) in [(10, true), (19, true), (40, false)] {
            let written = shared.at(W(2000)) + W(above);
            shared.remember(written);
            let expected = if stays { written } else { estimate };
            assert_eq!(shared.to_remember(W(2000)), expected, "{above} W");
        }
    }
}
