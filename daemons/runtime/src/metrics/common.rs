//! The metrics that every daemon has, and those of the two that control.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use ballast_types::wire::{Alarm, SensorStatus, TlsStatus};

use super::{Metric, MetricLine, Samples, each, flag, lines, one};
use crate::events::Events;
use crate::http::Refusals;
use crate::state::DiskFaults;
use crate::{confine, log, threads};

/// As many alarms have a series of their own.
const ALARMS_SHOWN: usize = 100;

/// What every daemon shows.
pub struct Common<'a> {
    pub refusals: &'a Refusals,
    pub events: &'a Events,
    pub tls: Option<&'a TlsStatus>,
    pub alarms: &'a [Alarm],
}

/// What a daemon with sensors and a recording shows beside that.
pub struct Sensing<'a> {
    pub sensors: &'a [SensorStatus],
    pub faults: &'a DiskFaults,
}

fn count(count: &AtomicU64) -> Option<f64> {
    Some(count.load(Ordering::Relaxed) as f64)
}

pub(super) fn metrics<'a>() -> Vec<Metric<Common<'a>>> {
    events().into_iter().chain(refused()).chain(process()).collect()
}

fn events<'a>() -> [Metric<Common<'a>>; 6] {
    [
        each("build_info", &["version"], "1, with the version of this daemon", |_| {
            vec![(vec![crate::VERSION.to_owned()], 1.0)]
        }),
        one("alarms", "How many alarms there are", |it| Some(it.alarms.len() as f64)),
        each(
            "alarm",
            &["id", "severity", "subject"],
            "1 for an alarm that is on, of the 100 most severe; `subject` is empty where there is one alone",
            of_alarms,
        ),
        each("events_total", &["event"], "Events by what happened; absent before the first", |it| {
            it.events.counts().into_iter().map(|(event, count)| (vec![event], count as f64)).collect()
        }),
        one(
            "events_lost_total",
            "Events that readers of `/v1/events` have lost, as they fell behind",
            |it| count(it.events.lost()),
        ),
        each(
            "orders_total",
            &["result"],
            "Changes that somebody has ordered, by what became of them",
            |it| {
                let results = ["done", "failed", "refused"].into_iter().zip(&it.refusals.orders);
                results
                    .filter_map(|(result, orders)| Some((vec![result.to_owned()], count(orders)?)))
                    .collect()
            },
        ),
    ]
}

/// Rejected connections and requests.
fn refused<'a>() -> [Metric<Common<'a>>; 5] {
    [
        one("evicted_connections_total", "Connections that made room for others", |it| {
            count(&it.refusals.evicted)
        }),
        one("failed_handshakes_total", "TLS handshakes refused, too slow or too many", |it| {
            count(&it.refusals.handshakes)
        }),
        one("unauthorised_requests_total", "Requests without the role they need", |it| {
            count(&it.refusals.unauthorised)
        }),
        one("limited_requests_total", "Requests that came too often", |it| count(&it.refusals.too_many)),
        one("foreign_requests_total", "Requests with a foreign Host or Origin, or no JSON", |it| {
            count(&it.refusals.foreign)
        }),
    ]
}

fn process<'a>() -> [Metric<Common<'a>>; 5] {
    [
        each(
            "confined",
            &["by"],
            "1 where `landlock` or `seccomp` bounds what this daemon can do, 0 where the kernel cannot",
            |_| {
                let bounds = confine::bounds().into_iter();
                bounds.map(|(by, holds)| (vec![by.to_owned()], f64::from(u8::from(holds)))).collect()
            },
        ),
        each(
            "thread_ends_total",
            &["thread"],
            "How often a thread has crashed and begun again; absent before the first time",
            |_| threads::ended().into_iter().map(|(name, count)| (vec![name], count as f64)).collect(),
        ),
        one("dropped_log_lines_total", "Log lines that found no room", |_| Some(log::dropped() as f64)),
        one(
            "certificate_expiry_timestamp_seconds",
            "When the daemon's certificate ends, since 1970; absent without one",
            |it| Some(it.tls?.not_after_s as f64),
        ),
        one("certificate_reload_failed", "1 while newer files of certificates are not used", |it| {
            flag(it.tls?.problem.is_some())
        }),
    ]
}

/// The metrics of an agent's and a chassis manager's sensors and disk.
pub fn sensing<'a>() -> [Metric<Sensing<'a>>; 5] {
    [
        each(
            "sensor_refresh_seconds",
            &["sensor"],
            "Measured time between two values of a sensor; absent before it is measured",
            |it| of_sensors(it, |sensor| Some(sensor.refresh_ms? as f64 / 1000.0)),
        ),
        each("sensor_age_seconds", &["sensor"], "Age of a sensor's newest value", |it| {
            of_sensors(it, |sensor| Some(sensor.age_ms? as f64 / 1000.0))
        }),
        each(
            "sensor_faults_total",
            &["sensor"],
            "Readings of a sensor that were missing, implausible or refused",
            |it| of_sensors(it, |sensor| Some(sensor.faults as f64)),
        ),
        each("disk_fault", &["what"], "1 for what cannot be written to disk; absent for what can", |it| {
            it.faults.unwritten().into_iter().map(|what| (vec![what.to_owned()], 1.0)).collect()
        }),
        one(
            "dropped_recording_steps_total",
            "Steps that are missing in the recording, whose disk was full or too slow",
            |it| Some(it.faults.dropped_steps() as f64),
        ),
    ]
}

/// What the reference says of both, with the daemon's name left open.
pub fn references() -> [Vec<MetricLine>; 2] {
    let prefix = "ballast_DAEMON";
    [lines(prefix, &metrics()), lines(prefix, &sensing())]
}

/// Those that stand first: alarms of a hundred VMs are no reason for a thousand series.
fn of_alarms(it: &Common<'_>) -> Samples {
    let labels = |alarm: &Alarm| {
        vec![alarm.id.to_string(), alarm.severity.to_string(), alarm.subject.clone().unwrap_or_default()]
    };
    // Several may be about one subject, and no label set comes twice.
    let shown: BTreeSet<_> = it.alarms.iter().take(ALARMS_SHOWN).map(labels).collect();
    shown.into_iter().map(|labels| (labels, 1.0)).collect()
}

fn of_sensors(it: &Sensing<'_>, read: fn(&SensorStatus) -> Option<f64>) -> Samples {
    it.sensors.iter().filter_map(|sensor| Some((vec![sensor.sensor.clone()], read(sensor)?))).collect()
}
