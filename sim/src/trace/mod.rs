//! Telemetry: CPU use or power over time, as the world writes it.
//!
//! # Layouts
//! | layout | known by its header | values |
//! |---|---|---|
//! | long | a time column, a value column and, for several series, one of names | by the value column's name |
//! | wide | a time column; every other column is one series | percent |
//! | wide without time | every header field a number (an id); rows are 300 s apart | percent |
//!
//! Columns are found by usual names ([`columns`]) or by options. CSV may be compressed with zstd, which is seen
//! by its first bytes. Other kinds of files come as a [`TableReader`].
//!
//! # What is done with bad input
//! * A missing value is a **gap**: counted, kept as NaN, and played by holding the last value. It is never
//!   zero. An implausible number is a gap too, counted on its own, and so is a row that is missing. [`cells`]
//!   says what is missing and what is implausible. A file is refused of which more than half is implausible.
//! * A share a little outside 0..=1 (0..=100 %) is clamped and counted.
//! * Text, a ragged row, or a time that is none is an error that names file, line, column and value.
//! * Unordered stamps are sorted and of duplicate ones the first is kept; both are counted. More than
//!   1 % of the rows (and more than one) is an error.

pub mod cells;
pub mod columns;
mod error;
mod grid;
mod play;
mod read;
mod table;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use cells::TimeUnit;
pub use columns::{Layout, Shape};
pub use error::TraceError;
pub use play::Played;
pub use read::{Samples, VALUE};
pub use table::{PARQUET, Rows, TableReader, text};

/// Some machines' load or power over time, on one regular grid.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trace {
    pub name: String,
    pub period_s: f64,
    /// The first stamp in seconds, as recorded; 0 where there is no time column.
    pub start_s: f64,
    /// The machines, in order of appearance; all of one length, and none without a value.
    pub series: Vec<Series>,
    pub report: Report,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// Its column's or its own name.
    pub name: String,
    pub unit: Unit,
    /// One value per period, in that unit; NaN is a gap.
    pub values: Vec<f32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Percent of the machine's CPU.
    Percent,
    /// Share of the machine's CPU, or of a unit's capacity: 0 to 1.
    Share,
    /// Watts drawn by one server.
    Watts,
}

/// How to read a trace; the default fits all public layouts.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ReadOptions {
    /// The time column, where its name is not usual.
    pub time_column: Option<String>,
    /// What the time column's numbers count, where their size does not say.
    pub time_unit: Option<TimeUnit>,
    /// The column that names the series, where its name is not usual.
    pub series_column: Option<String>,
    /// The value column, where its name is not usual.
    pub value_column: Option<String>,
    /// What values mean, whatever the name says.
    pub unit: Option<Unit>,
    /// How cells are arranged, where the names do not say.
    pub shape: Option<Shape>,
    /// Names of the series column that come before all usual ones.
    pub series_names: &'static [&'static str],
    /// What values mean where nothing else says.
    pub usual_unit: Option<Unit>,
    /// A table without a time column is wide, whatever its columns are called.
    pub timeless: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Rows read, without the header.
    pub rows: u64,
    /// Cells with a number, plausible or not.
    pub values: u64,
    /// Cells without a usable value: missing, implausible, or in a missing row.
    pub gaps: u64,
    /// Of these, cells with a number that no machine can show.
    pub implausible_values: u64,
    /// Shares a little outside 0..=1, clamped.
    pub clamped: u64,
    /// Rows whose stamp was before that of the row above: sorted in.
    pub unordered_rows: u64,
    /// Rows that repeated a stamp: dropped.
    pub duplicate_rows: u64,
    /// Series that had no value at all: dropped.
    pub empty_series: u64,
}

impl Trace {
    pub fn span_s(&self) -> f64 {
        self.period_s * self.series.first().map_or(0, |s| s.values.len()) as f64
    }
}
