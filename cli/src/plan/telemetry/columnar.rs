//! Parquet by columns: names are looked up once for each entry of a dictionary, not once a row.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int32Type, Int64Type};
use arrow_array::{Array, ArrayRef, DictionaryArray, RecordBatch, StringArray};
use arrow_cast::cast;
use arrow_schema::{DataType, Field, Schema};
use ballast_planner::ChassisIndex;
use ballast_sim::trace::cells::{Cell, Times, rfc_3339};
use ballast_sim::trace::{Layout, Samples, TraceError, VALUE};
use indicatif::ProgressBar;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};

use super::worker::{BATCH, NAME, Worker, watts};
use crate::common::table::parquet_rows::{is_instant, millis};
use crate::common::table::{self, is_parquet};
use crate::plan::columns::Columns;

/// A Parquet file whose columns are of the usual kinds.
#[derive(Clone)]
pub(super) struct Columnar {
    path: Arc<Path>,
    metadata: ArrowReaderMetadata,
    time: Arc<str>,
    chassis: Arc<str>,
    watts: Arc<str>,
    generation: Option<Arc<str>>,
    /// The times of the whole file are of the first one's kind.
    times: Times,
}

impl Columnar {
    /// Looks at a file; `None` for what must be read row by row: no Parquet, or columns of other kinds.
    pub(super) fn open(path: &Path, names: &Columns) -> anyhow::Result<Option<Self>> {
        if !is_parquet(path)? {
            return Ok(None);
        }
        let mut samples = Samples::new(table::open(path, &ProgressBar::hidden())?, &names.options())?;
        let layout = samples.layout().clone();
        watts(&layout)?;
        let Layout::Long { time, series: Some(chassis), value, .. } = layout else {
            return Ok(None);
        };
        let found = ArrowReaderMetadata::load(&File::open(path)?, ArrowReaderOptions::new())?;
        let fields = found.schema().fields();
        let headers = samples.table().headers();
        let generation = samples.table().column(&names.generation_column).ok();
        let kind = |column: usize| fields[column].data_type();
        let name = |column: usize| Arc::from(headers[column].as_str());
        let usual = (kind(time).is_integer() && *kind(time) != DataType::UInt64 || is_instant(kind(time)))
            && is_name(kind(chassis))
            && kind(value).is_numeric()
            && generation.is_none_or(|column| is_name(kind(column)));
        let columns = [time, chassis, value].map(name);
        let generation = generation.map(name);

        // A first time that is none is named row by row.
        if !usual || !matches!(samples.advance(), Ok(Some(_))) {
            return Ok(None);
        }

        let wanted = fields.iter().map(|field| match field.data_type() {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
                Arc::new(Field::clone(field).with_data_type(dictionary()))
            }
            _ => Arc::clone(field),
        });

        let wanted = Schema::new(wanted.collect::<Vec<_>>());
        let options = ArrowReaderOptions::new().with_schema(Arc::new(wanted));
        let metadata = ArrowReaderMetadata::try_new(Arc::clone(found.metadata()), options)?;
        let [time, chassis, watts] = columns;
        let times = samples.times().clone();
        let path = PathBuf::from(path).into();

        Ok(Some(Self { path, metadata, time, chassis, watts, generation, times }))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn groups(&self) -> usize {
        self.metadata.metadata().num_row_groups()
    }

    pub(super) fn read(&self, group: usize, to: &mut Worker<'_>, bar: &ProgressBar) -> anyhow::Result<()> {
        let file = File::open(&self.path)?;
        let bytes = file.metadata()?.len() as f64;
        let metadata = self.metadata.metadata();
        let rows = |count: i64| usize::try_from(count).unwrap_or(0);
        let before = metadata.row_groups()[..group].iter().map(|group| rows(group.num_rows()));
        let mut first = before.sum::<usize>() + 1;
        let per_row = bytes / rows(metadata.file_metadata().num_rows()).max(1) as f64;
        let names = [&*self.time, &*self.chassis, &*self.watts].into_iter();
        let mask = ProjectionMask::columns(
            metadata.file_metadata().schema_descr(),
            names.chain(self.generation.as_deref()),
        );

        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone());
        let batches =
            builder.with_row_groups(vec![group]).with_projection(mask).with_batch_size(BATCH).build()?;
        let mut known = NamedChassis::default();

