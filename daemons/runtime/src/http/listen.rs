//! Listening: one task for every connection, so that none waits for another.

use std::future::{self, Future};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;
use tower::ServiceExt as _;

use super::bounds::{Bounds, Party, Room};
use super::roles::{AccessPolicy, Caller};
use super::socket;
use crate::config::Listen;
use crate::tls::Tls;

/// A handshake must be done by then. A good one takes milliseconds.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(if cfg!(test) { 10 } else { 3 });
/// The head of a request must be whole this long after the connection's start, or after the last
/// answer. Chassis managers speak several times a second.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// No head of ours comes near this.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// A connection on which nothing has moved for this long is closed: its peer does not read. Event
/// streams are kept alive every 15 s.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// After a failed accept, as when files run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Between two tries to bind a socket.
const BIND_PAUSE: Duration = Duration::from_secs(1);
/// Open streams are cut this long after the order to stop.
const STOP_WITHIN: Duration = Duration::from_millis(500);

/// One address or socket, bound.
pub enum Listener {
    Plain(TcpListener),
    Tls(TcpListener, Arc<Tls>),
    Socket(UnixListener),
    /// A socket that could not be bound: it is tried again.
    Unbound(PathBuf),
}

/// Who has connected, before anything was said.
enum Connection {
    Plain(TcpStream),
    Tls(TcpStream, SocketAddr, Arc<Tls>),
    Socket(UnixStream),
}

impl Listener {
    #[cfg(test)]
    pub(super) fn local_addr(&self) -> SocketAddr {
        let (Self::Plain(listener) | Self::Tls(listener, _)) = self else { panic!("a socket") };
        listener.local_addr().expect("a bound socket has an address")
    }

    async fn bound(self, access: &AccessPolicy) -> Self {
        let Self::Unbound(path) = self else { return self };
        loop {
            match socket::bind(&path) {
                Ok(listener) => {
                    access.note_socket(None);
                    return Self::Socket(listener);
                }
                Err(error) => access.note_socket(Some(format!("{}: {error}", path.display()))),
            }
            sleep(BIND_PAUSE).await;
        }
    }

    async fn accept(&self) -> io::Result<Connection> {
        Ok(match self {
            Self::Unbound(_) => future::pending().await,
            Self::Plain(listener) => Connection::Plain(listener.accept().await?.0),
            Self::Tls(listener, tls) => {
                let (stream, from) = listener.accept().await?;
                Connection::Tls(stream, from, Arc::clone(tls))
            }
            Self::Socket(listener) => Connection::Socket(listener.accept().await?.0),
        })
    }
}

/// Binds every address, with a clear error; sockets too, or they are tried again.
pub async fn bind(all: &[Listen], tls: Option<&Arc<Tls>>) -> io::Result<Vec<Listener>> {
    let mut listeners = vec![];
    for listen in all {
        listeners.push(
            bind_one(listen, tls).await.map_err(|error| {
                io::Error::new(error.kind(), format!("cannot listen on {listen}: {error}"))
            })?,
        );
    }
    Ok(listeners)
}

async fn bind_one(listen: &Listen, tls: Option<&Arc<Tls>>) -> io::Result<Listener> {
    Ok(match listen {
        Listen::Plain(at) => Listener::Plain(TcpListener::bind(at).await?),
        Listen::Tls(at) => {
            let tls = tls.cloned().ok_or_else(|| io::Error::other("there are no certificates"))?;
            Listener::Tls(TcpListener::bind(at).await?, tls)
        }
        // The budget is guarded without it, and others are alerted by TLS.
        Listen::Socket(path) => match socket::bind(path) {
            Ok(listener) => Listener::Socket(listener),
            Err(error) => {
                tracing::warn!(%error, "cannot listen on {listen}; it is tried again");
                Listener::Unbound(path.clone())
            }
        },
    })
}

/// Serves until `stop` ends; open streams are cut half a second later. Ends before that when a listener does: a daemon
/// that cannot be reached is to be started anew.
pub async fn serve(
    listeners: Vec<Listener>,
    routes: Router,
    access: Arc<AccessPolicy>,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let (stopping, stopped) = watch::channel(());
    let service = Service { routes, access, stopped };
    let mut welcoming = JoinSet::new();
    for listener in listeners {
        welcoming.spawn(welcome(listener, service.clone()));
    }
    drop(service);

    tokio::select! {
        () = stop => {}
        Some(ended) = welcoming.join_next() => return tracing::error!(?ended, "a listener has ended"),
    }
    stopping.send_replace(());
    // Whoever is still there has had its time.
    let _ = timeout(STOP_WITHIN, stopping.closed()).await;
}

#[derive(Clone)]
struct Service {
    routes: Router,
    access: Arc<AccessPolicy>,
    /// Changes when the daemon stops.
    stopped: watch::Receiver<()>,
}

