//! What the rest of the server will draw: everything but the low-priority cores' own share.
//!
//! A level that follows slowly while the rest only flickers, and at once when it moves. How far the next
//! window misses it is measured too: that is what the margin has to carry.

use serde::{Deserialize, Serialize};

use crate::Tuning;

/// The miss is that of the last windows (5 s at 50 ms).
const MISS_OVER: f64 = 100.0;
/// No miss counts for more than this many of the usual ones: one leap must not widen the margin for long.
const OUTLIER: f64 = 3.0;
/// The least miss that is believed, in watts.
const MIN_W: f64 = 0.3;

/// The forecast of the rest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Forecast {
    tuning: Tuning,
    windows: u32,
    level: f64,
    /// Mean square of the misses, in W².
    miss: f64,
    /// What the last window would miss the present level by.
    last: f64,
}

impl Forecast {
    pub(super) fn new(tuning: Tuning) -> Self {
        Self { tuning, windows: 0, level: 0.0, miss: 0.0, last: 0.0 }
    }

    /// Takes the rest of one window, in watts.
    pub(super) fn add(&mut self, rest: f64) {
        self.windows = self.windows.saturating_add(1);
        if self.windows == 1 {
            self.level = rest;
            self.miss = 4.0;
            return;
        }

        let (missed, usual) = (rest - self.level, self.miss_w());
        let counted = missed.clamp(-OUTLIER * usual, OUTLIER * usual);
        let weight = 1.0 / f64::from(self.windows).min(MISS_OVER);
        self.miss += weight * (counted * counted - self.miss);
        let both = 0.5 * (missed + self.last);
        let Tuning { follow, moved, leapt, .. } = self.tuning;
        let step = if missed > leapt * usual {
            missed
        } else if both.abs() > moved * usual {
            both
        } else {
            follow * missed
        };

        self.level += step;
        self.last = if step == follow * missed { missed - step } else { 0.0 };
    }

    /// What is expected of the next window, in watts.
    pub(super) fn level_w(&self) -> f64 {
        self.level
    }

    /// Root mean square of how far windows miss it, in watts.
    pub(super) fn miss_w(&self) -> f64 {
        self.miss.sqrt().max(MIN_W)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_types::{BootId, ChassisId, ServerId};

    fn forecast() -> Forecast {
        let (server, boot) = (ServerId::new("s").unwrap(), BootId::new("b").unwrap());
        let params = crate::Params::defaults(server, boot, ChassisId::new("c").unwrap(), vec![]);
        Forecast::new(Tuning::of(&params))
    }

    /// A fixed sequence that looks like noise of one standard deviation.
    fn noise(n: u32) -> f64 {
        let x = f64::from(n.wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 24);
        (x - 0.5) * 12.0f64.sqrt()
    }

    #[test]
    fn flicker_is_smoothed_and_measured() {
        let mut f = forecast();
        let mut far = 0.0f64;
        for n in 0..1000 {
            f.add(150.0 + 2.0 * noise(n));
            if n > 100 {
                far = far.max((f.level_w() - 150.0).abs());
            }
        }
        assert!(far < 4.0, "{far}");
        assert!((f.miss_w() - 2.1).abs() < 0.4, "{}", f.miss_w());
    }

    #[test]
    fn a_leap_up_is_followed_at_once_and_a_fall_in_the_second_window() {
        let mut f = forecast();
        (0..500).for_each(|n| f.add(150.0 + noise(n)));
        f.add(165.0);
        assert!((f.level_w() - 165.0).abs() < 1e-9);
        f.add(162.5);
        assert!(f.level_w() > 164.4, "one low window may be flicker: {}", f.level_w());
        f.add(162.5);
        assert!(f.level_w() < 162.7, "{}", f.level_w());
        assert!(f.miss_w() < 1.7, "leaps do not widen the margin for long: {}", f.miss_w());
    }
}
