//! What a draw adds up to. Counted at every reading, in the control thread: a scrape each 15 s sees no peak.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ballast_types::{Instant, Watts};
use prometheus_client::metrics::histogram::Histogram;

use crate::lock;

/// A value holds until the next one, but no longer than this: then the draw is not known.
const HOLDS: Duration = Duration::from_secs(2);
/// Shares of the limit, close around it.
const RATIOS: [f64; 7] = [0.8, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05];

/// The counts of one draw, since the daemon's start.
#[derive(Clone)]
pub struct DrawCounts {
    sums: Arc<Mutex<Sums>>,
    pub ratio: Histogram,
}

#[derive(Default)]
struct Sums {
    newest: Option<(Instant, Watts, Option<Watts>)>,
    energy_j: f64,
    over_s: f64,
    over_now_s: f64,
    over_longest_s: f64,
}

impl Default for DrawCounts {
    fn default() -> Self {
        Self { sums: Arc::default(), ratio: Histogram::new(RATIOS) }
    }
}

impl DrawCounts {
    /// A reading: the draw, `None` where it is missing, and the limit, `None` where there is none. Gives the joules
    /// since the one before.
    pub fn observe(&self, now: Instant, power: Option<Watts>, limit: Option<Watts>) -> f64 {
        let mut sums = lock(&self.sums);
        let before_j = sums.energy_j;
        let held = sums.newest.take().filter(|(at, ..)| now.since(*at) <= HOLDS);
        if let Some((at, power, limit)) = held {
            let seconds = now.since(at).as_secs_f64();
            sums.energy_j += power.as_f64() * seconds;
            let is_over = limit.is_some_and(|limit| power > limit);
            sums.over_s += if is_over { seconds } else { 0.0 };
            sums.over_now_s = if is_over { sums.over_now_s + seconds } else { 0.0 };
            sums.over_longest_s = sums.over_longest_s.max(sums.over_now_s);
        } else {
            sums.over_now_s = 0.0;
        }

        sums.newest = power.map(|power| (now, power, limit));
        if let Some((power, limit)) = power.zip(limit.filter(|limit| *limit > Watts::ZERO)) {
            self.ratio.observe(power.as_f64() / limit.as_f64());
        }

        sums.energy_j - before_j
    }

    pub fn energy_j(&self) -> f64 {
        lock(&self.sums).energy_j
    }

    pub fn over_s(&self) -> f64 {
        lock(&self.sums).over_s
    }

    pub fn over_longest_s(&self) -> f64 {
        lock(&self.sums).over_longest_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_is_summed_where_it_is_known() {
        let counts = DrawCounts::default();
        let watts = |watts| Some(Watts::from_whole(watts));
        for (ms, power, limit) in [
            (0, watts(100), watts(100)),
            (200, watts(110), watts(100)),
            (400, watts(110), watts(100)),
            (600, watts(90), watts(100)),
            (800, None, watts(100)),
            (1000, watts(120), None),
            // Nobody knows what was drawn meanwhile.
            (4000, watts(120), watts(100)),
            (4100, watts(90), watts(100)),
        ] {
            counts.observe(Instant::ZERO + Duration::from_millis(ms), power, limit);
        }

        let near = |is: f64, expected: f64| assert!((is - expected).abs() < 1e-9, "{is}, not {expected}");
        near(counts.energy_j(), 20.0 + 22.0 + 22.0 + 18.0 + 12.0);
        near(counts.over_s(), 0.5);
        near(counts.over_longest_s(), 0.4);
    }
}
