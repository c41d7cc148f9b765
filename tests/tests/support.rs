//! What helps somebody who shall help: the support archive of real daemons, and the check of a fleet.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use ballast_testbed::lab::{Lab, ballast, steady};
use flate2::read::GzDecoder;
use serde_json::Value;

ballast_testbed::wall_time![
    a_bundle_holds_what_helps_and_no_secret,
    a_fleet_that_agrees_is_said_so_and_what_is_wrong_is_named,
];

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// An address where nobody listens.
fn closed() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// A machine with configs, keys and state, each with a word in it that nobody may see: `hunter`.
fn machine(lab: &Lab) -> std::path::PathBuf {
    let root = lab.home("machine");
    let chassis = fs::read_to_string(lab.config("chassis")).unwrap();
    let chassis = format!("password = \"hunter1\" # hunter2\n{chassis}");
    for (file, text) in [
        ("etc/ballast/chassis.toml", &*chassis),
        ("etc/ballast/agent.toml", "server = \"s01\nhunter3"),
        ("etc/ballast/bmc.toml", "username = \"hunter4\"\npassword = \"hunter5\"\n"),
        ("etc/ballast/tls/agent.key", "-----BEGIN PRIVATE KEY-----\nhunter6\n-----END PRIVATE KEY-----\n"),
        ("var/lib/ballast-agent/memory.json", "{\"token\": \"hunter7\"}"),
        ("proc/sys/kernel/osrelease", "6.1.0-test\n"),
    ] {
        let file = root.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    root
}

/// The files of an archive by their names below its one folder.
fn unpacked(archive: &Path) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(GzDecoder::new(File::open(archive).unwrap()));
    let files = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().to_string_lossy().into_owned();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (path.split_once('/').unwrap().1.to_owned(), text)
    });
    files.collect()
}

