//! Whether a server that has nothing left to lower draws more than its cap.
//!
//! Caps follow needs, and needs are old when they arrive. A server whose draw has just jumped is over a cap
//! that was made for its draw of before; limiting it at once would take from it what the next message gives.
//! So under a live lease its own limit waits for a message from who knows of the jump, or for 1.5 s.

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

    /// Whether a message with this target answers a report that showed the overdraw, and does not allow it. By
    /// as little as one sample's noise the target must be missed for a while.
    pub(crate) fn is_acknowledged(&self, echo: Option<Instant>, target: Watts) -> bool {
        let (Some(first), Some((newest, _)), Some(mean)) =
            (self.first, self.samples.newest(), self.samples.mean())
        else {
            return false;
        };
        let lasts = newest.since(first) >= self.tuning.patience && mean > target;
        let missed = lasts || self.tuning.clearly_over(mean, target);
        missed && echo.is_some_and(|echo| echo >= first)
    }

    /// Whether nobody has answered it for too long.
    pub(crate) fn lasts(&self, now: Instant, cap: Watts) -> bool {
        self.first.is_some_and(|first| now.since(first) >= self.tuning.patience)
            && self.samples.mean().is_some_and(|mean| self.tuning.clearly_over(mean, cap))
    }

    /// The newest draw, if it is too much.
    pub(crate) fn draw(&self) -> Option<Watts> {
        self.samples.newest().map(|(_, watts)| watts)
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
    fn overdraw(samples: &[(u64, i64)]) -> Overdraw {
        let mut it = Overdraw::new(tuning());
        for (at, watts) in samples {
            it.sample(ms(*at), w(200), w(*watts));
        }
        it
    }

    #[test]
    fn it_is_acknowledged_once_a_message_echoes_a_report_of_it_and_does_not_allow_it() {
        let it = overdraw(&[(1000, 206), (1200, 230), (1400, 230)]);
        for (echo, target, known) in [
            (None, 200, false),
            (Some(1199), 200, false),
            (Some(1200), 200, true),
            (Some(1200), 220, true),
            (Some(1200), 226, false),
        ] {
            assert_eq!(it.is_acknowledged(echo.map(ms), w(target)), known, "{echo:?} {target}");
        }
        let it = overdraw(&[(1000, 210), (1700, 204), (2400, 204), (3000, 204)]);
        assert!(it.is_acknowledged(Some(ms(1200)), w(203)) && !it.is_acknowledged(Some(ms(1200)), w(206)));
        assert!(!overdraw(&[(1000, 210), (1700, 204)]).is_acknowledged(Some(ms(1200)), w(203)), "so soon");
        assert!(!overdraw(&[(1000, 206)]).is_acknowledged(Some(ms(2000)), w(100)), "noise");
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
