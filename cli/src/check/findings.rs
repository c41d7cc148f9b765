//! What was found, one line a probe, each with a verdict, the reason and the remedy.

use std::collections::BTreeMap;

use super::state::State::{Degraded, Missing, Untested, Works};
use super::state::overcommitted;
use super::state::{Finding, STEPS, State, Watched, channel, finding};
use ballast_hw::probe::{CgroupMode, Kubelet, Machine, PolicyGroup, Process, Setting};

pub(super) fn all(machine: &Machine, sensors: &[Watched]) -> Vec<Finding> {
    let mut found = vec![kernel(machine), virtual_machine(machine)];
    found.extend(cpus(machine));
    found.extend(cpufreq(machine));
    found.extend(rapl(machine, sensors));
    found.extend(meters(machine, sensors));
    found.push(bmc(machine));
    found.extend(cgroups(machine));
    found.extend(domains(machine));
    found.extend(services(machine));
    found.extend(machine.kubelet.iter().flat_map(kubelet));
    found.extend(competing_writers(machine));
    found.extend(process(machine));
    found
}

fn kernel(machine: &Machine) -> Finding {
    match (&machine.kernel, &machine.boot_id) {
        (Some(release), Some(_)) => finding("kernel", Works, format!("Linux {release}")),
        (release, _) => {
            let found = release.as_deref().map_or("no release".into(), |r| format!("Linux {r}"));
            finding("kernel", Missing, found)
                .because("without /proc/sys/kernel/random/boot_id the agent does not start")
        }
    }
}

fn virtual_machine(machine: &Machine) -> Finding {
    if !machine.virtual_machine {
        return finding("virtual", Works, "not a virtual machine");
    }
    finding("virtual", Degraded, "a virtual machine")
        .because("its frequency and its power are its host's: the agent runs dry here")
        .remedy("run the agent on the host; or, to try it all the same, actuate_in_vm = true")
}

fn cpus(machine: &Machine) -> Vec<Finding> {
    let cpus = &machine.cpus;
    if let Some(error) = &cpus.error {
        return vec![finding("cpus", Missing, "no topology").because(error)];
    }
    let shape = format!(
        "{} CPUs ({}), {} clock domains of up to {}, {} packages, {} NUMA nodes",
        cpus.count, cpus.online, cpus.clock_domains, cpus.widest_domain, cpus.packages, cpus.nodes
    );

    let mut found = vec![finding("cpus", Works, shape)];
    let smt = match (cpus.smt, cpus.smt_control.as_deref()) {
        (Some(true), _) => "on: the threads of a core are throttled together".to_owned(),
        (Some(false), control) => format!("off ({})", control.unwrap_or("no control")),
        (None, _) => "not told by the kernel".to_owned(),
    };

    found.push(finding("cpus.smt", Works, smt));

    if !cpus.offline.is_empty() {
        let offline = finding("cpus.offline", Degraded, format!("offline: {}", cpus.offline));
        found.push(
            offline
                .because("not throttled, and not given to VMs, until they are online")
                .remedy("echo 1 > /sys/devices/system/cpu/cpuN/online, then restart the agent"),
        );
    }

    found
}

fn mhz(khz: u32) -> u32 {
    khz / 1000
}

fn cpufreq(machine: &Machine) -> Vec<Finding> {
    let scaling = &machine.scaling;
    if let Some(error) = &scaling.error {
        let none = finding("cpufreq", Missing, "no frequency can be set").because(error);
        return vec![none.remedy(if machine.virtual_machine {
            "none in a virtual machine: run the agent on the host"
        } else {
            "in the firmware's setup give power control to the operating system (HPE: OS Control \
             Mode; Dell: Performance Per Watt (OS)); or load the driver: modprobe acpi-cpufreq"
        })];
    }

    let mut findings: Vec<_> =
        scaling.groups.iter().flat_map(|group| [driver(group), ladder(group)]).collect();
    findings.extend(limits(machine));

    if !scaling.read_only.is_empty() {
        let text = format!("policies {} cannot be written", scaling.read_only);
        findings.push(
            finding("cpufreq.writable", Missing, text)
                .because("not root, or /sys is read-only here")
                .remedy("run as root; in a unit: ProtectKernelTunables=no"),
        );
    }

    findings
}

fn driver(group: &PolicyGroup) -> Finding {
    let governor = group.governor.as_deref().unwrap_or("no governor");
    let text = format!("policies {}: {}, {governor}", group.policies, group.driver);
    match group.known {
        true => finding("cpufreq.driver", Works, text),
        false => finding("cpufreq.driver", Degraded, text)
            .because("this driver is not known to obey limits: the agent only watches"),
    }
}

