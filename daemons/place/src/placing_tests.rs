//! The calls about hosts and VMs, as they are made.

use ballast_placement::inventory::Snapshot;
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;
use tower::ServiceExt as _;

use super::api::Api;
use super::routes::routes;
use super::routes::tests::{api, ask, call, get};
use ballast_runtime::http;

/// Four hosts in two chassis.
async fn site() -> (TempDir, Api) {
    let (dir, api) = api(None);
    for n in 1..=4 {
        let host = json!({"chassis": format!("c{}", (n + 1) / 2), "cores": 8, "memory_gb": 32});
        let (status, why) = call(&api, "PUT", &format!("/v1/hosts/s{n}"), &host).await;
        assert_eq!(status, 204, "{why}");
    }
    (dir, api)
}

fn vm(name: &str) -> Value {
    json!({"vm_id": name, "cores": 4, "memory_gb": 16, "class": "user-facing", "p95_percent": 50})
}

/// The same with more fields, or others.
fn with(mut object: Value, fields: &Value) -> Value {
    for (key, value) in fields.as_object().unwrap() {
        object[key] = value.clone();
    }
    object
}

fn inventory(api: &Api) -> Snapshot {
    api.inventory.look().snapshot()
}

#[tokio::test]
async fn a_vm_is_scored_placed_found_and_removed() {
    let (_dir, api) = site().await;
    let (status, scores) = call(&api, "POST", "/v1/score", &with(vm("a"), &json!({"top": 2}))).await;
    assert_eq!(status, 200, "{scores}");
    assert_eq!(scores["fitting"], 4);
    assert_eq!(scores["refused"], json!({"capacity": 0, "open": 0, "anti-affinity": 0, "fault-domains": 0}));
    assert_eq!((&scores["class_by"], &scores["p95_by"]), (&json!("request"), &json!("request")));
    assert_eq!(scores["hosts"].as_array().unwrap().len(), 2);
    let best = &scores["hosts"][0];
    assert_eq!((&best["host"], &best["chassis"]), (&json!("s1"), &json!("c1")));
    let rules: Vec<_> = best["verdicts"].as_array().unwrap().iter().map(|v| &v["rule"]).collect();
    assert_eq!(rules, ["best-fit", "power"]);
    assert_eq!(best["verdicts"][0]["reason"], "leaves 50.0 % of its cores, 50.0 % of its memory");
    assert!(inventory(&api).vms.is_empty(), "a score changes nothing");

    let (status, placed) = call(&api, "POST", "/v1/place", &vm("a")).await;
    assert_eq!((status, &placed["host"]), (200, &best["host"]), "{placed}");
    assert_eq!(placed["repeated"], false);
    let (_, again) = call(&api, "POST", "/v1/place", &vm("a")).await;
    assert_eq!(again, with(placed.clone(), &json!({"repeated": true})));
    let found = get(&api, "/v1/vms/a").await;
    assert_eq!(with(found.clone(), &json!({"repeated": false})), placed);
    assert_eq!(get(&api, "/v1/vms?host=s1").await, json!({"vms": [found], "more": false}));
    assert_eq!(get(&api, "/v1/vms?host=s2").await["vms"], json!([]));
    assert_eq!(get(&api, "/v1/vms?after=a").await["vms"], json!([]));
    let host = get(&api, "/v1/hosts/s1").await;
    assert_eq!((&host["free_cores"], &host["vms"]), (&json!(4.0), &json!(1)));

    let status = get(&api, "/v1/status").await;
    let inventory = &status["inventory"];
    for (key, value) in [("hosts", 4), ("used_hosts", 1), ("vms", 1), ("placed", 1), ("refused", 0)] {
        assert_eq!(inventory[key], value, "{key}");
    }
    assert_eq!(inventory["chassis"][0]["score"], 1.0 - 2.0 / 16.0);
    let (_, metrics) = ask(&api, "GET", "/metrics", String::new()).await;

    for line in [
        "ballast_place_placed_vms 1.0",
        "ballast_place_placements_total 1",
        "ballast_place_hosts{state=\"open\"} 4.0",
        "ballast_place_chassis_score{chassis=\"c1\"} 0.875",
        "ballast_place_score_latency_seconds_count 1",
        "ballast_place_place_latency_seconds_count 2",
        "ballast_place_refusals_total{reason=\"no-host\"} 0",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line}\n{metrics}");
    }

    assert_eq!(call(&api, "DELETE", "/v1/vms/a", &Value::Null).await.0, 204);
    let (status, why) = call(&api, "DELETE", "/v1/vms/a", &Value::Null).await;
    assert_eq!((status, why), (404, json!({"error": "VM \"a\" is not placed"})));
}

