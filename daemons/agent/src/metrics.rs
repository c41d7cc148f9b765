//! The metrics of an agent.

use ballast_runtime::http::Refusals;
use ballast_runtime::metrics::{Labelled, Scrape, sensors, watts};
use ballast_runtime::state::DiskFaults;
use ballast_types::VmClass;
use ballast_types::wire::{AgentState, AgentStatus, Report, VmStatus};
use prometheus_client::registry::{Registry, Unit};

/// The metrics of an agent.
pub(crate) fn agent(status: &AgentStatus, refusals: &Refusals, faults: &DiskFaults) -> String {
    use AgentState::{Blind, Boot, Recovering, Shedding, Throttled, Uncapped};
    let mut scrape = Scrape(Registry::with_prefix("ballast_agent"));
    scrape.listener(refusals, status.tls.as_ref());
    scrape.disk(faults);
    let Report { power_w, cap_w, sheddable_w, restorable_w, low_cores, .. } = status.report;
    scrape.gauge("power", "The server's draw", watts(), power_w.map(|w| w.as_f64()));

    if let Some(recovery) = &status.recovery {
        let trusted = f64::from(u8::from(recovery.doubt.is_none()));
        scrape.gauge("model_trusted", "Whether the model chooses the p-states", None, trusted);
        let error = recovery.error_w.as_f64();
        scrape.gauge("model_error", "What RAPL lately missed the meter by", watts(), error);
        let margin = recovery.margin_w.as_f64();
        scrape.gauge("model_margin", "How far under the cap the draw is kept", watts(), margin);
    }

    let dry = f64::from(u8::from(status.dry_run.is_some()));
    scrape.gauge("dry_run", "1 while nothing is written on this server", None, dry);
    scrape.gauge("cap", "The cap in force; absent when uncapped", watts(), cap_w.map(|w| w.as_f64()));

    let help = "What the low-priority cores can still shed";
    scrape.gauge("sheddable", help, watts(), sheddable_w.as_f64());
    let help = "What would come back if every restriction were lifted";
    scrape.gauge("restorable", help, watts(), restorable_w.as_f64());
    scrape.gauge("low_priority_cores", "Cores that may be throttled", None, f64::from(low_cores));
    let help = "The lowest p-state in force; absent when no core is capped";
    let lowest = status.report.min_khz.map(|khz| f64::from(khz.get()) * 1000.0);
    scrape.gauge("lowest_frequency", help, Some(Unit::Other("hertz".into())), lowest);
    let limit = f64::from(u8::from(status.report.server_limit));
    scrape.gauge("server_limit", "1 while the server's own limit is on", None, limit);
    let states = [Boot, Uncapped, Throttled, Recovering, Shedding, Blind];
    scrape.state("What the agent is doing", &states, status.report.state);
    scrape.counter("refused_alerts", "Alerts refused", status.refused_alerts);
    scrape.counter("power_faults", "Power readings missing or implausible", status.power_faults);
    let help = "Actions given up after the last retry";
    scrape.counter("actuator_failures", help, status.report.actuator_failures);
    scrape.counter("vm_kills", "VMs killed since start", status.vm_kills);
    sensors(&mut scrape, &status.sensors);

    cores(&mut scrape, status);
    impact(&mut scrape, &status.vms);
    records(&mut scrape, status);
    classes_and_quotas(&mut scrape, status);

    scrape.text()
}

/// Name and help of every figure of a VM, in the order of [`figures`].
const FIGURES: [(&str, &str); 8] = [
    ("vm_throttled_core_seconds", "Core-seconds that the VM's cores were capped"),
    ("vm_lost_core_seconds", "Core-seconds lost by that: 1 - f/f_max, summed over time"),
    ("vm_floor_core_seconds", "Core-seconds at the floor"),
    ("vm_limited_core_seconds", "Core-seconds under the server's own limit"),
    ("vm_throttled_periods", "Times that the VM went from free to capped"),
    ("vm_longest_throttled_seconds", "The longest of those times"),
    ("vm_lowest_frequency_seen_hertz", "The lowest cap so far; absent when there was none"),
    ("vm_killed", "1 while a killed VM is still in the set"),
];

