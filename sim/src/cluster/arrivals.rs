//! VM arrivals as recorded: `vm_id,batch_id,arrival_s,cores,mem_gb,dur_hi_s,censored`.

use std::io::{self, Read};

use ballast_placement::{MemoryKb, MilliCores, Resources};
use csv::{ByteRecord, ReaderBuilder};
use thiserror::Error;

use crate::trace;

/// The shortest life: the trace's bins are so long.
const SHORTEST_MS: u64 = 300_000;
/// No time is later than this, in milliseconds: thirty thousand years.
const FAR_MS: u64 = 1_000_000_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its id in the file.
    pub id: u64,
    /// The VMs that were asked for together.
    pub batch: u64,
    /// When it comes, in milliseconds as recorded.
    pub at_ms: u64,
    /// How long it lives; `None` where the trace ends before it.
    pub lifetime_ms: Option<u64>,
    pub resources: Resources,
    /// Its line in the file.
    pub line: u64,
}

/// Why no arrivals can be read from a file.
#[derive(Debug, Error)]
pub enum ArrivalsError {
    /// Reading or decompressing failed, or the file ends in the middle.
    #[error("{file}, after line {line}: {error}")]
    Io {
        file: String,
        /// The last line that was read.
        line: u64,
        error: io::Error,
    },
    #[error("{file}:1: no column {column}: needed are {}", COLUMNS.join(", "))]
    Header { file: String, column: &'static str },
    /// A VM comes before the one that stands before it.
    #[error(
        "{file}:{line}: VM {vm}: arrival_s = {at_s}: the VM before it comes at {before_s}: sort the file by \
         arrival_s, for it is read as it is played"
    )]
    Unsorted { file: String, line: u64, vm: u64, at_s: f64, before_s: f64 },
    #[error("{file}: no record: a trace has a header and at least one VM")]
    Empty { file: String },
    /// A record has another number of fields than the header.
    #[error("{file}:{line}: {found} fields: the header has {expected}")]
    Ragged { file: String, line: u64, found: usize, expected: usize },
    #[error("{file}:{line}: VM {vm}: {column} = {value:?}: {allowed}")]
    Field {
        file: String,
        line: u64,
        vm: String,
        column: &'static str,
        /// What it holds, shortened.
        value: String,
        allowed: &'static str,
    },
    /// A VM stands there twice at one time.
    #[error("{file}:{line}: vm_id = {id}: it stands in line {first} already")]
    Duplicate { file: String, line: u64, id: u64, first: u64 },
}

/// The columns that are needed, in the order of [`Column`]; others are not looked at.
const COLUMNS: [&str; 7] = ["vm_id", "batch_id", "arrival_s", "cores", "mem_gb", "dur_hi_s", "censored"];

#[derive(Clone, Copy)]
enum Column {
    Id,
    Batch,
    Arrival,
    Cores,
    Memory,
    Duration,
    Censored,
}

/// The VMs of a trace, one after the other: no more of it is held than a record.
pub struct Arrivals<'r> {
    csv: csv::Reader<Box<dyn Read + 'r>>,
    record: ByteRecord,
    line: u64,
    table: ArrivalsFile,
    last_ms: u64,
}

impl<'r> Arrivals<'r> {
    /// Reads a trace, which may be compressed with zstd; `name` is for messages.
    pub fn new(reader: impl Read + 'r, name: &str) -> Result<Self, ArrivalsError> {
        let fail = |error| ArrivalsError::Io { file: name.to_owned(), line: 0, error };
        let text = trace::text(reader).map_err(fail)?;
        let mut csv =
            ReaderBuilder::new().has_headers(false).flexible(true).buffer_capacity(1 << 16).from_reader(text);
        let mut record = ByteRecord::new();

        csv.read_byte_record(&mut record).map_err(|e| fail(e.into()))?;
        let table = ArrivalsFile::new(name, &record)?;

        Ok(Self { csv, line: line(&record), record, table, last_ms: 0 })
    }

    pub fn name(&self) -> &str {
        &self.table.file
    }

    fn read(&mut self) -> Result<Option<Arrival>, ArrivalsError> {
        let more = self.csv.read_byte_record(&mut self.record).map_err(|error| ArrivalsError::Io {
            file: self.table.file.clone(),
            line: self.line,
            error: error.into(),
        })?;
        if !more {
            return Ok(None);
        }
        self.line = line(&self.record);

        let vm = self.table.arrival(&self.record)?;
        if vm.at_ms < self.last_ms {
            let [at_s, before_s] = [vm.at_ms, self.last_ms].map(|ms| ms as f64 / 1e3);
            let (file, line) = (self.table.file.clone(), vm.line);
            return Err(ArrivalsError::Unsorted { file, line, vm: vm.id, at_s, before_s });
        }
        self.last_ms = vm.at_ms;
        Ok(Some(vm))
    }
}

/// The error names the first record that is none: cut short, not a number, negative, or earlier than the one before it.
impl Iterator for Arrivals<'_> {
    type Item = Result<Arrival, ArrivalsError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

/// Whether every id is there once.
pub(super) fn unique(file: &str, vms: &[Arrival]) -> Result<(), ArrivalsError> {
    if vms.is_sorted_by(|a, b| a.id < b.id) {
        return Ok(());
    }
    let mut ids: Vec<(u64, u64)> = vms.iter().map(|vm| (vm.id, vm.line)).collect();
    ids.sort_unstable();
    match ids.windows(2).filter(|two| two[0].0 == two[1].0).min_by_key(|two| two[1].1) {
        Some(&[(id, first), (_, line)]) => {
            Err(ArrivalsError::Duplicate { file: file.to_owned(), line, id, first })
        }
        _ => Ok(()),
    }
}

