//! One capping event: from the draw that reached the threshold until what everybody wants fits again.

use core::time::Duration;

use ballast_types::{Instant, Watts};
use serde::{Deserialize, Serialize};

/// One capping event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CappingEvent {
    pub(crate) began: Instant,
    /// For how long everything has fitted, less the time in which it has not: one bad second does not
    /// undo half a minute.
    fitted: Duration,
    updated_at: Instant,
    /// When the draw last was at or over the threshold; for the paper's rule.
    pub(crate) high_at: Instant,
    /// When the manager ordered the servers' own limits; `None` without that order.
    pub(crate) own_limits_since: Option<Instant>,
    /// By how much the draw exceeded `floor` when the order came, with every low-priority core at its floor.
    pub(crate) floor_error: Watts,
    /// Since when the reports show every low-priority core at its floor; `None` above.
    pub(crate) at_floor_since: Option<Instant>,
    /// What would be drawn with every low-priority core at its floor; over a second and a half, because a
    /// reading's noise is larger than what the limit leaves above a set point.
    floor: Option<Watts>,
}

impl CappingEvent {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            began: now,
            fitted: Duration::ZERO,
            updated_at: now,
            high_at: now,
            own_limits_since: None,
            floor_error: Watts::ZERO,
            at_floor_since: None,
            floor: None,
        }
    }

    /// Whether everything fits at `now`, by a fresh reading. Time without a reading counts for nothing:
    /// `gap` is the longest that does.
    pub(crate) fn fits(&mut self, now: Instant, fits: bool, gap: Duration, hold: Duration) {
        let passed = (now - self.updated_at).min(gap);
        self.updated_at = now;
        self.fitted =
            if fits { (self.fitted + passed).min(hold) } else { self.fitted.saturating_sub(passed) };
    }

    /// Takes what would be drawn now with every low-priority core at its floor. What it moves by more than
    /// `noise` is followed at once.
    pub(crate) fn follow_floor(&mut self, floor: Watts, noise: Watts) {
        let before =
            self.floor.filter(|before| (floor - *before).max(*before - floor) <= noise).unwrap_or(floor);
        self.floor = Some(before + (floor - before).per(8));
    }

    /// The mean of those.
    pub(crate) fn floor(&self) -> Option<Watts> {
        self.floor
    }

    /// For how long everything has fitted.
    pub(crate) fn fitted(&self) -> Duration {
        self.fitted
    }
}

/// Corrects what is shared out towards the set point: the total closes the loop.
///
/// Below zero it makes up for watts that nobody knew of. Above zero it lends what servers leave of their
/// caps; so it is never above a small share of the limit, and nothing while there is an excess.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Integral {
    watts: Watts,
}

/// What one reading says to the integral term.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deviation {
    /// The set point less the draw.
    pub(crate) below: Watts,
    pub(crate) limit: Watts,
    /// Somebody gets less than it needs.
    pub(crate) lacking: bool,
    /// Servers draw more than they were told: lower caps would change nothing yet.
    pub(crate) overdrawn: bool,
    pub(crate) excess: bool,
    pub(crate) gain_ppm: u32,
    pub(crate) max_ppm: u32,
}

impl Integral {
    pub(crate) fn take(&mut self, deviation: Deviation) {
        let Deviation { below, limit, lacking, overdrawn, excess, gain_ppm, max_ppm } = deviation;
        let step = below.ppm(gain_ppm);
        // Where nobody lacks anything, the draw is low because nobody wants more: nothing is wound up.
        let down = below <= Watts::ZERO && !overdrawn;
        let up = below > Watts::ZERO && (lacking || self.watts < Watts::ZERO);
        if down || up {
            self.watts += step;
        }
        if !lacking && self.watts > Watts::ZERO {
            self.watts -= self.watts.ppm(gain_ppm);
        }
        let most = if excess { Watts::ZERO } else { limit.ppm(max_ppm) };
        self.watts = self.watts.min(most).max(-limit);
    }

    /// What is added to the sharable watts.
    pub(crate) fn watts(self) -> Watts {
        self.watts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: fn(i64) -> Watts = Watts::from_whole;

    #[test]
    fn a_bad_second_does_not_undo_half_a_minute() {
        let (ms, hold) = (Duration::from_millis, Duration::from_secs(30));
        let mut event = CappingEvent::new(Instant::ZERO);
        for n in 1..=150 {
            event.fits(Instant::from_millis(200 * n), n % 25 != 0, ms(400), hold);
        }
        assert_eq!(event.fitted(), ms(200 * (144 - 6)));
        // A minute without a reading counts as two polls.
        event.fits(Instant::from_millis(90_000), true, ms(400), hold);
        assert_eq!(event.fitted(), ms(200 * 138 + 400));
        event.fits(Instant::from_millis(90_200), false, ms(400), hold);
        assert_eq!(event.fitted(), ms(200 * 138 + 200));
    }

    fn deviation(below: i64, lacking: bool) -> Deviation {
        let (below, limit, gain_ppm, max_ppm) = (W(below), W(1000), 100_000, 30_000);
        Deviation { below, limit, lacking, overdrawn: false, excess: false, gain_ppm, max_ppm }
    }

    #[test]
    fn the_integral_is_bounded_and_winds_up_for_nothing() {
        let mut it = Integral::default();
        (0..100).for_each(|_| it.take(deviation(50, true)));
        assert_eq!(it.watts(), W(30));
        it.take(Deviation { excess: true, ..deviation(-10, true) });
        assert!(it.watts() <= W(0), "{}", it.watts());
        (0..1000).for_each(|_| it.take(deviation(-500, true)));
        assert_eq!(it.watts(), W(-1000));
        let mut idle = Integral::default();
        idle.take(Deviation { overdrawn: true, ..deviation(-500, true) });
        assert_eq!(idle.watts(), W(0), "who does not obey would not obey a lower cap either");
        // Nobody lacks anything: what was taken comes back, and no more than that.
        (0..1000).for_each(|_| it.take(deviation(300, false)));
        assert!(it.watts() <= W(30) && it.watts() >= W(0), "{}", it.watts());
        (0..200).for_each(|_| it.take(deviation(300, false)));
        assert!(it.watts() < W(1), "{}", it.watts());
    }
}
