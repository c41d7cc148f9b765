//! A week on a level: every value over the mean of the 24 hours before it, and over the series' deviation.

use ballast_types::standard_deviation;
use serde::{Deserialize, Serialize};

use super::Reason;
use crate::week::{DAY, HALF_HOURS, Week};

/// The smallest mean that a value is divided by, in percent.
const FLOOR_PCT: f64 = 0.1;
/// Below this standard deviation of the de-trended series it is flat.
const FLAT: f64 = 1e-9;

/// What the first day, which has no day before it, is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FirstDay {
    /// The working day before it where that is known, else its own mean.
    #[default]
    WarmUp,
    /// Its own mean.
    Own,
    /// Nothing: it is left out, and four days are looked at.
    Drop,
}

/// A de-trended and normalised series. Missing values are NaN; so is a first day that was dropped.
#[derive(Clone, Debug)]
pub struct Series {
    values: [f64; HALF_HOURS],
    /// Standard deviation of the de-trended values, before they were divided by it.
    deviation: f64,
}

impl Series {
    /// De-trends and normalises a week (III-B, step 1).
    /// The answer is `Flat` if the de-trended series never changes.
    pub fn new(week: &Week, first_day: FirstDay) -> Result<Self, Reason> {
        week.check()?;
        let mut values = scaled(week, first_day);
        let deviation = deviation(&values);
        if deviation < FLAT {
            return Err(Reason::Flat);
        }
        for value in &mut values {
            *value /= deviation;
        }
        Ok(Self { values, deviation })
    }

    /// The values, half hour by half hour; missing ones are NaN.
    pub fn values(&self) -> &[f64; HALF_HOURS] {
        &self.values
    }

    /// Standard deviation of the de-trended values, as a share of the mean use.
    pub fn deviation(&self) -> f64 {
        self.deviation
    }
}

/// Every value over the mean of the 24 hours before it; NaN if the value is missing, or all of the hours are.
fn scaled(week: &Week, first_day: FirstDay) -> [f64; HALF_HOURS] {
    let x = week.values();
    let warm_up = week.warm_up().filter(|_| first_day == FirstDay::WarmUp);
    let mut known = [f64::NAN; DAY + HALF_HOURS];
    known[DAY..].copy_from_slice(x);

    if let Some(before) = warm_up {
        known[..DAY].copy_from_slice(before);
    }
    let there = known.map(|v| if v.is_nan() { 0.0 } else { 1.0 });
    let known = known.map(|v| if v.is_nan() { 0.0 } else { v });

    // All windows side by side: their sums do not wait for each other.
    let (mut sums, mut counts) = ([0.0; HALF_HOURS], [0.0; HALF_HOURS]);

    for back in 0..DAY {
        for i in 0..HALF_HOURS {
            sums[i] += known[back + i];
            counts[i] += there[back + i];
        }
    }

    if warm_up.is_none() {
        // The window after the first day is that day.
        let (sum, count) = (sums[DAY], counts[DAY]);
        sums[..DAY].fill(sum);
        counts[..DAY].fill(count);
    }

    let mut scaled: [f64; HALF_HOURS] = core::array::from_fn(|i| {
        if counts[i] > 0.0 { x[i] / (sums[i] / counts[i]).max(FLOOR_PCT) } else { f64::NAN }
    });

    if first_day == FirstDay::Drop {
        scaled[..DAY].fill(f64::NAN);
    }

    scaled
}

/// Population standard deviation of what is there.
fn deviation(values: &[f64]) -> f64 {
    standard_deviation(values.iter().copied().filter(|value| !value.is_nan())).unwrap_or(f64::NAN)
}
