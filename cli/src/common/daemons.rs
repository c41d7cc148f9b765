//! Daemons that are asked something: how they are reached, and words for what they answer.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use ballast_runtime::Target;
use ballast_runtime::tls::{self, Peer, Tls, TlsConfig};
use ballast_types::wire::ErrorBody;
use clap::Args;
use reqwest::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Runtime;

/// Who we are for https: three PEM files.
#[derive(Args, Debug, Default)]
pub(crate) struct TlsArgs {
    /// This client's certificate, for https
    #[arg(long, value_name = "FILE", env = "BALLAST_CERT", requires_all = ["key", "ca"])]
    cert: Option<PathBuf>,
    /// The certificate's private key
    #[arg(long, value_name = "FILE", env = "BALLAST_KEY", requires = "cert")]
    key: Option<PathBuf>,
    /// The authorities to trust
    #[arg(long, value_name = "FILE", env = "BALLAST_CA", requires = "cert")]
    ca: Option<PathBuf>,
}

/// Which daemons are asked, and as whom.
#[derive(Args, Debug, Default)]
pub(crate) struct UrlArgs {
    /// Daemons to ask: chassis managers, agents or placement daemons, as http://ADDRESS:PORT,
    /// https://ADDRESS:PORT or unix:/PATH
    #[arg(
        value_name = "URL",
        env = "BALLAST_URL",
        value_delimiter = ',',
        default_value = UrlArgs::DEFAULT
    )]
    pub(crate) urls: Vec<String>,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

impl UrlArgs {
    /// The manager of this machine.
    pub(crate) const DEFAULT: &str = "http://127.0.0.1:7100";
}

impl TlsArgs {
    pub(crate) fn open(&self) -> anyhow::Result<Option<Arc<Tls>>> {
        let TlsArgs { cert: Some(cert), key: Some(key), ca: Some(ca) } = self else {
            return Ok(None);
        };
        let (cert, key, ca) = (cert.clone(), key.clone(), ca.clone());
        let config = TlsConfig { cert, key, ca, warn_before: Duration::ZERO };
        Tls::open(&config, None).map(Some).map_err(anyhow::Error::msg)
    }
}

pub(crate) fn client(
    target: &Target,
    tls: Option<&Tls>,
    timeout: Duration,
) -> reqwest::Result<reqwest::Client> {
    let client = tls::http_client(tls.map(|tls| (tls, Peer::Daemon)));
    target.reached_by(client).tls_info(true).timeout(timeout).build()
}

/// A client that sends orders to one daemon.
pub(crate) struct Orders {
    runtime: Runtime,
    client: reqwest::Client,
    target: Target,
}

impl Orders {
    pub(crate) fn to(url: &str, tls: &TlsArgs, timeout: Duration) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let target = target(url).map_err(anyhow::Error::msg)?;
        let client = client(&target, tls.open()?.as_deref(), timeout)?;
        Ok(Self { runtime, client, target })
    }

    /// Sends an order and returns the answer, `null` for an empty one. A response with the code `refused` has an answer,
    /// too.
    pub(crate) fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        order: Option<&impl Serialize>,
        refused: Option<StatusCode>,
    ) -> anyhow::Result<T> {
        let url = self.target.url(path);
        let mut request = self.client.request(method, &url);
        if let Some(order) = order {
            request = request.json(order);
        }
        let answered = self.runtime.block_on(async {
            let answer = request.send().await.map_err(|error| failure(&self.target, &error))?;
            let code = answer.status();
            if !code.is_success() && refused != Some(code) {
                return Err(refusal(answer).await);
            }
            let body = body(&self.target, answer).await?;
            let body = if body.is_empty() { b"null" } else { &body[..] };
            serde_json::from_slice(body).map_err(|error| format!("{code}, not an answer: {error}"))
        });
        answered.map_err(|why| anyhow!("{url}: {why}"))
    }
}

/// A daemon by its address or its socket; without a scheme it is plain HTTP.
///
/// # Errors
/// When that is no address of a daemon: what is.
pub(crate) fn target(url: &str) -> Result<Target, String> {
    if url.starts_with("unix:/") {
        return Ok(Target::new(url));
    }
    let base = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let is_http = reqwest::Url::parse(&base).is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
    match is_http {
        true => Ok(Target::new(&base)),
        false => Err(format!("{url}: a daemon's address is {ADDRESSES}")),
    }
}

pub(crate) const BODY_MAX: usize = 16 << 20;
/// No daemon says in more why it refuses.
const REASON_MAX: usize = 64 << 10;

const ADDRESSES: &str = "http://ADDRESS:PORT, https://ADDRESS:PORT or unix:/PATH";

/// Why a daemon could not be asked, and what may help.
pub(crate) fn failure(target: &Target, error: &reqwest::Error) -> String {
    let why = tls::cause(error);
    let is_tls = target.url("").starts_with("https:");
    let help = if error.is_timeout() {
        "the daemon, its machine or a firewall holds the answer back"
    } else if why.contains("Permission denied") {
        "the socket is for root and the group ballast: sudo, or `usermod -aG ballast USER`"
    } else if why.contains("No such file") {
        "there is no such socket: is the daemon up? `systemctl status 'ballast-*'`"
    } else if why.contains("refused") {
        "nothing listens there: is the daemon up? `systemctl status 'ballast-*'`; to try one: `ballast demo`"
    } else if !is_tls && why.contains("invalid HTTP version") {
        "this port speaks TLS: https://, with --cert --key --ca"
    } else if is_tls && why.contains("InvalidContentType") {
        "this port speaks plain HTTP: http://"
    } else if is_tls && (why.contains("UnknownIssuer") || why.contains("CertificateRequired")) {
        "give --cert --key --ca of an operator, or set BALLAST_CERT, BALLAST_KEY and BALLAST_CA"
    } else {
        return why;
    };
    format!("{why}: {help}")
}

/// The body of an answer, if it is no longer than a daemon's can be.
pub(crate) async fn body(target: &Target, answer: reqwest::Response) -> Result<Vec<u8>, String> {
    let body = read(answer, BODY_MAX).await.map_err(|error| failure(target, &error))?;
    match body.len() > BODY_MAX {
        true => Err(format!("the answer is longer than {} MiB", BODY_MAX >> 20)),
        false => Ok(body),
    }
}

/// The start of an answer: the whole of it, if that is no longer than `max`.
async fn read(mut answer: reqwest::Response, max: usize) -> reqwest::Result<Vec<u8>> {
    let mut start = vec![];
    while start.len() <= max
        && let Some(more) = answer.chunk().await?
    {
        start.extend_from_slice(&more);
    }
    Ok(start)
}

/// Why a daemon did not do what it was asked, by its error answer.
pub(crate) async fn refusal(answer: reqwest::Response) -> String {
    let status = answer.status();
    let why = serde_json::from_slice::<ErrorBody>(&read(answer, REASON_MAX).await.unwrap_or_default());
    let why = why.map_or(String::new(), |why| format!(": {}", printable(&why.error)));
    format!("{status}{why}")
}

/// What another program said, without what a terminal would obey.
pub(crate) fn printable(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// A state in an operator's words: its name in JSON, with spaces.
pub(crate) fn state(state: &impl Serialize) -> String {
    let name = serde_json::to_value(state).unwrap_or_default();
    name.as_str().unwrap_or("unknown").replace('_', " ")
}
