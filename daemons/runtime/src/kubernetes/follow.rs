//! Follows the API server: lists, then watches from there, for as long as the daemon runs.
//!
//! ```text
//!          ┌──────── 410 Gone, any other error of the server, a line that cannot be read ───────┐
//!          ▼                                                                                    │
//!   list, page by page ──▶ watch from its resource version ── closed, silent, unreachable ──▶ watch from the newest
//! ```
//!
//! Every way back waits: 0.2 s, then twice as long each time, at most 30 s; a good line starts it
//! again at 0.2 s. A line that was cut by the end of a connection counts for nothing: the next watch begins at the
//! version before it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use axum::http::StatusCode;
use reqwest::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Client, Method, RequestBuilder, Response};
use tokio::time::{sleep, timeout};

use super::object::{List, Notice, Object, Status};
use crate::fingerprint::Fingerprint;
use crate::tls;

/// No page of a list comes near this.
const PAGE_BYTES_MAX: usize = 256 << 20;
/// No object does: etcd takes 1.5 MiB.
const LINE_BYTES_MAX: usize = 16 << 20;
/// One page must be there by then.
const PAGE_WITHIN: Duration = Duration::from_secs(60);
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// The server ends a watch after this, so that connections spread over its replicas.
const WATCH_S: u64 = 300;
const WAIT_FIRST: Duration = Duration::from_millis(200);
const WAIT_MOST: Duration = Duration::from_secs(30);

/// Where the API server is, and who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Api {
    /// `https://host[:port]`; plain HTTP on loopback only.
    pub url: String,
    /// A service account's token, read anew for every request; without TLS none is sent.
    pub token_file: PathBuf,
    /// Who signs the server's certificate; read anew when it changes.
    pub ca_file: PathBuf,
    /// Objects on a page of a list.
    pub page: u64,
    /// What is followed, as a field selector beside the kind's own.
    pub fields: Option<String>,
    /// A watch that says nothing for so long is made anew.
    pub silent: Duration,
}

pub trait Sink<T> {
    /// What is kept of an object until the list is whole.
    type Observed;
    fn read(&self, object: &T) -> Self::Observed;
    /// All objects there are.
    fn listed(&self, objects: Vec<Self::Observed>);
    /// What a watch says of one.
    fn is(&self, object: Self::Observed);
    fn gone(&self, object: Self::Observed);
    /// The server answers: nothing more is known.
    fn alive(&self);
    fn watches(&self);
    /// What went wrong; it is tried again after so long.
    fn failed(&self, failure: &Failure, again: Duration);
}

/// Why a list or a watch has ended.
#[derive(Debug)]
pub struct Failure {
    pub why: String,
    /// Whether only a new list helps.
    relist: bool,
    /// What the server asks to be waited for.
    pub after: Option<Duration>,
    /// How the server has refused it.
    pub status: Option<StatusCode>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl Failure {
    /// On the way: what was told up to here is good.
    fn lost(why: impl fmt::Display) -> Self {
        Self { why: why.to_string(), relist: false, after: None, status: None }
    }

    /// By the server itself, or in what it has sent.
    fn refused(why: impl fmt::Display) -> Self {
        Self { why: why.to_string(), relist: true, after: None, status: None }
    }
}

/// How long to wait before the next try.
#[derive(Debug)]
pub struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(WAIT_FIRST)
    }
}

impl Backoff {
    /// How long to wait now; each time longer than before.
    pub fn longer(&mut self) -> Duration {
        let wait = self.0;
        self.0 = (wait * 2).min(WAIT_MOST);
        wait
    }
    /// Something was good: waits begin anew.
    pub fn reset(&mut self) {
        self.0 = WAIT_FIRST;
    }
}

pub async fn follow<T: Object>(api: &Api, sink: &impl Sink<T>) {
    let mut backoff = Backoff::default();
    let mut connection = Connection::default();
    loop {
        let failure = match list(api, &mut connection, sink).await {
            Ok((version, objects)) => {
                sink.listed(objects);
                watch(api, &mut connection, sink, version, &mut backoff).await
            }
            Err(failure) => failure,
        };
        wait(sink, &failure, &mut backoff).await;
    }
}

async fn wait<T>(sink: &impl Sink<T>, failure: &Failure, backoff: &mut Backoff) {
    let again = failure.after.unwrap_or_default().max(backoff.longer());
    sink.failed(failure, again);
    sleep(again).await;
}

/// Watches on and on; ends with why a new list is needed.
async fn watch<T: Object>(
    api: &Api,
    connection: &mut Connection,
    sink: &impl Sink<T>,
    mut version: String,
    backoff: &mut Backoff,
) -> Failure {
    loop {
        match watch_once(api, connection, sink, &mut version, backoff).await {
            // The server ends every watch some time.
            Ok(true) => {}
            Ok(false) => wait(sink, &Failure::lost("a watch ended at once"), backoff).await,
            Err(failure) if failure.relist => return failure,
            Err(failure) => wait(sink, &failure, backoff).await,
        }
    }
}

