//! Which columns of a file mean what.

use super::cells::TimeUnit;
use super::{ReadOptions, TableReader, TraceError, Unit};

/// Usual names of the time column; of several the first in this list is taken.
pub const TIMES: [&str; 15] = [
    "timestamp",
    "t_s",
    "t",
    "time",
    "time_s",
    "time_ms",
    "timestamp_s",
    "timestamp_ms",
    "ts",
    "datetime",
    "date_time",
    "date",
    "epoch",
    "epoch_ms",
    "unix_time",
];
/// Usual names of the column that says whose a value is.
pub const SERIES: [&str; 16] = [
    "server",
    "vm",
    "chassis",
    "pdu",
    "host",
    "hostname",
    "node",
    "machine",
    "instance",
    "server_id",
    "vm_id",
    "chassis_id",
    "host_id",
    "node_id",
    "machine_id",
    "id",
];
/// Usual names of the value column, and what it holds; of some only the user knows.
pub const VALUES: [(&str, Option<Unit>); 26] = [
    ("watts", Some(Unit::Watts)),
    ("power_w", Some(Unit::Watts)),
    ("power_watts", Some(Unit::Watts)),
    ("draw_w", Some(Unit::Watts)),
    ("watt", Some(Unit::Watts)),
    ("power", Some(Unit::Watts)),
    ("utilisation", Some(Unit::Share)),
    ("utilization", Some(Unit::Share)),
    ("cpu_share", Some(Unit::Share)),
    ("measured_power_util", Some(Unit::Share)),
    ("utilisation_pct", Some(Unit::Percent)),
    ("utilization_pct", Some(Unit::Percent)),
    ("utilisation_percent", Some(Unit::Percent)),
    ("utilization_percent", Some(Unit::Percent)),
    ("cpu_pct", Some(Unit::Percent)),
    ("cpu_percent", Some(Unit::Percent)),
    ("cpu_usage_pct", Some(Unit::Percent)),
    ("cpu_usage_percent", Some(Unit::Percent)),
    ("cpu_utilisation_pct", Some(Unit::Percent)),
    ("cpu_utilization_pct", Some(Unit::Percent)),
    ("cpu_load_pct", Some(Unit::Percent)),
    ("percent", Some(Unit::Percent)),
    ("value", None),
    ("cpu", None),
    ("cpu_usage", None),
    ("reading", None),
];
/// Endings of other names that say what a column holds.
const ENDINGS: [(&str, Unit); 6] = [
    ("_w", Unit::Watts),
    ("_watts", Unit::Watts),
    ("_pct", Unit::Percent),
    ("_percent", Unit::Percent),
    ("_share", Unit::Share),
    ("_ratio", Unit::Share),
];

/// How the cells of a file are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One column per series, one row per time.
    Wide,
    /// One row per series and time.
    Long,
}

/// Where the cells of a file stand.
#[derive(Clone, Debug, PartialEq)]
pub enum Layout {
    /// One column per series; without a time column the rows are on a regular grid.
    Wide { time: Option<usize>, series: Vec<usize>, unit: Unit },
    /// One row per series and time.
    Long {
        time: usize,
        /// The column that names the series; `None` where there is one series.
        series: Option<usize>,
        value: usize,
        unit: Unit,
    },
}

/// A name as the lists have it: case, blanks and punctuation do not matter, and `%` is `pct`.
fn plain(name: &str) -> String {
    let name = name.replace('%', " pct ").to_ascii_lowercase();
    let words = name.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("_")
}

fn unit_of(name: &str) -> Option<Unit> {
    let listed = VALUES.iter().find(|(known, _)| *known == name);
    let ending = || ENDINGS.iter().find(|(ending, _)| name.ends_with(ending));
    listed.map_or_else(|| Some(ending()?.1), |(_, unit)| *unit)
}

impl Layout {
    /// Finds the layout by the header's names, and by what is told.
    /// This fails if a column is told that is not there, or one is needed that has no usual name.
    pub fn of(table: &TableReader<'_>, options: &ReadOptions) -> Result<Self, TraceError> {
        let names: Vec<String> = table.headers().iter().map(|name| plain(name)).collect();
        let find = |told: &Option<String>, usual: &[&str]| match told {
            Some(name) => table.column(name).map(Some),
            None => Ok(usual.iter().find_map(|name| names.iter().position(|n| n == name))),
        };

        let time = find(&options.time_column, &TIMES)?;
        let series = find(&options.series_column, &[options.series_names, &SERIES].concat())?;
        let series = series.filter(|column| Some(*column) != time);
        let value = find(&options.value_column, &VALUES.map(|(name, _)| name))?;

        let need = |column: Option<usize>, flag: &'static str| {
            column.ok_or_else(|| table.unclear("which column is it?", flag))
        };
        let told = options.value_column.is_some() || options.series_column.is_some();
        let number = |name: &String| name.bytes().all(|b| b.is_ascii_digit());
        let shape = match (options.shape, time) {
            (Some(shape), _) => shape,
            (None, _) if told => Shape::Long,
            (None, Some(_)) if value.is_none() && series.is_none() => Shape::Wide,
            (None, None) if options.timeless || names.iter().all(number) => Shape::Wide,
            (None, _) => Shape::Long,
        };

