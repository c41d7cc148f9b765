//! The listener over real sockets on loopback: who comes in, who may do what, who waits for whom.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::tls::authority::{Authority, Pair};
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderMap, HeaderValue};
use axum::routing::{get, post};
use ballast_types::wire::{Event, EventKind};
use ballast_types::{ChassisId, Role};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};

use super::roles::only;
use super::*;
use crate::Target;
use crate::audit::AuditLog;
use crate::config::Listen;
use crate::state::DiskFaults;
use crate::tls::{self, Peer, Tls, TlsConfig};

const DAY: Duration = Duration::from_secs(86_400);
/// Nothing here takes longer, however busy the machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// What every request must say.
const HEAD: &str = "Host: localhost\r\nContent-Type: application/json\r\n";
const AGENT: &str = "ballast://agent/s01";
/// As long as the answer to an order about thousands of VMs.
const LONG: usize = 3 << 20;

fn role(uri: &str) -> Role {
    uri.parse().unwrap()
}

/// A site: an authority, and a folder for its files.
struct Site {
    authority: Authority,
    ca: Pair,
    dir: TempDir,
}

impl Site {
    fn new() -> Self {
        let (authority, ca) = Authority::new(1000 * DAY).unwrap();
        Self { authority, ca, dir: tempfile::tempdir().unwrap() }
    }

    fn issue(&self, roles: &[&str]) -> Pair {
        let roles: Vec<_> = roles.iter().map(|uri| role(uri)).collect();
        self.authority.issue(&roles, &[], 30 * DAY).unwrap()
    }

    /// Writes a pair for one who trusts this site's authority.
    fn files(&self, name: &str, pair: &Pair) -> TlsConfig {
        let at = |end: &str| self.dir.path().join(format!("{name}.{end}"));
        let config = TlsConfig { cert: at("crt"), key: at("key"), ca: at("ca"), warn_before: DAY };
        fs::write(&config.ca, &self.ca.certificate).unwrap();
        pair.put(&config.cert, &config.key).unwrap();
        config
    }

    fn tls(&self, uri: &str) -> Arc<Tls> {
        let name = uri.replace(['/', ':'], "-");
        Tls::open(&self.files(&name, &self.issue(&[uri])), None).unwrap()
    }

    /// A client that shows the certificate of `uri`.
    fn client(&self, uri: &str) -> reqwest::Client {
        client(&self.tls(uri), Peer::Only(role(AGENT)))
    }
}

/// An agent's listener, and the site whose certificates it knows.
async fn agent_at_a_site() -> (Site, TestServer) {
    let site = Site::new();
    let server = TestServer::open(Some(&site.tls(AGENT))).await;
    (site, server)
}

/// A client that calls its bodies JSON.
fn json_client(client: reqwest::ClientBuilder) -> reqwest::Client {
    let json = HeaderValue::from_static("application/json");
    let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, json)]);
    client.default_headers(headers).timeout(PATIENCE).build().unwrap()
}

fn client(tls: &Tls, peer: Peer) -> reqwest::Client {
    json_client(tls::http_client(Some((tls, peer))))
}

/// What an agent of chassis c1 has at its listener: one route for every right.
struct TestServer {
    tls: SocketAddr,
    plain: SocketAddr,
    socket: PathBuf,
    folder: TempDir,
    /// The order that takes its time has begun.
    begun: Arc<Notify>,
    access: Arc<AccessPolicy>,
    _stop: oneshot::Sender<()>,
}

impl TestServer {
    async fn open(tls: Option<&Arc<Tls>>) -> Self {
        let (done, events, folder) = (async || "done", Events::default(), tempfile::tempdir().unwrap());
        let audit = AuditLog::new(folder.path(), events.clone(), DiskFaults::default());
        let access = AccessPolicy::new(ChassisId::new("c1").ok()).with_audit(audit);
        let access = Arc::new(access.with_allowed_hosts(&["monitor.example".to_owned()]));
        let begun = Arc::new(Notify::new());
        let told = Arc::clone(&begun);
        let slow = async move || {
            told.notify_one();
            sleep(Duration::from_millis(500)).await;
            "done"
        };
        let routes = Router::new()
            .route("/v1/status", get(async || "fine"))
            .route(
                "/v1/events",
                get(async move |asked: HeaderMap| event_stream(&events, &asked, tokio_stream::empty())),
            )
            .route("/v1/ask", post(done))
            .route("/v1/alert", only(Right::Alert, post(async |body: Bytes| body)))
            .route("/v1/budget", only(Right::Operate, post(done)))
            .route("/v1/slow", only(Right::Operate, post(slow)))
            .route("/v1/long", only(Right::Operate, post(async || "x".repeat(LONG))))
            .route("/v1/power", only(Right::ReportPower, post(done)))
            .route("/v1/predictions", only(Right::Predict, post(done)));
        let (any, socket) = (SocketAddr::from(([127, 0, 0, 1], 0)), folder.path().join("run/b.sock"));
        let by_tls = tls.map(|_| Listen::Tls(any));
        let all: Vec<_> = [Listen::Plain(any)].into_iter().chain(by_tls).collect();
        let mut listeners = bind(&all, tls).await.unwrap();
        let at: Vec<_> = listeners.iter().map(Listener::local_addr).collect();
        listeners.extend(bind(&[Listen::Socket(socket.clone())], None).await.unwrap());
        let (stop, stopped) = oneshot::channel();
        let serving = serve(listeners, guarded(routes, Arc::clone(&access)), Arc::clone(&access), async {
            drop(stopped.await);
        });
        tokio::spawn(serving);

        let (plain, tls) = (at[0], *at.last().unwrap());
        Self { plain, tls, socket, folder, begun, access, _stop: stop }
    }

    fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.tls)
    }

    /// The status of the answer; 0 when there is none.
    async fn post(&self, client: &reqwest::Client, path: &str) -> u16 {
        let sent = client.post(self.url(path)).body("{}").send().await;
        sent.map_or(0, |answer| answer.status().as_u16())
    }

    /// A connection from an address of its own, as another machine would make it.
    async fn unknown(&self, last: u8) -> std::io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from(([127, 0, 9, last], 0)))?;
        socket.connect(self.tls).await
    }
}

#[tokio::test]
async fn every_role_may_do_its_own_thing_and_read() {
    let (site, server) = agent_at_a_site().await;

    //                            alert budget power predictions status
    for (uri, expected) in [
        ("ballast://chassis/c1", [200, 403, 403, 403, 200]),
        ("ballast://chassis/c2", [403, 403, 403, 403, 200]),
        ("ballast://agent/s01", [403, 403, 403, 403, 200]),
        ("ballast://agent/c1", [403, 403, 403, 403, 200]),
        ("ballast://operator/c1", [403, 200, 403, 403, 200]),
        ("ballast://power/c1", [403, 403, 200, 403, 200]),
        ("ballast://place/c1", [403, 403, 403, 200, 200]),
    ] {
        let client = site.client(uri);
        let mut got = vec![];
        for path in ["/v1/alert", "/v1/budget", "/v1/power", "/v1/predictions"] {
            got.push(server.post(&client, path).await);
        }
        let read = client.get(server.url("/v1/status")).send().await.unwrap();
        got.push(read.status().as_u16());
        assert_eq!(got, expected, "{uri}");
    }

    assert_eq!(server.access.bounds.refusals.unauthorised.load(Ordering::Relaxed), 24);
}

#[tokio::test]
async fn a_long_answer_to_an_order_is_whole() {
    let (site, server) = agent_at_a_site().await;
    let client = site.client("ballast://operator/ann");
    let answer = client.post(server.url("/v1/long")).send().await.unwrap();
    assert_eq!((answer.status(), answer.bytes().await.unwrap().len()), (StatusCode::OK, LONG));
    let audit = fs::read_to_string(server.folder.path().join("orders.jsonl")).unwrap();
    assert!(audit.contains("POST /v1/long") && audit.len() < 1000, "{audit}");
}

#[tokio::test]
async fn a_certificate_with_two_roles_or_none_has_no_right_but_to_read() {
    let (site, server) = agent_at_a_site().await;
    for roles in [&[][..], &["ballast://chassis/c1", "ballast://operator/ann"]] {
        let pair = site.issue(roles);
        let mut stream = shake_hands(&server, &site, Some(&pair)).await.unwrap();
        assert_eq!(ask(&mut stream, "GET /v1/status").await, 200, "{roles:?}");
        for path in ["/v1/alert", "/v1/budget", "/v1/power", "/v1/predictions"] {
            assert_eq!(ask(&mut stream, &format!("POST {path}")).await, 403, "{roles:?} {path}");
        }
    }
}

#[tokio::test]
async fn who_cannot_prove_who_he_is_does_not_come_in() {
    let (site, other) = (Site::new(), Site::new());
    let server = TestServer::open(Some(&site.tls(AGENT))).await;
    let chassis = "ballast://chassis/c1";
    let expired = site.authority.issue_expired(&role(chassis)).unwrap();
    let foreign = other.issue(&[chassis]);

    // The right certificate with another's key: its owner never sees the handshake through.
    let stolen = Pair { certificate: site.issue(&[chassis]).certificate, ..site.issue(&[chassis]) };

    for (what, pair) in
        [("none", None), ("expired", Some(&expired)), ("foreign", Some(&foreign)), ("stolen", Some(&stolen))]
    {
        let came_in = match shake_hands(&server, &site, pair).await {
            Ok(mut stream) => ask(&mut stream, "POST /v1/alert").await != 0,
            Err(_) => false,
        };

        assert!(!came_in, "{what}");
    }

    assert_eq!(ask_plain(server.tls).await, 0, "plain HTTP where TLS is spoken");
    let failed = server.access.bounds.refusals.handshakes.load(Ordering::Relaxed);
    assert_eq!(failed, 5);
    assert_eq!(server.post(&site.client(chassis), "/v1/alert").await, 200, "who can does");
}

