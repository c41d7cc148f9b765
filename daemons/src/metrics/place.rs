//! The metrics of a placement daemon.

use ballast_types::wire::PlaceStatus;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};

use super::{Labelled, Scrape};
use crate::http::Refusals;
use crate::place::{Counters, Sure, count};

type Counts = Family<Vec<(&'static str, &'static str)>, Counter>;

/// The metrics of a placement daemon.
pub(crate) fn place(status: &PlaceStatus, counters: &Counters, refusals: &Refusals) -> String {
    let mut scrape = Scrape(Registry::with_prefix("ballast_place"));
    scrape.door(refusals, status.tls.as_ref());
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
    let help =
        "VMs by predicted bucket of their P95 use, and whether that was sure enough to act on";
    let buckets = ["1", "2", "3", "4"];
    scrape.0.register("p95_predictions", help, by("bucket", &buckets, &counters.buckets));
    let help = "From a whole request to its answer";
    let latency = counters.latency.clone();
    scrape.0.register_with_unit("predict_latency", help, Unit::Seconds, latency);
    scrape.text()
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
