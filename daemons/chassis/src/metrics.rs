//! The metrics of a chassis manager.

use ballast_runtime::http::Refusals;
use ballast_runtime::metrics::{Labelled, Scrape, sensors, watts};
use ballast_runtime::state::DiskFaults;
use ballast_types::wire::{ChassisState, ChassisStatus, Slot};
use prometheus_client::registry::{Registry, Unit};

/// The metrics of a chassis manager.
pub(crate) fn chassis(status: &ChassisStatus, refusals: &Refusals, faults: &DiskFaults) -> String {
    use ChassisState::{Alerting, Blind, Boot, Fenced, Normal, OutOfBand};
    let mut scrape = Scrape(Registry::with_prefix("ballast_chassis"));
    scrape.listener(refusals, status.tls.as_ref());
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
    scrape.counter("capping_events", "Capping events since start", status.alerts);
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
