//! What the daemons serve alike. `endpoint`: requests, each with its line in the reference; `listen`:
//! connections; `socket`: those of this machine's operators; `bounds`: how many and how much; `origin`: pages in browsers;
//! `roles`: who may do what.

mod bounds;
mod endpoint;
mod listen;
mod origin;
mod roles;
mod socket;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Json, Response};
use ballast_types::wire::ErrorBody;
use serde::de::DeserializeOwned;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tokio_stream::{Stream, StreamExt as _};

use crate::control::Snapshot;
use crate::events::{Events, NumberedEvent};
use crate::openmetrics;

pub use bounds::Refusals;
pub use endpoint::{Endpoint, EndpointLine, Observable, common_endpoints, markdown, router};
pub use listen::{Listener, bind, serve};
pub use roles::{AccessPolicy, Caller, Right};

/// A reader of events whose connection was lost comes back after this.
const COME_BACK_AFTER: Duration = Duration::from_secs(2);

/// An error answer: status, and what is wrong.
pub struct Refused(pub StatusCode, pub String);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(ErrorBody { error: self.1, reasons: vec![] })).into_response()
    }
}

/// Reads a JSON body.
///
/// # Errors
/// 400, with the place and the reason.
pub fn json<T: DeserializeOwned>(body: &Bytes) -> Result<T, Refused> {
    serde_json::from_slice(body)
        .map_err(|error| Refused(StatusCode::BAD_REQUEST, format!("body is not valid: {error}")))
}

/// The newest status.
///
/// # Errors
/// 503, before the first turn of the control thread.
pub fn newest<T>(snapshot: &Snapshot<T>) -> Result<Arc<T>, Refused> {
    snapshot.get().ok_or_else(|| Refused(StatusCode::SERVICE_UNAVAILABLE, "starting".into()))
}

/// The newest events first, then live ones and `more`, as server-sent events. A reader that comes back names the last
/// event that it has had; what has no id, as `more`, is not sent again.
///
/// A reader that falls a thousand events behind loses the oldest.
pub fn event_stream<S>(
    events: &Events,
    asked: &HeaderMap,
    more: S,
) -> Sse<impl Stream<Item = Result<sse::Event, Infallible>> + use<S>>
where
    S: Stream<Item = sse::Event> + Send + 'static,
{
    let last = asked.get("last-event-id").and_then(|id| id.to_str().ok());
    let (kept, live) = events.subscribe(last);
    let line = |it: NumberedEvent| {
        let named = sse::Event::default().id(it.id).event(it.name);
        named.json_data(&it.event).unwrap_or_else(|_| sse::Event::default())
    };
    let events = events.clone();
    let live = BroadcastStream::new(live).filter_map(move |it| {
        it.inspect_err(|BroadcastStreamRecvError::Lagged(lost)| {
            events.lost().fetch_add(*lost, Ordering::Relaxed);
        })
        .ok()
    });
    let begin = tokio_stream::once(sse::Event::default().retry(COME_BACK_AFTER));
    Sse::new(begin.chain(tokio_stream::iter(kept).chain(live).map(line).merge(more)).map(Ok))
        .keep_alive(KeepAlive::default())
}

/// Prometheus's text, or OpenMetrics to whoever asks for it.
fn metrics_text(text: String, asked: &HeaderMap) -> Response {
    let accepted = asked.get_all(header::ACCEPT).iter().filter_map(|it| it.to_str().ok());
    let (kind, text) = match accepted.into_iter().any(|it| it.contains("application/openmetrics-text")) {
        true => ("application/openmetrics-text; version=1.0.0; charset=utf-8", text),
        false => ("text/plain; version=0.0.4; charset=utf-8", openmetrics::plain(&text)),
    };
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// Lets requests in by the `access`'s rules, before any route is looked for, and answers unknown paths in
/// JSON.
pub fn guarded(routes: Router, access: Arc<AccessPolicy>) -> Router {
    routes
        .fallback(async || Refused(StatusCode::NOT_FOUND, "no such path".into()))
        .method_not_allowed_fallback(async || {
            Refused(StatusCode::METHOD_NOT_ALLOWED, "no such method here".into())
        })
        .layer(from_fn(move |request: Request, next: Next| roles::admit(Arc::clone(&access), request, next)))
}

/// A request as an operator of this machine sends it; without a body if that is empty.
#[cfg(any(test, feature = "testing"))]
pub fn from_here(method: &str, path: &str, body: String) -> Request {
    let request = axum::http::Request::builder().method(method).uri(path);
    let request = request
        .header(header::HOST, "127.0.0.1:7100")
        .header(header::CONTENT_TYPE, "application/json")
        .extension((roles::Caller::by_socket(None), bounds::Party::Socket));
    request.body(body.into()).expect("a request")
}

/// The same request as anybody on this machine sends it, over plain HTTP.
#[cfg(any(test, feature = "testing"))]
pub fn by_loopback(mut request: Request) -> Request {
    request.extensions_mut().insert((roles::Caller::LOCAL, bounds::Party::Local));
    request
}

#[cfg(test)]
mod tests;
