//! The real placement daemon: hosts, VMs, and what is left of them after a crash.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use ballast_runtime::Target;
use ballast_testbed::lab::ballast;
use ballast_testbed::lab::caller::Caller;
use ballast_testbed::lab::place::{PlaceLab, SOCKET};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::admission::PRIORS;

ballast_testbed::wall_time![
    killed_at_any_instant_it_knows_what_it_has_answered_and_nothing_by_halves,
    hosts_follow_their_file_and_a_damaged_inventory_is_refused_and_kept,
    a_file_of_hosts_that_does_not_fit_what_is_there_is_a_refused_configuration,
    the_examples_in_the_documentation_are_answered,
    an_order_is_written_down_with_what_was_before,
    a_drain_goes_on_after_a_kill_and_ends_by_what_others_have_done,
    a_vm_of_which_nothing_is_known_is_packed_and_the_power_rule_is_silent,
];

fn vm(name: &str) -> Value {
    json!({"vm_id": name, "cores": 1, "memory_gb": 2, "class": "user-facing", "p95_percent": 40})
}

/// A lab with so many hosts of so many cores, twelve in a chassis.
fn lab(hosts: u32, cores: u32) -> PlaceLab {
    let lab = PlaceLab::start("");
    for n in 0..hosts {
        let host = json!({"chassis": format!("c{}", n / 12), "cores": cores, "memory_gb": 4 * cores});
        let (status, why) = lab.call("PUT", &format!("/v1/hosts/s{n:03}"), &host);
        assert_eq!(status, 204, "{why}");
    }
    lab
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Placed,
    Gone,
    /// There was no answer.
    Unknown,
}

/// Places and removes deployments of one to four VMs until nobody answers; gives the fate of each, by its name
/// and size.
fn work(target: &Target, who: &str, answered: &AtomicU64) -> BTreeMap<String, (usize, Fate)> {
    let (caller, mut fates) = (Caller::of(target), BTreeMap::new());
    for n in 0.. {
        let (name, size) = (format!("{who}-{n}"), 1 + n % 4);
        let vms: Vec<_> = (0..size).map(|k| vm(&format!("{name}.{k}"))).collect();
        let body = json!({"deployment": name, "vms": vms});
        let (status, text) = caller.post(&target.url("/v1/place"), &body);
        let fate = if status == 200 { Fate::Placed } else { Fate::Unknown };
        assert!(status == 200 || status == 0, "{status}: {text}");
        fates.insert(name.clone(), (size, fate));

        if fate == Fate::Unknown {
            break;
        }
        answered.fetch_add(1, Ordering::Relaxed);

        // Every third one of a single VM goes again.
        if size == 1 && n % 3 == 0 {
            let path = target.url(&format!("/v1/vms/{name}.0"));
            let (status, text) = caller.send("DELETE", &path, &Value::Null);
            assert!(status == 204 || status == 0, "{status}: {text}");
            let fate = if status == 204 { Fate::Gone } else { Fate::Unknown };
            fates.insert(name, (size, fate));

            if fate == Fate::Unknown {
                break;
            }
        }
    }

    fates
}

/// Every VM's name and host, page by page.
fn all(lab: &PlaceLab) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    loop {
        let after = all.last_key_value().map_or(String::new(), |(name, _)| format!("?after={name}"));
        let (status, page) = lab.call("GET", &format!("/v1/vms{after}"), &Value::Null);
        assert_eq!(status, 200, "{page}");
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        for vm in page["vms"].as_array().expect("VMs") {
            all.insert(text(&vm["vm_id"]), text(&vm["host"]));
        }
        if page["more"] == false {
            return all;
        }
    }
}

