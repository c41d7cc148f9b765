//! Histograms that were counted elsewhere: one alone, or parts that manifests declare.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, ensure};
use ballast_planner::{Histogram, Intake, Part, Parts};
use ballast_types::Watts;
use indicatif::ProgressBar;
use serde::Deserialize;

use crate::common::table;

type Draws = BTreeMap<String, Histogram>;

/// What histograms were counted for, and what each of them counts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    period_s: u32,
    resolution_w: Watts,
    most_w: Watts,
    part: Vec<Declared>,
}

/// Paths are seen from the manifest's folder.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Declared {
    histogram: PathBuf,
    chassis: Chassis,
    from_s: i64,
    until_s: i64,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a list of names, or a file with a column \"chassis\"")]
enum Chassis {
    Names(Vec<String>),
    File(PathBuf),
}

/// Adds up all draws, by hardware generation.
pub(super) fn read(files: &[PathBuf], intake: &Intake) -> anyhow::Result<Draws> {
    let mut all = Draws::new();
    let mut parts = Parts::new(intake.period_s);
    for file in files {
        let taken = if file.extension().is_some_and(|kind| kind == "toml") {
            manifest(file, intake, &mut parts, &mut all)
        } else if files.len() == 1 {
            add(&mut all, &count(file, intake, false)?)
        } else {
            Err(anyhow!(
                "{} does not say which chassis it counts, and when: two histograms or more are declared in a \
                 manifest (.toml), so that no reading counts twice",
                file.display()
            ))
        };
        table::named(file, taken)?;
    }
    Ok(all)
}

fn manifest(path: &Path, intake: &Intake, parts: &mut Parts, all: &mut Draws) -> anyhow::Result<()> {
    let manifest: Manifest = toml::from_str(&std::fs::read_to_string(path)?)?;
    let Intake { period_s, resolution, max: most } = *intake;
    for (key, found, wanted) in
        [("resolution_w", manifest.resolution_w, resolution), ("most_w", manifest.most_w, most)]
    {
        let flag = key.replace('_', "-");
        ensure!(found == wanted, "{key} = {}: --{flag} is {}", found.as_f64(), wanted.as_f64());
    }

    ensure!(manifest.period_s == period_s, "period_s = {}: --period-s is {period_s}", manifest.period_s);

    let folder = path.parent().unwrap_or(Path::new(""));

    for Declared { histogram, chassis, from_s, until_s } in manifest.part {
        let file = folder.join(histogram);
        let draws = count(&file, intake, true)?;
        let chassis = match chassis {
            Chassis::Names(names) => names,
            Chassis::File(list) => {
                let list = folder.join(list);
                table::named(&list, names(&list))?
            }
        };

        let part = Part { name: file.display().to_string(), chassis, from_s, until_s };
        parts.add(part, draws.values())?;
        add(all, &draws)?;
    }

    Ok(())
}

fn add(all: &mut Draws, more: &Draws) -> anyhow::Result<()> {
    for (generation, draws) in more {
        match all.get_mut(generation) {
            Some(sum) => sum.merge(draws)?,
            None => drop(all.insert(generation.clone(), draws.clone())),
        }
    }
    Ok(())
}

/// The column `chassis` of a table.
fn names(file: &Path) -> anyhow::Result<Vec<String>> {
    let mut table = table::open(file, &ProgressBar::hidden())?;
    let column = table.column("chassis")?;
    let mut all = vec![];
    while table.advance()? {
        let name = table.text(column);
        if name.is_empty() {
            return Err(table.refuse(column, "a name").into());
        }
        all.push(name.into_owned());
    }
    Ok(all)
}

/// One histogram. `exact` are draws at the meter's resolution.
fn count(file: &Path, intake: &Intake, exact: bool) -> anyhow::Result<Draws> {
    table::named(file, rows(file, intake, exact))
}

fn rows(file: &Path, intake: &Intake, exact: bool) -> anyhow::Result<Draws> {
    const COUNT: &str = "how many readings, 0 or more,";
    let (step, most) = (intake.resolution.milli(), intake.max.as_f64());
    let exactly = if exact { " a multiple of --resolution-w," } else { "" };
    let allowed = format!("above 0 W, up to --most-w ({most}),{exactly}");

    // The highest draw counts at its nearest step, which may be above.
    let most = intake.draw(most).max(Some(intake.max));
    let mut table = table::open(file, &ProgressBar::hidden())?;
    let (watts, counts) = (table.column("watts")?, table.column("count")?);
    let generation = table.column("generation").ok();
    let mut all = Draws::new();

    while table.advance()? {
        let draw = Watts::from_f64(table.number(watts, &allowed)?)
            .filter(|&draw| draw > Watts::ZERO && Some(draw) <= most)
            .filter(|draw| !exact || draw.milli() % step == 0)
            .ok_or_else(|| table.refuse(watts, &allowed))?;
        let times = u64::try_from(table.integer(counts, COUNT)?);
        let times = times.map_err(|_| table.refuse(counts, COUNT))?;
        let name = generation.map_or("".into(), |column| table.text(column));

        match all.get_mut(&*name) {
            Some(histogram) => histogram.add(draw, times),
            None => {
                let mut histogram = Histogram::new(intake.resolution)?;
                histogram.add(draw, times);
                all.insert(name.into_owned(), histogram);
            }
        }
    }

    Ok(all)
}