fn ladder(group: &PolicyGroup) -> Finding {
    let kind = if group.table { "the driver's table" } else { "synthesised, 100 MHz apart" };
    let ladder = format!(
        "policies {}: {} steps from {} to {} MHz ({kind}); reference by {}, hardware {} to {} MHz",
        group.policies,
        group.steps,
        mhz(group.floor_khz),
        mhz(group.reference_khz),
        group.reference_from,
        mhz(group.min_khz),
        mhz(group.max_khz),
    );
    let mut steps = finding("cpufreq.ladder", Works, ladder);
    if group.steps < STEPS {
        steps.state = Degraded;
        steps.reason = Some("so few steps that the draw moves in jumps".to_owned());
        let amd = "on AMD with CPPC: amd_pstate=active on the kernel's command line";
        steps.remedy = (group.driver == "acpi-cpufreq").then(|| amd.to_owned());
    }
    steps
}

/// Who else holds frequencies down.
fn limits(machine: &Machine) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Some(text) = count(&machine.scaling.limited) {
        found.push(
            finding("cpufreq.limits", Degraded, text)
                .because("somebody has limited them: an agent that runs, a competing writer, or the firmware")
                .remedy("look for competing writers below; what is there when the agent starts is kept"),
        );
    }

    if let Some(text) = count(&machine.scaling.bios_limited) {
        found.push(
            finding("cpufreq.bios_limit", Degraded, text)
                .because("the firmware limits them (_PPC): heat, a power cap, a lost supply")
                .remedy("look at the BMC's event log; our limit and this one: the lower one counts"),
        );
    }

    if found.is_empty() {
        found.push(finding("cpufreq.limits", Works, "nobody limits them"));
    }
    found
}

fn count<P>(limited: &BTreeMap<P, u32>) -> Option<String> {
    let lowest = limited.values().min().copied()?;
    Some(format!("{} policies, down to {} MHz", limited.len(), mhz(lowest)))
}

fn seen<'a>(sensors: &'a [Watched], name: &str) -> Option<&'a Watched> {
    sensors.iter().find(|watched| watched.sensor == name)
}

/// What watching a sensor has shown.
fn refreshed(sensors: &[Watched], name: &str) -> (State, String, Option<String>) {
    let Some(Watched { refresh, .. }) = seen(sensors, name) else {
        return (Untested, String::new(), Some("not watched: its refresh is not known".to_owned()));
    };
    let slow = format!("longest read {} ms", refresh.slowest_read_ms);
    if refresh.blocked {
        return (Degraded, String::new(), Some("a read blocked for longer than 6 s".to_owned()));
    }
    match refresh.refresh_ms {
        Some(ms) if ms > 1000.0 => {
            let reason = format!("slow: set sample_ms to {:.0} or more", ms.ceil());
            (Degraded, format!(", refresh {ms} ms, {slow}"), Some(reason))
        }
        Some(ms) => (Works, format!(", refresh {ms} ms, {slow}"), None),
        None => {
            let reason = format!("moved {} times: frozen, or slower than was watched", refresh.changes);
            (Degraded, format!(", {slow}"), Some(reason))
        }
    }
}

fn rapl(machine: &Machine, sensors: &[Watched]) -> Vec<Finding> {
    if machine.rapl.is_empty() {
        return vec![
            finding("rapl", Missing, "no RAPL").because("no intel-rapl zone in /sys/class/powercap").remedy(
                if machine.virtual_machine {
                    "none in a virtual machine"
                } else {
                    "on x86: modprobe intel_rapl_msr (AMD since Zen as well)"
                },
            ),
        ];
    }

    let mut found = Vec::new();
    for zone in &machine.rapl {
        let id = format!("rapl.{}", zone.name);
        let used = zone.name.starts_with("package-") || zone.name == "dram";
        let limits: Vec<_> = (zone.constraints.iter())
            .map(|c| format!("{} {} W", c.name, c.limit_uw.unwrap_or(0) / 1_000_000))
            .collect();
        let limits = if limits.is_empty() { "no limits".to_owned() } else { limits.join(", ") };

        if let Some(error) = &zone.energy_error {
            found.push(
                finding(id, Missing, format!("{}: {limits}", zone.folder))
                    .because(error)
                    .remedy("energy counters are root's alone (0400): run as root"),
            );
        } else if !used {
            let what = format!("{}: not used: part of a package, or everything again", zone.folder);
            found.push(finding(id, Works, what));
        } else {
            let (state, refresh, reason) = refreshed(sensors, &zone.name);
            let text = format!("{}: {limits}{refresh}", zone.folder);
            found.push(Finding { reason, ..finding(id, state, text) });
        }

        if zone.name.starts_with("package-") && zone.enabled == Some(false) && !zone.constraints.is_empty() {
            found.push(
                finding(format!("rapl.{}.enabled", zone.name), Untested, "limits are switched off")
                    .because("by default on some machines; also what a lock of the firmware looks like")
                    .remedy("ballast check --write-test"),
            );
        }
    }

    found
}

