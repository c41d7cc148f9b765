use core::time::Duration;
use std::path::Path;

use ballast_types::{Instant, Microjoules, Watts};

use super::{Kind, Zone, zones};
use crate::Root;
use crate::error::{HwError, Operation};
use crate::root::read_value;

/// What a counter must hold.
const ENERGY: &str = "a whole number of microjoules";

/// The power of all packages and memory, from their energy counters.
#[derive(Debug)]
pub struct RaplMeter {
    zones: Vec<Counter>,
    /// More than this cannot be: such a difference is refused.
    max: Watts,
    /// When the counters were last read, with their values; `None` before the first read.
    last: Option<(Instant, Vec<Microjoules>)>,
}

#[derive(Debug)]
struct Counter {
    zone: Zone,
    range: Microjoules,
}

/// What two reads of the counters give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Energy {
    /// The mean power between them.
    Power(Watts),
    /// This was the first read, or the last one is too old to tell how often a counter wrapped.
    Started,
    /// A package's counter has not moved.
    Stale,
    /// More than the packages can draw.
    Absurd(Watts),
}

impl RaplMeter {
    /// Finds every package and memory zone; `max` is more than they can draw together.
    ///
    /// # Errors
    /// If there is no package zone, or a file of one is unreadable or garbage.
    pub fn find(root: &Root, max: Watts) -> Result<Self, HwError> {
        Self::of(root, max, |_| true)
    }

    /// Finds the packages alone, without memory: what a package limit acts on.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub fn packages(root: &Root, max: Watts) -> Result<Self, HwError> {
        Self::of(root, max, |kind| kind == Kind::Package)
    }

    fn of(root: &Root, max: Watts, wanted: impl Fn(Kind) -> bool) -> Result<Self, HwError> {
        let mut found = Vec::new();
        for zone in zones(root)?.into_iter().filter(|zone| wanted(zone.kind)) {
            let path = zone.dir.join("max_energy_range_uj");
            let range = read_value(&path, ENERGY)?;
            if range == 0 {
                return Err(HwError::value(
                    &path,
                    Operation::Read,
                    range,
                    "more than 0 microjoules",
                ));
            }
            found.push(Counter { zone, range: Microjoules::new(range) });
        }
        if !found.iter().any(|c| c.zone.kind == Kind::Package) {
            let dir = root.path("sys/class/powercap");
            let allowed = "at least one intel-rapl zone named package-N";
            return Err(HwError::value(&dir, Operation::Read, "no package zone", allowed));
        }
        Ok(Self { zones: found, max, last: None })
    }

    /// The mean power since the last read. `now` must be taken just before the call.
    ///
    /// # Errors
    /// If a counter is unreadable or garbage; the last good read is kept.
    pub fn sample(&mut self, now: Instant) -> Result<Energy, HwError> {
        let values = self.zones.iter().map(Counter::read).collect::<Result<Vec<_>, _>>()?;
        let Some((then, before)) = &self.last else {
            self.last = Some((now, values));
            return Ok(Energy::Started);
        };
        let span = now.since(*then);
        let mut sum = Microjoules::default();
        for ((counter, value), before) in self.zones.iter().zip(&values).zip(before) {
            if value == before && counter.zone.kind == Kind::Package {
                return Ok(Energy::Stale);
            }
            sum = sum + value.since_wrapping(*before, counter.range);
        }
        if span >= self.longest_span() {
            self.last = Some((now, values));
            return Ok(Energy::Started);
        }
        // Two reads at one instant tell nothing.
        let Some(watts) = sum.over(span) else {
            return Ok(Energy::Stale);
        };
        self.last = Some((now, values));
        Ok(if watts > self.max { Energy::Absurd(watts) } else { Energy::Power(watts) })
    }

    /// Within this time no counter can wrap more than once.
    fn longest_span(&self) -> Duration {
        let least = self.zones.iter().map(|c| c.range.get()).min().unwrap_or_default();
        let milliwatts = u64::try_from(self.max.milli()).unwrap_or_default().max(1);
        // µJ / mW = ms.
        Duration::from_millis(least / milliwatts)
    }
}

