//! Copies of a machine's files: a folder tree that stands in for it as a [`Root`].
//!
//! A bounded list of what Ballast reads, and no more. Serial numbers, host names, network addresses and
//! the names of VMs are not on the list. Links are copied as links, so that what is one device stays one.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};

use serde::Serialize;

use super::competing_writers::KNOWN;
use crate::Root;
use crate::error::{HwError, Operation};
use crate::kubelet::{CpuState, KubeletConfig};
use crate::systemd::unit;

/// What is copied, below the root; `*` stands for any part of one name. A folder is made, not entered.
const FILES: [&str; 49] = [
    "proc/cpuinfo",
    "proc/sys/kernel/osrelease",
    "proc/sys/kernel/random/boot_id",
    "proc/self/status",
    "proc/self/limits",
    "run/systemd/system",
    "run/dbus/system_bus_socket",
    "run/libvirt/libvirt-sock",
    "run/libvirt/virtqemud-sock",
    "dev/ipmi0",
    "dev/ipmi/0",
    "dev/ipmidev/0",
    "sys/class/ipmi/ipmi*",
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/present",
    "sys/devices/system/cpu/possible",
    "sys/devices/system/cpu/offline",
    "sys/devices/system/cpu/smt/*",
    "sys/devices/system/cpu/intel_pstate/*",
    "sys/devices/system/cpu/amd_pstate/*",
    "sys/devices/system/cpu/cpufreq/boost",
    "sys/devices/system/cpu/cpufreq/policy*/*",
    "sys/devices/system/cpu/cpu*/topology/*_list",
    "sys/devices/system/cpu/cpu*/topology/*_id",
    "sys/devices/system/cpu/cpu*/acpi_cppc/*",
    "sys/devices/system/node/node*/cpulist",
    "sys/class/powercap/intel-rapl*/name",
    "sys/class/powercap/intel-rapl*/enabled",
    "sys/class/powercap/intel-rapl*/energy_uj",
    "sys/class/powercap/intel-rapl*/max_energy_range_uj",
    "sys/class/powercap/intel-rapl*/constraint_*",
    "sys/class/hwmon/hwmon*/device",
    "sys/class/hwmon/hwmon*/name",
    "sys/class/hwmon/hwmon*/power*",
    "sys/class/hwmon/hwmon*/in*",
    "sys/class/hwmon/hwmon*/curr*",
    "sys/class/hwmon/hwmon*/device/name",
    "sys/class/hwmon/hwmon*/device/power*",
    "var/lib/kubelet/cpu_manager_state",
    "var/lib/kubelet/config.yaml",
    "var/lib/kubelet/pod-resources/kubelet.sock",
    "sys/fs/cgroup/cgroup.controllers",
    "sys/fs/cgroup/cgroup.subtree_control",
    "sys/fs/cgroup/unified/cgroup.controllers",
    "sys/fs/cgroup/cpu",
    "sys/fs/cgroup/cpuset",
    "sys/fs/cgroup/machine.slice/cgroup.controllers",
    "sys/fs/cgroup/machine.slice/cgroup.subtree_control",
    "sys/fs/cgroup/machine.slice/machine-qemu*.scope/libvirt/vcpu*",
];
/// And, of each competing writer: its group, and what has it started at boot.
const OF_WRITERS: [&str; 2] = ["sys/fs/cgroup/system.slice/", "etc/systemd/system/*.wants/"];

/// Parts of names that tell which machine this is.
const PRIVATE: [&str; 4] = ["serial", "oem_info", "asset", "uuid"];
/// Lines of `/proc` that do.
const PRIVATE_LINES: [&str; 2] = ["Serial", "Name:"];
/// No file on the list is longer; of `/proc/cpuinfo` the first CPU's paragraph is enough.
const MOST_BYTES: u64 = 64 * 1024;
/// A machine of 8192 CPUs has so many files at most.
const MOST_FILES: usize = 500_000;

/// What was copied, and what could not be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Manifest {
    pub version: u32,
    /// Files, with their sizes in bytes.
    pub files: Vec<(String, u64)>,
    /// Links, and where they lead.
    pub links: Vec<(String, String)>,
    /// Files that are there and could not be read, and why.
    pub unreadable: Vec<(String, String)>,
    /// Whether there were more files than are copied.
    pub cut_short: bool,
}

