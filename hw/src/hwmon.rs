//! Finding sensors in the hwmon class.
//!
//! `hwmonN` renumbers at every boot and driver reload, so devices are told by driver name, channels by
//! label. Drivers of the old registration call keep `name` and the channels in `hwmonN/device/`
//! (`acpi_power_meter` does): both layouts are read. Entries of the class are links; a device that was
//! found is read by the path that its link led to, which no other device can take over.
//!
//! Source: Documentation/hwmon/sysfs-interface.rst; powers are in microwatts, voltages in millivolts,
//! currents in milliamperes.

mod cap;
mod sensor;

use std::fs;
use std::path::{Path, PathBuf};

pub use cap::{CapSpec, HwmonCap, HwmonCapState};
pub use sensor::HwmonSensor;

use crate::Root;
use crate::error::{HwError, Operation};
use crate::root::{numbered, optional, read_text, read_value};

/// More channels of one kind than any driver has.
const CHANNELS: u32 = 32;
/// What a sensor's file must hold.
const NUMBER: &str = "a whole number";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MatchSpec {
    /// The driver's name, as in `name`; or `name@device`, where `device` is the last part of the
    /// `device` link (such as `3-0058` on I²C), if several devices have the same driver.
    pub name: String,
    /// The channel's `powerN_label`; `None` takes the only channel there is.
    pub label: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Device {
    /// The folder that holds the channels.
    pub(crate) dir: PathBuf,
    name: String,
    /// Where its `device` link leads; `None` without one.
    at: Option<PathBuf>,
}

impl Device {
    /// Its name in a [`MatchSpec`] that means this device alone: `name@device` where it has a device.
    pub(crate) fn full_name(&self) -> String {
        match self.at.as_deref().and_then(Path::file_name) {
            Some(id) => format!("{}@{}", self.name, id.to_string_lossy()),
            None => self.name.clone(),
        }
    }

    /// Whether this is `name` or `name@device`.
    pub(crate) fn is(&self, wanted: &str) -> bool {
        match wanted.split_once('@') {
            None => self.name == wanted,
            Some((name, id)) => {
                let is = self.at.as_deref().and_then(Path::file_name);
                self.name == name && is.is_some_and(|is| is == id)
            }
        }
    }

    pub(crate) fn has_driver_of(&self, wanted: &str) -> bool {
        wanted.split('@').next() == Some(&self.name)
    }

    /// A sensor's value; `None` if the device has no such file.
    pub(crate) fn number(&self, file: &str) -> Result<Option<i64>, HwError> {
        optional(read_value(&self.dir.join(file), NUMBER))
    }

    /// Whether this device is still where it was found. Fails if its folder is gone, or belongs to another
    /// driver.
    pub(crate) fn still(&self) -> Result<(), HwError> {
        let file = self.dir.join("name");
        if read_text(&file)?.trim() == self.name {
            return Ok(());
        }
        Err(HwError::io(&file, Operation::Read, &self.name, std::io::ErrorKind::NotFound.into()))
    }

    /// The channels of `kind` (`power`, `in`) that have a value, with their labels.
    pub(crate) fn channels(&self, kind: &str) -> Result<Vec<Channel>, HwError> {
        let mut found = Vec::new();
        for n in 1..=CHANNELS {
            let stem = format!("{kind}{n}");
            let files = ["input", "average"].map(|suffix| self.dir.join(format!("{stem}_{suffix}")));
            if let Some(value) = files.into_iter().find(|path| path.exists()) {
                let label = self.label(&stem)?;
                found.push(Channel { stem, value, amperes: None, label });
            }
        }
        Ok(found)
    }

    /// The channels that tell a power: as the driver computes it or, where it knows volts and amperes
    /// only (INA3221), as their product.
    pub(crate) fn powers(&self) -> Result<Vec<Channel>, HwError> {
        let mut found = self.channels("power")?;
        if !found.is_empty() {
            return Ok(found);
        }
        for volts in self.channels("in")? {
            let current = volts.stem.replace("in", "curr");
            let file = self.dir.join(format!("{current}_input"));
            if file.exists() {
                let label = match volts.label {
                    Some(label) => Some(label),
                    None => self.label(&current)?,
                };
                found.push(Channel { label, amperes: Some(file), ..volts });
            }
        }
        Ok(found)
    }

    pub(crate) fn label(&self, stem: &str) -> Result<Option<String>, HwError> {
        let text = optional(read_text(&self.dir.join(format!("{stem}_label"))))?;
        Ok(text.map(|text| text.trim().to_owned()))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Channel {
    /// What its files begin with: `power1`, `in2`, …
    pub(crate) stem: String,
    value: PathBuf,
    /// What `value`, in millivolts, is multiplied with.
    amperes: Option<PathBuf>,
    pub(crate) label: Option<String>,
}

impl Channel {
    /// The raw value; mV × mA = µW.
    pub(crate) fn read(&self) -> Result<i64, HwError> {
        let value: i64 = read_value(&self.value, NUMBER)?;
        let Some(file) = &self.amperes else { return Ok(value) };
        let amperes: i64 = read_value(file, NUMBER)?;
        Ok(if value < 0 || amperes < 0 { 0 } else { value.saturating_mul(amperes) })
    }
    /// Whether its label begins with `prefix`.
    pub(crate) fn is(&self, prefix: &str) -> bool {
        self.label.as_deref().is_some_and(|label| label.starts_with(prefix))
    }
}

/// Every device with a readable name.
pub(crate) fn devices(root: &Root) -> Result<Vec<Device>, HwError> {
    let mut found = Vec::new();
    for (_, entry) in numbered(&root.path("sys/class/hwmon"), "hwmon")? {
        // A device without a name, or one that went while we looked, is not the one meant.
        let Ok(base) = fs::canonicalize(&entry) else { continue };
        let at = fs::canonicalize(base.join("device")).ok();
        for dir in [Some(base), at.clone()].into_iter().flatten() {
            if let Ok(name) = read_text(&dir.join("name")) {
                found.push(Device { dir, name: name.trim().to_owned(), at });
                break;
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
