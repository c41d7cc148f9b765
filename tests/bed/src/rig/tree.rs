//! The files of every machine, as they are before anybody writes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use ballast_sim::plant::{CpuStops, Plant, ServerSpec};
use ballast_types::{KiloHertz, Ladder, Watts};

use crate::rig::cpu_text::{cpu_stat, cpu_time};
use crate::rig::error::RigError;
use crate::rig::{
    METER_LABEL, METER_NAME, OWN_LOAD, chassis_root, server_root, slot_label, supply_device, vm_cgroup,
};

/// The counter range of current server packages, in microjoules.
pub(crate) const ENERGY_RANGE_UJ: u64 = 262_143_328_850;
/// Steps of a driver without a table.
const STEP: KiloHertz = KiloHertz::from_mhz(100);

/// A package's highest limit, which is what it has at start: above what the plant can draw.
pub(crate) fn package_max_uw(server: &ServerSpec) -> u64 {
    let watts = server.model.full_w / f64::from(server.sockets.max(1));
    // A float to an integer saturates.
    (watts / 5.0).ceil() as u64 * 5_000_000
}

/// A slot's cap range in microwatts: from the server's idle draw to above its highest.
pub(crate) fn slot_range_uw(server: &ServerSpec) -> (u64, u64) {
    let whole = |watts: f64| watts.ceil() as u64 * 1_000_000;
    (whole(server.model.idle_w), whole(server.model.full_w * 1.5))
}

pub(crate) fn create(dir: &Path, plant: &Plant) -> Result<(), RigError> {
    let spec = plant.spec();
    for (n, server) in spec.servers.iter().enumerate() {
        let root = server_root(dir, &server.id);
        boot_id(&root, n + 1)?;
        cpus(&root, server)?;
        rapl(&root, server)?;
        cgroups(&root, server)?;
        let meter = plant.server_meter(n).watts;
        let meter = [
            ("name", METER_NAME.to_owned()),
            ("power1_label", METER_LABEL.to_owned()),
            ("power1_input", microwatts(meter)),
        ];

        folder(&root.join("sys/class/hwmon/hwmon0"), &meter)?;
        folder(&root.join("proc"), &[("stat", cpu_time((0, 0)))])?;
        folder(&root, &[("load", OWN_LOAD.to_owned())])?;
    }

    let root = chassis_root(dir);
    boot_id(&root, 0)?;

    for n in 0..spec.supplies.len() {
        supply(&root, n)?;
    }
    for (n, server) in spec.servers.iter().enumerate() {
        let (min, max) = slot_range_uw(server);
        let files = [
            ("name", "adm1275".to_owned()),
            ("power1_label", slot_label(&server.id)),
            ("power1_input", microwatts(plant.server_meter(n).watts)),
            ("power1_cap", max.to_string()),
            ("power1_cap_min", min.to_string()),
            ("power1_cap_max", max.to_string()),
        ];

        folder(&slot_dir(&root, spec.supplies.len(), n), &files)?;
    }

    Ok(())
}

/// The hwmon folder of a power supply below the chassis's root.
pub(crate) fn supply_dir(root: &Path, supply: usize) -> std::path::PathBuf {
    root.join(format!("sys/class/hwmon/hwmon{supply}"))
}

/// The hwmon folder of a slot controller below the chassis's root; they follow the supplies.
pub(crate) fn slot_dir(root: &Path, supplies: usize, server: usize) -> std::path::PathBuf {
    root.join(format!("sys/class/hwmon/hwmon{}", supplies + server))
}

/// A power as hwmon shows it.
pub(crate) fn microwatts(watts: Watts) -> String {
    watts.milli().saturating_mul(1000).to_string()
}

/// What the driver of these cores is: one with a table where the steps are not even.
fn driver(ladder: &Ladder) -> &'static str {
    let even = Ladder::stepped(ladder.floor(), ladder.max(), STEP).is_ok_and(|even| even == *ladder);
    if even { "intel_cpufreq" } else { "acpi-cpufreq" }
}

fn boot_id(root: &Path, machine: usize) -> Result<(), RigError> {
    // One boot per run of the rig: a new tree is a new boot.
    let run = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
    let (high, mid, low) = (run >> 32, (run >> 16) & 0xffff, run & 0xffff);
    let id = format!("{high:08x}-{mid:04x}-4{:03x}-8000-{machine:012x}", low & 0xfff);
    folder(&root.join("proc/sys/kernel/random"), &[("boot_id", id)])
}