#[tokio::test]
async fn a_deployment_goes_whole_or_not_at_all_and_only_once() {
    let (_dir, api) = site().await;
    let vms = |n: usize| {
        let vms: Vec<_> = (0..n).map(|n| vm(&format!("w{n}"))).collect();
        json!({"deployment": "web", "spread": true, "vms": vms})
    };

    let (status, why) = call(&api, "POST", "/v1/place", &vms(5)).await;
    assert_eq!(status, 409);
    assert_eq!(why["error"], "VM \"w4\": no host fits: anti-affinity refuses 4");
    assert!(inventory(&api).vms.is_empty());
    let (status, placed) = call(&api, "POST", "/v1/place", &vms(4)).await;
    assert_eq!(status, 200, "{placed}");
    let mut hosts: Vec<_> =
        placed["vms"].as_array().unwrap().iter().map(|vm| vm["host"].as_str().unwrap()).collect();
    hosts.sort_unstable();
    assert_eq!(hosts, ["s1", "s2", "s3", "s4"]);
    let before = inventory(&api);
    let (status, again) = call(&api, "POST", "/v1/place", &vms(4)).await;
    assert_eq!((status, &again["repeated"], &again["vms"]), (200, &json!(true), &placed["vms"]));

    // A part of it is the same request as well; one more VM, or another size, is not.
    assert_eq!(call(&api, "POST", "/v1/place", &vms(2)).await.0, 200);

    for other in [vms(5), with(vms(1), &json!({"spread": false})), with(vms(1), &json!({"deployment": "db"}))]
    {
        let (status, why) = call(&api, "POST", "/v1/place", &other).await;
        assert_eq!(status, 409, "{why}");
        assert!(why["error"].as_str().unwrap().starts_with("VM \"w0\" is already placed"), "{why}");
    }

    assert_eq!(inventory(&api), before);
}

#[tokio::test]
async fn hosts_have_more_than_cores_and_memory() {
    let (_dir, api) = site().await;
    let set = async |host: &str, more: Value| {
        let told = call(&api, "PUT", &format!("/v1/hosts/{host}"), &more).await;
        assert_eq!(told.0, 204, "{}", told.1);
    };
    set("s1", json!({"extras": {"gpu": 2}, "fault_domain": "r1"})).await;
    set("s2", json!({"overcommit": {"cores": 2}, "max_vms": 3, "fault_domain": "r2"})).await;
    let s2 = get(&api, "/v1/hosts/s2").await;
    assert_eq!((&s2["cores"], &s2["free_cores"]), (&json!(8.0), &json!(16.0)));
    assert_eq!((&s2["max_vms"], &s2["fault_domain"]), (&json!(3), &json!("r2")));

    // Who needs no GPU goes elsewhere; who does is known by it.
    let (_, scores) = call(&api, "POST", "/v1/score", &with(vm("a"), &json!({"top": 4}))).await;
    assert_eq!(scores["hosts"][3]["host"], "s1", "{scores}");
    let gpu = with(vm("g"), &json!({"extras": {"gpu": 2, "disk_gb": 0}}));
    let (status, placed) = call(&api, "POST", "/v1/place", &gpu).await;
    assert_eq!((status, &placed["host"], &placed["extras"]), (200, &json!("s1"), &json!({"gpu": 2})));
    assert_eq!(call(&api, "POST", "/v1/place", &gpu).await.1["repeated"], true);
    let s1 = get(&api, "/v1/hosts/s1").await;
    assert_eq!((&s1["extras"], &s1["free_extras"]), (&json!({"gpu": 2}), &json!({})));
    let (status, full) = call(&api, "POST", "/v1/place", &with(gpu, &json!({"vm_id": "h"}))).await;
    assert_eq!(status, 409);
    assert!(full["error"].as_str().unwrap().contains("too little of a resource beside cores"), "{full}");

    let kept = inventory(&api);
    let found: Snapshot = serde_json::from_value(json!(kept)).unwrap();
    assert_eq!(found, kept, "as the database writes it");

    set("s2", json!({"max_vms": 0})).await;
    assert_eq!(get(&api, "/v1/hosts/s2").await["max_vms"], Value::Null);
}

