use core::time::Duration;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use serde::Serialize;

use super::meters::MeterFacts;
use super::rapl::RaplZone;
use crate::Root;
use crate::hwmon::{HwmonSensor, MatchSpec};
use crate::root::read_value;
use crate::sensor::Sensor;

/// Between two reads of one sensor: what refreshes faster is fast enough for anything here.
const EVERY: Duration = Duration::from_millis(5);
/// How much longer than told a sensor may block before it is given up: ACPI's IPMI takes 5 s.
const PATIENCE: Duration = Duration::from_secs(6);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A zone of RAPL, by its folder.
    Rapl(String),
    /// A channel of hwmon, by name and label.
    Hwmon(String, Option<String>),
}

impl Source {
    /// The energy counter of a zone.
    pub fn zone(zone: &RaplZone) -> Self {
        Self::Rapl(zone.folder.clone())
    }

    pub fn meter(meter: &MeterFacts) -> Self {
        Self::Hwmon(meter.name.clone(), meter.label.clone())
    }
}

/// How a sensor behaved while it was watched.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Refresh {
    pub reads: u32,
    pub failures: u32,
    /// How often the value moved.
    pub changes: u32,
    /// The median time between two changes; `None` with fewer than two.
    pub refresh_ms: Option<f64>,
    /// The longest that one read took.
    pub slowest_read_ms: f64,
    /// Whether a read was still blocked long after the time was over.
    pub blocked: bool,
}

/// Watches sensors for a while, each on a thread of its own: one that blocks holds up no other.
pub fn refresh(root: &Root, sources: &[Source], time: Duration) -> Vec<Refresh> {
    let watched: Vec<_> = (sources.iter().cloned())
        .map(|source| {
            let (answer, told) = mpsc::channel();
            let root = root.clone();
            let started = thread::Builder::new().name("refresh".into()).spawn(move || {
                // Fails only when nobody waits any more.
                let _ = answer.send(watch(reader(&root, source), time));
            });
            (started, told)
        })
        .collect();
    let until = Instant::now() + time + PATIENCE;
    let result = |(_, told): (_, mpsc::Receiver<Refresh>)| {
        let left = until.saturating_duration_since(Instant::now());
        told.recv_timeout(left).unwrap_or(Refresh { blocked: true, ..Refresh::default() })
    };
    watched.into_iter().map(result).collect()
}

/// One read of a source: a number that moves with every value.
fn reader(root: &Root, source: Source) -> Box<dyn FnMut() -> Option<u64>> {
    match source {
        Source::Rapl(folder) => {
            let file = root.path(&format!("sys/class/powercap/{folder}/energy_uj"));
            Box::new(move || read_value(&file, "a whole number of microjoules").ok())
        }
        Source::Hwmon(name, label) => {
            let mut sensor = HwmonSensor::new(root, MatchSpec { name, label });
            Box::new(move || sensor.read(ballast_types::Instant::ZERO).ok()?.mark)
        }
    }
}

fn watch(mut read: impl FnMut() -> Option<u64>, time: Duration) -> Refresh {
    let start = Instant::now();
    let mut seen = Observation::default();
    while start.elapsed() < time {
        let before = Instant::now();
        let value = read();
        let took = before.elapsed();
        seen.take(before, took, value);
        thread::sleep(EVERY.saturating_sub(took));
    }
    seen.done()
}

/// What was seen of one sensor so far.
#[derive(Default)]
struct Observation {
    so_far: Refresh,
    /// The newest value, and when it came; the first one's time is not known.
    last: Option<(u64, Option<Instant>)>,
    intervals: Vec<Duration>,
}

impl Observation {
    /// A read that began at `at` and took so long.
    fn take(&mut self, at: Instant, took: Duration, value: Option<u64>) {
        let seen = &mut self.so_far;
        seen.slowest_read_ms = seen.slowest_read_ms.max(millis(took));
        match (value, self.last) {
            (None, _) => seen.failures += 1,
            (Some(value), Some((old, changed))) if value != old => {
                seen.reads += 1;
                seen.changes += 1;
                self.intervals.extend(changed.map(|then| at.duration_since(then)));
                self.last = Some((value, Some(at)));
            }
            (Some(value), known) => {
                seen.reads += 1;
                self.last = known.or(Some((value, None)));
            }
        }
    }

    fn done(mut self) -> Refresh {
        self.intervals.sort_unstable();
        let median = self.intervals.get(self.intervals.len() / 2).copied().map(millis);
        Refresh { refresh_ms: median, ..self.so_far }
    }
}

/// In milliseconds, to a tenth.
fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refresh_is_the_time_between_changes_and_failures_are_counted() {
        let start = Instant::now();
        let mut seen = Observation::default();

        // A value every 50 ms, read every 5 ms; every tenth read fails, and one takes 30 ms.
        for n in 1..=120 {
            let (at, took) = (Duration::from_millis(5 * n), if n == 7 { 30 } else { 1 });
            let value = (!n.is_multiple_of(10)).then_some((5 * n + 5) / 50);
            seen.take(start + at, Duration::from_millis(took), value);
        }

        let (reads, failures, changes) = (108, 12, 12);
        let (refresh_ms, slowest_read_ms) = (Some(50.0), 30.0);
        let expected = Refresh { reads, failures, changes, refresh_ms, slowest_read_ms, blocked: false };
        assert_eq!(seen.done(), expected);
        let mut still = Observation::default();
        still.take(start, Duration::ZERO, Some(7));
        still.take(start + EVERY, Duration::ZERO, Some(7));
        let Refresh { reads, changes, refresh_ms, .. } = still.done();
        assert_eq!((reads, changes, refresh_ms), (2, 0, None));
    }

    #[test]
    fn a_value_that_moves_is_seen_to_move_however_slow_this_machine_is() {
        let mut reads = 0_u64;
        let mut time = Duration::from_millis(50);
        loop {
            let seen = watch(
                || {
                    Some({
                        reads += 1;
                        reads
                    })
                },
                time,
            );

            if seen.changes >= 3 {
                assert!(seen.refresh_ms.is_some() && seen.failures == 0, "{seen:?}");
                return;
            }

            // It was not let run.
            time *= 2;
            assert!(time < Duration::from_secs(60), "{seen:?}");
        }
    }
}
