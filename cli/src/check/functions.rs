//! What can be done here: one verdict a function of Ballast.

use ballast_hw::probe::{CgroupMode, Kubelet, Machine, MeterFacts, RaplZone, Setting, Written};
use serde::Serialize;

use super::state::State::{Degraded, Missing, Untested, Works};
use super::state::{STEPS, State, Watched, channel};

#[derive(Clone, Debug, Serialize)]
pub(super) struct Function {
    pub(super) id: &'static str,
    pub(super) state: State,
    /// What it rests on, or why it is not better.
    pub(super) reason: String,
}

/// Every function, in the order of their weight.
pub(super) fn all(machine: &Machine, sensors: &[Watched], written: Option<&[Written]>) -> Vec<Function> {
    let pods = machine.kubelet.as_ref().map(|kubelet| ("pods", pods(kubelet)));
    let functions = [
        ("pstate", pstate(machine)),
        ("cpu_max", cpu_max(machine)),
        ("uclamp", uclamp(machine)),
        ("meter", meter(machine, sensors)),
        ("server_limit", server_limit(machine)),
        ("core_groups", core_groups(machine)),
    ];
    let tested_functions = functions.into_iter().chain(pods).map(|(id, (state, reason))| {
        let (state, reason) = tested(id, written.unwrap_or_default(), state, reason);
        Function { id, state, reason }
    });
    tested_functions.collect()
}

/// 2 if nothing can be throttled or nothing tells the draw; 1 if a function is missing or degraded; else
/// 0. What is untested counts as working.
pub(super) fn exit_code(functions: &[Function]) -> u8 {
    let missing = |id| functions.iter().any(|f| f.id == id && f.state == Missing);
    if (missing("pstate") && missing("cpu_max")) || missing("meter") {
        return 2;
    }
    // Nobody needs it: it is another way to do what the first two do.
    u8::from(functions.iter().any(|f| f.id != "uclamp" && matches!(f.state, Missing | Degraded)))
}

/// What the write test says of a function goes before what the files look like.
fn tested(id: &str, written: &[Written], state: State, reason: String) -> (State, String) {
    let of: Vec<_> = written.iter().filter(|written| written.function == id).collect();
    let failed: Vec<_> = of.iter().filter_map(|w| Some((w, w.error.as_ref()?))).collect();
    match failed.first() {
        Some((first, error)) => {
            let more = match failed.len() {
                1 => String::new(),
                n => format!(" (and {} more)", n - 1),
            };
            let state = if failed.len() == of.len() { Missing } else { Degraded };
            (state, format!("written and not obeyed: {}: {error}{more}", first.what))
        }
        None if !of.is_empty() && state == Untested => (Works, format!("{reason}; written and obeyed")),
        None => (state, reason),
    }
}

fn pstate(machine: &Machine) -> (State, String) {
    let scaling = &machine.scaling;
    if scaling.error.is_some() {
        return (Missing, "no cpufreq".to_owned());
    }
    if !scaling.read_only.is_empty() {
        return (Missing, format!("policies {} cannot be written", scaling.read_only));
    }
    let mut why = Vec::new();

    why.extend(runs_dry(machine));
    if let Some(group) = scaling.groups.iter().find(|group| !group.known) {
        why.push(format!("the driver {} is not known: the agent runs dry", group.driver));
    }
    if let Some(group) = scaling.groups.iter().find(|group| group.steps < STEPS) {
        why.push(format!("{} steps only: the draw moves in jumps", group.steps));
    }
    if !scaling.bios_limited.is_empty() || !scaling.limited.is_empty() {
        why.push("somebody holds frequencies down already".to_owned());
    }
    let mut others = machine.competing_writers.iter().filter(|r| r.running && r.does == Setting::Frequency);

    if let Some(writer) = others.next() {
        why.push(format!("{} sets frequencies too", writer.name));
    }
    verdict(&why, || {
        let domains = machine.cpus.clock_domains;
        let mut drivers: Vec<_> = scaling.groups.iter().map(|group| &group.driver[..]).collect();
        drivers.dedup();
        format!("{}, {domains} clock domains", drivers.join(", "))
    })
}

fn runs_dry(machine: &Machine) -> Option<String> {
    machine.virtual_machine.then(|| "in a virtual machine the agent runs dry".to_owned())
}

/// Works where nothing speaks against it.
fn verdict(why: &[String], works: impl FnOnce() -> String) -> (State, String) {
    if why.is_empty() { (Works, works()) } else { (Degraded, why.join("; ")) }
}

fn cpu_max(machine: &Machine) -> (State, String) {
    if machine.cgroups.mode != CgroupMode::Unified {
        return (Missing, "no cgroup version 2".to_owned());
    }
    if !machine.cgroups.has("cpu") {
        return (Missing, "the cpu controller is not handed down".to_owned());
    }
    verdict(runs_dry(machine).as_slice(), || "cpu.max of the VMs' groups".to_owned())
}

fn uclamp(machine: &Machine) -> (State, String) {
    if machine.cgroups.mode != CgroupMode::Unified {
        return (Missing, "no cgroup version 2".to_owned());
    }
    match machine.cgroups.uclamp {
        None => return (Missing, "the cpu controller is not handed down".to_owned()),
        Some(false) => return (Missing, "the kernel has no CONFIG_UCLAMP_TASK_GROUP".to_owned()),
        Some(true) => {}
    }
    let groups = &machine.scaling.groups;
    let Some(first) = groups.first() else { return (Missing, "no cpufreq".to_owned()) };
    if let Some(group) = groups.iter().find(|group| group.governor.as_deref() != Some("schedutil")) {
        let governor = group.governor.as_deref().unwrap_or("none");
        let why = format!("the governor is {governor} under {}, and not schedutil", group.driver);
        return (Missing, why);
    }
    verdict(runs_dry(machine).as_slice(), || {
        format!("cpu.uclamp.max of the VMs' groups, schedutil, {}", first.driver)
    })
}

