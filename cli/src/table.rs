//! Tables in files, row by row: CSV, plain or zstd, and Parquet. Memory stays that of a few rows or one batch.

mod csv_rows;
pub(crate) mod parquet_rows;

use std::borrow::Cow;
use std::path::Path;

use anyhow::{anyhow, bail};
use indicatif::ProgressBar;

use csv_rows::CsvRows;
use parquet_rows::ParquetRows;

/// One kind of file.
enum Rows {
    Csv(CsvRows),
    Parquet(Box<ParquetRows>),
}

/// Where the column of that name stands among `headers`.
pub(crate) fn column(headers: &[String], name: &str) -> anyhow::Result<usize> {
    let mut found = headers.iter().enumerate().filter(|(_, header)| *header == name);
    match (found.next(), found.next()) {
        (Some((index, _)), None) => Ok(index),
        (Some(_), Some(_)) => bail!("two columns are called {name:?}"),
        (None, _) => bail!("no column is called {name:?}; there are {}", headers.join(", ")),
    }
}

/// A file's rows, with errors that name the place, the column, the value and what is allowed.
pub(crate) struct Table {
    rows: Rows,
    headers: Vec<String>,
}

impl Table {
    /// Opens a file; `.parquet` by its name, everything else is CSV, plain or zstd. `bar` moves by bytes.
    pub(crate) fn open(path: &Path, bar: &ProgressBar) -> anyhow::Result<Self> {
        let (rows, headers) = if path.extension().is_some_and(|kind| kind == "parquet") {
            let (rows, headers) = ParquetRows::open(path, bar)?;
            (Rows::Parquet(Box::new(rows)), headers)
        } else {
            let (rows, headers) = CsvRows::open(path, bar)?;
            (Rows::Csv(rows), headers)
        };
        Ok(Self { rows, headers })
    }

    /// The columns' names.
    pub(crate) fn headers(&self) -> &[String] {
        &self.headers
    }

    /// The column of that name.
    pub(crate) fn column(&self, name: &str) -> anyhow::Result<usize> {
        column(&self.headers, name)
    }

    /// Whether the column holds instants, which are seconds whatever the unit of plain numbers.
    pub(crate) fn is_instant(&self, column: usize) -> bool {
        match &self.rows {
            Rows::Csv(_) => false,
            Rows::Parquet(rows) => rows.is_instant(column),
        }
    }

    /// Goes to the next row; `false` after the last.
    pub(crate) fn next(&mut self) -> anyhow::Result<bool> {
        match &mut self.rows {
            Rows::Csv(rows) => rows.next(),
            Rows::Parquet(rows) => rows.next(),
        }
    }

    /// A value as text; empty where there is none.
    pub(crate) fn text(&self, column: usize) -> Cow<'_, str> {
        match &self.rows {
            Rows::Csv(rows) => rows.text(column),
            Rows::Parquet(rows) => rows.text(column),
        }
    }

    /// A number; NaN where the field is empty, `NaN`, `NA` or null.
    pub(crate) fn number(&self, column: usize, allowed: &str) -> anyhow::Result<f64> {
        let number = match &self.rows {
            Rows::Csv(rows) => rows.number(column),
            Rows::Parquet(rows) => rows.number(column),
        };
        number.ok_or_else(|| self.refuse(column, allowed))
    }

    /// A whole number.
    pub(crate) fn integer(&self, column: usize, allowed: &str) -> anyhow::Result<i64> {
        let number = self.number(column, allowed)?;
        // Seconds and counts are far below 2^53, where floating point is exact.
        let whole = number.fract() == 0.0 && number.abs() < 9e15;
        if whole { Ok(number as i64) } else { Err(self.refuse(column, allowed)) }
    }

    /// Where the current row stands.
    pub(crate) fn place(&self) -> String {
        match &self.rows {
            Rows::Csv(rows) => format!("line {}", rows.line()),
            Rows::Parquet(rows) => format!("row {}", rows.row()),
        }
    }

    /// What is wrong with a value.
    pub(crate) fn refuse(&self, column: usize, allowed: &str) -> anyhow::Error {
        let (name, value) = (&self.headers[column], self.text(column));
        anyhow!("{}: {name} = {value:?}: {allowed} is needed", self.place())
    }
}
