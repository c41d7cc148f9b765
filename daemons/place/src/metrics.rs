//! The metrics of a placement daemon.

mod kubernetes;

use ballast_types::wire::{InventoryStatus, PlaceStatus};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};

use crate::counters::{Counters, Sure, count};
use crate::fault::REASONS;
use ballast_runtime::http::Refusals;
use ballast_runtime::metrics::{Labelled, Scrape};

type Counts = Family<Vec<(&'static str, &'static str)>, Counter>;

/// The metrics of a placement daemon.
pub(crate) fn place(
    status: &PlaceStatus,
    counters: &Counters,
    kube: Option<&crate::kubernetes::Counters>,
    refusals: &Refusals,
) -> String {
    let mut scrape = Scrape(Registry::with_prefix("ballast_place"));
    scrape.listener(refusals, status.tls.as_ref());
    let alarms = status.alarms.len() as f64;
    scrape.gauge("alarms", "What an operator should look at", None, alarms);

    let predict = &status.predict;
    let loaded = |there: bool| f64::from(u8::from(there));
    let help = "1 while there is a model; 0: every answer is conservative";
    scrape.gauge("model_loaded", help, None, loaded(predict.model.is_some()));

    if let Some(model) = &predict.model {
        let help = "Since the past that the model knows ends";
        scrape.gauge("model_age", help, Some(Unit::Seconds), model.age_s as f64);
        let help = "Subscriptions whose past the model knows";
        scrape.gauge("model_subscriptions", help, None, model.subscriptions as f64);
        let info = Labelled::default();
        let version = model.version.to_string();
        let labels = vec![("version", version), ("checksum", model.checksum.clone())];
        info.get_or_create(&labels).set(1.0);
        scrape.0.register("model_info", "The model in force", info);
    }

    scrape.counter("model_loads", "Models taken", predict.loads);
    let help = "Model files that could not be used";
    scrape.counter("model_failed_loads", help, predict.failed_loads);

    scrape.counter("requests", "Requests answered", count(&counters.requests));
    let help = "Requests refused for what was in them";
    scrape.counter("refused_requests", help, count(&counters.refused));
    let help = "VMs whose class or P95 was not sure enough to act on";
    scrape.counter("conservative_answers", help, count(&counters.conservative));
    let help = "VMs answered for without a model";
    scrape.counter("answers_without_model", help, count(&counters.unmodelled));
    let help = "VMs by predicted class, and whether that was sure enough to act on";
    let classes = ["user-facing", "non-user-facing"];
    scrape.0.register("class_predictions", help, by("class", &classes, &counters.classes));
    let help = "VMs by predicted bucket of their P95 use, and whether that was sure enough to act on";
    let buckets = ["1", "2", "3", "4"];
    scrape.0.register("p95_predictions", help, by("bucket", &buckets, &counters.buckets));
    let help = "From a whole request to its answer";
    let latency = counters.latency.clone();
    scrape.0.register_with_unit("predict_latency", help, Unit::Seconds, latency);
    inventory(&mut scrape, &status.inventory, counters);

    if let Some((status, counters)) = status.kubernetes.as_ref().zip(kube) {
        kubernetes::kubernetes(&mut scrape, status, counters);
    }
    scrape.text()
}

/// Hosts and VMs.
fn inventory(scrape: &mut Scrape, status: &InventoryStatus, counters: &Counters) {
    let hosts = Labelled::default();
    let closed = status.cordoned_hosts + status.draining_hosts;
    for (state, count) in [
        ("open", status.hosts.saturating_sub(closed)),
        ("cordoned", status.cordoned_hosts),
        ("draining", status.draining_hosts),
    ] {
        hosts.get_or_create(&vec![("state", state.to_owned())]).set(count as f64);
    }

    scrape.0.register("hosts", "Hosts by whether VMs may come", hosts);

    for (name, help, value) in [
        ("used_hosts", "Hosts with a VM", status.used_hosts as f64),
        (
            "overcommitted_hosts",
            "Hosts whose VMs take more than they have",
            status.overcommitted_hosts as f64,
        ),
        ("vms", "VMs that are placed", status.vms as f64),
        ("cores", "What the hosts have", status.cores),
        ("allocated_cores", "What the VMs take of that", status.allocated_cores),
        ("chassis_score_stddev", "How unevenly power is spread over chassis", status.chassis_score_std),
        (
            "server_score_stddev",
            "How unevenly what can be throttled is spread over servers",
            status.server_score_std,
        ),
    ] {
        scrape.gauge(name, help, None, value);
    }

    let bytes = || Some(Unit::Bytes);
    scrape.gauge("memory", "What the hosts have", bytes(), status.memory_gb * 1e9);
    let taken = status.allocated_memory_gb * 1e9;
    scrape.gauge("allocated_memory", "What the VMs take of that", bytes(), taken);
    let scores = Labelled::default();

    for chassis in &status.chassis {
        scores.get_or_create(&vec![("chassis", chassis.chassis.clone())]).set(chassis.score);
    }
    scrape.0.register("chassis_score", "1 less the P95 load of its cores", scores);
    scrape.counter("placements", "VMs placed", status.placed);
    scrape.counter("removals", "VMs removed", status.removed);
    let refusals = Counts::default();

    for (reason, counted) in REASONS.into_iter().zip(&counters.refusals) {
        refusals.get_or_create(&vec![("reason", reason)]).inc_by(count(counted));
    }
    let help = "Questions and changes about hosts and VMs that were refused";
    scrape.0.register("refusals", help, refusals);
    let unit = || Unit::Seconds;
    let help = "From a whole request to /v1/score to its answer";
    scrape.0.register_with_unit("score_latency", help, unit(), counters.score_latency.clone());
    let help = "From a whole request to /v1/place to its answer, when it is on disk";
    scrape.0.register_with_unit("place_latency", help, unit(), counters.place_latency.clone());
}

fn by(label: &'static str, names: &[&'static str], counts: &[Sure]) -> Counts {
    let family = Counts::default();
    for (name, counts) in names.iter().zip(counts) {
        for (confident, counted) in ["false", "true"].into_iter().zip(counts) {
            let labels = vec![(label, *name), ("confident", confident)];
            family.get_or_create(&labels).inc_by(count(counted));
        }
    }
    family
}
