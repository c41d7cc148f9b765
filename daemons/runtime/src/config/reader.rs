//! Reads a TOML text key by key and gathers every problem, so that an operator sees all at once.
//!
//! Each problem is one line: `file:line: key = value: what is allowed`. The same calls describe the keys: over an
//! empty text they say which there are, what each may hold, and its default. The reference is made of that.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::allowed::Allowed;

/// Everything that is wrong with one file.
#[derive(Debug, thiserror::Error)]
#[error("{}", .problems.join("\n"))]
pub struct ConfigError {
    problems: Vec<String>,
}

impl ConfigError {
    pub fn whole(file: &str, what: &str) -> Self {
        Self { problems: vec![format!("{file}: {what}")] }
    }
}

/// The problems found so far in one file, with the text to tell lines by.
struct Problems<'t> {
    text: &'t str,
    found: RefCell<Vec<(usize, String)>>,
    /// Every table and key that is asked for, where that is what is wanted.
    described: Option<RefCell<Vec<Description>>>,
}

/// What the code says of one table or key, as it asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Description {
    Table { heading: String, help: &'static str },
    Key(KeyDescription),
}

/// What the code says of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyDescription {
    /// As in a file: `[meter]`, `[[vm]]`; empty for the keys at the top.
    pub heading: String,
    pub key: &'static str,
    pub allowed: String,
    /// As it stands in a file; `None` where there is none.
    pub default: Option<String>,
    pub is_required: bool,
    /// Every value as it stands in a file, where they are few.
    pub choices: Vec<String>,
    pub help: &'static str,
}

/// Reads and checks a text; `file` is its name in problems.
pub fn parse<T>(
    file: &str,
    text: &str,
    read: impl FnOnce(&mut Section<'_, '_>) -> Option<T>,
) -> Result<T, ConfigError> {
    let problems = Problems { text, found: RefCell::default(), described: None };
    let value = problems.read(read);

    let mut found = problems.found.into_inner();
    found.sort();
    found.dedup();
    let lines: Vec<_> = found.iter().map(|(line, what)| format!("{file}:{line}: {what}")).collect();
    match value {
        Some(value) if lines.is_empty() => Ok(value),
        // Whoever reads nothing has said why.
        _ => Err(ConfigError { problems: lines }),
    }
}

/// Reads what can be read of a text, whatever is wrong with the rest.
pub fn parse_leniently<T>(text: &str, read: impl FnOnce(&mut Section<'_, '_>) -> T) -> T {
    Problems { text, found: RefCell::default(), described: None }.read_part(read)
}

/// What `read` asks for in a text, in order.
pub(super) fn describe(text: &str, read: impl FnOnce(&mut Section<'_, '_>)) -> Vec<Description> {
    let described = Some(RefCell::default());
    let problems = Problems { text, found: RefCell::default(), described };
    problems.read_part(read);
    problems.described.unwrap_or_default().into_inner()
}

impl<'t> Problems<'t> {
    fn read<T>(&self, read: impl FnOnce(&mut Section<'_, 't>) -> Option<T>) -> Option<T> {
        let table = self.table();
        // What a syntax error has swallowed would be called missing.
        if !self.found.borrow().is_empty() {
            return None;
        }
        let mut root = Section::root(self, &table);
        let value = read(&mut root);
        root.finish();
        value
    }

    fn read_part<T>(&self, read: impl FnOnce(&mut Section<'_, 't>) -> T) -> T {
        let table = self.table();
        read(&mut Section::root(self, &table))
    }

    /// The text's tables; syntax errors become problems and what could be read goes on.
    fn table(&self) -> Spanned<DeTable<'t>> {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        for error in errors {
            let at = error.span().map_or(0, |span| span.start);
            self.add(at, error.message());
        }
        table
    }

    fn add(&self, at: usize, what: impl fmt::Display) {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        self.found.borrow_mut().push((line, what.to_string()));
    }
}

/// One key of a table, about to be read.
pub struct Key<'s, 'p, 't> {
    section: &'s mut Section<'p, 't>,
    key: &'static str,
    help: &'static str,
}

