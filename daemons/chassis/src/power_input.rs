//! Power readings from outside, by `POST /v1/power`: for racks whose supplies this host cannot see.
//!
//! One source is accepted, the configured one. Its readings are numbered within a boot of the source, and
//! what is foreign, repeated, out of order, too old or absurd is refused and changes nothing. No clocks
//! are shared: a reading's age is what the source says plus what the message took longer than the fastest
//! one lately.
//!
//! That is on disk too (`power-input.json`, every ten seconds at most): a manager that starts again has the
//! difference between the clocks from its last boot, so that what was said then is as old as it is. After
//! a reboot of this host that difference is lost; only the numbers stay.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;
use std::{fmt, io};

use ballast_types::wire::PowerReading;
use ballast_types::{BootId, Instant, Watts};

use serde::{Deserialize, Serialize};

use crate::config::PowerInputConfig;
use ballast_runtime::sensors::Gauge;
use ballast_runtime::state::{self, DiskFaults, StateWriter};

/// Earlier boots of the source that are remembered: their messages may still be on the way.
const RETIRED: usize = 16;
/// The fastest message counts for one to two of these: clocks drift apart by 100 ppm, 60 ms in ten minutes.
const FASTEST_OVER: Duration = Duration::from_secs(300);

/// How far apart two clocks go while nothing is heard: 200 ppm.
const DRIFT: u64 = 5000;
/// Between two writes of what must be remembered.
const KEEP_EACH: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum PowerRefusal {
    /// Not from the one source.
    #[error("source = {0:?}: only {1:?} may report this chassis's power")]
    Foreign(String, String),
    /// From a boot that another one has followed.
    #[error("source_boot_id = {0:?}: the source has been booted since")]
    Retired(BootId),
    /// Not newer than the newest of this boot.
    #[error("{key} = {value}: above {newest}, the newest of this boot")]
    Repeated {
        /// Which of the numbers.
        key: &'static str,
        value: u64,
        /// What it must be above.
        newest: u64,
    },
    /// It says nothing of now.
    #[error("the reading is {age_ms} ms old, {late_ms} ms of them on the way: at most {most_ms}")]
    Old {
        /// How old, all together.
        age_ms: u128,
        /// How much longer it was on the way than others.
        late_ms: u128,
        most_ms: u128,
    },
    /// Zero, negative or beyond what the chassis can draw.
    #[error("watts = {0}: above 0, at most {1}")]
    Implausible(f64, f64),
}

/// The outside source, as far as it is believed.
#[derive(Debug)]
pub(super) struct PowerInput {
    config: PowerInputConfig,
    gauge: Gauge,
    source: Option<SourceBoot>,
    retired: VecDeque<BootId>,
    newest: Option<(Watts, Instant)>,
    keeping: Option<Keeping>,
}

struct Keeping {
    host_boot: BootId,
    writer: StateWriter<Remembered>,
    /// When, and of which boot of the source, it was last written.
    written: Option<(Instant, BootId)>,
}

impl fmt::Debug for Keeping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeping").field("written", &self.written).finish_non_exhaustive()
    }
}

/// What outlives a manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Remembered {
    /// Whose clock `heard_ms` and `took_ms` are by.
    host_boot: BootId,
    source_boot_id: BootId,
    seq: u64,
    source_ms: u64,
    /// When the newest came.
    heard_ms: u64,
    /// Our clock less the source's, by the fastest message.
    took_ms: i64,
    retired: VecDeque<BootId>,
}

/// One boot of the source.
#[derive(Clone, Debug)]
struct SourceBoot {
    boot_id: BootId,
    seq: u64,
    source_ms: u64,
    /// When the newest came.
    heard: Instant,
    /// `None` after a reboot of this host.
    fastest: Option<Fastest>,
}

/// The least difference between our clock and the source's, lately: that of the fastest message.
#[derive(Clone, Debug)]
struct Fastest {
    since: Instant,
    earlier: i128,
    now: i128,
}

impl Fastest {
    /// How much longer this message took than the fastest, and what is known with it.
    fn with(before: Option<&Self>, now: Instant, source_ms: u64) -> (Duration, Self) {
        let took = i128::from(now.as_millis()) - i128::from(source_ms);
        let mut fastest = match before {
            None => Self { since: now, earlier: took, now: took },
            Some(before) if now.since(before.since) >= FASTEST_OVER => {
                Self { since: now, earlier: before.now, now: took }
            }
            Some(before) => before.clone(),
        };
        fastest.now = fastest.now.min(took);
        let late = took - fastest.now.min(fastest.earlier);
        (Duration::from_millis(u64::try_from(late).unwrap_or(u64::MAX)), fastest)
    }
}

