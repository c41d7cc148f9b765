//! A BMC for tests: Redfish over HTTP on loopback, in both generations of schemas, with faults.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::server::Server;

/// The account that is let in.
pub const USERNAME: &str = "ballast";
pub const PASSWORD: &str = "hush";
const CHASSIS: &str = "/redfish/v1/Chassis/1";
const SESSIONS: &str = "/redfish/v1/SessionService/Sessions";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    Older,
    /// `EnvironmentMetrics` and `PowerSubsystem`.
    Newer,
    /// All of them, as OpenBMC has.
    Both,
}

/// What the BMC is and has: tests read it, and change it while it serves.
pub struct Model {
    pub generation: Generation,
    /// `PowerConsumedWatts`, and `PowerWatts.Reading` of the newer generation.
    pub power: Value,
    /// `LimitInWatts`, and the set point of the newer generation.
    pub limit: Value,
    pub exception: Value,
    pub mode: Value,
    /// `SetPointUnits`; null leaves it out.
    pub units: Value,
    pub allowable: [Value; 2],
    /// `PowerState` of the system.
    pub powered: Value,
    /// Each supply's `State`, `Health` and input in watts.
    pub supplies: Vec<[Value; 3]>,
    /// Entries of `PowerControl` after the first.
    pub more_controls: usize,
    pub faults: Faults,
    /// Every request: method, path, body.
    pub requests: Vec<(String, String, String)>,
    pub sessions: Vec<String>,
    serial: u64,
}

/// What goes wrong; nothing by default. Numbers count requests that do.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Every answer comes this late.
    pub delay: Duration,
    /// Answers with this status: how many, which.
    pub status: (u32, u16),
    /// Forgets every session, so many times.
    pub expire: u32,
    /// `PATCH` answers 412: somebody else was faster.
    pub stale: u32,
    /// `PATCH` without `If-Match` answers 428.
    pub must_match: bool,
    pub garbage: bool,
    /// A body of a megabyte.
    pub huge: bool,
    pub redirect: bool,
    /// `PATCH` is answered with success and not done.
    pub forgetful: bool,
    /// A change of the set point is refused while the limit is disabled, as OpenBMC does.
    pub refused_while_disabled: bool,
}

fn link(path: &str) -> Value {
    json!({ "@odata.id": path })
}

impl Model {
    /// A server that draws 230 W, without a limit.
    pub fn new(generation: Generation) -> Self {
        Self {
            generation,
            power: json!(230),
            limit: Value::Null,
            exception: json!("NoAction"),
            mode: json!("Disabled"),
            units: Value::Null,
            allowable: [json!(100), json!(600)],
            powered: json!("On"),
            supplies: vec![
                [json!("Enabled"), json!("OK"), json!(131.5)],
                [json!("StandbySpare"), json!("OK"), json!(0)],
            ],
            more_controls: 1,
            faults: Faults::default(),
            requests: vec![],
            sessions: vec![],
            serial: 0,
        }
    }

    pub fn in_force(&self) -> Option<f64> {
        let off = self.generation != Generation::Older && self.mode == "Disabled";
        self.limit.as_f64().filter(|_| !off)
    }

    /// Requests of one method whose path ends so.
    pub fn count(&self, method: &str, path: &str) -> usize {
        let hit = |(m, p, _): &&(String, String, String)| m == method && p.ends_with(path);
        self.requests.iter().filter(hit).count()
    }

    fn etag(&self) -> String {
        format!("\"{}\"", self.serial)
    }

    /// What older BMCs say of power, all in one.
    fn power(&self) -> Value {
        let mut controls = vec![json!({
            "PowerConsumedWatts": self.power,
            "PowerLimit": { "LimitInWatts": self.in_force(), "LimitException": self.exception },
        })];
        controls.resize_with(1 + self.more_controls, || json!({ "PowerConsumedWatts": 1 }));
        let supplies = self.supplies.iter().map(
            |[state, health, watts]| json!({ "Status": status(state, health), "PowerInputWatts": watts }),
        );
        let supplies: Vec<_> = supplies.collect();
        json!({ "@odata.etag": self.etag(), "PowerControl": controls, "PowerSupplies": supplies })
    }

    /// One supply of newer BMCs. `rest` is the supply's number, and the rest of the path.
    fn supply(&self, path: &str, rest: &str) -> Option<Value> {
        let (n, metrics) = rest.split_once('/').map_or((rest, false), |(n, _)| (n, true));
        let [state, health, input] = self.supplies.get(n.parse::<usize>().ok()?)?;

        Some(if metrics {
            json!({ "InputPowerWatts": { "Reading": input } })
        } else {
            let metrics = link(&format!("{path}/Metrics"));
            json!({ "Status": status(state, health), "Metrics": metrics })
        })
    }