fn killed_at_any_instant_it_knows_what_it_has_answered_and_nothing_by_halves() {
    // Never full, however fast the disk is.
    let mut lab = lab(60, 4000);
    let mut hosts_before = BTreeMap::new();

    // Killed after so many answers: in the middle of others.
    for (round, many) in [7, 40, 3, 71, 23].into_iter().enumerate() {
        let fates = lab.kill_among(&format!("r{round}"), many, work);
        lab.restart();
        let there = all(&lab);

        for (name, (size, fate)) in &fates {
            let found = (0..*size).filter(|k| there.contains_key(&format!("{name}.{k}"))).count();
            let good = match fate {
                Fate::Placed => found == *size,
                Fate::Gone => found == 0,
                Fate::Unknown => found == 0 || found == *size,
            };

            assert!(good, "{name}, {fate:?}: {found} of {size} VMs are there\n{}", lab.log());
        }

        for (vm, host) in &hosts_before {
            assert_eq!(there.get(vm), Some(host), "{vm} was there before, and nobody moved it");
        }

        // Who had no answer asks again: nothing is placed twice.
        for (name, (size, _)) in fates.iter().filter(|(_, (_, fate))| *fate == Fate::Unknown) {
            let vms: Vec<_> = (0..*size).map(|k| vm(&format!("{name}.{k}"))).collect();
            let body = json!({"deployment": name, "vms": vms});
            let (status, answer) = lab.call("POST", "/v1/place", &body);
            assert_eq!(status, 200, "{answer}");
            assert_eq!(answer["repeated"], there.contains_key(&format!("{name}.0")));
        }

        hosts_before = all(&lab);
        let taken = lab.status().inventory;
        assert_eq!(taken.vms as usize, hosts_before.len());
        assert_eq!(taken.allocated_cores, hosts_before.len() as f64);
    }

    // And after an end in order.
    let before = (all(&lab), lab.status().inventory.chassis);
    assert!(lab.end().success(), "{}", lab.log());
    lab.restart();
    assert_eq!((all(&lab), lab.status().inventory.chassis), before);
    assert!(lab.end().success(), "{}", lab.log());
}

fn hosts_follow_their_file_and_a_damaged_inventory_is_refused_and_kept() {
    let mut lab = lab(1, 40);
    assert_eq!(lab.call("POST", "/v1/place", &vm("a")).0, 200);
    assert!(lab.end().success(), "{}", lab.log());

    // From now on a file says which hosts there are.
    let config = fs::read_to_string(lab.path("place.toml")).expect("a config");
    let file = lab.path("hosts.toml");
    fs::write(lab.path("place.toml"), format!("{config}[inventory]\nfile = {file:?}\n")).unwrap();
    let write = |names: &str, cores: u32| {
        let text =
            format!("[[hosts]]\nname = {names:?}\nchassis = \"c1\"\ncores = {cores}\nmemory_gb = 64\n");
        fs::write(&file, text).expect("a file");
    };

    assert_eq!(lab.refused_restart().code(), Some(78), "there is no such file");
    write("n[1-3]", 16);
    lab.restart();
    let states = |lab: &PlaceLab| -> Vec<String> {
        let (_, list) = lab.call("GET", "/v1/hosts", &Value::Null);
        let hosts = list["hosts"].as_array().expect("hosts");
        hosts.iter().map(|h| format!("{} {} {}", h["host"], h["state"], h["cores"])).collect()
    };

    let open = |n: u32, cores: &str| format!("\"n{n}\" \"open\" {cores}");
    let left = "\"s000\" \"draining\" 40.0".to_owned();
    assert_eq!(states(&lab), [open(1, "16.0"), open(2, "16.0"), open(3, "16.0"), left]);
    let alarms = lab.status().alarms;
    assert!(alarms.iter().any(|a| a.message.contains("\"s000\" is no longer in")), "{alarms:?}");
    let (status, why) = lab.call("DELETE", "/v1/hosts/n1", &Value::Null);
    assert_eq!(status, 409, "{why}");
    assert_eq!(lab.call("PUT", "/v1/hosts/n1", &json!({"cores": 99})).0, 409);
    assert_eq!(lab.call("PUT", "/v1/hosts/n1", &json!({"state": "cordoned"})).0, 204);

    // A bad file changes nothing and is an alarm; a good one is taken on SIGHUP. What was cordoned stays so.
    write("n[1-", 16);
    lab.signal(Signal::SIGHUP);
    lab.wait("the alarm", |lab| {
        lab.status().alarms.iter().any(|alarm| alarm.message.contains("hosts stay as they were"))
    });
    assert_eq!(states(&lab).len(), 4);
    assert_eq!(lab.call("DELETE", "/v1/vms/a", &Value::Null).0, 204);
    write("n[1-2]", 32);
    lab.signal(Signal::SIGHUP);
    let two = ["\"n1\" \"cordoned\" 32.0".to_owned(), open(2, "32.0")];
    lab.wait("the new hosts", |lab| states(lab) == two);
    lab.kill();
    lab.restart();
    assert_eq!(states(&lab), two);
    assert!(lab.end().success(), "{}", lab.log());

    let database = lab.path("state/inventory.redb");
    fs::write(&database, "not a database").expect("a file");
    assert_eq!(lab.refused_restart().code(), Some(1));
    let says = "it is left as it is. To start without it, move the inventory.* files away";
    assert!(lab.log().contains("inventory.redb: ") && lab.log().contains(says), "{}", lab.log());
    assert_eq!(fs::read_to_string(&database).expect("a file"), "not a database");

    // The operator's way out.
    fs::remove_file(&database).expect("the file");
    lab.restart();
    assert!(all(&lab).is_empty() && database.exists());
}

