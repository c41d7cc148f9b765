//! What a key may hold: how a value is read, what a message says is allowed, and how a default is written.
//!
//! A range is written once: it is checked, and it makes the words that an operator reads.

use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use ballast_types::Watts;
use toml::de::DeValue;

type Read<T> = Box<dyn Fn(&DeValue<'_>) -> Option<T>>;

pub struct Allowed<T> {
    /// For messages and the reference: "whole milliseconds, 20 to 1000".
    pub(super) words: String,
    pub(super) read: Read<T>,
    /// As it stands in a file.
    pub(super) show: Box<dyn Fn(&T) -> String>,
    /// Every value as it stands in a file, where they are few.
    pub(super) choices: Vec<String>,
}

impl<T> Allowed<T> {
    pub fn new(
        words: impl Into<String>,
        read: impl Fn(&DeValue<'_>) -> Option<T> + 'static,
        show: impl Fn(&T) -> String + 'static,
    ) -> Self {
        Self { words: words.into(), read: Box::new(read), show: Box::new(show), choices: vec![] }
    }

    /// The same, with more for messages and the reference.
    #[must_use]
    pub fn with_note(self, note: &str) -> Self {
        Self { words: format!("{}; {note}", self.words), ..self }
    }

    /// A text that `parse` takes.
    pub fn text(words: &str, parse: impl Fn(&str) -> Option<T> + 'static) -> Self
    where
        T: Display,
    {
        Self::new(words, move |value| parse(value.as_str()?), |it| quoted(it))
    }
}

fn quoted(text: impl Display) -> String {
    format!("{:?}", text.to_string())
}

/// What the ids of servers, chassis and VMs are made of.
pub const ID: &str = "an id: 1 to 64 of A-Z a-z 0-9 . _ - : @, without a leading dot";

pub fn flag() -> Allowed<bool> {
    let choices = vec!["true".to_owned(), "false".to_owned()];
    Allowed { choices, ..Allowed::new("true or false", |value| value.as_bool(), bool::to_string) }
}

/// One of a few words.
pub fn choice<T: Clone + PartialEq + 'static>(
    words: impl IntoIterator<Item = (&'static str, T)>,
) -> Allowed<T> {
    let words: Vec<_> = words.into_iter().collect();
    let choices: Vec<_> = words.iter().map(|(word, _)| quoted(word)).collect();
    let said = match &choices[..] {
        [others @ .., last] if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        all => all.concat(),
    };
    let again = words.clone();
    let read = move |value: &DeValue<'_>| {
        let text = value.as_str()?;
        words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| meaning.clone())
    };
    let show = move |it: &T| {
        again.iter().find(|(_, meaning)| meaning == it).map_or(String::new(), |it| quoted(it.0))
    };

    Allowed { choices, ..Allowed::new(said, read, show) }
}

/// A text that is not empty.
pub fn text(words: &str) -> Allowed<String> {
    Allowed::text(words, |text| (!text.is_empty()).then(|| text.to_owned()))
}

/// A file or folder.
pub fn path(words: &str) -> Allowed<PathBuf> {
    let read = |value: &DeValue<'_>| value.as_str().filter(|text| !text.is_empty()).map(PathBuf::from);
    Allowed::new(words, read, |path| quoted(path.display()))
}

/// Several values in `[ ]`.
pub fn list<T: 'static>(words: &str, each: impl Fn(&str) -> Option<T> + 'static) -> Allowed<Vec<T>> {
    let one = move |value: &DeValue<'_>| each(value.as_str()?);
    let read = move |value: &DeValue<'_>| value.as_array()?.iter().map(|it| one(it.get_ref())).collect();
    // A default with something in it has not been needed yet.
    Allowed::new(words, read, |_| "[]".to_owned())
}

/// A whole number in `range`; `what` it is comes before the range in messages.
pub fn whole<T>(what: &str, range: RangeInclusive<T>) -> Allowed<T>
where
    T: Copy + Display + Into<u64> + TryFrom<u64> + PartialOrd + 'static,
{
    whole_as(what, range, Some, |it| *it)
}

