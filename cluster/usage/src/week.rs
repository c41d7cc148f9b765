//! Five working days of a VM's CPU use: what every labeller looks at.
//!
//! # What is missing, and how much of it may be
//! * A sample that is not finite, negative, or above [`MAX_PCT`] is no sample.
//! * A half hour is missing when fewer than half of its samples are there.
//! * A day is there when at least half of its half hours (24) are.
//! * A week is there when all five days are, and at most a fifth of its half hours (48) is missing. A series
//!   without such a week is user-facing: nobody knows better.

mod build;
mod calendar;
#[cfg(test)]
mod tests;

pub use build::{Choice, HalfHours, UnknownPeriod};
pub use calendar::Calendar;

use crate::label::Reason;

/// Half hours of a day.
pub const DAY: usize = 48;
/// Working days of a week.
pub const DAYS: usize = 5;
/// Half hours of five working days.
pub const HALF_HOURS: usize = DAY * DAYS;
/// Half hours that a day must have to be there.
pub const DAY_NEEDS: usize = DAY / 2;
/// Half hours that a week must have to be labelled: four fifths.
pub const WEEK_NEEDS: usize = HALF_HOURS - HALF_HOURS / 5;
/// The largest sample that is believed, in percent: ten thousand cores that count in percent of one.
pub const MAX_PCT: f64 = 1e6;

/// Half-hour averages of CPU use in percent, over five working days one after the other, and of the working
/// day before them where that is known. Missing ones are NaN.
#[derive(Clone, Debug, PartialEq)]
pub struct Week {
    values: [f64; HALF_HOURS],
    warm_up: Option<[f64; DAY]>,
}

impl Week {
    /// A week of 240 half-hour averages in percent. What is no percentage counts as missing.
    pub fn new(values: [f64; HALF_HOURS]) -> Self {
        Self { values: values.map(usable), warm_up: None }
    }

    /// The same week, with the working day before it. A day with too little of it is left out.
    #[must_use]
    pub fn with_warm_up(self, day: [f64; DAY]) -> Self {
        let day = day.map(usable);
        Self { warm_up: (present(&day) >= DAY_NEEDS).then_some(day), ..self }
    }

    /// The half hours, missing ones as NaN.
    pub fn values(&self) -> &[f64; HALF_HOURS] {
        &self.values
    }

    /// The working day before the first, if it is known.
    pub fn warm_up(&self) -> Option<&[f64; DAY]> {
        self.warm_up.as_ref()
    }

    /// Whether enough of it is there to be labelled.
    pub fn check(&self) -> Result<(), Reason> {
        let days = self.values.chunks(DAY).all(|day| present(day) >= DAY_NEEDS);
        let enough = days && present(&self.values) >= WEEK_NEEDS;
        if enough { Ok(()) } else { Err(Reason::TooManyGaps) }
    }
}

/// The value, or NaN where it is none.
fn usable(value: f64) -> f64 {
    if (0.0..=MAX_PCT).contains(&value) { value } else { f64::NAN }
}

fn present(values: &[f64]) -> usize {
    values.iter().filter(|v| !v.is_nan()).count()
}