    fn resource(&self, path: &str) -> Option<Value> {
        let (older, newer) = (self.generation != Generation::Newer, self.generation != Generation::Older);
        let members =
            |paths: Vec<String>| json!({ "Members": paths.iter().map(|p| link(p)).collect::<Vec<_>>() });
        let rest = path.strip_prefix(CHASSIS);

        Some(match (path, rest) {
            ("/redfish/v1", _) => json!({
                "Chassis": link("/redfish/v1/Chassis"), "Systems": link("/redfish/v1/Systems"),
            }),
            ("/redfish/v1/Chassis", _) => members(vec![CHASSIS.into(), "/redfish/v1/Chassis/Bay".into()]),
            ("/redfish/v1/Chassis/Bay", _) => json!({ "Id": "Bay" }),
            ("/redfish/v1/Systems", _) => members(vec!["/redfish/v1/Systems/1".into()]),
            ("/redfish/v1/Systems/1", _) => json!({ "PowerState": self.powered }),
            (_, Some("")) => {
                let mut chassis = json!({ "Links": { "ComputerSystems": [link("/redfish/v1/Systems/1")] } });
                if older {
                    chassis["Power"] = link(&format!("{CHASSIS}/Power"));
                }
                if newer {
                    chassis["EnvironmentMetrics"] = link(&format!("{CHASSIS}/EnvironmentMetrics"));
                    chassis["PowerSubsystem"] = link(&format!("{CHASSIS}/PowerSubsystem"));
                }

                chassis
            }
            (_, Some("/Power")) if older => self.power(),
            (_, Some("/EnvironmentMetrics")) if newer => {
                let mut limit = json!({
                    "SetPoint": self.limit, "ControlMode": self.mode,
                    "AllowableMin": self.allowable[0], "AllowableMax": self.allowable[1],
                });

                if !self.units.is_null() {
                    limit["SetPointUnits"] = self.units.clone();
                }
                json!({ "PowerWatts": { "Reading": self.power }, "PowerLimitWatts": limit })
            }
            (_, Some("/PowerSubsystem")) if newer => {
                json!({ "PowerSupplies": link(&format!("{CHASSIS}/PowerSubsystem/PowerSupplies")) })
            }
            (_, Some("/PowerSubsystem/PowerSupplies")) if newer => {
                let path = |n| format!("{CHASSIS}/PowerSubsystem/PowerSupplies/{n}");
                members((0..self.supplies.len()).map(path).collect())
            }
            (_, Some(rest)) if newer => {
                let rest = rest.strip_prefix("/PowerSubsystem/PowerSupplies/")?;
                self.supply(path, rest)?
            }
            _ => return None,
        })
    }

    /// Takes a change; the reason if it is refused.
    fn change(&mut self, path: &str, body: &Value) -> Result<(), &'static str> {
        let (limit, mode) = if path.ends_with("/Power") {
            let controls = body["PowerControl"].as_array().ok_or("PowerControl is missing")?;
            if controls.len() != 1 + self.more_controls {
                return Err("the change would remove entries of PowerControl");
            }
            if body.to_string().contains("LimitException") {
                return Err("this BMC's LimitException cannot be written");
            }
            if self.generation == Generation::Both && self.mode == "Disabled" {
                return Err("the power cap is not enabled");
            }
            (controls[0]["PowerLimit"].get("LimitInWatts").cloned(), None)
        } else {
            let limit = &body["PowerLimitWatts"];
            (limit.get("SetPoint").cloned(), limit.get("ControlMode").cloned())
        };

        let after = mode.unwrap_or_else(|| self.mode.clone());
        if self.faults.refused_while_disabled && limit.is_some() && after == "Disabled" {
            return Err("the power cap is not enabled");
        }
        if self.faults.forgetful {
            return Ok(());
        }
        self.limit = limit.unwrap_or_else(|| self.limit.clone());
        self.mode = after;
        self.serial += 1;

        Ok(())
    }
}

fn status(state: &Value, health: &Value) -> Value {
    json!({ "State": state, "Health": health })
}

type Shared = Arc<Mutex<Model>>;
/// What obeys every change: it gets the limit in force.
type Obey = Arc<dyn Fn(Option<f64>) + Send + Sync>;

/// A running BMC; it ends when dropped.
pub struct MockBmc {
    model: Shared,
    server: Server,
}

impl MockBmc {
    /// Starts one on a free port.
    pub fn start(model: Model) -> Self {
        Self::wired(model, |_| {})
    }

