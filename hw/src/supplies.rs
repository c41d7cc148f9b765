//! The power supplies of a chassis: one way to read one, and when its reading must not be trusted.

mod pmbus;

use core::fmt;
use core::time::Duration;

use ballast_types::{Instant, Supply, SupplyState};
use tracing::{info, warn};

pub use pmbus::PmbusSupply;

use crate::freshness::Freshness;
use crate::sensor::SensorError;

/// Something that tells how one power supply is, and what it draws: PMBus in hwmon, Redfish.
pub trait SupplySensor: Send {
    /// Asks the device once; may block, so it is called on a thread of its own. `now` is the time just before
    /// the call. With the reading comes a number that moves with every value that the device produces, finer
    /// than milliwatts or a time stamp, if there is one. Fails if the device does not answer. That is never
    /// "draws nothing".
    fn read(&mut self, now: Instant) -> Result<(Supply, Option<u64>), SensorError>;
}

/// One supply, believed only as far as it deserves.
pub struct SupplyMeter {
    name: String,
    sensor: Box<dyn SupplySensor>,
    freshness: Freshness,
    state: Option<SupplyState>,
    /// What is wrong with it, as last logged; empty if nothing is.
    problem: String,
}

impl fmt::Debug for SupplyMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SupplyMeter").field("name", &self.name).finish_non_exhaustive()
    }
}

impl SupplyMeter {
    /// The supply that `sensor` tells of; `name` is what operators call it.
    pub fn new(name: &str, sensor: impl SupplySensor + 'static) -> Self {
        let (name, sensor, freshness) = (name.to_owned(), Box::new(sensor), Freshness::default());
        Self { name, sensor, freshness, state: None, problem: String::new() }
    }

    /// Reads the supply, and says whether its value or its state has moved. `now` must be taken just before.
    pub fn poll(&mut self, now: Instant) -> (Supply, bool) {
        let mut moved = false;
        let read = match self.sensor.read(now) {
            Ok((read, mark)) => {
                let mut problem = String::new();
                if let Some(input) = read.input {
                    moved = self.freshness.see(input.milli(), mark, now).0 == now;
                }
                let frozen = read.state == SupplyState::Active && self.freshness.frozen();

                if frozen {
                    problem = "it carries load, but its reading has not changed for a long time".to_owned();
                } else if read.state == SupplyState::Absent {
                    problem =
                        "it was pulled: its device is gone, others with its driver are there".to_owned();
                }

                self.say(problem);
                if frozen { Supply::UNKNOWN } else { read }
            }
            Err(error) => {
                self.freshness.missed();
                self.say(error.to_string());
                Supply::UNKNOWN
            }
        };

        moved |= self.state.is_some_and(|state| state != read.state);
        self.state = Some(read.state);

        (read, moved)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn problem(&self) -> Option<&str> {
        Some(self.problem.as_str()).filter(|problem| !problem.is_empty())
    }

    /// The measured refresh; see [`crate::PowerMeter::refresh`].
    pub fn refresh(&self) -> Option<Duration> {
        self.freshness.refresh()
    }

    /// Logs what is wrong when that changes, not at every poll.
    fn say(&mut self, problem: String) {
        if problem == self.problem {
            return;
        }
        if problem.is_empty() {
            info!(supply = self.name, "the power supply can be read again");
        } else {
            warn!(supply = self.name, problem, "the power supply cannot be used as it reads now");
        }
        self.problem = problem;
    }
}

#[cfg(test)]
mod tests;
