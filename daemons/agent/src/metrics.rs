//! The metrics of an agent.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use ballast_agent_core::VmUsage;
use ballast_runtime::lock;
use ballast_runtime::metrics::{DrawCounts, Metric, MetricLine, Samples, each, flag, lines, one};
use ballast_runtime::metrics::{spread, states, watts};
use ballast_types::wire::{AgentState, AgentStatus, Alert, Level, VmStatus};
use ballast_types::{Epoch, Instant, KiloHertz, Seq, VmClass, VmId, Watts};
use prometheus_client::metrics::histogram::Histogram;

pub(crate) const PREFIX: &str = "ballast_agent";

/// From 1 ms to 4 s, each twice the one before; the paper's goal is seconds, an alert's is 50 ms.
const FLOOR_TIMES_S: [f64; 13] =
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096];
/// Alerts whose lowest frequency may still come.
const ALERTS_KEPT: usize = 32;

/// What the control thread counts as it goes.
#[derive(Clone)]
pub(crate) struct Counts {
    pub(crate) draw: DrawCounts,
    floor: Histogram,
    /// The newest alerts that cap, and when each came.
    alerts: Arc<Mutex<VecDeque<(Epoch, Seq, Instant)>>>,
    vms: Arc<Mutex<VmCounts>>,
}

#[derive(Default)]
struct VmCounts {
    /// The newest CPU use, as a share of each VM's cores.
    use_ratio: BTreeMap<VmId, f64>,
    /// How many CPUs that is a share of.
    cpus: BTreeMap<VmId, usize>,
    energy_j: BTreeMap<VmId, f64>,
}

impl VmCounts {
    /// Each VM's share of what all of them use; none unless the use of each is known.
    fn shares(&self, vms: &[VmStatus]) -> Option<Vec<f64>> {
        let uses: Vec<f64> = vms
            .iter()
            .map(|vm| Some(self.use_ratio.get(&vm.vm)? * *self.cpus.get(&vm.vm)? as f64))
            .collect::<Option<_>>()?;
        let all: f64 = uses.iter().sum();
        (all > 0.0).then(|| uses.iter().map(|used| used / all).collect())
    }
}

impl Default for Counts {
    fn default() -> Self {
        let floor = Histogram::new(FLOOR_TIMES_S);
        Self { draw: DrawCounts::default(), floor, alerts: Arc::default(), vms: Arc::default() }
    }
}

impl Counts {
    /// An alert has come.
    pub(crate) fn alerted(&self, now: Instant, alert: &Alert) {
        if alert.level == Level::Watch {
            return;
        }
        let mut alerts = lock(&self.alerts);
        alerts.truncate(ALERTS_KEPT - 1);
        alerts.push_front((alert.epoch, alert.seq, now));
    }

    /// What each VM draws.
    pub(crate) fn estimate(&self, status: &mut AgentStatus) {
        let shares = lock(&self.vms).shares(&status.vms);
        let Some((power, shares)) = status.report.power_w.zip(shares) else { return };
        for (vm, share) in status.vms.iter_mut().zip(shares) {
            vm.estimated_w = Watts::from_f64(power.as_f64() * share);
        }
    }

    /// The VMs' use has come; empty where nobody could look.
    pub(crate) fn used(&self, usage: &[VmUsage], cpus: BTreeMap<VmId, usize>) {
        let ratios = usage.iter().map(|it| (it.vm.clone(), it.utilisation.ratio()));
        let mut vms = lock(&self.vms);
        (vms.use_ratio, vms.cpus) = (ratios.collect(), cpus);
    }

    /// The meter was read.
    pub(crate) fn read(&self, now: Instant, status: &AgentStatus) {
        let joules = self.draw.observe(now, status.report.power_w, status.report.cap_w);
        let mut counts = lock(&self.vms);
        let shares = counts.shares(&status.vms).unwrap_or_else(|| vec![0.0; status.vms.len()]);
        let energy = status.vms.iter().zip(shares).map(|(vm, share)| {
            (vm.vm.clone(), counts.energy_j.get(&vm.vm).copied().unwrap_or(0.0) + joules * share)
        });
        counts.energy_j = energy.collect();
    }

