//! The chassis manager's HTTP.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post, put};
use ballast_chassis_core::Input;
use ballast_types::Watts;
use ballast_types::wire::{BudgetRequest, ChassisState, ChassisStatus, PowerReading};
use serde_json::json;

use super::Letter;
use super::polling::Word;
use super::power_input::{PowerInput, PowerRefusal};
use crate::clock;
use crate::control::Snapshot;
use crate::events::Events;
use crate::http::{self, Caller, Gate, Health, Refused, Right, only};
use crate::lock;
use crate::metrics;
use crate::state::DiskFaults;
use crate::tls::Tls;

/// How long a lower budget may take to be enforced before the answer says that it is not yet.
const ENFORCE_WITHIN: Duration = Duration::from_secs(5);

/// What the handlers share.
#[derive(Clone)]
pub(super) struct Api {
    /// To the control thread.
    pub letters: Sender<Letter>,
    /// The newest status.
    pub snapshot: Arc<Snapshot<ChassisStatus>>,
    /// What happened.
    pub events: Events,
    /// Whether the newest ledger is on disk.
    pub(crate) ledger_written: Arc<AtomicBool>,
    /// The outside source of readings, and who polls it; none where none is configured.
    pub(super) power: Option<(Arc<Mutex<PowerInput>>, Sender<Word>)>,
    /// The configured budget: the most that may be set.
    pub budget_max: Watts,
    /// What the servers draw idle: a budget must be above it.
    pub idle: Watts,
    /// What the disk does not take.
    pub faults: DiskFaults,
    /// The manager's certificate, if it has one.
    pub tls: Option<Arc<Tls>>,
    /// Who may do what.
    pub gate: Arc<Gate>,
}

impl Api {
    /// The newest status.
    fn status(&self) -> Result<ChassisStatus, Refused> {
        let mut status = ChassisStatus::clone(&*http::newest(&self.snapshot)?);
        status.tls = self.tls.as_ref().map(|tls| tls.status());
        status.alarms.extend(self.faults.alarms());
        status.alarms.extend(self.tls.iter().flat_map(|tls| tls.alarms()));
        Ok(status)
    }
}

impl Health for Api {
    fn sick(&self) -> Option<String> {
        self.snapshot.stalled()
    }
    fn unready(&self) -> Option<String> {
        let status = self.snapshot.get();
        let booting = status.is_none_or(|status| status.state == ChassisState::Boot);
        booting.then(|| "no complete reading of the power supplies yet".into())
    }
}

/// Every path that a chassis manager serves.
pub(super) fn routes(api: Api) -> Router {
    let gate = Arc::clone(&api.gate);
    let routes = http::health_routes()
        .route("/v1/status", get(status))
        .route("/v1/events", get(async |State(api): State<Api>| http::event_stream(&api.events)))
        .route("/v1/budget", only(Right::Operate, put(set_budget).delete(reset_budget)))
        .route("/v1/power", only(Right::ReportPower, post(power)))
        .route("/metrics", get(scrape))
        .with_state(api);
    http::guarded(routes, gate)
}

async fn status(State(api): State<Api>) -> Result<Response, Refused> {
    Ok(Json(api.status()?).into_response())
}

async fn scrape(State(api): State<Api>) -> Result<Response, Refused> {
    Ok(http::metrics_text(metrics::chassis(&api.status()?, &api.gate.bounds.refusals, &api.faults)))
}

