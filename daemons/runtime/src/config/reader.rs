//! Reads a TOML text key by key and gathers every problem, so that an operator sees all at once.
//!
//! Each problem is one line: `file:line: key = value: what is allowed`.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Everything that is wrong with one file.
#[derive(Debug)]
pub struct ConfigError {
    problems: Vec<String>,
}

impl ConfigError {
    /// One problem with a whole file.
    pub fn whole(file: &str, what: &str) -> Self {
        Self { problems: vec![format!("{file}: {what}")] }
    }
}
impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problems.join("\n"))
    }
}
impl std::error::Error for ConfigError {}

/// The problems found so far in one file, with the text to tell lines by.
pub struct Problems<'t> {
    file: &'t str,
    text: &'t str,
    found: RefCell<Vec<(usize, String)>>,
}

impl<'t> Problems<'t> {
    pub fn new(file: &'t str, text: &'t str) -> Self {
        Self { file, text, found: RefCell::default() }
    }

    /// Parses the text; syntax errors become problems and what could be read goes on.
    pub fn parse(&self) -> Spanned<DeTable<'t>> {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        for error in errors {
            let at = error.span().map_or(0, |span| span.start);
            self.add(at, error.message());
        }
        table
    }

    pub fn add(&self, at: usize, what: impl fmt::Display) {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        self.found.borrow_mut().push((line, what.to_string()));
    }

    pub fn finish<T>(self, value: T) -> Result<T, ConfigError> {
        let mut found = self.found.into_inner();
        if found.is_empty() {
            return Ok(value);
        }
        found.sort();
        found.dedup();
        let problems = found.iter().map(|(line, what)| format!("{}:{line}: {what}", self.file)).collect();
        Err(ConfigError { problems })
    }
}

/// One table of the file. Asking for a key makes it known; [`Section::finish`] refuses the others.
pub struct Section<'p, 't> {
    problems: &'p Problems<'t>,
    table: Option<&'p DeTable<'t>>,
    /// `""` for the file itself, `"meter."` for `[meter]`.
    prefix: String,
    span: Range<usize>,
    known: Vec<&'static str>,
}

impl<'p, 't> Section<'p, 't> {
    pub fn root(problems: &'p Problems<'t>, table: &'p Spanned<DeTable<'t>>) -> Self {
        Self { problems, table: Some(table.get_ref()), prefix: String::new(), span: 0..0, known: vec![] }
    }

    fn get(&mut self, key: &'static str) -> Option<&'p Spanned<DeValue<'t>>> {
        self.known.push(key);
        self.table?.get(key)
    }

