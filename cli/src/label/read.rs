//! Series of VMs, in three layouts.
//!
//! | layout | columns | memory |
//! |---|---|---|
//! | row | `id`, any others, `u0` to `u239`: half-hour averages of five working days | one batch |
//! | long | VM, time, value | 28 days of half hours a VM |
//! | wide | time, if there is one, and one column a VM | the same |
//!
//! Stamps before 1973, and rows without any, count from a recording's begin: then there are no dates, every day
//! is a working day, and the first one begins at midnight.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ballast_predict::week::{Calendar, Choice, HalfHours, SLOTS, Week};
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;

use super::args::Days;
use super::{BATCH, Vm};
use crate::table::Table;

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
    /// The column with the time: unix seconds, or text [default: t, t_s, time or timestamp]
    #[arg(long, value_name = "NAME")]
    time_column: Option<String>,
    /// The column that names the VM [default: id, vm or vm_id]
    #[arg(long, value_name = "NAME")]
    vm_column: Option<String>,
    /// The column with the CPU use in percent [default: value, cpu or cpu_pct]
    #[arg(long, value_name = "NAME")]
    value_column: Option<String>,
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

/// Takes VMs: the names of the columns that pass through, and the VMs in the files' order.
type Take<'a> = dyn FnMut(&[String], Vec<Vm>) -> anyhow::Result<()> + 'a;

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
        let read = || match Columns::of(file, args)? {
            Columns::Row { id, values, extra } => row(file, bar, id, &values, &extra, take),
            Columns::Long { vm, time, value } => series.long(file, bar, args, [vm, time, value]),
            Columns::Wide { time, vms } => series.wide(file, bar, args, time, &vms),
        };
        let mut read = read;
        read().with_context(|| cannot(file))?;
    }
    series.hand_over(take)
}

/// Hands the VMs of a file with one row per VM over.
pub(super) fn rows(file: &Path, take: &mut Take<'_>) -> anyhow::Result<()> {
    let mut read = || match Columns::of(file, &ReadArgs::row())? {
        Columns::Row { id, values, extra } => {
            row(file, &ProgressBar::hidden(), id, &values, &extra, take)
        }
        _ => bail!("one row per VM is needed"),
    };
    read().with_context(|| cannot(file))
}

fn cannot(file: &Path) -> String {
    format!("cannot take {}", file.display())
}

/// Where things stand in a file.
enum Columns {
    Row { id: usize, values: Vec<usize>, extra: Vec<usize> },
    Long { vm: usize, time: usize, value: usize },
    Wide { time: Option<usize>, vms: Vec<usize> },
}

impl ReadArgs {
    /// One row per VM.
    fn row() -> Self {
        let layout = Some(Layout::Row);
        Self { layout, period_s: None, time_column: None, vm_column: None, value_column: None }
    }
}

impl Columns {
    fn of(file: &Path, args: &ReadArgs) -> anyhow::Result<Self> {
        let table = Table::open(file, &ProgressBar::hidden())?;
        let named = |given: &Option<String>, usual: &[&str]| match given {
            Some(name) => table.column(name).map(Some),
            None => Ok(usual.iter().find_map(|name| table.column(name).ok())),
        };
        let vm = named(&args.vm_column, &["id", "vm", "vm_id"])?;
        let time = named(&args.time_column, &["t", "t_s", "time", "timestamp"])?;
        let value = named(&args.value_column, &["value", "cpu", "cpu_pct"])?;
        let has_slots = ["u0", "u239"].iter().all(|name| table.column(name).is_ok());
        let layout = args.layout.unwrap_or(match (vm, time, value) {
            (Some(_), _, _) if has_slots => Layout::Row,
            (Some(_), Some(_), Some(_)) => Layout::Long,
            _ => Layout::Wide,
        });
        let need = |column: Option<usize>, flag: &str| {
            column.with_context(|| {
                format!("which column is it? say {flag}; there are {}", table.headers().join(", "))
            })
        };
        Ok(match layout {
            Layout::Row => {
                let id = need(vm, "--vm-column")?;
                let values = (0..SLOTS).map(|n| table.column(&format!("u{n}")));
                let values = values.collect::<anyhow::Result<Vec<_>>>()?;
                let passes = |n: &usize| *n != id && !values.contains(n);
                let extra = (0..table.headers().len()).filter(passes).collect();
                Self::Row { id, values, extra }
            }
            Layout::Long => Self::Long {
                vm: need(vm, "--vm-column")?,
                time: need(time, "--time-column")?,
                value: need(value, "--value-column")?,
            },
            Layout::Wide => {
                let vms = (0..table.headers().len()).filter(|n| Some(*n) != time).collect();
                Self::Wide { time, vms }
            }
        })
    }
}

