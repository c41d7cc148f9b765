//! Measurements that were made elsewhere: CSV or Parquet.

use std::path::Path;

use ballast_planner::Point;
use indicatif::ProgressBar;

use crate::common::table;

/// Reads `utilisation`, `frequency`, `watts` and, where it is there, `error_w`.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<Point>> {
    table::named(path, table(path))
}

fn table(path: &Path) -> anyhow::Result<Vec<Point>> {
    let mut table = table::open(path, &ProgressBar::hidden())?;
    let utilisation = table.column("utilisation")?;
    let frequency = table.column("frequency")?;
    let watts = table.column("watts")?;
    let error = table.column("error_w").ok();
    let mut points = vec![];
    while table.advance()? {
        let error = error.map(|column| table.number(column, "watts, or nothing")).transpose()?;
        points.push(Point {
            utilisation: table.number(utilisation, "a share, 0 to 1")?,
            frequency: table.number(frequency, "a share of the highest, above 0 to 1")?,
            watts: table.number(watts, "watts")?,
            error_w: error.filter(|w| !w.is_nan()),
        });
    }
    Ok(points)
}
