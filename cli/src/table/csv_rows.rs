//! CSV.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use ballast_sim::trace;
use csv::ByteRecord;
use indicatif::ProgressBar;

pub(super) struct CsvRows {
    reader: csv::Reader<Box<dyn Read>>,
    record: ByteRecord,
}

impl CsvRows {
    pub(super) fn open(path: &Path, bar: &ProgressBar) -> anyhow::Result<(Self, Vec<String>)> {
        let file = BufReader::with_capacity(1 << 16, bar.wrap_read(File::open(path)?));
        let source = trace::text(file)?;
        let mut reader = csv::ReaderBuilder::new().buffer_capacity(1 << 18).from_reader(source);
        let headers = reader.byte_headers()?.iter();
        let headers = headers
            .map(|name| String::from_utf8_lossy(name).trim_matches(is_blank).to_owned())
            .collect();
        Ok((Self { reader, record: ByteRecord::new() }, headers))
    }

    pub(super) fn next(&mut self) -> anyhow::Result<bool> {
        Ok(self.reader.read_byte_record(&mut self.record)?)
    }

    fn field(&self, column: usize) -> &[u8] {
        self.record.get(column).unwrap_or_default().trim_ascii()
    }

    pub(super) fn text(&self, column: usize) -> Cow<'_, str> {
        String::from_utf8_lossy(self.field(column))
    }

    pub(super) fn number(&self, column: usize) -> Option<f64> {
        match self.field(column) {
            b"" | b"NA" | b"null" => Some(f64::NAN),
            text => std::str::from_utf8(text).ok()?.parse().ok(),
        }
    }

    pub(super) fn line(&self) -> u64 {
        self.record.position().map_or(0, csv::Position::line)
    }
}

/// Around a column's name; some programs begin a file with a byte order mark.
fn is_blank(c: char) -> bool {
    c.is_whitespace() || c == '\u{feff}'
}
