//! Drains, as they are asked for and followed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::book::Drains;
use super::calls::step;
use super::record::DrainSpec;
use crate::api::Api;
use crate::config::{DrainsConfig, HostFile};
use crate::inventory::DurableInventory;
use crate::routes::tests::{api, ask, call, get};

/// Four hosts of 8 cores. `a` and `b` are on s1, `c` on s2.
async fn site() -> (TempDir, Api) {
    let (dir, api) = api(None);
    for n in 1..=4 {
        let host = json!({"chassis": "c1", "cores": 8, "memory_gb": 32});
        assert_eq!(call(&api, "PUT", &format!("/v1/hosts/s{n}"), &host).await.0, 204);
    }
    for (vm, host, cores, lifetime_s) in [("a", "s1", 2, 90_000), ("b", "s1", 2, 60), ("c", "s2", 6, 80_000)]
    {
        let vm_is = json!({"host": host, "cores": cores, "memory_gb": 4, "lifetime_s": lifetime_s});
        assert_eq!(call(&api, "PUT", &format!("/v1/vms/{vm}"), &vm_is).await.0, 200);
    }
    (dir, api)
}

async fn states(api: &Api) -> Vec<String> {
    let list = get(api, "/v1/hosts").await;
    let hosts = list["hosts"].as_array().unwrap();
    hosts.iter().map(|host| host["state"].as_str().unwrap().to_owned()).collect()
}

fn vms(answer: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let moves = answer["moves"].as_array().unwrap();
    moves.iter().map(|it| (text(&it["vm_id"]), text(&it["state"]))).collect()
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(vm, state)| ((*vm).to_owned(), (*state).to_owned())).collect()
}