struct ArrivalsFile {
    file: String,
    width: usize,
    at: [usize; COLUMNS.len()],
}

impl ArrivalsFile {
    fn new(file: &str, header: &ByteRecord) -> Result<Self, ArrivalsError> {
        let name = |field: &[u8]| -> Vec<u8> {
            // A byte-order mark is no part of the first name.
            field.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(field).trim_ascii().to_vec()
        };
        let mut at = [0; COLUMNS.len()];
        for (place, column) in at.iter_mut().zip(COLUMNS) {
            let found = header.iter().position(|field| name(field) == column.as_bytes());
            *place = found.ok_or_else(|| ArrivalsError::Header { file: file.to_owned(), column })?;
        }
        Ok(Self { file: file.to_owned(), width: header.len(), at })
    }

    fn arrival(&self, record: &ByteRecord) -> Result<Arrival, ArrivalsError> {
        if record.len() != self.width {
            return Err(ArrivalsError::Ragged {
                file: self.file.clone(),
                line: line(record),
                found: record.len(),
                expected: self.width,
            });
        }

        let time = "a number of seconds, 0 or above";
        let cores = self.fixed(record, Column::Cores, 3, "a number of cores above 0, at most 65536")?;
        let memory = self.fixed(record, Column::Memory, 6, "a number of GB from 0 to 100000")?;
        let lifetime = self.fixed(record, Column::Duration, 3, time)?;
        let at_ms = self.fixed(record, Column::Arrival, 3, time)?;
        let field = |column, allowed| self.wrong(record, column, allowed);
        let censored = match self.field(record, Column::Censored) {
            b"0" => false,
            b"1" => true,
            _ => return Err(field(Column::Censored, "0, or 1 where the trace ends before the VM")),
        };

        let whole = "a whole number, 0 or above";

        Ok(Arrival {
            id: self.fixed(record, Column::Id, 0, whole)?,
            batch: self.fixed(record, Column::Batch, 0, whole)?,
            at_ms: Some(at_ms).filter(|t| *t <= FAR_MS).ok_or_else(|| field(Column::Arrival, time))?,
            lifetime_ms: (!censored).then_some(lifetime.clamp(SHORTEST_MS, FAR_MS)),
            resources: Resources::new(
                MilliCores::from_milli(cores)
                    .filter(|c| *c > MilliCores::ZERO)
                    .ok_or_else(|| field(Column::Cores, "a number of cores above 0, at most 65536"))?,
                MemoryKb::from_kb(memory)
                    .ok_or_else(|| field(Column::Memory, "a number of GB from 0 to 100000"))?,
            ),
            line: line(record),
        })
    }

    fn field<'r>(&self, record: &'r ByteRecord, column: Column) -> &'r [u8] {
        record[self.at[column as usize]].trim_ascii()
    }

    /// A number in units of 10^-`decimals`.
    fn fixed(
        &self,
        record: &ByteRecord,
        column: Column,
        decimals: u32,
        allowed: &'static str,
    ) -> Result<u64, ArrivalsError> {
        fixed(self.field(record, column), decimals).ok_or_else(|| self.wrong(record, column, allowed))
    }

    fn wrong(&self, record: &ByteRecord, column: Column, allowed: &'static str) -> ArrivalsError {
        let shown = |column| String::from_utf8_lossy(self.field(record, column)).chars().take(40).collect();
        ArrivalsError::Field {
            file: self.file.clone(),
            line: line(record),
            vm: shown(Column::Id),
            column: COLUMNS[column as usize],
            value: shown(column),
            allowed,
        }
    }
}

fn line(record: &ByteRecord) -> u64 {
    record.position().map_or(0, csv::Position::line)
}

/// A number of digits with an optional point, in units of 10^-`decimals`; what is finer is rounded up, so
/// that no VM shrinks. `None` for anything else: signs, exponents, NaN, no digit at all.
fn fixed(text: &[u8], decimals: u32) -> Option<u64> {
    let (mut value, mut left, mut point, mut digits) = (0u64, decimals, false, false);
    let mut more = false;
    for byte in text {
        match byte {
            b'0'..=b'9' => {
                digits = true;
                if point && left == 0 {
                    more |= *byte != b'0';
                    continue;
                }

                value = value.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
                left -= u32::from(point);
            }
            b'.' if !point && decimals > 0 => point = true,
            _ => return None,
        }
    }

    let value = value.checked_mul(10u64.checked_pow(left)?)?.checked_add(u64::from(more))?;

    digits.then_some(value)
}

#[cfg(test)]
mod tests {
    use super::fixed;

    #[test]
    fn numbers_are_exact_and_what_is_none_is_refused() {
        for (text, decimals, value) in [
            ("0.75", 6, 750_000),
            ("1.75", 6, 1_750_000),
            ("112", 6, 112_000_000),
            ("1800000", 3, 1_800_000_000),
            (".5", 3, 500),
            ("5.", 3, 5000),
            ("0.0001", 3, 1),
            ("0.1230", 3, 123),
            ("18446744073709551615", 0, u64::MAX),
        ] {
            assert_eq!(fixed(text.as_bytes(), decimals), Some(value), "{text}");
        }

        for text in ["", ".", "-1", "+1", "NaN", "inf", "1e3", "1.2.3", "1 2", "0x1"] {
            assert_eq!(fixed(text.as_bytes(), 3), None, "{text}");
        }
        assert_eq!(fixed(b"1.0", 0), None);
        assert_eq!(fixed(b"18446744073709551616", 0), None);
    }
}
