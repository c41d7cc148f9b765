//! What a cell of a telemetry file may hold: nothing, a number, or a time.
//!
//! * **Missing** is an empty cell, [`MISSING`] in upper or lower case, and a null. Missing is never zero.
//! * **A number** is finite. Any other text is an error, and so is an infinite number.
//! * **A time** is RFC 3339 with its offset, or a number since 1970. The number's size says its unit
//!   ([`TimeUnit::of`]), unless the caller knows the unit. One file has one kind of time.
//! * **Implausible** are numbers that no server can show (`Unit::judge`): they are missing, and counted.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;

use super::Unit;

/// Texts that stand for a missing value, in lower case.
pub const MISSING: [&str; 8] = ["na", "n/a", "ns", "null", "none", "nan", "no reading", "-"];
/// No server draws more: above stand sentinels and other units.
pub const WATTS_MAX: f64 = 1e6;
/// No time is further from 1970: three thousand years.
const FAR_MS: u64 = 100_000_000_000_000;

/// What a time column must hold.
pub const TIME: &str = "a number (see --time-unit), or RFC 3339 such as 2026-04-01T08:00:00Z,";
const OFFSET: &str = "a time with its offset, such as 2026-04-01T08:00:00Z or …+02:00,";
const NEAR: &str = "a time before the year 5000 (see --time-unit)";

/// One cell, as its file holds it.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell<'a> {
    Null,
    Integer(i64),
    Number(f64),
    /// A time that knows its unit, in milliseconds since 1970.
    Instant(i64),
    /// Text, without blanks around it.
    Text(Cow<'a, str>),
}

impl Cell<'_> {
    /// Whether there is nothing in it.
    pub fn is_missing(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Number(number) => number.is_nan(),
            Self::Text(text) => text.is_empty() || MISSING.iter().any(|word| text.eq_ignore_ascii_case(word)),
            Self::Integer(_) | Self::Instant(_) => false,
        }
    }

    /// The number; NaN where it is missing, `None` where it is none.
    pub fn number(&self) -> Option<f64> {
        if self.is_missing() {
            return Some(f64::NAN);
        }
        let number = match self {
            Self::Integer(number) => *number as f64,
            Self::Number(number) => *number,
            Self::Text(text) => text.parse().ok()?,
            Self::Null | Self::Instant(_) => return None,
        };
        number.is_finite().then_some(number)
    }
}

impl fmt::Display for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => Ok(()),
            Self::Integer(number) => number.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Instant(ms) => match Timestamp::from_millisecond(*ms) {
                Ok(instant) => instant.fmt(f),
                Err(_) => ms.fmt(f),
            },
            Self::Text(text) => text.fmt(f),
        }
    }
}

/// What a number of a time column counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    Seconds,
    Milliseconds,
    Microseconds,
    Nanoseconds,
}

impl TimeUnit {
    /// How many of them are a second.
    pub const fn per_s(self) -> i64 {
        match self {
            Self::Seconds => 1,
            Self::Milliseconds => 1_000,
            Self::Microseconds => 1_000_000,
            Self::Nanoseconds => 1_000_000_000,
        }
    }

    /// By its size: below 1e11 seconds (until the year 5138), then, each a thousand times as far,
    /// milliseconds, microseconds and nanoseconds (from 1973 on).
    pub const fn of(number: f64) -> Self {
        match number.abs() {
            ..1e11 => Self::Seconds,
            ..1e14 => Self::Milliseconds,
            ..1e17 => Self::Microseconds,
            _ => Self::Nanoseconds,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Seconds => "seconds",
            Self::Milliseconds => "milliseconds",
            Self::Microseconds => "microseconds",
            Self::Nanoseconds => "nanoseconds",
        }
    }
}

/// How a file writes its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Number(TimeUnit),
    Date,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Number(unit) => unit.name(),
            Self::Date => "dates",
        }
    }
}

/// Reads the times of one file, which are all of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    unit: Option<TimeUnit>,
    kind: Option<Kind>,
}

