//! Real daemons that speak by mutual TLS.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;

use ballast_runtime::config::EXIT_CONFIG;
use ballast_testbed::lab::site::{Site, role_of};
use ballast_testbed::lab::{Lab, steady};
use ballast_types::wire::{AgentState, ChassisStatus, Slot, TlsStatus};
use reqwest::Client;

ballast_testbed::wall_time![
    the_budget_holds_while_certificates_and_then_their_authority_are_replaced,
    without_the_right_certificate_nothing_changes,
    an_agent_at_another_ones_address_is_an_error_and_hears_nothing,
    an_operators_budget_reaches_the_cores_beside_128_stuck_clients,
    only_an_operator_sets_the_budget,
    certificates_that_cannot_be_used_end_with_78,
    status_by_tls_shows_who_is_who,
];

const DAY_S: i64 = 86_400;

/// Whether an episode goes on in which every agent answers and something is capped.
fn held(chassis: &ChassisStatus) -> bool {
    let answers = |server: &ballast_types::wire::ServerStatus| {
        server.slot == Slot::Managed
            && server.last_error.is_none()
            && server.report_age_ms.is_some_and(|age| age < 1500)
    };
    chassis.servers.iter().all(answers)
        && chassis
            .servers
            .iter()
            .any(|server| server.report.as_ref().is_some_and(|report| report.min_khz.is_some()))
        && chassis.power_w.is_some_and(|power| power <= chassis.budget_w)
}

fn certificate(lab: &Lab, name: &str) -> Option<TlsStatus> {
    if name == "chassis" { lab.chassis()?.tls } else { lab.agent(name)?.tls }
}

fn the_budget_holds_while_certificates_and_then_their_authority_are_replaced() {
    let (mut lab, site) = Lab::secure(steady(2, 420, (0.3, 0.95)), "");
    let before = lab.limits();
    lab.start_all();
    let holds = |lab: &Lab| lab.chassis().is_some_and(|chassis| held(&chassis));
    lab.wait("the budget holds", holds);

    // Everybody gets a new certificate, in an episode.
    for name in lab.daemons() {
        site.put(&name, &site.issue(&[&role_of(&name)], 30), &site.ca);
    }
    let ends_in = |lab: &Lab, name: &str, days: i64| {
        certificate(lab, name).is_some_and(|tls| (tls.expires_in_s - days * DAY_S).abs() < 3600)
    };
    let all_end_in = |lab: &Lab, days| lab.daemons().iter().all(|name| ends_in(lab, name, days));
    lab.wait("the new certificates are in force", |lab| all_end_in(lab, 30));
    lab.wait("the budget holds with new certificates", holds);

    // Then a new authority: both are trusted, all get its certificates, the old one goes.
    let next = Site::new(&lab, "next");
    let both = format!("{}{}", site.ca, next.ca);

    for name in lab.daemons() {
        site.put(&name, &site.issue(&[&role_of(&name)], 40), &both);
    }
    lab.wait("both authorities are trusted", |lab| all_end_in(lab, 40));

    for name in lab.daemons() {
        site.put(&name, &next.issue(&[&role_of(&name)], 50), &both);
    }
    lab.wait("all have certificates of the next authority", |lab| all_end_in(lab, 50));

    for name in lab.daemons() {
        site.put(&name, &next.issue(&[&role_of(&name)], 60), &next.ca);
    }
    lab.wait("the old authority is gone", |lab| all_end_in(lab, 60));
    lab.wait("the budget holds under the next authority", holds);
    let old = site.client(&site.issue(&["ballast://chassis/lab"], 1));
    assert_eq!(lab.call(|_| old.get(lab.secret_url("s01", "/v1/status"))).0, 0);

    // A broken pair is an alarm, and the old one goes on.
    let broken = next.issue(&["ballast://agent/s01"], 70);
    std::fs::write(site.files("s01").cert, &broken.certificate).unwrap();
    lab.wait("the broken pair is an alarm", |lab| {
        lab.agent("s01").is_some_and(|status| {
            status.alarms.iter().any(|alarm| alarm.message.contains("the old ones stay"))
        })
    });

    assert!(ends_in(&lab, "s01", 60), "{:?}", certificate(&lab, "s01"));
    let (_, metrics) = lab.get("s01", "/metrics");
    assert!(metrics.contains("ballast_agent_certificate_reload_failed 1.0"), "{metrics}");
    lab.wait("the budget holds all the same", holds);

    lab.end_all();
    lab.wait_restored(&before, "");
}

fn alert(chassis: &str) -> String {
    format!(
        r#"{{"chassis_id":"{chassis}","epoch":9,"seq":1,"level":"cap","echo_boot_id":null,
        "echo_agent_ms":null,"chassis_power_w":300,"chassis_limit_w":300,"cap_w":120,
        "fallback_w":120,"valid_for_ms":2000}}"#
    )
}