#[tokio::test]
async fn this_machine_reads_by_loopback_and_orders_by_the_socket() {
    let site = Site::new();
    for tls in [None, Some(site.tls(AGENT))] {
        let server = TestServer::open(tls.as_ref()).await;
        for (target, expected) in [
            (Target::new(&format!("http://{}", server.plain)), 403),
            (Target::at_socket(server.socket.clone()), 200),
        ] {
            let local = json_client(target.reached_by(tls::http_client(None)));
            let read = local.get(target.url("/v1/status")).send().await.unwrap();
            assert_eq!(read.status().as_u16(), 200);
            for path in ["/v1/alert", "/v1/budget", "/v1/power", "/v1/predictions"] {
                let answer = local.post(target.url(path)).send().await.unwrap();
                assert_eq!(answer.status().as_u16(), expected, "{path}");
            }
        }
    }
}

#[tokio::test]
async fn a_socket_is_for_its_owner_and_group_and_takes_the_place_of_a_dead_one_alone() {
    let server = TestServer::open(None).await;
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&server.socket), 0o660);
    let error = socket::bind(&server.socket).unwrap_err().to_string();
    assert!(error.contains("another daemon answers there"), "{error}");

    let dead = server.socket.with_file_name("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    assert!(socket::bind(&dead).is_ok());
    let file = server.socket.with_file_name("file");
    fs::write(&file, "an operator's").unwrap();
    let error = socket::bind(&file).unwrap_err().to_string();
    assert!(error.contains("no socket") && fs::read(&file).unwrap() == b"an operator's", "{error}");
}

#[tokio::test]
async fn an_order_is_written_down_and_counted_though_its_client_hangs_up() {
    let server = TestServer::open(None).await;
    let mut stream = UnixStream::connect(&server.socket).await.unwrap();
    let order = format!("POST /v1/slow HTTP/1.1\r\n{HEAD}Content-Length: 2\r\n\r\n{{}}");
    stream.write_all(order.as_bytes()).await.unwrap();
    timeout(PATIENCE, server.begun.notified()).await.expect("the order is under way");
    drop(stream);

    let [done, _, _] = &server.access.bounds.refusals.orders;
    let counted = async {
        while done.load(Ordering::Relaxed) == 0 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, counted).await.expect("it is counted");
    let written = fs::read_to_string(server.folder.path().join("orders.jsonl")).unwrap();
    assert!(written.contains("POST /v1/slow") && written.contains("200 OK"), "{written}");
}

#[tokio::test]
async fn a_client_speaks_only_with_whom_it_means() {
    let (site, other) = (Site::new(), Site::new());
    let server = TestServer::open(Some(&site.tls(AGENT))).await;
    let chassis = site.tls("ballast://chassis/c1");

    for (peer, expected) in [
        (Peer::Only(role(AGENT)), None),
        (Peer::Daemon, None),
        (Peer::Only(role("ballast://agent/s02")), Some("the peer is ballast://agent/s01, not")),
        (Peer::Only(role("ballast://chassis/s01")), Some("the peer is ballast://agent/s01, not")),
    ] {
        let sent = client(&chassis, peer).get(server.url("/v1/status")).send().await;
        match (sent, expected) {
            (Ok(answer), None) => assert_eq!(answer.status().as_u16(), 200),
            (Err(error), Some(says)) => {
                let cause = tls::cause(&error);
                assert!(cause.contains(says), "{cause}");
            }
            (sent, _) => panic!("{sent:?}"),
        }
    }

    let foreign = other.tls("ballast://chassis/c1");
    let sent = client(&foreign, Peer::Daemon).get(server.url("/v1/status")).send().await;
    assert!(tls::cause(&sent.unwrap_err()).starts_with("invalid peer certificate"));
    let nobody = tls::http_client(None).build().unwrap();
    assert!(nobody.get(server.url("/v1/status")).send().await.is_err(), "without certificates no https");
}

#[tokio::test]
async fn alerts_pass_beside_128_stuck_clients() {
    let (site, server) = agent_at_a_site().await;
    let chassis = site.client("ballast://chassis/c1");
    assert_eq!(server.post(&chassis, "/v1/alert").await, 200);
    let mut stuck = vec![];

    for n in 0..128u8 {
        // Some say nothing, some begin a handshake and stop; all from many places.
        let Ok(mut stream) = server.unknown(1 + n % 16).await else { continue };
        if n % 2 == 0 {
            let _ = stream.write_all(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc]).await;
        }
        stuck.push(stream);
    }

    // And some who have a certificate stop in the middle of a request.
    let pair = site.issue(&["ballast://operator/ann"]);

    for n in 0..20 {
        let mut stream = shake_hands(&server, &site, Some(&pair)).await.unwrap();
        let half = if n % 2 == 0 { "POST /v1/budget HTTP/1.1\r\nHost" } else { HALF_A_BODY };
        stream.write_all(half.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        std::mem::forget(stream);
    }

    for who in ["the old connection", "a new one"] {
        let client = match who {
            "a new one" => site.client("ballast://chassis/c1"),
            _ => chassis.clone(),
        };

        let mut quickest = Duration::MAX;
        for _ in 0..20 {
            let begun = Instant::now();
            assert_eq!(server.post(&client, "/v1/alert").await, 200, "{who}");
            quickest = quickest.min(begun.elapsed());
        }

        assert!(quickest < Duration::from_secs(2), "{who}: {quickest:?}");
    }

    drop(stuck);
}

