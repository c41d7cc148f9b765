//! `ballast check --fleet` of daemons that are of different versions.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::thread;

use serde_json::{Value, json};

use crate::common::ballast;

/// The address of a daemon of that version, which answers with this status.
fn daemon(version: &str, status: &Value) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let metrics = format!(
        "# TYPE ballast_agent_build_info gauge\nballast_agent_build_info{{version=\"{version}\"}} 1\n"
    );
    let status = status.to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut head = vec![String::new()];
            while stream.read_line(head.last_mut().unwrap()).unwrap() > 2 {
                head.push(String::new());
            }
            let body = match head[0].split(' ').nth(1).unwrap() {
                "/v1/status" => &status,
                "/metrics" => &metrics,
                _ => "ok\n",
            };
            let length = body.len();
            write!(
                stream.get_mut(),
                "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
            )
            .unwrap();
        }
    });
    url
}

fn agent(server: &str) -> Value {
    let report = json!({"server": server, "boot_id": "00000000-0000-0000-0000-000000000000", "agent_ms": 5,
        "epoch_obeyed": 4, "seq_obeyed": 1, "enforced_seq": 1, "state": "uncapped", "power_w": 150.0,
        "cap_w": null, "sheddable_w": 10.0, "restorable_w": 0.0, "low_cores": 4, "min_khz": null,
        "server_limit": false, "leaving": false, "actuator_failures": 0, "dry_run": false, "classes": []});
    json!({"role": "agent", "chassis_id": "c1", "policy": "stepwise", "policy_effective": "stepwise",
        "report": report, "fallback_w": 200.0, "lease_ms": null, "refused_alerts": 0, "power_faults": 0,
        "vms": [], "vm_kills": 0, "last_vm_kills": [], "sensors": [], "alarms": []})
}

/// The exit code, and the finding with this id.
fn checked(urls: &[&str], id: &str) -> (Option<i32>, Value) {
    let output = ballast(Path::new("."), &format!("check --fleet --json {}", urls.join(" ")));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let finding = report["findings"].as_array().unwrap().iter().find(|it| it["id"] == id);
    (output.status.code(), finding.unwrap_or_else(|| panic!("no {id}: {report:#}")).clone())
}

#[test]
fn daemons_of_other_versions_are_named_with_what_to_upgrade() {
    let own = env!("CARGO_PKG_VERSION");
    let [s01, s02] = ["s01", "s02"].map(|server| daemon(own, &agent(server)));
    let s03 = daemon("0.0.9", &agent("s03"));
    // A status of a version that this program cannot read.
    let s04 = daemon("0.0.8+0a1b2c3d4", &json!({"role": "agent", "server": "s04"}));

    let (code, versions) = checked(&[&s01, &s02], "versions");
    assert_eq!((code, &versions["state"]), (Some(0), &json!("works")));
    assert_eq!(versions["found"], format!("{own} (this program, s01, s02)"));

    let (code, versions) = checked(&[&s01, &s02, &s03], "versions");
    assert_eq!((code, &versions["state"]), (Some(1), &json!("degraded")));
    assert_eq!(versions["found"], format!("0.0.9 (s03), {own} (this program, s01, s02)"));
    let reason = versions["reason"].as_str().unwrap();
    assert!(reason.starts_with(&format!("older than {own}: s03.")), "{reason}");
    assert!(versions["remedy"].as_str().unwrap().starts_with("upgrade s03: "), "{versions:#}");

    let (code, versions) = checked(&[&s01, &s04], "versions");
    assert_eq!(
        (code, &versions["found"]),
        (Some(2), &json!(format!("0.0.8+0a1b2c3d4 ({s04}), {own} (this program, s01)")))
    );
    let (_, answer) = checked(&[&s01, &s04], &format!("answer.{s04}"));
    assert_eq!(
        (&answer["state"], &answer["found"]),
        (&json!("missing"), &json!("its status cannot be read"))
    );

    // This program is the older one.
    let s05 = daemon("9.0.0", &agent("s05"));
    let (_, versions) = checked(&[&s01, &s05], "versions");
    assert!(versions["remedy"].as_str().unwrap().starts_with("upgrade this program, s01: "), "{versions:#}");

    // The same version, built from another commit.
    let s06 = daemon(&format!("{own}+0a1b2c3d4"), &agent("s06"));
    let (code, versions) = checked(&[&s01, &s06], "versions");
    assert_eq!((code, &versions["state"]), (Some(1), &json!("degraded")));
    assert!(versions["remedy"].as_str().unwrap().starts_with("install one build: "), "{versions:#}");
}
