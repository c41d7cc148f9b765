//! Kubernetes' resource quantities: `250m`, `1.5`, `2Gi`, `1e3`, `128M`.
//!
//! Read exactly, digit by digit; only the end result is rounded, up, as the scheduler's own `MilliValue` and
//! `Value` do (`k8s.io/apimachinery/pkg/api/resource`).

use std::fmt;

/// No quantity that anybody writes is longer.
const LENGTH_MAX: usize = 256;
/// What is larger counts as this, as in Kubernetes: 2⁶³ − 1.
const MOST: u64 = i64::MAX as u64;
/// So many digits before the point are more than [`MOST`].
const DIGITS_MOST: i64 = 19;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoQuantity(String);

impl fmt::Display for NoQuantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no quantity: a number from 0 and a suffix such as m, k, Mi or e3", self.0)
    }
}

/// Thousandths, rounded up: of CPUs, thousandths of a core.
pub fn milli(text: &str) -> Result<u64, NoQuantity> {
    scaled(text, 3)
}

/// Whole units, rounded up: of memory, bytes.
pub fn whole(text: &str) -> Result<u64, NoQuantity> {
    scaled(text, 0)
}

/// The quantity × 10^`scale`, rounded up, at most [`MOST`].
fn scaled(text: &str, scale: i64) -> Result<u64, NoQuantity> {
    let read = || {
        let (digits, point, suffix) = number(text)?;
        let (ten, kibis) = factor(suffix)?;
        Some(rounded_up(digits, point + ten + scale, kibis))
    };
    read().ok_or_else(|| NoQuantity(text.chars().take(40).collect()))
}

/// The number's digits, how many of them stand before the point, and what follows it.
fn number(text: &str) -> Option<(Vec<u8>, i64, &str)> {
    let text = Some(text).filter(|text| text.len() <= LENGTH_MAX)?;
    let negative = text.starts_with('-');
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (before, after) = number.split_once('.').unwrap_or((number, ""));
    let digits: Vec<u8> = before.bytes().chain(after.bytes()).map(|c| c.wrapping_sub(b'0')).collect();
    let zero = digits.iter().all(|digit| *digit == 0);
    let good = !digits.is_empty() && digits.iter().all(|digit| *digit < 10) && (!negative || zero);
    good.then_some((digits, before.len() as i64, suffix))
}

/// A suffix as a power of ten, and one of 1024.
fn factor(suffix: &str) -> Option<(i64, u32)> {
    Some(match suffix {
        "n" => (-9, 0),
        "u" => (-6, 0),
        "m" => (-3, 0),
        "" => (0, 0),
        "k" => (3, 0),
        "M" => (6, 0),
        "G" => (9, 0),
        "T" => (12, 0),
        "P" => (15, 0),
        "E" => (18, 0),
        "Ki" => (0, 1),
        "Mi" => (0, 2),
        "Gi" => (0, 3),
        "Ti" => (0, 4),
        "Pi" => (0, 5),
        "Ei" => (0, 6),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            (i64::from(exponent.parse::<i32>().ok()?), 0)
        }
    })
}

/// The digits, with the point after so many of them, × 1024^`kibis`.
fn rounded_up(mut digits: Vec<u8>, mut point: i64, kibis: u32) -> u64 {
    for _ in 0..kibis {
        let before = digits.len();
        times_1024(&mut digits);
        point += (digits.len() - before) as i64;
    }

    let zeros = digits.iter().take_while(|digit| **digit == 0).count();
    let (digits, point) = (&digits[zeros..], point - zeros as i64);

    if digits.is_empty() {
        return 0;
    }
    if point > DIGITS_MOST {
        return MOST;
    }

    // Below a tenth there is nothing before the point, and something behind it.
    let whole = usize::try_from(point).unwrap_or(0);
    let value =
        (0..whole).fold(0_u64, |sum, place| sum * 10 + digits.get(place).copied().map_or(0, u64::from));
    let more = digits.iter().skip(whole).any(|digit| *digit > 0);

    (value + u64::from(more)).min(MOST)
}

