//! Which days people work.

use std::collections::BTreeSet;

use super::DAYS;

/// Holidays in a row beyond which no working day is looked for.
const LONGEST_BREAK: i32 = 366;

/// Which days people work: Monday to Friday without holidays.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Calendar {
    /// Days off besides weekends, counted from 1970-01-01.
    pub holidays: BTreeSet<i32>,
    /// Whether the series has no dates: then every day counts as a working day.
    pub dateless: bool,
}

impl Calendar {
    /// Whether people work on this day, counted from 1970-01-01 (a Thursday).
    pub fn is_working_day(&self, day: i32) -> bool {
        let weekend = (i64::from(day) + 3).rem_euclid(7) >= 5;
        self.dateless || !(weekend || self.holidays.contains(&day))
    }

    /// The working days from one day to another, both included.
    pub fn working_days(&self, first: i32, last: i32) -> impl Iterator<Item = i32> {
        (first..=last).filter(|day| self.is_working_day(*day))
    }

    /// The last working day before this one; none in a year of holidays.
    pub fn working_day_before(&self, day: i32) -> Option<i32> {
        let earliest = day.saturating_sub(LONGEST_BREAK);
        (earliest..day).rev().find(|day| self.is_working_day(*day))
    }

    /// Five working days in a row, of which this one is the last.
    pub(super) fn week_ending(&self, day: i32) -> Option<[i32; DAYS]> {
        let mut days = [day; DAYS];
        for n in (1..DAYS).rev() {
            days[n - 1] = self.working_day_before(days[n])?;
        }
        Some(days)
    }
}
