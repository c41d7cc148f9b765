//! What is measured while a run goes on: true power, against every limit that it is judged by.

use crate::plant::Plant;

/// Steps of the plant over which power is averaged before it is judged: 100 ms. A supply's capacitors
/// carry swings of tens of milliseconds, and breakers look at seconds.
const WINDOW: u32 = 10;
/// The same in seconds.
pub(super) const WINDOW_S: f64 = 0.1;

/// Time above one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Over {
    limit_w: f64,
    windows: u64,
    in_a_row: u64,
    longest: u64,
    steps: u64,
}

/// The draw of one run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Watch {
    over: Vec<Over>,
    steps: u64,
    sum_w: f64,
    window_w: f64,
    in_window: u32,
    windows: u64,
    max_w: f64,
}

impl Watch {
    pub(super) fn new(limits_w: &[f64]) -> Self {
        let over = |limit_w: &f64| Over { limit_w: *limit_w, ..Over::default() };
        Self {
            over: limits_w.iter().map(over).collect(),
            steps: 0,
            sum_w: 0.0,
            window_w: 0.0,
            in_window: 0,
            windows: 0,
            max_w: 0.0,
        }
    }

    /// Takes the plant's current step; the mean of a window when one ends with it.
    pub(super) fn step(&mut self, plant: &Plant) -> Option<f64> {
        let watts = plant.power().as_f64();
        self.steps += 1;
        self.sum_w += watts;
        self.window_w += watts;
        self.in_window += 1;
        for over in &mut self.over {
            over.steps += u64::from(watts > over.limit_w);
        }
        if self.in_window < WINDOW {
            return None;
        }
        let mean = self.window_w / f64::from(WINDOW);
        (self.in_window, self.window_w) = (0, 0.0);
        self.windows += 1;
        self.max_w = self.max_w.max(mean);
        for over in &mut self.over {
            let is_over = mean > over.limit_w;
            over.windows += u64::from(is_over);
            over.in_a_row = if is_over { over.in_a_row + 1 } else { 0 };
            over.longest = over.longest.max(over.in_a_row);
        }
        Some(mean)
    }

    /// The highest mean over 100 ms.
    pub(super) fn max_w(&self) -> f64 {
        self.max_w
    }

    pub(super) fn mean_w(&self) -> f64 {
        self.sum_w / self.steps.max(1) as f64
    }

    /// Time above limit `n`: longest stretch in seconds, share of the time, the same by single steps.
    pub(super) fn over(&self, n: usize) -> (f64, f64, f64) {
        let Some(over) = self.over.get(n) else { return (0.0, 0.0, 0.0) };
        let share = |part: u64, all: u64| part as f64 / all.max(1) as f64;
        (
            over.longest as f64 * WINDOW_S,
            share(over.windows, self.windows),
            share(over.steps, self.steps),
        )
    }
}