/// One watch, until it is closed; whether it has said anything.
async fn watch_once<T: Object>(
    api: &Api,
    connection: &mut Connection,
    sink: &impl Sink<T>,
    version: &mut String,
    backoff: &mut Backoff,
) -> Result<bool, Failure> {
    let query = [
        ("watch", "1"),
        ("allowWatchBookmarks", "true"),
        ("resourceVersion", version.as_str()),
        ("timeoutSeconds", &WATCH_S.to_string()),
    ];

    let mut answer = connection.get::<T>(api, &query, None).await?;
    sink.watches();
    let (mut lines, mut spoke) = (Lines::default(), false);

    loop {
        let silent = || Failure::lost(format!("a watch was silent for {} s", api.silent.as_secs_f64()));
        let chunk = timeout(api.silent, answer.chunk()).await.map_err(|_| silent())?;
        let Some(chunk) = chunk.map_err(|error| Failure::lost(tls::cause(&error)))? else {
            return Ok(spoke);
        };

        for line in lines.take(&chunk)? {
            take(&line, sink, version)?;
            backoff.reset();
            spoke = true;
        }
    }
}

/// Tells what one line of a watch says; `version` is then the newest.
pub fn take<T: Object>(line: &[u8], sink: &impl Sink<T>, version: &mut String) -> Result<(), Failure> {
    let notice = Notice::<T>::read(line)
        .map_err(|why| Failure::refused(format!("a line of a watch is not valid: {why}")))?;
    let newest = match notice {
        Notice::Is(object) => {
            let newest = object.meta().resource_version.clone();
            sink.is(sink.read(&object));
            newest
        }
        Notice::Gone(object) => {
            let newest = object.meta().resource_version.clone();
            sink.gone(sink.read(&object));
            newest
        }
        Notice::Bookmark(newest) => newest,
        Notice::Error(status) => return Err(Failure::refused(said(&status))),
    };

    if !newest.is_empty() {
        *version = newest;
    }
    sink.alive();

    Ok(())
}

/// Everything there is, page by page, and the version that a watch begins at.
async fn list<T: Object, S: Sink<T>>(
    api: &Api,
    connection: &mut Connection,
    sink: &S,
) -> Result<(String, Vec<S::Observed>), Failure> {
    let (mut objects, mut token, limit) = (vec![], String::new(), api.page.to_string());
    loop {
        // No resource version: the newest, as etcd's majority has it.
        let mut query = vec![("limit", limit.as_str())];
        if !token.is_empty() {
            query.push(("continue", &token));
        }
        let mut answer = connection.get::<T>(api, &query, Some(PAGE_WITHIN)).await?;
        let body = body(&mut answer, PAGE_BYTES_MAX).await?;
        let page: List<T> = serde_json::from_slice(&body)
            .map_err(|error| Failure::refused(format!("a list of {} is not valid: {error}", T::PLURAL)))?;
        objects.extend(page.items.iter().map(|object| sink.read(object)));
        token = page.metadata.r#continue;

        if token.is_empty() {
            return match page.metadata.resource_version {
                version if version.is_empty() => {
                    Err(Failure::refused(format!("a list of {} has no resourceVersion", T::PLURAL)))
                }
                version => Ok((version, objects)),
            };
        }
    }
}

async fn body(answer: &mut Response, bytes_max: usize) -> Result<Vec<u8>, Failure> {
    let mut body = vec![];
    while let Some(chunk) = answer.chunk().await.map_err(|error| Failure::lost(tls::cause(&error)))? {
        body.extend_from_slice(&chunk);
        if body.len() > bytes_max {
            return Err(Failure::refused(format!("an answer is longer than {bytes_max} bytes")));
        }
    }
    Ok(body)
}

fn said(status: &Status) -> String {
    let Status { message, reason, code } = status;
    let message: String = message.chars().take(300).collect();
    format!("the API server says {code} {reason}: {message}")
}

/// The client, made anew when the authority's file changes.
#[derive(Default)]
pub struct Connection(Option<(Fingerprint, Client)>);

impl Connection {
    async fn get<T: Object>(
        &mut self,
        api: &Api,
        query: &[(&str, &str)],
        within: Option<Duration>,
    ) -> Result<Response, Failure> {
        let mut request = self.request(api, Method::GET, T::PLURAL)?.query(query);
        let kinds = Some(T::FIELD_SELECTOR).filter(|selector| !selector.is_empty());
        let fields: Vec<_> = kinds.into_iter().chain(api.fields.as_deref()).collect();
        if !fields.is_empty() {
            request = request.query(&[("fieldSelector", fields.join(","))]);
        }
        if let Some(within) = within {
            request = request.timeout(within);
        }
        send(request).await
    }

