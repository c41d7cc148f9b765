//! The way to one agent.

use std::sync::Arc;
use std::time::Duration;

use ballast_runtime::Target;
use ballast_runtime::tls::{self, Peer, Tls};
use ballast_types::wire::{Limits, Predictions, Usage};
use ballast_types::{Role, ServerId};
use reqwest::Client;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

/// An agent that has not answered by then is tried again.
const DEADLINE: Duration = Duration::from_secs(3);
/// No reason that an agent gives is longer.
const WHY_BYTES_MAX: u64 = 4 << 10;

/// So many agents are asked at once.
const ASKED_AT_ONCE: usize = 16;

/// Asks these agents, each a host and its URL, some at once. `take` is given what each host's agent tells, or why it does not.
pub(crate) async fn ask_each<T: Send + 'static, F: Future<Output = Result<T, String>> + Send + 'static>(
    agents: &[(String, String)],
    tls: Option<&Arc<Tls>>,
    ask: impl Fn(Link) -> F,
    mut take: impl FnMut(String, Result<T, String>),
) {
    for some in agents.chunks(ASKED_AT_ONCE) {
        let mut under_way = JoinSet::new();
        for (host, url) in some {
            let (host, asked) = (host.clone(), Link::new(host, url, tls).map(&ask));
            under_way.spawn(async move {
                let told = match asked {
                    Ok(asked) => asked.await,
                    Err(why) => Err(why),
                };
                (host, told)
            });
        }
        under_way.join_all().await.into_iter().for_each(|(host, told)| take(host, told));
    }
}

/// Where an agent is, who it must be, and the kept connection.
pub(crate) struct Link {
    agent_at: Target,
    client: Client,
    /// Under which certificates the client was made.
    generation: Option<u64>,
}

impl Link {
    /// To the agent of `host` at `url`. Over https it must show that server's certificate.
    pub(crate) fn new(host: &str, url: &str, tls: Option<&Arc<Tls>>) -> Result<Self, String> {
        let agent = Role::Agent(ServerId::new(host).map_err(|error| error.to_string())?);
        let agent_at = Target::new(url);
        let client = tls::http_client(tls.map(|tls| (&**tls, Peer::Only(agent))));
        let client = agent_at.reached_by(client).timeout(DEADLINE).tcp_nodelay(true).build();
        let client = client.map_err(|error| tls::cause(&error))?;
        Ok(Self { agent_at, client, generation: tls.map(|tls| tls.generation()) })
    }

    /// Whether its client was made with the certificates of now.
    pub(super) fn is_current(&self, tls: Option<&Arc<Tls>>) -> bool {
        self.generation == tls.map(|tls| tls.generation())
    }

    /// One message, as often as it is awaited.
    pub(super) fn put(&self, body: &Predictions) -> impl Future<Output = Result<(), String>> + use<> {
        let request = self.client.put(self.agent_at.url("/v1/predictions")).json(body);
        async move {
            let answer = request.send().await.map_err(|error| tls::cause(&error))?;
            let status = answer.status();
            if status.is_success() {
                return Ok(());
            }
            let is_short = answer.content_length().is_some_and(|length| length <= WHY_BYTES_MAX);
            let why = if is_short { answer.text().await.unwrap_or_default() } else { String::new() };
            Err(format!("HTTP status {status}: {why}"))
        }
    }

    /// What the agent tells of its VMs' use.
    pub(crate) async fn usage(&self) -> Result<Usage, String> {
        self.get("/v1/usage", Usage::BYTES_MAX).await
    }

    /// How much the agent says that its VMs should get.
    pub(crate) async fn limits(&self) -> Result<Limits, String> {
        self.get("/v1/limits", Limits::BYTES_MAX).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str, bytes_max: usize) -> Result<T, String> {
        let request = self.client.get(self.agent_at.url(path));
        let mut answer = request.send().await.map_err(|error| tls::cause(&error))?;
        let status = answer.status();
        if !status.is_success() {
            return Err(format!("HTTP status {status}"));
        }

        let mut body = vec![];
        while let Some(chunk) = answer.chunk().await.map_err(|error| tls::cause(&error))? {
            if body.len() + chunk.len() > bytes_max {
                return Err(format!("an answer of more than {bytes_max} bytes"));
            }
            body.extend_from_slice(&chunk);
        }
        serde_json::from_slice(&body).map_err(|error| format!("no answer of an agent: {error}"))
    }
}
