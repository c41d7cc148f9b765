use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use reqwest::header::{CONTENT_LENGTH, ETAG, HeaderMap, IF_MATCH, LOCATION};
use reqwest::{Client, Method, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::ROOT;
use super::credentials::{Auth, Credentials};
use super::pin::Pin;
use super::refusals::Refusals;
use super::schema;
use crate::BmcError;
use crate::error::cut;

/// No resource that is read here comes near this.
const BODY_MAX: usize = 512 << 10;
/// Where sessions are made.
const SESSIONS: &str = "/redfish/v1/SessionService/Sessions";

/// How to reach one BMC.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `https://host[:port]`, without a path; `http://` is for tests on loopback.
    pub url: String,
    pub credentials: Credentials,
    /// Where they are, to be read again when they were refused.
    pub credentials_file: Option<PathBuf>,
    pub auth: Auth,
    /// The authority that signed its certificate; `None` takes the system's. Verification is always on.
    pub ca_file: Option<PathBuf>,
    /// Its certificate, and no other: instead of authority and name.
    pub pin: Option<Pin>,
    /// How long one request may take.
    pub timeout: Duration,
    /// Which member of `/redfish/v1/Chassis`; `None` takes the only one that has a power resource.
    pub chassis: Option<String>,
}

/// Requests to one BMC: authenticated, bounded in time and size, never redirected.
pub(super) struct Http {
    client: Client,
    settings: Settings,
    session: Option<Session>,
    /// What it has shown to the account, beyond its root, which many show to anybody.
    shown: BTreeSet<String>,
    refusals: Refusals,
}

struct Session {
    token: String,
    /// Where it is deleted, if the BMC said so.
    path: Option<String>,
}

/// A resource, and its version.
pub(super) struct Fetched<T> {
    pub(super) value: T,
    pub(super) etag: Option<String>,
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Http {
    pub(super) fn new(mut settings: Settings) -> Result<Self, BmcError> {
        let cannot = |why: String| BmcError::unusable(settings.url.clone(), why);

        // Fails when there is one already: whoever was first has chosen.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder()
            .timeout(settings.timeout)
            .connect_timeout(settings.timeout)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none());
        if let Some(pin) = settings.pin {
            let config = pin.client_config().map_err(|error| cannot(error.to_string()))?;
            builder = builder.tls_backend_preconfigured(config);
        } else if let Some(path) = &settings.ca_file {
            let of = path.display().to_string();
            let pem = std::fs::read(path).map_err(|source| BmcError::Io { of: of.clone(), source })?;
            let roots = reqwest::Certificate::from_pem_bundle(&pem).unwrap_or_default();

            if roots.is_empty() {
                return Err(BmcError::unusable(of, "holds no PEM certificate"));
            }
            builder = builder.tls_certs_only(roots);
        }

        let client = builder.build().map_err(|error| cannot(chain(&error)))?;
        settings.url.truncate(settings.url.trim_end_matches('/').len());

        Ok(Self { client, settings, session: None, shown: BTreeSet::new(), refusals: Refusals::default() })
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) async fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<Fetched<T>, BmcError> {
        let answer = self.call(Method::GET, path, None, None).await?;
        if answer.status != StatusCode::OK {
            return Err(self.refused("GET", path, &answer));
        }
        let etag = answer.headers.get(ETAG).and_then(|tag| tag.to_str().ok()).map(str::to_owned);
        let allowed = |why| format!("a Redfish resource ({why})");
        serde_json::from_slice(&answer.body).map(|value| Fetched { value, etag }).map_err(|e| {
            let text = String::from_utf8_lossy(&answer.body);
            BmcError::malformed(self.of("GET", path), text, allowed(e))
        })
    }

    /// Changes one resource. `412` (somebody else changed it) and `428` are answers of their own.
    pub(super) async fn patch(
        &mut self,
        path: &str,
        etag: Option<&str>,
        body: &Value,
    ) -> Result<Patched, BmcError> {
        let answer = self.call(Method::PATCH, path, Some(body), etag).await?;
        match answer.status {
            StatusCode::OK | StatusCode::ACCEPTED | StatusCode::NO_CONTENT => Ok(Patched::Done),
            StatusCode::PRECONDITION_FAILED | StatusCode::PRECONDITION_REQUIRED => Ok(Patched::Stale),
            _ => Err(self.refused("PATCH", path, &answer)),
        }
    }

    /// Sends one request; logs in first where that is needed, and once more when the session has ended.
    async fn call(
        &mut self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        etag: Option<&str>,
    ) -> Result<Answer, BmcError> {
        let (fresh, is_read) = (self.session.is_none(), method == Method::GET);
        match self.settings.auth {
            Auth::Basic => self.may_log_in()?,
            Auth::Session if fresh => self.log_in().await?,
            Auth::Session => {}
        }
        let mut answer = self.send(method.clone(), path, body, etag).await?;
        let is_basic = self.settings.auth == Auth::Basic;
        if answer.status == StatusCode::UNAUTHORIZED && !is_basic && !fresh {
            self.session = None;
            self.log_in().await?;
            answer = self.send(method, path, body, etag).await?;
        }

        match answer.status {
            // A session that is worth nothing is no better than none.
            StatusCode::UNAUTHORIZED => self.refusals.refused(Instant::now()),
            // Some say so of a wrong password: at first, or of what they have shown before. Else the account may not
            // see it.
            StatusCode::FORBIDDEN
                if is_basic && is_read && (self.shown.is_empty() || self.shown.contains(path)) =>
            {
                self.shown.clear();
                self.refusals.refused(Instant::now());
            }
            status if is_basic && (path == ROOT || !status.is_success()) => {}
            _ => {
                if is_basic && is_read {
                    self.shown.insert(path.to_owned());
                }
                self.refusals.forget();
            }
        }
        Ok(answer)
    }