        for batch in batches {
            let batch = batch.with_context(|| format!("from row {first}"))?;
            self.take(&batch, first, &mut known, to)?;
            first += batch.num_rows();
            bar.inc((per_row * batch.num_rows() as f64) as u64);
        }

        Ok(())
    }

    fn take(
        &self,
        batch: &RecordBatch,
        first: usize,
        known: &mut NamedChassis,
        to: &mut Worker<'_>,
    ) -> anyhow::Result<()> {
        let by_name = |name: &str| batch.column_by_name(name).context("a column has gone");
        let time = by_name(&self.time)?;
        let instants = is_instant(time.data_type());
        let time = if instants { millis(time)? } else { cast(time, &DataType::Int64)? };
        let time = time.as_primitive::<Int64Type>();
        let mut times = self.times.clone();
        let watts = cast(by_name(&self.watts)?, &DataType::Float64)?;
        let watts = watts.as_primitive::<Float64Type>();
        let chassis = names(by_name(&self.chassis)?)?;
        let generation = self.generation.as_deref().map(|name| names(by_name(name)?)).transpose()?;
        known.turn_to(&chassis);

        for row in 0..batch.num_rows() {
            let number = time.is_valid(row).then(|| time.value(row));
            let ms = match number {
                Some(number) if !instants => times.whole(number),
                _ => times.read(&number.map_or(Cell::Null, Cell::Instant), rfc_3339),
            };
            let t_s = ms.map(|ms| ms.div_euclid(1000)).map_err(|needed| {
                let value = number.map(|number| number.to_string()).unwrap_or_default();
                self.refuse(first + row, &self.time, &value, &needed)
            })?;

            let Some(key) = chassis.key(row) else {
                return Err(self.refuse(first + row, &self.chassis, "", NAME));
            };
            let of = generation.as_ref().and_then(|generation| generation.key(row));
            let index = match known.all[key] {
                Some((before, index)) if before == of => index,
                _ => {
                    let name = text(&chassis, key);
                    if name.is_empty() {
                        return Err(self.refuse(first + row, &self.chassis, "", NAME));
                    }
                    let of_name = generation.as_ref().zip(of).map_or("", |(all, of)| text(all, of));
                    let index = to
                        .chassis(name, of_name)
                        .with_context(|| format!("{}, row {}", self.path.display(), first + row))?;
                    known.all[key] = Some((of, index));
                    index
                }
            };

            let draw = if watts.is_valid(row) { watts.value(row) } else { f64::NAN };

            if draw.is_infinite() {
                return Err(self.refuse(first + row, &self.watts, &draw.to_string(), VALUE));
            }
            to.take(index, t_s, draw)?;
        }

        Ok(())
    }
}

impl Columnar {
    fn refuse(&self, row: usize, column: &str, value: &str, allowed: &str) -> anyhow::Error {
        let error = TraceError::Cell {
            file: self.path.display().to_string(),
            place: format!("row {row}"),
            column: column.to_owned(),
            value: value.to_owned(),
            allowed: allowed.to_owned(),
        };
        error.into()
    }
}

/// The chassis of a dictionary, with the generation's key that each had.
#[derive(Default)]
struct NamedChassis {
    values: Option<ArrayRef>,
    all: Vec<Option<(Option<usize>, ChassisIndex)>>,
}

impl NamedChassis {
    /// Forgets all where the dictionary is another one than before.
    fn turn_to(&mut self, names: &DictionaryArray<Int32Type>) {
        if self.values.as_ref().is_none_or(|values| !Arc::ptr_eq(values, names.values())) {
            self.values = Some(Arc::clone(names.values()));
            self.all = vec![None; names.values().len()];
        }
    }
}

fn dictionary() -> DataType {
    DataType::Dictionary(DataType::Int32.into(), DataType::Utf8.into())
}

/// Texts and whole numbers name chassis.
fn is_name(kind: &DataType) -> bool {
    match kind {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => is_name(values),
        kind => kind.is_integer(),
    }
}

fn names(column: &ArrayRef) -> anyhow::Result<DictionaryArray<Int32Type>> {
    Ok(cast(column, &dictionary())?.as_dictionary::<Int32Type>().clone())
}

fn text(names: &DictionaryArray<Int32Type>, key: usize) -> &str {
    let values: &StringArray = names.values().as_string::<i32>();
    if values.is_valid(key) { values.value(key) } else { "" }
}