    /// The last core was written down, for this alert.
    pub(crate) fn lowest(&self, now: Instant, epoch: Epoch, seq: Seq) {
        let alerts = lock(&self.alerts);
        let alert = alerts.iter().find(|alert| (alert.0, alert.1) == (epoch, seq));
        alert.iter().for_each(|alert| self.floor.observe(now.since(alert.2).as_secs_f64()));
    }
}

/// What an agent shows.
pub(crate) struct Shown<'a> {
    pub(crate) status: &'a AgentStatus,
    pub(crate) counts: &'a Counts,
}

/// What the reference says of an agent's metrics.
#[must_use]
pub fn metrics_reference() -> Vec<MetricLine> {
    lines(PREFIX, &metrics())
}

/// Every metric of an agent alone.
pub(crate) fn metrics<'a>() -> Vec<Metric<Shown<'a>>> {
    let of_server = power().into_iter().chain(control()).chain(cores());
    of_server.chain(records()).chain(impact()).chain(vms()).collect()
}

fn hertz(khz: Option<KiloHertz>) -> Option<f64> {
    khz.map(|khz| f64::from(khz.get()) * 1000.0)
}

fn power<'a>() -> [Metric<Shown<'a>>; 7] {
    [
        one("power_watts", "The server's draw; absent without a usable reading", |it| {
            watts(it.status.report.power_w)
        }),
        one("cap_watts", "The cap in force; absent while there is none", |it| watts(it.status.report.cap_w)),
        one("fallback_watts", "What the server may draw when nobody tells it anything", |it| {
            watts(it.status.fallback_w)
        }),
        one("sheddable_watts", "What the low-priority cores can still shed", |it| {
            watts(Some(it.status.report.sheddable_w))
        }),
        one("restorable_watts", "What would come back if every restriction were lifted", |it| {
            watts(Some(it.status.report.restorable_w))
        }),
        one("energy_joules_total", "What the server has drawn while its draw was known", |it| {
            Some(it.counts.draw.energy_j())
        }),
        one("over_cap_seconds_total", "Time that the draw was above the cap in force", |it| {
            Some(it.counts.draw.over_s())
        }),
    ]
}

fn control<'a>() -> [Metric<Shown<'a>>; 13] {
    use AgentState::{Blind, Boot, Recovering, Shedding, Throttled, Uncapped};
    [
        each("info", &["chassis", "policy", "server"], "1, with what the agent is configured to", |it| {
            let AgentStatus { chassis_id, policy, report, .. } = it.status;
            vec![(vec![chassis_id.to_string(), policy.clone(), report.server.to_string()], 1.0)]
        }),
        each("state", &["state"], "1 for the present state", |it| {
            let all = [Boot, Uncapped, Throttled, Recovering, Shedding, Blind];
            states(&all, it.status.report.state)
        }),
        one("dry_run", "1 while nothing is written on this server", |it| flag(it.status.dry_run.is_some())),
        one("lease_seconds", "How long the lease still runs; absent without one", |it| {
            Some(it.status.lease_ms? as f64 / 1000.0)
        }),
        one("server_limit", "1 while the server's own limit is on", |it| flag(it.status.report.server_limit)),
        one("low_priority_cores", "Cores that may be slowed", |it| Some(it.status.report.low_cores.into())),
        one("lowest_frequency_hertz", "The lowest cap on a core; absent while none is capped", |it| {
            hertz(it.status.report.min_khz)
        }),
        one(
            "frequency_ratio",
            "Mean cap on the low-priority cores by their highest frequency; absent without such cores",
            |it| it.status.frequency_ratio,
        ),
        spread(
            "alert_to_lowest_frequency_seconds",
            "From an alert's arrival until the last low-priority core was at its lowest frequency for it",
            |it| Some(&it.counts.floor),
        ),
        one("refused_alerts_total", "Alerts refused", |it| Some(it.status.refused_alerts as f64)),
        one("power_faults_total", "Power readings missing or implausible", |it| {
            Some(it.status.power_faults as f64)
        }),
        one("actuator_failures_total", "Actions given up after the last retry", |it| {
            Some(it.status.report.actuator_failures as f64)
        }),
        one("vm_kills_total", "VMs killed since start", |it| Some(it.status.vm_kills as f64)),
    ]
}