        match shape {
            Shape::Wide => {
                let series: Vec<_> = (0..names.len()).filter(|n| Some(*n) != time).collect();
                need(series.first().copied(), "--value-column")?;
                let unit = options.unit.or(options.usual_unit).unwrap_or(Unit::Percent);

                Ok(Self::Wide { time, series, unit })
            }
            Shape::Long => {
                let (time, value) = (need(time, "--time-column")?, need(value, "--value-column")?);
                let unit = options.unit.or(unit_of(&names[value])).or(options.usual_unit);
                let what = || format!("what does {} hold?", table.headers()[value]);
                let unit = unit.ok_or_else(|| table.unclear(&what(), "--unit"))?;

                Ok(Self::Long { time, series, value, unit })
            }
        }
    }

    /// What the times count where no flag says: Google's power traces begin at zero, where size says nothing.
    pub(super) fn time_unit(&self, table: &TableReader<'_>) -> Option<TimeUnit> {
        let Self::Long { time, value, .. } = self else { return None };
        let named = |column: usize, name| plain(&table.headers()[column]) == name;
        let google = named(*time, "time") && named(*value, "measured_power_util");
        google.then_some(TimeUnit::Microseconds)
    }

    pub const fn unit(&self) -> Unit {
        match self {
            Self::Wide { unit, .. } | Self::Long { unit, .. } => *unit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(header: &str, options: &ReadOptions) -> Result<Layout, String> {
        let table = TableReader::csv(header.as_bytes(), "f.csv").map_err(|e| e.to_string())?;
        Layout::of(&table, options).map_err(|e| e.to_string())
    }

    #[test]
    fn usual_names_are_found_however_they_are_written() {
        let of = |header| layout(header, &ReadOptions::default());
        let long = |time, series, value, unit| Ok(Layout::Long { time, series, value, unit });
        for (header, expected) in [
            ("timestamp,server,watts", long(0, Some(1), 2, Unit::Watts)),
            ("Power (W),Hostname,@timestamp", long(2, Some(1), 0, Unit::Watts)),
            ("Time,VM ID,CPU usage [%]", long(0, Some(1), 2, Unit::Percent)),
            ("ts,node,utilization,note", long(0, Some(1), 2, Unit::Share)),
            ("timestamp,watts,temperature", long(0, None, 1, Unit::Watts)),
            ("time,pdu,measured_power_util", long(0, Some(1), 2, Unit::Share)),
        ] {
            assert_eq!(of(header), expected, "{header}");
        }

        let wide =
            |time, series: &[usize]| Ok(Layout::Wide { time, series: series.to_vec(), unit: Unit::Percent });
        assert_eq!(of("a,t,b"), wide(Some(1), &[0, 2]));
        assert_eq!(of("163,22"), wide(None, &[0, 1]));

        for (name, unit) in [("mean_w", Some(Unit::Watts)), ("load_pct", Some(Unit::Percent))] {
            assert_eq!(unit_of(name), unit, "{name}");
        }
        assert_eq!((unit_of("value"), unit_of("w")), (None, None));
    }

    #[test]
    fn what_is_not_clear_is_asked_for_by_its_flag() {
        let watts = ReadOptions { value_column: Some("w".into()), ..ReadOptions::default() };
        let usual = ReadOptions { usual_unit: Some(Unit::Watts), ..watts.clone() };
        for (header, options, said) in [
            ("name,colour", &ReadOptions::default(), "say --time-column; there are name, colour"),
            ("t,server,colour", &ReadOptions::default(), "say --value-column; there are t, server"),
            ("t,server,value", &ReadOptions::default(), "what does value hold? say --unit"),
            ("t,server,w", &watts, "what does w hold? say --unit"),
            ("t,server,watts", &usual, "no column is called \"w\"; there are t, server, watts"),
            ("t,w,w", &usual, "two columns are called \"w\""),
        ] {
            let error = layout(header, options).unwrap_err();
            assert!(error.contains(said), "{header}: {error}");
        }
        assert_eq!(layout("t,server,w", &usual).map(|l| l.unit()), Ok(Unit::Watts));
    }

    #[test]
    fn the_document_lists_every_name() {
        let document = include_str!("../../../docs/place-and-plan/telemetry.md");
        let values = VALUES.iter().map(|(name, _)| name);
        for name in TIMES.iter().chain(&SERIES).chain(values).chain(&super::super::cells::MISSING) {
            assert!(document.contains(&format!("`{name}`")), "{name}");
        }
    }
}
