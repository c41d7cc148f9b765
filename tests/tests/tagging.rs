//! From prediction to agent: what is predicted of a VM reaches the one who acts on it, by itself.

use std::fs;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use ballast_testbed::lab::place::{PlaceLab, SOCKET, model, senseless_model};
use ballast_testbed::lab::site::{SECRET, Site};
use ballast_testbed::lab::{Lab, steady};
use ballast_types::VmClass;
use ballast_types::wire::{AlarmId, VmStatus};
use serde_json::{Value, json};

ballast_testbed::wall_time![
    a_vm_that_was_placed_without_a_class_is_slowed_by_what_the_model_says_and_no_other,
    with_a_senseless_model_everything_is_user_facing_and_the_budget_holds,
    nothing_is_lost_when_either_side_is_started_anew,
    an_operators_class_wins_and_what_has_ended_is_forgotten,
    what_nobody_renews_ends,
    a_placement_daemons_certificate_predicts_and_nothing_else,
];

/// A server whose agent has been told no class, and a placement daemon that tells it.
struct TaggingLab {
    lab: Lab,
    place: PlaceLab,
}

impl TaggingLab {
    fn new(lab: Lab, model: Option<&[u8]>, agent: &str, more: &str) -> Self {
        let path = lab.config("s01");
        let text = fs::read_to_string(&path).expect("a config");
        let told = |line: &&str| !line.starts_with("class = ");
        fs::write(path, text.lines().filter(told).map(|line| format!("{line}\n")).collect::<String>())
            .expect("a config");

        let mut place = PlaceLab::start("");
        assert!(place.end().success());
        let hosts = place.path("hosts.toml");
        let host = format!(
            "[[hosts]]\nname = \"s01\"\nchassis = \"lab\"\ncores = 40\nmemory_gb = 160\nagent = {agent:?}\n"
        );
        fs::write(&hosts, host).expect("a file");
        let config = fs::read_to_string(place.path("place.toml")).expect("a config");
        fs::write(place.path("place.toml"), format!("{more}{config}[inventory]\nfile = {hosts:?}\n"))
            .expect("a config");
        if let Some(model) = model {
            place.put(model);
        }
        place.restart();
        Self { lab, place }
    }

    /// On one machine: by the agent's socket.
    fn local(lab: Lab, model: Option<&[u8]>) -> Self {
        let socket = format!("unix:{}", lab.socket("s01").display());
        Self::new(lab, model, &socket, "")
    }

    fn vm(&self, name: &str) -> VmStatus {
        let status = self.lab.agent("s01").expect("a status");
        status.vms.into_iter().find(|vm| vm.vm.as_str() == name).expect(name)
    }

    /// Whether the agent runs, and counts this VM so.
    fn counts_as(&self, name: &str, class: VmClass, origin: &str) -> bool {
        let vms = self.lab.agent("s01").map_or(vec![], |status| status.vms);
        let vm = vms.iter().find(|vm| vm.vm.as_str() == name);
        vm.is_some_and(|vm| vm.class == class && vm.origin.as_deref() == Some(origin))
    }

    fn place(&self, vm: &Value) {
        let (status, answer) = self.place.call("POST", "/v1/place", vm);
        assert_eq!(status, 200, "{answer}");
    }

    fn remove(&self, vm: &str) {
        assert_eq!(self.place.call("DELETE", &format!("/v1/vms/{vm}"), &Value::Null).0, 204);
    }

    fn is_told(&self) -> bool {
        let agents = self.place.status().agents;
        (agents.current, agents.behind) == (1, 0)
    }
}

fn told(name: &str, class: &str) -> Value {
    json!({"vm_id": name, "cores": 6, "memory_gb": 12, "class": class, "p95_percent": 95})
}

const BATCH: (VmClass, &str) = (VmClass::NonUserFacing, "predicted");

/// A VM without a class, of a subscription of which the model is sure that it is of `class`.
fn untold(lab: &PlaceLab, name: &str, cores: u32, class: &str) -> Value {
    let vm = |n: u32| {
        json!({"vm_id": name, "cores": cores, "memory_gb": 2 * cores, "vm_type": "compute",
            "subscription": format!("sub-{n:05}")})
    };
    let vms: Vec<_> = (0..1000).map(vm).collect();
    let (status, answer) = lab.predict(&json!({ "vms": vms }));
    assert_eq!(status, 200, "{answer}");
    let answers = answer["vms"].as_array().expect("answers");
    let sure = |answer: &Value| answer["class"] == class && answer["class_confident"] == true;
    let found = answers.iter().position(sure).expect("a subscription that the model is sure of");
    vms[found].clone()
}

