//! The server's power meter, as far as it can be believed.

use core::time::Duration;

use ballast_types::{Instant, Watts};
use serde::{Deserialize, Serialize};

use crate::Reading;

/// Beyond this no server draws; the reader has its own, tighter bound.
const IMPLAUSIBLE: Watts = Watts::from_whole(1_000_000);

/// Whether a server can draw so much.
pub(crate) fn plausible(watts: Watts) -> bool {
    watts > Watts::ZERO && watts <= IMPLAUSIBLE
}

/// One valid reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) watts: Watts,
    pub(crate) taken_at: Instant,
}

/// The newest valid reading, and how long it may be believed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Meter {
    period: Duration,
    stale: Duration,
    started: Instant,
    newest: Option<Sample>,
    faults: u64,
}

impl Meter {
    /// A meter that is read every `period`; a reading older than `stale`, or three periods, says
    /// nothing any more.
    pub(crate) fn new(period: Duration, stale: Option<Duration>, started: Instant) -> Self {
        let stale = stale.unwrap_or(period.saturating_mul(3));
        Self { period, stale, started, newest: None, faults: 0 }
    }

    /// Takes a reading; `Some` if it is valid, fresh and not too old to tell anything.
    pub(crate) fn take(&mut self, now: Instant, reading: Reading) -> Option<Sample> {
        let Reading::Sample { watts, taken_at } = reading else {
            self.faults = self.faults.saturating_add(1);
            return None;
        };
        if !plausible(watts) {
            self.faults = self.faults.saturating_add(1);
            return None;
        }
        // A stamp from the future must not make every later reading look old.
        let sample = Sample { watts, taken_at: taken_at.min(now) };
        if self.newest.is_some_and(|newest| sample.taken_at <= newest.taken_at) {
            return None;
        }
        self.newest = Some(sample);
        (now < self.silent_at()).then_some(sample)
    }

    /// From this instant on, without a newer sample, the server is blind.
    pub(crate) fn silent_at(&self) -> Instant {
        self.newest.map_or(self.started, |sample| sample.taken_at) + self.stale
    }

    /// The newest sample, if it is current: at most two periods old.
    pub(crate) fn current(&self, now: Instant) -> Option<Sample> {
        self.newest.filter(|sample| now.since(sample.taken_at) <= self.period.saturating_mul(2))
    }

    /// The newest sample, until the server is blind.
    pub(crate) fn newest(&self, now: Instant) -> Option<Sample> {
        self.newest.filter(|_| now < self.silent_at())
    }

    /// The newest draw, likewise.
    pub(crate) fn draw(&self, now: Instant) -> Option<Watts> {
        self.newest(now).map(|sample| sample.watts)
    }

    pub(crate) fn faults(&self) -> u64 {
        self.faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SensorFault;

    fn ms(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }
    fn sample(watts: i64, at: u64) -> Reading {
        Reading::Sample { watts: Watts::from_whole(watts), taken_at: ms(at) }
    }

    #[test]
    fn only_fresh_plausible_readings_count() {
        let mut meter = Meter::new(Duration::from_millis(200), None, ms(0));
        assert_eq!(meter.silent_at(), ms(600));
        for (now, reading, fresh) in [
            (100, sample(0, 100), false),
            (100, sample(-5, 100), false),
            (100, sample(2_000_000, 100), false),
            (100, Reading::Fault(SensorFault::Frozen), false),
            (100, sample(200, 100), true),
            (200, sample(250, 100), false), // the stamp has not moved
            (300, sample(250, 90), false),  // older
            (300, sample(250, 900), true),  // from the future: counts as now
            (400, sample(260, 400), true),
            (1100, sample(270, 500), false), // too old when it came
        ] {
            assert_eq!(meter.take(ms(now), reading).is_some(), fresh, "{now} {reading:?}");
        }

        assert_eq!(meter.faults(), 4);
        assert_eq!((meter.draw(ms(1099)), meter.draw(ms(1100))), (Some(Watts::from_whole(270)), None));

        assert!(meter.current(ms(900)).is_some() && meter.current(ms(901)).is_none());
    }

    #[test]
    fn a_meter_that_may_stand_still_is_believed_for_longer_but_is_not_current() {
        let stale = Duration::from_secs(5);
        let mut meter = Meter::new(Duration::from_millis(200), Some(stale), ms(0));
        assert!(meter.take(ms(200), sample(250, 200)).is_some());
        assert!(meter.draw(ms(5199)).is_some() && meter.draw(ms(5200)).is_none());
        assert!(meter.current(ms(601)).is_none(), "an alert does not rest on it");
    }
}
