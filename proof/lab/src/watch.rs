//! What is measured while a run goes on: true power, against every limit that it is judged by.

use ballast_sim::plant::{Plant, WINDOW_S, WindowMean};

/// Time above one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Over {
    limit_w: f64,
    windows: u64,
    in_a_row: u64,
    longest: u64,
    steps: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Watch {
    over: Vec<Over>,
    steps: u64,
    sum_w: f64,
    window: WindowMean,
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
            window: WindowMean::default(),
            windows: 0,
            max_w: 0.0,
        }
    }

    /// Takes the plant's current step; the mean of a window when one ends with it.
    pub(super) fn step(&mut self, plant: &Plant) -> Option<f64> {
        let watts = plant.power().as_f64();
        self.steps += 1;
        self.sum_w += watts;
        for over in &mut self.over {
            over.steps += u64::from(watts > over.limit_w);
        }
        let mean = self.window.step(watts)?;
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
        (over.longest as f64 * WINDOW_S, share(over.windows, self.windows), share(over.steps, self.steps))
    }
}
