//! Tables in files, row by row, whatever kind the file is of. CSV is read here, plain or compressed by zstd.

use std::borrow::Cow;
use std::cell::Cell as Counter;
use std::io::{self, Read};
use std::rc::Rc;

use csv::{ByteRecord, ReaderBuilder};

use super::TraceError;
use super::cells::Cell;

/// How a zstd stream begins (RFC 8878, section 3.1.1).
const ZSTD: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
/// How gzip begins (RFC 1952, section 2.3.1).
const GZIP: [u8; 2] = [0x1F, 0x8B];
pub const PARQUET: [u8; 4] = *b"PAR1";
/// No row is longer: what has no ends of lines is no table.
const ROW_BYTES: u64 = 1 << 20;

/// The text of a file that may be compressed with zstd: that is seen by its first bytes.
pub fn text<'r>(mut reader: impl Read + 'r) -> io::Result<Box<dyn Read + 'r>> {
    let mut magic = Vec::with_capacity(4);
    reader.by_ref().take(4).read_to_end(&mut magic)?;
    if magic.starts_with(&GZIP) {
        let text = "this is gzip; CSV is needed, plain or compressed by zstd";
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    if magic == PARQUET {
        let text = "this is Parquet, which is read from files alone; CSV is needed";
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }

    let packed = magic == ZSTD;
    let whole = io::Cursor::new(magic).chain(reader);
    Ok(if packed { Box::new(zstd::Decoder::new(whole)?) } else { Box::new(whole) })
}

pub trait Rows {
    /// Goes to the next row; `false` after the last.
    /// This fails when it cannot be read. `InvalidData` is an error of the row itself.
    fn advance(&mut self) -> io::Result<bool>;

    fn cell(&self, column: usize) -> Cell<'_>;

    /// Where the current row stands: its line or its number.
    fn place(&self) -> String;
}

/// A file's rows, with errors that name file, place, column, value and what is allowed.
pub struct TableReader<'r> {
    file: String,
    headers: Vec<String>,
    rows: Box<dyn Rows + 'r>,
}

impl<'r> TableReader<'r> {
    /// A table of these rows; `file` is for messages.
    pub fn new(file: &str, headers: Vec<String>, rows: Box<dyn Rows + 'r>) -> Self {
        Self { file: file.to_owned(), headers, rows }
    }

    /// A table in CSV, plain or compressed by zstd.
    pub fn csv(reader: impl Read + 'r, file: &str) -> Result<Self, TraceError> {
        let io = |error| TraceError::Io { file: file.to_owned(), error };
        let (rows, headers) = CsvRows::open(text(reader).map_err(io)?).map_err(io)?;
        if headers.is_empty() {
            return Err(TraceError::Empty { file: file.to_owned(), what: "header" });
        }
        Ok(Self::new(file, headers, Box::new(rows)))
    }

    pub fn file(&self) -> &str {
        &self.file
    }

    pub fn headers(&self) -> &[String] {
        &self.headers
    }

    /// The column of that name. None, and more than one, are errors.
    pub fn column(&self, name: &str) -> Result<usize, TraceError> {
        let mut found = self.headers.iter().enumerate().filter(|(_, header)| *header == name);
        let problem = match (found.next(), found.next()) {
            (Some((index, _)), None) => return Ok(index),
            (Some(_), Some(_)) => format!("two columns are called {name:?}"),
            (None, _) => format!("no column is called {name:?}; there are {}", self.shown()),
        };
        Err(TraceError::Header { file: self.file.clone(), problem })
    }

    /// The column that a flag must name.
    pub(super) fn unclear(&self, question: &str, flag: &str) -> TraceError {
        let problem = format!("{question} say {flag}; there are {}", self.shown());
        TraceError::Header { file: self.file.clone(), problem }
    }

    fn shown(&self) -> String {
        let all = self.headers.join(", ");
        if all.chars().count() > 200 { all.chars().take(200).chain(['…']).collect() } else { all }
    }

