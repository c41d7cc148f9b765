//! Opens tables: CSV, plain or zstd, and Parquet. Memory stays that of a few rows or one batch.

pub(crate) mod parquet_rows;

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use anyhow::{Context, bail};
use ballast_sim::trace::{self, PARQUET, TableReader, TraceError};
use indicatif::ProgressBar;

use parquet_rows::ParquetRows;

/// Opens a file or a pipe; Parquet by its first bytes, everything else is CSV. `bar` moves by bytes.
pub fn open(path: &Path, bar: &ProgressBar) -> anyhow::Result<TableReader<'static>> {
    let name = path.display().to_string();
    if is_parquet(path)? {
        let (rows, headers) = ParquetRows::open(path, bar)?;
        return Ok(TableReader::new(&name, headers, Box::new(rows)));
    }
    Ok(TableReader::csv(bar.wrap_read(plain(path)?), &name)?)
}

/// Opens what holds a table: devices have no end.
pub fn plain(path: &Path) -> anyhow::Result<BufReader<File>> {
    let kind = fs::metadata(path)?.file_type();
    if !kind.is_file() && !kind.is_fifo() {
        let what = if kind.is_dir() { "a folder" } else { "a device" };
        bail!("a file or a pipe is needed, this is {what}");
    }
    Ok(BufReader::with_capacity(1 << 16, File::open(path)?))
}

/// Opens the text of a file, or of stdin for `-`; what is compressed with zstd is unpacked.
pub fn text(path: &Path) -> anyhow::Result<Box<dyn Read>> {
    let what = || path.display().to_string();
    let raw: Box<dyn Read> = match path.to_str() {
        Some("-") => Box::new(io::stdin()),
        _ => Box::new(plain(path).with_context(what)?),
    };
    trace::text(raw).with_context(what)
}

/// All bytes of a file or a pipe.
pub fn bytes(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = vec![];
    plain(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether the file is Parquet. A pipe never is: its end must be read first.
pub fn is_parquet(path: &Path) -> io::Result<bool> {
    if !fs::metadata(path)?.is_file() {
        return Ok(false);
    }
    let mut magic = vec![];
    File::open(path)?.take(4).read_to_end(&mut magic)?;
    Ok(magic == PARQUET)
}

/// The result, with an error that names the file.
pub fn named<T>(path: &Path, result: anyhow::Result<T>) -> anyhow::Result<T> {
    result.map_err(|error| match error.is::<TraceError>() {
        true => error,
        false => error.context(format!("cannot take {}", path.display())),
    })
}

/// What a file without a column of names is called: its name without folder and endings.
pub fn stem(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.unwrap_or_else(|| path.display().to_string());
    let name = name.strip_suffix(".zst").unwrap_or(&name);
    let stem = [".csv", ".parquet"].into_iter().find_map(|end| name.strip_suffix(end));
    stem.unwrap_or(name).to_owned()
}