impl Key<'_, '_, '_> {
    /// Its value; `None` when it is absent or (then a problem) refused.
    pub fn optional<T>(self, allowed: Allowed<T>) -> Option<T> {
        self.describe(&allowed, None, false);
        self.section.value(self.key, allowed)
    }

    /// As [`Self::optional`], with a default when the key is absent.
    pub fn or<T>(self, default: T, allowed: Allowed<T>) -> T {
        self.describe(&allowed, Some(&default), false);
        self.section.value(self.key, allowed).unwrap_or(default)
    }

    /// As [`Self::optional`], and a problem when the key is absent.
    pub fn required<T>(self, allowed: Allowed<T>) -> Option<T> {
        self.required_if(true, allowed)
    }

    /// As [`Self::required`] where the key is `needed`, and as [`Self::optional`] where not.
    pub fn required_if<T>(self, needed: bool, allowed: Allowed<T>) -> Option<T> {
        self.describe(&allowed, None, needed);
        if needed && self.section.table.is_some_and(|table| !table.contains_key(self.key)) {
            self.section.known.push(self.key);
            self.section.refuse(format_args!("{} is missing: {}", self.key, allowed.words));
            return None;
        }
        self.section.value(self.key, allowed)
    }

    fn describe<T>(&self, allowed: &Allowed<T>, default: Option<&T>, is_required: bool) {
        let Some(described) = &self.section.problems.described else { return };
        described.borrow_mut().push(Description::Key(KeyDescription {
            heading: self.section.heading.clone(),
            key: self.key,
            allowed: allowed.words.clone(),
            default: default.map(&allowed.show),
            is_required,
            choices: allowed.choices.clone(),
            help: self.help,
        }));
    }
}

/// One table of the file. Asking for a key makes it known; [`Section::finish`] refuses the others.
pub struct Section<'p, 't> {
    problems: &'p Problems<'t>,
    table: Option<&'p DeTable<'t>>,
    /// `""` for the file itself, `"meter."` for `[meter]`.
    prefix: String,
    heading: String,
    span: Range<usize>,
    known: Vec<&'static str>,
    refused: Vec<&'static str>,
}

impl<'p, 't> Section<'p, 't> {
    fn root(problems: &'p Problems<'t>, table: &'p Spanned<DeTable<'t>>) -> Self {
        let (table, prefix, heading) = (Some(table.get_ref()), String::new(), String::new());
        Self { problems, table, prefix, heading, span: 0..0, known: vec![], refused: vec![] }
    }

    fn get(&mut self, key: &'static str) -> Option<&'p Spanned<DeValue<'t>>> {
        self.known.push(key);
        self.table?.get(key)
    }

    /// The value of `key`; `None` when it is absent or (then a problem) refused.
    fn value<T>(&mut self, key: &'static str, allowed: Allowed<T>) -> Option<T> {
        let Allowed { words, read, .. } = allowed;
        let value = self.get(key)?;
        let read = read(value.get_ref());
        if read.is_none() {
            let (shown, prefix) = (self.shown(value), &self.prefix);
            self.problems.add(value.span().start, format_args!("{prefix}{key} = {shown}: {words}"));
            self.refused.push(key);
        }
        read
    }

