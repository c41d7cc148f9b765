//! Finding sensors in the hwmon class.
//!
//! `hwmonN` renumbers at every boot and driver reload, so devices are told by driver name, channels by
//! label. Drivers of the old registration call keep `name` and the channels in `hwmonN/device/`
//! (`acpi_power_meter` does): both layouts are read.
//!
//! Source: Documentation/hwmon/sysfs-interface.rst; powers are in microwatts, voltages in millivolts.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Root;
use crate::error::{HwError, Operation};
use crate::root::{numbered, optional, read_text, read_value};

/// More channels of one kind than any driver has.
const CHANNELS: u32 = 32;
/// What a sensor's file must hold.
const NUMBER: &str = "a whole number";

/// Which sensor is meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MatchSpec {
    /// The driver's name, as in `name`; or `name@device`, where `device` is the last part of the
    /// `device` link (such as `3-0058` on I²C), if several devices have the same driver.
    pub name: String,
    /// The channel's `powerN_label`; `None` takes the only channel there is.
    pub label: Option<String>,
}

/// One hwmon device.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    /// The folder that holds the channels.
    pub(crate) dir: PathBuf,
    name: String,
    id: Option<String>,
}

impl Device {
    /// Whether this is `name` or `name@device`.
    pub(crate) fn is(&self, wanted: &str) -> bool {
        match wanted.split_once('@') {
            None => self.name == wanted,
            Some((name, id)) => self.name == name && self.id.as_deref() == Some(id),
        }
    }

    /// Whether its driver is the one of `wanted`.
    pub(crate) fn has_driver_of(&self, wanted: &str) -> bool {
        wanted.split('@').next() == Some(&self.name)
    }

    /// A sensor's value; `None` if the device has no such file.
    pub(crate) fn number(&self, file: &str) -> Result<Option<i64>, HwError> {
        optional(read_value(&self.dir.join(file), NUMBER))
    }

    /// The channels of `kind` (`power`, `in`) that have a value, with their labels.
    pub(crate) fn channels(&self, kind: &str) -> Result<Vec<Channel>, HwError> {
        let mut found = Vec::new();
        for n in 1..=CHANNELS {
            let stem = format!("{kind}{n}");
            let suffixes = ["input", "average"];
            let value = suffixes.iter().map(|s| self.dir.join(format!("{stem}_{s}")));
            let Some(value) = value.into_iter().find(|path| path.exists()) else {
                continue;
            };
            let label = optional(read_text(&self.dir.join(format!("{stem}_label"))))?;
            let label = label.map(|text| text.trim().to_owned());
            found.push(Channel { stem, value, label });
        }
        Ok(found)
    }
}

/// One channel of a device.
#[derive(Clone, Debug)]
pub(crate) struct Channel {
    /// `power1`, `in2`, …
    pub(crate) stem: String,
    value: PathBuf,
    pub(crate) label: Option<String>,
}

impl Channel {
    /// The raw value.
    pub(crate) fn read(&self) -> Result<i64, HwError> {
        read_value(&self.value, NUMBER)
    }
    /// Whether its label begins with `prefix`.
    pub(crate) fn is(&self, prefix: &str) -> bool {
        self.label.as_deref().is_some_and(|label| label.starts_with(prefix))
    }
}

/// Every device with a readable name.
pub(crate) fn devices(root: &Root) -> Result<Vec<Device>, HwError> {
    let mut found = Vec::new();
    for (_, base) in numbered(&root.path("sys/class/hwmon"), "hwmon")? {
        let link = base.join("device");
        let id = fs::canonicalize(&link).ok();
        let id = id.as_deref().and_then(Path::file_name).map(|n| n.to_string_lossy().into_owned());
        for dir in [base, link] {
            // A device without a name, or one that went while we looked, is not the one meant.
            if let Ok(name) = read_text(&dir.join("name")) {
                found.push(Device { dir, name: name.trim().to_owned(), id });
                break;
            }
        }
    }
    Ok(found)
}

/// One channel, with what tells whether it is still the one that was found.
#[derive(Clone, Debug)]
pub(crate) struct Sensor {
    name_file: PathBuf,
    name: String,
    channel: Channel,
}

