//! A server's draw by load and frequency, fitted to measurements.
//!
//! The model is [`PowerModel`]: `P = idle - slope·(1 - f) + dynamic·u·f^a`. For a given `a` it is linear in
//! the other three, so least squares find these, and a search finds `a`. The least squares are unweighted:
//! a meter's error is about the same share of every draw, and of two or three settings each is as good.
//!
//! Source of the form: Kumbhare et al., arXiv 2010.15388, Section IV-A gives both ends; the power law between
//! them is ours, and so is the straight line that is reported beside it.

use ballast_types::PowerModel;
use serde::{Deserialize, Serialize};

/// Exponents that are searched. Below, frequency changes next to nothing; above, everything.
const EXPONENTS: (f64, f64) = (0.1, 6.0);
/// Between two exponents of the first, coarse search.
const COARSE: f64 = 0.1;
/// Of what was measured, so much is never told from noise: a server's fans and a meter's drift.
const MIN_ERROR: f64 = 0.01;
/// How many errors two draws may lie the wrong way round.
const SIGMAS: f64 = 3.0;
/// Settings closer than this are one.
const SAME: f64 = 0.02;
/// The lowest and the highest frequency are at least this far apart.
const APART: f64 = 0.1;

/// One measurement: the server held at one setting.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Share of its cores' time that they were busy, 0 to 1.
    pub utilisation: f64,
    /// Their frequency as a share of the highest, above 0 to 1.
    pub frequency: f64,
    /// The mean draw, in watts.
    pub watts: f64,
    /// The standard error of that mean, in watts, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_w: Option<f64>,
}

/// Measurements that no curves can be fitted to. Points count from 1.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CurvesError {
    #[error("point {point}: {key} = {value}: {allowed}")]
    Value { point: usize, key: &'static str, value: f64, allowed: &'static str },
    /// Too few settings to tell four figures from.
    #[error(
        "{points} points do not determine the curves: needed are two frequencies or more, from at most 0.9 \
         up to 1, and at each of two of them two utilisations or more"
    )]
    TooFew { points: usize },
    /// The draw falls where it must rise, by more than noise.
    #[error(
        "points {lower} and {higher}: the draw falls from {from_w:.1} W to {to_w:.1} W as {key} rises: \
         more than noise, so one of them is wrong"
    )]
    Falls { lower: usize, higher: usize, key: &'static str, from_w: f64, to_w: f64 },
    /// No exponent fits.
    #[error("the draw at load does not depend on frequency as a power of 0.1 to 6")]
    Exponent,
    /// The curves that fit best are no server's.
    #[error("the curves that fit best are no server's: {0}")]
    Model(&'static str),
}

/// How far curves lie from the measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Residuals {
    pub rms_w: f64,
    pub max_w: f64,
    /// The largest as a percentage of what was measured there.
    pub max_percent: f64,
}

impl Residuals {
    fn of(points: &[Point], model: impl Fn(&Point) -> f64) -> Self {
        let mut all = Self::default();
        let mut squares = 0.0;
        for point in points {
            let off = (model(point) - point.watts).abs();
            squares += off * off;
            all.max_w = all.max_w.max(off);
            all.max_percent = all.max_percent.max(100.0 * off / point.watts);
        }
        all.rms_w = libm::sqrt(squares / points.len().max(1) as f64);
        all
    }
}

/// The alternative: dynamic power at full load as a straight line over frequency.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Linear {
    /// Watts that a whole frequency share adds: 280 for the paper's server.
    pub per_frequency_w: f64,
    /// Watts at frequency 0: -82 for the paper's server.
    pub offset_w: f64,
    /// How far it lies from the measurements.
    pub residuals: Residuals,
}

/// Curves, and how far to believe them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    pub model: PowerModel,
    /// How far they lie from the measurements; nothing with four points, which determine them exactly.
    pub residuals: Residuals,
    /// The straight line beside the power law.
    pub linear: Linear,
}

impl Fit {
    /// The curves that lie nearest to `points`, by least squares. This fails when a number is impossible,
    /// there are too few settings, or what was measured is no server's.
    pub fn of(points: &[Point]) -> Result<Self, CurvesError> {
        for (n, point) in points.iter().enumerate() {
            check(n + 1, point)?;
        }
        enough(points)?;
        rises(points)?;
        let a = exponent(points)?;
        let (idle, slope, dynamic) = at_exponent(points, a).ok_or(few(points))?;
        let half_idle_w = idle - slope / 2.0;
        let model = PowerModel {
            idle_w: idle,
            full_w: idle + dynamic,
            half_idle_w,
            half_full_w: half_idle_w + dynamic * libm::pow(0.5, a),
        };

        model.check().map_err(CurvesError::Model)?;
        let draw = |at: &Point| {
            model.static_w(at.frequency) + model.dynamic_w() * at.utilisation * model.scale(at.frequency)
        };

        let residuals = Residuals::of(points, draw);

        Ok(Self { model, residuals, linear: linear(points).ok_or(few(points))? })
    }
}