fn meters(machine: &Machine, sensors: &[Watched]) -> Vec<Finding> {
    if machine.meters.is_empty() {
        return vec![
            finding("meter", Missing, "no power sensor in hwmon")
                .because("no powerN_input and no powerN_average in /sys/class/hwmon")
                .remedy("modprobe acpi_power_meter; or the driver of the board's PMBus or INA device"),
        ];
    }

    let findings = machine.meters.iter().map(|meter| {
        let name = channel(meter);
        let id = format!("meter.{name}");
        if let Some(error) = &meter.error {
            return finding(id, Missing, "cannot be read").because(error);
        }
        let watts = meter.microwatts.unwrap_or(0) as f64 / 1e6;

        if watts <= 0.0 {
            return finding(id, Missing, format!("{watts:.1} W")).because("that is no draw");
        }
        let (state, refresh, reason) = refreshed(sensors, &name);
        let average = meter.averaged_ms.map(|ms| format!(", averaged over {ms} ms")).unwrap_or_default();
        let cap = if meter.cap { ", has a limit" } else { "" };
        let text = format!("{watts:.1} W{refresh}{average}{cap}");

        Finding { reason, ..finding(id, state, text) }
    });
    findings.collect()
}

fn bmc(machine: &Machine) -> Finding {
    let bmc = &machine.bmc;
    match &bmc.device {
        Some(device) if bmc.usable => {
            finding("ipmi", Untested, device.clone()).because("not asked for a power reading (DCMI)")
        }
        Some(device) => finding("ipmi", Missing, device.clone())
            .because("this process may not use it")
            .remedy("run as root; in a unit: DeviceAllow=/dev/ipmi0 rw"),
        None if bmc.interface => finding("ipmi", Missing, "an interface, and no device")
            .because("the driver of /dev/ipmi0 is not loaded")
            .remedy("modprobe ipmi_devintf"),
        None => finding("ipmi", Missing, "none")
            .because("no BMC that this kernel knows")
            .remedy("with a BMC: modprobe ipmi_si ipmi_devintf; without, nothing is lost but DCMI"),
    }
}

fn cgroups(machine: &Machine) -> Vec<Finding> {
    let cgroups = &machine.cgroups;
    let mode = match cgroups.mode {
        CgroupMode::Unified => finding("cgroup", Works, "version 2"),
        mode => {
            let text = match mode {
                CgroupMode::Hybrid => "version 1 with an empty version 2 beside it",
                CgroupMode::Legacy => "version 1",
                _ => "none",
            };

            finding("cgroup", Missing, text)
                .because("VMs are moved and limited by cgroup version 2 alone")
                .remedy("systemd.unified_cgroup_hierarchy=1 on the kernel's command line")
        }
    };

    let mut found = vec![mode];

    for controller in ["cpu", "cpuset"] {
        let id = format!("cgroup.{controller}");
        let offered = cgroups.controllers.iter().any(|name| name == controller);
        found.push(match (offered, cgroups.has(controller)) {
            (_, true) => finding(id, Works, "groups below the root have it"),
            (true, false) => finding(id, Degraded, "offered, and not handed down")
                .because("groups below the root have no files of it")
                .remedy(format!("echo +{controller} > /sys/fs/cgroup/cgroup.subtree_control")),
            (false, false) => finding(id, Missing, "not offered")
                .because("the kernel has no such controller, or version 1 has it"),
        });
    }

    found
}

/// Whether libvirt's domains can each have cores of their own.
fn domains(machine: &Machine) -> Option<Finding> {
    let (domains, cpus) = (machine.domains, machine.cpus.count);
    let text = format!("{} domains with {} vCPUs on {cpus} CPUs", domains.count, domains.vcpus);
    match overcommitted(machine) {
        _ if domains.count == 0 => None,
        false => Some(finding("domains", Works, text)),
        true => Some(
            finding("domains", Degraded, text)
                .because(
                    "not every domain can have cores of its own: some would be left out, and run anywhere",
                )
                .remedy("[pools] enabled = true: domains share cores by class (docs/operate/vms.md)"),
        ),
    }
}

fn services(machine: &Machine) -> Vec<Finding> {
    let services = machine.services;
    let buses = [
        ("systemd", services.systemd, "no watchdog, and no slices to move VMs by"),
        ("dbus", services.dbus, "CPU sets are not set through systemd"),
        ("libvirt", services.libvirt, "VMs are configured by file, by the API or by their cgroups"),
    ];
    let findings = buses.map(|(id, is_running, without)| match is_running {
        true => finding(id, Works, "runs"),
        false => finding(id, Missing, "none").because(without),
    });
    findings.into()
}