impl Counter {
    fn read(&self) -> Result<Microjoules, HwError> {
        let path: &Path = &self.zone.dir.join("energy_uj");
        let value: u64 = read_value(path, ENERGY)?;
        if value > self.range.get() {
            let allowed = format!("0 to max_energy_range_uj, {}", self.range.get());
            return Err(HwError::value(path, Operation::Read, value, allowed));
        }
        Ok(Microjoules::new(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    const PKG: &str = "sys/class/powercap/intel-rapl:0";
    const DRAM: &str = "sys/class/powercap/intel-rapl:0:0";

    fn tree() -> Tree {
        let tree = Tree::new();
        for (dir, name) in [
            (PKG, "package-0"),
            (DRAM, "dram"),
            ("sys/class/powercap/intel-rapl:0:1", "core"),
            ("sys/class/powercap/intel-rapl:1", "psys"),
            ("sys/class/powercap/intel-rapl-mmio:0", "package-0"),
        ] {
            tree.folder(
                dir,
                &[
                    ("name", name),
                    ("energy_uj", "1000000"),
                    ("max_energy_range_uj", "262143328850"),
                ],
            );
        }
        tree
    }
    fn meter(tree: &Tree) -> RaplMeter {
        RaplMeter::find(tree.root(), Watts::from_whole(500)).unwrap()
    }
    fn energy(tree: &Tree, dir: &str, uj: u64) {
        tree.write(&format!("{dir}/energy_uj"), &format!("{uj}\n"));
    }

    #[test]
    fn power_is_package_and_memory_energy_over_time() {
        let tree = tree();
        let mut meter = meter(&tree);
        assert_eq!(meter.sample(Instant::ZERO).unwrap(), Energy::Started);
        energy(&tree, PKG, 41_000_000);
        energy(&tree, DRAM, 5_000_000);
        energy(&tree, "sys/class/powercap/intel-rapl:1", 99_000_000);
        assert_eq!(
            meter.sample(Instant::from_millis(200)).unwrap(),
            Energy::Power(Watts::from_whole(220))
        );
    }

    #[test]
    fn a_counter_may_wrap_once() {
        let tree = tree();
        energy(&tree, PKG, 262_143_328_850 - 9_999_999);
        let mut meter = meter(&tree);
        meter.sample(Instant::ZERO).unwrap();
        energy(&tree, PKG, 10_000_000);
        assert_eq!(
            meter.sample(Instant::from_millis(200)).unwrap(),
            Energy::Power(Watts::from_whole(100))
        );
    }

    #[test]
    fn a_counter_that_stands_still_is_stale_and_never_zero_watts() {
        let tree = tree();
        let mut meter = meter(&tree);
        meter.sample(Instant::ZERO).unwrap();
        assert_eq!(meter.sample(Instant::from_millis(200)).unwrap(), Energy::Stale);
        // The next real difference is spread over the whole time.
        energy(&tree, PKG, 41_000_000);
        assert_eq!(
            meter.sample(Instant::from_millis(400)).unwrap(),
            Energy::Power(Watts::from_whole(100))
        );
    }

    #[test]
    fn absurd_differences_and_long_gaps_are_refused() {
        let tree = tree();
        let mut meter = meter(&tree);
        meter.sample(Instant::ZERO).unwrap();
        energy(&tree, PKG, 201_000_000);
        assert_eq!(
            meter.sample(Instant::from_millis(200)).unwrap(),
            Energy::Absurd(Watts::from_whole(1000))
        );
        // A reset looks like a wrap, and is absurd too.
        energy(&tree, PKG, 5);
        assert!(matches!(meter.sample(Instant::from_millis(400)).unwrap(), Energy::Absurd(_)));
        // After 524 s at 500 W the counter may have wrapped twice.
        energy(&tree, PKG, 9_000_000);
        assert_eq!(meter.sample(Instant::from_millis(600_000)).unwrap(), Energy::Started);
    }

    #[test]
    fn every_file_missing_or_garbage_is_an_error_that_names_it() {
        for bad in ["", "-1", "x", "99999999999999999999999", "262143328851"] {
            let tree = tree();
            let mut meter = meter(&tree);
            tree.write(&format!("{PKG}/energy_uj"), bad);
            assert!(
                meter.sample(Instant::ZERO).unwrap_err().to_string().contains("energy_uj"),
                "{bad:?}"
            );
        }
        for file in ["name", "max_energy_range_uj"] {
            let tree = tree();
            tree.remove(&format!("{PKG}/{file}"));
            let e = RaplMeter::find(tree.root(), Watts::from_whole(500)).unwrap_err();
            assert!(e.to_string().contains(file), "{e}");
        }
        let tree = tree();
        tree.write(&format!("{PKG}/max_energy_range_uj"), "0");
        assert!(RaplMeter::find(tree.root(), Watts::from_whole(500)).is_err());
        assert!(RaplMeter::find(Tree::new().root(), Watts::from_whole(500)).is_err());
    }
}
