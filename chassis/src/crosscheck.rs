//! The power supplies' total against the servers' reports.
//!
//! Servers cannot draw more than the supplies carry. Where their reports add up to more, a supply is
//! missing from the configuration, meters are swapped, or a supply's meter is stuck; so the higher
//! figure is judged. The sum of the reports is late: a load that falls, or moves from one server to
//! another, is counted for as long as a report may be old. So the sum counts only after it was above
//! the supplies' total for that long without a break: then every report in it has been renewed.

use core::time::Duration;

use ballast_types::{Instant, Watts};
use serde::{Deserialize, Serialize};

/// The two sides disagree when the reports are above the supplies' total by more than this share of
/// it, in parts per million (5 %): meters are 1 % off, and now and then one by 5 %.
pub(crate) const APART_PPM: u32 = 50_000;

/// For so long, before it is an alarm.
const ALARM_AFTER: Duration = Duration::from_secs(3);

/// What was seen of both sides.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Crosscheck {
    /// Since when every poll found the reports above the supplies' total.
    above_since: Option<Instant>,
    /// Since when by more than [`APART_PPM`].
    apart_since: Option<Instant>,
    /// What was read and what was reported at the newest poll, once that is an alarm.
    alarm: Option<(Watts, Watts)>,
}

impl Crosscheck {
    /// Takes a fresh reading and the sum of the reports at that time; `true` when an alarm begins. An
    /// alarm ends when the reports are no longer above the reading at all, so that noise around
    /// [`APART_PPM`] does not repeat it.
    pub(crate) fn take(&mut self, now: Instant, read: Watts, reported: Watts) -> bool {
        let above = reported > read;
        let apart = above && (self.alarm.is_some() || reported - read > read.ppm(APART_PPM));
        self.above_since = above.then(|| self.above_since.unwrap_or(now));
        self.apart_since = apart.then(|| self.apart_since.unwrap_or(now));

        let raised = self.apart_since.is_some_and(|since| now - since >= ALARM_AFTER);
        let begins = raised && self.alarm.is_none();
        self.alarm = raised.then_some((read, reported));
        begins
    }

    /// Whether the reports count at `now`, when one may be `oldest` old.
    pub(crate) fn counts(&self, now: Instant, oldest: Duration) -> bool {
        self.above_since.is_some_and(|since| now - since >= oldest)
    }

    /// Whether both sides have disagreed for a while.
    pub(crate) fn is_alarm(&self) -> bool {
        self.alarm.is_some()
    }

    /// The alarm in words, while there is one.
    pub(crate) fn message(&self) -> Option<String> {
        self.alarm.map(|(read, reported)| {
            format!(
                "the servers report {reported}, the power supplies read {read}; the higher figure is judged: \
                 is a [[supply]] missing from the configuration, are meters swapped, or is one stuck?"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: fn(i64) -> Watts = Watts::from_whole;

    /// Takes one pair each 200 ms; the milliseconds at which an alarm began.
    fn alarms(check: &mut Crosscheck, pairs: impl IntoIterator<Item = (i64, i64)>) -> Vec<u64> {
        let began = (0..).zip(pairs).filter(|(n, (read, reported))| {
            check.take(Instant::from_millis(200 * n), W(*read), W(*reported))
        });
        began.map(|(n, _)| 200 * n).collect()
    }

    #[test]
    fn the_reports_count_once_they_are_above_for_as_long_as_one_may_be_old() {
        let (oldest, at) = (Duration::from_millis(700), Instant::from_millis);
        let mut check = Crosscheck::default();
        assert!(alarms(&mut check, [(1000, 1001); 4]).is_empty());
        assert!(!check.counts(at(600), oldest));
        assert!(check.counts(at(700), oldest));
        check.take(at(800), W(1000), W(1000));
        assert!(!check.counts(at(900), oldest), "not above");
    }

    #[test]
    fn an_alarm_begins_after_three_seconds_once_an_occurrence() {
        let mut check = Crosscheck::default();
        let one = || [(1000, 1051); 20].into_iter().chain([(1000, 1001); 20]);
        let all = one().chain([(1000, 1000)]).chain(one());
        assert_eq!(alarms(&mut check, all), [3000, 8200 + 3000]);
        let said = check.message().unwrap();
        assert!(said.contains("report 1001") && said.contains("read 1000"), "{said}");

        let mut check = Crosscheck::default();
        assert!(alarms(&mut check, [(1000, 1050); 50]).is_empty(), "within 5 %");
        let broken = [(1000, 1051); 14].into_iter().chain([(1000, 1040)]);
        assert!(alarms(&mut check, broken.cycle().take(60)).is_empty(), "not for 3 s");
        assert_eq!(check.message(), None);
    }
}
