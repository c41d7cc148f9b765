//! CSV with a header, plain or compressed with zstd, read record by record.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use anyhow::{Context, bail};
use ballast_sim::trace;
use csv::StringRecord;

/// Opens a file, or stdin for `-`; what is compressed with zstd is unpacked.
pub(crate) fn open(path: &Path) -> anyhow::Result<Box<dyn Read>> {
    let what = || path.display().to_string();
    let raw: Box<dyn Read> = match path.to_str() {
        Some("-") => Box::new(io::stdin()),
        _ => Box::new(BufReader::new(File::open(path).with_context(what)?)),
    };
    trace::text(raw).with_context(what)
}

/// A table being read.
pub(crate) struct Table<R> {
    csv: csv::Reader<R>,
    file: String,
    head: Vec<String>,
    record: StringRecord,
    number: u64,
}

impl<R: Read> Table<R> {
    /// Reads the header; `file` is for messages.
    pub(crate) fn open(input: R, file: &str) -> anyhow::Result<Self> {
        let mut csv =
            csv::ReaderBuilder::new().trim(csv::Trim::All).flexible(true).from_reader(input);
        let head = csv.headers().with_context(|| format!("{file}, header"))?;
        let clean = |name: &str| name.trim_start_matches('\u{feff}').to_owned();
        let head = head.iter().map(clean).collect();
        Ok(Self { csv, file: file.to_owned(), head, record: StringRecord::new(), number: 0 })
    }

    /// The places of these columns.
    pub(crate) fn columns(&self, names: &[&str]) -> anyhow::Result<Vec<usize>> {
        let place = |name: &&str| match self.column(name) {
            Some(place) => Ok(place),
            None => bail!("{}: no column {name}; there are {}", self.file, self.head.join(", ")),
        };
        names.iter().map(place).collect()
    }

    /// The place of a column that may be absent.
    pub(crate) fn column(&self, name: &str) -> Option<usize> {
        self.head.iter().position(|known| known == name)
    }

    /// The next record.
    pub(crate) fn next(&mut self) -> anyhow::Result<Option<StringRecord>> {
        self.number += 1;
        let read = self.csv.read_record(&mut self.record);
        if !read.with_context(|| self.place())? {
            return Ok(None);
        }
        if self.record.len() != self.head.len() {
            bail!(
                "{}: {} columns; the header has {}",
                self.place(),
                self.record.len(),
                self.head.len()
            );
        }
        Ok(Some(self.record.clone()))
    }

    /// Which record was read last, for messages.
    pub(crate) fn place(&self) -> String {
        format!("{}, record {}", self.file, self.number)
    }
}