#[tokio::test]
async fn a_drain_is_planned_approved_followed_and_done() {
    let (_dir, api) = site().await;
    let (status, plan) =
        call(&api, "POST", "/v1/drains", &json!({"hosts": ["s1", "s2"], "dry_run": true})).await;
    assert_eq!((status, &plan["id"], &plan["state"]), (200, &Value::Null, &json!("dry-run")), "{plan}");
    // `b` ends within the minute, so before a turn that comes after 20 minutes.
    assert_eq!(vms(&plan), pairs(&[("a", "waiting"), ("c", "waiting"), ("b", "ends-before")]));
    assert_eq!(
        (&plan["order"], &plan["limit"], &plan["move_s"]),
        (&json!("global"), &json!(3), &json!(1200.0))
    );
    assert_eq!((&plan["hosts"][0]["host"], &plan["hosts"][0]["free_in_s"]), (&json!("s1"), &json!(1200.0)));
    // Where they would go, were they moved now.
    let to = |n: usize| plan["moves"][n]["to"].as_str().unwrap_or_default();
    assert!(["s3", "s4"].contains(&to(0)) && ["s3", "s4"].contains(&to(1)), "{plan}");
    let (_, full) =
        call(&api, "POST", "/v1/drains", &json!({"hosts": ["s1", "s2", "s3", "s4"], "dry_run": true})).await;
    assert_eq!((&full["without_room"], &plan["without_room"]), (&json!(2), &json!(0)), "{full}");
    assert_eq!(get(&api, "/v1/drains").await, json!({"drains": []}));
    assert_eq!(states(&api).await, ["open"; 4]);

    let (status, drain) = call(&api, "POST", "/v1/drains", &json!({"hosts": ["s1", "s2"]})).await;
    assert_eq!((status, &drain["id"], &drain["state"]), (200, &json!(1), &json!("proposed")), "{drain}");
    assert_eq!(states(&api).await, ["open"; 4]);
    let (status, drain) = call(&api, "POST", "/v1/drains/1/approve", &Value::Null).await;
    assert_eq!((status, &drain["state"]), (200, &json!("under-way")), "{drain}");
    assert_eq!(states(&api).await, ["draining", "draining", "open", "open"]);
    assert_eq!(vms(&drain), pairs(&[("a", "due"), ("c", "due"), ("b", "ends-before")]));
    let to = drain["moves"][0]["to"].as_str().unwrap().to_owned();
    let room = get(&api, &format!("/v1/hosts/{to}")).await;
    assert!(room["free_cores"].as_f64().unwrap() <= 6.0 && room["vms"] == 0, "{room}");

    // One that is not due is refused; one that fails waits again; one that has arrived is there.
    let (status, why) = call(&api, "POST", "/v1/drains/1/moves/b", &json!({"done": true})).await;
    assert!(
        status == 404 && why["error"].as_str().unwrap().contains("\"b\" is not to be moved now"),
        "{why}"
    );
    let (_, drain) = call(&api, "POST", "/v1/drains/1/moves/a", &json!({"done": false})).await;
    // The next of its host is tried first.
    assert_eq!(vms(&drain)[..2], pairs(&[("b", "due"), ("c", "due")]));
    assert_eq!(call(&api, "DELETE", "/v1/vms/b", &Value::Null).await.0, 204);
    step(&api).await.ok().unwrap();
    let drain = get(&api, "/v1/drains/1").await;
    assert_eq!(vms(&drain), pairs(&[("a", "due"), ("c", "due")]));
    let (_, drain) = call(&api, "POST", "/v1/drains/1/moves/a", &json!({"done": true})).await;
    assert_eq!((&drain["moved"], &drain["other"]), (&json!(1), &json!(1)), "{drain}");
    assert_ne!(get(&api, "/v1/vms/a").await["host"], "s1");
    assert_eq!(drain["repeated"], false);
    assert_eq!(drain["hosts"][0], json!({"host": "s1", "vms": 0, "free_in_s": null}));

    // Changed where it is, it stays on its way, and what is held for it is of its new size.
    let to = drain["moves"][0]["to"].as_str().unwrap().to_owned();
    let free = async |api: &Api| get(api, &format!("/v1/hosts/{to}")).await["free_cores"].as_f64().unwrap();
    let before = free(&api).await;
    let told = json!({"host": "s2", "cores": 5, "memory_gb": 4, "lifetime_s": 80_000});
    assert_eq!(call(&api, "PUT", "/v1/vms/c", &told).await.0, 200);
    assert_eq!(free(&api).await, before + 1.0);

    // The other is told as any VM that another program has moved.
    let told = json!({"host": to, "cores": 5, "memory_gb": 4, "lifetime_s": 80_000});
    assert_eq!(call(&api, "PUT", "/v1/vms/c", &told).await.0, 200);
    step(&api).await.ok().unwrap();
    let drain = get(&api, "/v1/drains/1").await;
    assert_eq!((&drain["state"], &drain["moved"]), (&json!("done"), &json!(2)), "{drain}");
    // Named hosts stay closed: somebody wants to work on them.
    assert_eq!(states(&api).await, ["draining", "draining", "open", "open"]);
    let (status, why) = call(&api, "DELETE", "/v1/drains/1", &Value::Null).await;
    assert!(status == 409 && why["error"].as_str().unwrap().contains("drain 1 is done"), "{why}");
}