fn figures(vm: &VmStatus) -> [Option<f64>; FIGURES.len()] {
    let impact = &vm.impact;
    let seconds = |ms: u64| Some(ms as f64 / 1000.0);
    [
        seconds(impact.throttled_core_ms),
        seconds(impact.lost_core_ms),
        seconds(impact.floor_core_ms),
        seconds(impact.limited_core_ms),
        Some(impact.throttled_periods as f64),
        seconds(impact.longest_throttled_ms),
        impact.lowest_khz.map(|khz| f64::from(khz.get()) * 1000.0),
        Some(f64::from(u8::from(vm.killed))),
    ]
}

fn class_name(class: VmClass) -> &'static str {
    match class {
        VmClass::UserFacing => "user-facing",
        VmClass::NonUserFacing => "non-user-facing",
    }
}

/// How long and how hard VMs are capped. Only of the present set, so that labels do not pile up.
fn impact(scrape: &mut Scrape, vms: &[VmStatus]) {
    let families = [(); FIGURES.len()].map(|()| Labelled::default());
    for vm in vms {
        let label = vec![("vm", vm.vm.to_string()), ("class", class_name(vm.class).to_owned())];
        for (family, value) in families.iter().zip(figures(vm)) {
            if let Some(value) = value {
                family.get_or_create(&label).set(value);
            }
        }
    }
    for ((name, help), family) in FIGURES.into_iter().zip(families) {
        scrape.0.register(name, help, family);
    }
}

/// What others do with the cores.
fn cores(scrape: &mut Scrape, status: &AgentStatus) {
    if let Some(cores) = &status.cores {
        let help = "Physical cores that are offline";
        scrape.gauge("cores_offline", help, None, f64::from(cores.offline));
        let help = "Cores that somebody else has raised above their cap";
        scrape.gauge("cores_raised", help, None, f64::from(cores.raised));
        let help = "Cores that somebody stronger limits below their cap";
        scrape.gauge("cores_limited", help, None, f64::from(cores.limited));
        let help = "Caps that somebody else has raised";
        scrape.counter("foreign_writes", help, cores.foreign_writes);
    }
}

/// What became of the records of the VMs' use.
fn records(scrape: &mut Scrape, status: &AgentStatus) {
    if let Some(records) = &status.records {
        let help = "Seconds of VMs measured";
        scrape.counter("records_measured_seconds", help, records.measured_s);
        scrape.counter("records_written", "Usage records written", records.written);
        let help = "Usage records lost: not written, or found damaged";
        scrape.counter("records_dropped", help, records.dropped);
        let help = "What all usage records take on disk";
        scrape.gauge("records", help, Some(Unit::Bytes), records.bytes as f64);
    }
}

/// What the VMs' own use says of their class, and their bandwidth limits.
fn classes_and_quotas(scrape: &mut Scrape, status: &AgentStatus) {
    let advised = Labelled::default();

    for (vm, class) in status.vms.iter().filter_map(|vm| Some((&vm.vm, vm.advised_class?))) {
        let label = vec![("vm", vm.to_string()), ("class", class_name(class).to_owned())];
        advised.get_or_create(&label).set(1.0);
    }

    let help = "1 for the class that a VM without one has by its own use";
    scrape.0.register("vm_advised_class", help, advised);
    let quotas = Labelled::default();

    for (vm, quota) in status.vms.iter().filter_map(|vm| Some((&vm.vm, vm.quota_millicores?))) {
        quotas.get_or_create(&vec![("vm", vm.to_string())]).set(f64::from(quota) / 1000.0);
    }
    let help = "The VM's CPU bandwidth limit; absent when it has none";
    scrape.0.register("vm_quota_cores", help, quotas);
}