/// What others do with the cores.
fn cores<'a>() -> [Metric<Shown<'a>>; 4] {
    [
        one("cores_offline", "Physical cores that are offline", |it| {
            Some(it.status.cores.as_ref()?.offline.into())
        }),
        one("cores_raised", "Cores that somebody else has raised above their cap", |it| {
            Some(it.status.cores.as_ref()?.raised.into())
        }),
        one("cores_limited", "Cores that somebody stronger limits below their cap", |it| {
            Some(it.status.cores.as_ref()?.limited.into())
        }),
        one("foreign_writes_total", "Caps that somebody else has raised", |it| {
            Some(it.status.cores.as_ref()?.foreign_writes as f64)
        }),
    ]
}

/// What became of the records of the VMs' use.
fn records<'a>() -> [Metric<Shown<'a>>; 6] {
    [
        one("usage_records_measured_seconds_total", "Seconds of VMs measured", |it| {
            Some(it.status.records.as_ref()?.measured_s as f64)
        }),
        one("usage_records_written_total", "Usage records written", |it| {
            Some(it.status.records.as_ref()?.written as f64)
        }),
        one("usage_records_dropped_total", "Usage records lost: not written, or found damaged", |it| {
            Some(it.status.records.as_ref()?.dropped as f64)
        }),
        one("usage_records_bytes", "What all usage records take on disk", |it| {
            Some(it.status.records.as_ref()?.bytes as f64)
        }),
        each("usage_values_missing_total", &["value"], "Usage records that do not know a value", |it| {
            let missing = it.status.records.iter().flat_map(|records| &records.missing);
            missing.map(|(value, records)| (vec![value.clone()], *records as f64)).collect()
        }),
        each("memory_limits_held_total", &["why"], "How often a recommended memory limit was held", |it| {
            let held = it.status.records.iter().flat_map(|records| &records.limits_held);
            held.map(|(why, count)| (vec![why.clone()], *count as f64)).collect()
        }),
    ]
}

const CLASS_AND_VM: &[&str] = &["class", "vm"];

/// How long and how hard VMs are capped. Only of the present set, so that labels do not pile up.
fn impact<'a>() -> [Metric<Shown<'a>>; 7] {
    [
        each(
            "vm_throttled_core_seconds_total",
            CLASS_AND_VM,
            "Core-seconds that the VM's cores were capped",
            |it| of_vms(it, |vm| Some(vm.impact.throttled_core_ms as f64 / 1000.0)),
        ),
        each(
            "vm_lost_core_seconds_total",
            CLASS_AND_VM,
            "Core-seconds lost by that: 1 - f/f_max, summed over time",
            |it| of_vms(it, |vm| Some(vm.impact.lost_core_ms as f64 / 1000.0)),
        ),
        each("vm_floor_core_seconds_total", CLASS_AND_VM, "Core-seconds at the lowest frequency", |it| {
            of_vms(it, |vm| Some(vm.impact.floor_core_ms as f64 / 1000.0))
        }),
        each(
            "vm_limited_core_seconds_total",
            CLASS_AND_VM,
            "Core-seconds under the server's own limit",
            |it| of_vms(it, |vm| Some(vm.impact.limited_core_ms as f64 / 1000.0)),
        ),
        each("vm_throttled_periods_total", CLASS_AND_VM, "How often the VM went from free to capped", |it| {
            of_vms(it, |vm| Some(vm.impact.throttled_periods as f64))
        }),
        each("vm_longest_throttled_seconds", CLASS_AND_VM, "The longest of those times", |it| {
            of_vms(it, |vm| Some(vm.impact.longest_throttled_ms as f64 / 1000.0))
        }),
        each(
            "vm_lowest_frequency_seen_hertz",
            CLASS_AND_VM,
            "The lowest cap so far; absent before the first",
            |it| of_vms(it, |vm| hertz(vm.impact.lowest_khz)),
        ),
    ]
}

