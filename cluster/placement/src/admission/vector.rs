//! Logarithm and exponential without a branch, so that a loop over horizons becomes vector instructions.
//!
//! The coefficients are those of FreeBSD's `e_log.c` and `e_exp.c`. Both are within two units in the last place of the exact value, and the same on every machine.

/// ln(2) in two parts, of which the first times a small whole number is exact.
const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;

/// The natural logarithm of a normal number above 0.
#[inline(always)]
pub fn ln(x: f64) -> f64 {
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
pub fn exp(x: f64) -> f64 {
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let x = x.clamp(-700.0, 700.0);
    let shifted = x * core::f64::consts::LOG2_E + ROUND;
    let k = shifted - ROUND;
    let (high, low) = (x - k * LN_2_HIGH, k * LN_2_LOW);
    let r = high - low;

    let z = r * r;
    let c = -1.653_390_220_546_525_2e-6 + z * 4.138_136_797_057_238_5e-8;
    let c = 6.613_756_321_437_934e-5 + z * c;
    let c = -2.777_777_777_701_559_3e-3 + z * c;
    let c = r - z * (1.666_666_666_666_660_2e-1 + z * c);
    let p = 1.0 + (r * c / (2.0 - c) - low + high);

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
