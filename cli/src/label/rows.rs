//! One row per VM: half-hour averages of five working days, streamed.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};
use ballast_predict::week::{SLOTS, Week};
use csv::{ByteRecord, ReaderBuilder, Trim};

use super::{BATCH, Vm};

/// Reads all VMs, and hands them over batch by batch with the names of the further columns.
pub(crate) fn read(
    path: &Path,
    text: impl Read,
    labelled: &mut impl FnMut(&[String], Vec<Vm>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let file = path.display();
    let mut csv = ReaderBuilder::new().has_headers(false).trim(Trim::All).from_reader(text);
    let mut record = ByteRecord::new();
    if !csv.read_byte_record(&mut record).with_context(|| format!("{file}"))? {
        bail!("{file}: empty: a header and one row per VM are expected");
    }
    let names: Vec<String> = record.iter().map(text_of).collect();
    let columns = Columns::new(&names).with_context(|| format!("{file}:1"))?;
    let extra: Vec<String> = columns.extra.iter().map(|n| names[*n].clone()).collect();
    let mut batch = Vec::with_capacity(BATCH);
    while csv.read_byte_record(&mut record).with_context(|| format!("{file}"))? {
        let line = record.position().map_or(0, csv::Position::line);
        batch.push(columns.vm(&record, &names).with_context(|| format!("{file}:{line}"))?);
        if batch.len() == BATCH {
            labelled(&extra, std::mem::replace(&mut batch, Vec::with_capacity(BATCH)))?;
        }
    }
    labelled(&extra, batch)
}

/// Which column is what.
struct Columns {
    id: usize,
    slots: Vec<usize>,
    extra: Vec<usize>,
}

impl Columns {
    fn new(names: &[String]) -> anyhow::Result<Self> {
        let find = |wanted: &str| {
            let mut places =
                (0..names.len()).filter(|n| names[*n].trim_start_matches('\u{feff}') == wanted);
            match (places.next(), places.next()) {
                (Some(place), None) => Ok(place),
                (None, _) => bail!("no column {wanted:?}: needed are id and u0 to u239"),
                _ => bail!("column {wanted:?} is there twice"),
            }
        };
        let id = find("id")?;
        let slots =
            (0..SLOTS).map(|n| find(&format!("u{n}"))).collect::<anyhow::Result<Vec<_>>>()?;
        let extra = (0..names.len()).filter(|n| *n != id && !slots.contains(n)).collect();
        Ok(Self { id, slots, extra })
    }

    fn vm(&self, record: &ByteRecord, names: &[String]) -> anyhow::Result<Vm> {
        let mut values = [f64::NAN; SLOTS];
        for (value, column) in values.iter_mut().zip(&self.slots) {
            let cell = &record[*column];
            let known = std::str::from_utf8(cell).ok().and_then(|text| match text {
                "" => Some(f64::NAN),
                text => text.parse().ok(),
            });
            let Some(known) = known else {
                let seen: String = text_of(cell).chars().take(40).collect();
                bail!(
                    "{} = {seen:?}: allowed is a percentage, or nothing where it is missing",
                    names[*column]
                );
            };
            *value = known;
        }
        let cell = |n: &usize| text_of(&record[*n]);
        Ok(Vm {
            id: cell(&self.id),
            extra: self.extra.iter().map(cell).collect(),
            week: Ok(Week::new(values)),
        })
    }
}

fn text_of(cell: &[u8]) -> String {
    String::from_utf8_lossy(cell).into_owned()
}
