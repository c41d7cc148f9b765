//! The p-states that a sample shows: it is late, and a mean over its refresh.

use core::time::Duration;
use std::collections::VecDeque;

use ballast_types::Instant;
use serde::{Deserialize, Serialize};

/// Writes that are remembered, at most: more than there are within the longest lag that is usual.
const KEPT: usize = 16;

/// The levels of all cores, as they were lately.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Past {
    /// From the end of the meter's averaging to its reading.
    lag: Duration,
    /// What the meter averages over.
    refresh: Duration,
    /// Levels, and since when they were so.
    writes: VecDeque<(Instant, Vec<u16>)>,
}

impl Past {
    pub(crate) fn new(lag: Duration, refresh: Duration) -> Self {
        Self { lag, refresh, writes: VecDeque::with_capacity(KEPT) }
    }

    /// From now on the cores are at these levels.
    pub(crate) fn note(&mut self, now: Instant, levels: &[u16]) {
        let oldest = now.saturating_sub(self.lag + self.refresh.saturating_mul(3));
        // The last one before is kept: it is what was so at that time.
        while self.writes.len() >= KEPT || self.writes.get(1).is_some_and(|(since, _)| *since <= oldest) {
            self.writes.pop_front();
        }
        self.writes.push_back((now, levels.to_vec()));
    }

    /// The mean, over the time that a sample taken at `taken_at` shows, of what the levels come to.
    pub(crate) fn shown(&self, taken_at: Instant, watts: impl Fn(&[u16]) -> f64) -> Option<f64> {
        let to = taken_at.saturating_sub(self.lag);
        let from = to.saturating_sub(self.refresh);
        let (mut sum, mut span) = (0.0, 0.0);

        for (n, (since, levels)) in self.writes.iter().enumerate() {
            let until = self.writes.get(n + 1).map_or(to, |(next, _)| (*next).min(to));

            // What was before the first write is not known; it counts as the first.
            let since = if n == 0 { from } else { (*since).max(from) };
            let part = until.since(since).as_secs_f64();

            if part > 0.0 {
                sum += part * watts(levels);
                span += part;
            }
        }

        match self.writes.front() {
            Some((_, first)) if span <= 0.0 => Some(watts(first)),
            Some(_) => Some(sum / span),
            None => None,
        }
    }

    /// The highest level that a core lately had.
    pub(crate) fn highest(&self, core: usize) -> Option<u16> {
        self.writes.iter().filter_map(|(_, levels)| levels.get(core).copied()).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_shows_the_mean_of_its_refresh_a_lag_ago() {
        let ms = Instant::from_millis;
        let mut past = Past::new(Duration::from_millis(200), Duration::from_millis(200));
        let level = |levels: &[u16]| f64::from(levels[0]);
        assert_eq!(past.shown(ms(1000), level), None);
        past.note(ms(0), &[8]);
        past.note(ms(1000), &[4]);
        past.note(ms(1300), &[0]);
        for (taken, shown) in [(1200, 8.0), (1300, 6.0), (1400, 4.0), (1600, 2.0), (1700, 0.0)] {
            let got = past.shown(ms(taken), level).unwrap();
            assert!((got - shown).abs() < 1e-9, "{taken}: {got}");
        }
        assert_eq!(past.highest(0), Some(8));
        past.note(ms(9000), &[1]);
        assert_eq!((past.highest(0), past.shown(ms(9000), level)), (Some(1), Some(0.0)));
    }
}