fn without_the_right_certificate_nothing_changes() {
    let (mut lab, site) = Lab::secure(steady(1, 300, (0.3, 0.95)), "");
    let other = Site::new(&lab, "other");
    lab.start("s01");
    lab.start("chassis");
    lab.wait("the agent reads its meter", |lab| lab.get("s01", "/readyz").0 == 200);
    lab.end("chassis");
    let before = lab.limits();
    let seen = |lab: &Lab| {
        let status = lab.agent("s01").expect("a status");
        (status.report.epoch_obeyed, status.report.seq_obeyed, status.report.cap_w, status.vms)
    };

    let was = seen(&lab);

    let expired = site.client(&site.issue_expired("ballast://chassis/lab"));
    let certified = |uri: &str| site.client(&site.issue(&[uri], 1));
    let (chassis, operator) = (certified("ballast://chassis/lab"), certified("ballast://operator/ann"));
    for (who, client, expected) in [
        ("nobody", site.nobody(), 0),
        ("another authority's chassis", site.client(&other.issue(&["ballast://chassis/lab"], 1)), 0),
        ("the chassis, expired", expired, 0),
        ("another chassis", certified("ballast://chassis/lab2"), 403),
        ("an agent with the chassis's id", certified("ballast://agent/lab"), 403),
        ("the agent itself", certified("ballast://agent/s01"), 403),
        ("an operator", operator.clone(), 403),
        ("a power source", certified("ballast://power/lab"), 403),
    ] {
        let url = lab.secret_url("s01", "/v1/alert");
        let (status, text) = lab.call(|_| client.post(&url).body(alert("lab")));
        assert_eq!(status, expected, "{who}: {text}");
        let readable = lab.call(|_| client.get(lab.secret_url("s01", "/v1/status"))).0;
        assert_eq!(readable, if expected == 0 { 0 } else { 200 }, "{who}");
    }

    // This machine may read, and no more.
    let url = lab.url("s01", "/v1/alert");
    assert_eq!(lab.call(|client: &Client| client.post(&url).body(alert("lab"))).0, 403);
    let (vm, body) = ("/v1/vms/new", r#"{"class":"user-facing","cores":1}"#);
    let url = lab.url("s01", vm);
    assert_eq!(lab.call(|client: &Client| client.put(&url).body(body)).0, 403);
    let url = lab.secret_url("s01", vm);
    assert_eq!(lab.call(|_| chassis.put(&url).body(body)).0, 403, "a chassis sets no VMs");
    assert_eq!(seen(&lab), was);
    assert!(lab.limits() == before, "something was changed");

    // Who may, can: by a message of another chassis's id, refused by the controller itself, and a good one.
    assert_eq!(lab.call(|_| operator.put(&url).body(body)).0, 204);
    let url = lab.secret_url("s01", "/v1/alert");
    assert_eq!(lab.call(|_| chassis.post(&url).body(alert("lab2"))).0, 409);
    assert_eq!(lab.call(|_| chassis.post(&url).body(alert("lab"))).0, 200);
    lab.wait("its cores are capped", |lab| {
        lab.agent("s01").is_some_and(|status| status.report.state != AgentState::Uncapped)
    });
    lab.end("s01");
}

fn an_agent_at_another_ones_address_is_an_error_and_hears_nothing() {
    let (mut lab, _) = Lab::secure(steady(2, 420, (0.3, 0.95)), "");
    let text = std::fs::read_to_string(lab.config("chassis")).unwrap();
    let (one, two) = (lab.secret_url("s01", ""), lab.secret_url("s02", ""));
    let swapped = text.replace(&one, "ONE").replace(&two, &one).replace("ONE", &two);
    std::fs::write(lab.config("chassis"), swapped).unwrap();
    lab.start_all();
    lab.wait("the chassis says whom it found", |lab| {
        lab.chassis().is_some_and(|chassis| {
            let error = chassis.servers[0].last_error.clone().unwrap_or_default();
            error.contains("the peer is ballast://agent/s02, not ballast://agent/s01")
        })
    });
    for name in ["s01", "s02"] {
        assert_eq!(lab.agent(name).unwrap().report.epoch_obeyed.0, 0, "{name}");
    }
    assert!(lab.chassis().unwrap().servers.iter().all(|server| server.report.is_none()));
}

fn an_operators_budget_reaches_the_cores_beside_128_stuck_clients() {
    let (mut lab, site) = Lab::secure(steady(1, 300, (0.3, 0.95)), "");
    lab.start_all();
    let report = |lab: &Lab| lab.chassis().and_then(|c| c.servers[0].report.clone());
    lab.wait("the agent reports", |lab| report(lab).is_some());
    let at = |name: &str| -> SocketAddr { lab.secret_url(name, "").replace("https://", "").parse().unwrap() };
    let (agent, chassis) = (at("s01"), at("chassis"));
    let mut stuck = vec![];

    for n in 0..128 {
        for at in [agent, chassis] {
            // Half a handshake; some are put out at once.
            let Ok(mut stream) = TcpStream::connect(at) else { continue };
            let _ = stream.write_all(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc][..n % 10]);
            stuck.push(stream);
        }
    }

    // The bucket of this address is empty now: an operator elsewhere, and the standing connections, go on.
    let elsewhere = site.client_from([127, 0, 9, 1], &site.issue(&["ballast://operator/ann"], 1));
    let url = lab.secret_url("chassis", "/v1/budget");
    let (status, text) = lab.call(|_| elsewhere.put(&url).body("{\"budget_w\":200,\"force\":true}"));
    assert!(matches!(status, 200 | 202), "{status} {text}");
    lab.wait("its cores are capped", |lab| {
        report(lab).is_some_and(|report| report.min_khz.is_some() && report.actuator_failures == 0)
    });
    drop(stuck);
}

