//! The server's power meter, and when its reading must not be trusted.
//!
//! A missing, zero, absurd or frozen reading is an error here. It is never a low power.

use ballast_types::{Instant, Watts};

use crate::Root;
use crate::error::{HwError, Operation};
use crate::hwmon::{MatchSpec, Sensor, find_power};
use crate::powercap::{Energy, RaplMeter};

/// Identical readings in a row until a sensor counts as frozen.
const FROZEN_AFTER: u32 = 25;

/// Why there is no usable reading.
#[derive(Debug, thiserror::Error)]
pub enum SensorError {
    /// The file is gone, or reading it failed.
    #[error(transparent)]
    Unreadable(#[from] HwError),
    /// Zero, negative, or beyond what the server can draw.
    #[error("power meter reads {watts}: allowed: above 0 W, at most {max}")]
    Absurd {
        /// What was read.
        watts: Watts,
        /// The most that is plausible.
        max: Watts,
    },
    /// The value has not moved for too long.
    #[error("power meter has read {watts} {reads} times in a row")]
    Frozen {
        /// What was read.
        watts: Watts,
        /// How often.
        reads: u32,
    },
}

/// The meter of one server.
#[derive(Debug)]
pub struct PowerMeter {
    root: Root,
    source: Source,
    max: Watts,
    frozen_after: u32,
}

#[derive(Debug)]
enum Source {
    Hwmon { spec: MatchSpec, sensor: Option<Sensor>, freshness: Freshness },
    Rapl { offset: Watts, meter: Option<RaplMeter>, stale: u32 },
}

impl PowerMeter {
    /// A hwmon sensor. It is looked for at the first sample, and again whenever it vanishes.
    #[must_use]
    pub fn hwmon(root: &Root, spec: MatchSpec, max: Watts) -> Self {
        Self::new(root, Source::Hwmon { spec, sensor: None, freshness: Freshness::default() }, max)
    }

    /// RAPL's packages and memory, plus `offset` for the rest of the server.
    ///
    /// The first sample only starts the counters, and is an error that passes.
    #[must_use]
    pub fn rapl(root: &Root, offset: Watts, max: Watts) -> Self {
        Self::new(root, Source::Rapl { offset, meter: None, stale: 0 }, max)
    }

    fn new(root: &Root, source: Source, max: Watts) -> Self {
        Self { root: root.clone(), source, max, frozen_after: FROZEN_AFTER }
    }

    /// Sets how many identical readings of a hwmon sensor in a row count as frozen (25).
    #[must_use]
    pub fn frozen_after(mut self, reads: u32) -> Self {
        self.frozen_after = reads;
        self
    }

