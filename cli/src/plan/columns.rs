//! How the telemetry is read.

use ballast_sim::trace::{ReadOptions, Unit};
use clap::Args;

use crate::common::columns::ColumnArgs;
use crate::common::numbers::positive;

/// How the telemetry is read.
#[derive(Args, Debug)]
#[command(next_help_heading = "Telemetry")]
pub(super) struct Columns {
    #[command(flatten)]
    columns: ColumnArgs,
    /// The column with the hardware generation; without it all chassis are of one
    #[arg(long, value_name = "NAME", default_value = "generation")]
    pub(super) generation_column: String,
    /// The unit of time, in seconds: one reading of a chassis counts in each
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) period_s: u32,
    /// No chassis draws more than this, in watts: above stand sentinels [default: twice --provisioned-w]
    #[arg(long, value_name = "W", value_parser = positive)]
    pub(super) most_w: Option<f64>,
    /// Leave out what a stuck meter repeats: where a chassis draws the same for so many seconds, only the
    /// first reading stays [default: none is left out]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with = "histogram")]
    stuck_s: Option<u32>,
    /// Read Parquet as CSV is read, row by row: what `ballast-lab bench plan` compares with
    #[arg(long, hide = true)]
    pub(super) row_by_row: bool,
}

impl Columns {
    /// How the files are read: these are draws.
    pub(super) fn options(&self) -> ReadOptions {
        let usual_unit = Some(Unit::Watts);
        ReadOptions { series_names: &["chassis"], usual_unit, ..self.columns.options() }
    }

    /// In how many units of time a row the same draw is a stuck meter's.
    pub(super) fn stuck_units(&self) -> Option<u64> {
        self.stuck_s.map(|s| s.div_ceil(self.period_s).into())
    }
}
