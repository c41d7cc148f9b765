//! What daemons say of themselves, asked all at once.

use std::sync::Arc;
use std::time::Duration;

use ballast_runtime::Target;
use ballast_runtime::tls::{self, Tls};
use ballast_types::Role;
use ballast_types::wire::{AgentStatus, Alarm, ChassisStatus, ErrorBody, PlaceStatus};
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use reqwest::header::DATE;
use reqwest::tls::TlsInfo;
use reqwest::{Response, StatusCode};
use serde::{Deserialize as _, Serialize};
use serde_json::Value;

use super::daemons::{body, client, failure, printable, refusal, target};

/// An answer that takes longer counts as none.
const TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, Serialize)]
pub(crate) struct Answer {
    pub(crate) url: String,
    #[serde(flatten)]
    pub(crate) said: Said,
}

/// A daemon's status, or why there is none.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Said {
    #[serde(rename = "status")]
    Chassis(Box<ChassisStatus>),
    #[serde(rename = "status")]
    Agent(Box<AgentStatus>),
    #[serde(rename = "status")]
    Place(Box<PlaceStatus>),
    Error(String),
}

/// How a daemon's clock stands to ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Clock {
    /// How far it is ahead; below zero it is behind.
    pub(crate) ahead_ms: i64,
    /// How far that may be off: half of the time that the answer took, and of the second that a date tells.
    pub(crate) within_ms: i64,
}

impl Clock {
    /// By the `date` of an answer to what was sent then, and came now; in milliseconds since 1970.
    fn new(date: &str, sent_ms: i64, came_ms: i64) -> Option<Self> {
        let date = rfc2822::DateTimeParser::new().parse_timestamp(date).ok()?.as_millisecond();
        // The clock told a time of that second at some time between sending and coming.
        let (least, most) = (date - came_ms, date + 1000 - sent_ms);
        Some(Self { ahead_ms: i64::midpoint(least, most), within_ms: (most - least) / 2 })
    }
}

/// Asks every URL; the answers come in the URLs' order.
pub(crate) async fn ask_all(urls: Vec<String>, tls: Option<Arc<Tls>>) -> anyhow::Result<Vec<Answer>> {
    Ok(ask_all_timed(urls, tls).await?.into_iter().map(|(answer, _)| answer).collect())
}

/// The same, with the clock of each that says the time.
pub(crate) async fn ask_all_timed(
    urls: Vec<String>,
    tls: Option<Arc<Tls>>,
) -> anyhow::Result<Vec<(Answer, Option<Clock>)>> {
    let asked = urls.into_iter().map(|url| {
        let tls = tls.clone();
        tokio::spawn(async move {
            let (said, clock) =
                ask(&url, tls.as_deref()).await.unwrap_or_else(|why| (Said::Error(why), None));
            (Answer { url, said }, clock)
        })
    });
    let asked: Vec<_> = asked.collect();

    let mut answers = Vec::with_capacity(asked.len());
    for task in asked {
        answers.push(task.await?);
    }
    Ok(answers)
}

async fn ask(url: &str, tls: Option<&Tls>) -> Result<(Said, Option<Clock>), String> {
    let sent = Timestamp::now().as_millisecond();
    let (target, answer) = get(url, tls, "/v1/status").await?;
    let date = answer.headers().get(DATE).and_then(|date| date.to_str().ok());
    let clock = date.and_then(|date| Clock::new(date, sent, Timestamp::now().as_millisecond()));
    if !answer.status().is_success() {
        return Err(format!("GET /v1/status: {}", refusal(answer).await));
    }

    let shown = answer.extensions().get::<TlsInfo>().and_then(TlsInfo::peer_certificate);
    let shown = shown.and_then(tls::role_in);
    let said = parse(&body(&target, answer).await?)?;
    match shown.filter(|shown| Some(shown) != said.role().as_ref()) {
        None => Ok((said, clock)),
        Some(shown) => Err(format!("its certificate is {shown}'s, its status is not")),
    }
}

/// What a daemon answers, and how it was reached.
async fn get(url: &str, tls: Option<&Tls>, path: &str) -> Result<(Target, Response), String> {
    let target = target(url)?;
    let client = client(&target, tls, TIMEOUT).map_err(|error| error.to_string())?;
    let answer = client.get(target.url(path)).send().await;
    let answer = answer.map_err(|error| failure(&target, &error))?;
    Ok((target, answer))
}

/// A daemon's version, by its `/metrics`.
///
/// # Errors
/// When it does not say.
pub(crate) async fn version(url: &str, tls: Option<&Tls>) -> Result<String, String> {
    let (target, answer) = get(url, tls, "/metrics").await?;
    let metrics = body(&target, answer).await?;
    let metrics = String::from_utf8_lossy(&metrics);
    let version = metrics.split_once("_build_info{version=\"").and_then(|(_, rest)| rest.split('"').next());
    version.map(printable).ok_or_else(|| "GET /metrics: no …_build_info".to_owned())
}

/// Why a daemon does not do its work, by its `/readyz`; empty if it does.
///
/// # Errors
/// When it does not say.
pub(crate) async fn unready(url: &str, tls: Option<&Tls>) -> Result<Vec<String>, String> {
    let (target, answer) = get(url, tls, "/readyz").await?;
    match answer.status() {
        status if status.is_success() => Ok(vec![]),
        StatusCode::SERVICE_UNAVAILABLE => {
            let said = serde_json::from_slice::<ErrorBody>(&body(&target, answer).await?);
            let said = said.map_err(|error| format!("GET /readyz: {error}"))?;
            let reasons = if said.reasons.is_empty() { vec![said.error] } else { said.reasons };
            Ok(reasons.iter().map(|reason| printable(reason)).collect())
        }
        _ => Err(format!("GET /readyz: {}", refusal(answer).await)),
    }
}