fn few(points: &[Point]) -> CurvesError {
    CurvesError::TooFew { points: points.len() }
}

fn check(point: usize, at: &Point) -> Result<(), CurvesError> {
    let Point { utilisation, frequency, watts, error_w } = *at;
    let error = error_w.unwrap_or(0.0);
    for (key, value, good, allowed) in [
        ("utilisation", utilisation, (0.0..=1.0).contains(&utilisation), "0 to 1"),
        ("frequency", frequency, frequency > 0.0 && frequency <= 1.0, "above 0 to 1"),
        ("watts", watts, watts > 0.0 && watts <= 1e6, "above 0 to 1e6"),
        ("error_w", error, (0.0..=1e6).contains(&error), "0 to 1e6"),
    ] {
        if !good {
            return Err(CurvesError::Value { point, key, value, allowed });
        }
    }
    Ok(())
}

/// Whether the settings tell all four figures.
fn enough(points: &[Point]) -> Result<(), CurvesError> {
    let range = |of: &dyn Fn(&Point) -> f64, at: &dyn Fn(&Point) -> bool| {
        let values = points.iter().filter(|point| at(point)).map(of);
        values
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
    };

    let loaded = |f: f64| {
        let (low, high) = range(&|point| point.utilisation, &|point| near(point.frequency, f));
        high - low >= APART
    };

    let frequencies = points.iter().map(|point| point.frequency).filter(|&f| loaded(f));
    let (low, high) =
        frequencies.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), f| (low.min(f), high.max(f)));
    if low <= 1.0 - APART && near(high, 1.0) && high - low >= APART { Ok(()) } else { Err(few(points)) }
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= SAME
}

/// Whether more load, and more frequency, never draw less; but for noise.
fn rises(points: &[Point]) -> Result<(), CurvesError> {
    let error = |point: &Point| point.error_w.unwrap_or(0.0).max(MIN_ERROR * point.watts);
    for (n, a) in points.iter().enumerate() {
        for (m, b) in points.iter().enumerate() {
            let key = if near(a.frequency, b.frequency) && b.utilisation > a.utilisation + SAME {
                "utilisation"
            } else if near(a.utilisation, b.utilisation) && b.frequency > a.frequency + SAME {
                "frequency"
            } else {
                continue;
            };
            if a.watts - b.watts > SIGMAS * libm::hypot(error(a), error(b)) {
                let (lower, higher, from_w, to_w) = (n + 1, m + 1, a.watts, b.watts);
                return Err(CurvesError::Falls { lower, higher, key, from_w, to_w });
            }
        }
    }
    Ok(())
}

/// The exponent that leaves the least squares: on a coarse grid, then by golden section.
fn exponent(points: &[Point]) -> Result<f64, CurvesError> {
    let squares = |a: f64| {
        at_exponent(points, a).map_or(f64::INFINITY, |(idle, slope, dynamic)| {
            let off = |p: &Point| {
                let draw =
                    idle - slope * (1.0 - p.frequency) + dynamic * p.utilisation * libm::pow(p.frequency, a);
                (draw - p.watts) * (draw - p.watts)
            };

            points.iter().map(off).sum()
        })
    };

    let steps = ((EXPONENTS.1 - EXPONENTS.0) / COARSE) as u32;
    let at = |n: u32| EXPONENTS.0 + COARSE * f64::from(n);
    let best = (0..=steps).min_by(|&n, &m| squares(at(n)).total_cmp(&squares(at(m))));
    let best = best.filter(|&n| n > 0 && n < steps).ok_or(CurvesError::Exponent)?;
    let (mut low, mut high) = (at(best - 1), at(best + 1));
    let golden = (libm::sqrt(5.0) - 1.0) / 2.0;
    let (mut left, mut right) = (high - golden * (high - low), low + golden * (high - low));
    let (mut of_left, mut of_right) = (squares(left), squares(right));

    while high - low > 1e-12 && left < right {
        if of_left <= of_right {
            (high, right, of_right) = (right, left, of_left);
            left = high - golden * (high - low);
            of_left = squares(left);
        } else {
            (low, left, of_left) = (left, right, of_right);
            right = low + golden * (high - low);
            of_right = squares(right);
        }
    }

    Ok((low + high) / 2.0)
}

