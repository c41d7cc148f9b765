//! What capping does to one VM: how long, and how hard.

use core::time::Duration;

use ballast_types::wire::VmImpact;
use ballast_types::{Instant, KiloHertz};
use serde::{Deserialize, Serialize};

use crate::throttle::Throttle;

/// Parts of a core, or of cores that are shared.
pub(crate) const PPM: u32 = 1_000_000;

/// The account of one VM; all times are core-nanoseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Impact {
    rates: Rates,
    throttled: u64,
    lost: u64,
    floor: u64,
    limited: u64,
    periods: u64,
    /// The present period's start.
    since: Option<Instant>,
    longest: Duration,
    min: Option<KiloHertz>,
}

/// How many cores it is that the accounts grow by, in millionths.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Rates {
    capped: u64,
    floored: u64,
    lost: u64,
    limited: u64,
}

impl Impact {
    /// Books the time since the last look, at what was seen then.
    pub(crate) fn pass(&mut self, span: Duration) {
        let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let add = |sum: &mut u64, ppm: u64| {
            let more = u128::from(span) * u128::from(ppm) / u128::from(PPM);
            *sum = sum.saturating_add(u64::try_from(more).unwrap_or(u64::MAX));
        };
        add(&mut self.throttled, self.rates.capped);
        add(&mut self.floor, self.rates.floored);
        add(&mut self.limited, self.rates.limited);
        add(&mut self.lost, self.rates.lost);
    }

    /// Looks at its cores, or the units of a floating VM, of which `part_ppm` is its own; the server's own limit
    /// holds `limited` of them.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        cores: &[u16],
        throttle: &Throttle,
        limited: usize,
        part_ppm: u32,
    ) {
        let part = u64::from(part_ppm);
        let mut rates = Rates { limited: limited as u64 * part, ..Rates::default() };
        for core in cores.iter().map(|core| usize::from(*core)) {
            if !throttle.restricted(core) {
                continue;
            }
            let (khz, max) = (throttle.khz(core), throttle.max_khz(core));
            rates.capped += part;
            rates.floored += u64::from(throttle.at_floor(core)) * part;

            // A ladder has no zero.
            rates.lost += part - u64::from(khz.get()) * part / u64::from(max.get().max(1));
            self.min = Some(self.min.map_or(khz, |min| min.min(khz)));
        }

        self.rates = rates;

        match self.since {
            None if rates.capped > 0 => {
                self.since = Some(now);
                self.periods = self.periods.saturating_add(1);
            }
            Some(since) if rates.capped == 0 => {
                self.longest = self.longest.max(now.since(since));
                self.since = None;
            }
            _ => {}
        }
    }

    /// The account as of `now`, `span` after the last look. A floating VM has lost time, not frequency.
    pub(crate) fn status(mut self, now: Instant, span: Duration, floating: bool) -> VmImpact {
        self.pass(span);
        let present = self.since.map_or(Duration::ZERO, |since| now.since(since));
        let ms = |nanos: u64| nanos / 1_000_000;
        VmImpact {
            throttled_core_ms: ms(self.throttled),
            lost_core_ms: ms(self.lost),
            floor_core_ms: ms(self.floor),
            throttled_periods: self.periods,
            longest_throttled_ms: self.longest.max(present).as_millis() as u64,
            lowest_khz: self.min.filter(|_| !floating),
            limited_core_ms: ms(self.limited),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_types::{Core, CoreId, Ladder};

    #[test]
    fn time_depth_floor_and_periods_are_counted_by_core() {
        let mhz = KiloHertz::from_mhz;
        let ladder = Ladder::new(&[mhz(1000), mhz(1500), mhz(2000)]).unwrap();
        let cores = (0..3).map(|n| Core { id: CoreId(n), ladder: ladder.clone() }).collect();
        let mut throttle = Throttle::new(cores, false);
        let mut impact = Impact::default();
        let mut at = 0;

        // For so long two cores are at these p-states, with the server's own limit on or off.
        let mut stay = |millis: u64, levels: [usize; 2], limited: bool| {
            let now = Instant::from_millis(at);
            throttle.recover(0, levels[0]);
            throttle.recover(1, levels[1]);
            impact.look(now, &[0, 1], &throttle, if limited { 2 } else { 0 }, PPM);
            let span = Duration::from_millis(millis);
            let shown = impact.status(now + span, span, false);
            impact.pass(span);
            at += millis;

            shown
        };

        assert_eq!(stay(1000, [2, 2], false), VmImpact::default());
        let first = VmImpact {
            throttled_core_ms: 200,
            lost_core_ms: 75,
            floor_core_ms: 100,
            throttled_periods: 1,
            longest_throttled_ms: 100,
            lowest_khz: Some(mhz(1000)),
            limited_core_ms: 0,
        };

        assert_eq!(stay(100, [0, 1], false), first);

        // The period goes on while one core is capped; the limit counts every core, capped or not.
        let second = VmImpact {
            throttled_core_ms: 400,
            lost_core_ms: 125,
            throttled_periods: 1,
            longest_throttled_ms: 300,
            limited_core_ms: 400,
            ..first
        };

        assert_eq!(stay(200, [1, 2], true), second);
        assert_eq!(stay(500, [2, 2], false), second);

        // A shorter one is one more, and not the longest.
        let third = VmImpact {
            throttled_core_ms: 450,
            lost_core_ms: 150,
            floor_core_ms: 150,
            throttled_periods: 2,
            ..second
        };

        assert_eq!(stay(50, [0, 2], false), third);
    }
}
