//! From text to cells.

use std::collections::BTreeMap;
use std::io::{self, Read};

use csv::{ByteRecord, ReaderBuilder, Trim};

use super::columns::{Layout, detect};
use super::grid::{Long, Wide};
use super::{ReadOptions, Report, Trace, TraceError, Unit};

/// How a zstd stream begins (RFC 8878, section 3.1.1).
const ZSTD: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
/// No stamp is further from zero than this, in milliseconds: thirty thousand years.
const FAR_MS: f64 = 1e15;

/// The text of a file that may be compressed with zstd: that is seen by its first bytes.
///
/// # Errors
/// When it cannot be read, or not be unpacked.
pub fn text<'r>(mut reader: impl Read + 'r) -> io::Result<Box<dyn Read + 'r>> {
    let mut magic = Vec::with_capacity(4);
    reader.by_ref().take(4).read_to_end(&mut magic)?;
    let packed = magic == ZSTD;
    let whole = io::Cursor::new(magic).chain(reader);
    Ok(if packed { Box::new(zstd::Decoder::new(whole)?) } else { Box::new(whole) })
}

pub(super) fn read<'r>(
    reader: impl Read + 'r,
    file: &str,
    options: &ReadOptions,
) -> Result<Trace, TraceError> {
    let plain = text(reader).map_err(|error| TraceError::Io { file: file.to_owned(), error })?;
    Table::new(file, plain).read(options)
}

/// A file being read.
struct Table<'a, R> {
    file: &'a str,
    csv: csv::Reader<R>,
    names: Vec<String>,
    report: Report,
}

impl<'a, R: Read> Table<'a, R> {
    fn new(file: &'a str, text: R) -> Self {
        let csv = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .trim(Trim::All)
            .buffer_capacity(1 << 16)
            .from_reader(text);
        Self { file, csv, names: Vec::new(), report: Report::default() }
    }

    fn read(mut self, options: &ReadOptions) -> Result<Trace, TraceError> {
        let mut header = ByteRecord::new();
        if !self.csv.read_byte_record(&mut header).map_err(|e| self.io(e))? {
            return Err(self.empty("header"));
        }
        if let Some(first) = header.get(0).and_then(|h| h.strip_prefix(b"\xEF\xBB\xBF")) {
            // A byte-order mark is no part of the first name.
            let mut clean = ByteRecord::new();
            clean.push_field(first);
            header.iter().skip(1).for_each(|f| clean.push_field(f));
            header = clean;
        }
        self.names = header.iter().map(|h| String::from_utf8_lossy(h).into_owned()).collect();
        match detect(self.file, &header, options)? {
            Layout::Wide { time, unit } => self.wide(time, unit),
            Layout::Long { time, series, value, unit, per_second } => {
                self.long(time, series, value, unit, per_second)
            }
        }
    }

    /// The next row; checked to be as long as the header. Blank lines are no rows.
    fn row(&mut self, row: &mut ByteRecord) -> Result<bool, TraceError> {
        if !self.csv.read_byte_record(row).map_err(|e| self.io(e))? {
            return Ok(false);
        }
        if row.len() != self.names.len() {
            return Err(TraceError::Ragged {
                file: self.file.to_owned(),
                line: line(row),
                found: row.len(),
                expected: self.names.len(),
            });
        }
        self.report.rows += 1;
        Ok(true)
    }

    fn wide(mut self, time: bool, unit: Unit) -> Result<Trace, TraceError> {
        let first = usize::from(time);
        let mut table = Wide::new(self.names[first..].to_vec(), unit);
        let mut row = ByteRecord::new();
        while self.row(&mut row)? {
            let stamp = if time {
                self.stamp(&row, 0, 1.0)?
            } else {
                // The public series without stamps are on a grid of 300 s.
                (self.report.rows as i64 - 1) * 300_000
            };
            table.stamps.push(stamp);
            for column in first..row.len() {
                let value = self.value(&row, column, unit)?;
                table.cells.push(value);
            }
        }
        if table.stamps.is_empty() {
            return Err(self.empty("row"));
        }
        table.finish(self.file, self.report)
    }

    fn long(
        mut self,
        time: usize,
        series: Option<usize>,
        value: usize,
        unit: Unit,
        per_second: f64,
    ) -> Result<Trace, TraceError> {
        let mut table = Long::new(unit);
        let mut index: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        let mut row = ByteRecord::new();
        while self.row(&mut row)? {
            let stamp = self.stamp(&row, time, per_second)?;
            let name = series.map_or(&b"trace"[..], |column| &row[column]);
            let n = match index.get(name) {
                Some(n) => *n,
                None => {
                    index.insert(name.to_vec(), index.len());
                    table.add_series(String::from_utf8_lossy(name).into_owned())
                }
            };
            let cell = self.value(&row, value, unit)?;
            table.points[n].push((stamp, cell));
        }
        if table.points.is_empty() {
            return Err(self.empty("row"));
        }
        // A share column full of percent must not be taken for machines at full load.
        let (bad, cells) = (self.report.clamped, self.report.rows - self.report.gaps);
        if unit == Unit::Share && bad * 100 > cells {
            let (file, column) = (self.file.to_owned(), self.names[value].clone());
            return Err(TraceError::Percent { file, column, bad, cells });
        }
        table.finish(self.file, self.report)
    }

    /// A stamp in milliseconds.
    fn stamp(&self, row: &ByteRecord, column: usize, per_second: f64) -> Result<i64, TraceError> {
        let ms = number(&row[column]).map(|t| t * 1000.0 / per_second);
        match ms {
            Some(ms) if ms.abs() <= FAR_MS => Ok(libm::round(ms) as i64),
            _ => Err(self.cell(row, column, "a time is a number (seconds, not a date)")),
        }
    }

    /// A value in its unit; NaN where there is none.
    fn value(&mut self, row: &ByteRecord, column: usize, unit: Unit) -> Result<f32, TraceError> {
        let text = &row[column];
        if text.is_empty() {
            self.report.gaps += 1;
            return Ok(f32::NAN);
        }
        let Some(value) = number(text) else {
            return Err(self.cell(row, column, "a value is a number, NaN or blank"));
        };
        let top = match unit {
            Unit::Percent => 100.0,
            Unit::Share => 1.0,
            Unit::Watts => f64::from(f32::MAX),
        };
        if !value.is_finite() || (unit == Unit::Watts && value < 0.0) {
            self.report.gaps += 1;
            self.report.negative += u64::from(value.is_finite());
            return Ok(f32::NAN);
        }
        if !(0.0..=top).contains(&value) {
            self.report.clamped += 1;
        }
        Ok(value.clamp(0.0, top) as f32)
    }

    fn cell(&self, row: &ByteRecord, column: usize, allowed: &'static str) -> TraceError {
        TraceError::Cell {
            file: self.file.to_owned(),
            line: line(row),
            column: self.names[column].clone(),
            value: String::from_utf8_lossy(&row[column]).chars().take(40).collect(),
            allowed,
        }
    }

    fn empty(&self, what: &'static str) -> TraceError {
        TraceError::Empty { file: self.file.to_owned(), what }
    }

    fn io(&self, error: csv::Error) -> TraceError {
        TraceError::Io { file: self.file.to_owned(), error: io::Error::from(error) }
    }
}

fn line(row: &ByteRecord) -> u64 {
    row.position().map_or(0, csv::Position::line)
}

fn number(text: &[u8]) -> Option<f64> {
    core::str::from_utf8(text).ok()?.parse().ok()
}