async fn welcome(listener: Listener, mut service: Service) {
    let access = Arc::clone(&service.access);
    let listener = tokio::select! {
        listener = listener.bound(&access) => listener,
        _ = service.stopped.changed() => return,
    };
    loop {
        let connection = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(connection) => connection,
                Err(error) => {
                    tracing::warn!(%error, "accept");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            _ = service.stopped.changed() => return,
        };

        let party = match &connection {
            Connection::Plain(_) => Party::Local,
            Connection::Socket(_) => Party::Socket,
            Connection::Tls(_, from, _) => Party::at(from.ip()),
        };

        let room = service.access.bounds.enter(party.clone());
        let service = service.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = attend(connection, party.clone(), &room, service) => {}
                () = room.taken_away() => tracing::debug!(?party, "made room for another"),
            }
        });
    }
}

async fn attend(connection: Connection, party: Party, room: &Room, service: Service) {
    // That Nagle's algorithm stays on costs latency, nothing else.
    match connection {
        Connection::Plain(stream) => {
            let _ = stream.set_nodelay(true);
            speak(Watched::new(stream), Caller::LOCAL, party, room, service).await;
        }
        Connection::Tls(stream, from, tls) => {
            let _ = stream.set_nodelay(true);
            attend_tls(stream, from, &tls, party, room, service).await;
        }
        Connection::Socket(stream) => {
            let caller = Caller::by_socket(stream.peer_cred().ok());
            speak(Watched::new(stream), caller, party, room, service).await;
        }
    }
}

/// One connection by TLS, from its handshake to its end.
async fn attend_tls(
    stream: TcpStream,
    from: SocketAddr,
    tls: &Arc<Tls>,
    party: Party,
    room: &Room,
    service: Service,
) {
    let stream = Watched::new(stream);
    let generation = tls.generation();
    let bounds = Arc::clone(&service.access.bounds);
    let stream = match timeout(HANDSHAKE_WITHIN, shake_hands(stream, from, tls, room, &bounds)).await {
        Ok(Ok(stream)) => stream,
        failed => {
            bounds.refusals.handshakes.fetch_add(1, Ordering::Relaxed);
            let why = match failed {
                Ok(Err(error)) => error.to_string(),
                _ => "not done in time".to_owned(),
            };

            if bounds.is_told() {
                tracing::info!(%from, why, "handshake refused; the next ones are only counted");
            } else {
                tracing::debug!(%from, why, "handshake refused");
            }

            return;
        }
    };

    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
    let caller = Caller::certified(tls, generation, chain);
    let party = caller.party(party);

    if caller.role().is_some() {
        bounds.knows(from.ip());
    }
    room.belongs_to(party.clone());
    speak(stream, caller, party, room, service).await;
}

/// What a client says first costs nothing to read; the handshake that it asks for does.
async fn shake_hands(
    stream: Watched<TcpStream>,
    from: SocketAddr,
    tls: &Tls,
    room: &Room,
    bounds: &Bounds,
) -> io::Result<TlsStream<Watched<TcpStream>>> {
    let asked = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
    let reservation =
        asked.client_hello().alpn().is_some_and(|mut all| all.any(|it| tls.shows_reservation(it)));
    if reservation {
        room.belongs_to(Party::Reserved);
    }
    if !bounds.may_handshake(from.ip(), reservation) {
        return Err(io::Error::other("too many"));
    }
    asked.into_stream(tls.server()).await
}

/// HTTP/1.1 with one caller.
async fn speak<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    caller: Caller,
    party: Party,
    room: &Room,
    mut service: Service,
) {
    let routes = service.routes;
    let answer = service_fn(|request: Request<Incoming>| {
        room.spoke();
        let mut request = request.map(Body::new);
        request.extensions_mut().insert((caller.clone(), party.clone()));

        routes.clone().oneshot(request)
    });

    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), answer);
    let mut serving = pin!(serving);

    // How a connection ends is its peer's business.
    tokio::select! {
        _ = serving.as_mut() => return,
        // At once, and in the middle of a stream: it would go on for ever.
        () = caller.is_out() => return tracing::debug!("its certificate is no longer good"),
        _ = service.stopped.changed() => serving.as_mut().graceful_shutdown(),
    }

    let _ = serving.await;
}

/// A connection that ends when nothing moves.
struct Watched<S> {
    stream: S,
    idle: Pin<Box<Sleep>>,
}

impl<S> Watched<S> {
    fn new(stream: S) -> Self {
        Self { stream, idle: Box::pin(sleep(IDLE_MAX)) }
    }

    /// Passes on what the stream says; notes that something moved, or that nothing did for too long.
    fn noted<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.idle.as_mut().reset(Instant::now() + IDLE_MAX);
        } else if self.idle.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        polled
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.noted(cx, polled)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.noted(cx, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
