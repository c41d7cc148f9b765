//! Samples over time: one column per VM, or one row per sample.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};
use ballast_predict::week::{Calendar, HalfHours};
use ballast_sim::trace::{ReadOptions, Series, Trace, Unit};
use jiff::Timestamp;

use super::args::Days;
use super::input::Layout;
use super::{BATCH, Vm};

/// Earlier stamps (1973) count from the recording's begin: such series have no dates.
const DATED_S: f64 = 1e8;

/// Reads all VMs, and hands them over batch by batch.
pub(super) fn read(
    path: &Path,
    text: Box<dyn Read>,
    layout: Layout,
    days: &Days,
    labelled: &mut impl FnMut(&[String], Vec<Vm>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let name = path.display().to_string();
    let column = |name: &str| (layout == Layout::Long).then(|| name.to_owned());
    let options = ReadOptions {
        time_column: column("time"),
        series_column: column("vm"),
        value_column: column("value"),
        unit: (layout == Layout::Long).then_some(Unit::Percent),
    };
    let trace = Trace::read(text, &name, &options)?;
    let period = trace.period_s;
    if period.fract() != 0.0 || !(1.0..=1800.0).contains(&period) {
        bail!(
            "{name}: a period of {period} s: allowed are periods that divide 30 minutes (1800 s)"
        );
    }
    let empty = HalfHours::new(period as u32).with_context(|| name.clone())?;
    let dateless = trace.start_s < DATED_S;
    if dateless {
        crate::tell(&format!(
            "{name}: no dates: every day counts as a working day, from midnight on"
        ));
    }
    if trace.report.empty_series > 0 {
        crate::tell(&format!(
            "{name}: {} VMs without any value left out",
            trace.report.empty_series
        ));
    }
    let length = trace.series.first().map_or(0, |s| s.values.len());
    let places = (0..length)
        .map(|n| place(trace.start_s + n as f64 * period, days, dateless))
        .collect::<anyhow::Result<Vec<_>>>()
        .with_context(|| name.clone())?;
    let calendar = Calendar { dateless, ..days.calendar.clone() };
    for series in trace.series.chunks(BATCH) {
        let vm = |series: &Series| {
            let mut half_hours = empty.clone();
            let percent = if series.unit == Unit::Share { 100.0 } else { 1.0 };
            for ((day, slot), value) in places.iter().zip(&series.values) {
                half_hours.add(*day, *slot, f64::from(*value) * percent);
            }
            let week = half_hours.week(days.choice, &calendar);
            Vm { id: series.name.clone(), extra: Vec::new(), week }
        };
        if series.iter().any(|s| s.unit == Unit::Watts) {
            bail!("{name}: watts: allowed is CPU use in percent, or as a share");
        }
        labelled(&[], series.iter().map(vm).collect())?;
    }
    Ok(())
}

/// Local day since 1970-01-01, and half hour of it.
fn place(stamp_s: f64, days: &Days, dateless: bool) -> anyhow::Result<(i32, usize)> {
    let stamp = stamp_s.floor() as i64;
    let offset = match dateless {
        true => 0,
        false => i64::from(days.zone.to_offset(Timestamp::from_second(stamp)?).seconds()),
    };
    let local = stamp + offset;
    let day = i32::try_from(local.div_euclid(86_400)).context("stamps beyond all calendars")?;
    Ok((day, (local.rem_euclid(86_400) / 1800) as usize))
}
