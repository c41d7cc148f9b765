//! The placement daemon's HTTP.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use ballast_placement::inventory::HostView;
use ballast_placement::{Inventory, InventoryError};
use ballast_predict::{Reply, Request, VmError};
use ballast_types::PeerName;
use ballast_types::wire::{Event, EventKind, InventoryStatus, PlaceStatus, PredictStatus};
use serde::Serialize;

use super::ask::Question;
use super::counters::{Counters, count};
use super::fault::Fault;
use super::inventory::DurableInventory;
use super::predictor::{self, Loaded, Predictor};
use super::vm_request::{PredictedVm, VmRequest};
use super::{hosts, placing};
use crate::config::HostFile;
use crate::kubernetes::{self, Kube};
use crate::metrics;
use ballast_runtime::events::Events;
use ballast_runtime::http::{self, AccessPolicy, Health, Refused};
use ballast_runtime::tls::Tls;
use ballast_runtime::{clock, lock};

/// So many VMs are answered for before others have their turn on this thread.
const AT_ONCE: usize = 32;
/// The model's file is looked at once a second; a disk may be slow, but not this slow.
const LOOKED_WITHIN: Duration = Duration::from_secs(60);

/// What the handlers share.
#[derive(Clone)]
pub(super) struct Api {
    pub(super) name: PeerName,
    /// Whether it is ready only with a model.
    pub(super) require_model: bool,
    pub(super) predictor: Arc<Predictor>,
    /// When the model's file was last looked at.
    pub(super) looked: Arc<Mutex<ballast_types::Instant>>,
    /// Hosts and VMs.
    pub(super) inventory: Arc<DurableInventory>,
    /// The file that says which hosts there are, if one does.
    pub(super) hosts: Option<Arc<Mutex<HostFile>>>,
    /// Why it is not in force as it is now, if it is not.
    pub(super) hosts_problem: Arc<Mutex<Option<String>>>,
    /// What was asked and answered.
    pub(super) counters: Arc<Counters>,
    pub(super) events: Events,
    /// The scheduler extender, if there is one.
    pub(super) kube: Option<Arc<Kube>>,
    /// The daemon's certificate, if it has one.
    pub(super) tls: Option<Arc<Tls>>,
    /// Who may do what.
    pub(super) access: Arc<AccessPolicy>,
}

impl Api {
    pub(super) fn status(&self) -> PlaceStatus {
        let Counters { requests, refused, conservative, .. } = &*self.counters;
        let mut alarms = self.predictor.alarms();
        let looked = clock::since(*lock(&self.looked));

        if looked > LOOKED_WITHIN {
            let s = looked.as_secs();
            alarms.push(format!("the model's file has not been looked at for {s} s: its disk hangs"));
        }

        alarms.extend(self.kube.iter().flat_map(|kube| kube.alarms()));
        alarms.extend(self.tls.iter().flat_map(|tls| tls.alarms()));
        alarms.extend(self.inventory.alarms());
        let inventory = self.inventory.look();
        alarms.extend(self.leaving(&inventory));
        let inventory = InventoryStatus {
            placed: count(&self.counters.placed),
            removed: count(&self.counters.removed),
            refused: self.counters.refusals.iter().map(count).sum(),
            ..hosts::status(&inventory)
        };

        PlaceStatus {
            inventory,
            role: "place".into(),
            name: self.name.clone(),
            now_ms: ballast_runtime::now().as_millis(),
            predict: PredictStatus {
                model: self.predictor.status(),
                loads: self.predictor.loads.load(Ordering::Relaxed),
                failed_loads: self.predictor.failed_loads.load(Ordering::Relaxed),
                requests: count(requests),
                refused_requests: count(refused),
                predictions: self.counters.predictions(),
                conservative: count(conservative),
            },
            kubernetes: self.kube.as_ref().map(|kube| kube.status()),
            tls: self.tls.as_ref().map(|tls| tls.status()),
            alarms,
        }
    }
}

impl Api {
    /// A request that was read, or what is wrong with it, counted.
    pub(super) fn checked<T>(&self, read: Result<T, Refused>) -> Result<T, Refused> {
        read.map_err(|refused| self.refuse(refused.into()))
    }

