//! Lifetimes in service: the real daemon keeps when VMs start and end, the real training learns from that, and VMs are
//! placed by it.

use std::fs;
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use ballast_testbed::lab::Lab;
use ballast_testbed::lab::place::PlaceLab;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

ballast_testbed::wall_time![
    lifetimes_are_learnt_from_the_daemons_own_table_and_vms_are_placed_by_them,
    a_table_that_cannot_be_written_is_an_alarm_and_stops_nothing,
];

const NILAS: &str = "[placement]\npolicy = \"nilas\"\n";

fn hosts(lab: &PlaceLab, count: u32) {
    for n in 0..count {
        let host = json!({"chassis": format!("c{n}"), "cores": 16, "memory_gb": 64});
        let (status, why) = lab.call("PUT", &format!("/v1/hosts/s{n:03}"), &host);
        assert_eq!(status, 204, "{why}");
    }
}

fn vm(name: &str, tenant: &str) -> Value {
    json!({"vm_id": name, "cores": 2, "memory_gb": 8, "subscription": tenant})
}

fn good(lab: &PlaceLab, method: &str, path: &str, body: &Value) -> Value {
    let (status, answer) = lab.call(method, path, body);
    assert!([200, 204].contains(&status), "{method} {path}: {answer}\n{}", lab.log());
    answer
}

/// VMs of the last ten days: those of one tenant live ten minutes, those of the other ten hours.
fn past(short: &str, long: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let row = |n: u64| {
        let (tenant, lives_s) = if n.is_multiple_of(2) { (short, 600) } else { (long, 36_000) };
        let start_s = now - 10 * 86_400 + n * 400;
        let end_s = start_s + lives_s + n * 37 % 100;
        let end_s = if end_s < now { end_s.to_string() } else { String::new() };
        format!("{tenant}-{n},{start_s},{end_s},{tenant},2,8,,,1,\n")
    };
    (0..2_000).map(row).collect()
}

fn append(lab: &PlaceLab, text: &str) {
    let mut file = fs::File::options().append(true).open(lab.path("state/lifetimes.csv")).expect("a table");
    file.write_all(text.as_bytes()).expect("a table");
}

/// What the training says of its input; its exit code.
fn train(lab: &PlaceLab, more: &[&str]) -> (Option<i32>, Value) {
    let (input, output) = (lab.path("state/lifetimes.csv"), lab.path("model"));
    let mut arguments = vec!["train", "--target", "lifetime", "--json"];
    arguments.extend(["--input", input.to_str().unwrap(), "--output", output.to_str().unwrap()]);
    arguments.extend(more);
    let done = Lab::ballast(&arguments);
    let said = String::from_utf8_lossy(&done.stdout);
    let why = String::from_utf8_lossy(&done.stderr);
    (done.status.code(), serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}{why}")))
}

fn hours(of: &Value, key: &str) -> f64 {
    of[key].as_f64().map_or(f64::NAN, |seconds| seconds / 3600.0)
}

fn remaining(lab: &PlaceLab, vm: &str) -> f64 {
    hours(&good(lab, "GET", &format!("/v1/vms/{vm}"), &Value::Null), "remaining_s")
}

fn rows_of(lab: &PlaceLab, vm: &str) -> Vec<String> {
    let text = fs::read_to_string(lab.path("state/lifetimes.csv")).expect("a table");
    text.lines().filter(|line| line.starts_with(&format!("{vm},"))).map(str::to_owned).collect()
}