#[tokio::test]
async fn one_that_is_cancelled_leaves_hosts_as_they_were_and_holds_nothing() {
    let (_dir, api) = site().await;
    assert_eq!(call(&api, "PUT", "/v1/hosts/s2", &json!({"state": "cordoned"})).await.0, 204);
    let free = |hosts: &Value| -> Vec<Value> {
        hosts["hosts"].as_array().unwrap().iter().map(|host| host["free_cores"].clone()).collect()
    };
    let before = free(&get(&api, "/v1/hosts").await);
    let begun = json!({"hosts": ["s2", "s1"], "approve": true, "order": "arrival", "limit": 1});
    let (status, drain) = call(&api, "POST", "/v1/drains", &begun).await;
    assert_eq!((status, &drain["state"], &drain["limit"]), (200, &json!("under-way"), &json!(1)), "{drain}");
    assert_eq!(vms(&drain), pairs(&[("c", "due"), ("a", "waiting"), ("b", "ends-before")]));
    assert_ne!(free(&get(&api, "/v1/hosts").await), before);

    let (status, why) = call(&api, "POST", "/v1/drains", &json!({"count": 1, "approve": true})).await;
    assert!(status == 409 && why["error"].as_str().unwrap().contains("no open host"), "{why}");
    let (status, why) = call(&api, "POST", "/v1/drains", &json!({"hosts": ["s3"], "approve": true})).await;
    assert!(status == 409 && why["error"].as_str().unwrap().contains("drain 1 is under way"), "{why}");
    assert_eq!(call(&api, "DELETE", "/v1/drains/1", &Value::Null).await.0, 204);
    assert_eq!(states(&api).await, ["open", "cordoned", "open", "open"]);
    assert_eq!(free(&get(&api, "/v1/hosts").await), before);
    assert_eq!(get(&api, "/v1/drains/1").await["state"], "cancelled");
    assert_eq!(call(&api, "POST", "/v1/drains/1/approve", &Value::Null).await.0, 409);
}

#[tokio::test]
async fn telling_a_move_again_is_answered_again() {
    let (_dir, api) = site().await;
    let tell = async |vm: &str, done: bool| {
        call(&api, "POST", &format!("/v1/drains/1/moves/{vm}"), &json!({ "done": done })).await
    };
    assert_eq!(call(&api, "POST", "/v1/drains", &json!({"hosts": ["s1", "s2"]})).await.0, 200);
    let (status, why) = tell("a", true).await;
    assert!(status == 409 && why["error"].as_str().unwrap().contains("drain 1 is proposed"), "{why}");
    assert_eq!(call(&api, "POST", "/v1/drains/1/approve", &Value::Null).await.0, 200);

    // The first answer was lost; or another program has told the same by PUT.
    assert_eq!(tell("a", true).await.0, 200);
    let (status, again) = tell("a", true).await;
    assert_eq!((status, &again["repeated"], &again["moved"]), (200, &json!(true), &json!(1)), "{again}");
    let moves = get(&api, "/v1/drains/1").await["moves"].take();
    let c = moves.as_array().unwrap().iter().find(|it| it["vm_id"] == "c").unwrap();
    let told = json!({"host": c["to"], "cores": 6, "memory_gb": 4, "lifetime_s": 80_000});
    assert_eq!(call(&api, "PUT", "/v1/vms/c", &told).await.0, 200);
    let (status, again) = tell("c", true).await;
    assert_eq!((status, &again["repeated"], &again["moved"]), (200, &json!(true), &json!(2)), "{again}");
    assert_eq!(tell("other", true).await.0, 404);
    let (status, why) = tell("a", false).await;
    assert!(status == 409 && why["error"].as_str().unwrap().contains("\"a\" has arrived"), "{why}");

    assert_eq!(call(&api, "DELETE", "/v1/vms/b", &Value::Null).await.0, 204);
    step(&api).await.ok().unwrap();
    let (status, again) = tell("a", true).await;
    assert_eq!((status, &again["state"], &again["repeated"]), (200, &json!("done"), &json!(true)), "{again}");
    let (status, why) = tell("other", true).await;
    assert!(status == 409 && why["error"].as_str().unwrap().contains("drain 1 is done"), "{why}");
}

/// Tells the daemon that these are the hosts by its file.
async fn listed(dir: &TempDir, api: &mut Api, hosts: &str) {
    let path = dir.path().join("hosts.toml");
    std::fs::write(&path, format!("hosts = [{hosts}]")).unwrap();
    api.hosts.get_or_insert_with(|| Arc::new(Mutex::new(HostFile::at(path, false))));
    api.reload_hosts().await;
    assert_eq!(*ballast_runtime::lock(&api.hosts_problem), None);
}

