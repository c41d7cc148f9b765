//! What both daemons serve alike, and the bounds on what they read.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use ballast_types::wire::{ErrorBody, Event};
use serde::de::DeserializeOwned;
use tokio::net::TcpListener;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::{Stream, StreamExt as _};

use crate::control::Snapshot;
use crate::events::Events;

/// No message of the wire comes near this.
const BODY_BYTES_MAX: usize = 64 << 10;

/// An error answer: status, and what is wrong.
pub(crate) struct Refused(pub StatusCode, pub String);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(ErrorBody { error: self.1 })).into_response()
    }
}

/// Reads a JSON body, whatever its content type says.
///
/// # Errors
/// 400, with the place and the reason.
pub(crate) fn json<T: DeserializeOwned>(body: &Bytes) -> Result<T, Refused> {
    serde_json::from_slice(body)
        .map_err(|error| Refused(StatusCode::BAD_REQUEST, format!("body is not valid: {error}")))
}

/// The newest status.
///
/// # Errors
/// 503, before the first turn of the control thread.
pub(crate) fn newest<T>(snapshot: &Snapshot<T>) -> Result<Arc<T>, Refused> {
    let starting = || Refused(StatusCode::SERVICE_UNAVAILABLE, "starting".into());
    snapshot.get().ok_or_else(starting)
}

/// Whether a daemon is alive, and whether it does its work.
pub(crate) trait Health: Clone + Send + Sync + 'static {
    /// Why the control thread must be taken for dead, if it must.
    fn sick(&self) -> Option<String>;
    /// Why it does not do its work yet, if it does not.
    fn unready(&self) -> Option<String>;
}

/// `/healthz` and `/readyz`: 200 `ok`, or 503 with the reason.
pub(crate) fn health_routes<S: Health>() -> Router<S> {
    fn answer(problem: Option<String>) -> Response {
        match problem {
            None => "ok\n".into_response(),
            Some(why) => Refused(StatusCode::SERVICE_UNAVAILABLE, why).into_response(),
        }
    }
    Router::new().route("/healthz", get(async |State(state): State<S>| answer(state.sick()))).route(
        "/readyz",
        get(async |State(state): State<S>| answer(state.sick().or_else(|| state.unready()))),
    )
}

/// `/v1/events`: the newest events first, then live ones, as server-sent events.
///
/// A reader that falls a thousand events behind loses the oldest.
pub(crate) fn event_stream(
    events: &Events,
) -> Sse<impl Stream<Item = Result<sse::Event, Infallible>> + use<>> {
    let (kept, live) = events.subscribe();
    let line = |event: Event| {
        Ok(sse::Event::default().json_data(&event).unwrap_or_else(|_| sse::Event::default()))
    };
    let live = BroadcastStream::new(live).filter_map(Result::ok);
    Sse::new(tokio_stream::iter(kept).chain(live).map(line)).keep_alive(KeepAlive::default())
}

/// Prometheus's text.
#[must_use]
pub(crate) fn metrics_text(text: String) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// Bounds every body and answers unknown paths in JSON.
pub(crate) fn bounded(routes: Router) -> Router {
    routes
        .fallback(async || Refused(StatusCode::NOT_FOUND, "no such path".into()))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

/// Binds the address, with a clear error.
///
/// # Errors
/// When it is taken or not ours.
pub(crate) async fn bind(at: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(at)
        .await
        .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {at}: {error}")))
}

/// Serves until `stop` ends; open streams are cut half a second later.
///
/// # Errors
/// When the listener breaks.
pub(crate) async fn serve(
    listener: TcpListener,
    routes: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (stopping, mut stopped) = tokio::sync::watch::channel(());
    let stop = async move {
        stop.await;
        drop(stopping);
    };
    let server = axum::serve(listener, routes).with_graceful_shutdown(stop);
    tokio::select! {
        served = server => served,
        () = async {
            let _ = stopped.changed().await;
            tokio::time::sleep(Duration::from_millis(500)).await;
        } => Ok(()),
    }
}
