//! A straight line through noisy points that drift.

use serde::{Deserialize, Serialize};

/// Lines are not believed to be steeper or flatter than this: beyond it something else is measured.
const SLOPES: (f64, f64) = (0.5, 2.0);

/// An exponentially weighted regression of `y` on `x`, with a slope that is drawn towards 1.
///
/// The level follows within `level_over` points and the slope within `slope_over`: what shifts both sides
/// (fans, a warmer package) moves often, what scales them seldom. While `x` hardly moves nothing is learnt of
/// the slope: `prior` is the variance of `x`, in its unit squared, that weighs as much as the belief in 1.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Regression {
    level_over: f64,
    slope_over: f64,
    prior: f64,
    points: u32,
    level: (f64, f64),
    mean: (f64, f64),
    variance: f64,
    covariance: f64,
}

impl Regression {
    pub(crate) fn new(level_over: f64, slope_over: f64, prior: f64) -> Self {
        Self { level_over, slope_over, prior, ..Self::default() }
    }

    pub(crate) fn points(&self) -> u32 {
        self.points
    }

    pub(crate) fn add(&mut self, x: f64, y: f64) {
        self.points = self.points.saturating_add(1);
        let n = f64::from(self.points);
        let (level, slope) = (1.0 / n.min(self.level_over), 1.0 / n.min(self.slope_over));
        self.level.0 += level * (x - self.level.0);
        self.level.1 += level * (y - self.level.1);
        let (dx, dy) = (x - self.mean.0, y - self.mean.1);
        self.mean.0 += slope * dx;
        self.mean.1 += slope * dy;
        self.variance = (1.0 - slope) * (self.variance + slope * dx * dx);
        self.covariance = (1.0 - slope) * (self.covariance + slope * dx * dy);
    }

    pub(crate) fn slope(&self) -> f64 {
        let slope = (self.covariance + self.prior) / (self.variance + self.prior);
        slope.clamp(SLOPES.0, SLOPES.1)
    }

    pub(crate) fn at(&self, x: f64) -> f64 {
        self.level.1 + self.slope() * (x - self.level.0)
    }

    /// The most that `y` can be at `x`, by whatever slope is believed possible.
    pub(super) fn steepest(&self, x: f64) -> f64 {
        let dx = x - self.level.0;
        self.level.1 + if dx > 0.0 { SLOPES.1 } else { SLOPES.0 } * dx
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_learns_a_line_where_x_moves_and_an_offset_where_it_does_not() {
        let mut moving = Regression::new(16.0, 100.0, 9.0);
        for n in 0..400 {
            let x = 100.0 + 20.0 * f64::from(n % 7);
            moving.add(x, 60.0 + 1.08 * x);
        }
        assert!((moving.slope() - 1.08).abs() < 0.01, "{}", moving.slope());
        assert!((moving.at(230.0) - 308.4).abs() < 1.0, "{}", moving.at(230.0));

        let mut still = Regression::new(16.0, 100.0, 9.0);
        for n in 0..400 {
            still.add(100.0, 160.0 + f64::from(n % 2));
        }
        assert!((still.slope() - 1.0).abs() < 1e-9);
        assert!((still.at(110.0) - 170.5).abs() < 0.1);
    }

    #[test]
    fn the_level_follows_what_drifts() {
        let mut line = Regression::new(16.0, 100.0, 9.0);
        for n in 0..200 {
            line.add(100.0, if n < 100 { 160.0 } else { 170.0 });
        }
        assert!((line.at(100.0) - 170.0).abs() < 0.1, "{}", line.at(100.0));
    }
}
