//! Telemetry and histograms, from files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use ballast_planner::{ChassisIndex, Histogram, Intake, Readings, ReadingsError};
use ballast_types::Watts;
use indicatif::ProgressBar;

use super::args::Columns;
use crate::table::Table;

/// What is done with a reading: all chassis, this one, its second, its watts.
type Each<'a> = dyn FnMut(&mut Readings, ChassisIndex, i64, f64) -> Result<(), ReadingsError> + 'a;

/// Counts all of the files' readings.
pub(super) fn telemetry(
    files: &[PathBuf],
    columns: &Columns,
    intake: Intake,
) -> anyhow::Result<Readings> {
    let mut readings = Readings::new(intake)?;
    each(files, columns, &mut readings, |all, chassis, t_s, watts| all.take(chassis, t_s, watts))?;
    Ok(readings)
}

/// Hands every reading of the files to `then`.
pub(super) fn each(
    files: &[PathBuf],
    columns: &Columns,
    readings: &mut Readings,
    mut then: impl FnMut(&mut Readings, ChassisIndex, i64, f64) -> Result<(), ReadingsError>,
) -> anyhow::Result<()> {
    for file in files {
        one(file, columns, readings, &mut then)
            .with_context(|| format!("cannot take {}", file.display()))?;
    }
    Ok(())
}

fn one(
    file: &Path,
    columns: &Columns,
    readings: &mut Readings,
    then: &mut Each<'_>,
) -> anyhow::Result<()> {
    let mut table = Table::open(file, &ProgressBar::hidden())?;
    let time = table.column(&columns.time_column)?;
    let chassis = table.column(&columns.chassis_column)?;
    let watts = table.column(&columns.watts_column)?;
    let generation = table.column(&columns.generation_column).ok();
    let mut last: Option<(String, String, ChassisIndex)> = None;
    while table.next()? {
        let t_s = table.integer(time, "a whole number of seconds")?;
        let draw = table.number(watts, "watts")?;
        let name = table.text(chassis);
        let of = generation.map_or("".into(), |column| table.text(column));
        let index = match &last {
            Some((before, of_before, index)) if *before == name && *of_before == of => *index,
            _ => {
                if name.is_empty() {
                    return Err(table.refuse(chassis, "a name"));
                }
                let index = readings.chassis(&name, &of).with_context(|| table.place())?;
                last = Some((name.into_owned(), of.into_owned(), index));
                index
            }
        };
        then(readings, index, t_s, draw).with_context(|| table.place())?;
    }
    Ok(())
}

/// Adds up histograms, by hardware generation.
pub(super) fn histograms(
    files: &[PathBuf],
    resolution: Watts,
) -> anyhow::Result<BTreeMap<String, Histogram>> {
    let mut all = BTreeMap::new();
    for file in files {
        count(file, resolution, &mut all)
            .with_context(|| format!("cannot take {}", file.display()))?;
    }
    Ok(all)
}

fn count(
    file: &Path,
    resolution: Watts,
    all: &mut BTreeMap<String, Histogram>,
) -> anyhow::Result<()> {
    const DRAW: &str = "above 0 W, up to 1e9 W,";
    const COUNT: &str = "how many readings, 0 or more,";
    let mut table = Table::open(file, &ProgressBar::hidden())?;
    let (watts, counts) = (table.column("watts")?, table.column("count")?);
    let generation = table.column("generation").ok();
    while table.next()? {
        let draw = Watts::from_f64(table.number(watts, DRAW)?).filter(|&w| w > Watts::ZERO);
        let draw = draw.ok_or_else(|| table.refuse(watts, DRAW))?;
        let times = u64::try_from(table.integer(counts, COUNT)?);
        let times = times.map_err(|_| table.refuse(counts, COUNT))?;
        let name = generation.map_or("".into(), |column| table.text(column));
        match all.get_mut(&*name) {
            Some(histogram) => histogram.add(draw, times),
            None => {
                let mut histogram = Histogram::new(resolution)?;
                histogram.add(draw, times);
                all.insert(name.into_owned(), histogram);
            }
        }
    }
    Ok(())
}