/// Idle power, its slope over frequency, and dynamic power at one exponent. The slope is never negative:
/// where noise would have it so, it is none.
fn at_exponent(points: &[Point], a: f64) -> Option<(f64, f64, f64)> {
    let load = |p: &Point| p.utilisation * libm::pow(p.frequency, a);
    let [idle, slope, dynamic] = least_squares(points, |p| [1.0, p.frequency - 1.0, load(p)])?;
    if slope >= 0.0 {
        return Some((idle, slope, dynamic));
    }
    let [idle, dynamic] = least_squares(points, |p| [1.0, load(p)])?;
    Some((idle, 0.0, dynamic))
}

fn linear(points: &[Point]) -> Option<Linear> {
    let flat = |p: &Point| [1.0, p.utilisation, p.utilisation * p.frequency];
    let [idle, slope, offset_w, per_frequency_w] = least_squares(points, |p| {
        let [one, u, uf] = flat(p);
        [one, p.frequency - 1.0, u, uf]
    })?;
    let draw = |p: &Point| {
        idle + slope * (p.frequency - 1.0) + p.utilisation * (offset_w + per_frequency_w * p.frequency)
    };
    Some(Linear { per_frequency_w, offset_w, residuals: Residuals::of(points, draw) })
}

/// Solves the normal equations; `None` where they do not determine the unknowns.
fn least_squares<const N: usize>(points: &[Point], row: impl Fn(&Point) -> [f64; N]) -> Option<[f64; N]> {
    let (mut matrix, mut right) = ([[0.0; N]; N], [0.0; N]);
    for point in points {
        let row = row(point);
        for i in 0..N {
            right[i] += row[i] * point.watts;
            for j in 0..N {
                matrix[i][j] += row[i] * row[j];
            }
        }
    }

    for i in 0..N {
        // The matrix is positive definite where the unknowns are determined: no pivoting is needed.
        if matrix[i][i] < 1e-12 {
            return None;
        }
        let top = matrix[i];

        for j in i + 1..N {
            let times = matrix[j][i] / top[i];
            for (cell, above) in matrix[j].iter_mut().zip(top).skip(i) {
                *cell -= times * above;
            }
            right[j] -= times * right[i];
        }
    }

    let mut solution = [0.0; N];

    for i in (0..N).rev() {
        let known: f64 = (i + 1..N).map(|k| matrix[i][k] * solution[k]).sum();
        solution[i] = (right[i] - known) / matrix[i][i];
    }

    Some(solution)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Draws of `model` at five loads and three frequencies, off by what `noise` says.
    fn grid(model: &PowerModel, noise: impl Fn(usize) -> f64) -> Vec<Point> {
        let mut points = vec![];
        for frequency in [0.5, 0.75, 1.0] {
            for utilisation in [0.0, 0.25, 0.5, 0.75, 1.0] {
                let watts = draw(model, utilisation, frequency) + noise(points.len());
                points.push(Point { utilisation, frequency, watts, error_w: None });
            }
        }
        points
    }

    fn draw(model: &PowerModel, u: f64, f: f64) -> f64 {
        model.static_w(f) + model.dynamic_w() * u * model.scale(f)
    }

    fn figures(model: &PowerModel) -> [f64; 4] {
        [model.idle_w, model.full_w, model.half_idle_w, model.half_full_w]
    }

    #[test]
    fn the_papers_four_figures_give_the_papers_curves() {
        let at = |utilisation, frequency, watts| Point { utilisation, frequency, watts, error_w: None };
        let points = [at(0.0, 1.0, 112.0), at(1.0, 1.0, 310.0), at(0.0, 0.5, 111.0), at(1.0, 0.5, 169.0)];
        let fit = Fit::of(&points).unwrap();
        for (found, told) in figures(&fit.model).into_iter().zip(figures(&PowerModel::PAPER)) {
            assert!((found - told).abs() < 1e-6, "{found} {told}");
        }
        // The linear alternative of the same four: 280 f - 82.
        assert!((fit.linear.per_frequency_w - 280.0).abs() < 1e-6, "{fit:?}");
        assert!((fit.linear.offset_w + 82.0).abs() < 1e-6);
        assert!(fit.residuals.max_w < 1e-6);
    }

    #[test]
    fn a_straight_line_does_not_fit_a_power_law() {
        let fit = Fit::of(&grid(&PowerModel::PAPER, |_| 0.0)).unwrap();
        assert!(fit.residuals.max_w < 1e-6 && fit.linear.residuals.max_w > 1.0, "{fit:?}");
    }

    #[test]
    fn noise_that_would_have_an_idle_server_draw_less_at_the_top_gives_no_slope() {
        let idle = |n: usize| if n == 0 { 1.5 } else { 0.0 };
        let fit =
            Fit::of(&grid(&PowerModel { half_idle_w: 112.0, half_full_w: 170.0, ..PowerModel::PAPER }, idle))
                .unwrap();
        assert_eq!(fit.model.idle_w, fit.model.half_idle_w);
        assert!((fit.model.idle_w - 112.0).abs() < 1.0, "{fit:?}");
    }

    #[test]
    fn what_cannot_be_fitted_is_refused_by_name() {
        let good = grid(&PowerModel::PAPER, |_| 0.0);
        let with = |n: usize, change: &dyn Fn(&mut Point)| {
            let mut points = good.clone();
            change(&mut points[n]);
            Fit::of(&points).unwrap_err().to_string()
        };

        for (said, found) in [
            ("point 3: watts = NaN: above 0 to 1e6", with(2, &|p| p.watts = f64::NAN)),
            ("point 1: watts = -1: above 0 to 1e6", with(0, &|p| p.watts = -1.0)),
            ("point 1: watts = 0: above 0", with(0, &|p| p.watts = 0.0)),
            ("point 2: utilisation = 25: 0 to 1", with(1, &|p| p.utilisation = 25.0)),
            ("point 2: frequency = 0: above 0 to 1", with(1, &|p| p.frequency = 0.0)),
            ("point 2: error_w = -1: 0 to 1e6", with(1, &|p| p.error_w = Some(-1.0))),
            (
                "points 9 and 14: the draw falls from 200.7 W to 150.0 W as frequency rises",
                with(13, &|p| p.watts = 150.0),
            ),
            (
                "points 10 and 15: the draw falls from 400.0 W to 310.0 W as frequency rises",
                with(9, &|p| p.watts = 400.0),
            ),
        ] {
            assert!(found.starts_with(said), "{found}");
        }

        let few = |points: &[Point]| Fit::of(points).unwrap_err().to_string();

        for (points, number) in [(&good[..0], 0), (&good[..10], 10), (&good[10..], 5)] {
            assert!(few(points).starts_with(&format!("{number} points do not determine")));
        }
        let busy: Vec<_> = good.iter().filter(|p| p.utilisation == 1.0).copied().collect();
        assert!(few(&busy).starts_with("3 points do not"));

        // Frequency changes nothing.
        let flat: Vec<_> =
            good.iter().map(|p| Point { watts: 100.0 + 100.0 * p.utilisation, ..*p }).collect();
        assert_eq!(Fit::of(&flat), Err(CurvesError::Exponent));
    }

    prop_compose! {
        fn servers()(idle in 20.0..500.0, dynamic in 50.0..1000.0, slope in 0.0..0.2, a in 0.5..3.5)
            -> PowerModel
        {
            let half_idle_w = idle * (1.0 - slope / 2.0);
            let half_full_w = half_idle_w + dynamic * libm::pow(0.5, a);
            PowerModel { idle_w: idle, full_w: idle + dynamic, half_idle_w, half_full_w }
        }
    }

    proptest! {
        #[test]
        fn its_own_draws_give_the_server_back(server in servers()) {
            let fit = Fit::of(&grid(&server, |_| 0.0)).unwrap();
            for (found, told) in figures(&fit.model).into_iter().zip(figures(&server)) {
                prop_assert!((found - told).abs() < 1e-6, "{:?} {:?}", fit.model, server);
            }
            prop_assert!(fit.residuals.max_w < 1e-6);
        }

        /// The fit is nearer to what was measured than the truth is, so it is at most twice the noise away
        /// from the truth.
        #[test]
        fn noise_moves_the_curves_by_no_more_than_itself(
            server in servers(), noise in prop::collection::vec(-0.005..0.005, 15),
        ) {
            let size = server.dynamic_w();
            let mut points = grid(&server, |n| size * noise[n]);
            for point in &mut points {
                point.error_w = Some(0.005 * size);
            }
            let fit = Fit::of(&points).unwrap();
            let squares: f64 = noise.iter().map(|n| n * n * size * size).sum();
            let away: f64 = points.iter().map(|p| {
                let off = draw(&fit.model, p.utilisation, p.frequency)
                    - draw(&server, p.utilisation, p.frequency);
                off * off
            }).sum();
            prop_assert!(away <= 4.0 * squares + 1e-9, "{away} {squares}");
            prop_assert!(fit.residuals.rms_w <= libm::sqrt(squares / 15.0) + 1e-9);
        }
    }
}
