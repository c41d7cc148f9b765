//! What the agent's work needs of its machine, as narrow as the config allows.

use std::fs;

use ballast_hw::{By, Journal, Root};
use ballast_runtime::confine::Needs;

use crate::config::{AgentConfig, LimitBy, MeterSource};
use crate::limit;

/// Where cores, RAPL and VMs are restricted. RAPL's zones are links on a real machine.
const ALWAYS: [&str; 4] =
    ["sys/devices/system/cpu", "sys/devices/virtual/powercap", "sys/class/powercap", "sys/fs/cgroup"];
/// hwmon devices renumber, and lie wherever their bus does.
const HWMON: [&str; 2] = ["sys/devices", "sys/class/hwmon"];
/// `ipmi0` is made anew with its driver: which of the devices there may be opened is for the unit.
const DEVICES: &str = "dev";

pub(crate) fn of(config: &AgentConfig) -> Needs {
    let root = Root::at(&config.daemon.root);
    let by = config.server_limit.floor.map(|_| &config.server_limit.by);
    // What a previous instance has left is put back, whatever the config says now.
    let is_left = config.daemon.state_dir.join(limit::FILE).exists();
    let caps = is_left || matches!(by, Some(LimitBy::PowerCap { .. }));
    let bmc = is_left || by == Some(&LimitBy::Dcmi) || matches!(config.meter.source, MeterSource::Dcmi);

    let journal = fs::read_to_string(config.daemon.state_dir.join(Journal::FILE)).unwrap_or_default();
    let by_libvirt = journal.contains("\"libvirt\"");

    let kernel = ALWAYS.into_iter().chain(if caps { HWMON.as_slice() } else { &[] }.iter().copied());
    Needs {
        kernel: kernel.map(|folder| root.path(folder)).collect(),
        devices: bmc.then(|| root.path(DEVICES)).into_iter().collect(),
        // `virsh`, where no libvirt-dbus is; it is held to the same.
        commands: matches!(config.groups.by, By::Libvirt(_)) || by_libvirt,
        ..config.daemon.needs()
    }
}