    /// The same, in front of something that obeys the limit.
    pub fn wired(model: Model, obey: impl Fn(Option<f64>) + Send + Sync + 'static) -> Self {
        let model = Arc::new(Mutex::new(model));
        let state: (Shared, Obey) = (Arc::clone(&model), Arc::new(obey));
        let server = Server::start(Router::new().fallback(answer).with_state(state));

        Self { model, server }
    }

    pub fn url(&self) -> String {
        self.server.url()
    }

    pub fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn answer(
    State((model, obey)): State<(Shared, Obey)>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let delay = {
        let mut model = model.lock().unwrap_or_else(PoisonError::into_inner);
        let body = String::from_utf8_lossy(&body).into_owned();
        model.requests.push((method.to_string(), uri.path().to_owned(), body));

        model.faults.delay
    };

    tokio::time::sleep(delay).await;
    let mut model = model.lock().unwrap_or_else(PoisonError::into_inner);
    let before = model.in_force();
    let answer = respond(&mut model, &method, uri.path(), &headers, &body);
    let after = model.in_force();
    drop(model);

    if before != after {
        obey(after);
    }
    answer
}

fn refusal(status: StatusCode, why: &str) -> Response {
    let body = json!({ "error": { "@Message.ExtendedInfo": [{ "Message": why }] } });
    (status, axum::Json(body)).into_response()
}

fn respond(model: &mut Model, method: &Method, path: &str, headers: &HeaderMap, body: &[u8]) -> Response {
    if count(&mut model.faults.status.0) {
        let status = StatusCode::from_u16(model.faults.status.1).expect("a status");
        return refusal(status, "told to fail");
    }

    if model.faults.redirect {
        let to = [(header::LOCATION, "http://127.0.0.1:1/redfish/v1")];
        return (StatusCode::TEMPORARY_REDIRECT, to).into_response();
    }

    if model.faults.huge {
        return " ".repeat(1 << 20).into_response();
    }
    if model.faults.garbage {
        return "<html>login</html>".into_response();
    }
    if (method, path) == (&Method::POST, SESSIONS) {
        return log_in(model, body);
    }

    if count(&mut model.faults.expire) {
        model.sessions.clear();
    }
    let token = headers.get("X-Auth-Token").and_then(|token| token.to_str().ok());
    let by_token = token.is_some_and(|token| model.sessions.iter().any(|known| known == token));

    // "ballast:hush" in base64.
    let basic = headers.get(header::AUTHORIZATION).is_some_and(|a| a == "Basic YmFsbGFzdDpodXNo");

    if !by_token && !basic {
        return refusal(StatusCode::UNAUTHORIZED, "no session");
    }
    if let (&Method::DELETE, Some(token)) = (method, path.strip_prefix(&format!("{SESSIONS}/"))) {
        model.sessions.retain(|known| known != token);
        return StatusCode::NO_CONTENT.into_response();
    }

    let Some(resource) = model.resource(path) else {
        return refusal(StatusCode::NOT_FOUND, "no such resource");
    };

    match *method {
        Method::GET => ([(header::ETAG, model.etag())], axum::Json(resource)).into_response(),
        Method::PATCH => patch(model, path, headers, body),
        _ => refusal(StatusCode::METHOD_NOT_ALLOWED, "GET or PATCH"),
    }
}

/// Whether a fault that comes so often still comes: it is counted.
fn count(left: &mut u32) -> bool {
    let hit = *left > 0;
    *left = left.saturating_sub(1);
    hit
}

/// A session, by its account's password.
fn log_in(model: &mut Model, body: &[u8]) -> Response {
    let login: Value = serde_json::from_slice(body).unwrap_or_default();
    if login["UserName"] != USERNAME || login["Password"] != PASSWORD {
        return refusal(StatusCode::UNAUTHORIZED, "unknown account");
    }
    model.serial += 1;
    let token = format!("t{}", model.serial);
    let location = format!("{SESSIONS}/{token}");
    model.sessions.push(token.clone());
    (StatusCode::CREATED, [("X-Auth-Token", token), ("Location", location)]).into_response()
}

fn patch(model: &mut Model, path: &str, headers: &HeaderMap, body: &[u8]) -> Response {
    let tag = headers.get(header::IF_MATCH).and_then(|tag| tag.to_str().ok());
    if count(&mut model.faults.stale) {
        model.serial += 1;
    }
    if tag.is_none() && model.faults.must_match {
        return refusal(StatusCode::PRECONDITION_REQUIRED, "If-Match is missing");
    }
    if tag.is_some_and(|tag| tag != model.etag()) {
        return refusal(StatusCode::PRECONDITION_FAILED, "changed meanwhile");
    }
    match model.change(path, &serde_json::from_slice(body).unwrap_or_default()) {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(why) => refusal(StatusCode::BAD_REQUEST, why),
    }
}