    /// Has the server apply this to the object at `path`, as far as nobody else has said otherwise.
    pub async fn apply(&mut self, api: &Api, path: &str, body: String) -> Result<(), Failure> {
        let request = self.request(api, Method::PATCH, path)?.query(&[("fieldManager", "ballast-place")]);
        // JSON is YAML.
        let request = request.header(CONTENT_TYPE, "application/apply-patch+yaml").body(body);
        send(request.timeout(PAGE_WITHIN)).await.map(drop)
    }

    fn request(&mut self, api: &Api, method: Method, path: &str) -> Result<RequestBuilder, Failure> {
        let client = self.client(api).map_err(|error| Failure::lost(format!("{error:#}")))?;
        let mut request = client.request(method, format!("{}/api/v1/{path}", api.url));
        request = request.header(ACCEPT, "application/json");
        if api.is_tls() {
            let token = std::fs::read_to_string(&api.token_file);
            let unread = |error| Failure::lost(format!("{}: {error}", api.token_file.display()));
            request = request.bearer_auth(token.map_err(unread)?.trim());
        }
        Ok(request)
    }

    fn client(&mut self, api: &Api) -> anyhow::Result<Client> {
        let stamp = Fingerprint::of(&api.ca_file);
        if let Some((_, client)) = self.0.as_ref().filter(|(seen, _)| *seen == stamp) {
            return Ok(client.clone());
        }
        let client = api.client()?;
        self.0 = Some((stamp, client.clone()));
        Ok(client)
    }
}

/// Sends a request; the answer to one that was not refused.
async fn send(request: RequestBuilder) -> Result<Response, Failure> {
    // The headers come at once, also a watch's.
    let sent = timeout(PAGE_WITHIN, request.send()).await;
    let sent = sent.map_err(|_| Failure::lost("the API server does not answer"))?;
    let mut answer = sent.map_err(|error| Failure::lost(tls::cause(&error)))?;
    let code = answer.status();

    if code.is_success() {
        return Ok(answer);
    }
    let seconds = answer.headers().get(RETRY_AFTER).and_then(|it| it.to_str().ok()?.parse().ok());
    let body = body(&mut answer, 1 << 20).await.unwrap_or_default();
    let status = serde_json::from_slice(&body).unwrap_or_else(|_| Status {
        message: String::from_utf8_lossy(&body).trim().to_owned(),
        ..Status::default()
    });

    let why = said(&Status { code: code.as_u16(), ..status });

    // Who may not ask may not list either; who asks too often is told to wait.
    let keep = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN, StatusCode::TOO_MANY_REQUESTS];
    let after = seconds.map(|s| Duration::from_secs(s).min(WAIT_MOST));

    Err(Failure { why, relist: !keep.contains(&code), after, status: Some(code) })
}

impl Api {
    fn is_tls(&self) -> bool {
        self.url.starts_with("https://")
    }

    fn client(&self) -> anyhow::Result<Client> {
        let mut builder = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_WITHIN)
            .tcp_keepalive(Duration::from_secs(30));
        if self.is_tls() {
            let of = || self.ca_file.display().to_string();
            let pem = std::fs::read(&self.ca_file).with_context(of)?;
            let roots = reqwest::Certificate::from_pem_bundle(&pem).unwrap_or_default();
            anyhow::ensure!(!roots.is_empty(), "{}: holds no PEM certificate", of());
            builder = builder.tls_certs_only(roots).https_only(true);
        }
        Ok(builder.build()?)
    }
}

#[derive(Debug, Default)]
pub struct Lines(Vec<u8>);

impl Lines {
    pub fn take(&mut self, chunk: &[u8]) -> Result<Vec<Vec<u8>>, Failure> {
        let mut lines = vec![];
        let mut rest = chunk;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.0.extend_from_slice(&rest[..end]);
            let line = std::mem::take(&mut self.0);
            if !line.trim_ascii().is_empty() {
                lines.push(line);
            }
            rest = &rest[end + 1..];
        }
        self.0.extend_from_slice(rest);
        let long = self.0.len() > LINE_BYTES_MAX;
        if long { Err(Failure::refused("a line of a watch is too long")) } else { Ok(lines) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ballast_types::{PeerName, Role};
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};
    use tokio::sync::mpsc;
    use tokio_rustls::TlsAcceptor;

