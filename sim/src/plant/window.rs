//! Means over 100 ms of the draw: what it is judged by.

use super::STEP;

/// Steps of the plant in one mean. A supply's capacitors carry swings of tens of milliseconds, and breakers
/// look at seconds.
const STEPS: u32 = 10;
/// The same in seconds.
pub const WINDOW_S: f64 = 0.1;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WindowMean {
    steps: u32,
    sum_w: f64,
}

impl WindowMean {
    /// Takes the draw of one step, in watts; the mean of a window when one ends with it.
    pub fn step(&mut self, power_w: f64) -> Option<f64> {
        self.steps += 1;
        self.sum_w += power_w;
        if self.steps < STEPS {
            return None;
        }
        Some(core::mem::take(self).sum_w / f64::from(STEPS))
    }

    /// Whether the next step begins a window.
    pub fn is_new(&self) -> bool {
        self.steps == 0
    }
}

const _: () = assert!(STEP.as_millis() * STEPS as u128 == 100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tenth_step_ends_a_window_of_its_own() {
        let mut window = WindowMean::default();
        let means: Vec<_> = (1..=20).filter_map(|n| window.step(f64::from(n)).map(|w| (n, w))).collect();
        assert_eq!(means, [(10, 5.5), (20, 15.5)]);
        assert!(window.is_new());
    }
}
