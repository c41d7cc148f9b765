//! What the kernel's files say, and virsh.

use ballast_hw::discovery::Pattern;
use ballast_hw::probe::{cpu_model, in_vm};
use ballast_hw::rapl::Energy;
use ballast_hw::supplies::SupplySensor as _;
use ballast_hw::{
    CapSpec, Cgroup, CpuList, CpuMax, CpuTime, Cpufreq, Floor, HwmonCap, HwmonSensor, MatchSpec, PmbusSupply,
    PowerMeter, RaplCap, RaplMeter, Topology, UsageMeter, boot_id, pins,
};
use ballast_types::{Cap as _, Instant, Watts};

use super::machine::Machine;
use super::{parts, says_something};

/// More than any server draws.
const MAX: Watts = Watts::from_whole(10_000);

pub fn cpu_list(bytes: &[u8]) {
    if let Some(list) = CpuList::from_mask(bytes) {
        assert_eq!(CpuList::from_mask(&list.to_mask()), Some(list));
    }

    match String::from_utf8_lossy(bytes).parse::<CpuList>() {
        Ok(list) => {
            assert_eq!(list.to_string().parse::<CpuList>().as_ref(), Ok(&list));
            assert!(list.iter().all(|cpu| cpu <= 8191));
        }
        Err(error) => says_something(error),
    }
}

const GROUP: &str = "machine.slice/vm.scope";
const GROUP_FILES: [&str; 14] = [
    "sys/fs/cgroup/machine.slice/vm.scope/cpu.stat",
    "sys/fs/cgroup/machine.slice/vm.scope/cpu.max",
    "sys/fs/cgroup/machine.slice/vm.scope/memory.current",
    "sys/fs/cgroup/machine.slice/vm.scope/memory.peak",
    "sys/fs/cgroup/machine.slice/vm.scope/memory.events",
    "sys/fs/cgroup/machine.slice/vm.scope/cgroup.events",
    "sys/fs/cgroup/machine.slice/vm.scope/cpuset.cpus",
    "sys/fs/cgroup/machine.slice/vm.scope/cpuset.cpus.effective",
    "sys/fs/cgroup/machine.slice/vm.scope/cpuset.cpus.partition",
    "proc/self/cgroup",
    "pattern",
    "sys/fs/cgroup/machine.slice/vm.scope/memory.stat",
    "sys/fs/cgroup/machine.slice/vm.scope/cpu.pressure",
    "sys/fs/cgroup/machine.slice/vm.scope/memory.pressure",
];

/// A VM's cgroup, and a pattern that may find the group.
pub fn cgroup(bytes: &[u8]) {
    thread_local!(static MACHINE: Machine = Machine::new());
    MACHINE.with(|machine| {
        machine.fill(&GROUP_FILES, bytes);
        let root = machine.root();
        let group = Cgroup::at(&root, GROUP).expect("a path of a group");

        let mut meter = UsageMeter::new(group.clone());
        let times = group.times().map_err(says_something);
        for ms in [0, 200] {
            let sampled = meter.sample(Instant::from_millis(ms), 4);
            assert_eq!(sampled.is_ok(), times.is_ok());
        }
        let _ = (group.memory(), group.counters(times.as_ref().ok()));
        group.populated().map_or_else(says_something, drop);
        group.effective().map_or_else(says_something, drop);
        group.is_member().unwrap_or_else(says_something);
        let inode = group.inode().expect("a group that is there");
        group.kill(&root, inode).unwrap_or_else(says_something);

        let text = String::from_utf8_lossy(parts(bytes).nth(1).unwrap_or_default());
        if let Ok(limit) = text.parse::<CpuMax>() {
            assert_eq!(limit.to_string().parse::<CpuMax>(), Ok(limit));
            assert_eq!(limit.millicores().is_none(), limit.quota_us.is_none());
        }

        let pattern = String::from_utf8_lossy(parts(bytes).nth(10).unwrap_or_default());
        if let Ok(pattern) = pattern.parse::<Pattern>()
            && let Ok(found) = pattern.find(&root)
        {
            for group in found {
                assert!(GROUP.starts_with(&*group.path), "{group:?}");
                let _ = group.size(group.cpu_max);
            }
        }
    });
}

const METER_FILES: [&str; 24] = [
    "sys/class/powercap/intel-rapl:0/name",
    "sys/class/powercap/intel-rapl:0/max_energy_range_uj",
    "sys/class/powercap/intel-rapl:0/energy_uj",
    "sys/class/powercap/intel-rapl:0:0/name",
    "sys/class/powercap/intel-rapl:0:0/max_energy_range_uj",
    "sys/class/powercap/intel-rapl:0:0/energy_uj",
    "sys/class/powercap/intel-rapl:0/constraint_0_name",
    "sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw",
    "sys/class/powercap/intel-rapl:0/constraint_0_max_power_uw",
    "sys/class/powercap/intel-rapl:0/constraint_0_time_window_us",
    "sys/class/powercap/intel-rapl:0/enabled",
    "sys/class/hwmon/hwmon0/power1_label",
    "sys/class/hwmon/hwmon0/power1_input",
    "sys/class/hwmon/hwmon0/power1_average_interval",
    "sys/class/hwmon/hwmon0/power1_cap",
    "sys/class/hwmon/hwmon0/power1_cap_min",
    "sys/class/hwmon/hwmon0/power1_cap_max",
    "sys/class/hwmon/hwmon0/power2_label",
    "sys/class/hwmon/hwmon0/power2_input",
    "sys/class/hwmon/hwmon0/in1_label",
    "sys/class/hwmon/hwmon0/in1_input",
    "sys/class/hwmon/hwmon1/in1_input",
    "sys/class/hwmon/hwmon1/curr1_input",
    // What the package's counter shows at the second look.
    "later",
];