fn lifetimes_are_learnt_from_the_daemons_own_table_and_vms_are_placed_by_them() {
    let mut lab = PlaceLab::start(NILAS);
    hosts(&lab, 4);
    let both =
        json!({"deployment": "d", "labels": {"zone": "z1"}, "vms": [vm("a", "long"), vm("gone", "short")]});
    let placed = good(&lab, "POST", "/v1/place", &both);
    assert_eq!(placed["vms"][0]["remaining_s"], Value::Null, "nobody knows yet");
    good(&lab, "DELETE", "/v1/vms/gone", &Value::Null);
    assert!(lab.end().success(), "{}", lab.log());
    assert_eq!(rows_of(&lab, "a").len(), 1);
    let gone = rows_of(&lab, "gone");
    assert!(
        gone.len() == 2 && gone[1].ends_with(",short,2,8,,d,2,\"{\"\"zone\"\":\"\"z1\"\"}\""),
        "{gone:?}"
    );

    // It has run for ten days. What had not ended is not there any more: a crash has cost these rows.
    append(&lab, &past("short", "long"));
    lab.restart();
    lab.wait("the table is open", |lab| lab.status().lifetime_history.is_some_and(|it| it.bytes > 60_000));
    let (code, report) = train(&lab, &["--replace-if-not-worse"]);
    assert_eq!((code, &report["about"]["cleaned"]["vms"]), (Some(0), &json!(2_002)), "{report}");
    assert_eq!(report["about"]["cleaned"]["running"], 1, "a alone runs: {report}");
    assert_eq!(report["about"]["better_than_kaplan_meier"], true);
    lab.wait("the model is taken", |lab| lab.checksum() != "none");
    lab.wait("a has its curve", |lab| (9.0..11.0).contains(&remaining(lab, "a")));

    // The command says the same of the same VM.
    let question = json!({"vm_id": "q", "tenant": "long", "cores": 2, "memory_gb": 8, "batch_vms": 1,
        "start_s": 1_760_000_000, "uptime_s": 7200});
    let (status, answer) = lab.predict(&question);
    assert_eq!(status, 200, "{answer}");
    fs::write(lab.path("q.jsonl"), question.to_string()).expect("a file");
    let (model, input) = (lab.path("model"), lab.path("q.jsonl"));
    let [model, input] = [&model, &input].map(|path| path.to_str().unwrap());
    let said = Lab::ballast(&["predict", "--target", "lifetime", "--model", model, "--input", input]);
    let mut said: Value = serde_json::from_slice(&said.stdout).expect("JSON");
    said.as_object_mut().unwrap().remove("vm_id");
    assert_eq!(answer["lifetime"], said);
    let csv = "vm_id,tenant,cores,memory_gb,start_s,uptime_s,batch_vms\nq,long,2,8,1760000000,-1,1\n";
    fs::write(lab.path("q.csv"), csv).expect("a file");
    let refused = Lab::ballast(&[
        "predict",
        "--target",
        "lifetime",
        "--model",
        model,
        "--input",
        lab.path("q.csv").to_str().unwrap(),
    ]);
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && why.contains("q.csv, line 2: uptime_s = -1: 0 to"), "{why}");

    // It is placed with the long one, and the reason is told.
    let scores = good(&lab, "POST", "/v1/score", &vm("b", "short"));
    let home = placed["vms"][0]["host"].clone();
    assert_eq!((&scores["hosts"][0]["host"], &scores["lifetime_by"]), (&home, &json!("model")));
    let reason = scores["hosts"][0]["verdicts"].to_string();
    assert!(reason.contains("expected to be free in 10") && reason.contains("; this VM lives 1"), "{reason}");
    let b = good(&lab, "POST", "/v1/place", &vm("b", "short"));
    assert_eq!(b["host"], home);

    // Killed, and started again: every VM has its curve, and the table goes on.
    lab.kill();
    lab.restart();
    assert!((9.0..11.0).contains(&remaining(&lab, "a")) && remaining(&lab, "b") < 0.3);
    good(&lab, "DELETE", "/v1/vms/b", &Value::Null);
    lab.wait("its end is in the table", |lab| rows_of(lab, "b").len() == 2);

    // Another model, then a damaged one.
    let turned = lab.path("turned.csv");
    let header =
        fs::read_to_string(lab.path("state/lifetimes.csv")).unwrap().lines().next().unwrap().to_owned();
    fs::write(&turned, format!("{header}\n{}", past("long", "short"))).unwrap();
    let old = fs::read(lab.path("model")).unwrap();
    let code = Lab::ballast(&[
        "train",
        "--target",
        "lifetime",
        "--input",
        turned.to_str().unwrap(),
        "--output",
        model,
    ]);
    assert!(code.status.success());
    lab.signal(Signal::SIGHUP);
    lab.wait("a has its new curve", |lab| remaining(lab, "a") < 0.3);
    lab.put(&old[..old.len() - 7]);
    lab.wait("the alarm", |lab| {
        lab.status().alarms.iter().any(|it| it.message.contains("the old one stays"))
    });
    assert!(remaining(&lab, "a") < 0.3);

    // What cannot be is counted: ends before starts, lives of nothing, clocks that jump; nothing of it ends the training.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let (yesterday, future) = (now - 86_400, now + 400 * 86_400);
    append(
        &lab,
        &format!(
            "x1,{now},{yesterday},t,2,8,,,1,\nx2,{now},{now},t,2,8,,,1,\nx3,5,9,t,2,8,,,1,\n\
             x4,{yesterday},{future},t,2,8,,,1,\n"
        ),
    );
    let (code, report) = train(&lab, &[]);
    let cleaned = &report["about"]["cleaned"];
    assert_eq!(code, Some(0));
    for (kind, count) in [("end_before_start", 1), ("start_out_of_time", 1), ("end_out_of_time", 1)] {
        assert_eq!(cleaned[kind], count, "{kind}: {cleaned}");
    }
    assert!(cleaned["zero_lifetime"].as_u64() >= Some(1), "{cleaned}");
    assert!(lab.end().success(), "{}", lab.log());
}

fn a_table_that_cannot_be_written_is_an_alarm_and_stops_nothing() {
    let mut lab = PlaceLab::start("");
    hosts(&lab, 1);
    assert!(lab.end().success());
    fs::remove_file(lab.path("state/lifetimes.csv")).expect("a table");
    fs::create_dir(lab.path("state/lifetimes.csv")).expect("a folder in its place");
    lab.restart();
    good(&lab, "POST", "/v1/place", &vm("a", "t"));
    lab.wait("the alarm", |lab| {
        lab.status().alarms.iter().any(|it| it.message.starts_with("lifetimes.csv not written: "))
    });
    assert_eq!(lab.status().lifetime_history.map(|it| it.dropped), Some(1));

    // Once it can be written, it goes on by itself.
    fs::remove_dir(lab.path("state/lifetimes.csv")).expect("the folder");
    good(&lab, "POST", "/v1/place", &vm("b", "t"));
    lab.wait("the row", |lab| lab.path("state/lifetimes.csv").is_file() && rows_of(lab, "b").len() == 1);
    lab.wait("no alarm", |lab| !lab.status().alarms.iter().any(|it| it.message.starts_with("lifetimes.csv")));
    assert!(lab.end().success(), "{}", lab.log());
}