fn a_file_of_hosts_that_does_not_fit_what_is_there_is_a_refused_configuration() {
    let mut lab = lab(1, 40);
    assert_eq!(lab.call("PUT", "/v1/hosts/s000", &json!({"extras": {"gpu": 2}})).0, 204);
    let mut wants = vm("a");
    wants["extras"] = json!({"gpu": 1});
    assert_eq!(lab.call("POST", "/v1/place", &wants).0, 200);
    assert!(lab.end().success(), "{}", lab.log());

    let config = fs::read_to_string(lab.path("place.toml")).expect("a config");
    let file = lab.path("hosts.toml");
    fs::write(lab.path("place.toml"), format!("{config}[inventory]\nfile = {file:?}\n")).unwrap();
    let host = "[[hosts]]\nname = \"n1\"\nchassis = \"c1\"\ncores = 8\nmemory_gb = 64\n";
    fs::write(&file, format!("{host}extras = {{ a = 1, b = 1, c = 1, d = 1 }}\n")).expect("a file");
    assert_eq!(lab.refused_restart().code(), Some(78), "{}", lab.log());
    assert!(lab.log().contains("hosts.toml: "), "{}", lab.log());
    fs::write(&file, format!("{host}extras = {{ a = 1, b = 1, c = 1 }}\n")).expect("a file");
    lab.restart();
    assert!(lab.end().success(), "{}", lab.log());
}

/// The commands that a text shows for a daemon on port 7200, in their order. A quoted text may go over lines.
fn curls(text: &str) -> Vec<String> {
    let mut shown: Vec<String> = vec![];
    for line in text.lines() {
        match shown.last_mut() {
            Some(open) if open.matches('\'').count() % 2 == 1 => *open += line,
            _ if line.starts_with("curl ") || line.starts_with("ballast defrag ") => {
                shown.push(line.to_owned());
            }
            _ => {}
        }
    }
    let ours = ["127.0.0.1:7200", "/tmp/place.sock"];
    let is_ours = |command: &String| ours.iter().any(|at| command.contains(at));
    shown.into_iter().filter(is_ours).collect()
}

/// The first text that a key has, in JSON that may be cut.
fn first<'a>(json: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = json.split_once(&format!("\"{key}\":"))?;
    rest.trim_start().strip_prefix('"')?.split('"').next()
}

