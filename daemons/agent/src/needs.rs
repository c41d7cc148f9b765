//! What the agent's work needs of its machine, as narrow as the config allows.

use ballast_hw::binding::Via;
use ballast_hw::{By, Root};
use ballast_runtime::confine::Needs;

use crate::config::{AgentConfig, LimitBy, MeterSource};
use crate::limit;

/// Where cores and RAPL are restricted. RAPL's zones are links on a real machine.
const ALWAYS: [&str; 3] = ["sys/devices/system/cpu", "sys/devices/virtual/powercap", "sys/class/powercap"];
/// Where VMs are.
const CGROUPS: [&str; 1] = ["sys/fs/cgroup"];
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

    let journal = config.journal_folders();
    let originals = journal.originals_of().unwrap_or_default();
    let by_libvirt = originals.cpusets.values().any(|it| matches!(it.via, Via::Libvirt { .. }));

    // The cgroups of pods are the kubelet's.
    let is_left =
        !(originals.cpusets.is_empty() && originals.quotas.is_empty() && originals.memory.is_empty());
    let cgroups = config.kubernetes.as_ref().is_none_or(|it| it.cpu_max) || is_left;
    let some = |wanted: bool, folders: &'static [&'static str]| if wanted { folders } else { &[] };
    let more = some(caps, &HWMON).iter().chain(some(cgroups, &CGROUPS)).copied();
    let kernel = ALWAYS.into_iter().chain(more);
    let daemon = config.daemon.needs();
    Needs {
        folders: daemon.folders.iter().chain(journal.iter()).cloned().collect(),
        kernel: kernel.map(|folder| root.path(folder)).collect(),
        devices: bmc.then(|| root.path(DEVICES)).into_iter().collect(),
        // `virsh`, where no libvirt-dbus is; it is held to the same.
        commands: matches!(config.groups.by, By::Libvirt(_)) || by_libvirt,
        ..daemon
    }
}

#[cfg(test)]
mod tests {
    use ballast_hw::Journal;

    use super::*;
    use crate::config::ConfigFile as _;

    #[test]
    fn commands_are_run_for_libvirt_alone_by_the_config_or_by_what_is_left() {
        let cpus = |via| format!(r#"{{"vms/libvirt":{{"cpus":"0-3"{via}}}}}"#);
        let pins = r#"{"vcpus":{"0":"0-3"},"emulator":"0-3","iothreads":{}}"#;
        let libvirt = format!(r#","via":{{"libvirt":{{"uri":"qemu:///system","domain":3,"pins":{pins}}}}}"#);
        let unit = r#","via":{"systemd":{"unit":"libvirt","allowed":""}}"#;
        for (groups, left, commands) in [
            ("", None, false),
            ("[groups]\nby = \"libvirt\"\n", None, true),
            ("", Some(cpus(libvirt.as_str())), true),
            // A name is no binding.
            ("", Some(cpus(r#","via":{"cgroup":{"inode":7}}"#)), false),
            ("", Some(cpus(unit)), false),
        ] {
            let folder = tempfile::tempdir().unwrap();
            if let Some(left) = &left {
                let others = r#""cpufreq":null,"powercap":{},"quotas":{},"memory":{}"#;
                let originals = format!(r#"{{{others},"cpusets":{left}}}"#);
                let journal = format!(r#"{{"version":1,"boot_id":"boot","originals":{originals}}}"#);
                std::fs::write(folder.path().join(Journal::FILE), journal).unwrap();
            }
            let text = format!("server = \"s\"\nchassis = \"c\"\nmeter.offset_w = 60\n{groups}");
            let mut config = AgentConfig::parse("agent.toml", &text).unwrap();
            config.daemon.state_dir = folder.path().to_owned();
            assert_eq!(of(&config).commands, commands, "{groups} {left:?}");
        }
    }

    #[test]
    fn no_cgroup_is_written_on_a_kubernetes_node_unless_cpu_max_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let float = "[throttle]\nactuator = \"cpu-max\"\n[kubernetes]\ncpu_max = true\n";
        for (more, written) in [("", true), ("[kubernetes]\n", false), (float, true)] {
            let text = format!("server = \"s\"\nchassis = \"c\"\nmeter.offset_w = 60\n{more}");
            let mut config = AgentConfig::parse("agent.toml", &text).unwrap();
            config.daemon.state_dir = folder.path().to_owned();
            let cgroups = std::path::Path::new("/sys/fs/cgroup");
            assert_eq!(of(&config).kernel.iter().any(|it| it == cgroups), written, "{more}");
        }
    }
}
