//! Whether a server that has nothing left to lower draws more than its cap.
//!
//! With a common height the chassis orders the server's own limit. With a cap alone the next message may allow a draw that
//! has just jumped, so the own limit waits for 1.5 s.

use ballast_types::{Instant, Watts, noise_above};
use serde::{Deserialize, Serialize};

use crate::Tuning;
use crate::recent::Recent;

/// Samples since the first one that was clearly above the cap, with everything at its floor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Overdraw {
    tuning: Tuning,
    first: Option<Instant>,
    samples: Recent,
}

impl Overdraw {
    pub(crate) fn new(tuning: Tuning) -> Self {
        Self { tuning, first: None, samples: Recent::default() }
    }

    /// Something could be lowered, or the server's own limit is on.
    pub(crate) fn reset(&mut self) {
        self.first = None;
        self.samples.clear();
    }

    /// A sample that shows the floor.
    pub(crate) fn sample(&mut self, now: Instant, cap: Watts, draw: Watts) {
        if self.first.is_none() {
            if draw <= cap + noise_above(cap) {
                return;
            }
            self.first = Some(now);
        }
        self.samples.push(now, draw);
        if self.samples.mean().is_none_or(|mean| mean <= cap) {
            self.reset();
        }
    }

    /// Whether the floor was shown not to be enough.
    pub(crate) fn is_on(&self) -> bool {
        self.first.is_some()
    }

    /// Whether the overdraw lasts too long for a jump that the next message allows.
    pub(crate) fn lasts(&self, now: Instant, cap: Watts) -> bool {
        let (Some(first), Some(mean)) = (self.first, self.samples.mean()) else { return false };
        // An excess within the meter's noise needs twice the time.
        let periods = if mean > cap + noise_above(cap) { 1 } else { 2 };
        now.since(first) >= self.tuning.patience * periods && mean > cap
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }
    fn w(watts: i64) -> Watts {
        Watts::from_whole(watts)
    }
    #[test]
    fn flicker_around_the_cap_never_lasts() {
        // Half of the samples are clearly above.
        let mut it = Overdraw::new(Tuning::default());
        for n in 0..600 {
            let now = ms(1000 + 200 * n);
            it.sample(now, w(200), w(if n % 2 == 0 { 207 } else { 193 }));
            assert!(!it.lasts(now, w(200)));
        }
        // The same, five watts higher in the mean than noise may be.
        for n in 600..620 {
            it.sample(ms(1000 + 200 * n), w(200), w(if n % 2 == 0 { 218 } else { 204 }));
        }
        assert!(it.lasts(ms(1000 + 200 * 619), w(200)));
    }
}
