//! Series of VMs, as half-hour averages, or as telemetry (docs/place-and-plan/telemetry.md).
//!
//! | layout | columns | memory |
//! |---|---|---|
//! | row | `id`, any others, `u0` to `u239`: half-hour averages of five working days | one batch |
//! | long | VM, time, value | 28 days of half hours a VM |
//! | wide | time, if there is one, and one column a VM | the same |
//!
//! Stamps before 1973, and rows without any, count from a recording's begin: then there are no dates, every
//! day is a working day, and the first one begins at midnight.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ballast_sim::trace::{self, ReadOptions, Samples, Shape, Unit};
use ballast_usage::week::{Calendar, Choice, HalfHours};
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;

use super::days::Days;
use crate::common::columns::ColumnArgs;
use crate::common::table;
use crate::common::terminal::tell;
use crate::common::weeks::{BATCH, NAMES, Rows, Take, VmWeek};

/// Days of a VM that are remembered: five working days, with holidays and gaps around them.
const DAYS: i32 = 28;
/// Rows in which a file's period is looked for.
const LOOK: usize = 2000;
/// Earlier stamps count from the recording's begin.
const DATED_S: i64 = 100_000_000;
/// Seconds between rows without time, if nothing else is told: what clouds record.
const PERIOD_S: u32 = 300;

/// How the files are to be read.
#[derive(Args, Debug)]
#[command(next_help_heading = "Input")]
pub(super) struct ReadArgs {
    /// How the series stand in the files [default: by the columns' names]
    #[arg(long, value_enum)]
    layout: Option<Layout>,
    /// Seconds between two samples; must divide 1800 [default: as found]
    #[arg(long, value_name = "S")]
    period_s: Option<u32>,
    #[command(flatten)]
    columns: ColumnArgs,
}

/// How VMs stand in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Layout {
    /// One row per VM: id, further columns, u0 to u239
    Row,
    /// One column per VM, one row per time
    Wide,
    /// One row per sample: vm, time, value
    Long,
}

/// Hands all VMs of the files over, batch by batch.
pub(super) fn vms(
    files: &[PathBuf],
    args: &ReadArgs,
    days: &Days,
    bar: &ProgressBar,
    take: &mut Take<'_>,
) -> anyhow::Result<()> {
    let mut series = AllSeries { days, all: vec![], places: BTreeMap::new(), dateless: None };
    for file in files {
        let mut read = || match Rows::of(file, args.columns.server_column(), args.one_row_per_vm())? {
            Some(rows) => rows.read(file, bar, take),
            None => series.read(file, bar, args),
        };
        table::named(file, read())?;
    }
    series.hand_over(take)
}

impl ReadArgs {
    /// Whether files have one row per VM, where somebody says so.
    fn one_row_per_vm(&self) -> Option<bool> {
        self.layout.map(|layout| layout == Layout::Row)
    }

    fn samples(&self, file: &Path, bar: &ProgressBar) -> anyhow::Result<Samples<'static>> {
        let options = ReadOptions {
            shape: match self.layout {
                Some(Layout::Long) => Some(Shape::Long),
                Some(Layout::Wide) => Some(Shape::Wide),
                Some(Layout::Row) | None => None,
            },
            series_names: &NAMES,
            usual_unit: Some(Unit::Percent),
            timeless: true,
            ..self.columns.options()
        };
        Ok(Samples::new(table::open(file, bar)?, &options)?)
    }
}

struct AllSeries<'a> {
    days: &'a Days,
    /// In the order in which they first came.
    all: Vec<(String, HalfHours)>,
    places: BTreeMap<String, usize>,
    /// Without dates every day is a working day.
    dateless: Option<bool>,
}