#[tokio::test]
async fn a_host_that_its_file_closes_stays_closed_when_its_drain_ends() {
    let host = |name: &str, more: &str| {
        format!("{{name = \"{name}\", chassis = \"c1\", cores = 8, memory_gb = 32{more}}},")
    };
    let all = ["s1", "s2", "s3", "s4"].map(|name| host(name, ""));
    let (s1_leaves, s2_closes) = (all[1..].concat(), host("s2", ", state = \"draining\""));
    let s2_closes = [&all[0], &s2_closes, &all[2], &all[3]].map(String::as_str).concat();
    for (after, closed) in [(s1_leaves, "s1"), (s2_closes, "s2")] {
        for cancelled in [true, false] {
            let (dir, mut api) = site().await;
            listed(&dir, &mut api, &all.concat()).await;
            let begun = json!({"count": 2, "approve": true});
            assert_eq!(call(&api, "POST", "/v1/drains", &begun).await.0, 200);
            listed(&dir, &mut api, &after).await;
            if cancelled {
                assert_eq!(call(&api, "DELETE", "/v1/drains/1", &Value::Null).await.0, 204);
            } else {
                for vm in ["a", "b", "c"] {
                    call(&api, "DELETE", &format!("/v1/vms/{vm}"), &Value::Null).await;
                }
                step(&api).await.ok().unwrap();
            }
            for name in ["s1", "s2"] {
                let state = if name == closed { "draining" } else { "open" };
                let found = get(&api, &format!("/v1/hosts/{name}")).await;
                assert_eq!(found["state"], state, "{name}, cancelled: {cancelled}, {after}");
            }
        }
    }
}

#[tokio::test]
async fn a_host_that_opens_or_goes_and_a_new_vm_are_taken_note_of() {
    let (_dir, api) = site().await;
    let begun = json!({"hosts": ["s1", "s2"], "approve": true, "limit": 1});
    assert_eq!(call(&api, "POST", "/v1/drains", &begun).await.0, 200);
    // Another program puts a VM on a host that is drained: it has to go, too.
    let told = json!({"host": "s2", "cores": 1, "memory_gb": 1, "lifetime_s": 99_999});
    assert_eq!(call(&api, "PUT", "/v1/vms/d", &told).await.0, 200);
    step(&api).await.ok().unwrap();
    let drain = get(&api, "/v1/drains/1").await;
    assert_eq!((&drain["scheduled"], vms(&drain).len()), (&json!(4), 4), "{drain}");

    // s1 opens by hand: nobody waits there any more, who is on the way goes on.
    assert_eq!(call(&api, "PUT", "/v1/hosts/s1", &json!({"state": "open"})).await.0, 204);
    step(&api).await.ok().unwrap();
    let drain = get(&api, "/v1/drains/1").await;
    assert_eq!(vms(&drain), pairs(&[("a", "due"), ("d", "waiting"), ("c", "waiting")]));
    assert_eq!(drain["hosts"][0]["free_in_s"], Value::Null);

    // The host that `a` goes to goes away, and s2 with all its VMs.
    let to = drain["moves"][0]["to"].as_str().unwrap().to_owned();
    assert_eq!(call(&api, "DELETE", &format!("/v1/hosts/{to}"), &Value::Null).await.0, 204);
    assert_eq!(call(&api, "DELETE", "/v1/hosts/s2?vms=forget", &Value::Null).await.0, 204);
    step(&api).await.ok().unwrap();
    let drain = get(&api, "/v1/drains/1").await;
    assert_eq!((&drain["state"], vms(&drain)), (&json!("done"), vec![]), "{drain}");
    assert_eq!(drain["hosts"][1], json!({"host": "s2", "vms": null, "free_in_s": null}));
}