    /// Goes to the next row; `false` after the last.
    pub fn advance(&mut self) -> Result<bool, TraceError> {
        self.rows.advance().map_err(|error| {
            let file = self.file.clone();
            match error.kind() {
                io::ErrorKind::InvalidData => TraceError::Row { file, place: self.rows.place(), error },
                _ => TraceError::Io { file, error },
            }
        })
    }

    pub fn cell(&self, column: usize) -> Cell<'_> {
        self.rows.cell(column)
    }

    /// A cell as text; empty where there is nothing.
    pub fn text(&self, column: usize) -> Cow<'_, str> {
        match self.cell(column) {
            Cell::Text(text) => text,
            cell => cell.to_string().into(),
        }
    }

    /// A number; NaN where it is missing.
    pub fn number(&self, column: usize, allowed: &str) -> Result<f64, TraceError> {
        self.cell(column).number().ok_or_else(|| self.refuse(column, allowed))
    }

    pub fn integer(&self, column: usize, allowed: &str) -> Result<i64, TraceError> {
        let number = self.number(column, allowed)?;
        // Seconds and counts are far below 2^53, where floating point is exact.
        let whole = libm::trunc(number) == number && number.abs() < 9e15;
        if whole { Ok(number as i64) } else { Err(self.refuse(column, allowed)) }
    }

    /// Where the current row stands.
    pub fn place(&self) -> String {
        self.rows.place()
    }

    pub fn refuse(&self, column: usize, allowed: &str) -> TraceError {
        TraceError::Cell {
            file: self.file.clone(),
            place: self.rows.place(),
            column: self.headers[column].clone(),
            value: self.text(column).chars().take(40).collect(),
            allowed: allowed.to_owned(),
        }
    }
}

struct CsvRows<'r> {
    reader: csv::Reader<Limited<Box<dyn Read + 'r>>>,
    record: ByteRecord,
    width: usize,
    /// Bytes read since the last whole row.
    taken: Rc<Counter<u64>>,
}

impl<'r> CsvRows<'r> {
    fn open(text: Box<dyn Read + 'r>) -> io::Result<(Self, Vec<String>)> {
        let taken = Rc::new(Counter::new(0));
        let limited = Limited { inner: text, taken: Rc::clone(&taken) };
        let mut builder = ReaderBuilder::new();
        builder.has_headers(false).flexible(true).buffer_capacity(1 << 16);
        let reader = builder.from_reader(limited);
        let mut rows = Self { reader, record: ByteRecord::new(), width: 0, taken };
        rows.record()?;
        rows.width = rows.record.len();
        let name = |name| String::from_utf8_lossy(name).trim_matches(is_blank).to_owned();
        let headers = rows.record.iter().map(name).collect();
        Ok((rows, headers))
    }

    fn record(&mut self) -> io::Result<bool> {
        let more = self.reader.read_byte_record(&mut self.record).map_err(io::Error::from)?;
        self.taken.set(0);
        Ok(more)
    }
}

impl Rows for CsvRows<'_> {
    fn advance(&mut self) -> io::Result<bool> {
        let more = self.record()?;
        if more && self.record.len() != self.width {
            let text = format!("{} cells: the header has {}", self.record.len(), self.width);
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(more)
    }

    fn cell(&self, column: usize) -> Cell<'_> {
        let bytes = self.record.get(column).unwrap_or_default().trim_ascii();
        Cell::Text(String::from_utf8_lossy(bytes))
    }

    fn place(&self) -> String {
        format!("line {}", self.record.position().map_or(0, csv::Position::line))
    }
}

/// Around a column's name; some programs begin a file with a byte-order mark.
fn is_blank(c: char) -> bool {
    c.is_whitespace() || c == '\u{feff}'
}

/// Ends with an error where a row does not end.
struct Limited<R> {
    inner: R,
    taken: Rc<Counter<u64>>,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.taken.get() > ROW_BYTES {
            return Err(io::Error::other("a row is longer than 1 MiB: a table has ends of lines"));
        }
        let count = self.inner.read(to)?;
        self.taken.set(self.taken.get() + count as u64);
        Ok(count)
    }
}
