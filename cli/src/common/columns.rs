//! Telemetry files on a command line: which columns are read, and what they hold. See docs/place-and-plan/telemetry.md.

use std::path::Path;

use ballast_sim::trace::{ReadOptions, TimeUnit, Trace, Unit};
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;

use crate::common::table;

/// Their own part of the help, whatever the arguments around them.
const HEADING: &str = "Columns of telemetry";

/// Which columns of a file are read, where their names are not the usual ones.
#[derive(Args, Clone, Debug, Default)]
pub struct ColumnArgs {
    /// The time column: RFC 3339, or numbers since 1970
    /// [default: timestamp, t_s, time or another usual name, see the page Telemetry in the book]
    #[arg(long, value_name = "NAME", help_heading = HEADING)]
    time_column: Option<String>,
    /// What the time column's numbers count [default: what their size says]
    #[arg(long, value_enum, value_name = "UNIT", help_heading = HEADING)]
    time_unit: Option<TimeUnitArg>,
    /// The column that says whose a value is [default: server, vm, chassis, host or another usual name]
    #[arg(long, value_name = "NAME", help_heading = HEADING)]
    server_column: Option<String>,
    /// The value column; blank, NA, null, no reading and the like are missing
    /// [default: watts, power_w, cpu_pct, utilisation or another usual name]
    #[arg(long, value_name = "NAME", help_heading = HEADING)]
    value_column: Option<String>,
    /// What the values mean [default: what the column's name says]
    #[arg(long, value_enum, help_heading = HEADING)]
    unit: Option<UnitArg>,
}

/// What a value means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum UnitArg {
    /// Percent of a server's or VM's CPU
    Percent,
    /// The same from 0 to 1
    Share,
    /// Watts
    Watts,
}

/// What a number of the time column counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TimeUnitArg {
    /// Seconds
    S,
    /// Milliseconds
    Ms,
    /// Microseconds
    Us,
    /// Nanoseconds
    Ns,
}

impl ColumnArgs {
    pub fn options(&self) -> ReadOptions {
        ReadOptions {
            time_column: self.time_column.clone(),
            time_unit: self.time_unit.map(|unit| match unit {
                TimeUnitArg::S => TimeUnit::Seconds,
                TimeUnitArg::Ms => TimeUnit::Milliseconds,
                TimeUnitArg::Us => TimeUnit::Microseconds,
                TimeUnitArg::Ns => TimeUnit::Nanoseconds,
            }),
            series_column: self.server_column.clone(),
            value_column: self.value_column.clone(),
            unit: self.unit.map(|unit| match unit {
                UnitArg::Percent => Unit::Percent,
                UnitArg::Share => Unit::Share,
                UnitArg::Watts => Unit::Watts,
            }),
            ..ReadOptions::default()
        }
    }

    /// The column that names the series, where it was told.
    pub fn server_column(&self) -> Option<&str> {
        self.server_column.as_deref()
    }

    pub fn to_args(&self) -> Vec<String> {
        let name = |value: Option<clap::builder::PossibleValue>| Some(value?.get_name().to_owned());
        [
            ("time-column", self.time_column.clone()),
            ("time-unit", name(self.time_unit.and_then(|unit| unit.to_possible_value()))),
            ("server-column", self.server_column.clone()),
            ("value-column", self.value_column.clone()),
            ("unit", name(self.unit.and_then(|unit| unit.to_possible_value()))),
        ]
        .into_iter()
        .filter_map(|(flag, value)| Some(format!("--{flag}={}", value?)))
        .collect()
    }

    pub fn read(&self, path: &Path) -> anyhow::Result<Trace> {
        let table = table::open(path, &ProgressBar::hidden());
        table::named(path, table.and_then(|table| Ok(Trace::from_table(table, &self.options())?)))
    }
}
