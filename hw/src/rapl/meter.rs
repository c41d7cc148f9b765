use core::time::Duration;
use std::path::Path;

use ballast_types::{Instant, Microjoules, Watts};
use nix::errno::Errno;

use super::{Kind, Zone, zones};
use crate::Root;
use crate::error::{HwError, Operation};
use crate::root::read_value;
use crate::sensor::{Sampled, Sensor, SensorError};

/// What a counter must hold.
const ENERGY: &str = "a whole number of microjoules";
/// Why a counter may be there and yet not be readable.
const ROOT_ONLY: &str = "energy counters are readable by root alone since Linux 5.10: run as root, or \
                         with CAP_DAC_READ_SEARCH";
/// A package that comes or goes with its CPUs is noticed within this time.
const RESCAN: Duration = Duration::from_secs(30);

/// The power of all packages and memory, from their energy counters.
#[derive(Debug)]
pub struct RaplMeter {
    root: Root,
    /// Packages alone, without memory.
    packages_only: bool,
    zones: Vec<Counter>,
    /// More than this cannot be: such a difference is refused.
    max: Watts,
    /// When the counters were last read; `None` before the first read.
    last: Option<Instant>,
    scanned_at: Option<Instant>,
}

#[derive(Debug)]
struct Counter {
    zone: Zone,
    range: Microjoules,
    value: Microjoules,
    /// Whether it has ever moved: some machines have a memory counter that never does.
    alive: bool,
}

/// What two reads of the counters give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Energy {
    /// The mean power between them.
    Power(Watts),
    /// This was the first read, or the last one is too old to tell how often a counter wrapped, or
    /// another package has come.
    Started,
    /// A counter has not moved.
    Stale,
    /// More than the packages can draw.
    Implausible(Watts),
}

impl RaplMeter {
    /// Finds every package and memory zone; `max` is more than they can draw together. Fails if there is no
    /// package zone, or a file of one is unreadable or garbage.
    pub fn find(root: &Root, max: Watts) -> Result<Self, HwError> {
        Self::of(root, max, false)
    }

    /// Finds the packages alone, without memory: what a package limit acts on.
    pub fn packages(root: &Root, max: Watts) -> Result<Self, HwError> {
        Self::of(root, max, true)
    }

    fn of(root: &Root, max: Watts, packages_only: bool) -> Result<Self, HwError> {
        let zones = counters(root, packages_only)?;
        Ok(Self { root: root.clone(), packages_only, zones, max, last: None, scanned_at: None })
    }

    /// The mean power since the last read. `now` must be taken just before the call. Fails if a counter is
    /// unreadable or garbage, or a zone has vanished; the last good read is kept, so that a zone that comes
    /// back is measured over the whole time.
    pub fn sample(&mut self, now: Instant) -> Result<Energy, HwError> {
        self.rescan(now)?;
        let values = self.zones.iter().map(Counter::read).collect::<Result<Vec<_>, _>>()?;
        let Some(then) = self.last else { return Ok(self.start(now, &values)) };
        let span = now.since(then);
        let mut sum = Microjoules::default();

        for (counter, value) in self.zones.iter().zip(&values) {
            if *value == counter.value && (counter.alive || counter.zone.kind == Kind::Package) {
                return Ok(Energy::Stale);
            }
            sum = sum + value.since_wrapping(counter.value, counter.range);
        }

        if span >= self.longest_span() {
            return Ok(self.start(now, &values));
        }

        // Two reads at one instant tell nothing.
        let Some(watts) = sum.over(span) else {
            return Ok(Energy::Stale);
        };
        self.start(now, &values);

        Ok(if watts > self.max { Energy::Implausible(watts) } else { Energy::Power(watts) })
    }

    /// Counts from these values on.
    fn start(&mut self, now: Instant, values: &[Microjoules]) -> Energy {
        for (counter, value) in self.zones.iter_mut().zip(values) {
            counter.alive |= self.last.is_some() && *value != counter.value;
            counter.value = *value;
        }
        self.last = Some(now);
        Energy::Started
    }