impl AllSeries<'_> {
    fn place(&mut self, id: &str, period_s: u32) -> anyhow::Result<usize> {
        if let Some(place) = self.places.get(id) {
            return Ok(*place);
        }
        if id.is_empty() {
            bail!("a VM without a name");
        }
        self.all.push((id.to_owned(), HalfHours::new(period_s)?));
        self.places.insert(id.to_owned(), self.all.len() - 1);
        Ok(self.all.len() - 1)
    }

    /// Local day and half hour of a stamp.
    fn when(&mut self, stamp_s: i64) -> anyhow::Result<(i32, usize)> {
        let dateless = stamp_s < DATED_S;
        match self.dateless {
            Some(before) if before == dateless => {}
            Some(_) => bail!("stamps with and without dates in one run: label them apart"),
            None => {
                self.dateless = Some(dateless);
                if dateless {
                    tell("no dates: every day counts as a working day, from midnight on");
                }
            }
        }
        let local_s = if dateless { stamp_s } else { self.days.local_s(stamp_s)? };
        let day = i32::try_from(local_s.div_euclid(86_400)).context("beyond all calendars")?;
        Ok((day, (local_s.rem_euclid(86_400) / 1800) as usize))
    }

    fn read(&mut self, file: &Path, bar: &ProgressBar, args: &ReadArgs) -> anyhow::Result<()> {
        let mut samples = args.samples(file, bar)?;
        let layout = samples.layout().clone();
        let timeless = matches!(layout, trace::Layout::Wide { time: None, .. });
        let period_s = match args.period_s {
            Some(period_s) => period_s,
            None if timeless => PERIOD_S,
            None => period(file, self.days, args)?,
        };

        HalfHours::new(period_s)?;
        let percent = match layout.unit() {
            Unit::Percent => 1.0,
            Unit::Share => 100.0,
            Unit::Watts => bail!("these are watts: CPU use is needed (see --value-column, --unit)"),
        };

        let mut row_s = 0;
        let mut last: Option<(String, usize)> = None;
        while let Some(ms) = samples.advance_by(|text| self.days.millis(text))? {
            let stamp_s = if timeless { row_s } else { ms.div_euclid(1000) };
            row_s += i64::from(period_s);
            let table = samples.table();
            let place = || format!("{}, {}", table.file(), table.place());
            let when = self.when(stamp_s).with_context(place)?;
            let mut add = |id: &str, column| -> anyhow::Result<()> {
                let sample = percent * samples.number(column)?;
                let index = match &last {
                    Some((before, index)) if before == id => *index,
                    _ => {
                        let index = self.place(id, period_s).with_context(place)?;
                        last = Some((id.to_owned(), index));
                        index
                    }
                };

                add(&mut self.all[index].1, self.days.choice, when, sample);

                Ok(())
            };

            match &layout {
                trace::Layout::Long { series: Some(series), value, .. } => {
                    add(&table.text(*series), *value)?;
                }
                trace::Layout::Long { series: None, value, .. } => add(&table::stem(file), *value)?,
                trace::Layout::Wide { series, .. } => {
                    series.iter().try_for_each(|column| add(&table.headers()[*column], *column))?;
                }
            }
        }

        Ok(())
    }

    /// Every VM with its week.
    fn hand_over(self, take: &mut Take<'_>) -> anyhow::Result<()> {
        let dateless = self.dateless.unwrap_or(false);
        let calendar = Calendar { dateless, ..self.days.calendar.clone() };
        for part in self.all.chunks(BATCH) {
            let vm = |(id, half_hours): &(String, HalfHours)| {
                let week = half_hours.week(self.days.choice, &calendar);
                VmWeek { id: id.clone(), extra: vec![], week }
            };
            take(&[], part.iter().map(vm).collect())?;
        }
        Ok(())
    }
}

/// Adds a sample, and forgets what no chosen week can need.
fn add(half_hours: &mut HalfHours, choice: Choice, (day, slot): (i32, usize), sample: f64) {
    let (first, last) = (half_hours.days().next(), half_hours.days().next_back());
    match choice {
        Choice::Last => {
            if last.is_some_and(|last| day <= last - DAYS) {
                return;
            }
            if first.is_some_and(|first| first <= day - DAYS) {
                half_hours.forget_before(day - DAYS + 1);
            }
        }
        Choice::First if first.is_some_and(|first| day >= first + DAYS) => return,
        Choice::From(from) if day < from - DAYS || day >= from + DAYS => return,
        Choice::First | Choice::From(_) => {}
    }
    half_hours.add(day, slot, sample);
}

/// The least time between two samples in the file's first lines.
fn period(file: &Path, days: &Days, args: &ReadArgs) -> anyhow::Result<u32> {
    let mut samples = args.samples(file, &ProgressBar::hidden())?;
    let series = match samples.layout() {
        trace::Layout::Long { series, .. } => *series,
        trace::Layout::Wide { .. } => None,
    };

    let mut newest: BTreeMap<String, i64> = BTreeMap::new();
    let mut least: Option<i64> = None;

    for _ in 0..LOOK {
        let Some(ms) = samples.advance_by(|text| days.millis(text))? else { break };
        let now = ms.div_euclid(1000);
        let id = series.map_or_else(String::new, |n| samples.table().text(n).into_owned());

        if let Some(before) = newest.insert(id, now) {
            let apart = (now - before).abs();
            least = if apart > 0 { Some(least.map_or(apart, |l| l.min(apart))) } else { least };
        }
    }

    // A VM with one sample has no period; any will do, as it has no week either.
    let found = least.map_or(Ok(1800), u32::try_from);

    found.context("the samples are too far apart: say --period-s")
}