fn a_vm_that_was_placed_without_a_class_is_slowed_by_what_the_model_says_and_no_other() {
    // Some 250 W without caps; one batch VM at its floor saves 20.
    let mut lab = TaggingLab::local(Lab::new(steady(1, 240, (0.3, 0.95)), ""), Some(&model(1)));
    let before = lab.lab.limits();
    lab.lab.start("s01");
    lab.lab.wait("ready", |lab| lab.get("s01", "/readyz").0 == 200);
    assert_eq!(
        (lab.vm("batch0").class, lab.vm("batch0").origin.as_deref()),
        (VmClass::UserFacing, Some("config"))
    );
    lab.place.wait("the agent hears of nobody", |_| lab.is_told());

    for (vm, cores) in [("web0", 4), ("web1", 4), ("web2", 4), ("batch1", 6), ("batch2", 6)] {
        lab.place(&untold(&lab.place, vm, cores, "user-facing"));
    }
    let batch = untold(&lab.place, "batch0", 6, "non-user-facing");
    lab.place(&batch);
    let answered = Instant::now();
    lab.lab.wait("the class is there", |_| lab.counts_as("batch0", BATCH.0, BATCH.1));
    let took = answered.elapsed();
    assert!(took.as_millis() < 1000, "{took:?} after the answer");
    lab.place.wait("the placement daemon knows", |_| lab.is_told());
    let predicted = lab.vm("batch0").predicted.expect("a prediction");
    let (_, asked) = lab.place.predict(&batch);
    assert_eq!(json!(predicted.p95_percent), asked["p95_percent"]);
    assert_eq!(lab.vm("batch0").throttle_order, predicted.throttle_order);

    lab.lab.start("chassis");
    lab.lab.wait("the VM is slowed", |_| lab.vm("batch0").min_khz.is_some());
    lab.lab.wait("the budget holds", Lab::holds);
    for vm in lab.lab.agent("s01").expect("a status").vms {
        assert_eq!(vm.impact.throttled_core_ms > 0, vm.vm.as_str() == "batch0", "{vm:?}");
    }
    let hardware = lab.lab.chassis().expect("a status").servers[0].hardware_cap_w;
    assert_eq!(hardware, None, "no hardware cap was needed");

    // It ends: nobody is left to be slowed, and nothing is left of it.
    lab.remove("batch0");
    lab.lab.wait("it is user-facing", |_| lab.counts_as("batch0", VmClass::UserFacing, "config"));
    lab.lab.end_all();
    lab.lab.wait_restored(&before, "power1_cap");
    assert!(lab.place.end().success(), "{}", lab.place.log());
}

fn with_a_senseless_model_everything_is_user_facing_and_the_budget_holds() {
    let mut lab = TaggingLab::local(Lab::new(steady(1, 240, (0.3, 0.95)), ""), Some(&senseless_model(1)));
    lab.lab.start("s01");
    lab.lab.wait("ready", |lab| lab.get("s01", "/readyz").0 == 200);
    for n in 0..3 {
        for (name, cores) in [("web", 4), ("batch", 6)] {
            let vm = json!({"vm_id": format!("{name}{n}"), "cores": cores, "memory_gb": 4 * cores,
                "subscription": format!("sub-{n:05}"), "vm_type": "compute"});
            lab.place(&vm);
        }
    }
    lab.place.wait("the agent is told", |_| lab.is_told());
    lab.lab.start("chassis");
    // Nobody may be slowed by software: the server's own limit, on all alike.
    lab.lab.wait("hardware helps", |lab| lab.agent("s01").is_some_and(|agent| agent.report.server_limit));
    lab.lab.wait("the budget holds", Lab::holds);
    for vm in lab.lab.agent("s01").expect("a status").vms {
        assert_eq!((vm.class, vm.impact.throttled_core_ms), (VmClass::UserFacing, 0), "{vm:?}");
    }
    lab.lab.end_all();
}

