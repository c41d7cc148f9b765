//! What daemons write: noticed by inotify, told to the plant, and shown as the kernel would show it.
//!
//! A kernel clamps a value into its range and shows what is in force, not what was asked for. So does
//! the rig: where the two differ, the file's text is replaced. Garbage, which a kernel would refuse,
//! leaves the old value in force and in the file.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ballast_sim::plant::{CpuQuota, Plant};
use ballast_types::{CoreId, KiloHertz, Ladder, VmId, Watts};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use tracing::warn;

use crate::rig::error::RigError;
use crate::rig::files::{Publisher, read, retired};
use crate::rig::tree::{list, package_max_uw, slot_dir, slot_range_uw};
use crate::rig::{OWN_LOAD, chassis_root, server_root, vm_cgroup};

#[derive(Debug)]
pub(crate) struct Actuators {
    inotify: Inotify,
    /// Which folder each watch is of; `None` is the folder of exchanged files.
    folders: HashMap<WatchDescriptor, Option<usize>>,
    /// Actuators per watched folder, by file name.
    names: Vec<HashMap<&'static str, usize>>,
    all: Vec<Actuator>,
}

#[derive(Debug)]
struct Actuator {
    server: usize,
    kind: Kind,
    path: PathBuf,
    /// What the file holds as far as we know.
    shown: String,
    /// What its exchanged predecessor held.
    retired: String,
}

#[derive(Debug)]
enum Kind {
    /// `scaling_max_freq`.
    CoreCap { core: CoreId, ladder: Ladder },
    /// `constraint_0_power_limit_uw`; `most` stands for no limit.
    PackageLimit { package: u16, most: u64 },
    /// `enabled` of a package; without it its limit does nothing.
    PackageEnabled { package: u16, most: u64, limit: PathBuf },
    /// `power1_cap`; `most` stands for none.
    SlotCap { least: u64, most: u64 },
    /// `cpuset.cpus`, with the file of what was granted.
    VmCpus { vm: usize, effective: PathBuf },
    /// `cgroup.kill`, with the file that shows whether anything is left.
    VmKill { vm: usize, events: PathBuf },
    /// `cpu.max`.
    VmBandwidth { vm: usize },
    /// `load`, which is ours and no kernel's.
    Load,
}