impl PowerInput {
    /// Nothing has been reported yet.
    pub(super) fn new(config: PowerInputConfig) -> Self {
        let gauge = Gauge::new(config.name(), config.good_for);
        Self { config, gauge, source: None, retired: VecDeque::new(), newest: None, keeping: None }
    }

    /// The same, going on from where a previous instance was, and remembering that itself. Fails when the
    /// file in `state_dir` is there and cannot be read, or the thread cannot be started.
    pub(super) fn remembering(
        mut self,
        state_dir: &Path,
        host_boot: BootId,
        now: Instant,
        faults: DiskFaults,
    ) -> io::Result<Self> {
        let path = state_dir.join("power-input.json");
        if let Some(was) = state::read::<Remembered>(&path)? {
            self.go_on(was, &host_boot, now);
        }
        let writer = StateWriter::start(path, "power-input", faults)?;
        self.keeping = Some(Keeping { host_boot, writer, written: None });
        Ok(self)
    }

    fn go_on(&mut self, was: Remembered, host_boot: &BootId, now: Instant) {
        let Remembered { source_boot_id, seq, source_ms, heard_ms, took_ms, .. } = was;
        let same = was.host_boot == *host_boot;
        let took = i128::from(took_ms);
        let heard = if same { Instant::from_millis(heard_ms) } else { now };
        let fastest = same.then_some(Fastest { since: heard, earlier: took, now: took });
        self.source = Some(SourceBoot { boot_id: source_boot_id, seq, source_ms, heard, fastest });
        self.retired = was.retired;
        self.retired.truncate(RETIRED);
    }

    /// What must outlive this manager; `None` before the first reading.
    fn remembered(&self, host_boot: &BootId) -> Option<Remembered> {
        let source = self.source.as_ref()?;
        let fastest = source.fastest.as_ref()?;
        Some(Remembered {
            host_boot: host_boot.clone(),
            source_boot_id: source.boot_id.clone(),
            seq: source.seq,
            source_ms: source.source_ms,
            heard_ms: source.heard.as_millis(),
            took_ms: i64::try_from(fastest.now.min(fastest.earlier)).ok()?,
            retired: self.retired.clone(),
        })
    }

    /// Writes it down if it is time, or if the source has begun anew.
    fn keep(&mut self, now: Instant) {
        let Some(source) = &self.source else { return };
        let Some(mut keeping) = self.keeping.take() else { return };
        let due = keeping
            .written
            .as_ref()
            .is_none_or(|(at, boot_id)| now.since(*at) >= KEEP_EACH || *boot_id != source.boot_id);
        if due && let Some(remembered) = self.remembered(&keeping.host_boot) {
            keeping.written = Some((now, remembered.source_boot_id.clone()));
            keeping.writer.keep(remembered);
        }
        self.keeping = Some(keeping);
    }

    /// What operators see of it.
    pub(super) fn gauge(&self) -> Gauge {
        self.gauge.clone()
    }

    /// Takes a reading that came at `now`. Fails where it is refused; then nothing has changed but the count
    /// of refusals.
    pub(super) fn take(&mut self, now: Instant, reading: &PowerReading) -> Result<(), PowerRefusal> {
        self.judge(now, reading).inspect_err(|why| {
            tracing::debug!(%why, "power reading refused");
            self.gauge.refused();
        })
    }

    fn judge(&mut self, now: Instant, reading: &PowerReading) -> Result<(), PowerRefusal> {
        let PowerReading { source, source_boot_id, source_ms, age_ms, watts, seq } = reading;
        let config = &self.config;
        if *source != config.source {
            return Err(PowerRefusal::Foreign(source.clone(), config.source.clone()));
        }
        if self.retired.contains(source_boot_id) {
            return Err(PowerRefusal::Retired(source_boot_id.clone()));
        }
        let source = self.source.as_ref().filter(|source| source.boot_id == *source_boot_id);

        if let Some(source) = source {
            for (key, value, newest) in
                [("seq", *seq, source.seq), ("source_ms", *source_ms, source.source_ms)]
            {
                if value <= newest {
                    return Err(PowerRefusal::Repeated { key, value, newest });
                }
            }
        }

        if *watts <= Watts::ZERO || *watts > config.max {
            return Err(PowerRefusal::Implausible(watts.as_f64(), config.max.as_f64()));
        }
        let known = source.and_then(|source| source.fastest.as_ref());
        let (late, fastest) = Fastest::with(known, now, *source_ms);

        // Clocks went apart while nothing was heard: that must not make all that follows old for ever.
        let silent_ms = source.map_or(0, |source| now.as_millis().saturating_sub(source.heard.as_millis()));
        let late = late.saturating_sub(Duration::from_millis(silent_ms / DRIFT));
        let age = Duration::from_millis(*age_ms).saturating_add(late);

        if age > config.good_for {
            let ms = |span: Duration| span.as_millis();
            let (age_ms, late_ms, most_ms) = (ms(age), ms(late), ms(config.good_for));
            return Err(PowerRefusal::Old { age_ms, late_ms, most_ms });
        }

        let (boot_id, seq, source_ms) = (source_boot_id.clone(), *seq, *source_ms);
        let fastest = Some(fastest);
        let before = self.source.replace(SourceBoot { boot_id, seq, source_ms, heard: now, fastest });

        if let Some(SourceBoot { boot_id, .. }) = before.filter(|source| source.boot_id != *source_boot_id) {
            if self.retired.len() == RETIRED {
                self.retired.pop_front();
            }
            self.retired.push_back(boot_id);
        }

        self.newest = Some((*watts, now.saturating_sub(age)));
        self.keep(now);

        Ok(())
    }

