//! What agent.toml could say on this machine.

use ballast_hw::probe::{Machine, MeterFacts};

use super::functions::{Function, best, has_rapl_energy, inputs};
use super::state::{State, Watched, channel, overcommitted};

/// A part of agent.toml that fits; `server` and `chassis` are left to the operator.
pub(super) fn agent_toml(machine: &Machine, sensors: &[Watched], functions: &[Function]) -> String {
    let state = |id| functions.iter().find(|f| f.id == id).map_or(State::Missing, |f| f.state);
    let mut lines = vec!["# For this machine, by ballast check. Yours to add: server, chassis.".to_owned()];
    if machine.virtual_machine {
        lines.push("# actuate_in_vm = true   # a virtual machine: without, the agent runs dry".into());
    }

    match best(machine) {
        Some(meter) => lines.extend(hwmon(meter, inputs(machine) > 1, sensors)),
        None if has_rapl_energy(machine) => {
            lines.extend(["[meter]".into(), "source = \"rapl\"".into()]);
            lines.push(
                "# offset_w = …  # yours to measure, refused without: what fans, disks and losses draw"
                    .into(),
            );
        }
        None => lines.push("# [meter]: there is no sensor that the agent could read".into()),
    }

    let by_limit = state("pods") == State::Degraded;
    if by_limit || (state("pstate") == State::Missing && state("cpu_max") != State::Missing) {
        lines.extend(["[throttle]".into(), "actuator = \"cpu-max\"".into()]);
    }
    if machine.domains.count > 0 {
        lines.extend(["[groups]".into(), "by = \"libvirt\"".into(), "[[discover]]".into()]);
        lines.push("pattern = \"machine.slice/machine-qemu*.scope\"".into());
    }
    if overcommitted(machine) && state("pstate") != State::Missing {
        let (vcpus, cpus) = (machine.domains.vcpus, machine.cpus.count);
        lines.push(format!("[pools]   # {vcpus} vCPUs on {cpus} CPUs: domains share cores by class"));
        lines.push("enabled = true".into());
    }
    match state("pods") {
        State::Missing => {}
        _ if by_limit => lines.extend(["[kubernetes]".into(), "cpu_max = true".into()]),
        _ => lines.push(
            "[kubernetes]   # the VMs are this node's pods; node = … where server is named otherwise".into(),
        ),
    }
    if state("server_limit") == State::Missing {
        lines.extend(["[server_limit]".into(), "enabled = false   # there is none to set".into()]);
    }
    lines.join("\n") + "\n"
}

/// The section of a meter, with periods that fit how often its reading changes.
fn hwmon(meter: &MeterFacts, is_one_of_several: bool, sensors: &[Watched]) -> Vec<String> {
    let mut lines =
        vec!["[meter]".to_owned(), "source = \"hwmon\"".into(), format!("name = {:?}", meter.name)];
    lines.extend(meter.label.iter().map(|label| format!("label = {label:?}")));
    if is_one_of_several {
        lines.push("# one supply's input of several: their sum is the server's".into());
    }
    let name = channel(meter);
    let watched = sensors.iter().find(|watched| watched.sensor == name);
    if let Some(ms) = watched.and_then(|watched| watched.refresh.refresh_ms) {
        // Twice the refresh, so that every sample is a fresh one.
        let lag = (ms.ceil() as u64).clamp(1, 5000);
        lines.push(format!("sample_ms = {}", (2 * lag).clamp(200, 10_000)));
        lines.push(format!("lag_ms = {}", lag.max(200)));
    }
    lines
}