/// What VMs are, and may use.
fn vms<'a>() -> [Metric<Shown<'a>>; 6] {
    [
        each("vm_cpu_ratio", CLASS_AND_VM, "CPU use of a VM, as a share of its cores", |it| {
            let counts = lock(&it.counts.vms);
            let used = it.status.vms.iter().filter_map(|vm| Some((vm, *counts.use_ratio.get(&vm.vm)?)));
            used.map(|(vm, ratio)| (labels(vm), ratio)).collect()
        }),
        each(
            "vm_estimated_watts",
            CLASS_AND_VM,
            "An estimate: the server's draw, idle power included, split by the VMs' CPU use",
            |it| of_vms(it, |vm| watts(vm.estimated_w)),
        ),
        each(
            "vm_estimated_energy_joules_total",
            CLASS_AND_VM,
            "An estimate: the server's energy, split in the same way while use and draw were known",
            |it| {
                let counts = lock(&it.counts.vms);
                let of_vms = it.status.vms.iter();
                of_vms.filter_map(|vm| Some((labels(vm), *counts.energy_j.get(&vm.vm)?))).collect()
            },
        ),
        each("vm_killed", CLASS_AND_VM, "1 while a killed VM is still in the set", |it| {
            of_vms(it, |vm| flag(vm.killed))
        }),
        each(
            "vm_advised_class",
            CLASS_AND_VM,
            "1 for the class that a VM without one has by its own use",
            |it| {
                let advised = it.status.vms.iter().filter_map(|vm| Some((vm, vm.advised_class?)));
                advised.map(|(vm, class)| (vec![class_name(class), vm.vm.to_string()], 1.0)).collect()
            },
        ),
        each("vm_quota_cores", &["vm"], "The VM's CPU bandwidth limit; absent while it has none", |it| {
            let quotas = it.status.vms.iter().filter_map(|vm| Some((vm, vm.quota_millicores?)));
            quotas.map(|(vm, quota)| (vec![vm.vm.to_string()], f64::from(quota) / 1000.0)).collect()
        }),
    ]
}

fn of_vms(it: &Shown<'_>, read: fn(&VmStatus) -> Option<f64>) -> Samples {
    let vms = it.status.vms.iter();
    vms.filter_map(|vm| Some((labels(vm), read(vm)?))).collect()
}

fn labels(vm: &VmStatus) -> Vec<String> {
    vec![class_name(vm.class), vm.vm.to_string()]
}

fn class_name(class: VmClass) -> String {
    ballast_runtime::metrics::word(&class)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ballast_types::ChassisId;

    use super::*;

    #[test]
    fn the_lowest_frequency_is_timed_from_its_own_alert() {
        let counts = Counts::default();
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let chassis = ChassisId::new("c1").unwrap();
        for (ms, seq, level) in [(0, 1, Level::Watch), (10, 2, Level::Cap), (20, 3, Level::Emergency)] {
            let alert = Alert { level, ..Alert::watch(chassis.clone(), Epoch(1), Seq(seq)) };
            counts.alerted(at(ms), &alert);
        }
        for (seq, epoch) in [(2, 1), (1, 1), (3, 2)] {
            counts.lowest(at(110), Epoch(epoch), Seq(seq));
        }
        let mut scrape = ballast_runtime::metrics::Scrape::default();
        scrape.add("b", &[spread("floor", "", |it: &Counts| Some(&it.floor))], &counts);
        let text = scrape.text();
        assert!(text.contains("b_floor_count 1\n") && text.contains("b_floor_sum 0.1\n"), "{text}");
    }
}
