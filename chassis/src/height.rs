//! How much low-priority work the chassis may do: one common height of all low-priority cores.
//!
//! The height is 0 with every such core at its floor, and 1 with all of them free. Each reading moves the height so that
//! the draw approaches the set point. A reading shows the height of a refresh and a lag ago, so the controller first adds
//! the effect of later heights (a Smith predictor).
//!
//! The slope in watts comes from the servers' reports: sheddable watts downward, restorable watts upward. Watts rise more
//! steeply than frequency, so the upward slope is overestimated, and an upward step is too small rather than too large.

use core::time::Duration;
use std::collections::VecDeque;

use ballast_types::{Instant, Watts};
use serde::{Deserialize, Serialize};

/// What low-priority cores can still shed and restore, by the servers' reports.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Range {
    /// Watts that all cores shed at their floor.
    pub(crate) down: Watts,
    /// Watts that all cores add when they are free.
    pub(crate) up: Watts,
}

impl Range {
    fn watts(self) -> f64 {
        (self.down + self.up).as_f64()
    }

    /// The height of the cores.
    fn height(self) -> f64 {
        if self.watts() > 0.0 { self.down.as_f64() / self.watts() } else { 1.0 }
    }
}

/// How a reading moves the height.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    /// Time from a decision until a reading shows its effect.
    pub(crate) lag: Duration,
    /// The part of the deviation that one reading corrects.
    pub(crate) gain: f64,
    /// A smaller deviation may be a reading's noise.
    pub(crate) noise: Watts,
}

/// The height in force, and recent heights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Height {
    now: f64,
    /// Decisions, oldest first; the newest is in force.
    history: VecDeque<(Instant, f64)>,
    /// When the height became 0; `None` above.
    floored_since: Option<Instant>,
    /// Mean square of the readings' deviation from the set point, as a share of the limit.
    spread: f64,
}

/// Within a reading's noise the gain is divided by this.
const QUIETER: f64 = 8.0;

/// Readings over which the spread is averaged.
const SPREAD_OVER: f64 = 64.0;

/// Larger deviations are steps of the load and count as this much.
const STEP: f64 = 0.02;

impl Height {
    /// At the start of the manager: the height of the cores by the reports.
    pub(crate) fn at(range: Range) -> Self {
        let now = range.height().clamp(0.0, 1.0);
        // Readings before the first decision show this height.
        let history = VecDeque::from([(Instant::ZERO, now)]);
        Self { now, history, floored_since: None, spread: 0.0 }
    }

    /// At the start of a capping event. The spread of earlier events is kept.
    pub(crate) fn again(&self, range: Range) -> Self {
        Self { spread: self.spread, ..Self::at(range) }
    }

    /// Takes a reading: `room` is the set point less the draw.
    pub(crate) fn take(&mut self, now: Instant, room: Watts, range: Range, how: Steps) {
        let Steps { lag, gain, noise } = how;
        while self.history.get(1).is_some_and(|&(at, _)| at + lag <= now) {
            self.history.pop_front();
        }
        let shown = self.history.front().map_or(self.now, |&(_, height)| height);
        let read = room.as_f64();
        let room = read - range.watts() * (self.now - shown);
        // The effect of lower heights is an estimate. A reading above the set point raises nothing because of it.
        if read <= 0.0 && room > 0.0 {
            return self.note(now);
        }
        let slope = match room < 0.0 {
            true if self.now > 0.0 => range.down.as_f64() / self.now,
            false if self.now < 1.0 => range.up.as_f64() / (1.0 - self.now),
            _ => return self.note(now),
        };

        let gain = if room.abs() < noise.as_f64() { gain / QUIETER } else { gain };

        // If the reports show no watts to move, one step may span the whole ladder.
        let step = if slope > 0.0 { gain * room / slope } else { gain * room.signum() };
        self.now = (self.now + step).clamp(0.0, 1.0);
        self.note(now);
    }

    /// Records a reading's deviation from the set point, as a share of the limit. At both ends the height cannot correct a
    /// deviation, so it is ignored there.
    pub(crate) fn note_spread(&mut self, off: f64) {
        if self.now > 0.0 && self.now < 1.0 {
            let off = off.clamp(-STEP, STEP);
            self.spread += (off * off - self.spread) / SPREAD_OVER;
        }
    }

    /// Root mean square of the draw's deviation from the set point, as a share of the limit, without the readings' own
    /// `noise`.
    pub(crate) fn spread(&self, noise: f64) -> f64 {
        libm::sqrt((self.spread - noise * noise).max(0.0))
    }

