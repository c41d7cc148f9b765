//! The placement daemon's paths, and `/v1/predict`.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use ballast_predict::{Reply, VmError};
use ballast_runtime::http::{self, Endpoint, Refused};
use serde::Serialize;

use super::admission::calls as admission;
use super::api::Api;
use super::ask::{Question, VmQuestion};
use super::counters::count_more;
use super::drains::calls as drains;
use super::{hosts, placing, predictor};
use crate::kubernetes;

/// So many VMs are answered for before others have their turn on this thread.
const AT_ONCE: usize = 32;

/// Every path that a placement daemon serves.
pub(super) fn routes(api: Api) -> Router {
    let access = Arc::clone(&api.access);
    let extender = api.kube.clone().map(kubernetes::routes);
    let routes = http::common_endpoints().into_iter().chain(endpoints()).collect();
    let routes = http::router(routes).with_state(api).merge(extender.unwrap_or_default());
    http::guarded(routes, access)
}

/// What it answers beside what every daemon does, but for the scheduler extender.
fn endpoints() -> Vec<Endpoint<Api>> {
    let predict = Endpoint::post("/v1/predict", predict).takes("a VM, or 1 to 1,000 `vms`").answers(
        "class and P95 bucket of each VM, and how sure they are; its lifetime, if the model knows it",
    );
    let limits = Endpoint::get("/v1/limits", limits)
        .answers("[FleetLimits](#fleetlimits): how much the agents say that their VMs should get, added up");
    [predict, limits]
        .into_iter()
        .chain(placing::endpoints())
        .chain(hosts::endpoints())
        .chain(drains::endpoints())
        .chain(admission::endpoints())
        .collect()
}

/// The table of all of them in the reference.
#[must_use]
pub fn http_reference() -> String {
    let (own, extender) = (endpoints(), kubernetes::endpoints());
    http::markdown(own.iter().map(|it| &it.line).chain(extender.iter().map(|it| &it.line)))
}

async fn limits(State(api): State<Api>) -> Response {
    Json(api.limits.answer(ballast_runtime::clock::now())).into_response()
}

