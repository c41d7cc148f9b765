//! From samples with local times to a week.

use std::collections::BTreeMap;

use thiserror::Error;

use super::{Calendar, DAY, DAYS, HALF_HOURS, Week, usable};
use crate::label::Reason;

const HALF_HOUR_S: u32 = 1800;

/// A period that does not divide half an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a period of {0} s: allowed are periods that divide 30 minutes (1800 s)")]
pub struct UnknownPeriod(pub u32);

/// Which five working days of a longer series are labelled. They follow each other: between two of them
/// there are only weekends and holidays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Choice {
    /// The last five with enough in them.
    #[default]
    Last,
    /// The first five with enough in them.
    First,
    /// The five that begin with this day, or with the first working day after it.
    From(i32),
}

/// Samples of one VM, gathered into half hours of local days.
///
/// Days are counted from 1970-01-01 in local time. What the local time is, the caller knows: this crate has
/// no calendar. Where summer time makes an hour come twice, its samples are averaged; where it leaves one
/// out, two half hours are missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HalfHours {
    /// Samples that a half hour should have.
    expected: u32,
    days: BTreeMap<i32, [Sum; DAY]>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sum {
    sum: f64,
    samples: u32,
}

impl HalfHours {
    /// For samples that are `period_s` apart. This fails if the period does not divide 30 minutes.
    pub fn new(period_s: u32) -> Result<Self, UnknownPeriod> {
        if period_s == 0 || !HALF_HOUR_S.is_multiple_of(period_s) {
            return Err(UnknownPeriod(period_s));
        }
        Ok(Self { expected: HALF_HOUR_S / period_s, days: BTreeMap::new() })
    }

    /// Adds a sample in percent: `day` counts local days since 1970-01-01, `slot` half hours since local
    /// midnight (0 to 47; others are ignored). What is no percentage counts as missing.
    pub fn add(&mut self, day: i32, slot: usize, value: f64) {
        let value = usable(value);
        if value.is_nan() || slot >= DAY {
            return;
        }
        let half_hour = &mut self.days.entry(day).or_insert([Sum::default(); DAY])[slot];
        half_hour.sum += value;
        half_hour.samples += 1;
    }

    /// Forgets all days before this one, so that memory stays bounded.
    pub fn forget_before(&mut self, day: i32) {
        self.days = self.days.split_off(&day);
    }

    /// The days with any sample, in order.
    pub fn days(&self) -> impl DoubleEndedIterator<Item = i32> {
        self.days.keys().copied()
    }

    /// The chosen week, by the calendar's working days. The working day before it is its warm-up. The answer
    /// is `TooShort` if fewer than five working days lie between the first and the last sample, `TooManyGaps`
    /// if no five of them have enough.
    pub fn week(&self, choice: Choice, calendar: &Calendar) -> Result<Week, Reason> {
        let (Some(first), Some(last)) = (self.days().next(), self.days().next_back()) else {
            return Err(Reason::TooShort);
        };
        if let Choice::From(day) = choice {
            let days: Vec<i32> = calendar.working_days(day, last).take(DAYS).collect();
            return self.take(days.as_slice().try_into().map_err(|_| Reason::TooShort)?, calendar);
        }

        // Only weeks that end with a day that is there: stamps may be years apart.
        let week = |end: i32| calendar.week_ending(end).filter(|days| days[0] >= first);
        let mut ends = self.days().filter(|day| calendar.is_working_day(*day));
        let next = || match choice {
            Choice::First => ends.next(),
            _ => ends.next_back(),
        };

        let found =
            std::iter::from_fn(next).filter_map(week).find_map(|days| self.take(&days, calendar).ok());
        let long = calendar.working_day_before(last.saturating_add(1)).and_then(week).is_some();

        found.ok_or(if long { Reason::TooManyGaps } else { Reason::TooShort })
    }

    fn take(&self, days: &[i32; DAYS], calendar: &Calendar) -> Result<Week, Reason> {
        let mut values = [f64::NAN; HALF_HOURS];
        for (day, into) in days.iter().zip(values.chunks_mut(DAY)) {
            if let Some(from) = self.day(*day) {
                into.copy_from_slice(&from);
            }
        }
        let week = Week::new(values);
        week.check()?;
        let before = calendar.working_day_before(days[0]).and_then(|day| self.day(day));
        Ok(before.map_or(week.clone(), |day| week.with_warm_up(day)))
    }

    /// The half-hour averages of a day; half hours with too few samples are NaN.
    fn day(&self, day: i32) -> Option<[f64; DAY]> {
        let average = |half_hour: &Sum| {
            let enough = half_hour.samples > 0 && half_hour.samples * 2 >= self.expected;
            if enough { half_hour.sum / f64::from(half_hour.samples) } else { f64::NAN }
        };
        self.days.get(&day).map(|half_hours| half_hours.each_ref().map(average))
    }
}