const HALF_A_BODY: &str = "POST /v1/budget HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                           Content-Length: 9\r\n\r\n{";

#[tokio::test]
async fn who_does_not_go_on_is_put_out() {
    let (site, server) = agent_at_a_site().await;
    let begun = Instant::now();
    let mut half_open = server.unknown(1).await.unwrap();
    let pair = site.issue(&["ballast://operator/ann"]);
    let mut slow_head = shake_hands(&server, &site, Some(&pair)).await.unwrap();
    let mut slow_body = shake_hands(&server, &site, Some(&pair)).await.unwrap();
    slow_body.write_all(HALF_A_BODY.as_bytes()).await.unwrap();
    let mut left = [false; 3];
    let mut sink = [0; 4096];

    while begun.elapsed() < 3 * PATIENCE && left != [true; 3] {
        // One byte now and then keeps no head alive.
        let fed = slow_head.write_all(b"G").await;
        left[1] |= fed.is_err();
        let soon = Duration::from_millis(50);
        left[0] |= matches!(timeout(soon, half_open.read(&mut sink)).await, Ok(Ok(0) | Err(_)));
        left[1] |= matches!(timeout(soon, slow_head.read(&mut sink)).await, Ok(Ok(0) | Err(_)));

        match timeout(soon, slow_body.read(&mut sink)).await {
            Ok(Ok(0) | Err(_)) => left[2] = true,
            Ok(Ok(n)) if !left[2] => {
                let text = String::from_utf8_lossy(&sink[..n]);
                assert!(text.starts_with("HTTP/1.1 408"), "{text}");
            }
            _ => {}
        }
    }

    assert_eq!(left, [true; 3], "half-open handshake, slow head, slow body");
}

#[tokio::test]
async fn who_asks_too_often_is_told_and_alerts_never_are() {
    let (site, server) = agent_at_a_site().await;
    let (other, chassis) = (site.client("ballast://operator/bob"), site.client("ballast://chassis/c1"));
    assert_eq!(server.post(&other, "/v1/budget").await, 200);
    assert_eq!(server.post(&chassis, "/v1/alert").await, 200);
    let begun = Instant::now();
    let limited = limited_of_600(&server, &site, "ballast://operator/ann", "POST /v1/budget").await;
    // However slow this machine is, it may also have been too slow to ask too often.
    let earned = 200 + begun.elapsed().as_millis() as u64 / 5;
    assert!(limited > 0 || earned >= 600, "nobody was limited in {:?}", begun.elapsed());
    assert_eq!(server.post(&chassis, "/v1/alert").await, 200);
    assert_eq!(server.post(&other, "/v1/budget").await, 200, "another's tokens are its own");
    let limited = limited_of_600(&server, &site, "ballast://chassis/c1", "POST /v1/alert").await;
    assert_eq!(limited, 0);
}

/// How many of 600 requests are answered 429, and not 200: all on one connection, since one address may
/// not begin so many, and none waits for the answer of the one before.
async fn limited_of_600(server: &TestServer, site: &Site, uri: &str, line: &str) -> usize {
    let stream = shake_hands(server, site, Some(&site.issue(&[uri]))).await.unwrap();
    let (mut answers, mut requests) = tokio::io::split(stream);
    let head = format!("{line} HTTP/1.1\r\n{HEAD}Content-Length: 2\r\n");
    let last = format!("{head}Connection: close\r\n\r\n{{}}");
    let all = format!("{head}\r\n{{}}").repeat(599) + &last;
    let asking = async {
        requests.write_all(all.as_bytes()).await?;
        requests.flush().await
    };

    let mut text = vec![];
    let both = timeout(10 * PATIENCE, async { tokio::join!(asking, answers.read_to_end(&mut text)) });
    let (asked, answered) = both.await.expect("an end");
    asked.and(answered).unwrap();
    let text = String::from_utf8_lossy(&text);
    let [fine, limited] = ["200", "429"].map(|it| text.matches(&format!("HTTP/1.1 {it}")).count());
    assert_eq!(fine + limited, 600, "{text}");

    limited
}

#[tokio::test]
async fn a_long_body_is_refused_and_never_read() {
    let (site, server) = agent_at_a_site().await;
    let chassis = site.client("ballast://chassis/c1");
    for (bytes, expected) in [(64 << 10, 200), ((64 << 10) + 1, 413)] {
        let sent = chassis.post(server.url("/v1/alert")).body(vec![b' '; bytes]).send().await;
        assert_eq!(sent.unwrap().status().as_u16(), expected, "{bytes}");
    }
    let huge = format!("POST /v1/alert HTTP/1.1\r\n{HEAD}Content-Length: 99999999999\r\n\r\n");
    let pair = site.issue(&["ballast://chassis/c1"]);
    let mut stream = shake_hands(&server, &site, Some(&pair)).await.unwrap();
    assert_eq!(answer_to(&mut stream, huge.as_bytes()).await, 413);
    let mut stream = shake_hands(&server, &site, Some(&pair)).await.unwrap();
    let head = format!("GET /v1/status HTTP/1.1\r\n{HEAD}X: {}\r\n\r\n", "x".repeat(64 << 10));
    assert_eq!(answer_to(&mut stream, head.as_bytes()).await, 431);
}

