//! When a certificate ends: the one field that the TLS library checks and does not show.
//!
//! RFC 5280, 4.1: `SEQUENCE { SEQUENCE { [0] version, INTEGER serial, SEQUENCE algorithm,
//! SEQUENCE issuer, SEQUENCE { Time notBefore, Time notAfter } …`.

const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const VERSION: u8 = 0xa0;

/// The end of validity in seconds since 1970; `None` when this is no certificate.
pub fn not_after(certificate: &[u8]) -> Option<u64> {
    let (certificate, _) = tagged(certificate, SEQUENCE)?;
    let (mut fields, _) = tagged(certificate, SEQUENCE)?;
    if fields.first() == Some(&VERSION) {
        fields = any(fields)?.2;
    }
    for _ in ["serial", "algorithm", "issuer"] {
        fields = any(fields)?.2;
    }
    let (validity, _) = tagged(fields, SEQUENCE)?;
    let (_, _, rest) = any(validity)?;
    let (tag, time, _) = any(rest)?;
    seconds(tag, std::str::from_utf8(time).ok()?)
}

/// The first DER value: its tag, its contents, and what follows.
fn any(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x83 => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (value, rest) = rest.split_at_checked(length)?;
    Some((tag, value, rest))
}

fn tagged(bytes: &[u8], expected: u8) -> Option<(&[u8], &[u8])> {
    let (tag, value, rest) = any(bytes)?;
    (tag == expected).then_some((value, rest))
}

/// `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ`, as RFC 5280 wants them.
fn seconds(tag: u8, text: &str) -> Option<u64> {
    let digits = text.strip_suffix('Z').filter(|t| t.bytes().all(|b| b.is_ascii_digit()))?;
    let (year, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) => {
            let short: u64 = digits[..2].parse().ok()?;
            (if short >= 50 { 1900 + short } else { 2000 + short }, &digits[2..])
        }
        (GENERALIZED_TIME, 14) => (digits[..4].parse().ok()?, &digits[4..]),
        _ => return None,
    };

    let two = |at: usize| rest[at..at + 2].parse::<u64>().ok();
    let (month, day) = (two(0)?, two(2)?);

    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }

    // Days since 1970-03-01 in years that begin in March, so that leap days come last.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1;
    let days = days.checked_sub(719_468)?;

    Some(days * 86_400 + two(4)? * 3600 + two(6)? * 60 + two(8)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_the_standard_writes_them() {
        for (tag, text, expected) in [
            (UTC_TIME, "700101000000Z", Some(0)),
            (UTC_TIME, "240229120000Z", Some(1_709_208_000)),
            (UTC_TIME, "491231235959Z", Some(2_524_607_999)),
            (GENERALIZED_TIME, "20500101000000Z", Some(2_524_608_000)),
            (GENERALIZED_TIME, "99991231235959Z", Some(253_402_300_799)),
            (UTC_TIME, "500101000000Z", None),
            (UTC_TIME, "241301000000Z", None),
            (UTC_TIME, "24010100000Z", None),
            (UTC_TIME, "2401010000000Z", None),
            (UTC_TIME, "240101000000", None),
            (UTC_TIME, "2401010000+1Z", None),
            (GENERALIZED_TIME, "240101000000Z", None),
            (0x04, "240101000000Z", None),
        ] {
            assert_eq!(seconds(tag, text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_end() {
        for bytes in [
            &b""[..],
            b"\x30",
            b"\x30\x80",
            b"\x30\x84\xff\xff\xff\xff",
            b"\x30\x03\x30\x01\x02",
            b"\x30\x02\x30\x00",
            b"hello",
        ] {
            assert_eq!(not_after(bytes), None, "{bytes:?}");
        }
    }
}