/// The channel that measures the whole server best: its input, or the only one that there is.
pub(super) fn best(machine: &Machine) -> Option<&MeterFacts> {
    let meters = machine.meters.iter().filter(|meter| meter.microwatts.is_some_and(|uw| uw > 0));
    // What a supply gives, and what one rail draws, is not what the server draws.
    let whole = meters.filter(|meter| !is_labelled(meter, "pout"));
    whole.min_by_key(|meter| match is_labelled(meter, "pin") {
        true => 0,
        false if meter.name.starts_with("power_meter") => 1,
        false => 2,
    })
}

/// Channels that look like one supply's input each.
pub(super) fn inputs(machine: &Machine) -> usize {
    machine.meters.iter().filter(|meter| meter.error.is_none() && is_labelled(meter, "pin")).count()
}

fn is_labelled(meter: &MeterFacts, start: &str) -> bool {
    meter.label.as_deref().is_some_and(|label| label.starts_with(start))
}

fn meter(machine: &Machine, sensors: &[Watched]) -> (State, String) {
    if let Some(meter) = best(machine) {
        let name = channel(meter);
        let inputs = inputs(machine);
        if inputs > 1 {
            let why = format!("{inputs} supplies, and the agent reads one channel: {name} is a part");
            return (Degraded, why);
        }

        let watched = sensors.iter().find(|watched| watched.sensor == name);
        return match watched.map(|watched| watched.refresh.refresh_ms) {
            Some(Some(ms)) if ms <= 1000.0 => (Works, format!("{name}, every {ms} ms")),
            Some(Some(ms)) => (Degraded, format!("{name} refreshes every {ms} ms only")),
            Some(None) => (Degraded, format!("{name} has not moved twice while it was watched")),
            None => (Untested, name),
        };
    }

    if packages(machine).any(|zone| zone.energy_error.is_none()) {
        let why = "RAPL alone: it sees packages and memory, offset_w must say the rest";
        return (Degraded, why.to_owned());
    }

    match &machine.bmc.device {
        Some(device) if machine.bmc.usable => (Untested, format!("DCMI through {device}")),
        _ => (Missing, "no hwmon power sensor, no RAPL, no BMC".to_owned()),
    }
}

fn packages(machine: &Machine) -> impl Iterator<Item = &RaplZone> {
    machine.rapl.iter().filter(|zone| zone.name.starts_with("package-"))
}

fn server_limit(machine: &Machine) -> (State, String) {
    let long: Vec<_> = (packages(machine).flat_map(|zone| &zone.constraints))
        .filter(|constraint| constraint.name == "long_term")
        .collect();
    if let Some(cap) = machine.meters.iter().find(|meter| meter.cap) {
        return (Untested, format!("powerN_cap of {}", channel(cap)));
    }
    if long.is_empty() {
        return (Missing, "no RAPL limit (AMD has none), no power cap in hwmon".to_owned());
    }
    if long.iter().any(|constraint| !constraint.writable) {
        return (Missing, "RAPL limits cannot be written".to_owned());
    }
    let writer = machine.competing_writers.iter().find(|r| r.running && r.does == Setting::PowerLimit);
    match writer {
        Some(writer) => (Degraded, format!("{} sets RAPL limits too", writer.name)),
        None => (Untested, "RAPL, long_term; a lock shows at a write: --write-test".to_owned()),
    }
}

/// Whether RAPL's energy of a package can be read, and that of every package that there is.
pub(super) fn has_rapl_energy(machine: &Machine) -> bool {
    packages(machine).next().is_some() && packages(machine).all(|zone| zone.energy_error.is_none())
}

/// Whether pods of a Kubernetes node can be slowed.
fn pods(kubelet: &Kubelet) -> (State, String) {
    if kubelet.error.is_some() {
        return (Missing, "which CPUs are whose cannot be read".to_owned());
    }
    match (kubelet.cpu_manager_policy.as_deref() == Some("static"), kubelet.leaves_cpu_max) {
        (true, true) => (Works, "p-states of exclusive CPUs; or cpu.max of all pods".to_owned()),
        (true, false) => (Works, "p-states of the CPUs that pods have alone".to_owned()),
        (false, true) => (Degraded, "cpu.max of pods alone: no pod has CPUs of its own".to_owned()),
        (false, false) => (Missing, "all pods share all CPUs, and the kubelet owns cpu.max".to_owned()),
    }
}

fn core_groups(machine: &Machine) -> (State, String) {
    let (cpus, cgroups) = (&machine.cpus, &machine.cgroups);
    if cgroups.mode != CgroupMode::Unified || !cgroups.has("cpuset") {
        return (Missing, "no cpuset controller of cgroup version 2 below the root".to_owned());
    }
    let mut why = Vec::new();
    if cpus.clock_domains < 2 {
        why.push("one clock for all CPUs: no VM can be slowed alone".to_owned());
    } else if cpus.widest_domain > 8 {
        why.push(format!("{} CPUs share a clock: VMs get CPUs by so many", cpus.widest_domain));
    }
    if let Some(writer) = machine.competing_writers.iter().find(|r| r.running && r.does == Setting::CpuSets) {
        why.push(format!("{} owns the CPU sets of its pods", writer.name));
    }
    verdict(&why, || format!("{} groups of {} CPUs at most", cpus.clock_domains, cpus.widest_domain))
}
