//! The chassis manager's HTTP.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Extension, Query, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Json, Response, sse};
use ballast_chassis_core::Weighed;
use ballast_types::wire::{AlarmId, BudgetAnswer, BudgetRequest, ChassisState, ChassisStatus, PowerReading};
use ballast_types::{ServerId, Watts};

use serde::Deserialize;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::WatchStream;

use super::budget::{BudgetBounds, BudgetOrders, Unordered};
use super::polling::PollEvent;
use super::power_input::{PowerInput, PowerRefusal};
use crate::history::{self, COARSE_MS, Question};
use crate::metrics::{Counts, PREFIX, Shown};
use ballast_runtime::alarms;
use ballast_runtime::audit::Before;
use ballast_runtime::clock;
use ballast_runtime::control::Snapshot;
use ballast_runtime::events::Events;
use ballast_runtime::http::{self, AccessPolicy, Caller, Endpoint, Observable, Refused, Right};
use ballast_runtime::lock;
use ballast_runtime::metrics::{self, Common, Scrape, Sensing};
use ballast_runtime::state::DiskFaults;
use ballast_runtime::tls::Tls;

/// How long a lower budget may take to be enforced before the answer says that it is not yet.
const ENFORCE_WITHIN: Duration = Duration::from_secs(5);
/// A budget for longer than a year is one for good.
const FOR_MAX: Duration = Duration::from_secs(366 * 86_400);
/// Why a fenced manager sets no budget.
const OVERRULED: &str = "refused: another manager rules this chassis";
/// The alarms with which a manager lives, and does not do its work.
const UNREADY: [AlarmId; 5] = [
    AlarmId::Fenced,
    AlarmId::Blind,
    AlarmId::DryRun,
    AlarmId::CertificateExpired,
    AlarmId::RecordingLosesSteps,
];
/// Why a manager is not ready at first.
const NO_READING: &str = "no complete reading of the power supplies yet";

/// What the handlers share.
#[derive(Clone)]
pub(super) struct Api {
    /// Where budgets are ordered.
    pub(super) orders: Arc<BudgetOrders>,
    pub snapshot: Arc<Snapshot<ChassisStatus>>,
    pub events: Events,
    /// What the control thread counts.
    pub(super) counts: Counts,
    pub(super) history: history::Shared,
    /// Whether the newest ledger is on disk.
    pub(crate) ledger_written: Arc<AtomicBool>,
    /// The outside source of readings, and who polls it; none where none is configured.
    pub(super) power: Option<(Arc<Mutex<PowerInput>>, Sender<PollEvent>)>,
    /// What the disk does not take.
    pub faults: DiskFaults,
    /// The manager's certificate, if it has one.
    pub tls: Option<Arc<Tls>>,
    /// Who may do what.
    pub access: Arc<AccessPolicy>,
}

impl Api {
    /// Whether a request is one that can be weighed at all.
    fn check(&self, request: &BudgetRequest) -> Result<(), Refused> {
        let BudgetRequest { budget_w, for_s, .. } = *request;
        let refuse = |why: String| Err(Refused(StatusCode::BAD_REQUEST, why));
        let BudgetBounds { max, idle } = self.orders.bounds();
        if budget_w <= idle || budget_w > max {
            let (least, most) = (idle.as_f64(), max.as_f64());
            return refuse(format!(
                "budget_w = {}: above {least} (what the servers draw idle), at most {most} \
                 (the configured budget)",
                budget_w.as_f64()
            ));
        }

        let Some(seconds) = for_s else { return Ok(()) };

        if !(1..=FOR_MAX.as_secs()).contains(&seconds) {
            return refuse(format!("for_s = {seconds}: 1 to {}", FOR_MAX.as_secs()));
        }
        if budget_w == max {
            let most = max.as_f64();
            return refuse(format!("for_s = {seconds}: only with a budget_w below {most}"));
        }

        Ok(())
    }