#[tokio::test]
async fn a_drain_goes_on_after_a_restart_in_the_middle() {
    let (dir, api) = site().await;
    let begun = json!({"count": 2, "approve": true, "limit": 1, "order": "per-host"});
    let (status, drain) = call(&api, "POST", "/v1/drains", &begun).await;
    assert_eq!((status, &drain["reopen"]), (200, &json!(true)), "{drain}");
    let (_, proposed) = call(&api, "POST", "/v1/drains", &json!({"hosts": ["s3"]})).await;
    assert_eq!(proposed["id"], 2);
    let due = |drain: &Value| (drain["moves"][0]["vm_id"].clone(), drain["moves"][0]["to"].clone());
    let free = get(&api, "/v1/hosts").await;

    api.inventory.stop();
    // The thread that writes has the database until it has ended.
    let mut again = None;
    for _ in 0..3_000 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let opened = DurableInventory::open(dir.path(), ballast_placement::Policy::POWER, None, None);
        again = opened.ok().filter(|it| it.0.alarms().count() == 0);
        if again.is_some() {
            break;
        }
    }
    let api = Api { inventory: again.unwrap().0, ..api };
    let after = get(&api, "/v1/drains/1").await;
    assert_eq!((due(&after), &after["state"]), (due(&drain), &json!("under-way")));
    assert_eq!(get(&api, "/v1/hosts").await["hosts"][2]["free_cores"], free["hosts"][2]["free_cores"]);
    assert_eq!(get(&api, "/v1/drains/2").await["state"], "proposed");

    for _ in 0..3 {
        let drain = get(&api, "/v1/drains/1").await;
        if drain["state"] == "done" {
            break;
        }
        let vm = drain["moves"][0]["vm_id"].as_str().unwrap().to_owned();
        let path = format!("/v1/drains/1/moves/{vm}");
        assert_eq!(call(&api, "POST", &path, &json!({"done": true})).await.0, 200, "{drain}");
    }
    assert_eq!(get(&api, "/v1/drains/1").await["state"], "done");
    // They were to open again.
    assert_eq!(states(&api).await, ["open"; 4]);
}

#[tokio::test]
async fn what_is_wrong_is_named_and_changes_nothing() {
    let (_dir, api) = site().await;
    for (body, status, says) in [
        (json!({}), 400, "hosts or count is missing"),
        (json!({"hosts": []}), 400, "hosts: none: 1 to 200"),
        (json!({"hosts": "s1"}), 400, "hosts: invalid type: string \"s1\", expected a sequence"),
        (json!({"hosts": [1]}), 400, "hosts[0]: invalid type: integer `1`, expected a string"),
        (json!({"hosts": ["s1", "s1"]}), 400, "hosts: \"s1\" is listed twice"),
        (json!({"hosts": ["s9"]}), 404, "host \"s9\" is not known"),
        (json!({"hosts": ["s1"], "count": 1}), 400, "one of them, not both"),
        (json!({"count": 0}), 400, "count: 0: a whole number from 1 to 200"),
        (json!({"count": 1.5}), 400, "count: 1.5: a whole number"),
        (
            json!({"count": 1, "order": "random"}),
            400,
            "order: unknown variant `random`, expected one of `largest`",
        ),
        (json!({"count": 1, "limit": 0}), 400, "limit: 0: a whole number from 1 to 1000"),
        (
            json!({"count": 1, "approve": "yes"}),
            400,
            "approve: invalid type: string \"yes\", expected a boolean",
        ),
        (json!({"count": 1, "approve": true, "dry_run": true}), 400, "dry_run and approve"),
        (json!([]), 400, "an object is needed"),
        (
            json!({"count": 1, "dryrun": true}),
            400,
            "unknown field `dryrun`, expected one of `hosts`, `count`, `order`",
        ),
        (json!({"hosts": ["s1"], "move_s": 5}), 400, "unknown field `move_s`"),
        (json!({"hosts": ["", ""]}), 400, "hosts: \"\" is listed twice"),
        (json!({"count": -1}), 400, "count: -1: a whole number from 1 to 200"),
    ] {
        let (found, why) = call(&api, "POST", "/v1/drains", &body).await;
        let text = why["error"].as_str().unwrap_or_default();
        assert!(found == status && text.contains(says), "{body}: {found} {why}");
    }
    for (method, path, status) in [
        ("GET", "/v1/drains/7", 404),
        ("GET", "/v1/drains/x", 400),
        ("DELETE", "/v1/drains/7", 404),
        ("POST", "/v1/drains/7/approve", 404),
    ] {
        assert_eq!(call(&api, method, path, &Value::Null).await.0, status, "{method} {path}");
    }
    assert_eq!(call(&api, "POST", "/v1/drains/7/moves/a", &json!({"done": true})).await.0, 404);
    assert_eq!(call(&api, "POST", "/v1/drains/7/moves/a", &json!({})).await.0, 400);
    let (status, why) =
        call(&api, "POST", "/v1/drains/7/moves/a", &json!({"done": true, "host": "s3"})).await;
    assert!(
        status == 400 && why["error"].to_string().contains("unknown field `host`, expected `done`"),
        "{why}"
    );
    assert_eq!(get(&api, "/v1/drains").await, json!({"drains": []}));
    assert_eq!(states(&api).await, ["open"; 4]);
}