#[tokio::test]
async fn long_bodies_are_read_one_at_a_time_and_short_ones_wait_for_none() {
    let access = Arc::new(AccessPolicy::of_queries().with_body_bytes_max(16 << 20));
    let length = async |body: Bytes| body.len().to_string();
    let routes = Router::new().route("/ask", post(length)).layer(DefaultBodyLimit::disable());
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listeners = bind(&[Listen::Plain(any)], None).await.unwrap();
    let at = listeners[0].local_addr();
    let (_stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(serve(listeners, guarded(routes, Arc::clone(&access)), access, async {
        drop(stopped.await);
    }));
    let question =
        |bytes: usize| format!("POST /ask HTTP/1.1\r\n{HEAD}Content-Length: {bytes}\r\n\r\n").into_bytes();
    let whole = |bytes: usize| [question(bytes), vec![b' '; bytes]].concat();
    let asks = async |text: Vec<u8>| answer_to(&mut TcpStream::connect(at).await.unwrap(), &text).await;

    // It has the turn, and does not go on.
    let mut slow = TcpStream::connect(at).await.unwrap();
    slow.write_all(&question((16 << 20) - 1)).await.unwrap();
    slow.write_all(&[b' '; 4096]).await.unwrap();
    sleep(Duration::from_millis(300)).await;
    let next = whole((16 << 20) - 1);
    let next =
        tokio::spawn(async move { answer_to(&mut TcpStream::connect(at).await.unwrap(), &next).await });

    // They come by loopback as those two do.
    for bytes in [2, SHORT, SHORT + 1, 1 << 20] {
        assert_eq!(asks(whole(bytes)).await, 200, "{bytes} bytes");
    }
    sleep(Duration::from_secs(1)).await;
    assert!(!next.is_finished(), "two are in memory");
    assert_eq!(answer_to(&mut slow, b"").await, 408, "it is put out");
    assert_eq!(next.await.unwrap(), 200);
}

const SHORT: usize = 64 << 10;

#[tokio::test]
async fn trust_ends_with_the_authority_even_on_a_connection_that_stands() {
    let (site, next) = (Site::new(), Site::new());
    let pair = site.issue(&[AGENT]);
    let files = site.files("agent", &pair);
    let tls = Tls::open(&files, None).unwrap();
    let server = TestServer::open(Some(&tls)).await;
    let chassis = site.client("ballast://chassis/c1");
    assert_eq!(server.post(&chassis, "/v1/alert").await, 200);

    // Both are trusted: nothing changes for the old one.
    fs::write(&files.ca, format!("{}{}", site.ca.certificate, next.ca.certificate)).unwrap();
    tls.look();
    assert_eq!(tls.generation(), 1);
    assert_eq!(server.post(&chassis, "/v1/alert").await, 200);

    // Only the next one is: the old chassis is out, on its old connection and on new ones.
    fs::write(&files.ca, &next.ca.certificate).unwrap();
    tls.look();
    assert_eq!(tls.generation(), 2);

    // Told so, or its connection was ended already.
    let told = server.post(&chassis, "/v1/alert").await;
    assert!(matches!(told, 401 | 0), "{told}");
    assert_eq!(server.post(&chassis, "/v1/alert").await, 0);
}

/// Opens the stream of events; `None` when the certificate is refused.
async fn stream_of(server: &TestServer, client: &reqwest::Client) -> Option<reqwest::Response> {
    let answer = client.get(server.url("/v1/events")).send().await.ok()?;
    (answer.status().as_u16() == 200).then_some(answer)
}

async fn ends(mut stream: reqwest::Response) -> bool {
    let end = async { while let Ok(Some(_)) = stream.chunk().await {} };
    timeout(PATIENCE, end).await.is_ok()
}

#[tokio::test]
async fn a_stream_of_events_ends_with_the_certificate_that_it_was_begun_with() {
    let (site, next) = (Site::new(), Site::new());
    let files = site.files("agent", &site.issue(&[AGENT]));
    let tls = Tls::open(&files, None).unwrap();
    let server = TestServer::open(Some(&tls)).await;

    // It expires. However slow this machine is, one of them is open before it does.
    let brief = |seconds| {
        let role = [role("ballast://operator/ann")];
        let pair = site.authority.issue(&role, &[], Duration::from_secs(seconds)).unwrap();
        let tls = Tls::open(&site.files("ann", &pair), None).unwrap();

        client(&tls, Peer::Only(self::role(AGENT)))
    };

    let mut open = None;

    for seconds in [2, 4, 8] {
        open = stream_of(&server, &brief(seconds)).await;
        if open.is_some() {
            break;
        }
    }

    assert!(ends(open.expect("a stream")).await, "expired");

    // Its authority is taken out.
    let mut lasting = stream_of(&server, &site.client("ballast://operator/bob")).await.unwrap();
    assert!(lasting.chunk().await.unwrap().is_some(), "when to come back");
    let quiet = timeout(Duration::from_millis(1), lasting.chunk()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    fs::write(&files.ca, &next.ca.certificate).unwrap();
    tls.look();
    assert!(ends(lasting).await, "no longer trusted");
}

#[tokio::test]
async fn who_was_here_before_comes_back_through_a_flood_from_its_own_address() {
    let (site, server) = agent_at_a_site().await;
    let chassis = site.tls("ballast://chassis/c1");
    let reservation_of = async |client: &reqwest::Client, path: &str| {
        let answer = client.post(server.url(path)).send().await.unwrap();
        answer.headers().get(tls::RESERVATION).map(|reservation| reservation.to_str().unwrap().to_owned())
    };

    let reservation = reservation_of(&site.client("ballast://chassis/c1"), "/v1/alert").await.unwrap();
    assert!(tls::is_reservation(&reservation), "{reservation}");

    for other in ["ballast://chassis/c2", "ballast://operator/ann", AGENT] {
        assert_eq!(reservation_of(&site.client(other), "/v1/budget").await, None, "{other}");
    }

    // Whatever its address may do is used up, again and again.
    let (bounds, (stop, stopped)) = (Arc::clone(&server.access.bounds), std::sync::mpsc::channel::<()>());
    let flood = std::thread::spawn(move || {
        let from = std::net::IpAddr::from([127, 0, 0, 1]);
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            bounds.may_handshake(from, false);
        }
    });

    let peer = || Some((&*chassis, Peer::Only(role(AGENT))));
    let mut came_back = false;
    let begun = Instant::now();

    // Each in a handshake of its own: the first may come before the flood.
    while !came_back && begun.elapsed() < PATIENCE {
        let client = json_client(tls::client_with_reservation(peer(), Some(&reservation)));
        came_back = server.post(&client, "/v1/alert").await == 200;
    }

    let wrong = "0".repeat(32);
    let mut kept_out = false;

    while !kept_out && begun.elapsed() < PATIENCE {
        let client = json_client(tls::client_with_reservation(peer(), Some(&wrong)));
        kept_out = server.post(&client, "/v1/alert").await == 0;
    }

    drop(stop);
    flood.join().unwrap();
    assert!(came_back && kept_out, "{came_back} {kept_out}");
}

/// A handshake by a client that checks nothing of what it shows.
async fn shake_hands(
    server: &TestServer,
    site: &Site,
    pair: Option<&Pair>,
) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(site.ca.certificate.as_bytes()).unwrap()).unwrap();
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    let config = match pair {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let chain = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
            let provider = rustls::crypto::ring::default_provider();
            let key = provider.key_provider.load_private_key(key).unwrap();

            // Made without a look at whether they go together.
            let key = rustls::sign::CertifiedKey::new(vec![chain], key);
            let resolver = rustls::sign::SingleCertAndKey::from(key);

            builder.with_client_cert_resolver(Arc::new(resolver))
        }
    };

    let stream = TcpStream::connect(server.tls).await?;

    // An agent's certificate has its id as DNS name too, for clients that look at that.
    let name = ServerName::try_from("s01").unwrap();

    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// One request; 0 when the other side went away instead.
