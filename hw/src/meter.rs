//! The server's power meter, and when its reading must not be trusted.
//!
//! A missing, zero, implausible or frozen reading is an error here. It is never a low power.

use core::fmt;
use core::time::Duration;

use ballast_types::{Instant, Watts};

use crate::freshness::Freshness;
use crate::sensor::{Sensor, SensorError};

/// One sensor, believed only as far as it deserves.
pub struct PowerMeter {
    sensor: Box<dyn Sensor>,
    max: Watts,
    freshness: Freshness,
}

impl fmt::Debug for PowerMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PowerMeter").field("max", &self.max).finish_non_exhaustive()
    }
}

impl PowerMeter {
    /// A meter by `sensor`; more than `max` is implausible.
    pub fn new(sensor: impl Sensor + 'static, max: Watts) -> Self {
        Self { sensor: Box::new(sensor), max, freshness: Freshness::default() }
    }

    /// Reads the meter. The second part of the answer is when the meter produced the value: it moves
    /// only when the value, or the device's mark, does. `now` must be taken just before the call; a
    /// device that answers late thereby gets the older stamp.
    pub fn sample(&mut self, now: Instant) -> Result<(Watts, Instant), SensorError> {
        let max = self.max;
        let sampled = self.sensor.read(now).inspect_err(|_| self.freshness.missed())?;
        let watts = sampled.watts;
        if watts <= Watts::ZERO || watts > max {
            self.freshness.missed();
            return Err(SensorError::Implausible { watts, max });
        }
        let (taken_at, reads) = self.freshness.see(watts.milli(), sampled.mark, now);
        if self.freshness.frozen() {
            return Err(SensorError::Frozen { watts, reads });
        }
        Ok((watts, taken_at))
    }

    /// The measured refresh: the median time between two changes of the value, once 20 were seen.
    ///
    /// It is never shorter than the period of reading.
    pub fn refresh(&self) -> Option<Duration> {
        self.freshness.refresh()
    }

    /// The time that a value is averaged over, where the device says so itself.
    pub fn averaged_over(&self) -> Option<Duration> {
        self.sensor.averaged_over()
    }
}

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod tests;
