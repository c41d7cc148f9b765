//! Which columns of a file mean what.

use csv::ByteRecord;

use super::{ReadOptions, TraceError, Unit};

/// How the cells of a file are arranged.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Layout {
    /// One column per machine; `time` says whether the first column is the stamp.
    Wide { time: bool, unit: Unit },
    /// One row per machine and stamp.
    Long { time: usize, series: Option<usize>, value: usize, unit: Unit, per_second: f64 },
}

/// Value columns that are known by name.
const VALUES: [(&str, Unit); 8] = [
    ("watts", Unit::Watts),
    ("power_w", Unit::Watts),
    ("utilisation", Unit::Share),
    ("utilization", Unit::Share),
    ("cpu_share", Unit::Share),
    ("utilisation_pct", Unit::Percent),
    ("utilization_pct", Unit::Percent),
    ("cpu_pct", Unit::Percent),
];

/// Finds the layout by the header's names.
pub(super) fn detect(
    file: &str,
    header: &ByteRecord,
    options: &ReadOptions,
) -> Result<Layout, TraceError> {
    let names: Vec<String> =
        header.iter().map(|h| String::from_utf8_lossy(h).trim().to_owned()).collect();
    let at = |name: &str| names.iter().position(|n| n == name);
    let time_name = options.time_column.as_deref().unwrap_or("timestamp");

    if let (None, Some(time), Some(value)) =
        (&options.value_column, at("time"), at("measured_power_util"))
    {
        let unit = options.unit.unwrap_or(Unit::Share);
        return Ok(Layout::Long { time, series: at("pdu"), value, unit, per_second: 1e6 });
    }
    let value = match options.value_column.as_deref() {
        Some(name) => at(name).map(|n| (n, known_unit(name))),
        None => VALUES.iter().find_map(|(name, unit)| Some((at(name)?, Some(*unit)))),
    };
    let series = match options.series_column.as_deref() {
        Some(name) => at(name),
        None => at("server").or_else(|| at("vm")),
    };
    if let (Some(time), Some((value, known))) = (at(time_name), value)
        // A file of one machine needs no column that names it, but one that was asked for must be there.
        && (series.is_some() || (options.series_column.is_none() && names.len() == 2))
        && let Some(unit) = options.unit.or(known)
    {
        return Ok(Layout::Long { time, series, value, unit, per_second: 1.0 });
    }
    let unit = options.unit.unwrap_or(Unit::Percent);
    let first = names.first().map_or("", String::as_str);
    let asked = options.value_column.is_some() || options.series_column.is_some();
    if !asked && names.len() > 1 && ["t", "t_s", time_name].contains(&first) {
        return Ok(Layout::Wide { time: true, unit });
    }
    let number = |n: &String| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit());
    if !asked && options.time_column.is_none() && names.iter().all(number) {
        return Ok(Layout::Wide { time: false, unit });
    }
    let or =
        |given: &Option<String>, known: &str| given.clone().unwrap_or_else(|| known.to_owned());
    Err(TraceError::Header {
        file: file.to_owned(),
        header: names.join(",").chars().take(80).collect(),
        expected: format!(
            "`{time_name}`, `{}` and `{}`",
            or(&options.series_column, "server"),
            or(&options.value_column, "watts|utilisation"),
        ),
    })
}

fn known_unit(name: &str) -> Option<Unit> {
    VALUES.iter().find(|(known, _)| *known == name).map(|(_, unit)| *unit)
}
