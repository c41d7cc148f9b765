//! When a BMC that has refused a log-in is asked again: BMCs lock accounts after a few refusals.

use std::time::{Duration, Instant};

/// BMCs count refusals over a minute or more: two clients stay below three of them.
const FIRST: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// Refusals in a row.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    count: u32,
    until: Option<Instant>,
}

impl Refusals {
    /// One more: each is waited for twice as long as the one before.
    pub(super) fn refused(&mut self, now: Instant) {
        let wait = FIRST.saturating_mul(1 << self.count.min(8)).min(LONGEST);
        self.count = self.count.saturating_add(1);
        self.until = Some(now + wait);
    }

    /// How long nothing may be tried, and how many refusals there were; `None` if it may.
    pub(super) fn wait(&self, now: Instant) -> Option<(Duration, u32)> {
        let left = self.until?.saturating_duration_since(now);
        (!left.is_zero()).then_some((left, self.count))
    }

    pub(super) fn is_any(&self) -> bool {
        self.count > 0
    }

    /// Let in, or by another account.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_is_waited_for_twice_as_long_up_to_a_quarter_of_an_hour() {
        let (mut now, mut refusals) = (Instant::now(), Refusals::default());
        assert_eq!(refusals.wait(now), None);
        for (n, minutes) in [1, 2, 4, 8, 15, 15].into_iter().enumerate() {
            refusals.refused(now);
            let wait = Duration::from_secs(minutes * 60);
            assert_eq!(refusals.wait(now), Some((wait, n as u32 + 1)));
            now += wait;
            assert_eq!(refusals.wait(now), None);
        }
        refusals.forget();
        assert!(!refusals.is_any());
    }
}
