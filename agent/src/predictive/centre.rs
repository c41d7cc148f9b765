//! The mean draw over two seconds in which nothing was moved.

use serde::{Deserialize, Serialize};

/// The mean draw so far.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Centre {
    /// Windows that are averaged.
    over: u32,
    windows: u32,
    sum: f64,
}

impl Centre {
    pub(super) fn new(over: u32) -> Self {
        Self { over, windows: 0, sum: 0.0 }
    }

    pub(super) fn restart(&mut self) {
        *self = Self::new(self.over);
    }

    /// Takes the draw of a window; every two seconds, the mean.
    pub(super) fn add(&mut self, draw: f64) -> Option<f64> {
        self.windows = self.windows.saturating_add(1);
        self.sum += draw;
        if self.windows < self.over {
            return None;
        }
        let mean = self.sum / f64::from(self.windows);
        self.restart();
        Some(mean)
    }
}