#[expect(clippy::print_stderr, reason = "a test that was skipped must say so")]
fn the_examples_in_the_documentation_are_answered() {
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no curl here");
        return;
    }

    let folder = tempfile::tempdir().expect("a folder");
    let priors = folder.path().join("law.toml");
    fs::write(&priors, PRIORS).expect("priors");
    let admission = format!("[admission]\npriors = {priors:?}\nshadow = false\n");
    for (file, more) in [
        ("README.md", ""),
        ("docs/place-and-plan/place.md", ""),
        ("docs/place-and-plan/drains.md", ""),
        ("docs/place-and-plan/lifetimes.md", "[placement]\npolicy = \"nilas\"\n"),
        ("docs/place-and-plan/admission.md", &admission),
    ] {
        let text = fs::read_to_string(format!("{}/../{file}", env!("CARGO_MANIFEST_DIR"))).expect(file);
        let mut answers = vec![];
        let lab = PlaceLab::start(more);
        let address = lab.url("").replace("http://", "");

        for command in curls(&text) {
            let here = command.replace("127.0.0.1:7200", &address);
            let here = here.replace("/tmp/place.sock", lab.path(SOCKET).to_str().unwrap());
            let program = format!("{} defrag ", ballast().display());
            let here = here.replacen("ballast defrag ", &program, 1);
            let here = here.replacen("curl ", "curl --fail-with-body --noproxy '*' --max-time 20 ", 1);
            let done = Command::new("sh").args(["-c", &here]).output().expect("a shell");
            let said = String::from_utf8_lossy(&done.stdout);
            assert!(done.status.success(), "{file}: {command}\n{said}");
            answers.push(said.into_owned());
        }

        // What the document shows is what was said.
        let shown = text.split("```json").skip(1).filter_map(|block| block.split("```").next());
        for shown in shown.filter(|it| first(it, "host").is_some() && first(it, "vm_id").is_some()) {
            let is_so =
                |said: &String| ["vm_id", "host"].iter().all(|key| first(said, key) == first(shown, key));
            let said = answers.iter().find(|said| is_so(said));
            let said = said.unwrap_or_else(|| panic!("{file}: {shown}\n{answers:#?}"));
            if let Some(reason) = first(shown, "reason").filter(|reason| reason.contains(" lives ")) {
                assert!(said.contains(reason), "{file}: {reason}\n{said}");
            }
        }

        let decided = text.split("```json").filter_map(|block| first(block, "why"));
        for why in decided {
            assert!(
                answers.iter().any(|said| first(said, "why") == Some(why)),
                "{file}: {why}\n{answers:#?}"
            );
        }

        let expected = |text: &str| -> Vec<f64> {
            let after = text.split("\"expected_cores\":").skip(1);
            after.filter_map(|it| it.trim_start().split(',').next()?.parse().ok()).collect()
        };
        for block in text.split("```json").filter(|block| block.contains("\"ahead\"")) {
            let shown = expected(block.split("```").next().unwrap_or_default());
            let is_so = |said: &String| {
                let said = expected(said);
                said.len() == shown.len() && said.iter().zip(&shown).all(|(a, b)| (a / b - 1.0).abs() < 0.01)
            };
            assert!(!shown.is_empty() && answers.iter().any(is_so), "{file}: {shown:?}\n{answers:#?}");
        }

        if file == "docs/place-and-plan/drains.md" {
            let plan = text.split("```text\n").nth(1).and_then(|rest| rest.split("```").next());
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            let plan = words(plan.expect("a plan"));
            assert!(answers.iter().any(|said| words(said) == plan), "{file}: {plan:?}\n{answers:#?}");
            let (_, drain) = lab.call("GET", "/v1/drains/1", &Value::Null);
            assert_eq!((&drain["state"], &drain["moved"]), (&json!("cancelled"), &json!(1)), "{drain}");
        }

        if file == "docs/place-and-plan/place.md" {
            assert!(lab.status().inventory.placed > 0, "{file} places nothing");
        }
    }
}

fn a_drain_goes_on_after_a_kill_and_ends_by_what_others_have_done() {
    let mut lab = lab(6, 8);
    for n in 0..6 {
        let host = format!("s{:03}", n % 2);
        let vm = json!({"host": host, "cores": 2, "memory_gb": 2, "lifetime_s": 9000 + n});
        assert_eq!(lab.call("PUT", &format!("/v1/vms/v{n}"), &vm).0, 200);
    }
    let begun = json!({"hosts": ["s000", "s001"], "approve": true, "reopen": true, "limit": 2});
    let (status, drain) = lab.call("POST", "/v1/drains", &begun);
    assert_eq!((status, &drain["state"]), (200, &json!("under-way")), "{drain}");

    let due = |drain: &Value| -> Vec<(String, String)> {
        let moves = drain["moves"].as_array().expect("moves").iter();
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        moves.filter(|it| it["state"] == "due").map(|it| (text(&it["vm_id"]), text(&it["to"]))).collect()
    };
    let held = |lab: &PlaceLab| lab.status().inventory.allocated_cores;
    for round in 0..3 {
        let (_, before) = lab.call("GET", "/v1/drains/1", &Value::Null);
        let cores = held(&lab);
        lab.kill();
        lab.restart();
        let (_, after) = lab.call("GET", "/v1/drains/1", &Value::Null);
        assert_eq!((due(&after), held(&lab)), (due(&before), cores), "{round}\n{}", lab.log());

        // One is told as a move, the other as a VM that another program has put there.
        let [(one, _), (other, to)] = &due(&after)[..] else { panic!("{after}") };
        let (status, why) = lab.call("POST", &format!("/v1/drains/1/moves/{one}"), &json!({"done": true}));
        assert_eq!(status, 200, "{why}");
        let put = json!({"host": to, "cores": 2, "memory_gb": 2, "lifetime_s": 9000});
        assert_eq!(lab.call("PUT", &format!("/v1/vms/{other}"), &put).0, 200);
        lab.wait("the next are due", |lab| {
            let drain = lab.call("GET", "/v1/drains/1", &Value::Null).1;
            due(&drain).len() == 2 || drain["state"] == "done"
        });
    }
    let (_, drain) = lab.call("GET", "/v1/drains/1", &Value::Null);
    assert_eq!((&drain["state"], &drain["moved"]), (&json!("done"), &json!(6)), "{drain}");
    let on = |host: &str| all(&lab).values().filter(|at| *at == host).count();
    assert_eq!((on("s000"), on("s001"), held(&lab)), (0, 0, 12.0));
    assert_eq!(lab.status().inventory.draining_hosts, 0);
}

