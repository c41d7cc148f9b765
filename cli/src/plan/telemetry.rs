//! Telemetry, from files: in parallel by file, and by row group of Parquet. The order does not matter.

mod columnar;

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow};
use ballast_planner::{ChassisIndex, Intake, Readings, ReadingsError};
use ballast_runtime::lock;
use indicatif::ProgressBar;

use super::args::Columns;
use super::recorded;
use crate::table::Table;
use crate::{all_cores, progress_bar};
use columnar::Columnar;

/// Readings that a thread gathers before it hands them over.
const BATCH: usize = 8192;

/// The history of draws, in files.
pub(super) struct Telemetry<'a> {
    files: &'a [PathBuf],
    columns: &'a Columns,
    intake: Intake,
    /// Only readings of these times count.
    times: Range<i64>,
    /// The readings, once they are known to fit into memory all together.
    held: Option<Readings>,
}

impl<'a> Telemetry<'a> {
    pub(super) fn new(files: &'a [PathBuf], columns: &'a Columns, intake: Intake) -> Self {
        Self { files, columns, intake, times: i64::MIN..i64::MAX, held: None }
    }

    /// The same, as if there were no other times than these.
    pub(super) fn during(self, times: Range<i64>) -> Self {
        Self { times, ..self }
    }

    /// Hands the whole history over: mostly at once. Where it does not fit into memory, in several looks, each with
    /// all readings of its chassis, whose sums add up. Asked again, what fits is not read again.
    pub(super) fn looks(
        &mut self,
        mut then: impl FnMut(&Readings) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if let Some(held) = &self.held {
            return then(held);
        }
        let pieces = self.pieces()?;
        let mut readings = Readings::new(self.intake)?;
        for look in 1.. {
            readings = self.look(&pieces, readings, look)?;
            if let Some(units) = self.columns.stuck_units() {
                readings.drop_stuck(units);
            }
            then(&readings)?;
            if look == 1 && !readings.is_waiting() {
                self.held = Some(readings);
                break;
            }
            if !readings.next_look() {
                break;
            }
        }
        Ok(())
    }

    /// What one thread reads at a time.
    fn pieces(&self) -> anyhow::Result<Vec<Piece>> {
        let mut all = vec![];
        let (recorded, tables): (Vec<_>, Vec<_>) =
            self.files.iter().partition(|path| recorded::is_one(path));
        if !recorded.is_empty() {
            let period = Duration::from_secs(self.intake.period_s.into());
            all.push(Piece::Recorded(recorded::files(&recorded)?, period));
        }
        for path in tables {
            let columnar = match self.columns.row_by_row {
                true => None,
                false => Columnar::open(path, self.columns).with_context(|| cannot(path))?,
            };
            match columnar {
                Some(file) => {
                    all.extend((0..file.groups()).map(|group| Piece::Group(file.clone(), group)));
                }
                None => all.push(Piece::Whole(path.clone())),
            }
        }
        Ok(all)
    }

    /// Reads everything once. Of several errors it gives the one that comes first in the files.
    fn look(&self, pieces: &[Piece], readings: Readings, look: u32) -> anyhow::Result<Readings> {
        let bytes = self.files.iter().map(|file| std::fs::metadata(file).map_or(0, |m| m.len()));
        let bar = progress_bar(
            bytes.sum(),
            "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        );
        let nth = if look > 1 { format!(", look {look}") } else { String::new() };
        bar.set_message(format!("{} files{nth}", self.files.len()));
        let readings = Mutex::new(readings);
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let work = || -> Result<(), (usize, anyhow::Error)> {
            let mut worker =
                Worker { all: &readings, times: &self.times, names: HashMap::new(), batch: vec![] };
            while !failed.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(piece) = pieces.get(index) else { break };
                if let Err(error) = piece.read(self.columns, &mut worker, &bar) {
                    failed.store(true, Ordering::Relaxed);
                    return Err((index, error.context(cannot(piece.path()))));
                }
            }
            Ok(())
        };
        let threads = all_cores().get().min(pieces.len());
        let first = thread::scope(|scope| {
            let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let ended = all
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
            ended.filter_map(Result::err).min_by_key(|(index, _)| *index)
        });
        bar.finish_and_clear();
        match first {
            Some((_, error)) => Err(error),
            None => Ok(readings.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())),
        }
    }
}

fn cannot(path: &Path) -> String {
    format!("cannot take {}", path.display())
}

/// A part of the files.
enum Piece {
    /// A file of rows.
    Whole(PathBuf),
    /// A row group.
    Group(Columnar, usize),
    /// Recordings of chassis managers, and the unit of time.
    Recorded(Vec<PathBuf>, Duration),
}

