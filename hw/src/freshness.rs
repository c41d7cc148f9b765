//! When a value was produced, and how often its device produces one.

use core::time::Duration;
use std::collections::VecDeque;

use ballast_types::Instant;

/// Identical reads in a row until a sensor may count as frozen.
const FROZEN_READS: u32 = 25;
/// And refreshes in which it stood still: meters of whole watts repeat themselves on an idle server.
const FROZEN_REFRESHES: u32 = 10;
/// Intervals between changes that are kept: enough for a median, few enough to follow a change.
const KEPT: usize = 63;
/// Intervals until the median is told.
const LEAST: usize = 20;

/// Notices when a value moves, how long it has stood still, and how often it moves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Freshness {
    last: Option<LastValue>,
    /// Times between changes, newest last.
    intervals: VecDeque<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct LastValue {
    value: (i64, Option<u64>),
    first_at: Instant,
    newest_at: Instant,
    reads: u32,
    /// Whether reads of it have failed in between: it may then have moved unseen.
    gap: bool,
}

impl Freshness {
    /// Takes a value, with the device's own mark if it has one. Says when this value first showed and
    /// how often in a row it has been read.
    pub(crate) fn see(&mut self, value: i64, mark: Option<u64>, now: Instant) -> (Instant, u32) {
        let value = (value, mark);
        if let Some(seen) = &mut self.last {
            if seen.value == value {
                seen.reads = seen.reads.saturating_add(1);
                seen.newest_at = now;
                return (seen.first_at, seen.reads);
            }
            if !seen.gap {
                if self.intervals.len() == KEPT {
                    self.intervals.pop_front();
                }
                self.intervals.push_back(now.since(seen.first_at));
            }
        }
        self.last = Some(LastValue { value, first_at: now, newest_at: now, reads: 1, gap: false });
        (now, 1)
    }

    /// A read has failed: the time until the next change says nothing about the device.
    pub(crate) fn missed(&mut self) {
        if let Some(seen) = &mut self.last {
            seen.gap = true;
        }
    }

    /// Whether the value has stood still for too long: 25 reads, and ten times the measured refresh.
    pub(crate) fn frozen(&self) -> bool {
        self.last.is_some_and(|seen| {
            let least = self.refresh().unwrap_or_default().saturating_mul(FROZEN_REFRESHES);
            seen.reads > FROZEN_READS && seen.newest_at.since(seen.first_at) >= least
        })
    }

    /// The measured refresh: the median time between changes, once 20 were seen. Where the device is
    /// read less often than it refreshes, this is the period of reading.
    pub(crate) fn refresh(&self) -> Option<Duration> {
        if self.intervals.len() < LEAST {
            return None;
        }
        let mut sorted: Vec<_> = self.intervals.iter().copied().collect();
        let middle = sorted.len() / 2;
        Some(*sorted.select_nth_unstable(middle).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    #[test]
    fn a_value_or_a_mark_that_moves_is_fresh() {
        let mut f = Freshness::default();
        assert_eq!(f.see(200, None, at(0)), (at(0), 1));
        assert_eq!(f.see(200, None, at(1)), (at(0), 2));
        assert_eq!(f.see(201, None, at(2)), (at(2), 1));
        assert_eq!(f.see(201, Some(1), at(3)), (at(3), 1));
        assert_eq!(f.see(201, Some(2), at(4)), (at(4), 1), "whole watts, but a new stamp");
        assert_eq!(f.see(201, Some(2), at(5)), (at(4), 2));
    }

    #[test]
    fn the_refresh_is_the_median_between_changes_whatever_the_reading_period() {
        for (refresh_ms, read_ms, expected) in
            [(1000, 200, 1000..=1000), (1000, 70, 980..=1050), (100, 250, 250..=250)]
        {
            let mut f = Freshness::default();
            for k in 0..2000u64 {
                let now = k * read_ms;
                f.see((now / refresh_ms) as i64, None, at(now));
                assert!(k > 0 || f.refresh().is_none());
            }
            let ms = f.refresh().unwrap().as_millis() as u64;
            assert!(expected.contains(&ms), "{refresh_ms} {read_ms}: {ms}");
        }
    }

    #[test]
    fn nothing_is_told_before_twenty_intervals_and_none_spans_a_gap() {
        let mut f = Freshness::default();
        for k in 0..=20 {
            assert_eq!(f.refresh(), None, "{k}");
            f.see(k, None, at(1000 * k as u64));
        }
        assert_eq!(f.refresh(), Some(Duration::from_secs(1)));
        for k in 0..40 {
            f.missed();
            f.see(100 + k, None, at(100_000 + 60_000 * k as u64));
        }
        assert_eq!(f.refresh(), Some(Duration::from_secs(1)), "gaps are not intervals");
    }

    #[test]
    fn a_slow_meter_is_frozen_after_ten_of_its_refreshes_and_not_before() {
        let mut f = Freshness::default();
        let mut now = 0;
        for k in 0..30 {
            for _ in 0..5 {
                f.see(k, None, at(now));
                now += 200;
            }
        }

        // The last value was first seen a second ago, five reads.
        let mut reads = 5;

        while !f.frozen() {
            f.see(29, None, at(now));
            now += 200;
            reads += 1;
            assert!(reads < 100);
        }

        assert_eq!(reads, 51, "ten seconds at five reads a second");
        let mut fast = Freshness::default();

        for k in 0..26 {
            assert!(!fast.frozen(), "{k}");
            fast.see(1, None, at(k));
        }

        assert!(fast.frozen());
    }
}
