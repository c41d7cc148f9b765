//! Whether a host keeps the promise, as its agent has measured.

use ballast_types::wire::OverflowHour;
use serde::{Deserialize, Serialize};

const HOUR_S: u64 = 3600;
/// An hour of which less was measured says nothing.
const MEASURED_MIN_S: u32 = 1800;
/// So many hours on end close a host.
const BAD_MAX: u32 = 2;

/// What is known of one host. An hour that was not measured is missing: it neither closes the host nor opens it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Judgement {
    /// When the newest hour that counts began, in seconds since 1970.
    newest_unix_s: u64,
    /// Hours on end that broke the promise.
    bad: u32,
    /// The share of the last of them, where they close the host.
    pub(super) closed: Option<f64>,
}

impl Judgement {
    /// Takes the hours that are over at `now`, oldest first, each once, and gives those that count and in which the host was
    /// open. What is of the future comes from a clock that is wrong.
    pub(super) fn take(&mut self, hours: &[OverflowHour], now_unix_s: u64, target: f64) -> Vec<OverflowHour> {
        let mut counted = vec![];
        if self.newest_unix_s > now_unix_s {
            self.newest_unix_s = 0;
        }
        let mut hours: Vec<&OverflowHour> = hours.iter().collect();
        hours.sort_by_key(|hour| hour.from_unix_s);
        for hour @ OverflowHour { from_unix_s, measured_s, over_s } in hours {
            let is_over = from_unix_s.checked_add(HOUR_S).is_some_and(|end| end <= now_unix_s);
            let possible = (MEASURED_MIN_S..=HOUR_S as u32 + 5).contains(measured_s) && over_s <= measured_s;
            if !is_over || !possible || *from_unix_s <= self.newest_unix_s {
                continue;
            }
            if self.closed.is_none() {
                counted.push(*hour);
            }
            let share = f64::from(*over_s) / f64::from(*measured_s);
            self.newest_unix_s = *from_unix_s;
            self.bad = if share > target { self.bad.saturating_add(1) } else { 0 };
            self.closed = (self.bad >= BAD_MAX).then_some(share);
        }
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hour(n: u64, measured_s: u32, over_s: u32) -> OverflowHour {
        OverflowHour { from_unix_s: n * HOUR_S, measured_s, over_s }
    }

    #[test]
    fn two_bad_hours_close_a_host_and_one_good_one_opens_it() {
        let mut judgement = Judgement::default();
        let mut now = 100 * HOUR_S;
        let mut closed = |hours: &[OverflowHour], step_h: i64| {
            now = now.wrapping_add_signed(step_h * HOUR_S as i64);
            judgement.take(hours, now, 0.01);
            judgement.closed
        };
        assert_eq!(closed(&[hour(98, 3600, 37)], 0), None, "one is none");
        assert_eq!(closed(&[hour(98, 3600, 37), hour(99, 3600, 36)], 0), None, "1 % is allowed");
        assert_eq!(closed(&[hour(100, 3600, 360)], 0), None, "the hour is not over");
        let two = [hour(100, 3600, 360), hour(101, 3600, 72)];
        assert_eq!(closed(&two, 1), None);
        assert_eq!(closed(&two, 1), Some(0.02));
        // Nothing that was not measured opens it: neither silence, nor half an hour, nor an hour that cannot be.
        assert_eq!(closed(&[], 5), Some(0.02));
        for bad in [hour(102, 1799, 0), hour(102, 9000, 0), hour(102, 3600, 3601), hour(500, 3600, 0)] {
            assert_eq!(closed(&[bad], 0), Some(0.02), "{bad:?}");
        }
        // An hour from before, told again.
        assert_eq!(closed(&[hour(99, 3600, 0)], 0), Some(0.02));
        assert_eq!(closed(&[hour(103, 3600, 0)], 0), None);
        // Hours on end are those that were measured.
        assert_eq!(closed(&[hour(104, 3600, 360), hour(105, 0, 0), hour(106, 3600, 360)], 0), Some(0.1));
        // A clock that was ahead for a while.
        assert_eq!(closed(&[hour(900, 3600, 360)], 900), Some(0.1));
        assert_eq!(closed(&[hour(106, 3600, 0)], -900), None);
    }
}
