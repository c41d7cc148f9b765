//! The metrics of a chassis manager.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ballast_runtime::lock;
use ballast_runtime::metrics::{DrawCounts, Metric, MetricLine, Samples, each, flag, lines, one};
use ballast_runtime::metrics::{spread, states, watts, word};
use ballast_types::wire::{ChassisState, ChassisStatus, ServerStatus, Slot};
use ballast_types::{Instant, Seq, ServerId, Supply, Watts};
use prometheus_client::metrics::histogram::Histogram;

pub(crate) const PREFIX: &str = "ballast_chassis";

/// From 1 ms to 2 s, each twice the one before.
const ROUNDTRIPS_S: [f64; 12] =
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048];

/// What the control thread counts at every poll.
#[derive(Clone)]
pub(crate) struct Counts {
    pub(crate) draw: DrawCounts,
    supplies: Arc<Mutex<Supplies>>,
    roundtrip: Histogram,
    /// The newest message to each server, and when it went to its sender.
    sent: Arc<Mutex<BTreeMap<ServerId, (Seq, Instant)>>>,
}

/// The power supplies, in configured order.
#[derive(Default)]
struct Supplies {
    rated: Vec<Watts>,
    /// The newest poll; empty until there is one.
    newest: Vec<Supply>,
}

impl Counts {
    /// None yet, of supplies that carry so much.
    pub(crate) fn new(rated: &[Watts]) -> Self {
        let roundtrip = Histogram::new(ROUNDTRIPS_S);
        let counts =
            Self { draw: DrawCounts::default(), supplies: Arc::default(), roundtrip, sent: Arc::default() };
        counts.rewire(rated);
        counts
    }

    /// Other supplies from now on, which carry so much.
    pub(crate) fn rewire(&self, rated: &[Watts]) {
        *lock(&self.supplies) = Supplies { rated: rated.to_vec(), newest: vec![] };
    }

    /// A poll has come.
    pub(crate) fn supplies(&self, supplies: &[Supply]) {
        lock(&self.supplies).newest = supplies.to_vec();
    }

    /// A message goes to its sender.
    pub(crate) fn sent(&self, now: Instant, server: &ServerId, seq: Seq) {
        lock(&self.sent).insert(server.clone(), (seq, now));
    }

    /// The answer to a message has come.
    pub(crate) fn answered(&self, now: Instant, server: &ServerId, seq: Seq) {
        let sent = lock(&self.sent).get(server).copied();
        let sent = sent.filter(|(newest, _)| *newest == seq);
        sent.iter().for_each(|(_, at)| self.roundtrip.observe(now.since(*at).as_secs_f64()));
    }
}

/// What a manager shows.
pub(crate) struct Shown<'a> {
    pub(crate) status: &'a ChassisStatus,
    pub(crate) counts: &'a Counts,
}

/// What the reference says of a manager's metrics.
#[must_use]
pub fn metrics_reference() -> Vec<MetricLine> {
    lines(PREFIX, &metrics())
}

/// Every metric of a chassis manager alone.
pub(crate) fn metrics<'a>() -> Vec<Metric<Shown<'a>>> {
    power().into_iter().chain(control()).chain(servers()).collect()
}