impl Times {
    /// Numbers count `unit`; `None`: their size says what.
    pub const fn new(unit: Option<TimeUnit>) -> Self {
        Self { unit, kind: None }
    }

    /// A time in milliseconds since 1970. `date` reads what is no number.
    /// The error says what is needed instead.
    pub fn read(
        &mut self,
        cell: &Cell<'_>,
        date: impl Fn(&str) -> Option<i64>,
    ) -> Result<i64, Cow<'static, str>> {
        let whole = match cell {
            Cell::Integer(number) => Some(*number),
            Cell::Text(text) => text.parse().ok(),
            _ => None,
        };

        if let Some(whole) = whole {
            return self.whole(whole);
        }
        if let Some(number) = cell.number().filter(|number| !number.is_nan()) {
            let unit = self.unit.unwrap_or(TimeUnit::of(number));
            self.keep(Kind::Number(unit))?;

            // Far beyond its range it is the nearest integer, which is too far too.
            return near(libm::round(number * 1000.0 / unit.per_s() as f64) as i64);
        }

        let ms = match cell {
            Cell::Instant(ms) => Some(*ms),
            Cell::Text(text) => date(text),
            _ => None,
        };

        let ms = ms.ok_or_else(|| if is_local(cell) { OFFSET } else { TIME })?;
        self.keep(Kind::Date)?;

        near(ms)
    }

    /// The same of a whole number. The error says what is needed instead.
    pub fn whole(&mut self, number: i64) -> Result<i64, Cow<'static, str>> {
        let unit = self.unit.unwrap_or(TimeUnit::of(number as f64));
        self.keep(Kind::Number(unit))?;
        near(match unit {
            TimeUnit::Seconds => number.saturating_mul(1_000),
            TimeUnit::Milliseconds => number,
            TimeUnit::Microseconds => number.div_euclid(1_000),
            TimeUnit::Nanoseconds => number.div_euclid(1_000_000),
        })
    }

    fn keep(&mut self, kind: Kind) -> Result<(), String> {
        let before = *self.kind.get_or_insert(kind);
        if before == kind {
            return Ok(());
        }
        Err(format!(
            "{} as in the rows above (this is one of {}; see --time-unit)",
            before.name(),
            kind.name()
        ))
    }
}

fn near(ms: i64) -> Result<i64, Cow<'static, str>> {
    if ms.unsigned_abs() <= FAR_MS { Ok(ms) } else { Err(NEAR.into()) }
}

/// The instant of a text by RFC 3339, in milliseconds since 1970.
pub fn rfc_3339(text: &str) -> Option<i64> {
    let instant: Timestamp = text.parse().ok()?;
    i64::try_from(instant.as_nanosecond().div_euclid(1_000_000)).ok()
}

