//! Readers of real traces: CPU use or power over time, as published.
//!
//! # Layouts
//! | layout | known by its header | values |
//! |---|---|---|
//! | wide | first column `t`, `t_s` or the time column's name; every other column one series | percent |
//! | wide without time | every header field a number (an id); rows are 300 s apart | percent |
//! | Google power | `time` (µs), `pdu`, `measured_power_util` | share of capacity |
//! | long | the time column, the series column and one value column | by the value column's name |
//!
//! Text may be compressed with zstd: that is seen by its first bytes.
//!
//! # What is done with bad input
//! * A blank cell, NaN or infinity is a **gap**: counted, kept as NaN, and played by holding the last
//!   value. It is never taken for zero. So is a negative number of watts, and a row that is missing.
//! * A share outside 0..=1 (0..=100 %) is clamped and counted.
//! * Text, a ragged row, or a stamp that is no number is an error that names file, line and column.
//! * Unordered stamps are sorted and of duplicate ones the first is kept; both are counted. More than
//!   1 % of the rows (and more than one) is an error.

mod columns;
mod error;
mod grid;
mod play;
mod read;
#[cfg(test)]
mod tests;

use std::io::Read;

use serde::{Deserialize, Serialize};

pub use error::TraceError;
pub use play::Played;
pub use read::text;

/// Some machines' load or power over time, on one regular grid.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trace {
    /// What it was read from.
    pub name: String,
    /// Seconds between two values.
    pub period_s: f64,
    /// The first stamp in seconds, as recorded; 0 where there is no time column.
    pub start_s: f64,
    /// The machines, in order of appearance; all of one length, and none without a value.
    pub series: Vec<Series>,
    /// What was found wrong, and mended.
    pub report: Report,
}

/// One machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// Its column's or its own name.
    pub name: String,
    /// What the values mean.
    pub unit: Unit,
    /// One value per period, in that unit; NaN is a gap.
    pub values: Vec<f32>,
}

/// What a value means.
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
    /// The time column (`timestamp`), in seconds.
    pub time_column: Option<String>,
    /// The column that names the machine (`server`, or `vm`).
    pub series_column: Option<String>,
    /// The value column (`watts`, `power_w`, `utilisation`, `utilization`, `cpu_pct`).
    pub value_column: Option<String>,
    /// What values mean, where the name does not say.
    pub unit: Option<Unit>,
}

/// What was found wrong in a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Rows read, without the header.
    pub rows: u64,
    /// Cells without a usable value: blank, NaN, infinite, negative watts, or in a missing row.
    pub gaps: u64,
    /// Of these, cells that were negative watts.
    pub negative: u64,
    /// Shares outside 0..=1, clamped.
    pub clamped: u64,
    /// Rows whose stamp was before that of the row above: sorted in.
    pub unordered_rows: u64,
    /// Rows that repeated a stamp: dropped.
    pub duplicate_rows: u64,
    /// Series that had no value at all: dropped.
    pub empty_series: u64,
}

impl Trace {
    /// Reads a trace; `name` is for messages.
    ///
    /// # Errors
    /// If the layout is not known, a cell is no number, a row is ragged, more than 1 % of the rows are
    /// out of order or repeated, or nothing is left.
    pub fn read(reader: impl Read, name: &str, options: &ReadOptions) -> Result<Self, TraceError> {
        read::read(reader, name, options)
    }

    /// How many seconds it covers.
    #[must_use]
    pub fn span_s(&self) -> f64 {
        self.period_s * self.series.first().map_or(0, |s| s.values.len()) as f64
    }
}