#[tokio::test]
async fn what_somebody_else_has_done_is_taken_note_of() {
    let (dir, api) = site().await;
    let put = async |name: &str, host: &str, more: Value| {
        let body = with(with(vm(name), &json!({"host": host})), &more);
        call(&api, "PUT", &format!("/v1/vms/{name}"), &body).await
    };

    let (_, first) = put("a", "s2", json!({})).await;
    assert_eq!(put("a", "s3", json!({"p95_percent": 20})).await.1["since_ms"], first["since_ms"], "moved");
    assert_eq!(put("a", "s2", json!({})).await.0, 200);
    assert_eq!(put("a", "s2", json!({})).await.1["host"], "s2", "twice is as good as once");
    assert_eq!(put("b", "s2", json!({})).await.0, 200);
    let full = put("c", "s2", json!({})).await;
    assert_eq!(full.0, 409, "{full:?}");
    assert_eq!(put("b", "s3", json!({"p95_percent": 20})).await.1["p95_percent"], 20.0, "moved");
    let before = inventory(&api);
    let larger = put("b", "s3", json!({"cores": 8, "memory_gb": 33})).await;
    assert_eq!(larger.0, 400, "{larger:?}");
    assert_eq!(put("b", "s9", json!({})).await.0, 404);
    assert_eq!(inventory(&api), before, "and is still where it was");

    // Cordoned by one field; VMs stay, no more come.
    let (status, _) = call(&api, "PUT", "/v1/hosts/s1", &json!({"state": "cordoned"})).await;
    assert_eq!(status, 204);
    let (_, scores) = call(&api, "POST", "/v1/score", &vm("d")).await;
    assert_eq!((&scores["fitting"], &scores["refused"]["open"]), (&json!(3), &json!(1)));
    let (status, why) = call(&api, "DELETE", "/v1/hosts/s2", &Value::Null).await;
    let full = json!("host \"s2\" has 1 VMs: none may be there when it goes");
    assert_eq!((status, &why["error"]), (409, &full));

    assert_eq!(call(&api, "DELETE", "/v1/hosts/s2?vms=forget", &Value::Null).await.0, 204);
    assert_eq!(call(&api, "GET", "/v1/vms/a", &Value::Null).await.0, 404);

    // What is on disk is what is in memory.
    let found = super::store::open(dir.path()).unwrap().contents.inventory;
    assert_eq!(found, inventory(&api));
}

#[tokio::test]
async fn bad_requests_are_refused_by_name_and_counted() {
    let (_dir, api) = site().await;
    assert_eq!(call(&api, "POST", "/v1/place", &vm("there")).await.0, 200);
    let before = inventory(&api);
    let host = json!({"chassis": "c1", "cores": 8, "memory_gb": 32});
    let closed = json!({"state": "closed"});
    let mut refused = 0;

    let but = |name: &str, more: Value| with(vm(name), &more);
    let other_there = but("there", json!({"cores": 2}));
    let two = |other: Value| json!({"vms": [vm("a"), other]});
    for (call_of, body, status, says) in [
        ("POST /v1/score", but("a", json!({"cores": 9})), 400, "VM \"a\" asks for 9 cores, 16 GB: the"),
        ("POST /v1/place", but("a", json!({"memory_gb": 33})), 400, "VM \"a\" asks for 4 cores, 33 GB"),
        ("POST /v1/place", two(vm("a")), 400, "VM \"a\" is listed twice"),
        ("POST /v1/place", two(but("b", json!({"cores": 9}))), 400, "VM \"b\" asks for 9"),
        ("POST /v1/place", other_there, 409, "VM \"there\" is already placed, on host \"s1\""),
        ("POST /v1/score", vm("there"), 409, "VM \"there\" is already placed"),
        ("POST /v1/place", but("a", json!({"vm_id": null})), 400, "vm_id is missing"),
        ("POST /v1/place", two(but("b", json!({"vm_id": null}))), 400, "vms[1].vm_id is missing"),
        ("POST /v1/score", but("a", json!({"top": 0})), 400, "top: 0: a whole number from 1 to 1000"),
        ("POST /v1/score", but("a", json!({"top": 1.5})), 400, "top: 1.5: a whole number"),
        ("POST /v1/score", but("a", json!({"spread": true})), 400, "spread = true: only with a deployment"),
        (
            "POST /v1/score",
            but("a", json!({"domain_skew": 1})),
            400,
            "domain_skew = 1: only with a deployment",
        ),
        (
            "POST /v1/score",
            but("a", json!({"domain_skew": 256})),
            400,
            "domain_skew: 256: a whole number from 0",
        ),
        (
            "POST /v1/place",
            but("a", json!({"extras": {"gpu": 1}})),
            400,
            "VM \"a\" asks for \"gpu\": no host has any",
        ),
        (
            "POST /v1/place",
            but("a", json!({"extras": {"gpu": -1}})),
            400,
            "extras.gpu: -1: a whole number from 0 to 42",
        ),
        (
            "POST /v1/place",
            but("a", json!({"extras": 1})),
            400,
            "extras: invalid type: integer `1`, expected a map",
        ),
        ("PUT /v1/hosts/s1", json!({"overcommit": {"cores": 17}}), 400, "overcommit.cores: 17: 0.1 to 16"),
        ("PUT /v1/hosts/s1", json!({"max_vms": 1.5}), 400, "max_vms: 1.5: a whole number"),
        (
            "PUT /v1/hosts/s1",
            json!({"extras": {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}}),
            400,
            "\"e\": at most 4 kinds of resources beside cores and memory; there are a, b, c, d",
        ),
        ("POST /v1/score", json!({"cores": 1, "memory_gb": 0}), 400, "memory_gb = 0: above 0"),
        ("PUT /v1/vms/a", vm("a"), 400, "host is missing"),
        ("PUT /v1/vms/b", but("a", json!({"host": "s1"})), 400, "vm_id = \"a\": as in the path"),
        ("PUT /v1/hosts/s9", json!({"state": "open"}), 400, "cores is missing: host \"s9\" is new"),
        ("PUT /v1/hosts/s9", with(host.clone(), &json!({"cores": 0})), 400, "cores = 0: 0.001 to 65536"),
        (
            "PUT /v1/hosts/s9",
            with(host.clone(), &closed),
            400,
            "state: unknown variant `closed`, expected one of `open`",
        ),
        ("PUT /v1/hosts/s%0A9", host, 400, "is not a valid name of a host"),
        ("DELETE /v1/hosts/s9", Value::Null, 404, "host \"s9\" is not known"),
        ("DELETE /v1/vms/nobody", Value::Null, 404, "VM \"nobody\" is not placed"),
    ] {
        let (method, path) = call_of.split_once(' ').unwrap();
        let (got, answer) = call(&api, method, path, &body).await;
        let why = answer["error"].as_str().unwrap_or_default();
        assert_eq!(got, status, "{method} {path} {body}: {answer}");
        assert!(why.starts_with(says) || why.contains("is not a valid name"), "{says}: {why}");
        refused += 1;
        assert_eq!(inventory(&api), before, "{method} {path} {body}");
    }

    assert_eq!(api.look().inventory.refused, refused);
}

