//! The mean draw over two seconds in which nothing was moved.

/// Windows that are averaged: 2 s at 50 ms.
const OVER: u32 = 40;

/// The mean draw so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Centre {
    windows: u32,
    sum: f64,
}

impl Centre {
    pub(super) fn restart(&mut self) {
        *self = Self::default();
    }

    /// Takes the draw of a window; every two seconds, the mean.
    pub(super) fn add(&mut self, draw: f64) -> Option<f64> {
        self.windows = self.windows.saturating_add(1);
        self.sum += draw;
        if self.windows < OVER {
            return None;
        }
        let mean = self.sum / f64::from(self.windows);
        self.restart();
        Some(mean)
    }
}
