//! Usage records on disk: one append-only file for each day in UTC, `usage/2026-11-21.usage`.
//!
//! A [`Store`] writes them, [`read`] reads them; both bear files that a crash has cut short.

mod codec;
mod read;
mod store;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::{fs, io};

use jiff::civil::{Date, date};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};

pub use codec::Damage;
pub use read::{ReadSummary, read};
pub use store::{Limits, Store};

/// The day from which days are counted.
const DAY_0: Date = date(1970, 1, 1);

/// The folder of the records, in an agent's state folder.
pub fn folder(state_dir: &Path) -> PathBuf {
    state_dir.join("usage")
}

/// A date, counted in days from 1970-01-01.
pub(crate) fn day_number(date: Date) -> i32 {
    // Dates differ by less than 2^31 days.
    date.duration_since(DAY_0).as_hours() as i32 / 24
}

/// The local day of a time since 1970, counted from 1970-01-01, and which half hour of it that is by the wall
/// clock there (0 to 47).
pub(crate) fn local_time(unix_s: u64, zone: &TimeZone) -> (i32, usize) {
    // Beyond the year 9999 it is the last moment before.
    let seconds = i64::try_from(unix_s).unwrap_or(i64::MAX);
    let at = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
    let local = zone.to_datetime(at);
    let half = i32::from(local.hour()) * 2 + i32::from(local.minute()) / 30;
    (day_number(local.date()), half as usize)
}

/// The name of a day's file; `None` for days beyond the year 9999.
fn file_name(day: u32) -> Option<String> {
    let date = DAY_0.checked_add(i64::from(day).days()).ok()?;
    Some(format!("{date}.usage"))
}

/// The day that a file's name tells.
fn day_of(name: &str) -> Option<u32> {
    let date: Date = name.strip_suffix(".usage")?.parse().ok()?;
    let day = u32::try_from(day_number(date)).ok()?;
    // Only the name that would be written.
    (file_name(day).as_deref() == Some(name)).then_some(day)
}

/// The days that have a file, oldest first, each with its path and size. Fails if the folder cannot be
/// listed; one that is not there has none.
fn days(folder: &Path) -> io::Result<Vec<(u32, PathBuf, u64)>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => return Err(named(folder, &error)),
    };
    let mut days = vec![];
    for entry in entries {
        let entry = entry.map_err(|error| named(folder, &error))?;
        if let Some(day) = entry.file_name().to_str().and_then(day_of) {
            let size = entry.metadata().map_or(0, |it| it.len());
            days.push((day, entry.path(), size));
        }
    }
    days.sort_unstable();
    Ok(days)
}

/// The error with its path.
fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