    /// Looks for packages that came since, and refuses to go on without one that went: what it still
    /// draws would be missing from the sum.
    fn rescan(&mut self, now: Instant) -> Result<(), HwError> {
        if now.since(*self.scanned_at.get_or_insert(now)) < RESCAN {
            return Ok(());
        }
        let found = counters(&self.root, self.packages_only)?;
        let gone = self.zones.iter().find(|old| !found.iter().any(|new| new.zone == old.zone));
        if let Some(Counter { zone, .. }) = gone {
            let gone = std::io::ErrorKind::NotFound.into();
            return Err(HwError::io(&zone.dir, Operation::Read, &zone.name, gone));
        }
        self.scanned_at = Some(now);
        if found.len() != self.zones.len() {
            self.zones = found;
            self.last = None;
        }
        Ok(())
    }

    /// Within this time no counter can wrap more than once.
    fn longest_span(&self) -> Duration {
        let least = self.zones.iter().map(|c| c.range.get()).min().unwrap_or_default();
        let milliwatts = u64::try_from(self.max.milli()).unwrap_or_default().max(1);
        // µJ / mW = ms.
        Duration::from_millis(least / milliwatts)
    }
}

/// Every counter that is wanted, not read yet.
fn counters(root: &Root, packages_only: bool) -> Result<Vec<Counter>, HwError> {
    let mut found = Vec::new();
    for zone in zones(root)?.into_iter().filter(|z| !packages_only || z.kind == Kind::Package) {
        let path = zone.dir.join("max_energy_range_uj");
        let range = read_value(&path, ENERGY)?;
        if range == 0 {
            let allowed = "more than 0 microjoules";
            return Err(HwError::value(&path, Operation::Read, range, allowed));
        }
        let range = Microjoules::new(range);
        found.push(Counter { zone, range, value: Microjoules::default(), alive: false });
    }
    if !found.iter().any(|c| c.zone.kind == Kind::Package) {
        let dir = root.path("sys/class/powercap");
        let allowed = "at least one intel-rapl zone named package-N";
        return Err(HwError::value(&dir, Operation::Read, "no package zone", allowed));
    }
    Ok(found)
}

impl Counter {
    fn read(&self) -> Result<Microjoules, HwError> {
        let path: &Path = &self.zone.dir.join("energy_uj");
        let value: u64 = read_value(path, ENERGY).map_err(remedied)?;
        if value > self.range.get() {
            let allowed = format!("0 to max_energy_range_uj, {}", self.range.get());
            return Err(HwError::value(path, Operation::Read, value, allowed));
        }
        Ok(Microjoules::new(value))
    }
}

/// The error, with what to do about a counter that may not be read.
fn remedied(error: HwError) -> HwError {
    let hidden = error.is(&[Errno::EACCES, Errno::EPERM]);
    if hidden { HwError { allowed: ROOT_ONLY.to_owned(), ..error } } else { error }
}

/// RAPL as a power meter: packages and memory, plus a fixed offset for the rest of the server.
#[derive(Debug)]
pub struct RaplSensor {
    root: Root,
    offset: Watts,
    max: Watts,
    meter: Option<RaplMeter>,
    /// Reads in a row in which no counter has moved.
    stale: u32,
    /// Measurements so far: each is a fresh one, whatever its watts.
    count: u64,
}

impl RaplSensor {
    /// The zones are looked for at the first read, which only starts the counters.
    pub fn new(root: &Root, offset: Watts, max: Watts) -> Self {
        Self { root: root.clone(), offset, max, meter: None, stale: 0, count: 0 }
    }
}

impl Sensor for RaplSensor {
    fn read(&mut self, now: Instant) -> Result<Sampled, SensorError> {
        let max = self.max;
        let meter = match &mut self.meter {
            Some(meter) => meter,
            none => none.insert(RaplMeter::find(&self.root, max)?),
        };
        let energy = meter.sample(now)?;
        self.stale = if energy == Energy::Stale { self.stale.saturating_add(1) } else { 0 };
        match energy {
            Energy::Power(watts) => {
                self.count += 1;
                Ok(Sampled { watts: watts + self.offset, mark: Some(self.count) })
            }
            Energy::Started => Err(SensorError::Started),
            Energy::Implausible(watts) => Err(SensorError::Implausible { watts, max }),
            Energy::Stale => Err(SensorError::Frozen { watts: Watts::ZERO, reads: self.stale }),
        }
    }
}

#[cfg(test)]
mod tests;