    /// Sets every low-priority core to its floor.
    pub(crate) fn drop_to_floor(&mut self, now: Instant) {
        self.now = 0.0;
        self.note(now);
    }

    fn note(&mut self, now: Instant) {
        self.history.push_back((now, self.now));
        self.floored_since = (self.now <= 0.0).then(|| self.floored_since.unwrap_or(now));
    }

    /// When the height became 0; `None` above.
    pub(crate) fn floored_since(&self) -> Option<Instant> {
        self.floored_since
    }

    /// The height for a server of this weight, in parts per million. A server of weight 2 is free at half the height.
    pub(crate) fn ppm(&self, weight: u32) -> u32 {
        let share = (self.now * f64::from(weight.max(1))).min(1.0);
        // Between 0 and a million.
        (share * 1e6) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAG: Duration = Duration::from_millis(500);

    fn w(watts: i64) -> Watts {
        Watts::from_whole(watts)
    }

    /// Low-priority cores that draw 100 W more when free than at their floor, in a straight line.
    fn range(height: f64) -> Range {
        let down = Watts::from_f64(100.0 * height).unwrap();
        Range { down, up: w(100) - down }
    }

    /// Readings every 200 ms of a draw that shows the height of 600 ms ago, `base` at the floor.
    fn follow(base: f64, aim: f64, polls: u64, noise: f64) -> Vec<f64> {
        let mut height = Height::at(range(1.0));
        let mut heights = vec![1.0; 3];
        for n in 0..polls {
            let now = Instant::from_millis(1000 + 200 * n);
            let shown = heights[heights.len() - 3];
            let wavers = if n % 2 == 0 { noise } else { -noise };
            let room = Watts::from_f64(aim - (base + 100.0 * shown + wavers)).unwrap();
            let steps = Steps { lag: LAG, gain: 0.5, noise: w(1) };
            height.take(now, room, range(height.now), steps);
            heights.push(height.now);
        }
        heights
    }

    #[test]
    fn it_comes_to_the_set_point_without_overshoot() {
        for (base, ends) in [(50.0, 0.5), (20.0, 0.8), (-50.0, 1.0), (120.0, 0.0)] {
            let heights = follow(base, 100.0, 60, 0.0);
            let last = *heights.last().unwrap();
            assert!((last - ends).abs() < 0.01, "{base}: {last}");
            assert!(heights.iter().all(|h| *h >= ends - 0.02), "{base}: {heights:?}");
            // Within a second and a half it is there but for a twentieth.
            assert!((heights[10] - ends).abs() < 0.05, "{base}: {heights:?}");
        }
    }

    #[test]
    fn noise_moves_it_little() {
        let heights = follow(50.0, 100.0, 100, 0.9);
        let (low, high) = heights[60..].iter().fold((1.0_f64, 0.0_f64), |(a, b), h| (a.min(*h), b.max(*h)));
        assert!(high - low < 0.02, "{low} to {high}");
    }

    #[test]
    fn a_floor_is_known_since_when() {
        let mut height = Height::at(range(0.5));
        assert_eq!(height.floored_since(), None);
        for n in 0..5 {
            height.drop_to_floor(Instant::from_millis(1000 + 200 * n));
        }
        assert_eq!(height.floored_since(), Some(Instant::from_millis(1000)));
        let steps = Steps { lag: LAG, gain: 0.5, noise: w(1) };
        height.take(Instant::from_millis(3000), w(30), range(0.0), steps);
        assert_eq!((height.floored_since(), height.ppm(1), height.ppm(4)), (None, 150_000, 600_000));
        // Nothing is known to move: it may be the whole ladder.
        let mut height = Height::at(Range::default());
        let steps = Steps { lag: LAG, gain: 1.0, noise: w(1) };
        height.take(Instant::from_millis(1000), w(-30), Range::default(), steps);
        assert_eq!(height.ppm(1), 0);
    }

    #[test]
    fn the_spread_is_what_noise_does_not_explain() {
        let mut height = Height::at(range(0.5));
        for n in 0..1000 {
            height.note_spread(if n % 2 == 0 { 0.02 } else { -0.02 });
        }
        assert!((height.spread(0.0) - 0.02).abs() < 1e-4 && height.spread(0.02) < 1e-3);
        // A step of the load is none.
        height.note_spread(0.5);
        assert!(height.spread(0.0) < 0.0205, "{}", height.spread(0.0));
    }
}
