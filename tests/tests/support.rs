//! What helps somebody who shall help: the support archive of real daemons.

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

ballast_testbed::wall_time![a_bundle_holds_what_helps_and_no_secret];

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