#[tokio::test]
async fn who_has_not_the_right_reads_and_changes_nothing() {
    let (_dir, api) = site().await;
    let before = inventory(&api);

    for (method, path) in [
        ("POST", "/v1/place"),
        ("PUT", "/v1/vms/a"),
        ("DELETE", "/v1/vms/a"),
        ("PUT", "/v1/hosts/s1"),
        ("DELETE", "/v1/hosts/s1"),
    ] {
        let body = with(vm("a"), &json!({"host": "s1"}));
        let request = http::by_loopback(http::from_here(method, path, body.to_string()));
        let answer = routes(api.clone()).oneshot(request).await.unwrap();
        assert_eq!(answer.status().as_u16(), 403, "{method} {path}");
    }

    assert_eq!(call(&api, "POST", "/v1/score", &vm("a")).await.0, 200);

    for path in ["/v1/vms", "/v1/hosts", "/v1/hosts/s1", "/v1/status"] {
        get(&api, path).await;
    }
    assert_eq!(inventory(&api), before);
}

/// What no field of a VM may be, and what no number may be.
fn bad_value() -> impl Strategy<Value = (&'static str, Value)> {
    let wrong = prop_oneof![
        (-1e12..-1e-3).prop_map(|x| json!(x)),
        (1e7..1e300).prop_map(|x| json!(x)),
        Just(json!("NaN")),
        Just(json!([1])),
        Just(json!({})),
        Just(json!(true)),
    ];
    let number = prop_oneof![Just("cores"), Just("memory_gb"), Just("p95_percent"),];
    let text = prop_oneof![Just(json!("")), Just(json!(7)), Just(json!("x".repeat(257)))];
    prop_oneof![
        (number, wrong),
        (prop_oneof![Just("vm_id"), Just("deployment"), Just("subscription")], text),
        (Just("class"), Just(json!("batch"))),
        (Just("spread"), Just(json!("yes"))),
        (Just("lifetime_s"), Just(json!(-1))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_bad_request_changes_anything_and_each_names_its_field(
        (field, value) in bad_value(), before in 0..4usize, after in 0..4usize, call_by in 0..3usize,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (_dir, api) = site().await;
            let there = json!({"vms": [vm("x"), vm("y")]});
            assert_eq!(call(&api, "POST", "/v1/place", &there).await.0, 200);
            let (all, bad) = (inventory(&api), with(vm("bad"), &json!({field: value})));
            let (status, answer) = match call_by {
                0 => call(&api, "POST", "/v1/score", &bad).await,
                1 => call(&api, "PUT", "/v1/vms/bad", &with(bad, &json!({"host": "s4"}))).await,
                _ => {
                    let vms = (0..before + after).map(|n| vm(&format!("v{n}")));
                    let mut vms: Vec<_> = vms.collect();
                    vms.insert(before, bad);

                    call(&api, "POST", "/v1/place", &json!({ "vms": vms })).await
                }
            };

            assert_eq!(status, 400, "{answer}");
            let why = answer["error"].as_str().unwrap();
            assert!(why.contains(field), "{field}: {why}");
            assert_eq!(inventory(&api), all, "{why}");
        });
    }
}
