//! The agent's HTTP.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use ballast_agent_core::Input;
use ballast_types::wire::{AgentState, AgentStatus, AlarmId, Alert, Predictions, VmSpec};
use ballast_types::{Epoch, VmId};
use tokio::sync::oneshot;

use super::message::Message;
use super::vms::{Notes, TellError, Vms, VmsError};
use crate::metrics::{Counts, PREFIX, Shown};
use ballast_runtime::alarms;
use ballast_runtime::audit::Before;
use ballast_runtime::control::Snapshot;
use ballast_runtime::events::Events;
use ballast_runtime::http::{self, AccessPolicy, Endpoint, Observable, Refused, Right};
use ballast_runtime::lock;
use ballast_runtime::metrics::{self, Common, Scrape, Sensing};
use ballast_runtime::state::DiskFaults;
use ballast_runtime::tls::Tls;

/// The alarms with which an agent does not do its work.
const UNREADY: [AlarmId; 4] =
    [AlarmId::Blind, AlarmId::DryRun, AlarmId::CertificateExpired, AlarmId::RecordingLosesSteps];
/// Why an agent is not ready at first.
const NO_READING: &str = "no usable reading of the power meter yet";
/// Why an agent is not ready that should hear from its manager.
const NO_LEASE: &str =
    "no live lease: the manager that this agent has obeyed is not heard, and the fallback holds";

/// What the handlers share.
#[derive(Clone)]
pub(super) struct Api {
    /// To the control thread.
    pub messages: Sender<Message>,
    pub snapshot: Arc<Snapshot<AgentStatus>>,
    pub events: Events,
    /// What the control thread counts.
    pub(super) counts: Counts,
    pub vms: Arc<Mutex<Vms>>,
    /// What is told of them.
    pub(super) notes: Notes,
    /// What the disk does not take.
    pub faults: DiskFaults,
    /// The agent's certificate, if it has one.
    pub tls: Option<Arc<Tls>>,
    /// Who may do what.
    pub access: Arc<AccessPolicy>,
}

impl Observable for Api {
    type Status = AgentStatus;

