//! Histograms, from files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use ballast_planner::Histogram;
use ballast_types::Watts;
use indicatif::ProgressBar;

use crate::table::Table;

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
