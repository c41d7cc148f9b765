//! Values by time, in rings: what comes last takes the place of the oldest.

use std::ops::Range;

use ballast_types::Watts;

use super::COARSE_MS;

/// An hour of fine values.
const FINE_SPAN_MS: u64 = 3_600_000;
/// A day of coarse ones.
const COARSE_ROWS: u64 = 8_640;

/// Values at even steps of the clock on the wall; NaN where nothing is known. A row has one value, or minimum, mean and
/// maximum.
struct Ring<const WIDTH: usize> {
    step_ms: u64,
    /// The number of the newest step since 1970.
    newest: u64,
    rows: Vec<[f32; WIDTH]>,
}

impl<const WIDTH: usize> Ring<WIDTH> {
    fn new(step_ms: u64, rows: u64) -> Self {
        let rows = usize::try_from(rows).unwrap_or(1);
        Self { step_ms, newest: 0, rows: vec![[f32::NAN; WIDTH]; rows] }
    }

    fn index(&self, bin: u64) -> usize {
        (bin % self.rows.len() as u64) as usize
    }

    /// The row of this time, which is the newest from now on.
    fn row(&mut self, unix_ms: u64) -> &mut [f32; WIDTH] {
        let (bin, rows) = (unix_ms / self.step_ms, self.rows.len() as u64);
        // Nothing is known of the time in between; where the clock was set back, that is what comes again.
        let (from, to) = if bin > self.newest { (self.newest + 1, bin) } else { (bin + 1, self.newest) };
        for unknown in from.max((to + 1).saturating_sub(rows))..=to {
            let at = self.index(unknown);
            self.rows[at] = [f32::NAN; WIDTH];
        }
        self.newest = bin;
        let at = self.index(bin);
        &mut self.rows[at]
    }

    fn get(&self, bin: u64) -> Option<[f32; WIDTH]> {
        let is_kept = bin <= self.newest && bin + self.rows.len() as u64 > self.newest;
        let row = is_kept.then(|| self.rows[self.index(bin)])?;
        (!row[0].is_nan()).then_some(row)
    }
}

/// Which of several values in one fine step stands there.
#[derive(Clone, Copy)]
pub(super) enum Keep {
    Highest,
    Lowest,
}

/// One figure over time.
pub(super) struct Series {
    keep: Keep,
    fine: Ring<1>,
    coarse: Ring<3>,
    /// How many values the newest coarse row has.
    count: u32,
}

impl Series {
    /// Nothing yet; the hour has steps of `fine_ms`.
    pub(super) fn new(fine_ms: u64, keep: Keep) -> Self {
        let fine = Ring::new(fine_ms, FINE_SPAN_MS / fine_ms);
        Self { keep, fine, coarse: Ring::new(COARSE_MS, COARSE_ROWS), count: 0 }
    }

    /// Takes a value, or that there is none.
    pub(super) fn take(&mut self, unix_ms: u64, watts: Option<Watts>) {
        if self.coarse.newest != unix_ms / COARSE_MS {
            self.count = 0;
        }
        let (fine, coarse) = (self.fine.row(unix_ms), self.coarse.row(unix_ms));
        let Some(value) = watts.map(|watts| watts.as_f64() as f32) else { return };

        // `max` and `min` leave a NaN aside.
        fine[0] = match self.keep {
            Keep::Highest => fine[0].max(value),
            Keep::Lowest => fine[0].min(value),
        };
        let [min, mean, max] = *coarse;
        self.count += 1;
        let mean = if mean.is_nan() { value } else { mean + (value - mean) / self.count as f32 };
        *coarse = [min.min(value), mean, max.max(value)];
    }

    /// Minimum, mean and maximum in 10 s.
    pub(super) fn coarse(&self, bin: u64) -> Option<[f32; 3]> {
        self.coarse.get(bin)
    }

    pub(super) fn restore(&mut self, unix_ms: u64, row: Option<[f32; 3]>) {
        *self.coarse.row(unix_ms) = row.unwrap_or([f32::NAN; 3]);
        // What comes into the same 10 s after a restart counts as much as what was there.
        self.count = 1;
    }

    /// The steps since then that are kept, up to now.
    pub(super) fn bins(&self, since_unix_ms: u64, step_ms: u64, unix_ms: u64) -> Range<u64> {
        let (newest_ms, span_ms) = if step_ms < COARSE_MS {
            (self.fine.newest * self.fine.step_ms, FINE_SPAN_MS)
        } else {
            (self.coarse.newest * COARSE_MS, COARSE_ROWS * COARSE_MS)
        };
        let newest_ms = newest_ms.min(unix_ms);
        let from = since_unix_ms.max(newest_ms.saturating_sub(span_ms) + 1).div_ceil(step_ms);
        let end = newest_ms / step_ms + 1;
        from.min(end)..end
    }

    /// Minimum, mean and maximum of each of these steps, to a tenth of a watt.
    pub(super) fn read(&self, bins: Range<u64>, step_ms: u64) -> [Vec<Option<f64>>; 3] {
        let mut columns = [vec![], vec![], vec![]];
        for bin in bins {
            let row = self.joined(bin, step_ms);
            for (n, column) in columns.iter_mut().enumerate() {
                column.push(row.map(|row| (row[n] * 10.0).round() / 10.0));
            }
        }
        columns
    }

    /// All rows in one step.
    pub(super) fn joined(&self, bin: u64, step_ms: u64) -> Option<[f64; 3]> {
        let is_fine = step_ms < COARSE_MS;
        let parts = step_ms / if is_fine { self.fine.step_ms } else { COARSE_MS };
        let rows = (bin * parts..(bin + 1) * parts).filter_map(|part| match is_fine {
            true => self.fine.get(part).map(|[value]| [value; 3]),
            false => self.coarse.get(part),
        });

        let joined = rows.map(|row| row.map(f64::from)).fold(None, |sum, [min, mean, max]| {
            let (count, [low, total, high]) = sum.unwrap_or((0.0, [f64::INFINITY, 0.0, f64::NEG_INFINITY]));
            Some((count + 1.0, [low.min(min), total + mean, high.max(max)]))
        });
        joined.map(|(count, [min, total, max])| [min, total / count, max])
    }
}
