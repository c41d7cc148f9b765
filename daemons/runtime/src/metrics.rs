//! Prometheus metrics, made from a status at every scrape.

use ballast_types::wire::{SensorStatus, TlsStatus};
use prometheus_client::encoding::text::{encode, encode_registry};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::http::Refusals;
use crate::log;
use crate::state::DiskFaults;

mod process;

pub type Number = Gauge<f64, AtomicU64>;
pub type Labelled = Family<Vec<(&'static str, String)>, Number>;

/// One scrape. Empty values leave their metric out: a missing reading is missing, never zero.
pub struct Scrape(pub Registry);

impl Scrape {
    pub fn gauge(&mut self, name: &str, help: &str, unit: Option<Unit>, value: impl Into<Option<f64>>) {
        let Some(value) = value.into() else { return };
        let gauge = Number::default();
        gauge.set(value);
        match unit {
            Some(unit) => self.0.register_with_unit(name, help, unit, gauge),
            None => self.0.register(name, help, gauge),
        }
    }

    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.0.register(name, help, ConstCounter::new(value));
    }

    pub fn state<S: Copy + PartialEq + serde::Serialize>(&mut self, help: &str, all: &[S], is: S) {
        let family = Labelled::default();
        for state in all {
            let name = serde_json::to_string(state).unwrap_or_default();
            let label = vec![("state", name.trim_matches('"').to_owned())];
            family.get_or_create(&label).set(f64::from(u8::from(*state == is)));
        }
        self.0.register("state", help, family);
    }

    /// What was refused at the listener, and when this daemon's certificate ends.
    pub fn listener(&mut self, refusals: &Refusals, tls: Option<&TlsStatus>) {
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
    pub fn disk(&mut self, faults: &DiskFaults) {
        let family = Labelled::default();
        for what in faults.unwritten() {
            family.get_or_create(&vec![("what", what.to_owned())]).set(1.0);
        }
        self.0.register("disk_fault", "1 for what cannot be written to disk", family);
        let help = "Steps that are missing in the recording, whose disk was full or too slow";
        self.counter("dropped_recording_steps", help, faults.dropped_steps());
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ = encode_registry(&mut text, &process::registry());
        let _ = encode(&mut text, &self.0);
        text
    }
}

pub fn watts() -> Option<Unit> {
    Some(Unit::Other("watts".into()))
}

/// The power sensors.
pub fn sensors(scrape: &mut Scrape, sensors: &[SensorStatus]) {
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
    let help = "Readings of a sensor that were missing, implausible or refused";
    scrape.0.register("sensor_faults", help, faults);
}
