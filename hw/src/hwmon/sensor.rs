//! One power channel, found again wherever its device goes.

use core::time::Duration;
use std::path::PathBuf;

use ballast_types::{Instant, Watts};
use tracing::warn;

use super::{Channel, Device, MatchSpec, devices};
use crate::Root;
use crate::error::{HwError, Operation};
use crate::sensor::{Sampled, Sensor, SensorError};

/// A hwmon channel. It is looked for at the first read, and again whenever it vanishes.
#[derive(Debug)]
pub struct HwmonSensor {
    root: Root,
    spec: MatchSpec,
    found: Option<DetectedChannel>,
    /// Where the device was, once it was found: of several it is the one.
    at: Option<PathBuf>,
}

#[derive(Debug)]
struct DetectedChannel {
    device: Device,
    channel: Channel,
}

impl DetectedChannel {
    /// The raw value, in microwatts; a missing file if the device is not what it was.
    fn read(&self) -> Result<i64, HwError> {
        self.device.still()?;
        self.channel.read()
    }
}

impl HwmonSensor {
    /// The one power channel that is meant by `spec`.
    pub fn new(root: &Root, spec: MatchSpec) -> Self {
        Self { root: root.clone(), spec, found: None, at: None }
    }

    fn raw(&mut self) -> Result<i64, HwError> {
        if let Some(found) = &self.found {
            match found.read() {
                Err(e) if e.is_missing() => self.found = None,
                result => return result,
            }
        }
        let found = self.find()?;
        let raw = found.read()?;
        if self.at.is_some() && self.at != found.device.at {
            let [was, is] =
                [&self.at, &found.device.at].map(|at| at.as_ref().map(|at| at.display().to_string()));
            warn!(name = self.spec.name, was, is, "the sensor's name now belongs to another device");
        }
        self.at.clone_from(&found.device.at);
        self.found = Some(found);
        Ok(raw)
    }

    fn find(&self) -> Result<DetectedChannel, HwError> {
        let MatchSpec { name, label } = &self.spec;
        let mut found = Vec::new();
        for device in devices(&self.root)?.into_iter().filter(|device| device.is(name)) {
            for channel in device.powers()? {
                if label.is_none() || channel.label == *label {
                    found.push(DetectedChannel { device: device.clone(), channel });
                }
            }
        }

        if found.len() > 1 && self.at.is_some() {
            found.retain(|found| found.device.at == self.at);
        }
        if found.len() == 1 {
            return Ok(found.swap_remove(0));
        }
        let label = label.as_deref().unwrap_or("any");
        let seen = format!("{} channels of {name}, label {label}", found.len());
        let allowed = "exactly one powerN_input, powerN_average, or inN_input with currN_input, \
                       of this driver name and label";
        let class = self.root.path("sys/class/hwmon");

        Err(HwError::value(&class, Operation::Read, seen, allowed))
    }
}

impl Sensor for HwmonSensor {
    fn read(&mut self, _: Instant) -> Result<Sampled, SensorError> {
        let raw = self.raw()?;
        // Microwatts move where milliwatts may not.
        Ok(Sampled { watts: Watts::from_milli(raw / 1000), mark: Some(raw.unsigned_abs()) })
    }

    fn averaged_over(&self) -> Option<Duration> {
        let DetectedChannel { device, channel } = self.found.as_ref()?;
        let ms = device.number(&format!("{}_average_interval", channel.stem)).ok()??;
        u64::try_from(ms).ok().map(Duration::from_millis)
    }
}