fn an_order_is_written_down_with_what_was_before() {
    let lab = lab(1, 4);
    assert_eq!(lab.call("PUT", "/v1/hosts/s000", &json!({"state": "cordoned"})).0, 204);
    assert_eq!(lab.call("DELETE", "/v1/hosts/s000", &Value::Null).0, 204);

    let text = fs::read_to_string(lab.path("state/orders.jsonl")).unwrap();
    let before = |line: &str| serde_json::from_str::<Value>(line).unwrap()["before"].clone();
    let before: Vec<_> = text.lines().map(before).collect();
    let [Value::Null, open, cordoned] = &before[..] else { panic!("{text}") };
    let says = |before: &Value, what: &str| before.as_str().is_some_and(|it| it.contains(what));
    assert!(says(open, "\"state\":\"open\"") && says(cordoned, "\"state\":\"cordoned\""), "{text}");
}

fn a_vm_of_which_nothing_is_known_is_packed_and_the_power_rule_is_silent() {
    let lab = lab(24, 40);
    // One chassis is busy: for a VM of which anything is known the hosts differ.
    for n in 0..8 {
        let busy = json!({"host": format!("s{n:03}"), "cores": 1, "memory_gb": 2, "class": "user-facing",
            "p95_percent": 100});
        assert_eq!(lab.call("PUT", &format!("/v1/vms/busy-{n}"), &busy).0, 200);
    }
    let scores = |vm: &Value| {
        let (status, answer) = lab.call("POST", "/v1/score", vm);
        assert_eq!(status, 200, "{answer}");
        let power = |host: &Value| {
            let verdicts = host["verdicts"].as_array().expect("verdicts");
            let power = verdicts.iter().find(|verdict| verdict["rule"] == "power").expect("the rule");
            (power["score"].as_i64().expect("a number"), power["reason"].to_string())
        };
        let hosts: Vec<_> = answer["hosts"].as_array().expect("hosts").iter().map(power).collect();
        (answer["class_by"].clone(), answer["p95_by"].clone(), hosts)
    };

    let mut vm = json!({"vm_id": "untold", "cores": 1, "memory_gb": 2, "top": 24});
    let (class_by, p95_by, hosts) = scores(&vm);
    assert_eq!((class_by, p95_by, hosts.len()), (json!("default"), json!("default"), 24));
    for (score, reason) in hosts {
        assert!(score == 0 && reason.contains("neither class nor P95 is known"), "{score} {reason}");
    }
    let (status, placed) = lab.call("POST", "/v1/place", &vm);
    assert_eq!(
        (status, &placed["class"], &placed["p95_percent"]),
        (200, &json!("user-facing"), &json!(100.0))
    );
    let host = placed["host"].as_str().expect("a host").to_owned();
    assert!(host.as_str() < "s008", "it is packed beside the others: {host}");

    for (key, value) in [("class", json!("user-facing")), ("p95_percent", json!(100))] {
        vm["vm_id"] = json!(key);
        vm[key] = value;
        let (.., hosts) = scores(&vm);
        assert!(hosts.iter().any(|(score, _)| *score != hosts[0].0), "{key}: {hosts:?}");
        vm.as_object_mut().expect("an object").remove(key);
    }
}
