//! Parquet: numbers, instants, and all else as text.

use std::fs::File;
use std::io;
use std::path::Path;

use anyhow::{Context, bail};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_cast::cast;
use arrow_schema::{ArrowError, DataType, TimeUnit};
use ballast_sim::trace::Rows;
use ballast_sim::trace::cells::Cell;
use indicatif::ProgressBar;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};

/// Rows that are decoded at a time.
const BATCH: usize = 8192;

enum Column {
    Numbers(Float64Array),
    Integers(Int64Array),
    /// In milliseconds.
    Instants(Int64Array),
    Texts(StringArray),
}

pub(super) struct ParquetRows {
    reader: ParquetRecordBatchReader,
    bar: ProgressBar,
    /// Bytes of the file, by its rows: the reader does not say where it reads.
    per_row: f64,
    batch: Vec<Column>,
    rows: usize,
    at: usize,
    /// In the file, from 1.
    row: u64,
}

impl ParquetRows {
    pub(super) fn open(path: &Path, bar: &ProgressBar) -> anyhow::Result<(Self, Vec<String>)> {
        let bytes = File::open(path)?.metadata()?.len();
        let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(path)?)?;
        let headers = builder.schema().fields().iter().map(|f| f.name().to_owned()).collect();
        let rows = u64::try_from(builder.metadata().file_metadata().num_rows()).unwrap_or(0);
        let per_row = bytes as f64 / rows.max(1) as f64;
        let reader = builder.with_batch_size(BATCH).build()?;
        let bar = bar.clone();
        Ok((Self { bar, per_row, reader, batch: vec![], rows: 0, at: 0, row: 0 }, headers))
    }

    /// Decodes the next rows; `false` after the last.
    fn decode(&mut self) -> anyhow::Result<bool> {
        let Some(batch) = self.reader.next() else { return Ok(false) };
        let batch = batch.with_context(|| format!("after row {}", self.row))?;
        (self.rows, self.at) = (batch.num_rows(), 0);
        self.batch = columns(&batch)?;
        self.bar.inc((self.per_row * self.rows as f64) as u64);
        Ok(true)
    }
}

impl Rows for ParquetRows {
    fn advance(&mut self) -> io::Result<bool> {
        self.at += 1;
        while self.at >= self.rows {
            if !self.decode().map_err(|error| io::Error::other(format!("{error:#}")))? {
                return Ok(false);
            }
        }
        self.row += 1;
        Ok(true)
    }

    fn cell(&self, column: usize) -> Cell<'_> {
        match self.batch.get(column) {
            Some(Column::Texts(all)) if all.is_valid(self.at) => Cell::Text(all.value(self.at).trim().into()),
            Some(Column::Numbers(all)) if all.is_valid(self.at) => Cell::Number(all.value(self.at)),
            Some(Column::Integers(all)) if all.is_valid(self.at) => Cell::Integer(all.value(self.at)),
            Some(Column::Instants(all)) if all.is_valid(self.at) => Cell::Instant(all.value(self.at)),
            _ => Cell::Null,
        }
    }

    fn place(&self) -> String {
        format!("row {}", self.row)
    }
}

/// Whether values of this kind know their unit of time.
pub(crate) fn is_instant(kind: &DataType) -> bool {
    matches!(kind, DataType::Timestamp(..) | DataType::Date32 | DataType::Date64)
}

pub(crate) fn millis(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    cast(&cast(column, &DataType::Timestamp(TimeUnit::Millisecond, None))?, &DataType::Int64)
}

fn columns(batch: &RecordBatch) -> anyhow::Result<Vec<Column>> {
    let names = batch.schema();
    let named = names.fields().iter().zip(batch.columns());
    named.map(|(field, column)| one(column).with_context(|| field.name().clone())).collect()
}

fn one(column: &ArrayRef) -> anyhow::Result<Column> {
    Ok(match column.data_type() {
        kind if kind.is_integer() && *kind != DataType::UInt64 => {
            Column::Integers(cast(column, &DataType::Int64)?.as_primitive::<Int64Type>().clone())
        }
        kind if kind.is_numeric() => {
            let numbers = cast(column, &DataType::Float64)?;
            Column::Numbers(numbers.as_primitive::<Float64Type>().clone())
        }
        kind if is_instant(kind) => Column::Instants(millis(column)?.as_primitive::<Int64Type>().clone()),
        kind if kind.is_nested() => bail!("a column of {kind} is not read: flat tables are"),
        _ => Column::Texts(cast(column, &DataType::Utf8)?.as_string::<i32>().clone()),
    })
}