/// A whole number in `range` that stands for something else.
fn whole_as<N, T>(
    what: &str,
    range: RangeInclusive<N>,
    make: fn(N) -> Option<T>,
    number: fn(&T) -> N,
) -> Allowed<T>
where
    N: Copy + Display + Into<u64> + TryFrom<u64> + PartialOrd + 'static,
    T: 'static,
{
    let words = format!("{what}, {} to {}", range.start(), range.end());
    let read = move |value: &DeValue<'_>| {
        let integer = value.as_integer()?;
        let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok()?;
        N::try_from(number).ok().filter(|number| range.contains(number)).and_then(make)
    };
    Allowed::new(words, read, move |it| number(it).to_string())
}

/// A time in whole milliseconds.
pub fn millis(range: RangeInclusive<u64>) -> Allowed<Duration> {
    let number = |it: &Duration| it.as_millis() as u64;
    whole_as("whole milliseconds", range, |it| Some(Duration::from_millis(it)), number)
}

/// A time in whole units of so many seconds each, such as hours.
pub fn seconds<const EACH: u64>(what: &str, range: RangeInclusive<u64>) -> Allowed<Duration> {
    let number = |it: &Duration| it.as_secs() / EACH;
    whole_as(what, range, |it| Some(Duration::from_secs(it * EACH)), number)
}

/// A finite number in `range` that stands for something else; integers are numbers too.
pub fn number_as<T: 'static>(
    what: &str,
    range: RangeInclusive<f64>,
    make: impl Fn(f64) -> Option<T> + 'static,
    number: fn(&T) -> f64,
) -> Allowed<T> {
    let words = format!("{what}, {} to {}", range.start(), range.end());
    let read = move |value: &DeValue<'_>| {
        let number: f64 = match (value.as_float(), value.as_integer()) {
            (Some(float), _) => float.as_str().parse().ok()?,
            (None, Some(integer)) => i64::from_str_radix(integer.as_str(), integer.radix()).ok()? as f64,
            (None, None) => return None,
        };
        (number.is_finite() && range.contains(&number)).then(|| make(number))?
    };
    Allowed::new(words, read, move |it| number(it).to_string())
}

/// A finite number in `range`.
pub fn number(what: &str, range: RangeInclusive<f64>) -> Allowed<f64> {
    number_as(what, range, Some, |it| *it)
}

/// A number of watts in `range`, to the milliwatt.
pub fn watts_in(range: RangeInclusive<f64>) -> Allowed<Watts> {
    number_as("a number of watts", range, Watts::from_f64, |it| it.as_f64())
}

/// A number of watts above zero, to the milliwatt.
pub fn watts() -> Allowed<Watts> {
    Allowed { words: WATTS.to_owned(), ..watts_in(0.001..=1e8) }
}
/// What [`watts`] says is allowed.
pub const WATTS: &str = "a number of watts, above 0 and at most 1e8";

/// A percentage in `range`, as parts per million; `what` says of what.
pub fn percent(what: &str, range: RangeInclusive<f64>) -> Allowed<u32> {
    let parts = |percent: f64| Some((percent * 1e4).round() as u32);
    number_as(what, range, parts, |parts| f64::from(*parts) / 1e4)
}

/// The URL of a host. Plain HTTP goes nowhere but loopback: on the way a password could be read, and an
/// answer could be forged.
pub fn safe_url(words: &str) -> Allowed<String> {
    Allowed::text(words, |url| {
        let url = url.trim_end_matches('/');
        let (scheme, host) = url.split_once("://")?;
        let is_loopback = || host.parse::<SocketAddr>().is_ok_and(|at| at.ip().is_loopback());
        let is_good =
            !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._:[]".contains(c));
        (is_good && (scheme == "https" || (scheme == "http" && is_loopback()))).then(|| url.to_owned())
    })
}