fn only_an_operator_sets_the_budget() {
    let (mut lab, site) = Lab::secure(steady(1, 300, (0.2, 0.2)), "");
    lab.start_all();
    let (plain, secret) = (lab.url("chassis", "/v1/budget"), lab.secret_url("chassis", "/v1/budget"));
    let body = r#"{"budget_w":250}"#;
    assert_eq!(lab.call(|client: &Client| client.put(&plain).body(body)).0, 403);
    assert_eq!(lab.call(|_| site.nobody().put(&secret).body(body)).0, 0);
    for uri in ["ballast://agent/s01", "ballast://chassis/lab", "ballast://power/pdu"] {
        let client = site.client(&site.issue(&[uri], 1));
        assert_eq!(lab.call(|_| client.put(&secret).body(body)).0, 403, "{uri}");
        assert_eq!(lab.call(|_| client.delete(&secret)).0, 403, "{uri}");
    }
    assert_eq!(lab.chassis().unwrap().budget_w.as_f64(), 300.0);
    let ann = site.client(&site.issue(&["ballast://operator/ann"], 1));
    assert_eq!(lab.call(|_| ann.put(&secret).body(body)).0, 200);
    assert_eq!(lab.chassis().unwrap().budget_w.as_f64(), 250.0);
    assert!(lab.log("chassis").contains("ballast://operator/ann"), "{}", lab.log("chassis"));
}

fn certificates_that_cannot_be_used_end_with_78() {
    let (lab, site) = Lab::secure(steady(1, 300, (0.2, 0.2)), "");
    let start = |says: &str| {
        let config = lab.config("s01");
        for more in [&[][..], &["--check-config"]] {
            let args = ["agent", "--config", config.to_str().unwrap()];
            let output = Lab::ballast(&[&args[..], more].concat());
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(i32::from(EXIT_CONFIG)), "{text}");
            assert!(text.contains("s01.toml: tls.") && text.contains(says), "{text}");
        }
    };

    let files = site.files("s01");
    std::fs::set_permissions(&files.key, std::fs::Permissions::from_mode(0o644)).unwrap();
    start("mode is 0644");
    site.put("s01", &site.issue(&["ballast://agent/s02"], 9), &site.ca);
    start("it says ballast://agent/s02, and this is ballast://agent/s01");
    std::fs::remove_file(&files.ca).unwrap();
    start("tls.ca = ");
}

fn status_by_tls_shows_who_is_who() {
    let (mut lab, site) = Lab::secure(steady(1, 300, (0.2, 0.2)), "");
    lab.start_all();
    let ann = site.put("ann", &site.issue(&["ballast://operator/ann"], 1), &site.ca);
    let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let (cert, key, ca) = (path(&ann.cert), path(&ann.key), path(&ann.ca));
    let (agent, chassis) = (lab.secret_url("s01", ""), lab.secret_url("chassis", ""));
    let status = |more: &[&str]| {
        let output = Lab::ballast(&[&["status", "--json", &agent, &chassis], more].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, text) = status(&["--cert", &cert, "--key", &key, "--ca", &ca]);
    assert_eq!(code, Some(0), "{text}");
    let answers: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answers[0]["status"]["tls"]["role"], "ballast://agent/s01");
    assert_eq!(answers[1]["status"]["tls"]["role"], "ballast://chassis/lab");
    let (code, text) = status(&[]);
    assert_eq!(code, Some(1), "without certificates: {text}");
}
