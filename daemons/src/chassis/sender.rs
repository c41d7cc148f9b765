//! The chassis's sender: one task and one kept-alive connection for each agent.
//!
//! Messages are desired state, so only the newest one for a server matters: while a request is
//! under way a newer message replaces the one that waits.

use std::future::Future;
use std::time::Duration;

use ballast_chassis_core::Answer;
use ballast_types::Seq;
use ballast_types::wire::{Alert, Refusal, Report};
use reqwest::{Client, StatusCode};
use tokio::sync::watch;

/// An agent that has not answered by then gets its next message instead.
const DEADLINE: Duration = Duration::from_millis(500);
/// No report comes near this.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// Where messages to one agent are left.
pub type Outbox = watch::Sender<Option<Alert>>;

/// Makes the HTTP client that all tasks share.
///
/// # Errors
/// When the client cannot be built.
pub fn client() -> reqwest::Result<Client> {
    Client::builder()
        .timeout(DEADLINE)
        .tcp_nodelay(true)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
}

/// The task that carries messages to the agent at `url`, and hands every answer to `deliver`.
///
/// It ends when the outbox is dropped.
pub fn carry(
    client: Client,
    url: &str,
    deliver: impl Fn(Seq, Answer) + Send + 'static,
) -> (Outbox, impl Future<Output = ()> + Send + 'static) {
    let (outbox, mut inbox) = watch::channel(None::<Alert>);
    let url = format!("{url}/v1/alert");
    let task = async move {
        while inbox.changed().await.is_ok() {
            let Some(alert) = inbox.borrow_and_update().clone() else { continue };
            let answer = post(&client, &url, &alert)
                .await
                .unwrap_or_else(|error| Answer::Nothing(error.without_url().to_string()));
            deliver(alert.seq, answer);
        }
    };
    (outbox, task)
}

async fn post(client: &Client, url: &str, alert: &Alert) -> reqwest::Result<Answer> {
    let answer = client.post(url).json(alert).send().await?;
    if answer.content_length().is_none_or(|length| length > ANSWER_BYTES_MAX) {
        return Ok(Answer::Nothing("an answer without length, or too long".into()));
    }
    match answer.status() {
        StatusCode::OK => Ok(Answer::Report(answer.json::<Report>().await?)),
        StatusCode::CONFLICT => Ok(Answer::Refused(answer.json::<Refusal>().await?)),
        status => Ok(Answer::Nothing(format!("HTTP status {status}"))),
    }
}