    /// Counts a refusal.
    pub(super) fn refuse(&self, fault: Fault) -> Refused {
        self.counters.refused_for(fault.reason);
        fault.refused
    }

    /// A VM with its class and P95; what is predicted is counted.
    pub(super) fn predict(&self, model: Option<&Loaded>, request: &VmRequest) -> PredictedVm {
        let predicted = request.predicted(model);
        predicted.prediction.iter().for_each(|said| self.counters.predicted(model.is_some(), said));
        predicted
    }

    /// Tells who listens.
    pub(super) fn tell(&self, kind: EventKind) {
        self.events.push(Event { at_ns: ballast_runtime::now(), kind });
    }

    /// The name of the file that says which hosts there are, if one does.
    pub(super) fn host_file(&self) -> Option<String> {
        self.hosts.as_ref().map(|file| lock(file).path.display().to_string())
    }

    /// Makes the hosts what their file says.
    ///
    /// # Errors
    /// When it cannot: they stay as they are.
    pub(super) async fn follow_hosts(&self) -> Result<(), String> {
        let Some(file) = &self.hosts else { return Ok(()) };
        let told = lock(file).hosts.clone();
        let changed = self.inventory.change(|inventory| {
            let record = hosts::follow(inventory, &told)?;
            Ok::<_, InventoryError>((record.is_some(), record))
        });
        match changed.await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(Refused(_, why)) => Err(why),
        }
    }

    /// Reads the file of hosts anew.
    pub(super) async fn reload_hosts(&self) {
        let Some(file) = &self.hosts else { return };
        let read = lock(file).load();
        let followed = match read {
            Ok(()) => self.follow_hosts().await,
            Err(why) => Err(why),
        };
        if let Err(why) = &followed {
            self.tell(EventKind::Alarm { message: why.clone() });
        }
        *lock(&self.hosts_problem) = followed.err();
    }

    /// Hosts that their file no longer has, and that still have VMs.
    fn leaving(&self, inventory: &Inventory) -> Vec<String> {
        let Some(file) = &self.hosts else { return vec![] };
        let file = lock(file);
        let told: BTreeSet<&str> = file.hosts.iter().map(|told| told.host.name.as_str()).collect();
        let left = inventory.hosts().filter(|host| !told.contains(host.name));
        let path = file.path.display();
        let alarm = |host: HostView<'_>| {
            let (name, vms) = (host.name, host.vms);
            format!("host {name:?} is no longer in {path}, and has {vms} VMs: it drains")
        };
        let problem = lock(&self.hosts_problem).clone();
        let problem = problem.map(|why| format!("hosts stay as they were: {why}"));
        left.map(alarm).chain(problem).collect()
    }
}

impl Health for Api {
    fn sick(&self) -> Option<String> {
        // Who hears this has been answered.
        None
    }
    fn unready(&self) -> Option<String> {
        let without = self.require_model && self.predictor.now().is_none();
        let why = without.then(|| "there is no model: every answer is conservative".into());
        why.or_else(|| self.kube.as_ref()?.unready())
    }
}

/// Every path that a placement daemon serves.
pub(super) fn routes(api: Api) -> Router {
    let access = Arc::clone(&api.access);
    let extender = api.kube.clone().map(kubernetes::routes);
    let routes = http::health_routes()
        .route("/v1/predict", post(predict))
        .route("/v1/status", get(async |State(api): State<Api>| Json(api.status())))
        .route("/v1/events", get(async |State(api): State<Api>| http::event_stream(&api.events)))
        .route("/metrics", get(scrape))
        .merge(placing::routes())
        .merge(hosts::routes())
        .with_state(api)
        .merge(extender.unwrap_or_default());
    http::guarded(routes, access)
}

async fn scrape(State(api): State<Api>) -> Response {
    let kube = api.kube.as_ref().map(|kube| &kube.counters);
    http::metrics_text(metrics::place(&api.status(), &api.counters, kube, &api.access.bounds.refusals))
}