#[tokio::test]
async fn too_few_empty_hosts_begin_a_drain_that_waits_for_approval_or_not() {
    for (ask, state) in [(true, "proposed"), (false, "under-way")] {
        let (_dir, mut api) = site().await;
        let config = DrainsConfig { empty_below: Some(0.5), hosts: 1, ask, ..DrainsConfig::default() };
        api.drains = Arc::new(config);
        step(&api).await.ok().unwrap();
        assert_eq!(get(&api, "/v1/drains").await, json!({"drains": []}), "half of them are empty");
        let told = json!({"host": "s3", "cores": 7, "memory_gb": 1});
        assert_eq!(call(&api, "PUT", "/v1/vms/d", &told).await.0, 200);
        step(&api).await.ok().unwrap();
        step(&api).await.ok().unwrap();
        let list = get(&api, "/v1/drains").await;
        let drains = list["drains"].as_array().unwrap();
        assert_eq!((drains.len(), &drains[0]["state"]), (1, &json!(state)), "{list}");
        // s1 has the most cores free.
        assert_eq!(drains[0]["hosts"][0]["host"], "s1");
        let waits = |alarm: &ballast_types::wire::Alarm| alarm.id == ballast_types::wire::AlarmId::DrainWaits;
        assert_eq!(api.look().alarms.iter().any(waits), ask);

        // Cancelled, it does not come again at once.
        assert_eq!(call(&api, "DELETE", "/v1/drains/1", &Value::Null).await.0, 204);
        step(&api).await.ok().unwrap();
        assert_eq!(get(&api, "/v1/drains").await["drains"].as_array().unwrap().len(), 1);
        assert_eq!(states(&api).await, ["open"; 4]);
    }
}

#[tokio::test]
async fn one_that_begins_by_itself_leaves_out_hosts_whose_vms_have_no_room() {
    for (ask, state) in [(true, "proposed"), (false, "under-way")] {
        let (_dir, mut api) = api(None);
        let config = DrainsConfig { empty_below: Some(0.5), hosts: 200, ask, ..DrainsConfig::default() };
        api.drains = Arc::new(config);
        for n in 1..=4 {
            let host = json!({"chassis": "c1", "cores": 10, "memory_gb": 40});
            assert_eq!(call(&api, "PUT", &format!("/v1/hosts/s{n}"), &host).await.0, 204);
            let vm = json!({"host": format!("s{n}"), "cores": 8, "memory_gb": 8});
            assert_eq!(call(&api, "PUT", &format!("/v1/vms/v{n}"), &vm).await.0, 200);
        }
        step(&api).await.ok().unwrap();
        assert_eq!(get(&api, "/v1/drains").await, json!({"drains": []}), "no VM has room");
        assert_eq!(states(&api).await, ["open"; 4]);

        // Now there is room for one of them.
        let host = json!({"chassis": "c1", "cores": 10, "memory_gb": 40});
        assert_eq!(call(&api, "PUT", "/v1/hosts/s5", &host).await.0, 204);
        step(&api).await.ok().unwrap();
        let drain = get(&api, "/v1/drains/1").await;
        let hosts = drain["hosts"].as_array().unwrap();
        assert_eq!((hosts.len(), &drain["state"], &drain["without_room"]), (1, &json!(state), &json!(0)));
    }
}