    /// Reads the meter. The second part of the answer is when the meter produced the value: it moves
    /// only when the value does. `now` must be taken just before the call.
    ///
    /// # Errors
    /// If there is no usable value.
    pub fn sample(&mut self, now: Instant) -> Result<(Watts, Instant), SensorError> {
        let (root, max) = (&self.root, self.max);
        let (watts, taken_at) = match &mut self.source {
            Source::Hwmon { spec, sensor, freshness } => {
                let raw = read_hwmon(root, spec, sensor)?;
                let (taken_at, reads) = freshness.see(raw, now);
                let watts = Watts::from_milli(raw / 1000);
                if reads > self.frozen_after && watts > Watts::ZERO {
                    return Err(SensorError::Frozen { watts, reads });
                }
                (watts, taken_at)
            }
            Source::Rapl { offset, meter, stale } => {
                let found = match meter {
                    Some(found) => found,
                    None => meter.insert(RaplMeter::find(root, max)?),
                };
                match found.sample(now)? {
                    Energy::Power(watts) => {
                        *stale = 0;
                        (watts + *offset, now)
                    }
                    Energy::Absurd(watts) => return Err(SensorError::Absurd { watts, max }),
                    Energy::Started => {
                        let path = root.path("sys/class/powercap");
                        let allowed = "a second reading: the first one starts the counters";
                        let again = std::io::ErrorKind::WouldBlock.into();
                        return Err(HwError::io(&path, Operation::Read, allowed, again).into());
                    }
                    Energy::Stale => {
                        *stale = stale.saturating_add(1);
                        return Err(SensorError::Frozen { watts: Watts::ZERO, reads: *stale });
                    }
                }
            }
        };
        if watts <= Watts::ZERO || watts > max {
            return Err(SensorError::Absurd { watts, max });
        }
        Ok((watts, taken_at))
    }
}

/// Reads the sensor; looks for it when it is not where it was.
fn read_hwmon(root: &Root, spec: &MatchSpec, sensor: &mut Option<Sensor>) -> Result<i64, HwError> {
    if let Some(known) = sensor {
        match known.read() {
            Err(e) if e.is_missing() => *sensor = None,
            result => return result,
        }
    }
    sensor.insert(find_power(root, spec)?).read()
}

/// Notices when a value moves, and how long it has stood still.
#[derive(Clone, Debug, Default)]
pub(crate) struct Freshness {
    last: Option<(i64, Instant)>,
    reads: u32,
}

impl Freshness {
    /// When this value first showed, and how often in a row it has been read.
    pub(crate) fn see(&mut self, raw: i64, now: Instant) -> (Instant, u32) {
        match self.last {
            Some((last, taken_at)) if last == raw => {
                self.reads = self.reads.saturating_add(1);
                (taken_at, self.reads)
            }
            _ => {
                self.last = Some((raw, now));
                self.reads = 1;
                (now, 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    const DIR: &str = "sys/class/hwmon/hwmon0";
    const FILE: &str = "sys/class/hwmon/hwmon0/power1_input";

    fn tree() -> Tree {
        let tree = Tree::new();
        tree.folder(
            DIR,
            &[("name", "lm25066"), ("power1_label", "pin"), ("power1_input", "230000000")],
        );
        tree
    }
    fn meter(tree: &Tree) -> PowerMeter {
        let spec = MatchSpec { name: "lm25066".into(), label: Some("pin".into()) };
        PowerMeter::hwmon(tree.root(), spec, Watts::from_whole(500))
    }
    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    #[test]
    fn a_reading_is_fresh_only_when_it_moves() {
        let tree = tree();
        let mut meter = meter(&tree);
        assert_eq!(meter.sample(at(100)).unwrap(), (Watts::from_whole(230), at(100)));
        assert_eq!(meter.sample(at(300)).unwrap(), (Watts::from_whole(230), at(100)));
        tree.write(FILE, "231500000\n");
        assert_eq!(meter.sample(at(500)).unwrap(), (Watts::from_milli(231_500), at(500)));
    }

    #[test]
    fn a_value_that_never_moves_is_frozen() {
        let tree = tree();
        let mut meter = meter(&tree).frozen_after(3);
        for n in 1..=3 {
            assert!(meter.sample(at(n)).is_ok());
        }
        assert!(matches!(meter.sample(at(4)), Err(SensorError::Frozen { reads: 4, .. })));
        tree.write(FILE, "230000001\n");
        assert!(meter.sample(at(5)).is_ok());
    }

    #[test]
    fn absurd_is_never_low_power() {
        for bad in ["0", "-1", "-230000000", "500001000", "9223372036854775807", "999"] {
            let tree = tree();
            tree.write(FILE, bad);
            for n in 0..100 {
                assert!(
                    matches!(meter(&tree).sample(at(n)), Err(SensorError::Absurd { .. })),
                    "{bad}"
                );
            }
        }
        for bad in ["", "unknown", "2.5e8", "9223372036854775808", "230000000 uW"] {
            let tree = tree();
            tree.write(FILE, bad);
            assert!(matches!(meter(&tree).sample(at(0)), Err(SensorError::Unreadable(_))), "{bad}");
        }
    }

    #[test]
    fn a_sensor_that_moves_to_another_number_is_found_again() {
        let tree = tree();
        let mut meter = meter(&tree);
        meter.sample(at(0)).unwrap();
        // Its number now belongs to a disk; the meter is elsewhere.
        tree.write(&format!("{DIR}/name"), "nvme\n");
        tree.write(FILE, "5000000\n");
        assert!(matches!(meter.sample(at(1)), Err(SensorError::Unreadable(_))));
        tree.folder(
            "sys/class/hwmon/hwmon9",
            &[("name", "lm25066"), ("power1_label", "pin"), ("power1_input", "240000000")],
        );
        assert_eq!(meter.sample(at(2)).unwrap().0, Watts::from_whole(240));
        tree.remove("sys/class/hwmon/hwmon9");
        assert!(matches!(meter.sample(at(3)), Err(SensorError::Unreadable(_))));
    }

    #[test]
    fn rapl_starts_then_measures_with_its_offset() {
        let tree = Tree::new();
        let mut meter =
            PowerMeter::rapl(tree.root(), Watts::from_whole(60), Watts::from_whole(500));
        assert!(matches!(meter.sample(at(0)), Err(SensorError::Unreadable(_))));
        let zone = "sys/class/powercap/intel-rapl:0";
        let energy = |uj: &str| tree.write(&format!("{zone}/energy_uj"), uj);
        tree.folder(zone, &[("name", "package-0"), ("max_energy_range_uj", "262143328850")]);
        energy("0");
        match meter.sample(at(200)) {
            Err(SensorError::Unreadable(e)) => assert!(e.is_transient(), "{e}"),
            other => panic!("{other:?}"),
        }
        energy("40000000");
        assert_eq!(meter.sample(at(400)).unwrap(), (Watts::from_whole(260), at(400)));
        assert!(matches!(meter.sample(at(600)), Err(SensorError::Frozen { .. })));
        energy("128000001");
        assert!(
            matches!(meter.sample(at(800)).unwrap(), (w, _) if w == Watts::from_milli(280_000))
        );
        energy("928000001");
        assert!(matches!(meter.sample(at(1000)), Err(SensorError::Absurd { .. })));
    }
}
