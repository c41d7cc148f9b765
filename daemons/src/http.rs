//! What both daemons serve alike, and the bounds on what they read.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
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
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::{Stream, StreamExt as _};

use crate::control::Snapshot;
use crate::events::Events;

/// No message of the wire comes near this.
const BODY_BYTES_MAX: usize = 64 << 10;

/// More connections wait: what they hold must never starve the files that throttle cores.
const CONNECTIONS_MAX: usize = 128;

/// A connection on which nothing has moved for this long is closed. Chassis managers speak several
/// times a second, and event streams are kept alive every 15 s.
const IDLE_MAX: Duration = Duration::from_secs(30);

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
        .method_not_allowed_fallback(async || {
            Refused(StatusCode::METHOD_NOT_ALLOWED, "no such method here".into())
        })
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
    let listener = Bounded { listener, free: Arc::new(Semaphore::new(CONNECTIONS_MAX)) };
    let server = axum::serve(listener, routes).with_graceful_shutdown(stop);
    tokio::select! {
        served = server => served,
        () = async {
            let _ = stopped.changed().await;
            tokio::time::sleep(Duration::from_millis(500)).await;
        } => Ok(()),
    }
}

/// A listener with a bound on its connections.
struct Bounded {
    listener: TcpListener,
    free: Arc<Semaphore>,
}

impl axum::serve::Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // The semaphore is never closed; without a permit a connection would only not be counted.
        let permit = Arc::clone(&self.free).acquire_owned().await.ok();
        let (stream, from) = axum::serve::Listener::accept(&mut self.listener).await;
        let idle = Box::pin(tokio::time::sleep(IDLE_MAX));
        (Connection { stream, idle, _permit: permit }, from)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A counted connection that ends when it idles.
struct Connection {
    stream: TcpStream,
    idle: Pin<Box<Sleep>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// Passes on what the stream says; notes that something moved, or that nothing did for too long.
    fn watched<T>(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.idle.as_mut().reset(Instant::now() + IDLE_MAX);
        } else if self.idle.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        polled
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.watched(cx, polled)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watched(cx, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