/// Copies the machine below `root` into the new or empty folder `to`, with `manifest.json`. Fails if the
/// folder is not empty, or cannot be written.
pub fn record(root: &Root, to: &Path) -> Result<Manifest, HwError> {
    let failed = |e| HwError::io(to, Operation::Write, "a folder that is new or empty", e);
    fs::create_dir_all(to).map_err(failed)?;
    if fs::read_dir(to).map_err(failed)?.next().is_some() {
        return Err(failed(io::ErrorKind::DirectoryNotEmpty.into()));
    }
    let mut copy =
        Copy { root, to, manifest: Manifest { version: 1, ..Manifest::default() }, done: BTreeSet::new() };

    let writers =
        OF_WRITERS.iter().flat_map(|dir| KNOWN.iter().map(move |(name, ..)| format!("{dir}{name}.service")));
    for pattern in FILES.iter().map(ToString::to_string).chain(writers) {
        for path in matching(root, &pattern) {
            copy.path(&path).map_err(failed)?;
        }
    }

    let text = serde_json::to_string_pretty(&copy.manifest).map_err(|e| failed(e.into()))?;
    fs::write(to.join("manifest.json"), text + "\n").map_err(failed)?;

    Ok(copy.manifest)
}

/// Every path below the root that matches, links followed, ascending.
fn matching(root: &Root, pattern: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    for part in pattern.split('/') {
        let below = |base: &str, name: &str| {
            if base.is_empty() { name.to_owned() } else { format!("{base}/{name}") }
        };
        found = if let Some((start, end)) = part.split_once('*') {
            let fits = |name: &str| {
                name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
            };

            let names = |base: &String| {
                let entries = fs::read_dir(root.path(base)).into_iter().flatten().flatten();
                let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
                let mut paths: Vec<_> =
                    names.filter(|name| fits(name)).map(|name| below(base, &name)).collect();
                paths.sort_unstable();

                paths
            };

            found.iter().flat_map(names).collect()
        } else {
            found.iter().map(|base| below(base, part)).collect()
        };
    }

    found.retain(|path| root.path(path).symlink_metadata().is_ok());

    found
}

struct Copy<'a> {
    root: &'a Root,
    to: &'a Path,
    manifest: Manifest,
    done: BTreeSet<PathBuf>,
}

impl Copy<'_> {
    fn path(&mut self, path: &str) -> io::Result<()> {
        if self.done.len() >= MOST_FILES {
            self.manifest.cut_short = true;
            return Ok(());
        }

        let name = path.rsplit('/').next().unwrap_or(path);
        if PRIVATE.iter().any(|private| name.contains(private)) {
            return Ok(());
        }
        let Some(real) = self.follow(Path::new(path))? else { return Ok(()) };

        if !self.done.insert(real.clone()) {
            return Ok(());
        }
        let (from, to) = (self.root.path(&real.to_string_lossy()), self.to.join(nameless(&real)));
        let kind = fs::metadata(&from);

        if kind.as_ref().is_ok_and(fs::Metadata::is_dir) {
            return fs::create_dir_all(to);
        }

        // Sockets and devices only have to be there.
        let is_file = kind.as_ref().is_ok_and(fs::Metadata::is_file);
        let text = if is_file { text(&from) } else { Ok(String::new()) };
        let text = match text {
            Ok(text) => text,
            Err(error) => {
                self.manifest.unreadable.push((shown(&real), error.to_string()));
                return Ok(());
            }
        };

        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        self.manifest.files.push((shown(&real), text.len() as u64));

        fs::write(to, text)
    }

    /// The path without links; each link on the way is copied. `None` if one leads nowhere, or is
    /// a link that nobody has to follow.
    fn follow(&mut self, path: &Path) -> io::Result<Option<PathBuf>> {
        let mut real = PathBuf::new();
        let mut rest: Vec<_> = parts(path);
        let mut links = 0;
        rest.reverse();

        while let Some(part) = rest.pop() {
            if part == ".." {
                real.pop();
                continue;
            }

            real.push(&part);
            let from = self.root.path(&real.to_string_lossy());

            if !from.is_symlink() {
                continue;
            }
            links += 1;
            let target = fs::read_link(&from)?;
            self.link(&real, &target)?;

            if links > 40 || !from.exists() {
                return Ok(None);
            }
            if target.is_absolute() {
                real.clear();
            } else {
                real.pop();
            }

            rest.extend(parts(&target).into_iter().rev());
        }

        Ok(Some(real))
    }

    fn link(&mut self, at: &Path, target: &Path) -> io::Result<()> {
        let to = self.to.join(at);
        if to.is_symlink() {
            return Ok(());
        }
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        // An absolute link would lead out of the copy.
        let target = if target.is_absolute() {
            let up = at.components().skip(1).map(|_| "..").collect::<PathBuf>();
            up.join(target.strip_prefix("/").unwrap_or(target))
        } else {
            target.to_owned()
        };
        self.manifest.links.push((shown(at), shown(&target)));
        symlink(target, to)
    }
}

/// The path without what VMs are called.
fn nameless(path: &Path) -> PathBuf {
    let part = |part: Component<'_>| {
        let name = part.as_os_str().to_string_lossy();
        match unit::domain_of(&name) {
            Some((id, _)) => format!(r"machine-qemu\x2d{id}\x2dvm.scope").into(),
            None => part.as_os_str().to_owned(),
        }
    };
    path.components().map(part).collect()
}