    /// The value of `key`, checked by `read`; `None` when it is absent or (then a problem) refused.
    pub fn optional<T>(
        &mut self,
        key: &'static str,
        allowed: &str,
        read: impl FnOnce(&DeValue<'_>) -> Option<T>,
    ) -> Option<T> {
        let value = self.get(key)?;
        let read = read(value.get_ref());
        if read.is_none() {
            let shown = self.shown(value);
            self.problems.add(value.span().start, format_args!("{}{key} = {shown}: {allowed}", self.prefix));
        }
        read
    }

    /// What stands in the file, as far as it fits in a line.
    fn shown(&self, value: &Spanned<DeValue<'_>>) -> String {
        let text = &self.problems.text[value.span()];
        text.lines().next().unwrap_or("").chars().take(80).collect()
    }

    /// As [`Self::optional`], with a default when the key is absent.
    pub fn or<T>(
        &mut self,
        key: &'static str,
        default: T,
        allowed: &str,
        read: impl FnOnce(&DeValue<'_>) -> Option<T>,
    ) -> T {
        self.optional(key, allowed, read).unwrap_or(default)
    }

    /// As [`Self::optional`], and a problem when the key is absent.
    pub fn required<T>(
        &mut self,
        key: &'static str,
        allowed: &str,
        read: impl FnOnce(&DeValue<'_>) -> Option<T>,
    ) -> Option<T> {
        if self.table.is_some_and(|table| !table.contains_key(key)) {
            self.known.push(key);
            self.missing(key, allowed);
            return None;
        }
        self.optional(key, allowed, read)
    }

    /// As [`Self::required`] where the key is `needed`, and as [`Self::optional`] where not.
    pub fn required_if<T>(
        &mut self,
        needed: bool,
        key: &'static str,
        allowed: &str,
        read: impl FnOnce(&DeValue<'_>) -> Option<T>,
    ) -> Option<T> {
        if needed { self.required(key, allowed, read) } else { self.optional(key, allowed, read) }
    }

    /// Whether the table is there.
    pub fn given(&self) -> bool {
        self.table.is_some()
    }

    /// Whether `key` is there, with whatever value.
    pub fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    fn missing(&self, key: &str, allowed: &str) {
        self.problems.add(self.span.start, format_args!("{}{key} is missing: {allowed}", self.prefix));
    }

    /// The table `[key]`; an empty one when it is absent.
    pub fn section(&mut self, key: &'static str) -> Section<'p, 't> {
        let value = self.get(key);
        let table = value.and_then(|value| value.get_ref().as_table());
        if let (Some(value), None) = (value, table) {
            self.problems
                .add(value.span().start, format_args!("{}{key}: must be a table [{0}{key}]", self.prefix));
        }
        Section {
            problems: self.problems,
            table,
            prefix: format!("{}{key}.", self.prefix),
            span: value.map_or(self.span.clone(), Spanned::span),
            known: vec![],
        }
    }

    /// The table `[key]`, if it is there.
    pub fn table(&mut self, key: &'static str) -> Option<Section<'p, 't>> {
        let there = self.has(key);
        self.known.push(key);
        there.then(|| self.section(key)).filter(|section| section.table.is_some())
    }

    /// The tables `[[key]]`, in order.
    pub fn sections(&mut self, key: &'static str) -> Vec<Section<'p, 't>> {
        let Some(value) = self.get(key) else { return vec![] };
        let items = value.get_ref().as_array().map(|array| array.iter().collect::<Vec<_>>());
        let tables: Option<Vec<_>> = items.and_then(|items| {
            items.into_iter().map(|item| Some((item.span(), item.get_ref().as_table()?))).collect()
        });

        if tables.is_none() {
            let prefix = &self.prefix;
            self.problems
                .add(value.span().start, format_args!("{prefix}{key}: must be tables [[{prefix}{key}]]"));
        }

        let section = |(n, (span, table))| Section {
            problems: self.problems,
            table: Some(table),
            prefix: format!("{}{key}[{n}].", self.prefix),
            span,
            known: vec![],
        };

        tables.unwrap_or_default().into_iter().enumerate().map(section).collect()
    }

    /// A problem with this table as a whole.
    pub fn refuse(&self, what: impl fmt::Display) {
        self.problems.add(self.span.start, format_args!("{}{what}", self.prefix));
    }

    /// A problem with one key's value, found only later.
    pub fn refuse_key(&self, key: &str, what: impl fmt::Display) {
        let value = self.table.and_then(|table| table.get(key));
        let at = value.map_or(self.span.start, |value| value.span().start);
        let shown = value.map_or("(default)".to_owned(), |value| self.shown(value));
        self.problems.add(at, format_args!("{}{key} = {shown}: {what}", self.prefix));
    }

    /// Refuses every key that nobody asked for.
    pub fn finish(self) {
        for (key, _) in self.table.into_iter().flatten() {
            if !self.known.contains(&key.get_ref().as_ref()) {
                let mut known = self.known.clone();
                known.sort_unstable();
                self.problems.add(
                    key.span().start,
                    format_args!(
                        "{}{}: no such key; there are {}",
                        self.prefix,
                        key.get_ref(),
                        known.join(", ")
                    ),
                );
            }
        }
    }
}

/// A text.
pub fn text(value: &DeValue<'_>) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

/// A finite number in `range`; integers are numbers too.
pub fn number(range: impl std::ops::RangeBounds<f64>) -> impl FnOnce(&DeValue<'_>) -> Option<f64> {
    move |value| {
        let number: f64 = match (value.as_float(), value.as_integer()) {
            (Some(float), _) => float.as_str().parse().ok()?,
            (None, Some(integer)) => i64::from_str_radix(integer.as_str(), integer.radix()).ok()? as f64,
            (None, None) => return None,
        };
        (number.is_finite() && range.contains(&number)).then_some(number)
    }
}

/// A whole number in `range`.
pub fn whole(range: impl std::ops::RangeBounds<u64>) -> impl FnOnce(&DeValue<'_>) -> Option<u64> {
    move |value| {
        let integer = value.as_integer()?;
        let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok()?;
        range.contains(&number).then_some(number)
    }
}

/// Yes or no.
pub fn flag(value: &DeValue<'_>) -> Option<bool> {
    value.as_bool()
}

/// One of a few words.
pub fn word<T: Copy>(words: &[(&str, T)]) -> impl FnOnce(&DeValue<'_>) -> Option<T> {
    move |value| {
        let text = value.as_str()?;
        words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning)
    }
}