    /// Whether to try to be let in: some time after a refusal, or with other credentials than those refused.
    fn may_log_in(&mut self) -> Result<(), BmcError> {
        if !self.refusals.is_any() {
            return Ok(());
        }
        let file = self.settings.credentials_file.as_deref();
        match file.map(Credentials::read).transpose() {
            Ok(Some(read)) if read != self.settings.credentials => {
                self.settings.credentials = read;
                self.shown.clear();
                self.refusals.forget();
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "the credentials that a BMC refused cannot be read again"),
        }
        let Some((wait, count)) = self.refusals.wait(Instant::now()) else { return Ok(()) };

        let why = format!(
            "the log-in (wrong username or password?), {count} times in a row; it is tried again in {} s, or \
             when credentials_file changes",
            wait.as_secs() + 1
        );
        Err(BmcError::Refused { of: self.settings.url.clone(), why, transient: false })
    }

    async fn log_in(&mut self) -> Result<(), BmcError> {
        self.may_log_in()?;
        let Credentials { username, password } = &self.settings.credentials;
        let body = json!({ "UserName": username, "Password": password });
        let answer = self.send(Method::POST, SESSIONS, Some(&body), None).await?;
        let header = |name: &str| answer.headers.get(name)?.to_str().ok();
        let token = header("X-Auth-Token").filter(|_| answer.status.is_success());
        let Some(token) = token.map(str::to_owned) else {
            // Some say 400 or 403 of a wrong password.
            if answer.status.is_client_error() && answer.status != StatusCode::TOO_MANY_REQUESTS {
                self.refusals.refused(Instant::now());
            }
            return Err(self.refused("POST", SESSIONS, &answer));
        };
        // A full address or a path; one that is not below Redfish's root is not followed.
        let location = header(LOCATION.as_str()).unwrap_or_default();
        let path = location.find("/redfish/").map(|at| location[at..].to_owned());
        self.session = Some(Session { token, path: path.filter(|path| schema::is_path(path)) });
        Ok(())
    }

    /// Ends the session: BMCs have room for few.
    pub(super) async fn log_out(&mut self) {
        if let Some(path) = self.session.as_ref().and_then(|session| session.path.clone()) {
            // It ends by itself if this fails.
            let _ = self.send(Method::DELETE, &path, None, None).await;
        }
        self.session = None;
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        etag: Option<&str>,
    ) -> Result<Answer, BmcError> {
        let name = method.as_str().to_owned();
        let failed = |error: reqwest::Error| self.failed(&name, path, &error);
        let mut request = self.client.request(method, format!("{}{path}", self.settings.url));
        request = request.header("OData-Version", "4.0");

        if let Some(session) = &self.session {
            request = request.header("X-Auth-Token", &session.token);
        } else if self.settings.auth == Auth::Basic {
            let Credentials { username, password } = &self.settings.credentials;
            request = request.basic_auth(username, Some(password));
        }

        if let Some(etag) = etag {
            request = request.header(IF_MATCH, etag);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let mut answer = request.send().await.map_err(failed)?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        let too_long = || {
            let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
            let value = length.unwrap_or("more").to_owned();
            BmcError::malformed(self.of(&name, path), value, format!("at most {BODY_MAX} bytes"))
        };

        let mut body = Vec::new();

        while let Some(chunk) = answer.chunk().await.map_err(failed)? {
            body.extend(chunk);
            if body.len() > BODY_MAX {
                return Err(too_long());
            }
        }

        Ok(Answer { status, headers, body })
    }

    fn of(&self, method: &str, path: &str) -> String {
        format!("{method} {}{path}", self.settings.url)
    }

    fn failed(&self, method: &str, path: &str, error: &reqwest::Error) -> BmcError {
        let of = self.of(method, path);
        if error.is_timeout() {
            return BmcError::Late { of, within_ms: self.settings.timeout.as_millis() };
        }
        BmcError::Io { of, source: std::io::Error::other(chain(error)) }
    }

    fn refused(&self, method: &str, path: &str, answer: &Answer) -> BmcError {
        let status = answer.status;
        let said = schema::message(&answer.body).map(|said| format!(": {}", cut(&said)));
        let hint = match status {
            status if status.is_redirection() => " (redirects are not followed)",
            StatusCode::UNAUTHORIZED => " (wrong username or password?)",
            StatusCode::FORBIDDEN => " (the account may not do this)",
            _ => "",
        };
        let transient = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        let why = format!("HTTP status {status}{hint}{}", said.unwrap_or_default());
        BmcError::Refused { of: self.of(method, path), why, transient }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patched {
    /// Taken, or under way.
    Done,
    /// The resource is no longer the one that was read.
    Stale,
}

/// An error with its causes: reqwest's own text does not tell them.
fn chain(error: &reqwest::Error) -> String {
    let mut text = String::new();
    let mut next: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = next {
        let said = error.to_string();
        // reqwest's outermost says the address once more.
        if next.is_some_and(|e| e.source().is_none()) || text.is_empty() {
            text = if text.is_empty() { said } else { format!("{text}: {said}") };
        }
        next = error.source();
    }
    text
}
