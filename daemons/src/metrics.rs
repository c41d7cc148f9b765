//! Prometheus metrics, made from a status at every scrape.

mod kubernetes;
mod place;

use ballast_types::VmClass;
use ballast_types::wire::{
    AgentState, AgentStatus, ChassisState, ChassisStatus, Report, SensorStatus, Slot, TlsStatus,
    VmStatus,
};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::http::Refusals;
use crate::log;
use crate::state::DiskFaults;
pub(crate) use place::place;

type Number = Gauge<f64, AtomicU64>;
type Labelled = Family<Vec<(&'static str, String)>, Number>;

/// One scrape. Empty values leave their metric out: a missing reading is missing, never zero.
struct Scrape(Registry);

impl Scrape {
    fn gauge(&mut self, name: &str, help: &str, unit: Option<Unit>, value: impl Into<Option<f64>>) {
        let Some(value) = value.into() else { return };
        let gauge = Number::default();
        gauge.set(value);
        match unit {
            Some(unit) => self.0.register_with_unit(name, help, unit, gauge),
            None => self.0.register(name, help, gauge),
        }
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.0.register(name, help, ConstCounter::new(value));
    }

    fn state<S: Copy + PartialEq + serde::Serialize>(&mut self, help: &str, all: &[S], is: S) {
        let family = Labelled::default();
        for state in all {
            let name = serde_json::to_string(state).unwrap_or_default();
            let label = vec![("state", name.trim_matches('"').to_owned())];
            family.get_or_create(&label).set(f64::from(u8::from(*state == is)));
        }
        self.0.register("state", help, family);
    }

    /// What was refused at the door, and when this daemon's certificate ends.
    fn door(&mut self, refusals: &Refusals, tls: Option<&TlsStatus>) {
        let Refusals { evicted, handshakes, unauthorised, too_many, foreign } = refusals;
        for (name, help, count) in [
            ("evicted_connections", "Connections that made room for others", evicted),
            ("failed_handshakes", "TLS handshakes refused, too slow or too many", handshakes),
            ("unauthorised_requests", "Requests without the role they need", unauthorised),
            ("limited_requests", "Requests that came too often", too_many),
            ("foreign_requests", "Requests with a foreign Host or Origin, or no JSON", foreign),
        ] {
            self.counter(name, help, count.load(Ordering::Relaxed));
        }
        self.counter("dropped_log_lines", "Log lines that found no room", log::dropped());
        if let Some(tls) = tls {
            let (end, left) = (tls.not_after_s as f64, tls.expires_in_s as f64);
            let unit = || Some(Unit::Seconds);
            self.gauge("certificate_not_after", "The certificate's end since 1970", unit(), end);
            self.gauge("certificate_expires_in", "How long that still is", unit(), left);
            let broken = f64::from(u8::from(tls.problem.is_some()));
            self.gauge("certificate_reload_failed", "1: newer files are not used", None, broken);
        }
    }

    /// What the disk does not take.
    fn disk(&mut self, faults: &DiskFaults) {
        let family = Labelled::default();
        for what in faults.unwritten() {
            family.get_or_create(&vec![("what", what.to_owned())]).set(1.0);
        }
        self.0.register("disk_fault", "1 for what cannot be written to disk", family);
        let help = "Steps that are missing in the recording, whose disk was full or too slow";
        self.counter("dropped_recording_steps", help, faults.dropped_steps());
    }

    fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ = encode(&mut text, &self.0);
        text
    }
}

fn watts() -> Option<Unit> {
    Some(Unit::Other("watts".into()))
}

/// The metrics of an agent.
pub(crate) fn agent(status: &AgentStatus, refusals: &Refusals, faults: &DiskFaults) -> String {
    use AgentState::{Blind, Boot, Recovering, Shedding, Throttled, Uncapped};
    let mut scrape = Scrape(Registry::with_prefix("ballast_agent"));
    scrape.door(refusals, status.tls.as_ref());
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
    scrape.gauge(
        "cap",
        "The cap in force; absent when uncapped",
        watts(),
        cap_w.map(|w| w.as_f64()),
    );
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
    scrape.counter("power_faults", "Power readings missing or absurd", status.power_faults);
    let help = "Actions given up after the last retry";
    scrape.counter("actuator_failures", help, status.report.actuator_failures);
    scrape.counter("vm_kills", "VMs killed since start", status.vm_kills);
    sensors(&mut scrape, &status.sensors);
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
    impact(&mut scrape, &status.vms);
    if let Some(records) = &status.records {
        let help = "Seconds of VMs measured";
        scrape.counter("records_measured_seconds", help, records.measured_s);
        scrape.counter("records_written", "Usage records written", records.written);
        let help = "Usage records lost: not written, or found damaged";
        scrape.counter("records_dropped", help, records.dropped);
        let help = "What all usage records take on disk";
        scrape.gauge("records", help, Some(Unit::Bytes), records.bytes as f64);
    }
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
    scrape.text()
}