async fn ask<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(stream: &mut S, line: &str) -> u16 {
    let text = format!("{line} HTTP/1.1\r\n{HEAD}Content-Length: 2\r\n\r\n{{}}");
    answer_to(stream, text.as_bytes()).await
}

async fn answer_to<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(
    stream: &mut S,
    request: &[u8],
) -> u16 {
    // The other side may have gone in the middle; its last words count.
    let _ = stream.write_all(request).await;
    let _ = stream.flush().await;
    let mut answer = vec![0; 4096];
    match timeout(PATIENCE, stream.read(&mut answer)).await.expect("an answer or an end") {
        Ok(n) if n > 12 => String::from_utf8_lossy(&answer[9..12]).parse().unwrap_or(0),
        _ => 0,
    }
}

async fn ask_plain(at: SocketAddr) -> u16 {
    ask(&mut TcpStream::connect(at).await.unwrap(), "POST /v1/alert").await
}

/// The answer's status to a request with these headers, on a connection of its own.
async fn with_headers(server: &TestServer, site: Option<(&Site, &Pair)>, line: &str, headers: &str) -> u16 {
    let body = if line.starts_with("GET") { "" } else { "{}" };
    let length = body.len();
    let text = format!("{line} HTTP/1.1\r\n{headers}Content-Length: {length}\r\n\r\n{body}");
    match site {
        None => answer_to(&mut TcpStream::connect(server.plain).await.unwrap(), text.as_bytes()).await,
        Some((site, pair)) => {
            let mut stream = shake_hands(server, site, Some(pair)).await.unwrap();
            answer_to(&mut stream, text.as_bytes()).await
        }
    }
}