fn is_local(cell: &Cell<'_>) -> bool {
    matches!(cell, Cell::Text(text) if text.parse::<jiff::civil::DateTime>().is_ok())
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Judged {
    Good(f64),
    /// A little outside of its range, at its end now.
    Clamped(f64),
    Implausible,
}

impl Unit {
    /// Watts are plausible from 0 to 1e6, percent from -20 to 200, of which those outside 0 to 100 are
    /// clamped; shares are the same divided by 100.
    pub(super) fn judge(self, value: f64) -> Judged {
        let (low, high, top) = match self {
            Self::Watts => (0.0, WATTS_MAX, WATTS_MAX),
            Self::Percent => (-20.0, 200.0, 100.0),
            Self::Share => (-0.2, 2.0, 1.0),
        };
        match value {
            _ if (0.0..=top).contains(&value) => Judged::Good(value),
            _ if (low..=high).contains(&value) => Judged::Clamped(value.clamp(0.0, top)),
            _ => Judged::Implausible,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Cell<'_> {
        Cell::Text(text.into())
    }

    #[test]
    fn what_is_missing_is_listed_and_any_other_text_is_no_number() {
        for word in ["", "NA", "N/A", "na", "ns", "null", "None", "no reading", "-", "NaN"] {
            assert!(text(word).number().is_some_and(f64::is_nan), "{word}");
        }
        for word in ["x", "12 W", "1,5", "inf", "-inf", "1e999", "--", "nil", "0x10", "5 %"] {
            assert_eq!(text(word).number(), None, "{word}");
        }
        for (word, number) in [("0", 0.0), ("-3.5", -3.5), ("+2", 2.0), ("1e3", 1000.0)] {
            assert_eq!(text(word).number(), Some(number), "{word}");
        }
        assert!(Cell::Null.number().is_some_and(f64::is_nan));
        assert_eq!(Cell::Number(f64::INFINITY).number(), None);
        assert_eq!(Cell::Integer(7).number(), Some(7.0));
    }

    #[test]
    fn times_are_read_whatever_they_count() {
        for (word, ms) in [
            ("0", 0),
            ("-5", -5000),
            ("14.2", 14_200),
            ("1700000000", 1_700_000_000_000),
            ("1700000000.5", 1_700_000_000_500),
            ("1700000000123", 1_700_000_000_123),
            ("1700000000123999", 1_700_000_000_123),
            ("1700000000123999999", 1_700_000_000_123),
            ("2023-11-14T22:13:20Z", 1_700_000_000_000),
            ("2023-11-15T00:13:20.25+02:00", 1_700_000_000_250),
            ("2023-11-14 22:13:20+00:00", 1_700_000_000_000),
        ] {
            assert_eq!(Times::default().read(&text(word), rfc_3339), Ok(ms), "{word}");
        }

        let mut micros = Times::new(Some(TimeUnit::Microseconds));
        assert_eq!(micros.read(&text("600000000"), rfc_3339), Ok(600_000));
        assert_eq!(Times::default().read(&Cell::Instant(9), rfc_3339), Ok(9));
    }

    #[test]
    fn what_is_no_time_or_of_another_kind_says_what_is_needed() {
        for (first, second, needed) in [
            ("soon", "", "a number (see --time-unit), or RFC 3339"),
            ("", "", "a number"),
            ("NaN", "", "a number"),
            ("inf", "", "a number"),
            ("2023-11-14 22:13:20", "", "a time with its offset"),
            ("1e300", "", "before the year 5000"),
            ("1700000000", "1700000000000", "seconds as in the rows above (this is one of millis"),
            ("1700000000000", "0", "milliseconds as in the rows above (this is one of seconds"),
            ("1700000000", "2023-11-14T22:13:20Z", "seconds as in the rows above (this is one of d"),
            ("2023-11-14T22:13:20Z", "1700000000", "dates as in the rows above (this is one of s"),
        ] {
            let mut times = Times::default();
            let first_read = times.read(&text(first), rfc_3339);
            let read = if second.is_empty() { first_read } else { times.read(&text(second), rfc_3339) };
            let error = read.unwrap_err();
            assert!(error.contains(needed), "{first:?} {second:?}: {error}");
        }

        let mut seconds = Times::new(Some(TimeUnit::Seconds));
        assert!(seconds.read(&text("1700000000000"), rfc_3339).unwrap_err().contains("year 5000"));
    }

    #[test]
    fn numbers_that_no_server_can_show_are_implausible() {
        for (unit, value, judged) in [
            (Unit::Watts, 0.0, Judged::Good(0.0)),
            (Unit::Watts, 1e6, Judged::Good(1e6)),
            (Unit::Watts, 1e6 + 1.0, Judged::Implausible),
            (Unit::Watts, -1.0, Judged::Implausible),
            (Unit::Percent, 103.0, Judged::Clamped(100.0)),
            (Unit::Percent, -4.0, Judged::Clamped(0.0)),
            (Unit::Percent, 400.0, Judged::Implausible),
            (Unit::Percent, -21.0, Judged::Implausible),
            (Unit::Share, 1.5, Judged::Clamped(1.0)),
            (Unit::Share, 55.0, Judged::Implausible),
        ] {
            assert_eq!(unit.judge(value), judged, "{unit:?} {value}");
        }
    }
}