async fn predict(State(api): State<Api>, body: Bytes) -> Result<Response, Refused> {
    let start = Instant::now();
    let question = Question::read(&body).inspect_err(|_| api.counters.refused())?;

    // One model for all of them, whatever comes in meanwhile.
    let model = api.predictor.now();
    let reply = |request: &Request| {
        let impossible = |error: VmError| Refused(StatusCode::BAD_REQUEST, error.to_string());
        let reply = predictor::answer(model.as_deref(), request).map_err(impossible)?;
        api.counters.predicted(model.is_some(), &reply.prediction);

        Ok::<_, Refused>(reply)
    };

    let name = model.as_ref().map_or("none", |model| &model.checksum);
    let answer = match &question {
        Question::One(request) => Json(One { model: name, reply: reply(request)? }).into_response(),
        Question::Batch(requests) => {
            let mut vms = Vec::with_capacity(requests.len());
            for some in requests.chunks(AT_ONCE) {
                if !vms.is_empty() {
                    tokio::task::yield_now().await;
                }
                for request in some {
                    vms.push(reply(request)?);
                }
            }

            Json(Batch { model: name, vms }).into_response()
        }
    };

    api.counters.answered(start.elapsed());

    Ok(answer)
}

/// The answer to a question of one VM.
#[derive(Serialize)]
struct One<'a> {
    /// The model's checksum, in hexadecimal; `none` without a model.
    model: &'a str,
    #[serde(flatten)]
    reply: Reply,
}

