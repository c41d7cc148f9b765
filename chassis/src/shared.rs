//! Watts that no agent's meter sees: fans, conversion loss, switch.
//!
//! Meters lag, and do not lag alike, so single readings of both sides cannot be subtracted. This
//! compares means over a second, and takes the largest of the last 30 s: an estimate that is too
//! high costs a little throttling, one that is too low costs the budget.
//!
//! It survives a restart in the ledger: until the first comparison a new manager would otherwise share
//! out watts that are not there. And while some server's draw is not known, nothing can be compared;
//! then a draw that stays over the limit although everybody is capped corrects the estimate.
//!
//! While the draw moves fast, a lag of a few hundred milliseconds between the two sides looks like
//! shared watts. Such a second counts only where no calm one is known.

use core::time::Duration;
use std::collections::VecDeque;

use ballast_types::{Instant, Watts};

/// The length of one comparison.
const WINDOW: Duration = Duration::from_secs(1);

/// For how long a comparison counts.
const MEMORY: Duration = Duration::from_secs(30);

/// At most so many comparisons are kept: one per second.
const MOST: usize = 32;

/// A second is calm when the draw moved less than this share of the limit in it (5 %): meter noise
/// of 1 % moves five readings by half of that.
const CALM_PPM: u32 = 50_000;

/// A correction is taken back, a quarter at a time, while the draw is under this share of the limit.
const ROOM_PPM: u32 = 960_000;

/// Before anything was ever compared they are taken for this share of the budget (10 %). Caps that are
/// granted before would else be watts that are not there, and outlive a manager that dies early.
const UNKNOWN_PPM: u32 = 100_000;

/// What is remembered is rounded up to this.
const REMEMBERED_MW: i64 = 10_000;

/// One second under way.
#[derive(Clone, Copy, Debug)]
struct Window {
    began: Instant,
    readings: u64,
    total: Watts,
    servers: Watts,
    lowest: Watts,
    highest: Watts,
}

/// One finished second.
#[derive(Clone, Copy, Debug)]
struct Comparison {
    at: Instant,
    difference: Watts,
    calm: bool,
}

/// The estimate.
#[derive(Debug)]
pub(crate) struct Shared {
    floor: Watts,
    /// What counts before the first comparison when nothing else is known.
    unknown: Watts,
    /// What counts before the first comparison: an earlier life's largest.
    remembered: Watts,
    /// Added while nothing can be compared.
    correction: Watts,
    corrected_at: Option<Instant>,
    window: Option<Window>,
    done: VecDeque<Comparison>,
    value: Option<Watts>,
}

impl Shared {
    /// Nothing compared yet; never less than `floor`, nor at first than what was `remembered`. Where
    /// neither is told, `budget` is what a guess is made of.
    pub(crate) fn new(floor: Option<Watts>, remembered: Watts, budget: Watts) -> Self {
        let told = floor.is_some() || remembered > Watts::ZERO;
        Self {
            unknown: if told { Watts::ZERO } else { budget.ppm(UNKNOWN_PPM) },
            floor: floor.unwrap_or_default().at_least_zero(),
            remembered: remembered.at_least_zero(),
            correction: Watts::ZERO,
            corrected_at: None,
            window: None,
            done: VecDeque::with_capacity(MOST),
            value: None,
        }
    }

    /// The estimate.
    pub(crate) fn watts(&self) -> Watts {
        self.value.unwrap_or(self.floor.max(self.remembered).max(self.unknown)) + self.correction
    }

    /// The largest that was ever compared, in whole steps, so that it seldom has to be written down.
    pub(crate) fn remembered(&self) -> Watts {
        self.remembered
    }

    /// Whether it was ever measured.
    pub(crate) fn is_measured(&self) -> bool {
        self.value.is_some()
    }

    /// Takes a fresh reading of the chassis and the sum over its servers at that time; `None` if some
    /// server's draw is not known. Then the estimate stays.
    pub(crate) fn compare(
        &mut self,
        now: Instant,
        total: Watts,
        servers: Option<Watts>,
        limit: Watts,
    ) {
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
        let difference = w.total.per(w.readings) - w.servers.per(w.readings);
        let calm = w.highest - w.lowest <= limit.ppm(CALM_PPM);
        self.window = None;
        self.finish(Comparison { at: now, difference, calm });
    }

    /// Takes a fresh reading of the chassis while some server's draw is not known. `stuck`: the draw
    /// has been over the limit for longer than capping takes.
    pub(crate) fn correct(&mut self, now: Instant, total: Watts, limit: Watts, stuck: bool) {
        if self.corrected_at.is_some_and(|at| now - at < WINDOW) {
            return;
        }
        let room = limit.ppm(ROOM_PPM) - total;
        if stuck && total > limit {
            self.correction += total - limit;
        } else if room > Watts::ZERO {
            self.correction -= room.per(4).min(self.correction);
        } else {
            return;
        }
        self.corrected_at = Some(now);
    }

