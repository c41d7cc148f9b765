//! Limits by what VMs use, set by a real agent: after a history of two days, through a kill of a task and a kill of the agent.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ballast_agent::records::{Limits as DiskLimits, Store, folder};
use ballast_testbed::lab::{Lab, steady};
use ballast_testbed::rig::{server_root, vm_cgroup};
use ballast_types::wire::{Limits, VmStatus};
use ballast_types::{MemoryUse, ServerId, UsageBin, UsageRecord, VmStart};

ballast_testbed::wall_time![limits_are_set_raised_by_a_kill_and_put_back_by_a_release];

const SERVER: &str = "s01";
const MIB: u64 = 1 << 20;

/// Writes two days up to yesterday in which every VM used a fifth of its CPUs and 400 MiB.
fn write_history(lab: &Lab, root: &Path, vms: &[VmStatus]) {
    let boot_id = fs::read_to_string(root.join("proc/sys/kernel/random/boot_id")).expect("a boot");
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("a clock").as_secs();
    let today = UsageBin::of(now).day();
    let limits = DiskLimits { days: 22, bytes: 64_000_000 };
    let mut store = Store::open(&folder(&lab.home(SERVER).join("state")), limits).expect("a store");
    for day in today - 2..today {
        let mut records = vec![];
        for bin in (day * 288..(day + 1) * 288).map(UsageBin) {
            for vm in vms {
                let path = vm_cgroup(&vm.vm);
                let inode = root.join("sys/fs/cgroup").join(&path).metadata().expect("a group").ino();
                let start = VmStart::of(boot_id.trim(), &path, inode);
                let mut record = UsageRecord::empty(vm.vm.clone(), start, bin, vm.cores);
                (0..300).for_each(|_| record.cpu.add(u32::from(vm.cores) * 200));
                record.memory = MemoryUse { working_set_bytes: Some(400 * MIB), ..MemoryUse::default() };
                records.push(record);
            }
        }
        store.append(&records).expect("a disk");
    }
}

/// A group's files of memory, as of one that uses 300 MiB.
fn write_memory(group: &Path) {
    for (name, text) in [
        ("memory.high", "max\n"),
        ("memory.max", "max\n"),
        ("memory.current", "314572800\n"),
        ("memory.stat", "inactive_file 0\n"),
        ("memory.events", "high 0\noom_kill 0\n"),
        ("memory.pressure", "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"),
    ] {
        fs::write(group.join(name), text).expect("a file");
    }
}

fn bytes(file: &Path) -> u64 {
    let text = fs::read_to_string(file).expect("a file");
    text.trim().parse().unwrap_or(u64::MAX)
}

fn told(lab: &Lab) -> Limits {
    let (status, text) = lab.get(SERVER, "/v1/limits");
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).expect("limits")
}

fn limits_are_set_raised_by_a_kill_and_put_back_by_a_release() {
    let mut lab = Lab::new(steady(1, 1000, (0.2, 0.4)), "");
    let root = server_root(&lab.tree(), &ServerId::new(SERVER).expect("an id"));
    lab.start(SERVER);
    lab.wait("ready", |lab| lab.get(SERVER, "/readyz").0 == 200);
    assert!(told(&lab).vms.is_empty(), "off by default");
    let vms = lab.agent(SERVER).expect("a status").vms;
    lab.end(SERVER);

    write_history(&lab, &root, &vms);
    fs::write(root.join("proc/meminfo"), "MemTotal: 16777216 kB\n").expect("a file");
    let groups: Vec<PathBuf> =
        vms.iter().map(|vm| root.join("sys/fs/cgroup").join(vm_cgroup(&vm.vm))).collect();
    groups.iter().for_each(|group| write_memory(group));
    let before = lab.limits();
    let path = lab.config(SERVER);
    let config = fs::read_to_string(&path).expect("a config");
    fs::write(&path, format!("{config}\n[limits]\nmode = \"apply\"\napply_memory = true\n"))
        .expect("a config");

    lab.start(SERVER);
    lab.wait("ready again", |lab| lab.get(SERVER, "/readyz").0 == 200);
    lab.wait("every limit is in force", |lab| {
        let limits = told(lab);
        limits.vms.len() == vms.len() && limits.vms.values().all(|vm| vm.cpu.applied && vm.memory.applied)
    });
    let (first, limits) = (&groups[0], told(&lab));
    for (vm, group) in vms.iter().zip(&groups) {
        let cpu_max = fs::read_to_string(group.join("cpu.max")).expect("a file");
        let numbers: Vec<f64> =
            cpu_max.split_whitespace().map(|word| word.parse().expect("a limit")).collect();
        let limit = limits.vms[&vm.vm].cpu_limit_cores.expect("a limit");
        assert!((numbers[0] / numbers[1] - limit).abs() < 0.01, "{cpu_max}: {limit}");
        assert!((0.2..0.5).contains(&(limit / f64::from(vm.cores))), "{limit} of {}", vm.cores);
        assert_eq!(bytes(&group.join("memory.max")), bytes(&group.join("memory.high")));
        assert!((400 * MIB..700 * MIB).contains(&bytes(&group.join("memory.max"))), "{group:?}");
    }

    // A kill raises the limit long before the next record.
    let limited = bytes(&first.join("memory.max"));
    fs::write(first.join("memory.events"), "high 0\noom_kill 1\n").expect("a file");
    lab.wait("the limit is raised", |_| bytes(&first.join("memory.high")) >= limited / 5 * 6);
    assert!(bytes(&first.join("memory.max")) >= bytes(&first.join("memory.high")));
    lab.wait("the kill is counted", |lab| {
        lab.get(SERVER, "/metrics").1.contains("ballast_agent_memory_limits_held_total{why=\"killed\"} 1")
    });

    lab.kill(SERVER);
    let released = Lab::ballast(&["agent", "release", "--config", path.to_str().expect("UTF-8")]);
    assert!(released.status.success(), "{}", String::from_utf8_lossy(&released.stderr));
    lab.wait_restored(&before, "");
    let open = |group: &PathBuf| ["memory.high", "memory.max"].map(|file| bytes(&group.join(file)));
    assert!(groups.iter().all(|group| open(group) == [u64::MAX; 2]));
}
