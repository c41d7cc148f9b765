//! A Kubernetes API server for tests: lists and watches of recorded nodes and pods, over HTTP on loopback.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, patch};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::server::Server;

type Watcher = mpsc::UnboundedSender<io::Result<Bytes>>;
type Shared = Arc<Mutex<Model>>;

#[derive(Default)]
pub struct Kind {
    pub pages: Vec<String>,
    /// Statuses that the next requests are refused with.
    pub refusals: Vec<u16>,
    /// The query of every request, in order.
    pub requests: Vec<BTreeMap<String, String>>,
    watchers: Vec<Watcher>,
}

/// What the server has: tests read it, and change it while it serves.
#[derive(Default)]
pub struct Model {
    /// By plural name: `nodes`, `pods`.
    pub kinds: BTreeMap<String, Kind>,
    /// What pods were to be patched with, by `namespace/name`, in order.
    pub patches: Vec<(String, Value)>,
    /// Statuses that the next patches are refused with.
    pub patch_refusals: Vec<u16>,
}

/// A recorded file of `tests/kubernetes`.
pub fn recorded(name: &str) -> String {
    let path = format!("{}/../kubernetes/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).expect("a recorded file")
}

pub struct ApiServer {
    pub url: String,
    model: Shared,
    _server: Server,
}

impl ApiServer {
    pub fn start() -> Self {
        let model = Shared::default();
        for (kind, pages) in
            [("nodes", &["nodes.list.json"][..]), ("pods", &["pods.list.1.json", "pods.list.2.json"])]
        {
            let pages = pages.iter().map(|name| recorded(name)).collect();
            lock(&model).kinds.insert(kind.into(), Kind { pages, ..Kind::default() });
        }

        let routes = Router::new()
            .route("/api/v1/{kind}", get(answer))
            .route("/api/v1/namespaces/{namespace}/pods/{name}", patch(patched))
            .with_state(Arc::clone(&model));
        let server = Server::start(routes);

        Self { url: server.url(), model, _server: server }
    }

    pub fn model(&self) -> MutexGuard<'_, Model> {
        lock(&self.model)
    }

    pub fn watching(&self, kind: &str) -> usize {
        let mut model = self.model();
        let Some(kind) = model.kinds.get_mut(kind) else { return 0 };
        kind.watchers.retain(|watcher| !watcher.is_closed());
        kind.watchers.len()
    }

    /// How often a kind was listed, counting first pages.
    pub fn lists(&self, kind: &str) -> usize {
        let first = |query: &&BTreeMap<String, String>| {
            !query.contains_key("watch") && !query.contains_key("continue")
        };
        self.model().kinds.get(kind).map_or(0, |kind| kind.requests.iter().filter(first).count())
    }

    /// Sends text to every watch of a kind, in pieces of 1,000 bytes.
    pub fn send(&self, kind: &str, text: &str) {
        if let Some(kind) = self.model().kinds.get_mut(kind) {
            for watcher in &kind.watchers {
                for piece in text.as_bytes().chunks(1_000) {
                    // One that has gone is forgotten later.
                    let _ = watcher.send(Ok(Bytes::copy_from_slice(piece)));
                }
            }
        }
    }

    /// Ends every watch of a kind; abruptly, as a connection that is lost, or in order.
    pub fn end(&self, kind: &str, abruptly: bool) {
        if let Some(kind) = self.model().kinds.get_mut(kind) {
            for watcher in kind.watchers.drain(..) {
                if abruptly {
                    let _ = watcher.send(Err(io::ErrorKind::ConnectionReset.into()));
                }
            }
        }
    }
}

fn lock(model: &Shared) -> MutexGuard<'_, Model> {
    model.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes note of a server-side apply; anything else is refused.
async fn patched(
    State(model): State<Shared>,
    Path((namespace, name)): Path<(String, String)>,
    Query(query): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
    body: String,
) -> StatusCode {
    let is_apply = headers.get("content-type").is_some_and(|it| it == "application/apply-patch+yaml");
    if !is_apply || query.get("fieldManager").map(String::as_str) != Some("ballast-place") {
        return StatusCode::UNSUPPORTED_MEDIA_TYPE;
    }
    let mut model = lock(&model);
    model.patches.push((format!("{namespace}/{name}"), serde_json::from_str(&body).expect("JSON")));
    let refused = if model.patch_refusals.is_empty() { 200 } else { model.patch_refusals.remove(0) };
    StatusCode::from_u16(refused).expect("a status")
}

async fn answer(
    State(model): State<Shared>,
    Path(kind): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    let mut model = lock(&model);
    let Some(kind) = model.kinds.get_mut(&kind) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    kind.requests.push(query.clone());

    if !kind.refusals.is_empty() {
        let code = kind.refusals.remove(0);
        let reason = if code == 410 { "Expired" } else { "InternalError" };
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "told to fail", "reason": reason, "code": code});
        let code = StatusCode::from_u16(code).expect("a status");
        return (code, axum::Json(status)).into_response();
    }

    if query.contains_key("watch") {
        let (watcher, lines) = mpsc::unbounded_channel();
        kind.watchers.push(watcher);
        return Body::from_stream(UnboundedReceiverStream::new(lines)).into_response();
    }

    let token = |page: &String| -> Option<String> {
        let page: Value = serde_json::from_str(page).expect("a page");
        page["metadata"]["continue"].as_str().map(str::to_owned)
    };

    let page = match query.get("continue") {
        None => kind.pages.first(),
        Some(asked) => {
            let before = kind.pages.iter().position(|page| token(page).as_ref() == Some(asked));
            before.and_then(|before| kind.pages.get(before + 1))
        }
    };

    page.cloned().map_or(StatusCode::GONE.into_response(), |page| page.into_response())
}
