//! Daemons that are asked something: how they are reached, and words for what they answer.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ballast_runtime::Target;
use ballast_runtime::tls::{self, Peer, Tls, TlsConfig};
use ballast_types::wire::{AgentState, ChassisState, ErrorBody};
use clap::Args;

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

/// No daemon's answer is longer.
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

/// An agent's state in an operator's words.
pub(crate) fn agent_state(state: AgentState) -> &'static str {
    match state {
        AgentState::Boot => "boot",
        AgentState::Uncapped => "uncapped",
        AgentState::Throttled => "throttled",
        AgentState::Recovering => "recovering",
        AgentState::Shedding => "shedding",
        AgentState::Blind => "blind",
        AgentState::Unknown => "unknown",
    }
}

/// A chassis's state in an operator's words.
pub(crate) fn chassis_state(state: ChassisState) -> &'static str {
    match state {
        ChassisState::Boot => "boot",
        ChassisState::Normal => "normal",
        ChassisState::Alerting => "alerting",
        ChassisState::HardwareCaps => "hardware caps",
        ChassisState::Blind => "blind",
        ChassisState::Fenced => "fenced",
        ChassisState::Unknown => "unknown",
    }
}
