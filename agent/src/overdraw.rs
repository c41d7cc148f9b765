//! Whether a server that has nothing left to lower draws more than its cap.
//!
//! Where the chassis steers, its order says when the server limits itself. Where the server keeps under its cap by
//! itself, a draw that has just jumped may fit the next message: then its own limit waits for 1.5 s.

use ballast_types::{Instant, Watts};
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
            if !self.tuning.clearly_over(draw, cap) {
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

    /// Whether that has gone on for too long.
    pub(crate) fn lasts(&self, now: Instant, cap: Watts) -> bool {
        let (Some(first), Some(mean)) = (self.first, self.samples.mean()) else { return false };
        // What may be noise has to show for twice as long.
        let patience = if self.tuning.clearly_over(mean, cap) { 1 } else { 2 } * self.tuning.patience;
        now.since(first) >= patience && mean > cap
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
    fn tuning() -> Tuning {
        let id = |text| ballast_types::ServerId::new(text).unwrap();
        let boot = ballast_types::BootId::new("b").unwrap();
        let chassis = ballast_types::ChassisId::new("c").unwrap();
        Tuning::of(&crate::Params::defaults(id("s"), boot, chassis, vec![]))
    }

    #[test]
    fn flicker_around_the_cap_never_lasts() {
        // Half of the samples are clearly above.
        let mut it = Overdraw::new(tuning());
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
