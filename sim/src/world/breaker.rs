//! The breaker over the chassis, as the true draw drives it: the judge's trip fraction.

use ballast_types::{Instant, TripFraction};

use crate::plant::{WINDOW_S, WindowMean};

/// The breaker over the chassis, as the true draw drives it.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    fraction: TripFraction,
    /// When the fraction last left 0.
    rises_since: Instant,
    window: WindowMean,
    /// Of the limits in a window the lowest counts.
    limit_w: f64,
    mean_w: f64,
}

impl Breaker {
    /// Takes one step of the plant; true when a window ends with it.
    pub(crate) fn step(&mut self, now: Instant, power_w: f64, limit_w: f64) -> bool {
        self.limit_w = if self.window.is_new() { limit_w } else { self.limit_w.min(limit_w) };
        let Some(mean_w) = self.window.step(power_w) else { return false };

        if self.fraction.now() == 0.0 {
            self.rises_since = now;
        }
        self.mean_w = mean_w;
        let share = if self.limit_w > 0.0 { mean_w / self.limit_w } else { f64::INFINITY };
        self.fraction.take(share, WINDOW_S);
        true
    }

    /// How far it has gone towards its trip.
    pub(crate) fn fraction(&self) -> &TripFraction {
        &self.fraction
    }

    /// Since when it has been on the way to its trip.
    pub(crate) fn rises_since(&self) -> Instant {
        self.rises_since
    }

    /// What the last window was judged by, in watts.
    pub(crate) fn limit_w(&self) -> f64 {
        self.limit_w
    }

    /// The mean draw of the last window, in watts.
    pub(crate) fn mean_w(&self) -> f64 {
        self.mean_w
    }
}