    fn sick(&self) -> Option<String> {
        self.snapshot.stalled()
    }
    fn unready(&self) -> Vec<String> {
        let Some(status) = self.snapshot.get() else { return vec![NO_READING.into()] };
        let mut reasons = alarms::reasons(&status.alarms, &UNREADY);
        if status.report.state == AgentState::Boot {
            reasons.push(NO_READING.into());
        }
        // Whoever has never heard from a manager works alone.
        if status.report.epoch_obeyed > Epoch(0) && status.lease_ms.is_none() {
            reasons.push(NO_LEASE.into());
        }
        reasons
    }
    fn status(&self) -> Result<AgentStatus, Refused> {
        let mut status = AgentStatus::clone(&*http::newest(&self.snapshot)?);
        status.tls = self.tls.as_ref().map(|tls| tls.status());
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

/// What an agent answers beside what every daemon does.
fn endpoints() -> Vec<Endpoint<Api>> {
    vec![
        Endpoint::post("/v1/alert", alert)
            .only(Right::Alert)
            .takes("[Alert](#alert): a cap and a lease")
            .answers("[Report](#report)")
            .fails("409 with a [Refusal](#refusal) that is not obeyed; 503 while stopping"),
        Endpoint::get("/v1/vms", list_vms).answers("every VM by its id, each a [VmSpec](#vmspec)"),
        Endpoint::get("/v1/usage", usage)
            .answers("[Usage](#usage): what VMs used of CPU in the last 7 days, made anew every hour"),
        Endpoint::get("/v1/limits", limits).answers(
            "[Limits](#limits): how much CPU and memory each VM should get, made anew every five minutes",
        ),
        Endpoint::put("/v1/vms/{id}", put_vm)
            .only(Right::Operate)
            .takes("[VmSpec](#vmspec)")
            .answers("204 once the VM is added or changed, its cores are moved, and that is on disk")
            .fails("400 for what does not fit this server; 500 when it cannot be written down"),
        Endpoint::delete("/v1/vms/{id}", delete_vm)
            .only(Right::Operate)
            .answers("204 once the VM is taken out")
            .fails("404 for an unknown VM; 500 when it cannot be written down"),
        Endpoint::put("/v1/predictions", put_predictions)
            .only(Right::Predict)
            .takes("[Predictions](#predictions): all that is predicted of this server's VMs")
            .answers("204 once it is in force")
            .fails("400 for a value that is not allowed; 409 for a message older than the one in force"),
    ]
}

/// The tables of the reference: what every daemon answers, and what an agent answers beside that.
#[must_use]
pub fn http_references() -> [String; 2] {
    [http::common_endpoints::<Api>(), endpoints()].map(|them| http::markdown(them.iter().map(|it| &it.line)))
}

/// Every path that an agent serves.
pub(super) fn routes(api: Api) -> Router {
    let access = Arc::clone(&api.access);
    let routes = http::common_endpoints().into_iter().chain(endpoints()).collect();
    http::guarded(http::router(routes).with_state(api), access)
}

fn stopping<T>(_: T) -> Refused {
    Refused(StatusCode::SERVICE_UNAVAILABLE, "stopping".into())
}

async fn alert(State(api): State<Api>, body: Bytes) -> Result<Response, Refused> {
    let alert: Alert = http::json(&body)?;
    let (reply, answer) = oneshot::channel();
    api.messages.send(Message::Alert(alert, reply)).map_err(stopping)?;
    Ok(match answer.await.map_err(stopping)? {
        Ok(report) => Json(report).into_response(),
        Err(refusal) => (StatusCode::CONFLICT, Json(refusal)).into_response(),
    })
}

async fn list_vms(State(api): State<Api>) -> Response {
    Json(api.notes.specs()).into_response()
}

async fn usage(State(api): State<Api>) -> Response {
    Json(api.notes.usage_answer(ballast_runtime::clock::unix_ms() / 1000)).into_response()
}

async fn limits(State(api): State<Api>) -> Response {
    Json(api.notes.limits()).into_response()
}

async fn put_vm(State(api): State<Api>, Path(id): Path<String>, body: Bytes) -> Result<Response, Refused> {
    let spec: VmSpec = http::json(&body)?;
    change_vms(api, &id, Some(spec)).await
}

async fn delete_vm(State(api): State<Api>, Path(id): Path<String>) -> Result<Response, Refused> {
    change_vms(api, &id, None).await
}

/// Answers once the change is on disk, the cores are moved, and the controller knows; tells the audit log what
/// the VM was before.
async fn change_vms(api: Api, id: &str, spec: Option<VmSpec>) -> Result<Response, Refused> {
    let refuse = |error: VmsError| {
        let code = match error {
            VmsError::Unknown(_) => StatusCode::NOT_FOUND,
            VmsError::Refused(_) => StatusCode::BAD_REQUEST,
            VmsError::Io(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Refused(code, error.to_string())
    };
    let id = VmId::new(id).map_err(|error| Refused(StatusCode::BAD_REQUEST, error.to_string()))?;
    // Moving cores takes milliseconds in the kernel: not on the thread that answers alerts.
    let changed = tokio::task::spawn_blocking(move || {
        let mut vms = lock(&api.vms);
        let before = vms.specs().remove(&id).and_then(|spec| serde_json::to_string(&spec).ok());
        let set = vms.change(id, spec)?;
        Ok((before, api.messages.send(Message::Input(Input::Vms(set)))))
    });
    let (before, sent) = changed.await.map_err(stopping)?.map_err(refuse)?;
    sent.map_err(stopping)?;
    Ok((before.map(|before| Extension(Before(before))), StatusCode::NO_CONTENT).into_response())
}

/// Answers once the cores are moved, and the controller knows. What the disk does not take is an alarm, and
/// counts until the agent ends.
async fn put_predictions(State(api): State<Api>, body: Bytes) -> Result<Response, Refused> {
    let told: Predictions = http::json(&body)?;
    told.check().map_err(|why| Refused(StatusCode::BAD_REQUEST, why))?;
    let taken = tokio::task::spawn_blocking(move || {
        let mut vms = lock(&api.vms);
        let (set, written) = vms.tell(told)?;
        api.faults.note("predictions", written.err().map(|error| error.to_string()));
        Ok(set.is_none_or(|set| api.messages.send(Message::Input(Input::Vms(set))).is_ok()))
    });

    let refuse = |error: TellError| {
        let code = match error {
            TellError::Old { .. } => StatusCode::CONFLICT,
            TellError::Stopping => StatusCode::SERVICE_UNAVAILABLE,
        };
        Refused(code, error.to_string())
    };
    let is_heard = taken.await.map_err(stopping)?.map_err(refuse)?;
    if is_heard { Ok(StatusCode::NO_CONTENT.into_response()) } else { Err(stopping(())) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use ballast_hw::{Binders, By, Domain, Journal, JournalFolders, Originals, Root};
    use ballast_types::wire::{Alarm, Refusal, RefusalReason};
    use ballast_types::{BootId, ChassisId, CoreId, Seq};
    use tower::ServiceExt as _;

    use super::super::vms::VmSources;
    use super::*;
    use crate::config::GroupsConfig;

    /// An agent's HTTP; see [`api`].
    fn agent(folder: &tempfile::TempDir) -> (Router, thread::JoinHandle<Vec<Input>>) {
        let (api, control) = api(folder);
        (routes(api), control)
    }

    /// What an agent's HTTP shares, whose control thread refuses every alert; gives back the other inputs.
    fn api(folder: &tempfile::TempDir) -> (Api, thread::JoinHandle<Vec<Input>>) {
        api_by(folder, By::Cgroup)
    }

    /// The same, where VMs are bound so.
    fn api_by(folder: &tempfile::TempDir, by: By) -> (Api, thread::JoinHandle<Vec<Input>>) {
        let cores: Vec<_> = (0..4).map(|id| Domain::from(CoreId(id))).collect();
        let boot = BootId::new("boot").unwrap();
        let (journal, _) = Journal::open(&JournalFolders::of(folder.path()), &boot).unwrap();
        let (root, changes_path) = (Root::at(folder.path()), folder.path().join("vms.json"));
        let groups = GroupsConfig::default();
        let sources = VmSources { vms: BTreeMap::new(), groups, pods: None, changes_path, auto_path: None };
        let binders = Binders::new(&root, by);
        let (vms, _) =
            Vms::start(&root, &cores, sources, binders, journal, Originals::default(), None).unwrap();
        let (messages, inbox) = mpsc::channel();
        let control = thread::spawn(move || {
            let mut inputs = vec![];
            for message in inbox {
                match message {
                    Message::Alert(alert, waiting) => {
                        let refusal = Refusal {
                            reason: RefusalReason::Stale,
                            newest_epoch: alert.epoch,
                            newest_seq: Seq(9),
                            instance: None,
                        };

                        waiting.send(Err(refusal)).unwrap();
                    }
                    Message::Input(input) => inputs.push(input),
                    Message::Stop => break,
                }
            }

            inputs
        });

        let api = Api {
            notes: vms.notes(),
            messages,
            snapshot: Arc::default(),
            events: Events::default(),
            counts: Counts::default(),
            vms: Arc::new(Mutex::new(vms)),
            faults: DiskFaults::default(),
            tls: None,
            access: Arc::new(AccessPolicy::new(ChassisId::new("c1").ok())),
        };

        (api, control)
    }

    #[test]
    fn an_agent_that_does_not_do_its_work_says_every_reason() {
        let folder = tempfile::tempdir().unwrap();
        let (api, _) = api(&folder);
        let unready = |state: &str, (epoch, lease): (u64, Option<u64>), alarms: &[AlarmId]| {
            let now = ballast_runtime::clock::unix_ms();
            let alarms: Vec<_> =
                alarms.iter().map(|id| Alarm { since_unix_ms: now, ..Alarm::new(*id, id.name()) }).collect();
            let status = serde_json::json!({
                "role": "agent", "chassis_id": "c1", "policy": "stepwise", "policy_effective": "stepwise",
                "vm_kills": 0, "last_vm_kills": [], "sensors": [], "fallback_w": 190.0,
                "lease_ms": lease, "refused_alerts": 0, "power_faults": 0, "vms": [], "alarms": alarms,
                "report": {
                    "server": "s01", "boot_id": "b", "agent_ms": 10, "epoch_obeyed": epoch, "seq_obeyed": 2,
                    "enforced_seq": 2, "state": state, "power_w": 201.5, "cap_w": 204.0, "sheddable_w": 30.0,
                    "restorable_w": 25.0, "low_cores": 24, "min_khz": 1_300_000, "server_limit": false,
                    "leaving": false, "actuator_failures": 0, "dry_run": false, "classes": []
                }
            });
            api.snapshot.set(serde_json::from_value(status).unwrap(), ballast_runtime::now());
            api.unready()
        };
        let (alone, leased, left) = ((0, None), (3, Some(1500)), (3, None));
        assert_eq!(api.unready(), [NO_READING], "before the first turn");
        for (state, lease, alarms, reasons) in [
            ("uncapped", alone, &[][..], &[][..]),
            ("throttled", leased, &[AlarmId::ActuatorFailing, AlarmId::StateNotWritten], &[]),
            ("boot", alone, &[], &[NO_READING]),
            ("blind", leased, &[AlarmId::Blind], &["blind"]),
            ("uncapped", leased, &[AlarmId::DryRun], &["dry_run"]),
            ("uncapped", left, &[], &[NO_LEASE]),
            ("uncapped", leased, &[AlarmId::CertificateExpires], &[]),
            ("uncapped", leased, &[AlarmId::CertificateExpired], &["certificate_expired"]),
            ("uncapped", leased, &[AlarmId::RecordingNotWritten], &[]),
            ("uncapped", leased, &[AlarmId::RecordingLosesSteps], &["recording_loses_steps"]),
            ("boot", left, &[AlarmId::DryRun], &["dry_run", NO_READING, NO_LEASE]),
        ] {
            assert_eq!(unready(state, lease, alarms), reasons, "{state} {lease:?} {alarms:?}");
        }
    }

    async fn call(routes: &Router, method: &str, path: &str, body: &str) -> (u16, String) {
        let request = http::from_here(method, path, body.to_owned());
        let answer = routes.clone().oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    const ALERT: &str = r#"{"chassis_id":"c1","epoch":3,"seq":4,"level":"cap","echo_boot_id":null,
        "echo_agent_ms":null,"chassis_power_w":2500,"chassis_limit_w":2450,"cap_w":204.1,
        "fallback_w":190,"valid_for_ms":2000,"a_field_of_the_future":1}"#;

    #[tokio::test]
    async fn bad_requests_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let (routes, _) = agent(&folder);
        let long = " ".repeat(100_000);
        let (vm, told) = ("/v1/vms/v1", "/v1/predictions");
        let one = |id: &str, percent: u8| {
            format!(
                "\"{id}\":{{\"class\":\"non-user-facing\",\"p95_percent\":{percent},\"throttle_order\":255}}"
            )
        };
        let body =
            |seq: u8, vms: String| format!("{{\"seq\":{seq},\"valid_for_ms\":60000,\"vms\":{{{vms}}}}}");
        let predicted = |id: &str, percent: u8| body(1, one(id, percent));
        // Of the longest names.
        let many = |n: u16| {
            let all: Vec<_> = (0..n).map(|n| one(&format!("v{n:063}"), 100)).collect();
            body(2, all.join(","))
        };

        for (method, path, body, status, says) in [
            ("POST", "/v1/alert", "", 400, "body is not valid"),
            ("POST", "/v1/alert", "{", 400, "line 1"),
            ("POST", "/v1/alert", r#"{"chassis_id":"a/b"}"#, 400, "is not an id"),
            ("POST", "/v1/alert", &ALERT.replace("204.1", "1e30"), 400, "is not a power"),
            ("POST", "/v1/alert", &ALERT.replace("204.1", "\"x\""), 400, "invalid type"),
            ("POST", "/v1/alert", &long, 413, ""),
            ("GET", "/v1/alert", "", 405, ""),
            ("GET", "/nowhere", "", 404, "no such path"),
            ("GET", "/v1/status", "", 503, "starting"),
            ("PUT", vm, r#"{"class":"batch","cores":1}"#, 400, "unknown variant"),
            ("PUT", vm, r#"{"class":"user-facing","cores":1,"x":1}"#, 400, "unknown field"),
            ("PUT", vm, r#"{"class":"user-facing","cores":99}"#, 400, "cores = 99"),
            ("PUT", vm, r#"{"class":"user-facing","cores":1,"cgroup":"../x"}"#, 400, "cgroup"),
            ("PUT", vm, r#"{"class":"user-facing","cores":1,"on_extreme":"kill"}"#, 400, "only for"),
            ("PUT", vm, r#"{"class":"non-user-facing","cores":1,"on_extreme":"kill"}"#, 400, "cgroup"),
            ("PATCH", vm, "", 405, "no such method"),
            ("PUT", told, "{}", 400, "missing field"),
            ("PUT", told, r#"{"seq":1,"valid_for_ms":999,"vms":{}}"#, 400, "valid_for_ms = 999: 1000 to"),
            ("PUT", told, &predicted(".v", 1), 400, "is not an id"),
            ("PUT", told, &predicted("v", 101), 400, "vms.v.p95_percent = 101: 0 to 100"),
            ("PUT", told, &predicted("v", 100), 204, ""),
            ("PUT", told, &predicted("v", 50), 409, "seq = 1: above 1"),
            ("PUT", told, &many(401), 400, "vms: 401 of them: at most 400"),
            ("PUT", told, &many(400), 204, ""),
            ("PUT", "/v1/vms/.v", r#"{"class":"user-facing","cores":1}"#, 400, "is not an id"),
            ("DELETE", vm, "", 404, "there is no VM v1"),
        ] {
            let (got, text) = call(&routes, method, path, body).await;
            assert_eq!(got, status, "{method} {path} {body:.80}: {text}");
            assert!(text.contains(says), "{method} {path} {body:.80}: {text}");
        }
    }

    #[tokio::test]
    async fn an_alert_is_answered_by_the_controller() {
        let folder = tempfile::tempdir().unwrap();
        let (routes, _) = agent(&folder);
        let (status, text) = call(&routes, "POST", "/v1/alert", ALERT).await;
        assert_eq!(status, 409);
        let refusal: Refusal = serde_json::from_str(&text).unwrap();
        assert_eq!((refusal.newest_epoch, refusal.newest_seq), (Epoch(3), Seq(9)));
    }

    #[tokio::test]
    async fn vms_come_and_go_as_whole_sets_and_survive_on_disk() {
        let folder = tempfile::tempdir().unwrap();
        let (routes, control) = agent(&folder);
        let put = |id: &'static str, class: &'static str| {
            let (routes, body) = (routes.clone(), format!(r#"{{"class":"{class}","cores":1}}"#));
            async move { call(&routes, "PUT", &format!("/v1/vms/{id}"), &body).await.0 }
        };

        assert_eq!(put("web", "user-facing").await, 204);
        assert_eq!(put("batch", "non-user-facing").await, 204);
        assert_eq!(call(&routes, "DELETE", "/v1/vms/web", "").await.0, 204);
        let (_, listed) = call(&routes, "GET", "/v1/vms", "").await;
        assert!(listed.contains("batch") && !listed.contains("web"), "{listed}");
        let kept = std::fs::read_to_string(folder.path().join("vms.json")).unwrap();
        assert!(kept.contains("batch") && !kept.contains("web"), "{kept}");
        drop(routes);
        let sizes: Vec<_> = control
            .join()
            .unwrap()
            .iter()
            .map(|input| match input {
                Input::Vms(set) => set.len(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(sizes, [1, 2, 1]);
    }

    /// It takes connections and says nothing.
    #[tokio::test]
    async fn a_systemd_that_hangs_does_not_hold_the_list_of_vms_up() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("run/dbus/x", "");
        let socket = folder.path().join("run/dbus/system_bus_socket");
        let _silent = std::os::unix::net::UnixListener::bind(socket).unwrap();
        write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu");
        for (file, text) in [("cgroup.events", "populated 1"), ("cpuset.cpus.effective", "0-3")] {
            write(&format!("sys/fs/cgroup/a.slice/b.service/{file}"), text);
        }
        let (api, _) = api_by(&folder, By::Systemd);
        let routes = routes(api);

        let began = std::time::Instant::now();
        let changes = routes.clone();
        let change = tokio::spawn(async move {
            let body = r#"{"class":"user-facing","cores":1,"cgroup":"a.slice/b.service"}"#;
            call(&changes, "PUT", "/v1/vms/b", body).await
        });
        let mut answers = 0;
        while !change.is_finished() {
            assert_eq!(call(&routes, "GET", "/v1/vms", "").await.0, 200);
            answers += 1;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(change.await.unwrap().0, 204);
        assert!(began.elapsed() > Duration::from_millis(900), "systemd was waited for");
        // One that is held up is answered once the change is done, and is the last.
        assert!(answers > 3, "{answers} answers meanwhile");
        assert!(call(&routes, "GET", "/v1/vms", "").await.1.contains("b.service"));
    }

    #[tokio::test]
    async fn two_vms_never_share_a_cgroup() {
        let folder = tempfile::tempdir().unwrap();
        let (routes, _) = agent(&folder);
        let put = |id: &'static str, cgroup: &'static str| {
            let routes = routes.clone();
            let body = format!(r#"{{"class":"user-facing","cores":1,"cgroup":"{cgroup}"}}"#);
            async move { call(&routes, "PUT", &format!("/v1/vms/{id}"), &body).await }
        };
        assert_eq!(put("web", "machine.slice/web.scope").await.0, 204);
        for cgroup in ["machine.slice/web.scope", "machine.slice", "machine.slice/web.scope/x"] {
            let (status, text) = put("evil", cgroup).await;
            assert_eq!(status, 400, "{cgroup}");
            assert!(text.contains("not shared with VM"), "{text}");
        }
        assert_eq!(put("other", "machine.slice/web.scope2").await.0, 204);
        assert_eq!(put("web", "machine.slice/web.scope").await.0, 204, "its own may stay");
    }
}