/// The answer to a batch.
#[derive(Serialize)]
struct Batch<'a> {
    model: &'a str,
    /// One for each VM, in the order of the question.
    vms: Vec<Reply>,
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;

    use axum::body::to_bytes;
    use ballast_placement::Policy;
    use ballast_predict::model::Algorithm;
    use ballast_predict::{ModelFile, fleet, train};
    use serde_json::{Value, json};
    use tempfile::TempDir;
    use tower::ServiceExt as _;

    use super::*;
    use crate::config::PredictConfig;

    /// A daemon's handlers over the model in `bytes`, if any.
    pub(crate) fn api(bytes: Option<&[u8]>) -> (TempDir, Api) {
        let dir = tempfile::tempdir().unwrap();
        let path: PathBuf = dir.path().join("model");
        if let Some(bytes) = bytes {
            std::fs::write(&path, bytes).unwrap();
        }
        let predictor = Arc::new(Predictor::new(&PredictConfig {
            model: path,
            require_model: true,
            stale_after: Duration::from_secs(3600),
        }));

        let events = Events::default();
        predictor.look(&events, false);
        let (durable, _) = DurableInventory::open(dir.path(), Policy::PAPER).unwrap();
        let api = Api {
            name: PeerName::new("p1").unwrap(),
            require_model: true,
            inventory: durable,
            hosts: None,
            hosts_problem: Arc::default(),
            predictor,
            looked: Arc::new(Mutex::new(ballast_runtime::now())),
            counters: Arc::default(),
            events,
            kube: None,
            tls: None,
            access: Arc::new(AccessPolicy::of_queries(false)),
        };

        (dir, api)
    }

    fn model() -> ModelFile {
        let options = fleet::Options { vms: 6_000, ..fleet::Options::default() };
        let vms = fleet::make(&options).vms;
        let threads = std::num::NonZeroUsize::MIN;
        let options = train::Options { algorithm: Algorithm::RandomForest, seed: 1, threads };
        train::train(&vms, &options).unwrap()
    }

    pub(crate) async fn ask(api: &Api, method: &str, path: &str, body: String) -> (u16, String) {
        let request = http::from_here(method, path, body);
        let answer = routes(api.clone()).oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let text = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(text.to_vec()).unwrap())
    }

    async fn predict(api: &Api, question: &Value) -> Value {
        let (status, text) = ask(api, "POST", "/v1/predict", question.to_string()).await;
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    fn vm(n: u32) -> Value {
        json!({"vm_id": n.to_string(), "subscription": format!("sub-{:05}", n % 9), "cores": 1 + n % 8,
            "memory_gb": 8})
    }

    #[tokio::test]
    async fn answers_are_the_models_one_by_one_and_in_batches() {
        let file = model();
        let bytes = file.encode().unwrap();
        let (_dir, api) = api(Some(&bytes));
        let checksum = ballast_predict::file::checksum_in(&bytes).unwrap();
        let mut expected = vec![];

        for n in 0..100 {
            let request: Request = serde_json::from_value(vm(n)).unwrap();

            // By way of the text: there a confidence has the digits that it needs and no more.
            let reply = serde_json::to_string(&file.answer(&request).unwrap()).unwrap();
            expected.push(serde_json::from_str::<Value>(&reply).unwrap());
            let answer = predict(&api, &vm(n)).await;
            assert_eq!(answer["model"], checksum);

            for (key, value) in expected[n as usize].as_object().unwrap() {
                assert_eq!(&answer[key], value, "{key}");
            }
        }

        let vms: Vec<_> = (0..100).map(vm).collect();
        let answer = predict(&api, &json!({ "vms": vms })).await;
        assert_eq!(answer, json!({"model": checksum, "vms": expected}));
        let status = api.status().predict;
        assert_eq!((status.requests, status.predictions, status.loads), (101, 200, 1));
        let unsure = |reply: &&Value| reply["class_confident"] != true || reply["p95_confident"] != true;
        assert_eq!(status.conservative, 2 * expected.iter().filter(unsure).count() as u64);
        let (_, metrics) = ask(&api, "GET", "/metrics", String::new()).await;
        let sum = |name: &str| -> f64 {
            let lines = metrics.lines().filter(|line| line.starts_with(name));
            lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
        };

        assert_eq!(sum("ballast_place_class_predictions_total{"), 200.0, "{metrics}");
        assert_eq!(sum("ballast_place_p95_predictions_total{"), 200.0, "{metrics}");
        assert_eq!(sum("ballast_place_predict_latency_seconds_count"), 101.0, "{metrics}");
        assert_eq!(sum("ballast_place_model_loaded"), 1.0, "{metrics}");
        assert_eq!(ask(&api, "GET", "/readyz", String::new()).await.0, 200);
    }

    #[tokio::test]
    async fn what_was_wrong_is_counted_and_changes_nothing() {
        let (_dir, api) = api(None);
        for body in ["", "{}", r#"{"vms":[]}"#, r#"{"cores":0,"memory_gb":1}"#] {
            assert_eq!(ask(&api, "POST", "/v1/predict", body.into()).await.0, 400, "{body}");
        }
        let status = api.status();
        assert_eq!((status.predict.requests, status.predict.refused_requests), (0, 4));
        assert_eq!(ask(&api, "GET", "/v1/predict", String::new()).await.0, 405);
        assert_eq!(ask(&api, "GET", "/readyz", String::new()).await.0, 503);
        assert_eq!(ask(&api, "GET", "/healthz", String::new()).await.0, 200);
        let (status, _) = ask(&api, "POST", "/v1/predict", " ".repeat((1 << 20) + 1)).await;
        assert_eq!(status, 413);
    }

    #[tokio::test]
    async fn a_full_batch_of_the_longest_questions_fits() {
        let (_dir, api) = api(None);
        let mut long = vm(1);
        long["vm_id"] = json!("x".repeat(256));
        long["subscription"] = json!("y".repeat(256));
        long["vm_type"] = json!("z".repeat(128));
        let answer = predict(&api, &json!({"vms": vec![long; 1000]})).await;
        assert_eq!(answer["vms"].as_array().unwrap().len(), 1000);
        assert_eq!(api.status().predict.conservative, 1000);
    }

    #[test]
    fn a_file_that_nobody_looks_at_is_an_alarm() {
        let (_dir, api) = api(None);
        *lock(&api.looked) = ballast_types::Instant::ZERO;
        let told = api.status().alarms.iter().any(|alarm| alarm.contains("has not been looked at"));
        assert_eq!(told, ballast_runtime::now() > ballast_types::Instant::ZERO + LOOKED_WITHIN);
    }
}