fn parts(path: &Path) -> Vec<String> {
    let part = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
        Component::ParentDir => Some("..".to_owned()),
        _ => None,
    };
    path.components().filter_map(part).collect()
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// A file's text without what tells which machine this is.
fn text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let shared = |line: &&str| !PRIVATE_LINES.iter().any(|private| line.starts_with(private));
    match path.file_name().and_then(|name| name.to_str()) {
        Some("cpuinfo") => {
            let first = text.split("\n\n").next().unwrap_or_default();
            Ok(first.lines().filter(shared).map(|line| format!("{line}\n")).collect())
        }
        Some("status") => Ok(text.lines().filter(shared).map(|line| format!("{line}\n")).collect()),
        Some("cpu_manager_state") => Ok(CpuState::nameless(&text).unwrap_or(text)),
        Some("config.yaml") => Ok(KubeletConfig::nameless(&text)),
        _ => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Machine;
    use crate::testing::{self, Tree};

    /// A machine with a PMBus supply and RAPL, laid out with links as sysfs is.
    fn machine() -> Tree {
        let tree = Tree::new();
        let i2c = "sys/devices/pci0000:00/i2c-3/3-0058";
        tree.policy(0);
        tree.write("sys/devices/system/cpu/online", "0\n");
        tree.write("proc/sys/kernel/osrelease", "6.12.1\n");
        tree.write("proc/cpuinfo", "processor\t: 0\nSerial\t\t: 1234\nflags\t\t: fpu\n\nprocessor\t: 1\n");

        tree.write("proc/self/status", &testing::status(0, 0xff));
        tree.write("etc/hostname", "secret\n");
        tree.write("sys/fs/cgroup/system.slice/tuned.service/cgroup.procs", "1\n");
        tree.write("sys/fs/cgroup/system.slice/secret.service/cgroup.procs", "2\n");
        tree.folder(
            &format!("{i2c}/hwmon/hwmon4"),
            &[("name", "pmbus"), ("power1_input", "240000000"), ("power1_label", "pin")],
        );

        tree.write(&format!("{i2c}/hwmon/hwmon4/power1_serial_number"), "ABC123");
        tree.link("../../../3-0058", &format!("{i2c}/hwmon/hwmon4/device"));
        tree.link("../../devices/pci0000:00/i2c-3/3-0058/hwmon/hwmon4", "sys/class/hwmon/hwmon4");
        tree.folder(
            "sys/devices/virtual/powercap/intel-rapl/intel-rapl:0",
            &[("name", "package-0"), ("energy_uj", "1")],
        );

        let to = "/sys/devices/virtual/powercap/intel-rapl/intel-rapl:0";
        let up = format!("../../..{to}");
        tree.link(&up, "sys/class/powercap/intel-rapl:0");

        tree
    }

    #[test]
    fn a_copy_stands_in_for_the_machine_and_tells_not_whose_it_is() {
        let tree = machine();
        let dir = tempfile::tempdir().unwrap();
        let manifest = record(tree.root(), dir.path()).unwrap();
        let copy = Root::at(dir.path());
        let facts = |root: &Root| format!("{:#?}", Machine::read(root));
        assert_eq!(facts(&copy), facts(tree.root()));

        for known in ["pmbus@3-0058", "tuned"] {
            assert!(facts(&copy).contains(known), "{}", facts(&copy));
        }
        assert!(!dir.path().join("sys/fs/cgroup/system.slice/secret.service").exists());
        assert!(!dir.path().join("etc/hostname").exists());
        assert_eq!(manifest.unreadable, []);
        let files: String = manifest
            .files
            .iter()
            .map(|(path, _)| fs::read_to_string(dir.path().join(path)).unwrap())
            .collect();
        for private in ["1234", "ABC123", "secret"] {
            assert!(!files.contains(private), "{private}");
        }
        assert!(!files.contains("processor\t: 1"), "one CPU's paragraph is enough");
    }

    #[test]
    fn a_folder_with_something_in_it_is_not_written_to() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("mine"), "").unwrap();
        let e = record(machine().root(), dir.path()).unwrap_err();
        assert!(e.to_string().contains("new or empty"), "{e}");
    }

    #[test]
    fn links_that_lead_nowhere_or_in_circles_stop_nothing() {
        let tree = machine();
        tree.link("hwmon9", "sys/class/hwmon/hwmon9");
        tree.link("gone", "sys/class/hwmon/hwmon8");
        let dir = tempfile::tempdir().unwrap();
        let manifest = record(tree.root(), dir.path()).unwrap();
        assert!(manifest.files.iter().any(|(path, _)| path.ends_with("power1_input")));
    }
}
