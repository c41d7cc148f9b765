//! What chassis managers recorded, as telemetry.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use anyhow::{Context, bail};
use ballast_sim::replay::{Part, RecordedDraws};
use indicatif::ProgressBar;

use super::telemetry::worker::Worker;
use crate::common::recording;
use crate::common::terminal::tell;

/// Whether `path` is a recording: a folder of them, or a file of one.
pub(super) fn is_one(path: &Path) -> bool {
    path.is_dir() || recording::is_one(path)
}

/// The files of all chassis managers' recordings among `paths`; other daemons' are left out.
pub(super) fn files(paths: &[&PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for path in paths {
        let mut found = recording::files(path)?;
        // A header that cannot be read is judged with the files around it.
        found.retain(|file| {
            recording::machine(file).ok().flatten().is_none_or(|machine| machine == "chassis")
        });
        if found.is_empty() {
            bail!("{}: holds no recording of a chassis manager", path.display());
        }
        all.append(&mut found);
    }
    // Their names hold the start and a number, so that each start's files are together.
    all.sort();
    all.dedup();
    Ok(all)
}

/// Reads them: one mean for each unit of time.
pub(super) fn read(
    files: &[PathBuf],
    period: Duration,
    to: &mut Worker<'_>,
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    let mut draws = RecordedDraws::new(period);
    let parts = files.iter().map(|path| {
        let name = path.display().to_string();
        let file = File::open(path).with_context(|| name.clone())?;
        let lines = recording::lines(bar.wrap_read(file)).with_context(|| name.clone())?;
        Ok(Part { name, lines })
    });
    draws.take(parts.collect::<anyhow::Result<_>>()?)?;
    let mut capped = 0;

    for (name, units) in draws.chassis() {
        let chassis = to.chassis(name, "")?;
        for unit in units {
            capped += u64::from(unit.capped);
            to.take(chassis, unit.t_s, unit.watts.as_f64())?;
        }
    }

    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        if capped > 0 {
            tell(&format!(
                "{capped} units of time were recorded under capping: without it the chassis would have drawn \
                 more"
            ));
        }
    });

    Ok(())
}
