//! The agent's HTTP.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post, put};
use ballast_agent_core::Input;
use ballast_types::VmId;
use ballast_types::wire::{AgentState, AgentStatus, Alert, VmSpec};
use tokio::sync::oneshot;

use super::Letter;
use super::vms::{Vms, VmsError};
use crate::control::Snapshot;
use crate::events::Events;
use crate::http::{self, Health, Refused};
use crate::metrics;

/// The control thread is woken at least once a sample; this long without a turn and it is dead.
const DEAD_AFTER_MS: u64 = 5_000;

/// What the handlers share.
#[derive(Clone)]
pub(super) struct Api {
    /// To the control thread.
    pub letters: Sender<Letter>,
    /// The newest status.
    pub snapshot: Arc<Snapshot<AgentStatus>>,
    /// What happened.
    pub events: Events,
    /// Every VM.
    pub vms: Arc<Mutex<Vms>>,
}

impl Health for Api {
    fn sick(&self) -> Option<String> {
        let idle = self.snapshot.idle_ms();
        (idle > DEAD_AFTER_MS).then(|| format!("the control thread has not moved for {idle} ms"))
    }
    fn unready(&self) -> Option<String> {
        let status = self.snapshot.get();
        let booting = status.is_none_or(|status| status.report.state == AgentState::Boot);
        booting.then(|| "no usable reading of the power meter yet".into())
    }
}

/// Every path that an agent serves.
pub(super) fn routes(api: Api) -> Router {
    let routes = http::health_routes()
        .route("/v1/alert", post(alert))
        .route("/v1/vms", get(list_vms))
        .route("/v1/vms/{id}", put(put_vm).delete(delete_vm))
        .route("/v1/status", get(status))
        .route("/v1/events", get(async |State(api): State<Api>| http::event_stream(&api.events)))
        .route("/metrics", get(scrape))
        .with_state(api);
    http::bounded(routes)
}

fn stopping<T>(_: T) -> Refused {
    Refused(StatusCode::SERVICE_UNAVAILABLE, "stopping".into())
}

async fn alert(State(api): State<Api>, body: Bytes) -> Result<Response, Refused> {
    let alert: Alert = http::json(&body)?;
    let (reply, answer) = oneshot::channel();
    api.letters.send(Letter::Alert(alert, reply)).map_err(stopping)?;
    Ok(match answer.await.map_err(stopping)? {
        Ok(report) => Json(report).into_response(),
        Err(refusal) => (StatusCode::CONFLICT, Json(refusal)).into_response(),
    })
}

fn newest(api: &Api) -> Result<Arc<AgentStatus>, Refused> {
    let starting = || Refused(StatusCode::SERVICE_UNAVAILABLE, "starting".into());
    api.snapshot.get().ok_or_else(starting)
}

async fn status(State(api): State<Api>) -> Result<Response, Refused> {
    Ok(Json(newest(&api)?.as_ref()).into_response())
}

async fn scrape(State(api): State<Api>) -> Result<Response, Refused> {
    Ok(http::metrics_text(metrics::agent(newest(&api)?.as_ref())))
}

async fn list_vms(State(api): State<Api>) -> Response {
    let vms = api.vms.lock().unwrap_or_else(PoisonError::into_inner);
    Json(vms.specs()).into_response()
}

async fn put_vm(
    State(api): State<Api>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Response, Refused> {
    let spec: VmSpec = http::json(&body)?;
    change_vms(api, &id, Some(spec)).await
}

async fn delete_vm(State(api): State<Api>, Path(id): Path<String>) -> Result<Response, Refused> {
    change_vms(api, &id, None).await
}

/// Answers once the change is on disk, the cores are moved, and the controller knows.
async fn change_vms(api: Api, id: &str, spec: Option<VmSpec>) -> Result<Response, Refused> {
    let refuse = |error: VmsError| {
        let code = match error {
            VmsError::Unknown(_) => StatusCode::NOT_FOUND,
            VmsError::Refused(_) => StatusCode::BAD_REQUEST,
            VmsError::Io(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Refused(code, error.to_string())
    };
    let id = VmId::new(id).map_err(|error| Refused(StatusCode::BAD_REQUEST, error.to_string()))?;
    // Moving cores takes milliseconds in the kernel: not on the thread that answers alerts.
    let changed = tokio::task::spawn_blocking(move || {
        let mut vms = api.vms.lock().unwrap_or_else(PoisonError::into_inner);
        let set = vms.change(id, spec)?;
        Ok(api.letters.send(Letter::Input(Input::Vms(set))))
    });
    changed.await.map_err(stopping)?.map_err(refuse)?.map_err(stopping)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
