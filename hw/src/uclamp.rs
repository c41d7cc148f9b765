//! Whether `cpu.uclamp.max` slows what runs on this machine.
//!
//! Source: Documentation/scheduler/sched-util-clamp.rst, "Uclamp value range" and "Limitations". Only schedutil asks for
//! frequencies by it, and a driver that leaves frequencies to the processor (`intel_pstate` and amd-pstate in active
//! mode) has no schedutil.

use std::fs;
use std::path::PathBuf;

use crate::cgroup::{CLAMP_FILE, ClampScale};
use crate::cpufreq::Cpufreq;
use crate::error::{HwError, Operation};
use crate::root::{optional, read_text, write_value};
use crate::{Driver, Root};

const GOVERNOR: &str = "\"schedutil\": no other governor knows of cpu.uclamp.max";
const DRIVER: &str = "a driver that lets a governor choose, such as acpi-cpufreq, intel_cpufreq \
                      (intel_pstate=passive) or amd-pstate (amd_pstate=passive)";
const KERNEL: &str = "a kernel with CONFIG_UCLAMP_TASK_GROUP";

/// How frequencies become clamps here; the kernel counts them from now on. Fails if clamps do nothing: the kernel has
/// none, or not every policy of `cpufreq` is schedutil's.
pub fn ready(root: &Root, cpufreq: &Cpufreq) -> Result<ClampScale, HwError> {
    for policy in cpufreq.policies() {
        let file =
            |name: &str| root.path(&format!("sys/devices/system/cpu/cpufreq/policy{}/{name}", policy.id));
        if matches!(policy.driver, Driver::IntelPstate | Driver::AmdPstateEpp) {
            return Err(HwError::value(
                &file("scaling_driver"),
                Operation::Read,
                policy.driver.name(),
                DRIVER,
            ));
        }
        let path = file("scaling_governor");
        let governor = read_text(&path)?;
        if governor.trim() != "schedutil" {
            return Err(HwError::value(&path, Operation::Read, governor.trim(), GOVERNOR));
        }
    }
    if let Some(group) = controlled(root) {
        let path = group.join(CLAMP_FILE);
        if !path.exists() {
            return Err(HwError::io(&path, Operation::Read, KERNEL, std::io::ErrorKind::NotFound.into()));
        }
        // The kernel counts clamps from the first write since boot (`sched_uclamp_used` in kernel/sched/core.c), and from
        // then on a task once it has slept: without this a VM that never sleeps would run on through the first cap.
        write_value(&path, read_text(&path)?.trim())?;
    }

    let release = optional(read_text(&root.path("proc/sys/kernel/osrelease")))?.unwrap_or_default();
    let ranges = cpufreq.policies().map(|it| (it.ladder.max().get(), it.cpuinfo_max.get()));
    // Where policies differ, the one whose turbo is the highest: nothing runs faster than asked for.
    let range =
        ranges.min_by(|a, b| (u64::from(a.0) * u64::from(b.1)).cmp(&(u64::from(b.0) * u64::from(a.1))));
    let (reference, highest) = range.unwrap_or((1, 1));
    Ok(ClampScale::of(&release, reference, highest))
}

/// Whether groups with CPU control have no clamps; `None` where no group below the root has CPU control, so that it is
/// told once a VM is looked at. The root itself never has the file.
pub(crate) fn is_missing(root: &Root) -> Option<bool> {
    controlled(root).map(|group| !group.join(CLAMP_FILE).exists())
}

/// One of the groups below the root with CPU control.
fn controlled(root: &Root) -> Option<PathBuf> {
    let mut groups =
        fs::read_dir(root.path("sys/fs/cgroup")).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    groups.find(|group| group.join("cpu.max").exists())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Floor;
    use crate::testing::Tree;

    #[test]
    fn clamps_must_be_there_and_schedutil_must_obey_them() {
        for (driver, governor, file, says) in [
            ("acpi-cpufreq", "schedutil", "cpu.uclamp.max", None),
            ("intel_cpufreq", "schedutil", "cpu.uclamp.max", None),
            ("intel_pstate", "powersave", "cpu.uclamp.max", Some("found \"intel_pstate\" in")),
            ("acpi-cpufreq", "ondemand", "cpu.uclamp.max", Some("found \"ondemand\" in")),
            ("acpi-cpufreq", "schedutil", "cpu.uclamp.min", Some("CONFIG_UCLAMP_TASK_GROUP")),
        ] {
            let tree = Tree::new();
            tree.policy(0);
            for (name, text) in [("scaling_driver", driver), ("scaling_governor", governor)] {
                tree.write(&format!("sys/devices/system/cpu/cpufreq/policy0/{name}"), text);
            }
            tree.folder("sys/fs/cgroup/a.slice", &[("cpu.max", "max 100000"), (file, "max")]);
            let cpufreq = Cpufreq::discover(tree.root(), Floor::Half).unwrap();
            match (ready(tree.root(), &cpufreq), says) {
                (Ok(scale), None) => assert_eq!(scale, ClampScale::of("", 2_400_000, 3_500_000)),
                (Err(error), Some(says)) => assert!(error.to_string().contains(says), "{error}"),
                (result, _) => panic!("{driver} {governor} {file}: {result:?}"),
            }
        }
    }
}