impl Sensor {
    /// The raw value; a missing file if the device's number belongs to another driver by now.
    pub(crate) fn read(&self) -> Result<i64, HwError> {
        if read_text(&self.name_file)?.trim() != self.name {
            let gone = std::io::ErrorKind::NotFound.into();
            return Err(HwError::io(&self.name_file, Operation::Read, &self.name, gone));
        }
        self.channel.read()
    }
}

/// The one power channel that is meant.
pub(crate) fn find_power(root: &Root, spec: &MatchSpec) -> Result<Sensor, HwError> {
    let mut found = Vec::new();
    for device in devices(root)?.into_iter().filter(|d| d.is(&spec.name)) {
        for channel in device.channels("power")? {
            if spec.label.is_none() || channel.label == spec.label {
                let (name_file, name) = (device.dir.join("name"), device.name.clone());
                found.push(Sensor { name_file, name, channel });
            }
        }
    }
    if found.len() == 1 {
        return Ok(found.swap_remove(0));
    }
    let label = spec.label.as_deref().unwrap_or("any");
    let seen = format!("{} channels of {}, label {label}", found.len(), spec.name);
    let allowed = "exactly one powerN_input or powerN_average with this driver name and label";
    Err(HwError::value(&root.path("sys/class/hwmon"), Operation::Read, seen, allowed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    fn spec(name: &str, label: Option<&str>) -> MatchSpec {
        MatchSpec { name: name.into(), label: label.map(Into::into) }
    }

    #[test]
    fn both_layouts_and_both_files_are_found() {
        let tree = Tree::new();
        tree.folder(
            "sys/class/hwmon/hwmon7",
            &[("name", "lm25066"), ("power1_input", "5"), ("power1_label", "pin")],
        );
        tree.folder(
            "sys/class/hwmon/hwmon3/device",
            &[("name", "power_meter"), ("power1_average", "6")],
        );
        tree.folder("sys/class/hwmon/hwmon4", &[("temp1_input", "1")]);
        assert_eq!(
            find_power(tree.root(), &spec("lm25066", Some("pin"))).unwrap().read().unwrap(),
            5
        );
        assert_eq!(find_power(tree.root(), &spec("power_meter", None)).unwrap().read().unwrap(), 6);
    }

    #[test]
    fn what_is_not_there_or_not_unique_is_refused() {
        let tree = Tree::new();
        assert!(find_power(tree.root(), &spec("pmbus", None)).is_err());
        let channels = [
            ("name", "pmbus"),
            ("power1_input", "1"),
            ("power1_label", "pin"),
            ("power2_input", "2"),
            ("power2_label", "pout1"),
        ];
        tree.folder("sys/class/hwmon/hwmon0", &channels);
        assert!(find_power(tree.root(), &spec("pmbus", None)).is_err());
        assert_eq!(
            find_power(tree.root(), &spec("pmbus", Some("pout1"))).unwrap().read().unwrap(),
            2
        );
        assert!(find_power(tree.root(), &spec("pmbus", Some("psys"))).is_err());
        tree.folder("sys/class/hwmon/hwmon1", &channels);
        let e = find_power(tree.root(), &spec("pmbus", Some("pin"))).unwrap_err();
        assert!(e.to_string().contains("2 channels of pmbus"), "{e}");
    }

    #[test]
    fn equal_drivers_are_told_apart_by_their_device() {
        let tree = Tree::new();
        for (n, id) in [(0, "3-0058"), (1, "3-0059")] {
            let dir = format!("sys/class/hwmon/hwmon{n}");
            tree.folder(&dir, &[("name", "pmbus"), ("power1_input", &n.to_string())]);
            tree.write(&format!("sys/bus/i2c/devices/{id}/x"), "");
            let target = tree.root().path(&format!("sys/bus/i2c/devices/{id}"));
            std::os::unix::fs::symlink(target, tree.root().path(&format!("{dir}/device"))).unwrap();
        }
        assert_eq!(
            find_power(tree.root(), &spec("pmbus@3-0059", None)).unwrap().read().unwrap(),
            1
        );
        assert!(find_power(tree.root(), &spec("pmbus@3-0060", None)).is_err());
        assert!(find_power(tree.root(), &spec("adm1275@3-0058", None)).is_err());
    }
}