impl Actuators {
    /// Watches every writable file of the tree in `dir`.
    pub(crate) fn watch(dir: &Path, plant: &Plant) -> Result<Self, RigError> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)
            .map_err(RigError::file("watch", dir))?;
        let mut all = Self { inotify, folders: HashMap::new(), names: Vec::new(), all: Vec::new() };
        let spec = plant.spec();

        for (n, server) in spec.servers.iter().enumerate() {
            let root = server_root(dir, &server.id);
            for core in &server.cores {
                let kind = Kind::CoreCap { core: core.id, ladder: core.ladder.clone() };
                let policy = root.join(format!("sys/devices/system/cpu/cpufreq/policy{}", core.id));
                all.add(n, &policy, [("scaling_max_freq", kind)])?;
            }

            let most = package_max_uw(server);

            for package in 0..server.sockets.max(1) {
                let zone = root.join(format!("sys/class/powercap/intel-rapl:{package}"));
                let name = "constraint_0_power_limit_uw";
                let enabled = Kind::PackageEnabled { package, most, limit: zone.join(name) };
                let limit = Kind::PackageLimit { package, most };
                all.add(n, &zone, [(name, limit), ("enabled", enabled)])?;
            }

            for (index, vm) in server.vms.iter().enumerate() {
                let group = root.join("sys/fs/cgroup").join(vm_cgroup(&vm.id));
                let effective = group.join("cpuset.cpus.effective");
                let cpus = Kind::VmCpus { vm: index, effective };
                let kill = Kind::VmKill { vm: index, events: group.join("cgroup.events") };
                let bandwidth = Kind::VmBandwidth { vm: index };
                let files = [("cpuset.cpus", cpus), ("cpu.max", bandwidth), ("cgroup.kill", kill)];
                all.add(n, &group, files)?;
            }

            all.add(n, &root, [("load", Kind::Load)])?;
            let (least, most) = slot_range_uw(server);
            let slot = slot_dir(&chassis_root(dir), spec.supplies.len(), n);
            all.add(n, &slot, [("power1_cap", Kind::SlotCap { least, most })])?;
        }

        let wd = all.watch_folder(&retired(dir))?;
        all.folders.insert(wd, None);

        Ok(all)
    }

    fn add<const N: usize>(
        &mut self,
        server: usize,
        folder: &Path,
        files: [(&'static str, Kind); N],
    ) -> Result<(), RigError> {
        let wd = self.watch_folder(folder)?;
        let mut names = HashMap::new();
        for (name, kind) in files {
            let path = folder.join(name);
            let shown = read(&path)?;
            names.insert(name, self.all.len());
            self.all.push(Actuator { server, kind, path, shown, retired: String::new() });
        }
        self.folders.insert(wd, Some(self.names.len()));
        self.names.push(names);
        Ok(())
    }

    /// Only whole writes count: a file that was truncated and not yet written says nothing.
    fn watch_folder(&self, folder: &Path) -> Result<WatchDescriptor, RigError> {
        let mask = AddWatchFlags::IN_CLOSE_WRITE;
        self.inotify.add_watch(folder, mask).map_err(RigError::file("watch", folder))
    }

    /// Tells the plant what was written since the last call.
    pub(crate) fn obey(&mut self, plant: &mut Plant, to: &Publisher) -> Result<(), RigError> {
        let (mut written, mut late) = (BTreeSet::new(), BTreeSet::new());
        loop {
            let events = match self.inotify.read_events() {
                Ok(events) => events,
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => continue,
                Err(e) => return Err(RigError::file("watch", Path::new("the tree"))(e)),
            };

            for event in events {
                if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                    warn!("too many writes at once: every file is read again");
                    written.extend(0..self.all.len());
                    continue;
                }

                let name = event.name.as_deref().and_then(|name| name.to_str());
                match (self.folders.get(&event.wd), name) {
                    (Some(Some(folder)), Some(name)) => {
                        written.extend(self.names[*folder].get(name));
                    }
                    (Some(None), Some(name)) => {
                        late.extend(name.parse::<usize>().ok().filter(|n| *n < self.all.len()));
                    }
                    _ => {}
                }
            }
        }

        // Late writes come first: their writers have moved on since.
        for number in late {
            let text = read(&to.retired_file(number))?;
            let actuator = &mut self.all[number];
            if !text.is_empty() && text != actuator.retired {
                actuator.retired.clone_from(&text);
                let holds = actuator.shown.clone();
                actuator.take(number, text, holds, plant, to)?;
            }
        }

        for number in written {
            let actuator = &mut self.all[number];
            let text = read(&actuator.path)?;
            if !text.is_empty() && text != actuator.shown {
                actuator.take(number, text.clone(), text, plant, to)?;
            }
        }

        Ok(())
    }
}

impl Actuator {
    /// Takes one written text, and every one that is written while it is being taken. `holds` is what
    /// the file holds as far as we know.
    fn take(
        &mut self,
        number: usize,
        mut text: String,
        mut holds: String,
        plant: &mut Plant,
        to: &Publisher,
    ) -> Result<(), RigError> {
        loop {
            let in_force = match self.apply(text.trim(), plant, to)? {
                Some(value) => format!("{value}\n"),
                None => {
                    warn!(file = %self.path.display(), text, "not a value of this file: not obeyed");
                    self.shown.clone()
                }
            };

            self.shown.clone_from(&in_force);
            if holds == in_force {
                return Ok(());
            }

            // Whoever has opened the old file meanwhile is noticed by what it holds, now or later.
            let old = to.exchange(&self.path, number, &in_force)?;
            self.retired.clone_from(&old);

            if old == holds || old.is_empty() {
                return Ok(());
            }
            (text, holds) = (old, in_force);
        }
    }