/// Long multiplication; longer by what it carries over.
fn times_1024(digits: &mut Vec<u8>) {
    let mut carry = 0_u32;
    for digit in digits.iter_mut().rev() {
        let product = u32::from(*digit) * 1024 + carry;
        *digit = (product % 10) as u8;
        carry = product / 10;
    }
    let mut front = vec![];
    while carry > 0 {
        front.push((carry % 10) as u8);
        carry /= 10;
    }
    front.reverse();
    digits.splice(0..0, front);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantities_as_kubernetes_writes_them() {
        for (text, thousandths, units) in [
            ("0", 0, 0),
            ("250m", 250, 1),
            ("1", 1_000, 1),
            ("1.5", 1_500, 2),
            ("0.1", 100, 1),
            (".5", 500, 1),
            ("5.", 5_000, 5),
            ("+2", 2_000, 2),
            ("-0", 0, 0),
            ("100u", 1, 1),
            ("1n", 1, 1),
            ("1500n", 1, 1),
            ("2k", 2_000_000, 2_000),
            ("1e3", 1_000_000, 1_000),
            ("1E3", 1_000_000, 1_000),
            ("12e-1", 1_200, 2),
            ("1e-2000000000", 1, 1),
            ("0e2000000000", 0, 0),
            ("128M", 128_000_000_000, 128_000_000),
            ("2Gi", 2_147_483_648_000, 2_147_483_648),
            ("1.5Gi", 1_610_612_736_000, 1_610_612_736),
            ("0.5Ki", 512_000, 512),
            ("0.0001Ki", 103, 1),
            ("129e6", 129_000_000_000, 129_000_000),
            ("123Mi", 128_974_848_000, 128_974_848),
            ("7Ei", MOST, 8_070_450_532_247_928_832),
            ("8Ei", MOST, MOST),
            ("1E", MOST, 1_000_000_000_000_000_000),
            ("9223372036854775807", MOST, MOST),
            ("9223372036854775808", MOST, MOST),
            ("1e2000000000", MOST, MOST),
            ("99999999999999999999999999999999999999999999999999E", MOST, MOST),
            ("0.0000000000000000000000000000000000000000000001", 1, 1),
        ] {
            assert_eq!((milli(text), whole(text)), (Ok(thousandths), Ok(units)), "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        let long = "1".repeat(257);
        for text in [
            "",
            "-1",
            "-1m",
            "m",
            ".",
            "+",
            "--1",
            "1 Gi",
            " 1",
            "1K",
            "1mi",
            "1ki",
            "1Kii",
            "e3",
            "1e",
            "1e+",
            "1e1.5",
            "1e3k",
            "1.2.3",
            "0x10",
            "NaN",
            "inf",
            "١",
            "1_000",
            "1e99999999999",
            &long,
        ] {
            assert!(milli(text).is_err() && whole(text).is_err(), "{text:?}");
        }

        let said = milli("-1").unwrap_err().to_string();
        assert!(said.starts_with("\"-1\" is no quantity"), "{said}");
    }

    proptest! {
        /// Against sums in 128 bits, where these suffice.
        #[test]
        fn every_suffix_is_exact(
            before in 0_u64..1_000_000_000_000,
            after in 0_u32..1_000_000,
            suffix in prop::sample::select(vec![
                ("n", 1_u128, 1_000_000_000_u128), ("u", 1, 1_000_000), ("m", 1, 1_000), ("", 1, 1),
                ("k", 1_000, 1), ("M", 1_000_000, 1), ("G", 1_000_000_000, 1), ("T", 1_000_000_000_000, 1),
                ("Ki", 1 << 10, 1), ("Mi", 1 << 20, 1), ("Gi", 1 << 30, 1), ("Ti", 1 << 40, 1),
                ("Ei", 1 << 60, 1),
                ("e3", 1_000, 1), ("E-3", 1, 1_000), ("e+6", 1_000_000, 1),
                ("E", 1_000_000_000_000_000_000, 1),
            ]),
        ) {
            let (suffix, times, over) = suffix;
            let text = format!("{before}.{after:06}{suffix}");
            let millionths = u128::from(before) * 1_000_000 + u128::from(after);
            let rounded = |scale: u128| {
                let over = over * 1_000_000;

                // Where the product is beyond 128 bits, so is the result beyond the most.
                let rounded = |n: u128| n.div_ceil(over).min(u128::from(MOST)) as u64;
                millionths.checked_mul(times * scale).map_or(MOST, rounded)
            };

            prop_assert_eq!(milli(&text), Ok(rounded(1_000)));
            prop_assert_eq!(whole(&text), Ok(rounded(1)));
        }

        /// Whatever comes in, nothing panics; and zeros that say nothing change nothing.
        #[test]
        fn any_text_is_read_or_refused(text in "[-+]?[0-9.]{0,30}[a-zA-Z]{0,3}[-+0-9]{0,12}|\\PC{0,40}") {
            let first = whole(&text);
            if !text.starts_with(['+', '-']) && first.is_ok() {
                prop_assert_eq!(whole(&format!("000{text}")), first);
            }
        }
    }
}