const JSON: &str = "Content-Type: application/json\r\n";

#[tokio::test]
async fn a_name_that_is_not_the_daemons_is_refused_by_plain_http() {
    let server = TestServer::open(None).await;
    let port = server.plain.port();
    for (host, expected) in [
        ("127.0.0.1", 200),
        (&format!("127.0.0.1:{port}"), 200),
        ("127.0.0.9:8100", 200),
        ("localhost", 200),
        (&format!("LocalHost:{port}"), 200),
        (&format!("[::1]:{port}"), 200),
        ("[::ffff:127.0.0.1]", 200),
        ("monitor.example", 200),
        ("Monitor.Example:9443", 200),
        ("evil.example", 403),
        (&format!("evil.example:{port}"), 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("x.monitor.example", 403),
        ("s01", 403),
        ("10.0.0.5", 403),
        ("0.0.0.0", 403),
        ("[fd00::1]", 403),
        ("127.1", 403),
        ("2130706433", 403),
        ("", 400),
        ("a b", 400),
        ("evil@127.0.0.1", 400),
        ("127.0.0.1/x", 400),
    ] {
        for line in ["POST /v1/ask", "GET /v1/status", "GET /v1/events", "GET /nowhere"] {
            let headers = format!("Host: {host}\r\n{JSON}");
            let expected = if (expected, line) == (200, "GET /nowhere") { 404 } else { expected };
            let got = with_headers(&server, None, line, &headers).await;
            assert_eq!(got, expected, "{line} at {host:?}");
        }
    }

    let rebound = format!("http://evil.example:{port}/v1/ask");
    let headers = format!("Host: 127.0.0.1:{port}\r\n{JSON}");
    let line = format!("POST {rebound}");
    assert_eq!(with_headers(&server, None, &line, &headers).await, 400, "two hosts at once");

    for headers in ["", "Host: localhost\r\nHost: localhost\r\n"] {
        let got = with_headers(&server, None, "GET /v1/status", headers).await;
        assert_eq!(got, 400, "{headers:?}");
    }
}

#[tokio::test]
async fn by_tls_a_daemon_has_the_names_in_its_certificate_and_any_address() {
    let (site, server) = agent_at_a_site().await;
    let pair = site.issue(&["ballast://chassis/c1"]);

    for (host, expected) in [
        ("10.0.0.5:7101", 200),
        ("[fd00::1]:7101", 200),
        ("localhost", 200),
        ("s01", 200),
        ("S01:7101", 200),
        ("monitor.example", 200),
        ("s02", 403),
        ("s01.evil.example", 403),
    ] {
        let headers = format!("Host: {host}\r\n{JSON}");
        for line in ["POST /v1/alert", "GET /v1/status"] {
            let got = with_headers(&server, Some((&site, &pair)), line, &headers).await;
            assert_eq!(got, expected, "{line} at {host}");
        }
    }

    // The page's scheme counts: what was loaded in the clear may be anybody's.
    for (origin, expected) in [("https://s01", 200), ("https://s01:443", 200), ("http://s01", 403)] {
        let headers = format!("Host: s01\r\nOrigin: {origin}\r\n{JSON}");
        let got = with_headers(&server, Some((&site, &pair)), "POST /v1/alert", &headers).await;
        assert_eq!(got, expected, "{origin}");
    }
}

#[tokio::test]
async fn what_a_foreign_page_sends_is_refused_and_counted() {
    let server = TestServer::open(None).await;
    let at = format!("127.0.0.1:{}", server.plain.port());
    let cases = [
        (format!("Origin: http://{at}\r\n{JSON}"), 200),
        (format!("Origin: http://{at}\r\nSec-Fetch-Site: same-origin\r\n{JSON}"), 200),
        (format!("Sec-Fetch-Site: none\r\n{JSON}"), 200),
        ("Content-Type: application/json; charset=utf-8\r\n".into(), 200),
        ("Content-Type: Application/JSON\r\n".into(), 200),
        (format!("Origin: http://evil.example\r\n{JSON}"), 403),
        (format!("Origin: http://127.0.0.1\r\n{JSON}"), 403),
        (format!("Origin: http://127.0.0.1:1\r\n{JSON}"), 403),
        (format!("Origin: https://{at}\r\n{JSON}"), 403),
        (format!("Origin: null\r\n{JSON}"), 403),
        (format!("Origin: \r\n{JSON}"), 403),
        (format!("Origin: http://{at}\r\nOrigin: http://evil.example\r\n{JSON}"), 403),
        (format!("Sec-Fetch-Site: cross-site\r\n{JSON}"), 403),
        (format!("Sec-Fetch-Site: same-site\r\n{JSON}"), 403),
        (format!("Sec-Fetch-Site: new-word\r\n{JSON}"), 403),
        ("Content-Type: text/plain\r\n".into(), 415),
        ("Content-Type: text/plain; a=application/json\r\n".into(), 415),
        ("Content-Type: application/x-www-form-urlencoded\r\n".into(), 415),
        ("Content-Type: application/json, text/plain\r\n".into(), 415),
        (format!("Content-Type: text/plain\r\n{JSON}"), 415),
        (String::new(), 415),
    ];

    let mut refused = 0;

    for (headers, expected) in &cases {
        let headers = format!("Host: {at}\r\n{headers}");
        for line in ["POST /v1/ask", "GET /v1/status"] {
            // Nothing is read into a body that is not there.
            let expected = if (*expected, line) == (415, "GET /v1/status") { 200 } else { *expected };
            refused += u64::from(expected != 200);
            let got = with_headers(&server, None, line, &headers).await;
            assert_eq!(got, expected, "{line} {headers:?}");
        }
    }

    assert_eq!(server.access.bounds.refusals.foreign.load(Ordering::Relaxed), refused);

    // A link to the web page may be followed, and nothing else; this server has no page.
    let link = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: ";
    for (line, dest, expected) in [
        ("GET /", "document", 404),
        ("GET /", "iframe", 403),
        ("GET /v1/status", "document", 403),
        ("POST /", "document", 403),
    ] {
        let got = with_headers(&server, None, line, &format!("Host: {at}\r\n{link}{dest}\r\n{JSON}")).await;
        assert_eq!(got, expected, "{line} as {dest}");
    }

    // They cost this machine's own clients nothing: its bucket holds 200.
    let headers = format!("Host: {at}\r\nOrigin: null\r\n{JSON}");

    for _ in 0..300 {
        assert_eq!(with_headers(&server, None, "POST /v1/ask", &headers).await, 403);
    }
    let headers = format!("Host: {at}\r\n{JSON}");
    assert_eq!(with_headers(&server, None, "POST /v1/ask", &headers).await, 200);
}

#[test]
fn metrics_are_prometheus_text_unless_open_metrics_is_asked_for() {
    let text = "# HELP b_kills Kills\n# TYPE b_kills counter\nb_kills_total 1\n# EOF\n";
    let kind = |asked: &[&'static str]| {
        let accept = asked.iter().map(|it| (header::ACCEPT, HeaderValue::from_static(it)));
        let answer = metrics_text(text.into(), &accept.collect());
        answer.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned()
    };
    let plain = "text/plain; version=0.0.4; charset=utf-8";
    assert_eq!(kind(&[]), plain);
    assert_eq!(kind(&["text/html, */*;q=0.8"]), plain);
    let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2";
    assert_eq!(kind(&[prometheus]), "application/openmetrics-text; version=1.0.0; charset=utf-8");
}

/// The first `n` messages of a stream of events, to a reader who has had `last`.
async fn messages(events: &Events, last: &str, n: usize) -> Vec<String> {
    let asked = HeaderMap::from_iter([("last-event-id".parse().unwrap(), last.parse().unwrap())]);
    let body = event_stream(events, &asked, tokio_stream::empty()).into_response().into_body();
    let (mut stream, mut text) = (body.into_data_stream(), String::new());
    while text.matches("\n\n").count() < n {
        let more = timeout(PATIENCE, stream.next()).await.expect("in time");
        text.push_str(std::str::from_utf8(&more.expect("a message").unwrap()).unwrap());
    }
    text.split_terminator("\n\n").map(str::to_owned).collect()
}

#[tokio::test]
async fn every_message_of_the_stream_has_id_name_and_time_and_a_reader_goes_on_where_it_was() {
    let events = Events::default();
    for host in ["h1", "h2"] {
        let kind = EventKind::HostChanged { host: host.into() };
        events.push(Event { at_ns: ballast_types::Instant::ZERO, kind });
    }

    let all = messages(&events, "", 3).await;
    assert_eq!(all[0], "retry: 2000");
    let value =
        |line: &str, name: &str| line.lines().find_map(|it| it.strip_prefix(name)).unwrap().to_owned();
    assert_eq!(value(&all[1], "event: "), "host_changed");
    let data: serde_json::Value = serde_json::from_str(&value(&all[1], "data: ")).unwrap();
    assert!(data["at_unix_ms"].as_u64() > Some(1_600_000_000_000), "{data}");
    assert_eq!(
        (&data["event"], &data["host"], &data["at_ns"]),
        (&"host_changed".into(), &"h1".into(), &0.into())
    );

    let rest = messages(&events, &value(&all[1], "id: "), 2).await;
    assert_eq!(rest, [&*all[0], &*all[2]]);
}

#[tokio::test]
async fn events_that_a_slow_reader_has_lost_are_counted() {
    let events = Events::default();
    let stream = event_stream(&events, &HeaderMap::new(), tokio_stream::empty()).into_response().into_body();
    let kind = EventKind::HostChanged { host: "h".into() };
    for _ in 0..3000 {
        events.push(Event { at_ns: ballast_types::Instant::ZERO, kind: kind.clone() });
    }
    let mut stream = stream.into_data_stream();
    for _ in 0..2 {
        assert!(stream.next().await.unwrap().is_ok());
    }
    assert!(events.lost().load(Ordering::Relaxed) > 1000);
}