/// Takes a reading of the chassis's draw from outside.
async fn power(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Response, Refused> {
    let Some((input, polling)) = &api.power else {
        let why = "no source of power readings is configured: [power_input] in chassis.toml";
        return Err(Refused(StatusCode::NOT_FOUND, why.into()));
    };
    let reading: PowerReading = http::json(&body)?;
    if let Some(role) = caller.role()
        && role.id() != reading.source
    {
        let why = format!("source = {:?}: the certificate is that of {role}", reading.source);
        return Err(Refused(StatusCode::FORBIDDEN, why));
    }
    let taken = lock(input).take(clock::now(), &reading);
    taken.map_err(|why| {
        let code = match why {
            PowerRefusal::Foreign(..) => StatusCode::FORBIDDEN,
            PowerRefusal::Absurd(..) => StatusCode::BAD_REQUEST,
            _ => StatusCode::CONFLICT,
        };
        Refused(code, why.to_string())
    })?;
    let stopping = |_| Refused(StatusCode::SERVICE_UNAVAILABLE, "stopping".into());
    polling.send(Word::Outside).map_err(stopping)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn set_budget(State(api): State<Api>, body: Bytes) -> Result<Response, Refused> {
    let BudgetRequest { budget_w } = http::json(&body)?;
    if budget_w <= api.idle || budget_w > api.budget_max {
        let (least, most) = (api.idle.as_f64(), api.budget_max.as_f64());
        return Err(Refused(
            StatusCode::BAD_REQUEST,
            format!(
                "budget_w = {}: above {least} (what the servers draw idle), at most {most} \
                 (the configured budget)",
                budget_w.as_f64()
            ),
        ));
    }
    // The configured budget is no lower one: setting it takes the lower one back.
    let lower = Some(budget_w).filter(|&budget| budget < api.budget_max);
    change_budget(&api, lower, budget_w).await
}

async fn reset_budget(State(api): State<Api>) -> Result<Response, Refused> {
    change_budget(&api, None, api.budget_max).await
}

/// Answers once the chassis is under the new budget, or says that it is not yet.
async fn change_budget(
    api: &Api,
    order: Option<Watts>,
    budget: Watts,
) -> Result<Response, Refused> {
    let gone = |_| Refused(StatusCode::SERVICE_UNAVAILABLE, "stopping".into());
    api.letters.send(Letter::Input(Input::Budget(order))).map_err(gone)?;
    let enforced = async {
        loop {
            if let Some(status) = api.snapshot.get()
                && status.budget_w == budget
                && status.power_w.is_some_and(|power| power <= status.limit_w)
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let enforced = tokio::time::timeout(ENFORCE_WITHIN, enforced).await.is_ok();
    if !api.ledger_written.load(Ordering::Relaxed) {
        let what = "the budget is in force, but could not be written down: see the log";
        return Err(Refused(StatusCode::INTERNAL_SERVER_ERROR, what.into()));
    }
    let code = if enforced { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((code, Json(json!({ "budget_w": budget, "enforced": enforced }))).into_response())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tower::ServiceExt as _;

    use super::*;
    use crate::config::PowerInputConfig;

    #[tokio::test]
    async fn budgets_that_cannot_be_set_are_refused_and_change_nothing() {
        let (letters, inbox) = mpsc::channel();
        let routes = routes(Api { letters, ..api() });
        for (body, says) in [
            ("", "body is not valid"),
            (r#"{"budget_w":"2000"}"#, "invalid type"),
            (r#"{"budget_w":2000,"x":1}"#, "unknown field"),
            (r#"{"budget_w":-1}"#, "above 1344"),
            (r#"{"budget_w":0}"#, "above 1344"),
            (r#"{"budget_w":1344}"#, "above 1344"),
            (r#"{"budget_w":2451}"#, "at most 2450"),
        ] {
            let request = http::from_here("PUT", "/v1/budget", body.to_owned());
            let answer = routes.clone().oneshot(request).await.unwrap();
            assert_eq!(answer.status(), 400, "{body}");
            let text = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
            let text = String::from_utf8(text.to_vec()).unwrap();
            assert!(text.contains(says), "{body}: {text}");
        }
        assert!(inbox.try_recv().is_err());
    }

    fn api() -> Api {
        Api {
            letters: mpsc::channel().0,
            snapshot: Arc::default(),
            events: Events::default(),
            ledger_written: Arc::default(),
            power: None,
            budget_max: Watts::from_whole(2450),
            idle: Watts::from_whole(1344),
            faults: DiskFaults::default(),
            tls: None,
            gate: Arc::new(Gate::new(None, false)),
        }
    }

    async fn post(api: &Api, body: String) -> (u16, String) {
        let request = http::from_here("POST", "/v1/power", body);
        let answer = routes(api.clone()).oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    fn body(source: &str, seq: u64, age_ms: u64, watts: &str) -> String {
        format!(
            r#"{{"source":"{source}","source_boot_id":"b1","source_ms":{seq},"age_ms":{age_ms},
            "watts":{watts},"seq":{seq}}}"#
        )
    }

    #[tokio::test]
    async fn a_reading_is_taken_or_refused_with_the_reason() {
        let good_for = Duration::from_secs(60);
        let max = Watts::from_whole(3000);
        let config = PowerInputConfig { source: "shelf-1".into(), max, good_for };
        let input = Arc::new(Mutex::new(PowerInput::new(config)));
        let (words, polled) = mpsc::channel();
        let api = Api { power: Some((Arc::clone(&input), words)), ..api() };
        assert_eq!(post(&api, body("shelf-1", 7, 0, "1234.5")).await, (204, String::new()));
        assert!(matches!(polled.try_recv(), Ok(Word::Outside)));
        for (body, status, said) in [
            (body("shelf-2", 8, 0, "1000"), 403, "source = "),
            (body("shelf-1", 7, 0, "1000"), 409, "seq = 7: above 7"),
            // Time on the way counts too.
            (body("shelf-1", 8, 60_001, "1000"), 409, "at most 60000"),
            (body("shelf-1", 8, 0, "0"), 400, "watts = 0: above 0, at most 3000"),
            (body("shelf-1", 8, 0, "3001"), 400, "watts = 3001"),
            (body("shelf-1", 8, 0, "NaN"), 400, "body is not valid"),
            (body("shelf-1", 8, 0, "1e300"), 400, "is not a power"),
            (body("shelf-1", 8, 0, "\"1000\""), 400, "invalid type"),
            (body("shelf-1", 8, 0, "1, \"w\":1"), 400, "unknown field"),
            (String::new(), 400, "body is not valid"),
            (format!("{}{}", " ".repeat(100_000), body("shelf-1", 8, 0, "1000")), 413, ""),
        ] {
            let (got, text) = post(&api, body).await;
            assert_eq!(got, status, "{said}: {text}");
            assert!(text.contains(said), "{said}: {text}");
        }
        assert!(polled.try_recv().is_err(), "what is refused polls nothing");
        let newest = input.lock().unwrap().newest(clock::now()).map(|(watts, _)| watts);
        assert_eq!(newest, Some(Watts::from_milli(1_234_500)));
    }

    #[tokio::test]
    async fn without_a_configured_source_nobody_is_heard() {
        let (status, text) = post(&api(), body("shelf-1", 1, 0, "1000")).await;
        assert_eq!(status, 404);
        assert!(text.contains("[power_input]"), "{text}");
    }
}
