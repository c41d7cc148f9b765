use serde::Serialize;

use super::files::{told, writable};
use crate::Root;
use crate::hwmon::{Device, devices};

/// One power channel of hwmon.
#[derive(Clone, Debug, Serialize)]
pub struct MeterFacts {
    /// What `[meter] name` must say: the driver, and the device where it has one.
    pub name: String,
    /// What `[meter] label` must say; `None` where the channel has no label.
    pub label: Option<String>,
    /// The channel: `power1`, or `in1` where watts are volts times amperes.
    pub channel: String,
    /// What it reads now, in microwatts.
    pub microwatts: Option<i64>,
    /// Why it cannot be read.
    pub error: Option<String>,
    /// Over which time the device averages, in milliseconds, if it says so.
    pub averaged_ms: Option<i64>,
    /// Whether it has a limit (`powerN_cap`) that this process may write.
    pub cap: bool,
}

/// Every power channel of every hwmon device.
pub fn meters(root: &Root) -> Vec<MeterFacts> {
    let devices = devices(root).unwrap_or_default();
    devices.iter().flat_map(|device| of(root, device)).collect()
}

fn of(root: &Root, device: &Device) -> Vec<MeterFacts> {
    let channels = device.powers().unwrap_or_default();
    let facts = channels.into_iter().map(|channel| {
        let read = channel.read();
        MeterFacts {
            name: device.full_name(),
            averaged_ms: device.number(&format!("{}_average_interval", channel.stem)).ok().flatten(),
            cap: writable(&device.dir.join(format!("{}_cap", channel.stem))),
            label: channel.label,
            channel: channel.stem,
            error: read.as_ref().err().map(|error| told(root, error)),
            microwatts: read.ok(),
        }
    });
    facts.collect()
}

/// The management controller, as far as this machine shows it.
#[derive(Clone, Debug, Serialize)]
pub struct Bmc {
    /// The IPMI device: `/dev/ipmi0`; `None` if there is none.
    pub device: Option<String>,
    /// Whether this process may use it.
    pub usable: bool,
    /// Whether the kernel has found an IPMI interface (`/sys/class/ipmi`), be its device there or not.
    pub interface: bool,
}

impl Bmc {
    pub(super) fn read(root: &Root) -> Self {
        let names = ["dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0"];
        let device = names.into_iter().find(|name| root.path(name).exists());
        let interfaces = std::fs::read_dir(root.path("sys/class/ipmi"));
        Self {
            usable: device.is_some_and(|name| writable(&root.path(name))),
            device: device.map(|name| format!("/{name}")),
            interface: interfaces.is_ok_and(|mut entries| entries.next().is_some()),
        }
    }
}