fn power<'a>() -> [Metric<Shown<'a>>; 13] {
    [
        one("power_watts", "The chassis's draw; absent without a usable reading", |it| {
            watts(it.status.power_w)
        }),
        one("reported_watts", "What the servers' fresh reports add up to", |it| watts(it.status.reported_w)),
        one("budget_watts", "The budget in force", |it| watts(Some(it.status.budget_w))),
        one("limit_watts", "The lower one of the budget and what the supplies can carry", |it| {
            watts(Some(it.status.limit_w))
        }),
        one("shared_watts", "What no agent's meter sees: fans, conversion loss, switch", |it| {
            watts(Some(it.status.shared_w))
        }),
        one("sharable_watts", "What the servers may share", |it| watts(Some(it.status.sharable_w))),
        each("supply_watts", &["supply"], "What a power supply draws, or an outside source reports", |it| {
            let names = it.status.sensors.iter().map(|sensor| &sensor.sensor);
            let supplies = lock(&it.counts.supplies);
            let inputs = names.zip(&supplies.newest);
            inputs.filter_map(|(name, supply)| Some((vec![name.clone()], watts(supply.input)?))).collect()
        }),
        each(
            "supply_rated_watts",
            &["supply"],
            "What a power supply, or an outside source, carries at most",
            |it| {
                let names = it.status.sensors.iter().map(|sensor| &sensor.sensor);
                let supplies = lock(&it.counts.supplies);
                let rated = names.zip(&supplies.rated);
                rated.filter_map(|(name, rated)| Some((vec![name.clone()], watts(Some(*rated))?))).collect()
            },
        ),
        spread("draw_ratio", "The draw by the limit, at every poll", |it| Some(&it.counts.draw.ratio)),
        one("energy_joules_total", "What the chassis has drawn while its draw was known", |it| {
            Some(it.counts.draw.energy_j())
        }),
        one("over_limit_seconds_total", "Time that the draw was above the limit", |it| {
            Some(it.counts.draw.over_s())
        }),
        one(
            "over_limit_longest_seconds",
            "The longest time on end that the draw was above the limit",
            |it| Some(it.counts.draw.over_longest_s()),
        ),
        one("hardware_cap_seconds_total", "Time with hardware caps on", |it| {
            Some(it.status.hardware_caps_ms as f64 / 1000.0)
        }),
    ]
}

fn control<'a>() -> [Metric<Shown<'a>>; 7] {
    use ChassisState::{Alerting, Blind, Boot, Fenced, HardwareCaps, Normal};
    [
        each("info", &["chassis", "shares"], "1, with what the manager is configured to", |it| {
            vec![(vec![it.status.chassis_id.to_string(), word(&it.status.shares)], 1.0)]
        }),
        each("state", &["state"], "1 for the present state", |it| {
            states(&[Boot, Normal, Alerting, HardwareCaps, Blind, Fenced], it.status.state)
        }),
        one("fenced", "1 while another manager rules this chassis and nothing is sent", |it| {
            flag(it.status.state == Fenced)
        }),
        one("dry_run", "1 while nobody is alerted and nothing capped", |it| flag(it.status.dry_run)),
        one("capping_events_total", "Capping events since start", |it| Some(it.status.alerts as f64)),
        spread("alert_roundtrip_seconds", "From a message to an agent until its report is here", |it| {
            Some(&it.counts.roundtrip)
        }),
        one("refused_inputs_total", "Inputs refused since start", |it| Some(it.status.refused_inputs as f64)),
    ]
}

fn servers<'a>() -> [Metric<Shown<'a>>; 6] {
    [
        each("server_power_watts", &["server"], "A server's draw, by its report", |it| {
            of_servers(it, |server| watts(server.report.as_ref()?.power_w))
        }),
        each("server_granted_watts", &["server"], "A server's cap; absent while not capped", |it| {
            of_servers(it, |server| watts(server.granted_w))
        }),
        each(
            "server_hardware_cap_watts",
            &["server"],
            "A server's hardware cap; absent while there is none",
            |it| of_servers(it, |server| watts(server.hardware_cap_w)),
        ),
        each("server_report_age_seconds", &["server"], "Age of a server's newest report", |it| {
            of_servers(it, |server| Some(server.report_age_ms? as f64 / 1000.0))
        }),
        each("server_managed", &["server"], "1 while the server's agent answers", |it| {
            of_servers(it, |server| flag(server.slot == Slot::Managed))
        }),
        each("server_state", &["server", "state"], "1 for the present state of a server", |it| {
            use Slot::{Maintenance, Managed, Off, Silent, Unmanaged};
            let of_server = |server: &ServerStatus| {
                let (name, slot) = (server.server.to_string(), server.slot);
                let states = states(&[Managed, Silent, Off, Maintenance, Unmanaged], slot);
                states.into_iter().map(move |(state, is)| ([vec![name.clone()], state].concat(), is))
            };
            it.status.servers.iter().flat_map(of_server).collect()
        }),
    ]
}

fn of_servers(it: &Shown<'_>, read: fn(&ServerStatus) -> Option<f64>) -> Samples {
    let servers = it.status.servers.iter();
    servers.filter_map(|server| Some((vec![server.server.to_string()], read(server)?))).collect()
}
