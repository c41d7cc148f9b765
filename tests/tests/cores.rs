//! Real daemons and cores as real machines have them: with two threads, and with other writers about.

use std::fs;
use std::path::{Path, PathBuf};

use ballast_testbed::lab::{Lab, steady};
use ballast_types::VmClass;

ballast_testbed::wall_time![
    threads_of_a_core_are_capped_together_and_belong_to_one_vm,
    somebody_who_raises_caps_is_told_of_and_not_fought,
];

const CPUS: u32 = 40;
const FULL: &str = "2400000";

/// One server that would draw some 250 W on a budget of 210 W.
fn overloaded() -> Lab {
    Lab::new(steady(1, 210, (0.3, 0.95)), "")
}

fn cpu(lab: &Lab, file: &str) -> PathBuf {
    lab.tree().join("servers/s01/sys/devices/system/cpu").join(file)
}
fn cap(lab: &Lab, cpu_number: u32) -> PathBuf {
    cpu(lab, &format!("cpufreq/policy{cpu_number}/scaling_max_freq"))
}
fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}
fn capped(lab: &Lab) -> Vec<u32> {
    (0..CPUS).filter(|n| !["", FULL].contains(&read(&cap(lab, *n)).as_str())).collect()
}

fn threads_of_a_core_are_capped_together_and_belong_to_one_vm() {
    let mut lab = overloaded();
    let half = CPUS / 2;
    for n in 0..CPUS {
        let list = format!("{},{}\n", n % half, n % half + half);
        fs::write(cpu(&lab, &format!("cpu{n}/topology/thread_siblings_list")), list).unwrap();
    }

    lab.start_all();
    lab.wait("the server is capped, thread by thread alike", |lab| {
        let capped = capped(lab);
        let alike = |n: &u32| read(&cap(lab, *n)) == read(&cap(lab, (n + half) % CPUS));
        !capped.is_empty() && capped.iter().all(alike)
    });

    lab.wait("the budget holds", Lab::holds);

    let status = lab.agent("s01").unwrap();
    assert_eq!(status.cores.as_ref().map(|cores| cores.cores), Some(half as u16));
    let batch = status.vms.iter().filter(|vm| vm.class == VmClass::NonUserFacing);
    let cores: u16 = batch.map(|vm| vm.cores).sum();
    assert_eq!(cores, status.report.low_cores);

    for vm in &status.vms {
        let group = format!("sys/fs/cgroup/machine.slice/{}.scope/cpuset.cpus", vm.vm);
        let list = read(&lab.tree().join("servers/s01").join(group));
        let cpus: Vec<u32> = list.split(',').flat_map(range).collect();
        assert_eq!(cpus.len(), 2 * usize::from(vm.cores), "{}: {list}", vm.vm);
        assert!(cpus.iter().all(|n| cpus.contains(&((n + half) % CPUS))), "{}: {list}", vm.vm);
    }
}

fn range(part: &str) -> std::ops::RangeInclusive<u32> {
    let (first, last) = part.split_once('-').unwrap_or((part, part));
    first.parse().expect("a CPU")..=last.parse().expect("a CPU")
}

fn somebody_who_raises_caps_is_told_of_and_not_fought() {
    let mut lab = overloaded();
    let before = lab.limits();
    lab.start_all();
    lab.wait("the server is capped", |lab| !capped(lab).is_empty());
    lab.wait("an alarm", |lab| {
        // A competing writer that is stubborn: whatever is capped, it raises.
        for n in capped(lab) {
            fs::write(cap(lab, n), format!("{FULL}\n")).unwrap();
        }
        let alarms = lab.agent("s01").map(|agent| agent.alarms).unwrap_or_default();

        alarms.iter().any(|alarm| alarm.message.contains("above their cap"))
    });

    let (_, metrics) = lab.get("s01", "/metrics");
    let counted = metrics
        .lines()
        .find_map(|line| line.strip_prefix("ballast_agent_foreign_writes_total ")?.parse::<u64>().ok());
    assert!(counted > Some(0), "{metrics}");

    // It goes away: the controller finds the cores where it wants them again.
    lab.wait("the budget holds", Lab::holds);
    lab.end_all();

    // Where the competing writer kept the draw too high for too long, the slot's own cap outlives the manager.
    lab.wait_restored(&before, "power1_cap");
}