    /// What is in force now, and what was asked about.
    fn answer(&self, weighed: &Weighed, requested_w: Watts, reason: String) -> Result<BudgetAnswer, Refused> {
        Ok(BudgetAnswer {
            budget_w: http::newest(&self.snapshot)?.budget_w,
            configured_w: self.orders.bounds().max,
            until_unix_s: self.orders.until(),
            power_w: weighed.power,
            requested_w,
            accepted: false,
            enforced: false,
            needs_w: weighed.needs,
            batch_can_shed_w: weighed.batch_can_shed,
            hardware_would_act: weighed.hardware_would_act,
            user_facing_hit: weighed.user_facing_hit,
            reason,
        })
    }
}

impl Observable for Api {
    type Status = ChassisStatus;

    fn sick(&self) -> Option<String> {
        self.snapshot.stalled()
    }
    fn unready(&self) -> Vec<String> {
        let Some(status) = self.snapshot.get() else { return vec![NO_READING.into()] };
        let mut reasons = alarms::reasons(&status.alarms, &UNREADY);
        if status.state == ChassisState::Boot {
            reasons.push(NO_READING.into());
        }
        reasons
    }
    fn status(&self) -> Result<ChassisStatus, Refused> {
        let mut status = ChassisStatus::clone(&*http::newest(&self.snapshot)?);
        status.tls = self.tls.as_ref().map(|tls| tls.status());
        status.at_unix_ms = Some(clock::unix_ms_at(status.now_ms));
        Ok(status)
    }
    fn metrics(&self) -> Result<String, Refused> {
        let status = &self.status()?;
        let (tls, alarms) = (status.tls.as_ref(), status.alarms.as_slice());
        let common = Common { refusals: &self.access.bounds.refusals, events: &self.events, tls, alarms };
        let sensing = Sensing { sensors: &status.sensors, faults: &self.faults };
        let mut scrape = Scrape::new(PREFIX, &common);
        scrape.add(PREFIX, &metrics::sensing(), &sensing);
        scrape.add(PREFIX, &crate::metrics::metrics(), &Shown { status, counts: &self.counts });
        Ok(scrape.text())
    }
    fn events(&self) -> &Events {
        &self.events
    }
}

/// What a chassis manager answers beside what every daemon does.
fn endpoints() -> Vec<Endpoint<Api>> {
    vec![
        Endpoint::get("/v1/budget", show_budget).answers("[BudgetAnswer](#budgetanswer)"),
        Endpoint::put("/v1/budget", set_budget)
            .only(Right::Operate)
            .takes("[BudgetRequest](#budgetrequest): a [lower budget](../operate/budget.md#http)")
            .answers("[BudgetAnswer](#budgetanswer); 202 while the draw is still above the new limit")
            .fails("409 with a BudgetAnswer that says what is missing; 500 when it cannot be written down"),
        Endpoint::delete("/v1/budget", reset_budget)
            .only(Right::Operate)
            .answers("[BudgetAnswer](#budgetanswer), once the configured budget is back in force")
            .fails("409 with a BudgetAnswer while another manager rules; 500 when it cannot be written down"),
        Endpoint::get("/v1/history", show_history)
            .answers(
                "[History](#history) of the chassis, or of one server: `?since=` (milliseconds since 1970) \
                 `&step=` (200 to 3,600,000 ms) `&server=`; steps below 10 s reach back an hour, others \
                 a day",
            )
            .fails("400 for another step; 404 for an unknown server"),
        Endpoint::get("/v1/stream", stream).answers(
            "what `/v1/events` answers, and every second a message `tick` with [status](#chassisstatus) and \
             the last 3 s of [history](#history), without an id",
        ),
        Endpoint::post("/v1/power", power)
            .only(Right::ReportPower)
            .takes("[PowerReading](#powerreading), from [outside](../operate/sensors.md#post-v1power)")
            .answers("204")
            .fails("403 for another source; 404 without `[power_input]`; 409 for one that is not newer"),
    ]
}

/// The table of the manager's endpoints in the reference.
#[must_use]
pub fn http_reference() -> String {
    http::markdown(endpoints().iter().map(|it| &it.line))
}

/// Every path that a chassis manager serves, with those of a page where there is one.
pub(super) fn routes(api: Api, page: Option<Router<Api>>) -> Router {
    let access = Arc::clone(&api.access);
    let endpoints = http::common_endpoints().into_iter().chain(endpoints()).collect();
    let routes = http::router(endpoints).merge(page.unwrap_or_default());
    http::guarded(routes.with_state(api), access)
}