    /// The newest reading and when it was produced, while it is good.
    pub(super) fn newest(&self, now: Instant) -> Option<(Watts, Instant)> {
        let good = self.newest.filter(|(_, at)| now.since(*at) <= self.config.good_for);
        match good {
            Some((_, at)) => self.gauge.answered(Ok(at), None),
            None => self.gauge.answered(Err(&"no reading that is good any more"), None),
        }
        good
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Instant = Instant::from_millis;
    /// Our clock when the source's shows zero.
    const APART: u64 = 1_000_000;

    fn input() -> PowerInput {
        let source = "shelf-1".to_owned();
        let (max, good_for) = (Watts::from_whole(3000), Duration::from_millis(1000));
        PowerInput::new(PowerInputConfig { source, max, good_for })
    }
    fn reading(boot: &str, seq: u64, source_ms: u64, watts: i64) -> PowerReading {
        let (source, source_boot_id) = ("shelf-1".into(), BootId::new(boot).unwrap());
        let watts = Watts::from_whole(watts);
        PowerReading { source, source_boot_id, source_ms, age_ms: 0, watts, seq }
    }

    #[test]
    fn every_reading_that_must_not_count_is_refused_and_changes_nothing() {
        let good = reading("b", 11, 11_000, 2010);
        type Change = fn(&mut PowerReading);
        let bad: [(Change, &str); 11] = [
            (|r| r.source = "shelf-2".into(), "source = \"shelf-2\": only \"shelf-1\""),
            (|r| r.seq = 10, "seq = 10: above 10"),
            (|r| r.seq = 0, "seq = 0: above 10"),
            (|r| r.source_ms = 10_000, "source_ms = 10000: above 10000"),
            (|r| r.source_ms = 1, "source_ms = 1: above 10000"),
            (|r| r.source_boot_id = BootId::new("a").unwrap(), "booted since"),
            (|r| r.watts = Watts::ZERO, "watts = 0: above 0, at most 3000"),
            (|r| r.watts = Watts::from_whole(-5), "watts = -5: above 0"),
            (|r| r.watts = Watts::from_milli(3_000_001), "at most 3000"),
            (|r| r.age_ms = 1001, "1001 ms old"),
            (|r| r.age_ms = u64::MAX, "at most 1000"),
        ];

        for (change, said) in bad {
            let mut input = input();
            input.take(MS(APART + 9000), &reading("a", 77, 9000, 1990)).unwrap();
            input.take(MS(APART + 10_000), &reading("b", 10, 10_000, 2000)).unwrap();
            let mut reading = good.clone();
            change(&mut reading);
            let now = MS(APART + 10_500);
            let why = input.take(now, &reading).unwrap_err().to_string();
            assert!(why.contains(said), "{why}");
            let newest = Some((Watts::from_whole(2000), MS(APART + 10_000)));
            assert_eq!(input.newest(now), newest, "{said}");
            assert_eq!(input.gauge.status(now).faults, 1, "{said}");
            input.take(MS(APART + 11_000), &good).unwrap();
        }
    }

    #[test]
    fn a_reading_is_good_for_its_time_and_then_missing() {
        let mut input = input();
        assert_eq!(input.newest(MS(5)), None, "nothing was ever reported");
        let told = PowerReading { age_ms: 400, ..reading("a", 1, 0, 2000) };
        input.take(MS(APART), &told).unwrap();
        let taken_at = MS(APART - 400);
        assert_eq!(input.newest(MS(APART + 600)), Some((Watts::from_whole(2000), taken_at)));
        assert_eq!(input.newest(MS(APART + 601)), None);
        let problem = input.gauge.status(MS(APART + 601)).problem;
        assert_eq!(problem.as_deref(), Some("no reading that is good any more"));
    }

    #[test]
    fn what_lay_on_the_way_is_as_old_as_it_is() {
        let mut input = input();
        for n in 0..5 {
            input.take(MS(APART + 200 * n), &reading("a", n + 1, 200 * n, 2000)).unwrap();
        }
        // Sent at 1000, came at 1700: 700 ms late by the fastest of the others.
        input.take(MS(APART + 1700), &reading("a", 6, 1000, 2100)).unwrap();
        let newest = input.newest(MS(APART + 1700));
        assert_eq!(newest, Some((Watts::from_whole(2100), MS(APART + 1000))));
        let why = input.take(MS(APART + 2300), &reading("a", 7, 1200, 2100)).unwrap_err();
        assert!(matches!(why, PowerRefusal::Old { late_ms: 1100, .. }), "{why}");
    }

    #[test]
    fn clocks_that_drift_apart_do_not_make_readings_old() {
        let mut input = input();
        // 100 ppm for a day: 8.6 s.
        for n in 1..86_400u64 {
            let source_ms = n * 1000 - n / 10;
            let reading = reading("a", n, source_ms, 2000);
            input.take(MS(APART + n * 1000), &reading).unwrap();
            let (_, at) = input.newest(MS(APART + n * 1000)).unwrap();
            assert!(MS(APART + n * 1000).since(at) <= Duration::from_millis(70), "{n}");
        }
    }

    #[test]
    fn a_new_boot_counts_from_anywhere_and_the_old_one_never_again() {
        let mut input = input();
        input.take(MS(APART), &reading("a", 500, 90_000, 2000)).unwrap();
        input.take(MS(APART + 100), &reading("b", 1, 50, 2100)).unwrap();
        let why = input.take(MS(APART + 200), &reading("a", 501, 90_200, 900)).unwrap_err();
        assert!(matches!(why, PowerRefusal::Retired(_)), "{why}");
        assert_eq!(input.newest(MS(APART + 200)).unwrap().0, Watts::from_whole(2100));
    }

    #[test]
    fn what_an_earlier_life_has_heard_is_not_fresh_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let host = |boot: &str| BootId::new(boot).unwrap();
        let open = |boot: &str, now| {
            let faults = DiskFaults::default();
            input().remembering(dir.path(), host(boot), now, faults).unwrap()
        };

        let mut first = open("h1", MS(APART));
        first.take(MS(APART), &reading("z", 7, 0, 2000)).unwrap();

        for n in 1..=100 {
            first.take(MS(APART + 200 * n), &reading("a", n, 200 * n, 2000)).unwrap();
        }
        drop(first);
        let now = MS(APART + 60_000);
        let mut next = open("h1", now);
        assert_eq!(next.newest(now), None, "nothing is taken over");

        // Said by the previous instance: numbers that were written down, numbers that were not, and another
        // boot.
        for (seq, said) in [(1, "seq = 1"), (51, "seq = 51"), (100, "ms old")] {
            let why = next.take(now, &reading("a", seq, 200 * seq, 900)).unwrap_err().to_string();
            assert!(why.contains(said), "{seq}: {why}");
        }

        let why = next.take(now, &reading("z", 8, 60_000, 900)).unwrap_err();
        assert!(matches!(why, PowerRefusal::Retired(_)), "{why}");
        next.take(now, &reading("a", 300, 60_000, 2000)).unwrap();
        assert_eq!(next.newest(now).unwrap(), (Watts::from_whole(2000), now));
        drop(next);

        // After a reboot of this host its clock begins anew.
        let mut rebooted = open("h2", MS(5000));
        let why = rebooted.take(MS(5000), &reading("a", 300, 60_000, 900)).unwrap_err();
        assert!(matches!(why, PowerRefusal::Repeated { .. }), "{why}");
        rebooted.take(MS(5000), &reading("a", 301, 60_200, 2000)).unwrap();
    }

    #[test]
    fn a_source_that_was_silent_for_days_is_heard_again() {
        let mut input = input();
        input.take(MS(APART), &reading("a", 1, 0, 2000)).unwrap();
        // Three days at 100 ppm: 26 s apart.
        let days = 3 * 86_400_000;
        let now = MS(APART + days);
        input.take(now, &reading("a", 2, days - days / 10_000, 2100)).unwrap();
        // And at once as strict as before.
        let late = reading("a", 3, days - days / 10_000 + 100, 2100);
        assert!(input.take(MS(APART + days + 1700), &late).is_err());
    }
}