fn nothing_is_lost_when_either_side_is_started_anew() {
    let mut lab = TaggingLab::local(Lab::new(steady(1, 600, (0.2, 0.2)), ""), None);
    // Nobody is there to be told.
    lab.place(&told("batch0", "non-user-facing"));
    lab.place.wait("the agent is behind", |place| place.status().agents.failed > 0);
    assert_eq!(lab.place.status().agents.behind, 1);
    lab.place.wait("an alarm", |place| {
        place.status().alarms.iter().any(|alarm| alarm.id == AlarmId::AgentUninformed)
    });
    lab.lab.start("s01");
    lab.lab.wait("it is told once it is there", |_| lab.counts_as("batch0", BATCH.0, BATCH.1));
    lab.place.wait("the alarm is over", |place| {
        place.status().alarms.iter().all(|alarm| alarm.id != AlarmId::AgentUninformed)
    });

    // The agent alone knows it again, from its disk.
    lab.place.kill();
    lab.lab.kill("s01");
    lab.lab.start("s01");
    lab.lab.wait("it knows", |_| lab.counts_as("batch0", BATCH.0, BATCH.1));

    // The placement daemon does, from its own; what was placed meanwhile comes with it.
    lab.place.restart();
    lab.place(&told("batch1", "non-user-facing"));
    lab.lab.wait("it hears the next", |_| lab.counts_as("batch1", BATCH.0, BATCH.1));
    assert!(lab.counts_as("batch0", BATCH.0, BATCH.1));

    // With an agent that has lost everything, and while it is away.
    lab.lab.kill("s01");
    fs::remove_file(lab.lab.journal("s01").with_file_name("predictions.json")).expect("a file");
    lab.remove("batch0");
    lab.place(&told("batch2", "non-user-facing"));
    lab.lab.start("s01");
    for (vm, (class, origin)) in
        [("batch0", (VmClass::UserFacing, "config")), ("batch1", BATCH), ("batch2", BATCH)]
    {
        lab.lab.wait(vm, |_| lab.counts_as(vm, class, origin));
    }

    // An agent that is started anew without a word from anybody is told again, also what has not changed.
    lab.place.wait("it is told", |_| lab.is_told());
    lab.lab.kill("s01");
    fs::remove_file(lab.lab.journal("s01").with_file_name("predictions.json")).expect("a file");
    lab.lab.start("s01");
    lab.lab.wait("it hears again", |_| lab.counts_as("batch2", BATCH.0, BATCH.1));
}

fn an_operators_class_wins_and_what_has_ended_is_forgotten() {
    let mut lab = TaggingLab::local(Lab::new(steady(1, 600, (0.2, 0.2)), ""), None);
    lab.lab.start("s01");
    for vm in ["batch0", "batch1", "later", "no id"] {
        lab.place(&told(vm, "non-user-facing"));
    }
    lab.lab.wait("they are told", |_| lab.counts_as("batch1", BATCH.0, BATCH.1));
    lab.place.wait("all of it", |_| lab.is_told());
    assert_eq!(lab.place.status().agents.untellable_vms, 1, "what is no id is no VM of an agent");
    let held = lab.lab.agent("s01").and_then(|status| status.predictions).expect("predictions");
    assert_eq!((held.vms, held.absent), (3, 1));

    // One that is told of before it is there.
    let body = json!({"cores": 2}).to_string();
    assert_eq!(lab.lab.order("PUT", "s01", "/v1/vms/later", &body).0, 204);
    lab.lab.wait("it counts once it is there", |_| lab.counts_as("later", BATCH.0, BATCH.1));

    let body = json!({"class": "user-facing", "cores": 6}).to_string();
    assert_eq!(lab.lab.order("PUT", "s01", "/v1/vms/batch0", &body).0, 204);
    lab.lab.wait("the operator wins", |_| lab.counts_as("batch0", VmClass::UserFacing, "api"));
    // Placement says it again and again, and otherwise.
    // Who orders it does not wait for the answer.
    let body = json!({"host": "s01", "cores": 6, "memory_gb": 12, "class": "user-facing", "p95_percent": 95});
    let head = "PUT /v1/vms/batch1 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let body = body.to_string();
    let order = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    lab.place.wait("it is ordered", |place| {
        let mut stream = UnixStream::connect(place.path(SOCKET)).expect("a socket");
        stream.write_all(order.as_bytes()).expect("an order");
        drop(stream);
        place.get("/v1/vms/batch1").1.contains("\"user-facing\"")
    });
    lab.lab.wait("another class", |_| lab.counts_as("batch1", VmClass::UserFacing, "predicted"));
    assert!(lab.counts_as("batch0", VmClass::UserFacing, "api"));

    lab.remove("later");
    lab.lab.wait("it is forgotten", |_| lab.counts_as("later", VmClass::UserFacing, "api"));
    assert_eq!(lab.lab.agent("s01").and_then(|status| status.predictions).map(|held| held.vms), Some(2));
}