    /// Does what one text says; answers with what is in force then, or `None` for garbage.
    fn apply(&self, text: &str, plant: &mut Plant, to: &Publisher) -> Result<Option<String>, RigError> {
        let number = text.parse::<u64>().ok();
        Ok(match &self.kind {
            Kind::CoreCap { core, ladder } => number.map(|khz| {
                let khz = KiloHertz::new(u32::try_from(khz).unwrap_or(u32::MAX));
                let khz = ladder.khz(ladder.at_or_below(khz));
                plant.set_core_cap(self.server, *core, khz);
                khz.get().to_string()
            }),
            Kind::PackageLimit { package, most } => {
                let enabled = read(&self.path.with_file_name("enabled"))?.trim() != "0";
                number.map(|uw| {
                    // The kernel masks what is too high; the rig is kinder and clamps.
                    let uw = uw.min(*most);
                    plant.set_package_limit(self.server, *package, limit(uw, *most, enabled));
                    uw.to_string()
                })
            }
            Kind::PackageEnabled { package, most, limit: file } => {
                let uw = read(file)?.trim().parse().unwrap_or(*most);
                matches!(text, "0" | "1").then(|| {
                    plant.set_package_limit(self.server, *package, limit(uw, *most, text == "1"));
                    text.to_owned()
                })
            }
            Kind::SlotCap { least, most } => number.map(|uw| {
                let uw = uw.clamp(*least, *most);
                plant.set_slot_cap(self.server, limit(uw, *most, true));
                uw.to_string()
            }),
            Kind::Load => self.load(text, plant),
            Kind::VmBandwidth { vm } => self.bandwidth(*vm, text, plant),
            Kind::VmCpus { vm, effective } => {
                self.cpus(*vm, text, plant, |granted| to.replace(effective, &format!("{granted}\n")))?
            }
            Kind::VmKill { vm, events } if text == "1" => {
                plant.stop_vm(self.server, &self.vm(*vm, plant));
                to.replace(events, "populated 0\nfrozen 0\n")?;
                Some(text.to_owned())
            }
            Kind::VmKill { .. } => None,
        })
    }

    fn vm(&self, index: usize, plant: &Plant) -> VmId {
        plant.spec().servers[self.server].vms[index].id.clone()
    }

    fn load(&self, text: &str, plant: &mut Plant) -> Option<String> {
        let share = match text {
            OWN_LOAD => None,
            share => Some(share.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share))?),
        };
        plant.keep_busy(self.server, share);
        Some(text.to_owned())
    }

    fn bandwidth(&self, vm: usize, text: &str, plant: &mut Plant) -> Option<String> {
        let (quota, period) = parse_bandwidth(text)?;
        let cores = |quota: u64| CpuQuota {
            cores: quota as f64 / period as f64,
            period: Duration::from_micros(period),
        };
        plant.set_vm_quota(self.server, &self.vm(vm, plant), quota.map(cores));

        let quota = quota.map_or("max".to_owned(), |quota| quota.to_string());
        Some(format!("{quota} {period}"))
    }

    /// Binds a VM to the CPUs of a list that there are, and shows which these are.
    fn cpus(
        &self,
        vm: usize,
        text: &str,
        plant: &mut Plant,
        show: impl FnOnce(&str) -> Result<(), RigError>,
    ) -> Result<Option<String>, RigError> {
        let Some(request) = parse_list(text) else { return Ok(None) };
        let all = || plant.spec().servers[self.server].cores.iter().map(|core| core.id);
        let mut granted: Vec<_> = all().filter(|core| request.contains(&u32::from(core.0))).collect();
        // Without any CPU of its own a group gets its parent's.
        if granted.is_empty() {
            granted = all().collect();
        }

        plant.set_vm_cores(self.server, &self.vm(vm, plant), &granted);
        show(&list(granted.iter().map(|core| u32::from(core.0))))?;

        Ok(Some(list(request.into_iter())))
    }
}

/// A limit in microwatts; the highest, or one that is disabled, is none.
fn limit(uw: u64, most: u64, enabled: bool) -> Option<Watts> {
    let milli = i64::try_from(uw / 1000).unwrap_or(i64::MAX);
    (enabled && uw < most).then_some(Watts::from_milli(milli))
}

/// Quota and period of a `cpu.max` in microseconds; `None` for garbage. A period that is left out is the
/// default; a kernel would keep the one in force.
fn parse_bandwidth(text: &str) -> Option<(Option<u64>, u64)> {
    let mut words = text.split_ascii_whitespace();
    let quota = match words.next()? {
        "max" => None,
        quota => Some(quota.parse().ok().filter(|us| *us >= 1000)?),
    };
    let period = words.next().map_or(Ok(100_000), str::parse).ok()?;
    (words.next().is_none() && (1000..=1_000_000).contains(&period)).then_some((quota, period))
}

/// The CPUs of a list in kernel form; `None` for garbage or an empty list.
fn parse_list(text: &str) -> Option<BTreeSet<u32>> {
    let cpu = |text: &str| text.trim().parse::<u32>().ok().filter(|cpu| *cpu < 8192);
    let mut cpus = BTreeSet::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(cpu(first)?..=cpu(last)?);
    }
    (!cpus.is_empty()).then_some(cpus)
}