/// The power sensors.
fn sensors(scrape: &mut Scrape, sensors: &[SensorStatus]) {
    let [refresh, age, faults] = [(); 3].map(|()| Labelled::default());
    for sensor in sensors {
        let label = vec![("sensor", sensor.sensor.clone())];
        for (family, ms) in [(&refresh, sensor.refresh_ms), (&age, sensor.age_ms)] {
            if let Some(ms) = ms {
                family.get_or_create(&label).set(ms as f64 / 1000.0);
            }
        }
        faults.get_or_create(&label).set(sensor.faults as f64);
    }
    let help = "Measured time between two values of a sensor; absent before it is measured";
    scrape.0.register("sensor_refresh_seconds", help, refresh);
    scrape.0.register("sensor_age_seconds", "Age of a sensor's newest value", age);
    let help = "Readings of a sensor that were missing, absurd or refused";
    scrape.0.register("sensor_faults", help, faults);
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
        impact.min_khz_seen.map(|khz| f64::from(khz.get()) * 1000.0),
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

/// The metrics of a chassis manager.
pub(crate) fn chassis(status: &ChassisStatus, refusals: &Refusals, faults: &DiskFaults) -> String {
    use ChassisState::{Alerting, Blind, Boot, Fenced, Normal, OutOfBand};
    let mut scrape = Scrape(Registry::with_prefix("ballast_chassis"));
    scrape.door(refusals, status.tls.as_ref());
    scrape.disk(faults);
    scrape.gauge("power", "The chassis's draw", watts(), status.power_w.map(|w| w.as_f64()));
    let help = "What the servers' fresh reports add up to";
    scrape.gauge("reported", help, watts(), status.reported_w.map(|w| w.as_f64()));
    scrape.gauge("budget", "The budget in force", watts(), status.budget_w.as_f64());
    let dry = f64::from(u8::from(status.dry_run));
    scrape.gauge("dry_run", "1 while nobody is alerted and nothing capped", None, dry);
    let fenced = f64::from(u8::from(status.state == Fenced));
    let help = "1 while another manager rules this chassis and nothing is sent";
    scrape.gauge("fenced", help, None, fenced);
    let help = "The least of the budget and what the supplies can carry";
    scrape.gauge("limit", help, watts(), status.limit_w.as_f64());
    let help = "What no agent's meter sees: fans, conversion loss, switch";
    scrape.gauge("shared", help, watts(), status.shared_w.as_f64());
    scrape.gauge("sharable", "What the servers may share", watts(), status.sharable_w.as_f64());
    let states = [Boot, Normal, Alerting, OutOfBand, Blind, Fenced];
    scrape.state("What the chassis manager is doing", &states, status.state);
    scrape.counter("capping_episodes", "Capping episodes since start", status.alerts);
    scrape.counter("refused_inputs", "Inputs refused since start", status.refused_inputs);
    let seconds = status.out_of_band_ms as f64 / 1000.0;
    scrape.gauge("out_of_band", "Time with hardware caps on", Some(Unit::Seconds), seconds);
    let alarms = status.alarms.len() as f64;
    scrape.gauge("alarms", "What an operator should look at", None, alarms);
    sensors(&mut scrape, &status.sensors);
    let [power, granted, managed] = [(); 3].map(|()| Labelled::default());
    for server in &status.servers {
        let label = vec![("server", server.server.to_string())];
        if let Some(watts) = server.report.as_ref().and_then(|report| report.power_w) {
            power.get_or_create(&label).set(watts.as_f64());
        }
        if let Some(watts) = server.granted_w {
            granted.get_or_create(&label).set(watts.as_f64());
        }
        let up = f64::from(u8::from(server.slot == Slot::Managed));
        managed.get_or_create(&label).set(up);
    }
    scrape.0.register("server_power_watts", "A server's draw, by its report", power);
    scrape.0.register("server_granted_watts", "A server's cap; absent when uncapped", granted);
    scrape.0.register("server_managed", "1 while the server's agent answers", managed);
    scrape.text()
}