/// Energy counters, power channels, supplies and the caps beside them.
pub fn meters(bytes: &[u8]) {
    thread_local!(static MACHINE: Machine = {
        let machine = Machine::new();
        machine.write("sys/class/hwmon/hwmon0/name", b"psu\n");
        machine.write("sys/class/hwmon/hwmon1/name", b"ina\n");
        machine
    });
    MACHINE.with(|machine| {
        machine.fill(&METER_FILES, bytes);
        let root = machine.root();

        for name in ["psu", "ina"] {
            let spec = MatchSpec { name: name.into(), label: (name == "psu").then(|| "pin".into()) };
            let mut meter = PowerMeter::new(HwmonSensor::new(&root, spec), MAX);
            match meter.sample(Instant::ZERO) {
                Ok((watts, _)) => assert!(watts > Watts::ZERO && watts <= MAX, "{watts}"),
                Err(error) => says_something(error),
            }
            let _ = meter.averaged_over();
        }
        match PmbusSupply::new(&root, "psu").read(Instant::ZERO) {
            Ok((supply, _)) => assert!(supply.input.is_none_or(|watts| watts >= Watts::ZERO), "{supply:?}"),
            Err(error) => says_something(error),
        }

        let spec = MatchSpec { name: "psu".into(), label: Some("pin".into()) };
        let mut cap = HwmonCap::new(&root, CapSpec::Device(spec));
        if let (Ok(state), Ok(_)) = (cap.read(), cap.range()) {
            cap.set(Watts::from_whole(150), &state).unwrap_or_else(says_something);
            cap.put_back(&state).unwrap_or_else(says_something);
        }
        if let Ok(Some(mut cap)) = RaplCap::find(&root, Watts::from_whole(50))
            && let Ok(state) = cap.read()
        {
            cap.set(Watts::from_whole(150), &state).unwrap_or_else(says_something);
            cap.put_back(&state).unwrap_or_else(says_something);
        }

        let Ok(mut rapl) = RaplMeter::find(&root, MAX).map_err(says_something) else { return };
        rapl.sample(Instant::ZERO).map_or_else(says_something, drop);
        machine.write(METER_FILES[2], parts(bytes).nth(23).unwrap_or_default());
        match rapl.sample(Instant::from_millis(200)) {
            Ok(Energy::Power(watts)) => assert!(watts >= Watts::ZERO && watts <= MAX, "{watts}"),
            Ok(Energy::Implausible(watts)) => assert!(watts > MAX, "{watts}"),
            Ok(Energy::Started | Energy::Stale) => {}
            Err(error) => says_something(error),
        }
    });
}

const CPU_FILES: [&str; 19] = [
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/present",
    "sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
    "sys/devices/system/cpu/cpu1/topology/thread_siblings_list",
    "sys/devices/system/cpu/cpu0/topology/physical_package_id",
    "sys/devices/system/node/node0/cpulist",
    "sys/devices/system/cpu/cpufreq/policy0/related_cpus",
    "sys/devices/system/cpu/cpufreq/policy0/freqdomain_cpus",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_driver",
    "sys/devices/system/cpu/cpufreq/policy0/cpuinfo_min_freq",
    "sys/devices/system/cpu/cpufreq/policy0/cpuinfo_max_freq",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq",
    "sys/devices/system/cpu/cpufreq/policy0/base_frequency",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_available_frequencies",
    "sys/devices/system/cpu/cpufreq/policy1/related_cpus",
    "proc/sys/kernel/random/boot_id",
    "proc/cpuinfo",
    "proc/stat",
    // What /proc/stat shows at the second look.
    "later",
];

pub fn cpus(bytes: &[u8]) {
    thread_local!(static MACHINE: Machine = Machine::new());
    MACHINE.with(|machine| {
        machine.fill(&CPU_FILES, bytes);
        let root = machine.root();

        match Topology::read(&root) {
            Ok(topology) => {
                for domain in topology.domains() {
                    assert!(domain.cpus.iter().all(|cpu| topology.of(cpu) == Some(domain)), "{domain:?}");
                }
            }
            Err(error) => says_something(error),
        }
        match Cpufreq::discover(&root, Floor::Half) {
            Ok(cpufreq) => {
                assert!(cpufreq.cores().iter().all(|core| core.ladder.floor() <= core.ladder.max()));
                let _ = (cpufreq.status(), cpufreq.alarms(), cpufreq.originals());
            }
            Err(error) => says_something(error),
        }

        boot_id(&root).map_or_else(says_something, drop);
        let _ = (in_vm(&root), cpu_model(&root));
        let Ok(before) = CpuTime::read(&root).map_err(says_something) else { return };
        machine.write("proc/stat", parts(bytes).nth(18).unwrap_or_default());
        let Ok(after) = CpuTime::read(&root).map_err(says_something) else { return };
        let busy = after.busy_since(&before);
        assert!(busy.is_none_or(|share| (0.0..=1.0).contains(&share)), "{busy:?}");
    });
}

pub fn virsh(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut tables = text.split('\0');
    let mut table = || tables.next().unwrap_or_default();
    let Some(pins) = pins(table(), table(), table()) else { return };

    let lists = pins.vcpus.values().chain(pins.iothreads.values()).chain([&pins.emulator]);
    for list in lists {
        let list = list.parse::<CpuList>().expect("a CPU list");
        assert!(!list.is_empty(), "{pins:?}");
    }
    assert!(!pins.vcpus.is_empty(), "a domain without a vCPU");
}
