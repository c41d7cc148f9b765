//! The Gamma function, where its argument may be negative.

/// Above this Stirling's series is exact to the last places.
const LARGE: f64 = 16.0;

/// Γ(x + s) / Γ(x) for x above 0, with its sign: x + s may be negative, where `lgamma` alone loses the sign.
///
/// Both arguments are moved up by the recurrence Γ(z + 1) = z Γ(z), whose factors carry the sign, and Stirling's series
/// does the rest. At a pole of Γ(x + s) (0, -1, …) it is infinite or not a number.
pub(super) fn ratio(x: f64, s: f64) -> f64 {
    let (mut x, mut factor) = (x, 1.0);
    while x < LARGE || x + s < LARGE {
        factor *= x / (x + s);
        x += 1.0;
    }
    let y = x + s;

    // The difference of two logarithms of Γ, without the large terms that cancel.
    let logarithm = s * libm::log(x) + (y - 0.5) * libm::log1p(s / x) - s + stirling(y) - stirling(x);
    factor * libm::exp(logarithm)
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
