use std::fs;

use serde::Serialize;

use super::files::line;
use crate::Root;

/// Something else that sets frequencies, limits or CPU sets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CompetingWriter {
    /// Its unit, without `.service`.
    pub name: &'static str,
    /// Whether it runs, by its cgroup or by a process of its name.
    pub running: bool,
    /// Whether systemd starts it at boot.
    pub enabled: bool,
    pub does: Setting,
}

/// What somebody else sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    /// `scaling_max_freq`, governors, or energy preferences.
    Frequency,
    /// RAPL limits.
    PowerLimit,
    /// The CPU sets of its own groups.
    CpuSets,
}

/// Units, the names of their processes, and what they set. The kernel cuts names to 15 bytes.
pub(super) const KNOWN: [(&str, &str, Setting); 12] = [
    ("auto-cpufreq", "auto-cpufreq", Setting::Frequency),
    ("cpufreqd", "cpufreqd", Setting::Frequency),
    ("cpupower", "", Setting::Frequency),
    ("geopm", "geopmd", Setting::PowerLimit),
    ("k3s", "k3s-server", Setting::CpuSets),
    ("kubelet", "kubelet", Setting::CpuSets),
    ("laptop-mode", "laptop_mode", Setting::Frequency),
    ("power-profiles-daemon", "power-profiles-", Setting::Frequency),
    ("system76-power", "system76-power", Setting::Frequency),
    ("thermald", "thermald", Setting::PowerLimit),
    ("tlp", "", Setting::Frequency),
    ("tuned", "tuned", Setting::Frequency),
];

/// Those of them that run or will run at boot.
pub(super) fn find(root: &Root) -> Vec<CompetingWriter> {
    let processes = processes(root);
    let wanted = wanted(root);
    let competing = |(name, process, does): &(&'static str, &str, Setting)| {
        let unit = format!("{name}.service");
        let group = |top| root.path(&format!("sys/fs/cgroup/{top}system.slice/{unit}")).exists();
        let process = !process.is_empty() && processes.iter().any(|known| known == process);
        CompetingWriter {
            name,
            running: process || group("") || group("unified/") || group("systemd/"),
            enabled: wanted.contains(&unit),
            does: *does,
        }
    };
    KNOWN.iter().map(competing).filter(|it| it.running || it.enabled).collect()
}

/// The names of all processes. By hand: `sysinfo` knows the `/proc` of this machine alone, and a recording
/// of another one must be read as well.
fn processes(root: &Root) -> Vec<String> {
    let entries = fs::read_dir(root.path("proc")).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| line(root, &format!("proc/{pid}/comm"))).collect()
}

/// The units that some target of `/etc/systemd/system` wants: what `systemctl enable` links.
fn wanted(root: &Root) -> Vec<String> {
    let names = |dir: std::path::PathBuf| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>()
    };
    let top = root.path("etc/systemd/system");
    let targets = names(top.clone()).into_iter().filter(|name| name.ends_with(".wants"));
    targets.flat_map(|target| names(top.join(target))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn competing_writers_are_told_by_group_process_or_link() {
        let tree = Tree::new();
        assert_eq!(find(tree.root()), []);
        tree.write("proc/77/comm", "power-profiles-\n");
        tree.write("proc/78/comm", "nothing\n");
        tree.write("proc/self/comm", "tuned\n");
        tree.write("sys/fs/cgroup/system.slice/thermald.service/cgroup.procs", "");
        tree.link(
            "/usr/lib/systemd/system/tuned.service",
            "etc/systemd/system/multi-user.target.wants/tuned.service",
        );

        let found: Vec<_> = find(tree.root()).iter().map(|r| (r.name, r.running, r.enabled)).collect();
        let expected =
            [("power-profiles-daemon", true, false), ("thermald", true, false), ("tuned", false, true)];

        assert_eq!(found, expected);
    }

    #[test]
    fn names_of_processes_are_as_long_as_the_kernel_keeps_them() {
        assert!(KNOWN.iter().all(|(_, process, _)| process.len() <= 15));
        assert!(KNOWN.is_sorted_by_key(|(name, ..)| name));
    }
}