    fn finish(&mut self, comparison: Comparison) {
        self.correction = Watts::ZERO;
        while self.done.len() >= MOST
            || self.done.front().is_some_and(|c| comparison.at - c.at > MEMORY)
        {
            self.done.pop_front();
        }
        self.done.push_back(comparison);
        let largest =
            |calm| self.done.iter().filter(|c| c.calm == calm).map(|c| c.difference).max();
        self.value = largest(true).or_else(|| largest(false)).map(|w| w.max(self.floor));
        if let Some(largest) = largest(true).filter(|w| *w > self.remembered) {
            let steps = (largest.milli() + REMEMBERED_MW - 1) / REMEMBERED_MW;
            self.remembered = Watts::from_milli(steps * REMEMBERED_MW);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: fn(i64) -> Watts = Watts::from_whole;
    const LIMIT: Watts = Watts::from_whole(2000);

    /// Feeds one reading every 200 ms from `from_ms`, for `seconds`.
    fn feed(s: &mut Shared, from_ms: u64, seconds: u64, sides: impl Fn(u64) -> (i64, i64)) {
        for k in 0..=seconds * 5 {
            let (total, servers) = sides(k);
            s.compare(Instant::from_millis(from_ms + k * 200), W(total), Some(W(servers)), LIMIT);
        }
    }

    #[test]
    fn the_floor_holds_before_and_below() {
        let mut s = Shared::new(Some(W(50)), W(0), LIMIT);
        assert_eq!((s.watts(), s.is_measured()), (W(50), false));
        feed(&mut s, 0, 2, |_| (1000, 1100));
        assert_eq!((s.watts(), s.is_measured()), (W(50), true));
    }

    #[test]
    fn where_nothing_is_told_a_tenth_of_the_budget_counts_until_the_first_comparison() {
        let mut s = Shared::new(None, W(0), LIMIT);
        assert_eq!(s.watts(), W(200));
        feed(&mut s, 0, 2, |_| (1030, 1000));
        assert_eq!(s.watts(), W(30));
    }

    #[test]
    fn the_recent_maximum_counts_for_thirty_seconds() {
        let mut s = Shared::new(Some(W(0)), W(0), LIMIT);
        feed(&mut s, 0, 2, |_| (1100, 1000));
        assert_eq!(s.watts(), W(100));
        feed(&mut s, 3_000, 25, |_| (1060, 1000));
        assert_eq!(s.watts(), W(100));
        feed(&mut s, 29_000, 10, |_| (1060, 1000));
        assert_eq!(s.watts(), W(60));
    }

    #[test]
    fn a_silent_server_leaves_it_as_it_was() {
        let mut s = Shared::new(Some(W(0)), W(0), LIMIT);
        feed(&mut s, 0, 2, |_| (1100, 1000));
        for k in 0..500 {
            s.compare(Instant::from_millis(3_000 + 200 * k), W(1900), None, LIMIT);
        }
        assert_eq!(s.watts(), W(100));
    }

    #[test]
    fn an_earlier_lifes_largest_counts_until_the_first_comparison() {
        let mut s = Shared::new(Some(W(0)), W(0), LIMIT);
        feed(&mut s, 0, 2, |_| (1093, 1000));
        assert_eq!(s.remembered(), W(100), "93 W, rounded up");
        let mut next = Shared::new(None, s.remembered(), LIMIT);
        assert_eq!((next.watts(), next.is_measured()), (W(100), false));
        feed(&mut next, 0, 2, |_| (1060, 1000));
        assert_eq!((next.watts(), next.remembered()), (W(60), W(100)));
    }

    #[test]
    fn over_the_limit_though_capped_corrects_it_until_there_is_room() {
        let mut s = Shared::new(Some(W(40)), W(0), LIMIT);
        let at = |ms| Instant::from_millis(ms);
        s.correct(at(0), W(2030), LIMIT, false);
        assert_eq!(s.watts(), W(40), "capping is under way");
        s.correct(at(200), W(2030), LIMIT, true);
        s.correct(at(400), W(2030), LIMIT, true);
        assert_eq!(s.watts(), W(70), "once a second");
        s.correct(at(1_400), W(2000), LIMIT, false);
        assert_eq!(s.watts(), W(70), "at the limit it is right");
        s.correct(at(2_400), W(1880), LIMIT, false);
        assert_eq!(s.watts(), W(60));
        s.correct(at(3_400), W(1000), LIMIT, false);
        assert_eq!(s.watts(), W(40), "never below what was compared");
        s.correct(at(5_000), W(2030), LIMIT, true);
        feed(&mut s, 6_000, 2, |_| (1050, 1000));
        assert_eq!(s.watts(), W(50), "a comparison is better than any correction");
    }

    #[test]
    fn a_steep_second_counts_only_where_no_calm_one_is_known() {
        let mut s = Shared::new(Some(W(0)), W(0), LIMIT);
        feed(&mut s, 0, 1, |k| (1000 + 100 * k as i64, 800 + 100 * k as i64));
        assert_eq!(s.watts(), W(200), "nothing better is known");
        feed(&mut s, 3_000, 1, |_| (1880, 1800));
        assert_eq!(s.watts(), W(80));
        feed(&mut s, 5_000, 1, |k| (1000 + 100 * k as i64, 800 + 100 * k as i64));
        assert_eq!(s.watts(), W(80));
    }
}
