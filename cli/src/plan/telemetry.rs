//! Telemetry, from files: in parallel by file, and by row group of Parquet. The order does not matter.

mod columnar;
pub(super) mod worker;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use ballast_planner::{Intake, Readings};
use ballast_sim::trace::{Layout, Samples};
use indicatif::ProgressBar;

use super::columns::Columns;
use super::recorded;
use crate::common::table;
use crate::common::terminal::progress_bar;
use crate::common::threads::all_cores;
use columnar::Columnar;
use worker::{NAME, Worker, watts};

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

    /// Hands the whole history over: mostly at once. Where it does not fit into memory, in several looks,
    /// each with all readings of its chassis, whose sums add up. Asked again, what fits is not read again.
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
            if look > 1 || self.times != (i64::MIN..i64::MAX) {
                self.refuse_pipes()?;
            }
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
        let (recorded, tables): (Vec<_>, Vec<_>) = self.files.iter().partition(|path| recorded::is_one(path));
        if !recorded.is_empty() {
            let period = Duration::from_secs(self.intake.period_s.into());
            all.push(Piece::Recorded(recorded::files(&recorded)?, period));
        }

        for path in tables {
            let columnar = match self.columns.row_by_row {
                true => None,
                false => table::named(path, Columnar::open(path, self.columns))?,
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

    /// A pipe is empty the second time.
    fn refuse_pipes(&self) -> anyhow::Result<()> {
        match self.files.iter().find(|file| file.exists() && !file.is_file() && !file.is_dir()) {
            Some(pipe) => bail!("{}: a file is needed: it is read more than once", pipe.display()),
            None => Ok(()),
        }
    }

    /// Reads everything once. Of several errors it gives the one that comes first in the files.
    fn look(&self, pieces: &[Piece], readings: Readings, look: u32) -> anyhow::Result<Readings> {
        let bytes = self.files.iter().map(|file| std::fs::metadata(file).map_or(0, |m| m.len()));
        let bar = progress_bar(bytes.sum(), "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}");

        let nth = if look > 1 { format!(", look {look}") } else { String::new() };
        bar.set_message(format!("{} files{nth}", self.files.len()));
        let readings = Mutex::new(readings);
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let work = || -> Result<(), (usize, anyhow::Error)> {
            let mut worker = Worker::new(&readings, &self.times);
            while !failed.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(piece) = pieces.get(index) else { break };
                let read = piece.read(self.columns, &mut worker, &bar);

                if let Err(error) = table::named(piece.path(), read) {
                    failed.store(true, Ordering::Relaxed);
                    return Err((index, error));
                }
            }

            Ok(())
        };

        let threads = all_cores().get().min(pieces.len());
        let first = thread::scope(|scope| {
            let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let ended =
                all.into_iter().map(|thread| thread.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
            ended.filter_map(Result::err).min_by_key(|(index, _)| *index)
        });

        bar.finish_and_clear();

        match first {
            Some((_, error)) => Err(error),
            None => Ok(readings.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())),
        }
    }
}

enum Piece {
    Whole(PathBuf),
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

    fn read(&self, columns: &Columns, to: &mut Worker<'_>, bar: &ProgressBar) -> anyhow::Result<()> {
        match self {
            Self::Whole(path) => rows(path, columns, to, bar)?,
            Self::Group(file, group) => file.read(*group, to, bar)?,
            Self::Recorded(files, period) => recorded::read(files, *period, to, bar)?,
        }
        Ok(to.hand_over()?)
    }
}

/// Reads a file row by row.
fn rows(path: &Path, columns: &Columns, to: &mut Worker<'_>, bar: &ProgressBar) -> anyhow::Result<()> {
    let mut samples = Samples::new(table::open(path, bar)?, &columns.options())?;
    let layout = samples.layout().clone();
    watts(&layout)?;
    let generation = samples.table().column(&columns.generation_column).ok();
    let alone = table::stem(path);

    while let Some(ms) = samples.advance()? {
        let t_s = ms.div_euclid(1000);
        let table = samples.table();
        let of = generation.map_or("".into(), |column| table.text(column));
        let mut take = |name: &str, column| -> anyhow::Result<()> {
            let draw = samples.number(column)?;
            let place = || format!("{}, {}", table.file(), table.place());
            let index = to.chassis(name, &of).with_context(place)?;

            Ok(to.take(index, t_s, draw)?)
        };

        match &layout {
            Layout::Long { series: None, value, .. } => take(&alone, *value)?,
            Layout::Long { series: Some(series), value, .. } => {
                let name = table.text(*series);
                if name.is_empty() {
                    return Err(table.refuse(*series, NAME).into());
                }
                take(&name, *value)?;
            }
            Layout::Wide { series, .. } => {
                for column in series.iter().filter(|column| Some(**column) != generation) {
                    take(&table.headers()[*column], *column)?;
                }
            }
        }
    }

    Ok(())
}
