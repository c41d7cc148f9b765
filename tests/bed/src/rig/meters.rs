//! What the plant's instruments show, written when they refresh.

use core::time::Duration;
use std::path::{Path, PathBuf};

use ballast_sim::plant::{CpuStops, Plant, SupplyState};
use ballast_types::{Instant, KiloHertz, Microjoules};

use crate::rig::cpu_text::{cpu_stat, cpu_time};
use crate::rig::error::RigError;
use crate::rig::files::Publisher;
use crate::rig::tree::{ENERGY_RANGE_UJ, microwatts, slot_dir, supply_dir};
use crate::rig::{chassis_root, server_root, vm_cgroup};

/// Between two updates of energy and CPU time counters. Hardware counts every millisecond; readers here
/// come five to ten times a second, so that a difference of theirs is true to a tenth.
const COUNTERS: Duration = Duration::from_millis(10);
/// Between two updates of frequencies.
const FREQUENCIES: Duration = Duration::from_millis(200);
/// A healthy feed, in millivolts.
const FEED_MV: u32 = 230_000;

#[derive(Debug)]
pub(crate) struct Meters {
    servers: Vec<ServerFiles>,
    supplies: Vec<SupplyFiles>,
    counters_due: Instant,
    frequencies_due: Instant,
}

#[derive(Debug)]
struct ServerFiles {
    /// The server's own meter and its slot's.
    power: [PathBuf; 2],
    refreshed_at: Option<Instant>,
    /// Per package: CPU, memory.
    energy: Vec<[PathBuf; 2]>,
    cores: Vec<(PathBuf, KiloHertz)>,
    stat: PathBuf,
    /// `cpu.stat`, with the CPU time and stops that it shows.
    vms: Vec<(PathBuf, u64, CpuStops)>,
}

#[derive(Debug)]
struct SupplyFiles {
    input: PathBuf,
    output: PathBuf,
    feed: PathBuf,
    shown: Option<(Instant, SupplyState)>,
}

impl Meters {
    pub(crate) fn new(dir: &Path, plant: &Plant) -> Self {
        let spec = plant.spec();
        let chassis = chassis_root(dir);
        let servers = spec.servers.iter().enumerate().map(|(n, server)| {
            let root = server_root(dir, &server.id);
            let cpufreq = root.join("sys/devices/system/cpu/cpufreq");
            let class = root.join("sys/class/powercap");
            let zone = |name: String| class.join(name).join("energy_uj");
            let packages = 0..server.sockets.max(1);

            ServerFiles {
                power: [
                    root.join("sys/class/hwmon/hwmon0/power1_input"),
                    slot_dir(&chassis, spec.supplies.len(), n).join("power1_input"),
                ],
                refreshed_at: None,
                energy: packages
                    .map(|p| [zone(format!("intel-rapl:{p}")), zone(format!("intel-rapl:{p}:0"))])
                    .collect(),
                cores: (server.cores.iter())
                    .map(|core| {
                        let file = cpufreq.join(format!("policy{}/scaling_cur_freq", core.id));
                        (file, core.ladder.max())
                    })
                    .collect(),
                stat: root.join("proc/stat"),
                vms: (server.vms.iter())
                    .map(|vm| {
                        let group = root.join("sys/fs/cgroup").join(vm_cgroup(&vm.id));
                        (group.join("cpu.stat"), 0, CpuStops::default())
                    })
                    .collect(),
            }
        });

        let supplies = (0..spec.supplies.len()).map(|n| {
            let dir = supply_dir(&chassis, n);
            SupplyFiles {
                input: dir.join("power1_input"),
                output: dir.join("power2_input"),
                feed: dir.join("in1_input"),
                shown: None,
            }
        });

        Self {
            servers: servers.collect(),
            supplies: supplies.collect(),
            counters_due: Instant::ZERO,
            frequencies_due: Instant::ZERO,
        }
    }

    pub(crate) fn show(&mut self, plant: &Plant, to: &Publisher) -> Result<(), RigError> {
        let now = plant.now();
        for (n, supply) in self.supplies.iter_mut().enumerate() {
            supply.show(plant, n, to)?;
        }
        for (n, server) in self.servers.iter_mut().enumerate() {
            server.show_power(plant, n, to)?;
        }
        if now >= self.counters_due {
            self.counters_due = now + COUNTERS;
            for (n, server) in self.servers.iter_mut().enumerate() {
                server.show_energy(plant, n, to)?;
                server.show_cpu_times(plant, n, to)?;
            }
        }

        if now >= self.frequencies_due {
            self.frequencies_due = now + FREQUENCIES;
            for (n, server) in self.servers.iter_mut().enumerate() {
                server.show_frequencies(plant, n, to)?;
            }
        }

        Ok(())
    }
}

impl SupplyFiles {
    fn show(&mut self, plant: &Plant, n: usize, to: &Publisher) -> Result<(), RigError> {
        let reading = plant.supply_meter(n);
        let is = (reading.refreshed_at, reading.state);
        if self.shown == Some(is) {
            return Ok(());
        }
        self.shown = Some(is);
        let feed = if reading.state == SupplyState::Failed { 0 } else { FEED_MV };
        to.replace(&self.feed, &format!("{feed}\n"))?;
        to.replace(&self.output, &format!("{}\n", microwatts(reading.output)))?;
        to.replace(&self.input, &format!("{}\n", microwatts(reading.input)))
    }
}

impl ServerFiles {
    fn show_power(&mut self, plant: &Plant, n: usize, to: &Publisher) -> Result<(), RigError> {
        let reading = plant.server_meter(n);
        if self.refreshed_at == Some(reading.refreshed_at) {
            return Ok(());
        }
        self.refreshed_at = Some(reading.refreshed_at);
        let text = format!("{}\n", microwatts(reading.watts));
        self.power.iter().try_for_each(|file| to.replace(file, &text))
    }

    fn show_energy(&self, plant: &Plant, n: usize, to: &Publisher) -> Result<(), RigError> {
        let text = |energy: Microjoules| format!("{}\n", energy.get() % (ENERGY_RANGE_UJ + 1));
        for (package, [cpu, dram]) in (0..).zip(&self.energy) {
            to.replace(cpu, &text(plant.package_energy(n, package)))?;
            to.replace(dram, &text(plant.dram_energy(n, package)))?;
        }
        Ok(())
    }

    fn show_frequencies(&mut self, plant: &Plant, n: usize, to: &Publisher) -> Result<(), RigError> {
        let spec = &plant.spec().servers[n];
        for ((file, shown), core) in self.cores.iter_mut().zip(&spec.cores) {
            let khz = plant.core_khz(n, core.id);
            if khz != *shown {
                *shown = khz;
                to.replace(file, &format!("{}\n", khz.get()))?;
            }
        }
        Ok(())
    }

    fn show_cpu_times(&mut self, plant: &Plant, n: usize, to: &Publisher) -> Result<(), RigError> {
        to.replace(&self.stat, &format!("{}\n", cpu_time(plant.cpu_us(n))))?;
        let spec = &plant.spec().servers[n];
        for ((file, shown, stopped), vm) in self.vms.iter_mut().zip(&spec.vms) {
            let (usage, stops) = (plant.vm_usage_us(n, &vm.id), plant.vm_stops(n, &vm.id));
            if usage != *shown || stops != *stopped {
                (*shown, *stopped) = (usage, stops);
                to.replace(file, &cpu_stat(usage, &stops))?;
            }
        }
        Ok(())
    }
}
