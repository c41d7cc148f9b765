//! The requests that a daemon answers, each with its line in the reference: none is served without one.

use std::fmt::Write as _;

use axum::Router;
use axum::extract::State;
use axum::handler::Handler;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{self, MethodRouter};
use ballast_types::wire::ErrorBody;
use serde::Serialize;

use super::roles::{Right, only};
use super::{Refused, event_stream, metrics_text};
use crate::events::Events;

pub struct Endpoint<S> {
    pub line: EndpointLine,
    handler: MethodRouter<S>,
}

/// What the reference says of one request.
pub struct EndpointLine {
    method: &'static str,
    path: &'static str,
    /// What the caller needs; reading needs nothing more than to be let in.
    right: Option<Right>,
    body: &'static str,
    answer: &'static str,
    errors: &'static str,
}

impl<S: Clone + Send + Sync + 'static> Endpoint<S> {
    pub fn get<T: 'static>(path: &'static str, handler: impl Handler<T, S>) -> Self {
        Self::new("GET", path, routing::get(handler))
    }

    pub fn post<T: 'static>(path: &'static str, handler: impl Handler<T, S>) -> Self {
        Self::new("POST", path, routing::post(handler))
    }

    pub fn put<T: 'static>(path: &'static str, handler: impl Handler<T, S>) -> Self {
        Self::new("PUT", path, routing::put(handler))
    }

    pub fn delete<T: 'static>(path: &'static str, handler: impl Handler<T, S>) -> Self {
        Self::new("DELETE", path, routing::delete(handler))
    }

    fn new(method: &'static str, path: &'static str, handler: MethodRouter<S>) -> Self {
        let line = EndpointLine { method, path, right: None, body: "–", answer: "", errors: "–" };
        Self { line, handler }
    }

    /// The same, for callers with this right alone.
    #[must_use]
    pub fn only(self, right: Right) -> Self {
        let line = EndpointLine { right: Some(right), ..self.line };
        Self { line, handler: only(right, self.handler) }
    }

    #[must_use]
    pub fn takes(self, body: &'static str) -> Self {
        Self { line: EndpointLine { body, ..self.line }, ..self }
    }

    #[must_use]
    pub fn answers(self, answer: &'static str) -> Self {
        Self { line: EndpointLine { answer, ..self.line }, ..self }
    }

    /// Which errors the request has beside those of every request.
    #[must_use]
    pub fn fails(self, errors: &'static str) -> Self {
        Self { line: EndpointLine { errors, ..self.line }, ..self }
    }
}

/// The paths of these requests.
pub fn router<S: Clone + Send + Sync + 'static>(endpoints: Vec<Endpoint<S>>) -> Router<S> {
    endpoints.into_iter().fold(Router::new(), |routes, it| routes.route(it.line.path, it.handler))
}

/// The requests as a table in Markdown.
pub fn markdown<'a>(lines: impl IntoIterator<Item = &'a EndpointLine>) -> String {
    let mut page =
        String::from("| request | needs | body | answer | its own errors |\n|---|---|---|---|---|\n");
    for EndpointLine { method, path, right, body, answer, errors } in lines {
        let needs = right.map_or("read", Right::name);
        let _ = writeln!(page, "| `{method} {path}` | {needs} | {body} | {answer} | {errors} |");
    }
    page
}

/// What every daemon shows of itself.
pub trait Observable: Clone + Send + Sync + 'static {
    type Status: Serialize;

    /// Why the control thread must be taken for dead, if it must.
    fn sick(&self) -> Option<String>;
    /// Every reason why it does not do its work.
    fn unready(&self) -> Vec<String>;
    /// The newest status.
    ///
    /// # Errors
    /// 503, before there is one.
    fn status(&self) -> Result<Self::Status, Refused>;
    /// The metrics, as OpenMetrics text.
    ///
    /// # Errors
    /// 503, before there is a status.
    fn metrics(&self) -> Result<String, Refused>;
    fn events(&self) -> &Events;
}

/// What every daemon answers.
pub fn common_endpoints<S: Observable>() -> Vec<Endpoint<S>> {
    vec![
        Endpoint::get("/v1/status", async |State(api): State<S>| api.status().map(Json))
            .answers("the state, sensors, certificates, alarms")
            .fails("503 before the first turn of the control thread"),
        Endpoint::get("/v1/events", async |State(api): State<S>, asked: HeaderMap| {
            event_stream(api.events(), &asked, tokio_stream::empty())
        })
        .answers(
            "[events](#events) as server-sent events: the newest 1,000 first, or those after \
             `Last-Event-ID`, then live ones",
        ),
        Endpoint::get("/metrics", scrape::<S>)
            .answers(
                "[metrics](metrics.md) as Prometheus's text; as OpenMetrics to whose `Accept` names that",
            )
            .fails("503 before the first turn of the control thread"),
        Endpoint::get("/healthz", async |State(api): State<S>| well(api.sick().into_iter().collect()))
            .answers("`ok`")
            .fails("503 with the reason when the control thread must be taken for dead"),
        Endpoint::get("/readyz", async |State(api): State<S>| {
            well(api.sick().into_iter().chain(api.unready()).collect())
        })
        .answers("`ok`")
        .fails("503 with all `reasons` while the daemon [does not do its work](../operate/watch.md#readyz)"),
    ]
}

async fn scrape<S: Observable>(State(api): State<S>, asked: HeaderMap) -> Result<Response, Refused> {
    Ok(metrics_text(api.metrics()?, &asked))
}

fn well(reasons: Vec<String>) -> Response {
    if reasons.is_empty() {
        return "ok\n".into_response();
    }
    let body = ErrorBody { error: reasons.join("; "), reasons };
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}
