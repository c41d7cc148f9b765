//! From a table to samples, and from samples to series.

use std::collections::BTreeMap;
use std::io::Read;

use super::cells::{Judged, Times, rfc_3339};
use super::columns::Layout;
use super::grid::{Long, Wide};
use super::{ReadOptions, Report, TableReader, Trace, TraceError, Unit};

/// Between rows without a time, as the public series without times have it.
const PERIOD_MS: i64 = 300_000;
/// What a value column must hold.
pub const VALUE: &str = "a finite number or nothing (blank, NA, null, no reading, …)";

/// The rows of telemetry, with their times.
pub struct Samples<'r> {
    table: TableReader<'r>,
    layout: Layout,
    times: Times,
    rows: u64,
}

impl<'r> Samples<'r> {
    pub fn new(table: TableReader<'r>, options: &ReadOptions) -> Result<Self, TraceError> {
        let layout = Layout::of(&table, options)?;
        let unit = options.time_unit.or(layout.time_unit(&table));
        Ok(Self { table, layout, times: Times::new(unit), rows: 0 })
    }

    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    pub const fn table(&self) -> &TableReader<'r> {
        &self.table
    }

    pub const fn times(&self) -> &Times {
        &self.times
    }

    /// Goes to the next row: its time, in milliseconds. Without a time column rows are 300 s apart.
    pub fn advance(&mut self) -> Result<Option<i64>, TraceError> {
        self.advance_by(rfc_3339)
    }

    /// The same; `date` reads times that are no numbers.
    pub fn advance_by(&mut self, date: impl Fn(&str) -> Option<i64>) -> Result<Option<i64>, TraceError> {
        if !self.table.advance()? {
            return Ok(None);
        }
        self.rows += 1;
        let time = match self.layout {
            Layout::Long { time, .. } | Layout::Wide { time: Some(time), .. } => time,
            Layout::Wide { .. } => return Ok(Some((self.rows as i64 - 1) * PERIOD_MS)),
        };
        let read = self.times.read(&self.table.cell(time), date);
        read.map(Some).map_err(|needed| self.table.refuse(time, &needed))
    }

    /// The number in a value column; NaN where it is missing.
    pub fn number(&self, column: usize) -> Result<f64, TraceError> {
        self.table.number(column, VALUE)
    }
}

pub(super) fn read(table: TableReader<'_>, options: &ReadOptions) -> Result<Trace, TraceError> {
    let mut samples = Samples::new(table, options)?;
    let trace = match samples.layout.clone() {
        Layout::Wide { series, unit, .. } => wide(&mut samples, &series, unit),
        Layout::Long { series, value, unit, .. } => long(&mut samples, series, value, unit),
    };
    let (table, report) = trace?;
    let (file, unit) = (samples.table.file(), samples.layout.unit());
    let (bad, cells) = (report.implausible_values, report.values);
    if 2 * bad > cells {
        return Err(TraceError::Unit { file: file.to_owned(), bad, cells, unit });
    }
    table.finish(file, report)
}

enum Gathered {
    Wide(Wide),
    Long(Long),
}

impl Gathered {
    fn finish(self, file: &str, report: Report) -> Result<Trace, TraceError> {
        if report.rows == 0 {
            return Err(TraceError::Empty { file: file.to_owned(), what: "row" });
        }
        match self {
            Self::Wide(table) => table.finish(file, report),
            Self::Long(table) => table.finish(file, report),
        }
    }
}

fn wide(samples: &mut Samples<'_>, series: &[usize], unit: Unit) -> Result<(Gathered, Report), TraceError> {
    let names = series.iter().map(|column| samples.table.headers()[*column].clone()).collect();
    let (mut table, mut report) = (Wide::new(names, unit), Report::default());
    while let Some(stamp) = samples.advance()? {
        report.rows += 1;
        table.stamps.push(stamp);
        for column in series {
            let value = report.value(samples.number(*column)?, unit);
            table.cells.push(value);
        }
    }
    Ok((Gathered::Wide(table), report))
}

fn long(
    samples: &mut Samples<'_>,
    series: Option<usize>,
    value: usize,
    unit: Unit,
) -> Result<(Gathered, Report), TraceError> {
    let (mut table, mut report) = (Long::new(unit), Report::default());
    let mut index: BTreeMap<String, usize> = BTreeMap::new();
    while let Some(stamp) = samples.advance()? {
        report.rows += 1;
        let name = series.map_or("trace".into(), |column| samples.table.text(column));
        let n = match index.get(&*name) {
            Some(n) => *n,
            None => {
                index.insert(name.clone().into_owned(), index.len());
                table.add_series(name.into_owned())
            }
        };

        let cell = report.value(samples.number(value)?, unit);
        table.points[n].push((stamp, cell));
    }

    // A share column full of percent must not be taken for machines at full load.
    let (bad, cells) = (report.clamped + report.implausible_values, report.values);
    if unit == Unit::Share && bad * 100 > cells {
        let (file, column) = (samples.table.file(), &samples.table.headers()[value]);
        let (file, column) = (file.to_owned(), column.clone());
        return Err(TraceError::Percent { file, column, bad, cells });
    }

    Ok((Gathered::Long(table), report))
}

impl Report {
    /// The value that counts, NaN where there is none.
    fn value(&mut self, number: f64, unit: Unit) -> f32 {
        if number.is_nan() {
            self.gaps += 1;
            return f32::NAN;
        }
        self.values += 1;
        match unit.judge(number) {
            Judged::Good(value) => value as f32,
            Judged::Clamped(value) => {
                self.clamped += 1;
                value as f32
            }
            Judged::Implausible => {
                self.gaps += 1;
                self.implausible_values += 1;
                f32::NAN
            }
        }
    }
}

impl Trace {
    /// Reads a trace in CSV; `name` is for messages.
    pub fn read(reader: impl Read, name: &str, options: &ReadOptions) -> Result<Self, TraceError> {
        Self::from_table(TableReader::csv(reader, name)?, options)
    }

    /// Reads a trace from a table of any kind. This fails if the columns are not clear, a cell is no number
    /// or time, a row is ragged, most values are implausible, more than 1 % of the rows are out of order or
    /// repeated, or nothing is left.
    pub fn from_table(table: TableReader<'_>, options: &ReadOptions) -> Result<Self, TraceError> {
        read(table, options)
    }
}