    use super::super::object::Pod;
    use super::*;

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        let text = b"{\"a\":1}\n\n{\"b\":2}\r\n{\"c\"";
        for size in 1..=text.len() {
            let mut lines = Lines::default();
            let cut = text.chunks(size).flat_map(|chunk| lines.take(chunk).unwrap());
            assert_eq!(cut.collect::<Vec<_>>(), [&b"{\"a\":1}"[..], b"{\"b\":2}\r"], "{size}");
            assert_eq!(lines.0, b"{\"c\"", "what is not whole is kept until it is");
        }
        let mut lines = Lines::default();
        assert!(lines.take(&vec![b'x'; LINE_BYTES_MAX]).is_ok());
        assert!(lines.take(b"x").unwrap_err().relist);
    }

    #[test]
    fn waits_grow_up_to_a_limit_and_begin_anew() {
        let mut backoff = Backoff(WAIT_FIRST);
        let waits: Vec<_> = (0..10).map(|_| backoff.longer().as_millis()).collect();
        assert_eq!(waits, [200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]);
        backoff.reset();
        assert_eq!(backoff.longer(), WAIT_FIRST);
    }

    /// Answers every request over TLS with an empty list, and tells its head.
    async fn secure_server(pair: &crate::tls::authority::Pair) -> (u16, mpsc::UnboundedReceiver<String>) {
        let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes());
        let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
        let config = rustls::ServerConfig::builder().with_no_client_auth();
        let acceptor = TlsAcceptor::from(Arc::new(config.with_single_cert(chain, key).unwrap()));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (told, heads) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(stream) = acceptor.accept(stream).await else { continue };
                let (read, mut write) = tokio::io::split(stream);
                let (mut lines, mut head) = (tokio::io::BufReader::new(read).lines(), String::new());
                while let Ok(Some(line)) = lines.next_line().await {
                    if line.is_empty() {
                        break;
                    }
                    head += &(line + "\n");
                }

                told.send(head).unwrap();
                let body = r#"{"metadata":{"resourceVersion":"1"},"items":null}"#;
                let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length";
                let answer = format!("{head}: {}\r\n\r\n{body}", body.len());
                write.write_all(answer.as_bytes()).await.unwrap();
                write.shutdown().await.unwrap();
            }
        });

        (port, heads)
    }

    #[tokio::test]
    async fn token_and_authority_are_read_anew_and_no_other_is_trusted() {
        tls::install_provider();
        let dir = tempfile::tempdir().unwrap();
        let [ca_file, token_file, other] = ["ca.crt", "token", "other"].map(|it| dir.path().join(it));
        let valid = Duration::from_secs(3600);
        let (authority, pair) = crate::tls::authority::Authority::new(valid).unwrap();
        pair.put(&ca_file, &other).unwrap();
        let role = Role::Place(PeerName::new("api").unwrap());
        let served = authority.issue(&[role], &[[127, 0, 0, 1].into()], valid).unwrap();
        let (port, mut heads) = secure_server(&served).await;
        let url = format!("https://127.0.0.1:{port}");
        let (page, silent) = (500, valid);
        let fields = Some("spec.nodeName=n".to_owned());
        let api = Api { url, token_file, ca_file, page, fields, silent };
        let mut connection = Connection::default();

        for token in ["first\n", "second"] {
            std::fs::write(&api.token_file, token).unwrap();
            let answer = connection.get::<Pod>(&api, &[("limit", "500")], None).await.unwrap();
            let list: List<Pod> = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
            assert_eq!((&*list.metadata.resource_version, list.items.len()), ("1", 0));
            let head = heads.recv().await.unwrap().to_lowercase();
            assert!(head.contains(&format!("authorization: bearer {}\n", token.trim())), "{head}");
            assert!(
                head.starts_with("get /api/v1/pods?limit=500&fieldselector=status.phase%21%3d")
                    && head.contains("%2cspec.nodename%3dn http"),
                "{head}"
            );
        }

        let (_, foreign) = crate::tls::authority::Authority::new(valid).unwrap();
        let own = std::fs::read(&api.ca_file).unwrap();
        foreign.put(&api.ca_file, &other).unwrap();
        let failure = connection.get::<Pod>(&api, &[], None).await.unwrap_err();
        assert!(!failure.relist && failure.why.to_lowercase().contains("certificate"), "{failure}");
        std::fs::write(&api.ca_file, "none").unwrap();
        let failure = connection.get::<Pod>(&api, &[], None).await.unwrap_err();
        assert!(failure.why.contains("ca.crt: holds no PEM certificate"), "{failure}");
        std::fs::write(&api.ca_file, own).unwrap();
        assert!(connection.get::<Pod>(&api, &[], None).await.is_ok());
        std::fs::remove_file(&api.token_file).unwrap();
        let failure = connection.get::<Pod>(&api, &[], None).await.unwrap_err();
        assert!(failure.why.contains("token: No such file"), "{failure}");
        assert!(heads.recv().await.is_some_and(|head| head.starts_with("GET ")) && heads.is_empty());
    }
}
