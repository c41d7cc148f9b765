//! The chassis's sender: one task and one kept-alive connection for each agent.
//!
//! Messages are desired state, so only the newest one for a server matters: while a request is
//! under way a newer message replaces the one that waits.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use ballast_chassis_core::{Answer, Input};
use ballast_types::wire::{Alert, Refusal, Report};
use ballast_types::{Role, Seq, ServerId};
use reqwest::{Client, StatusCode};
use tokio::runtime::Handle;
use tokio::sync::watch;

use ballast_runtime::Target;
use ballast_runtime::threads::supervise_task;
use ballast_runtime::tls::{self, Peer, Tls};

use crate::config::ServerConfig;
use crate::message::Message;

/// An agent that has not answered by then gets its next message instead.
const DEADLINE: Duration = Duration::from_millis(500);
/// No report comes near this.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// Where messages to one agent are left.
pub type Outbox = watch::Sender<Option<Alert>>;

/// The line to one agent: where it is, who it must be, and the connection.
#[derive(Clone)]
pub struct Link {
    agent_at: Target,
    agent: Role,
    tls: Option<Arc<Tls>>,
    client: Client,
    /// Under which certificates the client was made.
    generation: Option<u64>,
    /// What the agent gave us that we may come in by again, and whether the client shows it.
    reservation: Option<String>,
    shown: bool,
}

impl Link {
    /// The line to the agent of `server` at `url`, or `unix:/…`. Over https it must show that server's
    /// certificate.
    pub fn new(url: &str, server: &ServerId, tls: Option<Arc<Tls>>) -> reqwest::Result<Self> {
        let agent = Role::Agent(server.clone());
        let agent_at = Target::new(url);
        let client = client(&agent_at, tls.as_deref(), &agent, None)?;
        let generation = tls.as_ref().map(|tls| tls.generation());
        Ok(Self { agent_at, agent, tls, client, generation, reservation: None, shown: true })
    }

    /// Makes a new connection with the next message when there are new certificates, and shows a new
    /// reservation once the old connection is of no use.
    fn renew(&mut self, is_broken: bool) -> reqwest::Result<()> {
        let generation = self.tls.as_ref().map(|tls| tls.generation());
        if generation != self.generation || (is_broken && !self.shown) {
            let (tls, reservation) = (self.tls.as_deref(), self.reservation.as_deref());
            self.client = client(&self.agent_at, tls, &self.agent, reservation)?;
            (self.generation, self.shown) = (generation, true);
        }
        Ok(())
    }

    async fn post(&mut self, alert: &Alert) -> reqwest::Result<Answer> {
        self.renew(false)?;
        let answer = match self.client.post(self.agent_at.url("/v1/alert")).json(alert).send().await {
            Ok(answer) => answer,
            Err(error) => return self.renew(true).and(Err(error)),
        };

        let reservation =
            answer.headers().get(tls::RESERVATION).and_then(|reservation| reservation.to_str().ok());
        let new = |reservation: &&str| {
            tls::is_reservation(reservation) && self.reservation.as_deref() != Some(*reservation)
        };

        if let Some(reservation) = reservation.filter(new) {
            (self.reservation, self.shown) = (Some(reservation.to_owned()), false);
        }
        if answer.content_length().is_none_or(|length| length > ANSWER_BYTES_MAX) {
            return Ok(Answer::Nothing("an answer without length, or too long".into()));
        }
        match answer.status() {
            StatusCode::OK => Ok(Answer::Report(Box::new(answer.json::<Report>().await?))),
            StatusCode::CONFLICT => Ok(Answer::Refused(answer.json::<Refusal>().await?)),
            status => Ok(Answer::Nothing(format!("HTTP status {status}"))),
        }
    }
}

fn client(
    at: &Target,
    tls: Option<&Tls>,
    agent: &Role,
    reservation: Option<&str>,
) -> reqwest::Result<Client> {
    let client = tls::client_with_reservation(tls.map(|tls| (tls, Peer::Only(agent.clone()))), reservation);
    at.reached_by(client).timeout(DEADLINE).tcp_nodelay(true).build()
}

/// One kept connection for each server's agent.
pub(crate) fn connect<'a>(
    servers: impl IntoIterator<Item = &'a ServerConfig>,
    tls: Option<&Arc<Tls>>,
    runtime: &Handle,
    messages: &mpsc::Sender<Message>,
) -> anyhow::Result<BTreeMap<ServerId, Outbox>> {
    let mut outboxes = BTreeMap::new();
    for server in servers {
        let (messages, id) = (messages.clone(), server.id.clone());
        let link = Link::new(&server.url, &server.id, tls.cloned())?;
        let (outbox, task) = carry(link, move |seq, answer| {
            // Fails only when the control thread has ended.
            let _ = messages.send(Message::Input(Input::Answer { server: id.clone(), seq, answer }));
        });

        outboxes.insert(server.id.clone(), outbox);
        runtime.spawn(task);
    }
    Ok(outboxes)
}

/// The task that carries messages over a `line`, and hands every answer to `deliver`.
///
/// It ends when the outbox is dropped.
pub fn carry(
    line: Link,
    deliver: impl Fn(Seq, Answer) + Clone + Send + 'static,
) -> (Outbox, impl Future<Output = ()> + Send + 'static) {
    let (outbox, inbox) = watch::channel(None::<Alert>);
    let name = format!("sender {}", line.agent);
    let task = supervise_task(name, move || post_all(line.clone(), inbox.clone(), deliver.clone()));
    (outbox, task)
}

async fn post_all(
    mut line: Link,
    mut inbox: watch::Receiver<Option<Alert>>,
    deliver: impl Fn(Seq, Answer) + Send + 'static,
) {
    while inbox.changed().await.is_ok() {
        let Some(alert) = inbox.borrow_and_update().clone() else { continue };
        let answer = line.post(&alert).await.unwrap_or_else(|error| Answer::Nothing(tls::cause(&error)));
        deliver(alert.seq, answer);
    }
}
