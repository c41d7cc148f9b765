//! Parquet: numbers as 64-bit floating point, instants as seconds, all else as text.

use std::borrow::Cow;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, bail};
use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{
    Array, ArrayRef, Float64Array, RecordBatch, RecordBatchReader as _, StringArray,
};
use arrow_cast::cast;
use arrow_schema::{ArrowError, DataType, TimeUnit};
use indicatif::ProgressBar;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};

/// Rows that are decoded at a time.
const BATCH: usize = 8192;

enum Column {
    Numbers(Float64Array),
    Texts(StringArray),
}

pub(super) struct ParquetRows {
    reader: ParquetRecordBatchReader,
    bar: ProgressBar,
    /// Bytes of the file, by its rows: the reader does not say where it reads.
    per_row: f64,
    batch: Vec<Column>,
    rows: usize,
    /// In the batch.
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

    pub(super) fn next(&mut self) -> anyhow::Result<bool> {
        self.at += 1;
        while self.at >= self.rows {
            let Some(batch) = self.reader.next() else { return Ok(false) };
            let batch = batch.with_context(|| format!("after row {}", self.row))?;
            (self.rows, self.at) = (batch.num_rows(), 0);
            self.batch = columns(&batch)?;
            self.bar.inc((self.per_row * self.rows as f64) as u64);
        }
        self.row += 1;
        Ok(true)
    }

    pub(super) fn text(&self, column: usize) -> Cow<'_, str> {
        match self.batch.get(column) {
            Some(Column::Texts(texts)) if texts.is_valid(self.at) => texts.value(self.at).into(),
            Some(Column::Numbers(numbers)) if numbers.is_valid(self.at) => {
                numbers.value(self.at).to_string().into()
            }
            _ => "".into(),
        }
    }

    pub(super) fn number(&self, column: usize) -> Option<f64> {
        match self.batch.get(column)? {
            Column::Numbers(numbers) if numbers.is_valid(self.at) => Some(numbers.value(self.at)),
            Column::Texts(texts) if texts.is_valid(self.at) => texts.value(self.at).parse().ok(),
            _ => Some(f64::NAN),
        }
    }

    pub(super) fn is_instant(&self, column: usize) -> bool {
        is_instant(self.reader.schema().field(column).data_type())
    }

    pub(super) fn row(&self) -> u64 {
        self.row
    }
}

/// Whether values of this kind know their unit of time.
pub(crate) fn is_instant(kind: &DataType) -> bool {
    matches!(kind, DataType::Timestamp(..) | DataType::Date32 | DataType::Date64)
}

/// Instants as whole seconds.
pub(crate) fn seconds(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    cast(&cast(column, &DataType::Timestamp(TimeUnit::Second, None))?, &DataType::Int64)
}

fn columns(batch: &RecordBatch) -> anyhow::Result<Vec<Column>> {
    let names = batch.schema();
    let named = names.fields().iter().zip(batch.columns());
    named.map(|(field, column)| one(column).with_context(|| field.name().clone())).collect()
}

fn one(column: &ArrayRef) -> anyhow::Result<Column> {
    let numbers = |column: &ArrayRef| -> anyhow::Result<Column> {
        Ok(Column::Numbers(cast(column, &DataType::Float64)?.as_primitive::<Float64Type>().clone()))
    };
    match column.data_type() {
        kind if kind.is_numeric() => numbers(column),
        kind if is_instant(kind) => numbers(&seconds(column)?),
        kind if kind.is_nested() => bail!("a column of {kind} is not read: flat tables are"),
        _ => Ok(Column::Texts(cast(column, &DataType::Utf8)?.as_string::<i32>().clone())),
    }
}
