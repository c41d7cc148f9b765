//! Days and weeks of the place where the VMs' people live.

use ballast_sim::trace::cells::rfc_3339;
use ballast_usage::week::{Calendar, Choice};
use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;

/// Local days, and which of them are looked at.
pub(super) struct Days {
    pub(super) zone: TimeZone,
    pub(super) choice: Choice,
    pub(super) calendar: Calendar,
}

impl Days {
    /// Local seconds of unix seconds.
    pub(super) fn local_s(&self, unix_s: i64) -> anyhow::Result<i64> {
        let instant = Timestamp::from_second(unix_s)?;
        Ok(unix_s + i64::from(self.zone.to_offset(instant).seconds()))
    }

    /// Unix milliseconds of an instant as text: with an offset, or in local time.
    pub(super) fn millis(&self, text: &str) -> Option<i64> {
        let local = || {
            let local = text.parse::<DateTime>().ok()?.to_zoned(self.zone.clone()).ok()?;
            Some(local.timestamp().as_millisecond())
        };
        rfc_3339(text).or_else(local)
    }
}

/// Days since 1970-01-01.
pub(super) fn day_number(date: Date) -> i32 {
    let epoch = jiff::civil::date(1970, 1, 1);
    (date - epoch).get_days()
}
