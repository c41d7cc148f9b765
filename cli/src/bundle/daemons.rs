//! What daemons say of themselves, each in a folder of its own.

use std::time::Duration;

use ballast_runtime::Target;
use ballast_runtime::tls::Tls;
use reqwest::{Client, Response};
use tokio::time::timeout;

use super::parts::Parts;
use crate::common::answers::{Said, parse};
use crate::common::daemons::{BODY_MAX, UrlArgs, body, client, failure, refusal, target};

/// The whole of an answer takes no longer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A daemon sends what has happened at once; then only what happens.
const QUIET: Duration = Duration::from_secs(1);

/// Asks every daemon for all that it tells.
pub(super) fn collect(args: &UrlArgs, parts: &mut Parts) -> anyhow::Result<()> {
    let tls = args.tls.open()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let asked = args.urls.iter().enumerate().map(|(n, url)| {
        let (url, tls) = (url.clone(), tls.clone());
        runtime.spawn(async move { of_daemon(&format!("daemon-{}", n + 1), &url, tls.as_deref()).await })
    });
    for task in asked.collect::<Vec<_>>() {
        parts.append(runtime.block_on(task)?);
    }
    Ok(())
}

async fn of_daemon(folder: &str, url: &str, tls: Option<&Tls>) -> Parts {
    let mut parts = Parts::default();
    parts.put(format!("{folder}/url.txt"), &format!("{url}\n"));
    // Who does not say how it is says nothing else.
    if let Err(why) = ask(folder, url, tls, &mut parts).await {
        parts.fail(format!("{folder} ({url})"), why);
    }
    parts
}

async fn ask(folder: &str, url: &str, tls: Option<&Tls>, parts: &mut Parts) -> Result<(), String> {
    let target = target(url)?;
    let client = client(&target, tls, TIMEOUT).map_err(|error| error.to_string())?;
    let daemon = Daemon { client, target };

    let status = daemon.get("/v1/status").await?;
    parts.put(format!("{folder}/status.json"), &status);
    parts.add(format!("{folder}/metrics.txt"), daemon.get("/metrics").await);
    parts.add(format!("{folder}/events.txt"), daemon.events().await);
    if matches!(parse(status.as_bytes())?, Said::Chassis(_)) {
        parts.add(format!("{folder}/history.json"), daemon.get("/v1/history?step=10000").await);
    }
    Ok(())
}

struct Daemon {
    client: Client,
    target: Target,
}

impl Daemon {
    async fn get(&self, path: &str) -> Result<String, String> {
        let answer = self.answer(path).await?;
        let body = body(&self.target, answer).await.map_err(|why| format!("GET {path}: {why}"))?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// The events that a daemon remembers: its newest thousand.
    async fn events(&self) -> Result<String, String> {
        let mut answer = self.answer("/v1/events").await?;
        let mut body = vec![];
        while body.len() < BODY_MAX {
            match timeout(QUIET, answer.chunk()).await {
                Ok(Ok(Some(more))) => body.extend_from_slice(&more),
                Ok(Err(error)) if !error.is_timeout() => return Err(failure(&self.target, &error)),
                _ => break,
            }
        }
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    async fn answer(&self, path: &str) -> Result<Response, String> {
        let sent = self.client.get(self.target.url(path)).send().await;
        let answer = sent.map_err(|error| failure(&self.target, &error))?;
        match answer.status().is_success() {
            true => Ok(answer),
            false => Err(format!("GET {path}: {}", refusal(answer).await)),
        }
    }
}
