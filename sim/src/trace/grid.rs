//! From cells with stamps to series on one regular grid.

use super::{Report, Series, Trace, TraceError, Unit};

/// A table with one column per machine.
pub(super) struct Wide {
    names: Vec<String>,
    unit: Unit,
    /// One per row, in milliseconds.
    pub(super) stamps: Vec<i64>,
    pub(super) cells: Vec<f32>,
}

pub(super) struct Long {
    names: Vec<String>,
    unit: Unit,
    /// `(stamp in milliseconds, value)` by machine.
    pub(super) points: Vec<Vec<(i64, f32)>>,
}

/// A regular grid of stamps.
#[derive(Clone, Copy)]
struct Grid {
    start_ms: i64,
    period_ms: i64,
    slots: usize,
}

impl Grid {
    /// From the stamps of every machine, each in order.
    fn find<'a>(
        file: &str,
        rows: u64,
        machines: impl Iterator<Item = &'a [i64]> + Clone,
    ) -> Result<Self, TraceError> {
        let start_ms = machines.clone().filter_map(|s| s.first()).min().copied().unwrap_or(0);
        let end_ms = machines.clone().filter_map(|s| s.last()).max().copied().unwrap_or(0);
        let mut steps: Vec<i64> =
            machines.flat_map(|s| s.windows(2).map(|w| w[1] - w[0])).filter(|step| *step > 0).collect();
        steps.sort_unstable();

        // The most common step; the shortest of them.
        let period_ms =
            steps.chunk_by(|a, b| a == b).rev().max_by_key(|run| run.len()).map_or(300_000, |run| run[0]);
        let slots = (end_ms - start_ms + period_ms / 2) / period_ms + 1;

        if slots as u64 > 10 * rows + 1000 {
            return Err(TraceError::Sparse {
                file: file.to_owned(),
                slots: slots as u64,
                period_s: period_ms as f64 / 1000.0,
                rows,
            });
        }

        Ok(Self { start_ms, period_ms, slots: slots as usize })
    }

    fn slot(&self, stamp: i64) -> usize {
        let late = stamp - self.start_ms + self.period_ms / 2;
        ((late / self.period_ms) as usize).min(self.slots - 1)
    }
}

impl Wide {
    pub(super) fn new(names: Vec<String>, unit: Unit) -> Self {
        Self { names, unit, stamps: Vec::new(), cells: Vec::new() }
    }

    pub(super) fn finish(self, file: &str, mut report: Report) -> Result<Trace, TraceError> {
        let width = self.names.len();
        let mut order: Vec<usize> = (0..self.stamps.len()).collect();
        report.unordered_rows = unordered(self.stamps.iter());
        order.sort_by_key(|row| self.stamps[*row]);
        order.dedup_by(|later, earlier| {
            let same = self.stamps[*later] == self.stamps[*earlier];
            report.duplicate_rows += u64::from(same);
            same
        });

        check_order(file, &report)?;
        let stamps: Vec<i64> = order.iter().map(|row| self.stamps[*row]).collect();
        let grid = Grid::find(file, report.rows, core::iter::once(&stamps[..]))?;
        let mut values = vec![vec![f32::NAN; grid.slots]; width];
        let mut filled = vec![false; grid.slots];

        for row in order {
            let slot = grid.slot(self.stamps[row]);
            if core::mem::replace(&mut filled[slot], true) {
                report.duplicate_rows += 1;
                continue;
            }

            for (series, value) in values.iter_mut().zip(&self.cells[row * width..]) {
                series[slot] = *value;
            }
        }

        // Off-grid rows may have been dropped just now.
        check_order(file, &report)?;

        trace(file, self.unit, grid, self.names.into_iter().zip(values), report)
    }
}

impl Long {
    pub(super) fn new(unit: Unit) -> Self {
        Self { names: Vec::new(), unit, points: Vec::new() }
    }

    pub(super) fn add_series(&mut self, name: String) -> usize {
        self.names.push(name);
        self.points.push(Vec::new());
        self.names.len() - 1
    }

    pub(super) fn finish(mut self, file: &str, mut report: Report) -> Result<Trace, TraceError> {
        for points in &mut self.points {
            report.unordered_rows += unordered(points.iter().map(|(t, _)| t));

            // Stable: of two with one stamp the first stays first.
            points.sort_by_key(|(t, _)| *t);
        }

        let stamps: Vec<Vec<i64>> = self.points.iter().map(|p| p.iter().map(|(t, _)| *t).collect()).collect();
        let grid = Grid::find(file, report.rows, stamps.iter().map(Vec::as_slice))?;
        let cells = grid.slots as u64 * self.points.len() as u64;

        if cells > 100 * report.rows + 100_000 {
            let period_s = grid.period_ms as f64 / 1000.0;
            let (file, rows, slots) = (file.to_owned(), report.rows, grid.slots as u64);
            return Err(TraceError::Sparse { file, slots, period_s, rows });
        }

        let mut series = Vec::with_capacity(self.points.len());

        for (name, points) in self.names.into_iter().zip(&self.points) {
            let mut values = vec![f32::NAN; grid.slots];
            let mut last = None;
            for (stamp, value) in points {
                let slot = grid.slot(*stamp);
                if last == Some(slot) {
                    report.duplicate_rows += 1;
                } else {
                    values[slot] = *value;
                    last = Some(slot);
                }
            }

            series.push((name, values));
        }

        check_order(file, &report)?;

        trace(file, self.unit, grid, series.into_iter(), report)
    }
}

/// How many stamps are before the highest one above them.
fn unordered<'a>(stamps: impl Iterator<Item = &'a i64>) -> u64 {
    let mut highest = i64::MIN;
    let mut count = 0;
    for stamp in stamps {
        count += u64::from(*stamp < highest);
        highest = highest.max(*stamp);
    }
    count
}

/// One such row may happen in any file; more than one in a hundred is another kind of file.
fn check_order(file: &str, report: &Report) -> Result<(), TraceError> {
    for (bad, what) in [(report.unordered_rows, "out of order"), (report.duplicate_rows, "repeated")] {
        if bad > 1 && bad * 100 > report.rows {
            let (file, rows) = (file.to_owned(), report.rows);
            return Err(TraceError::Disorder { file, what, bad, rows });
        }
    }
    Ok(())
}

fn trace(
    file: &str,
    unit: Unit,
    grid: Grid,
    series: impl Iterator<Item = (String, Vec<f32>)>,
    mut report: Report,
) -> Result<Trace, TraceError> {
    report.gaps = 0;
    let mut kept = Vec::new();
    for (name, values) in series {
        let gaps = values.iter().filter(|v| v.is_nan()).count();
        report.gaps += gaps as u64;
        if gaps < values.len() {
            kept.push(Series { name, unit, values });
        } else {
            report.empty_series += 1;
        }
    }

    if kept.is_empty() {
        return Err(TraceError::Empty { file: file.to_owned(), what: "value" });
    }
    Ok(Trace {
        name: file.to_owned(),
        period_s: grid.period_ms as f64 / 1000.0,
        start_s: grid.start_ms as f64 / 1000.0,
        series: kept,
        report,
    })
}