/// A status by the `role` that it names.
pub(crate) fn parse(body: &[u8]) -> Result<Said, String> {
    #[derive(serde::Deserialize)]
    struct Role {
        role: String,
    }
    let wrong = |error: serde_json::Error| format!("not a status: {error}");
    let mut status = serde_json::from_slice(body).map_err(wrong)?;
    make_printable(&mut status);
    match Role::deserialize(&status).map_err(wrong)?.role.as_str() {
        "chassis" => serde_json::from_value(status).map(Said::Chassis).map_err(wrong),
        "agent" => serde_json::from_value(status).map(Said::Agent).map_err(wrong),
        "place" => serde_json::from_value(status).map(Said::Place).map_err(wrong),
        other => Err(format!("role = {other:?}: \"chassis\", \"agent\" or \"place\"")),
    }
}

/// Takes from every text of an answer what a terminal would obey.
fn make_printable(value: &mut Value) {
    match value {
        Value::String(text) => *text = printable(text),
        Value::Array(items) => items.iter_mut().for_each(make_printable),
        Value::Object(fields) => fields.values_mut().for_each(make_printable),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

impl Said {
    pub(crate) fn role(&self) -> Option<Role> {
        match self {
            Self::Chassis(chassis) => Some(Role::Chassis(chassis.chassis_id.clone())),
            Self::Agent(agent) => Some(Role::Agent(agent.report.server.clone())),
            Self::Place(place) => Some(Role::Place(place.name.clone())),
            Self::Error(_) => None,
        }
    }

    /// Its alarms, and why it does not do its work where no alarm says so.
    pub(crate) fn problems(&self, unready: &[String]) -> Vec<String> {
        let (of, alarms) = self.own_alarms();
        let unsaid = unready.iter().filter(|why| !alarms.iter().any(|alarm| alarm.message == **why));
        self.alarms().chain(unsaid.map(|why| format!("{of}: not ready: {why}"))).collect()
    }

    /// What an operator should look at, each with the name of its chassis, server or daemon, and the name under
    /// which the runbook has it.
    pub(crate) fn alarms(&self) -> impl Iterator<Item = String> {
        let (of, alarms) = self.own_alarms();
        alarms.iter().map(move |alarm| format!("{of}: {} ({})", alarm.message, alarm.id))
    }

    pub(crate) fn own_alarms(&self) -> (&str, &[Alarm]) {
        match self {
            Self::Chassis(chassis) => (chassis.chassis_id.as_str(), chassis.alarms.as_slice()),
            Self::Agent(agent) => (agent.report.server.as_str(), agent.alarms.as_slice()),
            Self::Place(place) => (place.name.as_str(), place.alarms.as_slice()),
            Self::Error(_) => ("", [].as_slice()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[test]
    fn what_is_no_status_is_said_so() {
        for (body, why) in [("<html>", "not a status"), ("{\"role\":\"king\"}", "role = \"king\"")] {
            let Err(said) = parse(body.as_bytes()) else { unreachable!("{body} was taken") };
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn what_a_terminal_would_obey_is_taken_out() {
        let mut said = serde_json::json!({"a": ["\u{1b}[2J x\n│"], "b": {"c": "fine"}});
        make_printable(&mut said);
        assert_eq!(said, serde_json::json!({"a": ["\u{fffd}[2J x\u{fffd}│"], "b": {"c": "fine"}}));
    }

    #[test]
    fn a_clock_is_told_within_what_the_answer_took() {
        let date = "Thu, 26 Nov 2026 02:00:00 GMT";
        let at: i64 = 1_795_658_400_000;
        let clock = |sent, came| Clock::new(date, at + sent, at + came).unwrap();
        assert_eq!(clock(400, 500), Clock { ahead_ms: 50, within_ms: 550 });
        assert_eq!(clock(-59_500, -59_500), Clock { ahead_ms: 60_000, within_ms: 500 });
        assert_eq!(clock(60_500, 62_500), Clock { ahead_ms: -61_000, within_ms: 1_500 });
        assert_eq!(Clock::new("today", 0, 0), None);
    }

    #[test]
    fn a_daemon_that_is_not_ready_says_why() {
        let reasons = r#"{"error": "blind; no live lease", "reasons": ["blind", "no live lease"]}"#;
        for (status, body, expected) in [
            ("200 OK", "ok\n", Ok(vec![])),
            ("503 Service Unavailable", reasons, Ok(vec!["blind".to_owned(), "no live lease".to_owned()])),
            ("503 Service Unavailable", "{\"error\": \"starting\"}", Ok(vec!["starting".to_owned()])),
            ("404 Not Found", "{}", Err("GET /readyz: 404 Not Found".to_owned())),
        ] {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let at = listener.local_addr().unwrap().to_string();
            let answering = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
                let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}", body.len());
                write!(stream, "{head}\r\nConnection: close\r\n\r\n{body}").unwrap();
            });
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            assert_eq!(runtime.block_on(unready(&at, None)), expected);
            answering.join().unwrap();
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_unreachable_daemon_is_an_answer_that_says_what_to_do() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        for (url, why) in [
            (closed.to_string(), ": nothing listens there"),
            ("ftp://127.0.0.1:7100".to_owned(), "https://ADDRESS:PORT or unix:/PATH"),
            ("http://".to_owned(), "https://ADDRESS:PORT or unix:/PATH"),
        ] {
            let answers = ask_all(vec![url], None).await.unwrap();
            assert!(matches!(&answers[0].said, Said::Error(said) if said.contains(why)), "{answers:?}");
        }
    }
}