    /// One key of the table, with what the reference says of it.
    pub fn key<'s>(&'s mut self, key: &'static str, help: &'static str) -> Key<'s, 'p, 't> {
        Key { section: self, key, help }
    }

    /// What stands in the file, as far as it fits in a line.
    fn shown(&self, value: &Spanned<DeValue<'_>>) -> String {
        let text = &self.problems.text[value.span()];
        text.lines().next().unwrap_or("").chars().take(80).collect()
    }

    /// Whether the table is there.
    pub fn given(&self) -> bool {
        self.table.is_some()
    }

    /// Whether `key` is there, with whatever value.
    pub fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    /// Whether the value of `key` was refused as it was read.
    pub fn has_refused(&self, key: &str) -> bool {
        self.refused.contains(&key)
    }

    /// The table `[key]`; an empty one when it is absent.
    pub fn section(&mut self, key: &'static str, help: &'static str) -> Section<'p, 't> {
        let value = self.get(key);
        let table = value.and_then(|value| value.get_ref().as_table());
        let path = format!("{}{key}", self.prefix);

        if let (Some(value), None) = (value, table) {
            self.problems.add(value.span().start, format_args!("{path}: must be a table [{path}]"));
        }

        let span = value.map_or(self.span.clone(), Spanned::span);
        let section = self.below(table, format!("{path}."), format!("[{path}]"), span);
        section.describe_table(help);
        section
    }

    fn below(
        &self,
        table: Option<&'p DeTable<'t>>,
        prefix: String,
        heading: String,
        span: Range<usize>,
    ) -> Section<'p, 't> {
        Section { problems: self.problems, table, prefix, heading, span, known: vec![], refused: vec![] }
    }

    fn describe_table(&self, help: &'static str) {
        if let Some(described) = &self.problems.described {
            described.borrow_mut().push(Description::Table { heading: self.heading.clone(), help });
        }
    }

    /// The table `[key]`, if it is there.
    pub fn table(&mut self, key: &'static str, help: &'static str) -> Option<Section<'p, 't>> {
        let section = self.section(key, help);
        (section.given() || self.problems.described.is_some()).then_some(section)
    }

    /// The tables `[[key]]`, in order.
    pub fn sections(&mut self, key: &'static str, help: &'static str) -> Vec<Section<'p, 't>> {
        let (path, value) = (format!("{}{key}", self.prefix), self.get(key));
        let heading = format!("[[{path}]]");
        let Some(value) = value else {
            let one = self.below(None, format!("{path}[0]."), heading, self.span.clone());
            one.describe_table(help);
            return Vec::from_iter(self.problems.described.is_some().then_some(one));
        };

        let tables: Option<Vec<_>> = value.get_ref().as_array().and_then(|items| {
            items.iter().map(|item| Some((item.span(), item.get_ref().as_table()?))).collect()
        });
        if tables.is_none() {
            self.problems.add(value.span().start, format_args!("{path}: must be tables {heading}"));
        }

        let section =
            |(n, (span, table))| self.below(Some(table), format!("{path}[{n}]."), heading.clone(), span);
        tables.unwrap_or_default().into_iter().enumerate().map(section).collect()
    }

    /// Refuses a key or table that an older version had, with what replaces it.
    pub fn removed(&mut self, key: &'static str, instead: &str) {
        if let Some(value) = self.table.and_then(|table| table.get(key)) {
            let prefix = &self.prefix;
            self.problems.add(value.span().start, format_args!("{prefix}{key}: removed; {instead}"));
            self.refused.push(key);
        }
    }

    /// A problem with this table as a whole.
    pub fn refuse(&self, what: impl fmt::Display) {
        self.problems.add(self.span.start, format_args!("{}{what}", self.prefix));
    }

    /// A problem with one key's value, found only later; `path` may name a key of a table below: `poll.lag_ms`.
    pub fn refuse_key(&self, path: &str, what: impl fmt::Display) {
        let (tables, key) = path.rsplit_once('.').map_or((None, path), |(tables, key)| (Some(tables), key));
        let mut table = self.table;
        let mut at = self.span.start;
        for name in tables.into_iter().flat_map(|tables| tables.split('.')) {
            let value = table.and_then(|table| table.get(name));
            at = value.map_or(at, |value| value.span().start);
            table = value.and_then(|value| value.get_ref().as_table());
        }

        let value = table.and_then(|table| table.get(key));
        let at = value.map_or(at, |value| value.span().start);
        let shown = value.map_or("(default)".to_owned(), |value| self.shown(value));
        self.problems.add(at, format_args!("{}{path} = {shown}: {what}", self.prefix));
    }

    /// Refuses every key that nobody asked for.
    pub fn finish(self) {
        let mut known = self.known.clone();
        known.sort_unstable();
        known.dedup();
        for (key, _) in self.table.into_iter().flatten() {
            let name = key.get_ref();
            if !known.contains(&name.as_ref()) && !self.refused.contains(&name.as_ref()) {
                let (prefix, known) = (&self.prefix, known.join(", "));
                self.problems
                    .add(key.span().start, format_args!("{prefix}{name}: no such key; there are {known}"));
            }
        }
    }
}
