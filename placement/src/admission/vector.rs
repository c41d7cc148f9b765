//! Logarithm and exponential without a branch, so that a loop over horizons becomes vector instructions.
//!
//! Both are within two units in the last place of the exact value, and the same on every machine.

/// ln(2) in two parts, of which the first times a small whole number is exact.
const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;

/// The natural logarithm of a normal number above 0 (the coefficients are those of FreeBSD's `e_log.c`).
#[inline(always)]
pub(super) fn ln(x: f64) -> f64 {
    const ROOT_HALF: u64 = 0x3fe6_a09e_667f_3bcd;
    const ONE: u64 = 0x3ff0_0000_0000_0000;
    const TWO_52: u64 = 0x4330_0000_0000_0000;
    let shifted = x.to_bits().wrapping_add(ONE - ROOT_HALF);

    // The exponent becomes a number without an integer conversion, which SSE2 has not for 64 bits.
    let k = f64::from_bits((shifted >> 52) | TWO_52) - (4_503_599_627_370_496.0 + 1023.0);
    let m = f64::from_bits((shifted & 0x000f_ffff_ffff_ffff).wrapping_add(ROOT_HALF));

    let f = m - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let r = 1.479_819_860_511_658_6e-1;
    let r = 1.531_383_769_920_937_3e-1 + z * r;
    let r = 1.818_357_216_161_805e-1 + z * r;
    let r = 2.222_219_843_214_978_4e-1 + z * r;
    let r = 2.857_142_874_366_239e-1 + z * r;
    let r = 3.999_999_999_940_942e-1 + z * r;
    let r = z * (6.666_666_666_666_735e-1 + z * r);

    let half = 0.5 * f * f;
    k * LN_2_HIGH - ((half - (s * (half + r) + k * LN_2_LOW)) - f)
}

/// e to a power from -700 to 700; powers beyond are taken as these.
#[inline(always)]
pub(super) fn exp(x: f64) -> f64 {
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let x = x.clamp(-700.0, 700.0);
    let shifted = x * core::f64::consts::LOG2_E + ROUND;
    let k = shifted - ROUND;
    let r = x - k * LN_2_HIGH - k * LN_2_LOW;

    // Taylor's series: |r| is at most ln(2) / 2, so the next term is below 1e-17.
    let p = 1.0 / 6_227_020_800.0;
    let p = 1.0 / 479_001_600.0 + r * p;
    let p = 1.0 / 39_916_800.0 + r * p;
    let p = 1.0 / 3_628_800.0 + r * p;
    let p = 1.0 / 362_880.0 + r * p;
    let p = 1.0 / 40_320.0 + r * p;
    let p = 1.0 / 5_040.0 + r * p;
    let p = 1.0 / 720.0 + r * p;
    let p = 1.0 / 120.0 + r * p;
    let p = 1.0 / 24.0 + r * p;
    let p = 1.0 / 6.0 + r * p;
    let p = 0.5 + r * p;
    let p = 1.0 + r * (1.0 + r * p);

    // The low bits of `shifted` are k: they become the exponent.
    p * f64::from_bits((shifted.to_bits() << 52).wrapping_add(0x3ff0_0000_0000_0000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_agree_with_libm_to_the_last_places() {
        for step in -6000..6000 {
            let x = f64::from(step) * 0.1163;
            let (got, right) = (exp(x), libm::exp(x.clamp(-700.0, 700.0)));
            assert!((got - right).abs() <= 4e-16 * right, "exp({x}) = {got}, {right}");

            let y = libm::exp(f64::from(step) * 0.1163);
            let (got, right) = (ln(y), libm::log(y));
            assert!((got - right).abs() <= 3e-16 * right.abs().max(0.05), "ln({y}) = {got}, {right}");
        }
        assert_eq!((ln(1.0), exp(0.0)), (0.0, 1.0));
    }
}