#[tokio::test]
async fn a_drain_whose_next_vms_have_no_room_is_said() {
    let (_dir, api) = site().await;
    for host in ["s3", "s4"] {
        let vm = json!({"host": host, "cores": 4, "memory_gb": 1});
        assert_eq!(call(&api, "PUT", &format!("/v1/vms/on-{host}"), &vm).await.0, 200);
    }
    let stuck = || {
        let alarms = api.look().alarms.into_iter().filter(|alarm| alarm.id.name() == "drain_stuck");
        alarms.map(|alarm| alarm.message).collect::<Vec<_>>()
    };
    // `c` takes 6 of 8 cores, and everywhere 4 are free.
    let begun = json!({"hosts": ["s2"], "approve": true});
    let (status, drain) = call(&api, "POST", "/v1/drains", &begun).await;
    assert_eq!((status, &drain["without_room"]), (200, &json!(1)), "{drain}");
    assert_eq!((&drain["moves"][0]["to"], &drain["hosts"][0]["free_in_s"]), (&Value::Null, &Value::Null));
    assert!(stuck()[0].contains("drain 1") && stuck()[0].contains("s2"), "{:?}", stuck());
    let (_, metrics) = ask(&api, "GET", "/metrics", String::new()).await;
    for line in ["{state=\"due\"} 0", "{state=\"waiting\"} 1", "{state=\"without-room\"} 1"] {
        assert!(metrics.contains(&format!("ballast_place_drain_moves{line}")), "{metrics}");
    }

    assert_eq!(call(&api, "DELETE", "/v1/vms/on-s3", &Value::Null).await.0, 204);
    step(&api).await.ok().unwrap();
    let drain = get(&api, "/v1/drains/1").await;
    assert_eq!((vms(&drain), &drain["without_room"]), (pairs(&[("c", "due")]), &json!(0)), "{drain}");
    assert_eq!((&drain["hosts"][0]["free_in_s"].is_number(), stuck()), (&true, vec![]));
}

#[tokio::test]
async fn the_pause_after_a_cancelled_drain_is_an_hour_whatever_the_clock_does() {
    let (_dir, api) = site().await;
    let (mut inventory, mut drains) = (api.inventory.look(), Drains::default());
    let config = DrainsConfig { empty_below: Some(1.0), ..DrainsConfig::default() };
    let ended = ballast_runtime::unix_now();
    let spec = DrainSpec {
        hosts: vec!["s1".to_owned()],
        order: config.order,
        limit: 1,
        move_time: config.move_time,
        reopen: true,
        by_itself: true,
    };
    let (id, _) = drains.propose(spec);
    assert!(drains.cancel(id, ended, &mut inventory).is_ok());
    let (hour, day) = (Duration::from_secs(3600), Duration::from_secs(86_400));
    for (now, is_due) in [
        (ended, false),
        (ended + Duration::from_secs(3599), false),
        (ended + hour, true),
        (ended.saturating_sub(Duration::from_secs(2)), false),
        (ended.saturating_sub(day), true),
    ] {
        assert_eq!(drains.is_due(&config, now, &inventory), is_due, "{now:?}, {ended:?}");
    }
}

#[tokio::test]
async fn old_drains_are_forgotten() {
    let (_dir, api) = site().await;
    for _ in 0..60 {
        assert_eq!(call(&api, "POST", "/v1/drains", &json!({"hosts": ["s4"]})).await.0, 200);
    }
    let list = get(&api, "/v1/drains").await;
    let ids: Vec<_> =
        list["drains"].as_array().unwrap().iter().map(|it| it["id"].as_u64().unwrap()).collect();
    assert_eq!((ids.len(), ids[0], ids[49]), (50, 60, 11));
}
