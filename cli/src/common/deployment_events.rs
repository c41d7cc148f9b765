//! Events of deployments, from a table.

use std::path::Path;

use anyhow::{Context, bail};
use indicatif::ProgressBar;

use super::table;

/// More cores of a deployment, or fewer.
pub(crate) struct DeploymentEvent {
    pub(crate) deployment: String,
    /// Its tenant or template; empty where that is not known.
    pub(crate) label: String,
    pub(crate) at_h: f64,
    pub(crate) cores: f64,
}

/// Reads a table of events, and hands them on one by one; an error of `take` gets the number of its row.
pub(crate) fn read<E>(
    path: &Path,
    mut take: impl FnMut(&DeploymentEvent) -> Result<(), E>,
) -> anyhow::Result<()>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let mut rows = || {
        let mut table = table::open(path, &ProgressBar::hidden())?;
        let [deployment, time, cores] = ["deployment", "time_h", "cores"].map(|name| table.column(name));
        let (deployment, time, cores) = (deployment?, time?, cores?);
        let has_label = table.headers().iter().any(|header| header == "label");
        let label = has_label.then(|| table.column("label")).transpose()?;
        let mut row = 1_u64;
        while table.advance()? {
            row += 1;
            let event = DeploymentEvent {
                deployment: table.text(deployment).into_owned(),
                label: label.map_or(String::new(), |label| table.text(label).into_owned()),
                at_h: table.number(time, "hours")?,
                cores: table.number(cores, "cores")?,
            };
            for (column, number) in [("time_h", event.at_h), ("cores", event.cores)] {
                if number.is_nan() {
                    bail!("row {row}: {column} is missing");
                }
            }
            take(&event).with_context(|| format!("row {row}"))?;
        }
        Ok(())
    };
    table::named(path, rows())
}
