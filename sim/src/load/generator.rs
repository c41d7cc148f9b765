//! A seeded load generator: lines of the shape that real CPU traces show.
//!
//! The constants follow the medians of the public Bitbrains (2013) and Azure (2017) series: a lag-1
//! autocorrelation of 0.7 to 0.9 at five minutes, a day's swing, peaks of two to seven times the mean,
//! and batch machines that are idle half of the time and near full in the rest.

use serde::{Deserialize, Serialize};

use crate::rng::{Purpose, Stream};

/// Seconds between two values, before `speedup`: the grid of the public traces.
const GRAIN_S: f64 = 300.0;
/// Values in a day.
const DAY: f64 = 86_400.0 / GRAIN_S;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// Follows the day: people are using it.
    Diurnal,
    /// A low level with bursts of heavy-tailed height that die away.
    Bursty,
    /// Full for a while, then idle for a while; both lengths log-normal.
    Batch,
}

/// A seeded, endless load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Generator {
    pub shape: Shape,
    /// Its seed: the same seed is the same line.
    pub seed: u64,
    /// Its mean over a long time, as a share of the VM's cores.
    pub mean: f64,
    /// Generated seconds that pass in one second.
    pub speedup: f64,
}

/// The generator at work: one value after the other.
#[derive(Clone, Debug)]
pub(super) struct Source {
    shape: Shape,
    mean: f64,
    grain: f64,
    rng: Stream,
    phase: f64,
    index: u64,
    last: f64,
    next: f64,
    noise: f64,
    burst: f64,
    left: f64,
    on: bool,
}

impl Source {
    pub(super) fn new(g: &Generator) -> Self {
        let mut rng = Stream::new(g.seed, Purpose::Generator, 0, 0);
        let speedup = if g.speedup > 0.0 && g.speedup.is_finite() { g.speedup } else { 1.0 };

        // Most machines of a site share its day; each is up to an hour and a half off.
        let phase = 0.12 * (rng.uniform() - 0.5);
        let on = rng.uniform() < 0.5;
        let mut source = Self {
            shape: g.shape,
            mean: g.mean.clamp(0.0, 1.0),
            grain: GRAIN_S / speedup,
            rng,
            phase,
            index: 0,
            last: 0.0,
            next: 0.0,
            noise: 0.0,
            burst: 0.0,
            left: 0.0,
            on,
        };

        source.last = source.value(0);
        source.next = source.value(1);

        source
    }

    /// The piece that holds `t`: its start, end, and values there.
    pub(super) fn piece(&mut self, t: f64) -> (f64, f64, f64, f64) {
        while (self.index + 1) as f64 * self.grain <= t {
            self.index += 1;
            self.last = self.next;
            self.next = self.value(self.index + 1);
        }
        let start = self.index as f64 * self.grain;
        (start, (self.index + 1) as f64 * self.grain, self.last, self.next)
    }

    fn value(&mut self, index: u64) -> f64 {
        // An autoregressive noise of unit variance.
        let keep: f64 = 0.88;
        self.noise = keep * self.noise + libm::sqrt(1.0 - keep * keep) * self.rng.normal();

        match self.shape {
            Shape::Diurnal => {
                let day = index as f64 / DAY + self.phase;
                let angle = 2.0 * core::f64::consts::PI * day;

                // Lowest at the start, highest in the middle of the day.
                let swing = -0.45 * libm::cos(angle) - 0.08 * libm::cos(2.0 * angle);

                self.mean * (1.0 + swing + 0.12 * self.noise)
            }
            Shape::Bursty => {
                self.burst *= 0.6;
                if self.rng.uniform() < 0.03 {
                    // Pareto with exponent 1.8, mean 2.25.
                    self.burst += libm::pow(1.0 - self.rng.uniform(), -1.0 / 1.8).min(12.0);
                }

                // The bursts add 0.03 · 2.25 / (1 - 0.6) = 0.17 of their unit, here 2.5 means.
                self.mean * (0.58 + 0.1 * self.noise + 2.5 * self.burst)
            }
            Shape::Batch => {
                self.left -= 1.0;
                while self.left <= 0.0 {
                    self.on = !self.on;
                    self.left += self.length();
                }

                let level = if self.on { 2.0 * self.mean - 0.03 } else { 0.03 };

                level * (1.0 + 0.03 * self.noise)
            }
        }
    }

    /// Log-normal, median two hours on or off.
    fn length(&mut self) -> f64 {
        24.0 * libm::exp(0.8 * self.rng.normal())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cursor, Profile};
    use super::*;

    fn days(shape: Shape, seed: u64, mean: f64, days: usize) -> Vec<f64> {
        let g = Generator { shape, seed, mean, speedup: 300.0 };
        let mut cursor = Cursor::new(Profile::Generated(g));
        (0..days * 288).map(|i| cursor.at(i as f64)).collect()
    }
    fn mean(v: &[f64]) -> f64 {
        v.iter().sum::<f64>() / v.len() as f64
    }
    fn autocorrelation(v: &[f64], lag: usize) -> f64 {
        let m = mean(v);
        let var = v.iter().map(|x| (x - m) * (x - m)).sum::<f64>() / v.len() as f64;
        let cov = v.iter().zip(&v[lag..]).map(|(a, b)| (a - m) * (b - m)).sum::<f64>();
        cov / (v.len() - lag) as f64 / var
    }

    #[test]
    fn the_shapes_are_those_of_real_traces() {
        for seed in 0..5 {
            let diurnal = days(Shape::Diurnal, seed, 0.3, 14);
            assert!((mean(&diurnal) - 0.3).abs() < 0.02, "{}", mean(&diurnal));
            assert!(autocorrelation(&diurnal, 1) > 0.85);
            assert!(autocorrelation(&diurnal, 288) > 0.5, "the day comes again");
            assert!(autocorrelation(&diurnal, 144) < -0.5, "the night is not the day");

            let bursty = days(Shape::Bursty, seed, 0.1, 28);
            assert!((mean(&bursty) - 0.1).abs() < 0.03, "{}", mean(&bursty));
            let peak = bursty.iter().copied().fold(0.0, f64::max);
            assert!(peak > 4.0 * mean(&bursty), "bursts are heavy-tailed: {peak}");

            let batch = days(Shape::Batch, seed, 0.45, 28);
            let full = batch.iter().filter(|v| **v > 0.7).count() as f64 / batch.len() as f64;
            let idle = batch.iter().filter(|v| **v < 0.1).count() as f64 / batch.len() as f64;
            assert!((0.25..0.75).contains(&full) && full + idle > 0.9, "{full} {idle}");
            assert!(autocorrelation(&batch, 1) > 0.85);
        }
    }

    #[test]
    fn the_same_seed_is_the_same_line() {
        assert_eq!(days(Shape::Bursty, 3, 0.2, 2), days(Shape::Bursty, 3, 0.2, 2));
        assert!(days(Shape::Bursty, 3, 0.2, 2) != days(Shape::Bursty, 4, 0.2, 2));
    }
}
