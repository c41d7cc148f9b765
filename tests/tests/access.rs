//! Who may order on the machine itself, and what is written down of it.

use std::fs;
use std::os::unix::net::{UnixListener, UnixStream};

use ballast_testbed::lab::{Lab, steady};
use serde_json::{Value, json};

ballast_testbed::wall_time![
    loopback_reads_and_the_socket_orders_and_every_order_is_written_down,
    a_socket_that_cannot_be_bound_is_an_alarm_and_is_bound_later,
    without_run_daemons_start_answer_and_hold_the_budget_and_orders_come_once_it_is_there,
];

fn loopback_reads_and_the_socket_orders_and_every_order_is_written_down() {
    let mut lab = Lab::new(steady(1, 600, (0.2, 0.2)), "");
    lab.start_all();
    let budget = json!({"budget_w": 500, "force": true}).to_string();
    let vm = json!({"class": "user-facing", "cores": 1}).to_string();
    for (name, method, path, body) in [
        ("chassis", "PUT", "/v1/budget", &budget),
        ("chassis", "DELETE", "/v1/budget", &String::new()),
        ("s01", "PUT", "/v1/vms/new", &vm),
        ("s01", "DELETE", "/v1/vms/new", &String::new()),
        ("s01", "POST", "/v1/alert", &"{}".to_owned()),
    ] {
        let method = method.parse().expect("a method");
        let url = lab.url(name, path);
        let (status, text) = lab.call(|client| client.request(method, url).body(body.clone()));
        assert!(status == 403 && text.contains("use the daemon's socket"), "{name} {path}: {status} {text}");
    }
    assert_eq!(orders(&lab, "chassis"), Vec::<Value>::new(), "refusals for want of a right are no orders");

    assert_eq!(lab.order("PUT", "chassis", "/v1/budget", &budget).0, 200);
    assert_eq!(lab.order("PUT", "chassis", "/v1/budget", r#"{"budget_w":700}"#).0, 400);
    assert_eq!(lab.order("DELETE", "chassis", "/v1/budget", "").0, 200);
    let told = orders(&lab, "chassis");
    assert_eq!(told.len(), 3, "{told:?}");
    let who = format!("uid {} (pid {})", nix::unistd::getuid(), std::process::id());
    assert_eq!(
        (&told[0]["who"], &told[0]["what"], &told[0]["before"], &told[0]["after"], &told[0]["outcome"]),
        (&json!(who), &json!("PUT /v1/budget"), &json!("budget_w=600"), &json!(budget), &json!("200 OK"))
    );
    assert!(told[1]["outcome"].as_str().unwrap().contains("at most 600"), "{told:?}");
    assert_eq!((&told[2]["before"], &told[2]["after"]), (&json!("budget_w=500"), &Value::Null));
    let log = lab.log("chassis");
    assert!(log.contains(&who) && log.contains("budget_w=600"), "{log}");

    assert_eq!(lab.order("PUT", "s01", "/v1/vms/new", &vm).0, 204);
    assert_eq!(lab.order("DELETE", "s01", "/v1/vms/new", "").0, 204);
    for hosts in ["system.slice", "user.slice", "init.scope"] {
        let body = json!({"class": "user-facing", "cores": 1, "cgroup": hosts}).to_string();
        let (status, text) = lab.order("PUT", "s01", "/v1/vms/new", &body);
        assert!(status == 400 && text.contains("the host's own"), "{hosts}: {status} {text}");
    }
    let told = orders(&lab, "s01");
    assert_eq!(told.len(), 5, "{told:?}");
    assert_eq!(told[0]["before"], Value::Null);
    assert!(told[1]["before"].as_str().is_some_and(|it| it.contains("user-facing")), "{told:?}");
}

fn orders(lab: &Lab, name: &str) -> Vec<Value> {
    let text = fs::read_to_string(lab.home(name).join("state/orders.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

fn a_socket_that_cannot_be_bound_is_an_alarm_and_is_bound_later() {
    let mut lab = Lab::new(steady(1, 600, (0.2, 0.2)), "");
    let other = UnixListener::bind(lab.socket("chassis")).expect("a socket");
    lab.start("chassis");
    lab.wait("it answers", |lab| lab.get("chassis", "/readyz").0 == 200);
    let told = |lab: &Lab| {
        let (_, status) = lab.get("chassis", "/v1/status");
        status.contains("another daemon answers there")
    };
    lab.wait("it is an alarm", told);
    drop(other);
    lab.wait("it is over", |lab| !told(lab));
    assert_eq!(lab.order("PUT", "chassis", "/v1/budget", r#"{"budget_w":500,"force":true}"#).0, 200);
}

fn without_run_daemons_start_answer_and_hold_the_budget_and_orders_come_once_it_is_there() {
    let (mut lab, _site) = Lab::secure(steady(1, 210, (0.3, 0.95)), "");
    let run = lab.tree().with_file_name("run");
    // Nobody can make it: a file is there.
    fs::write(&run, "").expect("a file");
    let socket = |name: &str| run.join(name).join("ballast.sock");
    for name in lab.daemons() {
        let text = fs::read_to_string(lab.config(&name)).expect("a config");
        let more = format!("listen = [\"unix:{}\", ", socket(&name).display());
        fs::write(lab.config(&name), text.replace("listen = [", &more)).expect("a config");
    }

    lab.start_all();

    let told = |lab: &Lab, name: &str| lab.get(name, "/v1/status").1.contains("ballast.sock: ");
    lab.wait("the budget holds", Lab::holds);
    for name in lab.daemons() {
        lab.wait("it is an alarm", |lab| told(lab, &name));
        assert_eq!(lab.get(&name, "/healthz").0, 200);
    }

    fs::remove_file(&run).expect("what was in the way");
    for name in lab.daemons() {
        lab.wait("it is over", |lab| !told(lab, &name));
        UnixStream::connect(socket(&name)).expect("a socket that answers");
    }
    lab.end_all();
}