async fn predict(State(api): State<Api>, body: Bytes) -> Result<Response, Refused> {
    let start = Instant::now();
    let question = Question::read(&body).inspect_err(|_| count_more(&api.counters.refused, 1))?;

    // One model for all of them, whatever comes in meanwhile.
    let model = api.predictor.now();
    let reply = |asked: &VmQuestion| {
        let impossible = |error: VmError| Refused(StatusCode::BAD_REQUEST, error.to_string());
        let mut reply = predictor::answer(model.as_deref(), &asked.request).map_err(impossible)?;
        let lifetimes = model.as_ref().and_then(|model| model.lifetimes.as_ref());
        let lifetime = lifetimes.map(|lifetimes| lifetimes.reply(&asked.lifetime)).transpose();
        reply.lifetime = lifetime.map_err(impossible)?;
        api.counters.predicted(model.is_some(), &reply.prediction);

        Ok::<_, Refused>(reply)
    };

    let name = model.as_ref().map_or("none", |model| &model.checksum);
    let mut vms = Vec::with_capacity(question.vms.len());
    for some in question.vms.chunks(AT_ONCE) {
        if !vms.is_empty() {
            tokio::task::yield_now().await;
        }
        for asked in some {
            vms.push(reply(asked)?);
        }
    }

    let one = vms.pop_if(|_| question.is_one);
    let answer = one.map_or_else(
        || Json(Batch { model: name, vms }).into_response(),
        |reply| Json(One { model: name, reply }).into_response(),
    );
    count_more(&api.counters.requests, 1);
    api.counters.latency.0.observe(start.elapsed().as_secs_f64());

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

#[derive(Serialize)]
struct Batch<'a> {
    model: &'a str,
    /// One for each VM, in the order of the question.
    vms: Vec<Reply>,
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;
    use std::sync::Mutex;
    use std::time::Duration;

    use axum::body::to_bytes;
    use ballast_placement::{Policy, Ties};
    use ballast_predict::{ModelFile, Request, fleet, train};
    use ballast_runtime::alarms::AlarmBook;
    use ballast_runtime::events::Events;
    use ballast_runtime::http::AccessPolicy;
    use ballast_runtime::lock;
    use ballast_runtime::state::DiskFaults;
    use ballast_types::PeerName;
    use ballast_types::wire::AlarmId;
    use serde_json::{Value, json};
    use tempfile::TempDir;
    use tower::ServiceExt as _;

    use super::*;
    use crate::api::LOOKED_WITHIN;
    use crate::config::{AdmissionConfig, PredictConfig};
    use crate::inventory::DurableInventory;
    use crate::lifetime_history::HistoryOptions;
    use crate::predictor::Predictor;

    /// A daemon's handlers over the model in `bytes`, if any.
    pub(crate) fn api(bytes: Option<&[u8]>) -> (TempDir, Api) {
        api_with(bytes, Policy::POWER)
    }

    pub(crate) fn api_with(bytes: Option<&[u8]>, policy: Policy) -> (TempDir, Api) {
        api_admitting(bytes, policy, None)
    }

    pub(crate) fn api_admitting(
        bytes: Option<&[u8]>,
        policy: Policy,
        admission: Option<&AdmissionConfig>,
    ) -> (TempDir, Api) {
        let dir = tempfile::tempdir().unwrap();
        let path: PathBuf = dir.path().join("model");
        if let Some(bytes) = bytes {
            std::fs::write(&path, bytes).unwrap();
        }
        let predictor = Arc::new(Predictor::new(&PredictConfig {
            model: path,
            require_model: true,
            stale_after: Duration::from_secs(3600),
            history_bytes_max: None,
        }));

        let events = Events::default();
        predictor.look(&events, false);
        let history = HistoryOptions { bytes_max: 1 << 20, faults: DiskFaults::default() };
        let (durable, _) =
            DurableInventory::open(dir.path(), Policy { ties: Ties::Id, ..policy }, Some(history), admission)
                .unwrap();
        let api = Api {
            name: PeerName::new("p1").unwrap(),
            require_model: true,
            inventory: durable,
            hosts: None,
            hosts_problem: Arc::default(),
            drains: Arc::default(),
            predictor,
            read_at: Arc::new(Mutex::new(ballast_runtime::now())),
            counters: Arc::default(),
            agents: Arc::default(),
            overcommit: None,
            limits: Arc::default(),
            events,
            kube: None,
            alarms: AlarmBook::default(),
            tls: None,
            access: Arc::new(AccessPolicy::of_queries()),
        };
        api.follow_lifetimes();

        (dir, api)
    }

    fn model() -> ModelFile {
        let options = fleet::Options { vms: 6_000, ..fleet::Options::default() };
        let vms = fleet::make(&options).vms;
        let threads = std::num::NonZeroUsize::MIN;
        let options = train::Options { threads, ..train::Options::default() };
        train::train(&vms, &options).unwrap()
    }

    pub(crate) async fn ask(api: &Api, method: &str, path: &str, body: String) -> (u16, String) {
        let request = http::from_here(method, path, body);
        let answer = routes(api.clone()).oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let text = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(text.to_vec()).unwrap())
    }

    pub(crate) async fn call(api: &Api, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, text) = ask(api, method, path, body).await;
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    pub(crate) async fn get(api: &Api, path: &str) -> Value {
        let (status, answer) = call(api, "GET", path, &Value::Null).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
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
        let status = api.look().predict;
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
        let status = api.look();
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
        assert_eq!(api.look().predict.conservative, 1000);
    }

    #[test]
    fn a_file_that_nobody_looks_at_is_an_alarm() {
        let (_dir, api) = api(None);
        *lock(&api.read_at) = ballast_types::Instant::ZERO;
        let told = api.look().alarms.iter().any(|alarm| alarm.id == AlarmId::ModelFileHangs);
        assert_eq!(told, ballast_runtime::now() > ballast_types::Instant::ZERO + LOOKED_WITHIN);
    }
}