/// What `GET /v1/history` may say.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HistoryQuery {
    #[serde(default)]
    since: u64,
    #[serde(default = "coarse_step")]
    step: u64,
    server: Option<ServerId>,
}

const fn coarse_step() -> u64 {
    COARSE_MS
}

async fn show_history(State(api): State<Api>, uri: Uri) -> Result<Response, Refused> {
    let refuse = |why: String| Refused(StatusCode::BAD_REQUEST, why);
    let Query(query) = Query::<HistoryQuery>::try_from_uri(&uri).map_err(|why| refuse(why.body_text()))?;
    if !Question::STEPS.contains(&query.step) {
        let (least, most) = (Question::STEPS.start(), Question::STEPS.end());
        return Err(refuse(format!("step = {}: {least} to {most} ms", query.step)));
    }

    let question = Question { since_unix_ms: query.since, step_ms: query.step, server: query.server };
    // Alerts leave from this thread, and an hour of values takes milliseconds.
    let answer = tokio::task::spawn_blocking(move || {
        let history = lock(&api.history.kept).answer(&question)?;
        serde_json::to_string(&history).ok()
    });
    let text =
        answer.await.ok().flatten().ok_or_else(|| Refused(StatusCode::NOT_FOUND, "no such server".into()))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

/// Events, and what a page draws; all pages get the same text, which another thread has written.
async fn stream(State(api): State<Api>, asked: HeaderMap) -> Response {
    let ticks = WatchStream::from_changes(api.history.ticks.subscribe());
    let ticks = ticks.map(|text| sse::Event::default().event("tick").data(&*text));
    http::event_stream(&api.events, &asked, ticks).into_response()
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
            PowerRefusal::Implausible(..) => StatusCode::BAD_REQUEST,
            _ => StatusCode::CONFLICT,
        };

        Refused(code, why.to_string())
    })?;

    polling
        .send(PollEvent::Outside)
        .map_err(|_| Refused(StatusCode::SERVICE_UNAVAILABLE, "stopping".into()))?;

    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn show_budget(State(api): State<Api>) -> Result<Response, Refused> {
    let status = api.status()?;
    let weighed = Weighed::of(&status, status.budget_w);
    let enforced = weighed.needs == Some(Watts::ZERO);
    let answer = api.answer(&weighed, status.budget_w, weighed.to_string());
    Ok(Json(BudgetAnswer { accepted: true, enforced, ..answer? }).into_response())
}

/// Sets a lower budget, or says what it would take.
async fn set_budget(State(api): State<Api>, body: Bytes) -> impl IntoResponse {
    (before(&api), try_set_budget(api, body).await)
}

/// The budget in force before an order, for the audit log.
fn before(api: &Api) -> Option<Extension<Before>> {
    let budget = api.snapshot.get()?.budget_w;
    let until = api.orders.until().map_or(String::new(), |until| format!(" until_unix_s={until}"));
    Some(Extension(Before(format!("budget_w={}{until}", budget.as_f64()))))
}

async fn try_set_budget(api: Api, body: Bytes) -> Result<Response, Refused> {
    let request: BudgetRequest = http::json(&body)?;
    let asked = request.budget_w;
    api.check(&request)?;
    let status = api.status()?;
    let weighed = Weighed::of(&status, asked);

    // More than now is never refused: it takes less than what is in force.
    let fenced = status.state == ChassisState::Fenced;
    let accepted = !fenced && (weighed.fits() || request.force || asked >= status.budget_w);
    let reason = match (fenced, accepted) {
        (true, _) => OVERRULED.to_owned(),
        (_, true) => weighed.to_string(),
        (_, false) => format!("refused unless forced: {weighed}"),
    };

    if request.dry_run || !accepted {
        let code = if request.dry_run { StatusCode::OK } else { StatusCode::CONFLICT };
        let answer = api.answer(&weighed, asked, reason)?;
        return Ok((code, Json(BudgetAnswer { accepted, ..answer })).into_response());
    }

    // The configured budget is no lower one: setting it takes the lower one back.
    let lower = Some(asked).filter(|&budget| budget < api.orders.bounds().max);
    let lasts = request.for_s.map(Duration::from_secs);

    change_budget(&api, lower, lasts, &weighed).await
}