fn what_nobody_renews_ends() {
    let mut lab = Lab::new(steady(1, 600, (0.2, 0.2)), "");
    let text = fs::read_to_string(lab.config("s01")).expect("a config");
    fs::write(lab.config("s01"), text.replace("class = \"non-user-facing\"\n", "")).expect("a config");
    lab.start("s01");
    lab.wait("ready", |lab| lab.get("s01", "/readyz").0 == 200);
    let body = |seq: u64, valid_for_ms: u64| {
        let vm = json!({"class": "non-user-facing", "p95_percent": 40, "throttle_order": 1});
        json!({"seq": seq, "valid_for_ms": valid_for_ms, "vms": {"batch0": vm}}).to_string()
    };
    let low = |lab: &Lab| lab.agent("s01").map_or(0, |status| status.report.low_cores);
    assert_eq!(lab.order("PUT", "s01", "/v1/predictions", &body(5, 1000)).0, 204);
    assert_eq!(lab.order("PUT", "s01", "/v1/predictions", &body(5, 60_000)).0, 409, "it was heard before");
    lab.wait("it ends", |lab| lab.log("s01").contains("was not renewed"));
    lab.wait("nobody is batch", |lab| low(lab) == 0);
    assert!(lab.agent("s01").is_some_and(|status| status.predictions.is_none()));
    assert_eq!(lab.order("PUT", "s01", "/v1/predictions", &body(4, 60_000)).0, 204);
    lab.wait("it holds again", |lab| low(lab) == 6);
}

fn a_placement_daemons_certificate_predicts_and_nothing_else() {
    let (lab, site) = Lab::secure(steady(1, 600, (0.2, 0.2)), "");
    let files = site.put("place", &site.issue(&["ballast://place/lab"], 90), &site.ca);
    let tls = format!("tls = {{ cert = {:?}, key = {:?}, ca = {:?} }}\n", files.cert, files.key, files.ca);
    let port = lab.url("s01", "").rsplit(':').next().expect("a port").to_owned();
    let mut lab = TaggingLab::new(lab, None, &format!("https://{SECRET}:{port}"), &tls);
    lab.lab.start("s01");
    lab.place(&told("batch0", "non-user-facing"));
    lab.lab.wait("it is told", |_| lab.counts_as("batch0", BATCH.0, BATCH.1));

    let certified = |uri: &str| site.client(&site.issue(&[uri], 1));
    let (place, operator) = (certified("ballast://place/other"), certified("ballast://operator/ann"));
    let call = |client: &reqwest::Client, method: &str, path: &str, body: &str| {
        let request = client.request(method.parse().expect("a method"), lab.lab.secret_url("s01", path));
        lab.lab.call(|_| request.body(body.to_owned())).0
    };
    let predictions = json!({"seq": u64::MAX, "valid_for_ms": 1000, "vms": {}}).to_string();
    for (who, client, method, path, body, status) in [
        ("place", &place, "POST", "/v1/alert", "{}", 403),
        ("place", &place, "PUT", "/v1/vms/batch1", r#"{"class":"non-user-facing","cores":6}"#, 403),
        ("place", &place, "DELETE", "/v1/vms/batch1", "", 403),
        ("operator", &operator, "PUT", "/v1/predictions", &predictions, 403),
        ("place", &place, "GET", "/v1/vms", "", 200),
        ("place", &place, "PUT", "/v1/predictions", &predictions, 204),
    ] {
        assert_eq!(call(client, method, path, body), status, "{who} {method} {path}");
    }
    // Another authority's counts for nothing.
    let other = Site::new(&lab.lab, "other");
    let foreign = other.client(&other.issue(&["ballast://place/lab"], 1));
    assert_eq!(call(&foreign, "PUT", "/v1/predictions", &predictions), 0);
}