/// One row per VM.
fn row(
    file: &Path,
    bar: &ProgressBar,
    id: usize,
    values: &[usize],
    extra: &[usize],
    take: &mut Take<'_>,
) -> anyhow::Result<()> {
    let mut table = Table::open(file, bar)?;
    let names: Vec<String> = extra.iter().map(|n| table.headers()[*n].clone()).collect();
    let mut batch = Vec::with_capacity(BATCH);
    while table.next()? {
        let mut week = [f64::NAN; SLOTS];
        for (into, column) in week.iter_mut().zip(values) {
            *into = table.number(*column, PERCENT)?;
        }
        batch.push(Vm {
            id: table.text(id).into_owned(),
            extra: extra.iter().map(|column| table.text(*column).into_owned()).collect(),
            week: Ok(Week::new(week)),
        });
        if batch.len() == BATCH {
            take(&names, std::mem::replace(&mut batch, Vec::with_capacity(BATCH)))?;
        }
    }
    take(&names, batch)
}

const PERCENT: &str = "CPU use in percent, or nothing,";
const INSTANT: &str = "unix seconds, or a time such as 2019-04-01T08:00:00Z,";

/// Series that are gathered sample by sample.
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
                    crate::tell("no dates: every day counts as a working day, from midnight on");
                }
            }
        }
        let local_s = if dateless { stamp_s } else { self.days.local_s(stamp_s)? };
        let day = i32::try_from(local_s.div_euclid(86_400)).context("beyond all calendars")?;
        Ok((day, (local_s.rem_euclid(86_400) / 1800) as usize))
    }

    /// One row per sample.
    fn long(
        &mut self,
        file: &Path,
        bar: &ProgressBar,
        args: &ReadArgs,
        [vm, time, value]: [usize; 3],
    ) -> anyhow::Result<()> {
        let period_s = match args.period_s {
            Some(period_s) => period_s,
            None => period(file, self.days, time, Some(vm))?,
        };
        HalfHours::new(period_s)?;
        let mut table = Table::open(file, bar)?;
        let mut last: Option<(String, usize)> = None;
        while table.next()? {
            let stamp_s = seconds(&table, time, self.days)?;
            let when = self.when(stamp_s).with_context(|| table.place())?;
            let sample = table.number(value, PERCENT)?;
            let id = table.text(vm);
            let place = match &last {
                Some((before, place)) if *before == id => *place,
                _ => {
                    let place = self.place(&id, period_s).with_context(|| table.place())?;
                    last = Some((id.into_owned(), place));
                    place
                }
            };
            add(&mut self.all[place].1, self.days.choice, when, sample);
        }
        Ok(())
    }

    /// One column per VM.
    fn wide(
        &mut self,
        file: &Path,
        bar: &ProgressBar,
        args: &ReadArgs,
        time: Option<usize>,
        vms: &[usize],
    ) -> anyhow::Result<()> {
        let period_s = match (args.period_s, time) {
            (Some(period_s), _) => period_s,
            (None, Some(time)) => period(file, self.days, time, None)?,
            (None, None) => PERIOD_S,
        };
        let mut table = Table::open(file, bar)?;
        let names: Vec<String> = vms.iter().map(|n| table.headers()[*n].clone()).collect();
        let places = names.iter().map(|id| self.place(id, period_s));
        let places: Vec<usize> = places.collect::<anyhow::Result<_>>()?;
        let mut row_s = 0;
        while table.next()? {
            let stamp_s = match time {
                Some(time) => seconds(&table, time, self.days)?,
                None => row_s,
            };
            row_s += i64::from(period_s);
            let when = self.when(stamp_s).with_context(|| table.place())?;
            for (column, place) in vms.iter().zip(&places) {
                let sample = table.number(*column, PERCENT)?;
                add(&mut self.all[*place].1, self.days.choice, when, sample);
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
                Vm { id: id.clone(), extra: vec![], week }
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

fn seconds(table: &Table, column: usize, days: &Days) -> anyhow::Result<i64> {
    table
        .integer(column, INSTANT)
        .or_else(|error| days.seconds(&table.text(column)).map_err(|_| error))
}

/// The least time between two samples in the file's first lines.
fn period(file: &Path, days: &Days, time: usize, vm: Option<usize>) -> anyhow::Result<u32> {
    let mut table = Table::open(file, &ProgressBar::hidden())?;
    let mut newest: BTreeMap<String, i64> = BTreeMap::new();
    let mut least: Option<i64> = None;
    for _ in 0..LOOK {
        if !table.next()? {
            break;
        }
        let now = seconds(&table, time, days)?;
        let id = vm.map_or_else(String::new, |vm| table.text(vm).into_owned());
        if let Some(before) = newest.insert(id, now) {
            let apart = (now - before).abs();
            least = if apart > 0 { Some(least.map_or(apart, |l| l.min(apart))) } else { least };
        }
    }
    // A VM with one sample has no period; any will do, as it has no week either.
    let found = least.map_or(Ok(1800), u32::try_from);
    found.context("the samples are too far apart: say --period-s")
}
