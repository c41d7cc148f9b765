//! How often a server's VMs together use all of its CPUs.

use std::collections::VecDeque;

use ballast_types::wire::OverflowHour;

const HOUR_S: u64 = 3600;
/// So many hours are kept.
const KEPT: usize = 48;

/// Counts seconds by the hour of the wall clock.
#[derive(Clone, Debug, Default)]
pub struct OverflowMeter(VecDeque<OverflowHour>);

impl OverflowMeter {
    /// A second has passed at this wall time, in seconds since 1970; `over` is missing where not every VM was measured. One
    /// of an hour before the newest, as after a step of the clock, counts for nothing.
    pub fn second(&mut self, unix_s: u64, over: Option<bool>) {
        let from_unix_s = unix_s / HOUR_S * HOUR_S;
        let newest = self.0.back().map(|hour| hour.from_unix_s);
        if newest.is_none_or(|newest| newest < from_unix_s) {
            self.0.push_back(OverflowHour { from_unix_s, ..OverflowHour::default() });
            if self.0.len() > KEPT {
                self.0.pop_front();
            }
        }
        let Some(over) = over else { return };
        if let Some(hour) = self.0.back_mut().filter(|hour| hour.from_unix_s == from_unix_s) {
            hour.measured_s += 1;
            hour.over_s += u32::from(over);
        }
    }

    /// The hours, oldest first; the newest is under way.
    pub fn hours(&self) -> impl Iterator<Item = OverflowHour> {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_count_in_their_hour_and_those_of_a_clock_that_went_back_in_none() {
        let mut meter = OverflowMeter::default();
        for (unix_s, over) in [
            (7200, Some(false)),
            (7201, Some(true)),
            (7202, None),
            (10_800, Some(true)),
            (7203, Some(true)),
            (10_801, Some(true)),
            (90_000, None),
        ] {
            meter.second(unix_s, over);
        }
        let hours: Vec<_> = meter.hours().map(|it| (it.from_unix_s, it.measured_s, it.over_s)).collect();
        assert_eq!(hours, [(7200, 2, 1), (10_800, 2, 2), (90_000, 0, 0)]);
        (0..100).for_each(|hour| meter.second(100_000 + hour * HOUR_S, Some(false)));
        assert_eq!(meter.hours().count(), KEPT);
    }
}