impl Piece {
    fn path(&self) -> &Path {
        match self {
            Self::Whole(path) => path,
            Self::Group(file, _) => file.path(),
            Self::Recorded(files, _) => files.first().map_or(Path::new(""), PathBuf::as_path),
        }
    }

    fn read(
        &self,
        columns: &Columns,
        to: &mut Worker<'_>,
        bar: &ProgressBar,
    ) -> anyhow::Result<()> {
        match self {
            Self::Whole(path) => rows(path, columns, to, bar)?,
            Self::Group(file, group) => file.read(*group, to, bar)?,
            Self::Recorded(files, period) => recorded::read(files, *period, to, bar)?,
        }
        Ok(to.hand_over()?)
    }
}

/// One thread's way to the readings.
pub(super) struct Worker<'a> {
    all: &'a Mutex<Readings>,
    times: &'a Range<i64>,
    /// Chassis by name and generation.
    names: HashMap<String, HashMap<String, ChassisIndex>>,
    batch: Vec<(ChassisIndex, i64, f64)>,
}

impl Worker<'_> {
    pub(super) fn chassis(&mut self, name: &str, of: &str) -> Result<ChassisIndex, ReadingsError> {
        if let Some(&index) = self.names.get(name).and_then(|generations| generations.get(of)) {
            return Ok(index);
        }
        let index = lock(self.all).chassis(name, of)?;
        self.names.entry(name.to_owned()).or_default().insert(of.to_owned(), index);
        Ok(index)
    }

    pub(super) fn take(
        &mut self,
        chassis: ChassisIndex,
        t_s: i64,
        watts: f64,
    ) -> Result<(), ReadingsError> {
        if !self.times.contains(&t_s) {
            return Ok(());
        }
        self.batch.push((chassis, t_s, watts));
        if self.batch.len() < BATCH { Ok(()) } else { self.hand_over() }
    }

    fn hand_over(&mut self) -> Result<(), ReadingsError> {
        let mut all = lock(self.all);
        self.batch.drain(..).try_for_each(|(chassis, t_s, watts)| all.take(chassis, t_s, watts))
    }
}

/// Reads a file row by row.
fn rows(
    path: &Path,
    columns: &Columns,
    to: &mut Worker<'_>,
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    let mut table = Table::open(path, bar)?;
    let time = table.column(&columns.time_column)?;
    let chassis = table.column(&columns.chassis_column)?;
    let watts = table.column(&columns.watts_column)?;
    let generation = table.column(&columns.generation_column).ok();
    let per_s = if table.is_instant(time) { 1 } else { columns.time_unit.per_s() };
    while table.next()? {
        let t_s = seconds(&table, time, per_s)?;
        let draw = table.number(watts, "watts")?;
        let name = table.text(chassis);
        if name.is_empty() {
            return Err(table.refuse(chassis, NAME));
        }
        let of = generation.map_or("".into(), |column| table.text(column));
        let index = to.chassis(&name, &of).with_context(|| table.place())?;
        to.take(index, t_s, draw)?;
    }
    Ok(())
}

const NAME: &str = "a name";

/// The time of the current row, in whole seconds.
fn seconds(table: &Table, column: usize, per_s: i64) -> anyhow::Result<i64> {
    let number = table.number(column, "").ok().filter(|number| number.fract() == 0.0);
    // Beyond 2^53 floating point has gaps: nanoseconds are read from their text.
    let number = match number {
        Some(number) if number.abs() < 9e15 => Some(number as i64),
        _ => table.text(column).parse().ok(),
    };
    let stamp = || Some(table.text(column).parse::<jiff::Timestamp>().ok()?.as_second());
    let t_s = number.map(|number| number.div_euclid(per_s)).or_else(stamp);
    match t_s {
        Some(t_s) if t_s.abs() <= LATEST_S => Ok(t_s),
        Some(_) => Err(table.refuse(column, EARLIER)),
        None => Err(table.refuse(column, TIME)),
    }
}

/// Later times are of another unit.
const LATEST_S: i64 = 100_000_000_000;
const EARLIER: &str = "before the year 5000 (see --time-unit): a time";
const TIME: &str = "a whole number (see --time-unit), or RFC 3339,";

/// What is wrong with a value of a Parquet file.
fn refuse(row: usize, name: &str, value: &str, allowed: &str) -> anyhow::Error {
    anyhow!("row {row}: {name} = {value:?}: {allowed} is needed")
}
