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

    /// Replaces a range within a reading's noise: the reports do not know what the cores draw.
    fn or_unreported(self, how: &Steps) -> Self {
        let known = self.watts() >= how.noise.as_f64();
        if known { self } else { Self { down: Watts::ZERO, up: how.unreported } }
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
    /// What low-priority cores are assumed to shed when the reports show no watts of theirs.
    pub(crate) unreported: Watts,
}

/// The height in force, and recent heights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Height {
    now: f64,
    /// Decisions, oldest first; the newest is in force.
    history: VecDeque<(Instant, f64)>,
    /// When the height became 0; `None` above.
    floored_since: Option<Instant>,
}

/// Within a reading's noise the gain is divided by this.
const QUIETER: f64 = 8.0;

/// Where no watts are known, a downward step is this much larger than an upward one.
const UNREPORTED_DOWN: f64 = 4.0;

impl Height {
    /// The height of the cores by the reports.
    pub(crate) fn at(range: Range) -> Self {
        let now = range.height().clamp(0.0, 1.0);
        // Readings before the first decision show this height.
        let history = VecDeque::from([(Instant::ZERO, now)]);
        Self { now, history, floored_since: None }
    }

    /// Takes a reading: `room` is the set point less the draw.
    pub(crate) fn take(&mut self, now: Instant, room: Watts, range: Range, how: Steps) {
        let Steps { lag, gain, noise, .. } = how;
        let range = range.or_unreported(&how);
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
        // A report may be older than the height, or show no watts. Then a downward step may be too large, not an upward
        // one.
        let mean = range.watts();
        let slope = match room < 0.0 {
            true if self.now > 0.0 && range.down > Watts::ZERO => range.down.as_f64() / self.now,
            true => mean / UNREPORTED_DOWN,
            false if self.now < 1.0 => mean.max(range.up.as_f64() / (1.0 - self.now)),
            false => mean,
        };
        let gain = if room.abs() < noise.as_f64() { gain / QUIETER } else { gain };
        let step = if slope > 0.0 { gain * room / slope } else { 0.0 };
        self.now = (self.now + step).clamp(0.0, 1.0);
        self.note(now);
    }

    /// Whether low-priority cores are neither all free nor all at their floor.
    pub(crate) fn is_between(&self) -> bool {
        self.now > 0.0 && self.now < 1.0
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
            let steps = Steps { lag: LAG, gain: 0.5, noise: w(1), unreported: w(50) };
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
        let steps = Steps { lag: LAG, gain: 0.5, noise: w(1), unreported: w(50) };
        height.take(Instant::from_millis(3000), w(30), range(0.0), steps);
        assert_eq!((height.floored_since(), height.ppm(1), height.ppm(4)), (None, 150_000, 600_000));
    }

    #[test]
    fn without_reported_watts_it_falls_fast_and_rises_slowly() {
        let steps = Steps { lag: LAG, gain: 0.5, noise: w(1), unreported: w(100) };
        let after = |height: &mut Height, ms, room| {
            height.take(Instant::from_millis(ms), w(room), Range::default(), steps);
            height.ppm(1)
        };
        let mut height = Height::at(Range::default());
        assert_eq!(after(&mut height, 1000, -30), 400_000);
        assert_eq!(after(&mut height, 9000, -30), 0);
        assert_eq!(after(&mut height, 18_000, 30), 150_000);
        // A report from before the height became 0 shows cores that are free.
        let mut height = Height::at(range(1.0));
        height.drop_to_floor(Instant::from_millis(1000));
        height.take(Instant::from_millis(9000), w(30), range(1.0), steps);
        assert_eq!(height.ppm(1), 150_000);
    }

    /// Reports that show more to restore than the height explains: the steeper slope counts.
    #[test]
    fn a_step_up_goes_by_the_steeper_slope() {
        let mut height = Height::at(range(0.5));
        let steps = Steps { lag: LAG, gain: 0.5, noise: w(1), unreported: w(50) };
        // 80 W for the upper half are 160 W for the whole. Half of 16 W are a twentieth of that.
        height.take(Instant::from_millis(1000), w(16), Range { down: w(20), up: w(80) }, steps);
        assert_eq!(height.ppm(1), 550_000);
    }
}
