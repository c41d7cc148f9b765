//! A power supply as PMBus drivers show it in hwmon.
//!
//! One supply is one hwmon device with the channels `pin` (what it draws), `pout1` (what it gives), `vin`
//! (its feed) and `vout1`. PMBus has no file for the state, so it is told from these, in this order:
//!
//! | seen | state |
//! |---|---|
//! | no such device any more, but another one of the same driver | `Absent`: the driver lives, the supply was pulled |
//! | no such device at all, or any read fails | an error: the bus or the driver is gone, not the load |
//! | gives at least 1 W (without `pout`: draws more than 0 W) | `Active` |
//! | `vin` reads 0 or less, or an undervoltage or output alarm is set | `Failed` |
//! | feed present, gives nothing | `Standby` |
//! | none of these sensors | `Unknown` |
//!
//! Carrying load comes before alarms: PMBus latches alarms, so an old one says nothing of now.
//!
//! Source: Documentation/hwmon/pmbus.rst and pmbus-core.rst.

use ballast_types::{Instant, Supply, SupplyState, Watts};

use super::SupplySensor;
use crate::Root;
use crate::error::HwError;
use crate::hwmon::{Channel, Device, devices};
use crate::sensor::SensorError;

/// A supply that gives less than this carries nothing: 1 W, in microwatts.
const CARRIES_UW: i64 = 1_000_000;
/// No single supply draws more than this: 100 kW, in microwatts.
const MAX_PLAUSIBLE_UW: i64 = 100_000_000_000;

/// One supply by its hwmon name. It is looked for at the first read, and again whenever it vanishes.
#[derive(Debug)]
pub struct PmbusSupply {
    root: Root,
    name: String,
    found: Option<DetectedDevice>,
    /// Whether its device was there since this started.
    was_there: bool,
}

/// A device with its channels: a driver makes them all when it finds the device, and looking for them costs
/// more than reading them.
#[derive(Debug)]
struct DetectedDevice {
    device: Device,
    powers: Vec<Channel>,
    volts: Vec<Channel>,
}

impl PmbusSupply {
    /// The supply of this name: a driver's name, or `name@device` where several devices have the same
    /// driver (see [`crate::MatchSpec::name`]).
    pub fn new(root: &Root, name: &str) -> Self {
        Self { root: root.clone(), name: name.to_owned(), found: None, was_there: false }
    }

    /// The device; `None` if it was there and was pulled.
    fn find(&mut self) -> Result<Option<&DetectedDevice>, SensorError> {
        if self.found.as_ref().is_some_and(|found| found.device.still().is_err()) {
            self.found = None;
        }
        if self.found.is_none() {
            let all = devices(&self.root)?;
            let mut named = all.iter().filter(|device| device.is(&self.name));
            self.found = match (named.next(), named.next()) {
                (Some(device), None) => Some(DetectedDevice::of(device.clone())?),
                (Some(_), Some(_)) => {
                    let why = "several hwmon devices have this name: write name@device, as 'ballast check' \
                               lists them";
                    return Err(SensorError::Device(why.to_owned()));
                }

                // One that was never there may be there under another name: not "draws nothing".
                (None, _) if self.was_there && all.iter().any(|d| d.has_driver_of(&self.name)) => None,
                (None, _) => {
                    return Err(SensorError::Device(
                        "no hwmon device has this name: 'ballast check' lists those that are there"
                            .to_owned(),
                    ));
                }
            };

            self.was_there |= self.found.is_some();
        }

        Ok(self.found.as_ref())
    }
}

impl SupplySensor for PmbusSupply {
    fn read(&mut self, _: Instant) -> Result<(Supply, Option<u64>), SensorError> {
        let Some(found) = self.find()? else {
            let absent = Supply { state: SupplyState::Absent, input: Some(Watts::ZERO) };
            return Ok((absent, None));
        };
        let reading = found.read();
        if reading.is_err() {
            self.found = None;
        }
        Ok(reading?)
    }
}

impl DetectedDevice {
    fn of(device: Device) -> Result<Self, HwError> {
        let (powers, volts) = (device.channels("power")?, device.channels("in")?);
        Ok(Self { device, powers, volts })
    }

    /// The reading, and the raw input power if there is one.
    fn read(&self) -> Result<(Supply, Option<u64>), HwError> {
        let Self { device, powers, volts } = self;
        let value = |channels: &[Channel], label| {
            channels.iter().find(|c| c.is(label)).map(Channel::read).transpose()
        };

        // A device without labels has one channel, and that is its input.
        let unlabelled = powers.iter().find(|c| c.label.is_none());
        let input = match value(powers, "pin")? {
            Some(input) => Some(input),
            None => unlabelled.map(Channel::read).transpose()?,
        };

        let output = value(powers, "pout")?;
        let feed = value(volts, "vin")?;
        let carries = match (output, input) {
            (Some(output), _) => output >= CARRIES_UW,
            (None, Some(input)) => input > 0,
            (None, None) => false,
        };

        let state = if carries {
            SupplyState::Active
        } else if feed.is_some_and(|mv| mv <= 0) || alarmed(device, volts)? {
            SupplyState::Failed
        } else if feed.is_some() {
            SupplyState::Standby
        } else {
            SupplyState::Unknown
        };

        let least = if state == SupplyState::Active { 1 } else { 0 };
        let plausible = input.filter(|uw| (least..=MAX_PLAUSIBLE_UW).contains(uw));
        let watts = plausible.map(|uw| Watts::from_milli(uw / 1000));

        Ok((Supply { state, input: watts }, input.map(i64::unsigned_abs)))
    }
}

/// Whether the feed is too low, or the output is not what it should be.
fn alarmed(device: &Device, volts: &[Channel]) -> Result<bool, HwError> {
    for channel in volts {
        let alarms: &[&str] = match channel {
            c if c.is("vin") => &["lcrit_alarm"],
            c if c.is("vout") => &["lcrit_alarm", "crit_alarm"],
            _ => &[],
        };
        for alarm in alarms {
            if device.number(&format!("{}_{alarm}", channel.stem))? == Some(1) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