fn a_bundle_holds_what_helps_and_no_secret() {
    let (mut lab, site) = Lab::secure(steady(1, 300, (0.2, 0.2)), "");
    lab.start_all();
    let ann = site.put("ann", &site.issue(&["ballast://operator/ann"], 1), &site.ca);
    let (root, archive) = (machine(&lab), lab.home("machine").join("bundle.tar.gz"));
    let (chassis, agent) = (lab.secret_url("chassis", ""), lab.secret_url("s01", ""));
    // Whoever has typed a password into an address does not pass it on.
    let closed = closed().replace("http://", "http://ann:hunter8@");

    let bundle = |more: &[&str]| -> Output {
        let mut command = Command::new(ballast());
        command.args(["bundle", &*agent, &*closed, "--root", text(&root), "--output", text(&archive)]);
        command.args(more).env("BALLAST_URL", "http://hunter9").env("BALLAST_TOKEN", "hunter10");
        command.args(["--cert", text(&ann.cert), "--key", text(&ann.key), "--ca", text(&ann.ca), &chassis]);
        command.output().unwrap()
    };
    let output = bundle(&[]);
    let (said, missing) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr).into_owned());
    assert_eq!(output.status.code(), Some(3), "{said}{missing}");
    assert_eq!(fs::metadata(&archive).unwrap().permissions().mode() & 0o777, 0o600);

    let files = unpacked(&archive);
    let of = |path: &str| files.get(path).unwrap_or_else(|| panic!("no {path}: {:?}", files.keys()));
    for path in files.keys().filter(|path| *path != "errors.txt") {
        assert!(said.contains(path), "{path} is not said: {said}");
    }
    let status: Value = serde_json::from_str(of("daemon-1/status.json")).unwrap();
    assert_eq!(status["report"]["server"], "s01");
    let status: Value = serde_json::from_str(of("daemon-3/status.json")).unwrap();
    assert_eq!(status["tls"]["role"], "ballast://chassis/lab");
    assert!(of("daemon-1/metrics.txt").contains("ballast_agent_build_info{version="));
    assert!(of("daemon-3/events.txt").contains("chassis_state"));
    let history: Value = serde_json::from_str(of("daemon-3/history.json")).unwrap();
    assert_eq!(history["step_ms"], 10_000);
    let check: Value = serde_json::from_str(of("check.json")).unwrap();
    assert_eq!(check["machine"]["kernel"], "6.1.0-test");
    assert!(of("versions.txt").starts_with(&format!("ballast {}", env!("CARGO_PKG_VERSION"))));
    assert!(
        of("config/chassis.toml").contains("budget_w = 300") && of("config/chassis.toml").contains("[tls]")
    );
    assert!(of("files/etc-ballast.txt").contains("tls/agent.key"));
    assert!(of("files/var-lib-ballast-agent.txt").contains("20  "), "{files:#?}");

    // What could not be had is in the archive, and said.
    for what in ["daemon-2 (http://(left out)@127.0.0.1:", "config/agent.toml: "] {
        assert!(of("errors.txt").contains(what) && missing.contains(what), "{missing}");
    }

    let all: String = files.iter().map(|(path, text)| format!("{path}\n{text}\n")).collect();
    let all = format!("{all}{said}{missing}");
    let own =
        [&ann.cert, &ann.key, &site.files("s01").key, &site.files("chassis").key, &site.files("s01").cert];
    for file in own {
        let pem = fs::read_to_string(file).unwrap();
        for line in pem.lines().filter(|line| !line.starts_with("-----")) {
            assert!(!all.contains(line), "{} is in it: {line}", file.display());
        }
    }
    assert!(!all.contains("hunter") && !all.contains("-----BEGIN"), "{all}");

    // What is there is not replaced, unless that is asked for: then it is nobody else's to read either.
    fs::write(&archive, "mine").unwrap();
    let output = bundle(&[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--force"));
    assert_eq!(fs::read_to_string(&archive).unwrap(), "mine");
    fs::set_permissions(&archive, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(bundle(&["--force"]).status.code(), Some(3));
    assert_eq!(fs::metadata(&archive).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(unpacked(&archive).contains_key("daemon-1/status.json"));
}

/// The findings that `ballast check --fleet` has, by id, and its exit code.
fn fleet(args: &[&str]) -> (Option<i32>, BTreeMap<String, String>, Value) {
    let output = Lab::ballast(&[&["check", "--fleet", "--json"], args].concat());
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let findings = report["findings"].as_array().unwrap().iter();
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    let findings = findings.map(|it| (word(&it["id"]), word(&it["state"])));
    (output.status.code(), findings.collect(), report.clone())
}

fn a_fleet_that_agrees_is_said_so_and_what_is_wrong_is_named() {
    let (mut lab, site) = Lab::secure(steady(2, 500, (0.2, 0.2)), "");
    lab.start_all();
    lab.wait("the agents obey", |lab| {
        lab.servers().iter().all(|name| lab.agent(name).is_some_and(|agent| agent.fallback_w.is_some()))
    });
    let ann = site.put("ann", &site.issue(&["ballast://operator/ann"], 1), &site.ca);
    let tls = ["--cert", text(&ann.cert), "--key", text(&ann.key), "--ca", text(&ann.ca)];
    let urls = ["chassis", "s01", "s02"].map(|name| lab.secret_url(name, ""));
    let [chassis, s01, s02] = urls.each_ref().map(String::as_str);

    // A server that is new, a moment before: all else is as it should be.
    lab.wait("the daemons agree", |_| fleet(&[&[chassis, s01, s02], &tls[..]].concat()).0 == Some(0));
    let (_, found, report) = fleet(&[&[chassis, s01, s02], &tls[..]].concat());
    for id in ["certificate.s01", "clock.lab", "server.s01", "server.s02", "fallbacks.lab", "versions"] {
        assert_eq!(found.get(id).map(String::as_str), Some("works"), "{id}: {report:#}");
    }
    assert_eq!(report["daemons"][1]["role"], "ballast://agent/s01");
    assert_eq!(report["daemons"][1]["version"], env!("CARGO_PKG_VERSION"));
    assert!(report["daemons"][0]["certificate_ends_unix_s"].is_u64());
    // This machine has one clock.
    let ahead = report["daemons"][0]["clock"]["ahead_ms"].as_i64().unwrap().abs();
    assert!(ahead <= report["daemons"][0]["clock"]["within_ms"].as_i64().unwrap(), "{report:#}");

    // An agent that is not named is not judged; one that has ended is.
    let (code, found, _) = fleet(&[&[chassis, s01], &tls[..]].concat());
    assert_eq!((code, found["server.s02"].as_str()), (Some(0), "untested"));
    lab.kill("s02");
    lab.wait("the manager misses it", |lab| {
        let chassis = lab.chassis();
        chassis.is_some_and(|chassis| chassis.alarms.iter().any(|it| it.id.to_string() == "server_silent"))
    });
    let (code, found, report) = fleet(&[&[chassis, s01, s02], &tls[..]].concat());
    let of = |id: &str| found.get(id).map(String::as_str);
    assert_eq!(code, Some(2), "{report:#}");
    assert_eq!((of("server.s02"), of("alarm.lab")), (Some("missing"), Some("degraded")), "{report:#}");
    assert_eq!(of(&format!("answer.{s02}")), Some("missing"), "{report:#}");

    // For people: a table, and the verdict.
    let output = Lab::ballast(&[&["check", "--fleet", chassis, s02], &tls[..]].concat());
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("nothing listens there") && table.contains("(exit code 2)"), "{table}");
    // Without --fleet an address is a mistake.
    assert_eq!(Lab::ballast(&["check", chassis]).status.code(), Some(64));
}