/// What of a Kubernetes node's pods can be slowed.
fn kubelet(kubelet: &Kubelet) -> Vec<Finding> {
    let policy = kubelet.cpu_manager_policy.as_deref();
    let manager = match (policy, &kubelet.error) {
        (_, Some(error)) => finding("kubelet.cpu_manager", Missing, "its state cannot be read")
            .because(error)
            .remedy("run as root; a state of another version: report it"),
        (Some("static"), None) => {
            let pods = kubelet.exclusive_pods;
            let [own, shared] = [&kubelet.exclusive_cpus, &kubelet.shared_cpus]
                .map(|cpus| if cpus.is_empty() { "none" } else { cpus.as_str() });
            let text =
                format!("static: {pods} pods with CPUs of their own ({own}), shared by others: {shared}");
            finding("kubelet.cpu_manager", Works, text)
        }
        (policy, None) => {
            finding("kubelet.cpu_manager", Missing, format!("policy {}", policy.unwrap_or("not told")))
                .because("every pod shares all CPUs, and no core is a non-user-facing pod's alone")
                .remedy(
                    "cpuManagerPolicy: static, and whole CPUs in requests; or cpuCFSQuota: false for cpu.max",
                )
        }
    };
    let socket = if kubelet.pod_resources {
        finding("kubelet.pod_resources", Works, "its socket is there")
    } else {
        finding("kubelet.pod_resources", Missing, "no socket")
            .because("the CPUs of pods are read from cpu_manager_state alone")
            .remedy("Kubernetes 1.20 or newer; mount /var/lib/kubelet/pod-resources in the agent's pod")
    };
    let quota = if kubelet.leaves_cpu_max {
        finding("kubelet.cpu_max", Works, "cpuCFSQuota: false: cpu.max of pods is nobody's")
    } else {
        finding("kubelet.cpu_max", Missing, "the kubelet owns cpu.max of its pods")
            .because("pods that share CPUs cannot be limited")
            .remedy("cpuCFSQuota: false in its configuration, where limits of CPU need not hold")
    };
    vec![manager, socket, quota]
}

fn competing_writers(machine: &Machine) -> Vec<Finding> {
    if machine.competing_writers.is_empty() {
        return vec![finding("competing_writers", Works, "none")];
    }
    let findings = machine.competing_writers.iter().map(|writer| {
        let found = match (writer.running, writer.enabled) {
            (true, true) => "runs, and is started at boot",
            (true, false) => "runs",
            _ => "is started at boot, does not run now",
        };

        let name = writer.name;
        let (reason, remedy) = match writer.does {
            Setting::Frequency => {
                ("it sets frequencies too: the last writer wins", format!("systemctl disable --now {name}"))
            }
            Setting::PowerLimit => (
                "it sets power limits too: the last writer wins",
                format!("systemctl disable --now {name}; or [server_limit] enabled = false"),
            ),
            Setting::CpuSets => (
                "it puts the CPU sets of its pods back: nothing below kubepods is ever moved",
                "leave pods to it, and VMs to Ballast".to_owned(),
            ),
        };

        finding(format!("competing_writer.{name}"), Degraded, found).because(reason).remedy(remedy)
    });
    findings.collect()
}

fn process(machine: &Machine) -> Vec<Finding> {
    let process = &machine.process;
    let user = match process.uid {
        Some(0) => finding("process.user", Works, "root"),
        Some(uid) => finding("process.user", Degraded, format!("user {uid}"))
            .because("what this user may not read or write is told as missing")
            .remedy("sudo ballast check"),
        None => finding("process.user", Untested, "not told"),
    };

    let realtime = match process.realtime_priority {
        _ if process.can(Process::SYS_NICE) => {
            finding("process.realtime", Works, "any priority (CAP_SYS_NICE)")
        }
        None => finding("process.realtime", Untested, "not told"),
        Some(0) => finding("process.realtime", Degraded, "none allowed")
            .because("on a busy machine an alert waits for its turn")
            .remedy("in a unit: LimitRTPRIO=50"),
        Some(_) => finding("process.realtime", Works, "allowed by the limit"),
    };

    let locked = match process.locked_memory {
        _ if process.can(Process::IPC_LOCK) => finding("process.memlock", Works, "any amount (CAP_IPC_LOCK)"),
        None => finding("process.memlock", Untested, "not told"),
        Some(bytes) if bytes < MEMLOCK => {
            finding("process.memlock", Degraded, format!("{} KiB", bytes / 1024))
                .because("the agent does not fit: under memory pressure it may be paged out")
                .remedy("in a unit: LimitMEMLOCK=infinity")
        }
        Some(_) => finding("process.memlock", Works, "enough"),
    };

    vec![user, realtime, locked]
}

/// What an agent needs to lock.
const MEMLOCK: u64 = 64 << 20;