async fn reset_budget(State(api): State<Api>) -> impl IntoResponse {
    (before(&api), try_reset_budget(api).await)
}

async fn try_reset_budget(api: Api) -> Result<Response, Refused> {
    let status = api.status()?;
    let accepted = status.state != ChassisState::Fenced;
    let configured = api.orders.bounds().max;
    let weighed = Weighed::of(&status, configured);
    if !accepted {
        let answer = api.answer(&weighed, configured, OVERRULED.to_owned())?;
        return Ok((StatusCode::CONFLICT, Json(answer)).into_response());
    }
    change_budget(&api, None, None, &weighed).await
}

/// Answers once the chassis is under the new budget, or says that it is not yet.
async fn change_budget(
    api: &Api,
    lower: Option<Watts>,
    lasts: Option<Duration>,
    weighed: &Weighed,
) -> Result<Response, Refused> {
    let orders = Arc::clone(&api.orders);

    // The disk may take its time, and alerts leave from this thread.
    let ordered = tokio::task::spawn_blocking(move || match lower {
        Some(budget) => orders.lower(budget, lasts),
        None => orders.reset(),
    });

    match ordered.await {
        Ok(Ok(())) => {}
        Ok(Err(why @ Unordered::Disk(_))) => {
            return Err(Refused(StatusCode::INTERNAL_SERVER_ERROR, why.to_string()));
        }
        Ok(Err(Unordered::Stopping)) | Err(_) => {
            return Err(Refused(StatusCode::SERVICE_UNAVAILABLE, "stopping".into()));
        }
    }

    let budget = lower.unwrap_or_else(|| api.orders.bounds().max);
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
    let in_force = http::newest(&api.snapshot)?.budget_w;

    if !enforced && in_force != budget {
        let reason = format!("not in force: {in_force} are, by another order or another manager");
        let answer = api.answer(weighed, budget, reason)?;
        return Ok((StatusCode::CONFLICT, Json(answer)).into_response());
    }

    if !api.ledger_written.load(Ordering::Relaxed) {
        let what = "the budget is in force, but could not be written down: see the log";
        return Err(Refused(StatusCode::INTERNAL_SERVER_ERROR, what.into()));
    }

    let code = if enforced { StatusCode::OK } else { StatusCode::ACCEPTED };
    let answer = api.answer(weighed, budget, weighed.to_string())?;

    Ok((code, Json(BudgetAnswer { accepted: true, enforced, ..answer })).into_response())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use ballast_chassis_core::{Chassis, Input, Ledger, Params, Server};
    use ballast_types::ChassisId;
    use ballast_types::wire::{Alarm, Event, EventKind};
    use tower::ServiceExt as _;

    use super::super::message::Message;
    use super::*;
    use crate::config::PowerInputConfig;

    async fn put(api: &Api, body: &str) -> (u16, String) {
        let request = http::from_here("PUT", "/v1/budget", body.to_owned());
        let answer = routes(api.clone(), None).oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let text = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(text.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn budgets_that_cannot_be_set_are_refused_and_change_nothing() {
        let (api, inbox) = working(2000);
        for (body, says) in [
            ("", "body is not valid"),
            (r#"{"budget_w":"2000"}"#, "invalid type"),
            (r#"{"budget_w":2000,"x":1}"#, "unknown field"),
            (r#"{"budget_w":-1}"#, "above 1344"),
            (r#"{"budget_w":NaN}"#, "body is not valid"),
            (r#"{"budget_w":1e999}"#, "body is not valid"),
            (r#"{"budget_w":1e300}"#, "is not a power"),
            (r#"{"budget_w":1e-300}"#, "above 1344"),
            (r#"{"budget_w":9223372036854775807}"#, "is not a power"),
            (r#"{"budget_w":null}"#, "invalid type"),
            (r#"{"budget_w":2000,"budget_w":1500}"#, "duplicate field"),
            (r#"{"budget_w":2000}{"budget_w":1500}"#, "trailing characters"),
            (r#"{"for_s":60}"#, "missing field"),
            (r#"{"budget_w":2000,"for_s":18446744073709551615}"#, "1 to 31622400"),
            (r#"{"budget_w":2000,"for_s":18446744073709551616}"#, "invalid"),
            (r#"{"budget_w":2000,"for_s":0.5}"#, "invalid type"),
            (r#"{"budget_w":2000,"force":"yes"}"#, "invalid type"),
            (r#"{"budget_w":0}"#, "above 1344"),
            (r#"{"budget_w":1344,"force":true}"#, "above 1344"),
            (r#"{"budget_w":2451,"dry_run":true}"#, "at most 2450"),
            (r#"{"budget_w":2000,"for_s":0}"#, "for_s = 0: 1 to 31622400"),
            (r#"{"budget_w":2000,"for_s":31622401}"#, "for_s = 31622401: 1 to"),
            (r#"{"budget_w":2450,"for_s":60}"#, "for_s = 60: only with a budget_w below 2450"),
            (r#"{"budget_w":2000,"for_s":-1}"#, "invalid value"),
        ] {
            let (status, text) = put(&api, body).await;
            assert_eq!(status, 400, "{body}");
            assert!(text.contains(says), "{body}: {text}");
        }

        assert!(inbox.try_recv().is_err());
    }

    #[test]
    fn a_manager_that_does_not_do_its_work_says_every_reason() {
        let (api, _inbox) = working(2000);
        let unready = |state, alarms: &[AlarmId]| {
            let alarms = alarms
                .iter()
                .map(|id| Alarm { since_unix_ms: clock::unix_ms(), ..Alarm::new(*id, id.name()) });
            let alarms = alarms.collect();
            let status = ChassisStatus { state, alarms, ..status(Watts::from_whole(2450), 2000) };
            api.snapshot.set(status, clock::now());
            api.unready()
        };
        for (state, alarms, reasons) in [
            (ChassisState::Normal, &[][..], &[][..]),
            (ChassisState::HardwareCaps, &[AlarmId::HardwareCapOn, AlarmId::ServerSilent], &[]),
            (ChassisState::Boot, &[], &[NO_READING]),
            (ChassisState::Fenced, &[AlarmId::Fenced], &["fenced"]),
            (ChassisState::Blind, &[AlarmId::Blind], &["blind"]),
            (ChassisState::Normal, &[AlarmId::DryRun], &["dry_run"]),
            (ChassisState::Normal, &[AlarmId::CertificateExpires], &[]),
            (ChassisState::Normal, &[AlarmId::CertificateExpired], &["certificate_expired"]),
            (ChassisState::Normal, &[AlarmId::RecordingNotWritten], &[]),
            (ChassisState::Normal, &[AlarmId::RecordingLosesSteps], &["recording_loses_steps"]),
            (ChassisState::Boot, &[AlarmId::RecordingLosesSteps], &["recording_loses_steps", NO_READING]),
        ] {
            assert_eq!(unready(state, alarms), reasons, "{state:?} {alarms:?}");
        }
    }

    #[tokio::test]
    async fn what_batch_cannot_shed_is_refused_unless_forced_and_a_question_changes_nothing() {
        // No server reports, so batch can shed nothing.
        let (api, inbox) = working(2000);
        let body = |text: &str| serde_json::from_str::<BudgetAnswer>(text).unwrap();

        for (request, status, accepted) in [
            (r#"{"budget_w":1900}"#, 409, false),
            (r#"{"budget_w":1900,"for_s":60}"#, 409, false),
            (r#"{"budget_w":1900,"dry_run":true}"#, 200, false),
            (r#"{"budget_w":1900,"dry_run":true,"force":true}"#, 200, true),
            (r#"{"budget_w":2000,"dry_run":true}"#, 200, true),
        ] {
            let (got, text) = put(&api, request).await;
            let answer = body(&text);
            assert_eq!((got, answer.accepted), (status, accepted), "{request}: {text}");
            assert_eq!(answer.budget_w, Watts::from_whole(2450), "still in force");
            assert_eq!(answer.hardware_would_act, answer.requested_w < Watts::from_whole(2000));
        }

        let (_, text) = put(&api, r#"{"budget_w":1900}"#).await;
        let answer = body(&text);
        assert_eq!((answer.needs_w, answer.batch_can_shed_w), (Some(Watts::from_whole(100)), Watts::ZERO));

        assert!(answer.reason.starts_with("refused unless forced: the chassis draws 2000.0 W"), "{text}");

        assert!(inbox.try_recv().is_err(), "nothing was ordered");

        let snapshot = Arc::clone(&api.snapshot);
        let obeys = std::thread::spawn(move || {
            let Ok(Message::Input(Input::Budget(budget))) = inbox.recv() else { panic!("no budget") };
            snapshot.set(status(budget.unwrap(), 1850), clock::now());
            budget
        });

        let before = crate::budget::unix_s();
        let (got, text) = put(&api, r#"{"budget_w":1900,"force":true,"for_s":60}"#).await;
        let after = crate::budget::unix_s();
        assert_eq!(obeys.join().unwrap(), Some(Watts::from_whole(1900)));
        let answer = body(&text);
        assert_eq!((got, answer.accepted, answer.enforced), (200, true, true), "{text}");
        assert_eq!(answer.budget_w, Watts::from_whole(1900));
        let until = answer.until_unix_s.unwrap();
        assert!((before + 60..=after + 60).contains(&until), "{before} {until} {after}");
    }

    #[tokio::test]
    async fn a_raise_is_never_refused_and_a_fenced_manager_sets_nothing() {
        let (api, inbox) = working(2000);
        api.snapshot.set(status(Watts::from_whole(1500), 2000), clock::now());
        let (got, text) = put(&api, r#"{"budget_w":1600,"dry_run":true}"#).await;
        assert!(got == 200 && text.contains("\"accepted\":true"), "{text}");
        let fenced = ChassisStatus { state: ChassisState::Fenced, ..status(Watts::from_whole(2450), 2000) };
        api.snapshot.set(fenced, clock::now());
        let (got, text) = put(&api, r#"{"budget_w":2400,"force":true}"#).await;
        assert!(got == 409 && text.contains("another manager rules"), "{text}");
        let request = http::from_here("DELETE", "/v1/budget", String::new());
        let answer = routes(api.clone(), None).oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 409, "nor does it take one back");
        assert!(inbox.try_recv().is_err());
    }

    #[tokio::test]
    async fn who_was_overtaken_by_another_order_is_told_so() {
        let (api, inbox) = working(1500);
        let snapshot = Arc::clone(&api.snapshot);
        let other = std::thread::spawn(move || {
            inbox.recv().unwrap();
            snapshot.set(status(Watts::from_whole(1800), 1500), clock::now());
        });
        let (got, text) = put(&api, r#"{"budget_w":1900}"#).await;
        other.join().unwrap();
        let answer: BudgetAnswer = serde_json::from_str(&text).unwrap();
        assert_eq!((got, answer.accepted, answer.enforced), (409, false, false), "{text}");
        assert!(answer.reason.starts_with("not in force: 1800.0 W are"), "{text}");
    }

    #[tokio::test]
    async fn the_history_is_answered_by_step_and_server() {
        let (api, _inbox) = working(2000);
        for (query, status, said) in [
            ("", 200, r#""step_ms":10000"#),
            ("?since=1764000000000&step=200", 200, r#""step_ms":200"#),
            ("?step=199", 400, "step = 199: 200 to 3600000 ms"),
            ("?step=3600001", 400, "step = 3600001"),
            ("?since=-1", 400, "since"),
            ("?from=1", 400, "unknown field"),
            ("?server=s7", 404, "no such server"),
        ] {
            let request = http::from_here("GET", &format!("/v1/history{query}"), String::new());
            let answer = routes(api.clone(), None).oneshot(request).await.unwrap();
            let got = answer.status();
            let text = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
            let text = String::from_utf8_lossy(&text);
            assert!(got == status && text.contains(said), "{query}: {got} {text}");
        }
    }

    #[tokio::test]
    async fn a_page_gets_events_by_id_and_ticks_without() {
        let (api, _inbox) = working(2000);
        let event = |message: &str| {
            let kind = EventKind::Alarm { message: message.into() };
            api.events.push(Event { at_ns: clock::now(), kind });
        };
        event("first");
        event("second");
        let (kept, _) = api.events.subscribe(None);
        let mut request = http::from_here("GET", "/v1/stream", String::new());
        request.headers_mut().insert("last-event-id", kept[0].id.parse().unwrap());

        let answer = routes(api.clone(), None).oneshot(request).await.unwrap();
        api.history.ticks.send_replace(r#"{"at_unix_ms":1}"#.into());
        let mut stream = answer.into_body().into_data_stream();
        let mut text = String::new();
        while !text.contains("tick") {
            text += &String::from_utf8_lossy(&stream.next().await.unwrap().unwrap());
        }
        assert!(text.contains("retry:") && text.contains("second") && !text.contains("first"), "{text}");
        assert!(text.contains("event: tick\ndata: {\"at_unix_ms\":1}\n\n"), "{text}");
    }

    #[tokio::test]
    async fn the_budget_in_force_is_shown() {
        let (api, _inbox) = working(2000);
        let request = http::from_here("GET", "/v1/budget", String::new());
        let answer = routes(api, None).oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        let text = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        let answer: BudgetAnswer = serde_json::from_slice(&text).unwrap();
        assert_eq!(
            (answer.budget_w, answer.configured_w),
            (Watts::from_whole(2450), Watts::from_whole(2450))
        );
        assert_eq!((answer.power_w, answer.until_unix_s), (Some(Watts::from_whole(2000)), None));
    }

    /// A manager of no server, under this budget.
    fn status(budget: Watts, power: i64) -> ChassisStatus {
        let id = ChassisId::new("c1").unwrap();
        let params = Params::defaults(
            id,
            Watts::from_whole(2450),
            vec![Watts::from_whole(3000)],
            vec![Server::new(ServerId::new("s1").unwrap(), None)],
        );
        let chassis = Chassis::new(params, Ledger::default(), clock::now());
        let power_w = Some(Watts::from_whole(power));
        ChassisStatus { power_w, budget_w: budget, limit_w: budget, ..chassis.status(clock::now()) }
    }

    /// An API whose manager draws this much, and what arrives at its control thread.
    fn working(power: i64) -> (Api, mpsc::Receiver<Message>) {
        let (messages, inbox) = mpsc::channel();
        let written = Arc::new(AtomicBool::new(true));
        let api = Api { orders: orders(messages), ledger_written: written, ..api() };
        api.snapshot.set(status(Watts::from_whole(2450), power), clock::now());
        (api, inbox)
    }

    fn orders(messages: Sender<Message>) -> Arc<BudgetOrders> {
        let folder = std::path::Path::new("/nonexistent");
        let orders = BudgetOrders::open(folder, &Ledger::default(), messages, true).unwrap();
        orders.follow(BudgetBounds { max: Watts::from_whole(2450), idle: Watts::from_whole(1344) });
        Arc::new(orders)
    }

    fn api() -> Api {
        Api {
            orders: orders(mpsc::channel().0),
            snapshot: Arc::default(),
            events: Events::default(),
            counts: Counts::new(&[]),
            history: history::Shared::new(history::Kept::new([])),
            ledger_written: Arc::default(),
            power: None,
            faults: DiskFaults::default(),
            tls: None,
            access: Arc::new(AccessPolicy::new(None)),
        }
    }

    async fn post(api: &Api, body: String) -> (u16, String) {
        let request = http::from_here("POST", "/v1/power", body);
        let answer = routes(api.clone(), None).oneshot(request).await.unwrap();
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
        let (events, polled) = mpsc::channel();
        let api = Api { power: Some((Arc::clone(&input), events)), ..api() };
        assert_eq!(post(&api, body("shelf-1", 7, 0, "1234.5")).await, (204, String::new()));
        assert!(matches!(polled.try_recv(), Ok(PollEvent::Outside)));

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
