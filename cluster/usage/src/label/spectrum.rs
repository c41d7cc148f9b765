//! The baselines: autocorrelation and Fourier transform, on the same series and with the same guard against
//! shorter periods (8 hours).

use std::sync::LazyLock;

use super::detrend::Series;
use crate::week::{DAY, HALF_HOURS};

/// `(1 - r(24 h)) / (1 - r(8 h))`, with `r` the sample autocorrelation; near 0 for user-facing VMs. Of pairs
/// of values only those count that are both there.
pub fn autocorrelation_score(series: &Series) -> f64 {
    let centred = centred(series);
    let r = |lag: usize| -> f64 {
        let pairs = centred[..HALF_HOURS - lag].iter().zip(&centred[lag..]);
        pairs.map(|(a, b)| a * b).sum::<f64>() / centred.iter().map(|v| v * v).sum::<f64>()
    };
    ratio(1.0 - r(DAY), 1.0 - r(DAY / 3))
}

/// Power at a period of 8 hours over that at 24 hours; near 0 for user-facing VMs. Missing values count as
/// the mean.
pub fn fourier_score(series: &Series) -> f64 {
    let centred = centred(series);
    ratio(power(&centred, DAY / 3), power(&centred, DAY))
}

/// Squared magnitude of the Fourier transform at a period of so many half hours.
fn power(centred: &[f64; HALF_HOURS], period: usize) -> f64 {
    power_of(centred, HALF_HOURS / period)
}

/// The same at so many periods in five days.
pub(super) fn power_of(centred: &[f64; HALF_HOURS], periods: usize) -> f64 {
    let (mut re, mut im) = (0.0, 0.0);
    for (i, value) in centred.iter().enumerate() {
        let (cos, sin) = CIRCLE[i * periods % HALF_HOURS];
        re += value * cos;
        im += value * sin;
    }
    re * re + im * im
}

/// Cosine and sine of as many angles as there are half hours: a transform needs no others.
static CIRCLE: LazyLock<[(f64, f64); HALF_HOURS]> = LazyLock::new(|| {
    core::array::from_fn(|i| {
        let angle = core::f64::consts::TAU * i as f64 / HALF_HOURS as f64;
        (libm::cos(angle), libm::sin(angle))
    })
});

/// The series less its mean; 0 where a value is missing.
fn centred(series: &Series) -> [f64; HALF_HOURS] {
    let there = || series.values().iter().filter(|v| !v.is_nan());
    let mean = there().sum::<f64>() / there().count() as f64;
    series.values().map(|v| if v.is_nan() { 0.0 } else { v - mean })
}

fn ratio(above: f64, below: f64) -> f64 {
    if above == below { 1.0 } else { above / below }
}
