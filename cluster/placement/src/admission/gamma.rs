//! The Gamma function, where its argument may be negative.

use super::vector::{exp, ln};

/// Above this Stirling's series is exact to the last places.
const LARGE: f64 = 16.0;

/// Γ(x + s) / Γ(x) for x above 0, with its sign: x + s may be negative, where `lgamma` alone loses the sign.
///
/// Both arguments are moved up by the recurrence Γ(z + 1) = z Γ(z), whose factors carry the sign, and Stirling's series
/// does the rest. At a pole of Γ(x + s) (0, -1, …) it is infinite or not a number.
pub(super) fn ratio(x: f64, s: f64) -> f64 {
    let (mut x, mut over, mut under) = (x, 1.0, 1.0);
    while x < LARGE || x + s < LARGE {
        (over, under) = (over * x, under * (x + s));
        x += 1.0;
    }
    let y = x + s;

    // The difference of two logarithms of Γ, without the large terms that cancel.
    let logarithm = s * ln(x) + (y - 0.5) * libm::log1p(s / x) - s + stirling(y) - stirling(x);
    over / under * exp(logarithm)
}

/// What Stirling's series adds to the logarithm of Γ.
fn stirling(z: f64) -> f64 {
    let (inverse, square) = (1.0 / z, 1.0 / (z * z));
    let series = -1.0 / 1680.0 + square / 1188.0;
    let series = 1.0 / 1260.0 + square * series;
    let series = -1.0 / 360.0 + square * series;
    inverse * (1.0 / 12.0 + square * series)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sign_is_kept_where_the_argument_is_negative() {
        for (x, s) in [(0.3138, -0.6016), (0.306, -0.082), (0.3138, -0.3008), (1.3, 0.7), (0.2, -1.5)] {
            let right = libm::tgamma(x + s) / libm::tgamma(x);
            let got = ratio(x, s);
            assert!((got / right - 1.0).abs() < 1e-13, "{x} {s}: {got} {right}");
        }
        assert!(ratio(0.3138, -0.6016) < 0.0);

        // Γ(x + 1) = x Γ(x), for any size.
        for x in [1e-9, 0.5, 59.0, 1e4, 1e9] {
            assert!((ratio(x, 1.0) / x - 1.0).abs() < 1e-13, "{x}");
        }
        assert!(!ratio(0.5, -0.5).is_finite());
    }
}