fn cpus(root: &Path, server: &ServerSpec) -> Result<(), RigError> {
    let dir = root.join("sys/devices/system/cpu");
    let all = list(server.cores.iter().map(|core| u32::from(core.id.0)));
    folder(&dir, &[("online", all.clone()), ("present", all.clone()), ("possible", all)])?;

    for (n, core) in server.cores.iter().enumerate() {
        let (cpu, ladder) = (core.id.to_string(), &core.ladder);
        let (low, high) = (ladder.floor().get().to_string(), ladder.max().get().to_string());
        let policy = dir.join(format!("cpufreq/policy{cpu}"));
        let mut files = vec![
            ("affected_cpus", cpu.clone()),
            ("related_cpus", cpu.clone()),
            ("scaling_driver", driver(ladder).to_owned()),
            ("scaling_governor", "performance".to_owned()),
            ("scaling_available_governors", "performance schedutil".to_owned()),
            ("cpuinfo_min_freq", low.clone()),
            ("cpuinfo_max_freq", high.clone()),
            ("scaling_min_freq", low),
            ("scaling_max_freq", high.clone()),
            ("scaling_cur_freq", high.clone()),
        ];

        if driver(ladder) == "acpi-cpufreq" {
            let steps: Vec<_> = (0..ladder.len()).rev().map(|i| ladder.khz(i).get().to_string()).collect();
            files.push(("scaling_available_frequencies", steps.join(" ")));
        } else {
            files.push(("base_frequency", high));
        }

        folder(&policy, &files)?;

        let cpu_dir = dir.join(format!("cpu{cpu}"));
        let package = n * usize::from(server.sockets.max(1)) / server.cores.len();
        let topology = [
            ("physical_package_id", package.to_string()),
            ("core_id", cpu.clone()),
            ("thread_siblings_list", cpu.clone()),
        ];

        folder(&cpu_dir.join("topology"), &topology)?;
        let link = cpu_dir.join("cpufreq");
        symlink(format!("../cpufreq/policy{cpu}"), &link).map_err(RigError::file("link", &link))?;
    }

    Ok(())
}

fn rapl(root: &Path, server: &ServerSpec) -> Result<(), RigError> {
    let class = root.join("sys/class/powercap");
    let range = ENERGY_RANGE_UJ.to_string();
    for package in 0..server.sockets.max(1) {
        let max = package_max_uw(server).to_string();
        let files = [
            ("name", format!("package-{package}")),
            ("energy_uj", "0".to_owned()),
            ("max_energy_range_uj", range.clone()),
            ("enabled", "1".to_owned()),
            ("constraint_0_name", "long_term".to_owned()),
            ("constraint_0_power_limit_uw", max.clone()),
            ("constraint_0_max_power_uw", max),
            ("constraint_0_time_window_us", "999424".to_owned()),
        ];

        folder(&class.join(format!("intel-rapl:{package}")), &files)?;
        let files = [
            ("name", "dram".to_owned()),
            ("energy_uj", "0".to_owned()),
            ("max_energy_range_uj", range.clone()),
            ("enabled", "0".to_owned()),
        ];

        folder(&class.join(format!("intel-rapl:{package}:0")), &files)?;
    }

    Ok(())
}

fn cgroups(root: &Path, server: &ServerSpec) -> Result<(), RigError> {
    let top = root.join("sys/fs/cgroup");
    folder(&top, &[("cgroup.controllers", "cpuset cpu io memory pids".to_owned())])?;
    for vm in &server.vms {
        let cpus = list(vm.cores.iter().map(|core| u32::from(core.0)));
        let files = [
            ("cpuset.cpus", cpus.clone()),
            ("cpuset.cpus.effective", cpus),
            ("cpu.max", "max 100000".to_owned()),
            ("cpu.max.burst", "0".to_owned()),
            ("cpu.stat", cpu_stat(0, &CpuStops::default()).trim_end().to_owned()),
            ("cgroup.procs", String::new()),
            ("cgroup.events", "populated 1\nfrozen 0".to_owned()),
            ("cgroup.kill", String::new()),
        ];
        folder(&top.join(vm_cgroup(&vm.id)), &files)?;
    }
    Ok(())
}

fn supply(root: &Path, n: usize) -> Result<(), RigError> {
    let device = root.join("sys/bus/i2c/devices").join(supply_device(n));
    fs::create_dir_all(&device).map_err(RigError::file("make", &device))?;
    let dir = supply_dir(root, n);
    // The values follow with the first turn.
    let files = [
        ("name", "pmbus".to_owned()),
        ("in1_label", "vin".to_owned()),
        ("power1_label", "pin".to_owned()),
        ("power2_label", "pout1".to_owned()),
    ];
    folder(&dir, &files)?;
    let link = dir.join("device");
    let target = Path::new("../../../bus/i2c/devices").join(supply_device(n));
    symlink(target, &link).map_err(RigError::file("link", &link))
}

/// A folder with files of one line each; an empty text makes an empty file.
fn folder(dir: &Path, files: &[(&str, String)]) -> Result<(), RigError> {
    fs::create_dir_all(dir).map_err(RigError::file("make", dir))?;
    for (name, text) in files {
        let path = dir.join(name);
        let end = if text.is_empty() { "" } else { "\n" };
        fs::write(&path, format!("{text}{end}")).map_err(RigError::file("write", &path))?;
    }
    Ok(())
}

pub(crate) fn list(cpus: impl Iterator<Item = u32>) -> String {
    let mut cpus: Vec<_> = cpus.collect();
    cpus.sort_unstable();
    cpus.dedup();
    let runs = cpus.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [one] => one.to_string(),
        run => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    runs.collect::<Vec<_>>().join(",")
}
