//! VMs with what a model says of their lifetimes, as they are asked about, placed, and found after a restart.

use ballast_placement::{LifetimeRule, Policy};
use ballast_predict::lifetime::{
    LifetimeFeatures, LifetimeFile, LifetimeTrial, Lifetimes, VmEnd, VmLifetime,
};
use serde_json::{Value, json};

use super::api::Api;
use super::inventory::DurableInventory;
use super::routes::tests::{api_with, call};

/// VMs of tenant `short` live ten minutes, those of `long` ten hours; `turned` is the other way round.
pub(super) fn model(turned: bool) -> Vec<u8> {
    let vm = |n: i64| {
        let is_short = (n % 2 == 0) != turned;
        let lives_s = if is_short { 600 } else { 36_000 };
        let start_s = 1_760_000_000 + n * 600;
        let tenant = Some(if n % 2 == 0 { "short" } else { "long" }.to_owned());
        VmLifetime {
            start_s,
            end: VmEnd::At(start_s + lives_s + n * 37 % 100),
            deployment: String::new(),
            features: LifetimeFeatures { tenant, ..LifetimeFeatures::default() },
        }
    };
    let lifetimes = Lifetimes::new((0..2_000).map(vm).collect());
    let file: LifetimeFile = LifetimeTrial::new(&lifetimes).unwrap().learn_all();
    file.encode().unwrap()
}

const NILAS: Policy = Policy { lifetimes: LifetimeRule::Nilas, ..Policy::POWER };

async fn good(api: &Api, method: &str, path: &str, body: &Value) -> Value {
    let (status, answer) = call(api, method, path, body).await;
    assert!([200, 204].contains(&status), "{path}: {answer}");
    answer
}

async fn hosts(api: &Api, count: usize) {
    for n in 1..=count {
        let host = json!({"chassis": format!("c{n}"), "cores": 16, "memory_gb": 64});
        good(api, "PUT", &format!("/v1/hosts/s{n}"), &host).await;
    }
}

fn vm(name: &str, tenant: &str) -> Value {
    json!({"vm_id": name, "cores": 2, "memory_gb": 8, "subscription": tenant, "class": "user-facing",
        "p95_percent": 50})
}

fn hours(answer: &Value, key: &str) -> f64 {
    answer[key].as_f64().unwrap_or(f64::NAN) / 3600.0
}

#[tokio::test]
async fn a_lifetime_is_answered_beside_class_and_p95() {
    let (_dir, api) = api_with(Some(&model(false)), NILAS);
    let predict = async |more: Value| {
        let mut question = json!({"cores": 2, "memory_gb": 8});
        more.as_object().unwrap().iter().for_each(|(key, value)| question[key] = value.clone());
        good(&api, "POST", "/v1/predict", &question).await
    };

    let answer = predict(json!({"subscription": "long"})).await;
    let lifetime = &answer["lifetime"];
    assert!((9.0..11.0).contains(&hours(lifetime, "expected_s")), "{answer}");
    assert!((9.0..11.5).contains(&hours(lifetime, "median_s")), "{answer}");
    assert_eq!((&lifetime["known_columns"], &answer["class_confident"]), (&json!(1), &json!(false)));
    let keys: Vec<&String> = lifetime.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["expected_s", "known_columns", "lives_7d", "median_s", "p10_s", "p90_s"]);
    let short = predict(json!({"tenant": "short", "subscription": "long"})).await;
    assert!(hours(&short["lifetime"], "p90_s") < 0.3, "a tenant comes before a subscription: {short}");

    // What has run already, and what has outlived everything that was ever seen, goes on living.
    let half = predict(json!({"tenant": "long", "uptime_s": 18_000})).await;
    assert!((4.0..6.0).contains(&hours(&half["lifetime"], "expected_s")), "{half}");
    let old = predict(json!({"tenant": "short", "uptime_s": 3.2e9})).await;
    let left = hours(&old["lifetime"], "expected_s");
    assert!(left.is_finite() && left > 0.0, "{old}");
    let unknown = predict(json!({"tenant": "nobody's", "labels": {"zone": "z1"}, "batch_vms": 7})).await;
    assert_eq!(unknown["lifetime"]["known_columns"], 0, "{unknown}");

    for (more, says) in [
        (json!({"uptime_s": -1}), "uptime_s = -1: 0 to 3200000000"),
        (json!({"uptime_s": 1e30}), "uptime_s = 1000000000000000000000000000000: 0 to"),
        (json!({"labels": "z1"}), "labels: invalid type: string \"z1\", expected a map"),
    ] {
        let mut question = vm("a", "long");
        more.as_object().unwrap().iter().for_each(|(key, value)| question[key] = value.clone());
        let (status, answer) = call(&api, "POST", "/v1/predict", &question).await;
        assert!(status == 400 && answer["error"].as_str().unwrap().starts_with(says), "{answer}");
    }

    let model = good(&api, "GET", "/v1/status", &Value::Null).await["predict"]["model"].clone();
    assert_eq!(
        (&model["lifetime"]["vms"], &model["lifetime"]["curves"]),
        (&json!(2_000), &json!(3)),
        "{model}"
    );
    assert_eq!((&model["class"]["vms"], &model["subscriptions"]), (&json!(0), &json!(0)));
}

#[tokio::test]
async fn vms_that_end_together_go_together_and_the_reason_is_told() {
    for lifetimes in [LifetimeRule::Nilas, LifetimeRule::ExpectedExit] {
        let (_dir, api) = api_with(Some(&model(false)), Policy { lifetimes, ..Policy::POWER });
        hosts(&api, 3).await;
        // An hour, as told: somebody who knows comes before the model.
        let mut told = vm("told", "long");
        told["lifetime_s"] = json!(3600);
        let first = good(&api, "POST", "/v1/place", &told).await;
        assert_eq!((&first["lifetime_s"], &first["remaining_s"]), (&json!(3600.0), &json!(3600.0)));
        let scores = good(&api, "POST", "/v1/score", &vm("b", "short")).await;
        assert_eq!((&scores["lifetime_by"], &scores["hosts"][0]["host"]), (&json!("model"), &first["host"]));
        assert!((0.1..0.3).contains(&hours(&scores, "expected_s")), "{scores}");
        let reasons = scores["hosts"][0]["verdicts"].to_string();
        let says =
            format!("{} is expected to be free in 60 min; this VM lives 1", first["host"].as_str().unwrap());
        assert!(reasons.contains(&says), "{reasons}");
        assert_eq!(good(&api, "POST", "/v1/score", &told_as("c", 60)).await["lifetime_by"], "request");

        // One that lives longer by far is another host's, where that is no empty one.
        let long = good(&api, "POST", "/v1/place", &vm("long-1", "long")).await;
        let next = good(&api, "POST", "/v1/place", &vm("long-2", "long")).await;
        assert_eq!(long["host"], next["host"]);
        assert!((9.0..11.0).contains(&hours(&next, "remaining_s")), "{next}");
    }
}

fn told_as(name: &str, lifetime_s: u64) -> Value {
    let mut vm = vm(name, "long");
    vm["lifetime_s"] = json!(lifetime_s);
    vm
}

#[tokio::test]
async fn after_a_restart_and_with_another_model_every_vm_has_its_curve() {
    let (dir, api) = api_with(Some(&model(false)), NILAS);
    hosts(&api, 2).await;
    let mut many = json!({"deployment": "d", "vm_type": "general", "labels": {"zone": "z1"}});
    many["vms"] = json!([vm("a", "long"), vm("b", "short"), told_as("c", 7_200)]);
    let placed = good(&api, "POST", "/v1/place", &many).await;
    assert_eq!(placed["vms"][0]["batch_vms"], 3, "{placed}");
    let part =
        json!({"deployment": "d", "vm_type": "general", "labels": {"zone": "z1"}, "vms": [vm("a", "long")]});
    assert_eq!(
        good(&api, "POST", "/v1/place", &part).await["repeated"],
        true,
        "a part of it is no other request"
    );

    let left = |inventory: &ballast_placement::Inventory| {
        let now = ballast_runtime::unix_now();
        let left = |vm: ballast_placement::inventory::VmView<'_>| {
            let left = inventory.cluster().remaining(now, vm.since, vm.end);
            (vm.name.to_owned(), left.map(|left| (left.as_secs_f64() / 3600.0).round()))
        };
        inventory.vms().map(left).collect::<Vec<_>>()
    };
    let named = |hours: [Option<f64>; 3]| {
        ["a", "b", "c"].into_iter().map(str::to_owned).zip(hours).collect::<Vec<_>>()
    };
    let first = named([Some(10.0), Some(0.0), Some(2.0)]);
    assert_eq!(left(&api.inventory.look()), first);

    // Another model, which is turned round; then one that is damaged: what is there stays.
    let path = dir.path().join("model");
    std::fs::write(&path, model(true)).unwrap();
    api.predictor.look(&api.events, true);
    api.follow_lifetimes();
    let second = named([Some(0.0), Some(10.0), Some(2.0)]);
    assert_eq!(left(&api.inventory.look()), second);
    let mut damaged = model(false);
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    std::fs::write(&path, damaged).unwrap();
    api.predictor.look(&api.events, true);
    api.follow_lifetimes();
    assert_eq!(left(&api.inventory.look()), second);
    assert!(api.look().alarms.iter().any(|alarm| alarm.message.contains("the old one stays")));

    // What the features were is on disk.
    api.inventory.stop();
    let (again, thread) = DurableInventory::open(dir.path(), NILAS, None, None).unwrap();
    assert_eq!(left(&again.look()), named([None, None, Some(2.0)]));
    let vm = again.look().vm("a").unwrap().spec;
    assert_eq!((vm.traits.batch_vms, vm.traits.vm_type.as_deref()), (Some(3), Some("general")));
    std::fs::write(&path, model(false)).unwrap();
    api.predictor.look(&api.events, true);
    let lifetimes = api.predictor.new_lifetimes().flatten().unwrap();
    again.look().set_lifetimes(ballast_runtime::unix_now(), Some(lifetimes));
    assert_eq!(left(&again.look()), first);
    again.stop();
    thread.join().unwrap();
}

#[tokio::test]
async fn a_vm_that_stays_where_it_is_keeps_what_it_was_asked_for_with() {
    let (_dir, api) = api_with(Some(&model(false)), NILAS);
    hosts(&api, 2).await;
    let mut many = json!({"deployment": "d", "vms": [vm("a", "long"), vm("b", "long")]});
    many["vm_type"] = json!("general");
    let host = good(&api, "POST", "/v1/place", &many).await["vms"][0]["host"].clone();
    let mut larger = vm("a", "long");
    (larger["cores"], larger["host"], larger["vm_type"]) = (json!(4), host, json!("general"));
    larger["deployment"] = json!("d");
    let answer = good(&api, "PUT", "/v1/vms/a", &larger).await;
    assert_eq!((&answer["cores"], &answer["batch_vms"]), (&json!(4.0), &json!(2)), "{answer}");
    assert!((9.0..11.0).contains(&hours(&answer, "remaining_s")), "{answer}");
}

#[test]
#[expect(clippy::print_stderr, reason = "it is there to print")]
#[ignore = "prints how long it takes: run it in release, on a quiet machine"]
fn how_long_another_model_and_a_placement_take() {
    use std::sync::Arc;
    use std::time::Instant;

    use ballast_placement::inventory::{HostSpec, NamedHost, NamedVm, PredictLifetimes, VmSpec};
    use ballast_placement::{Inventory, MemoryKb, MilliCores, Resources};

    let size = |cores, gb| Resources::new(MilliCores::from_cores(cores), MemoryKb::from_gb(gb).unwrap());
    let vm = |n: u64| {
        let tenant = Some(if n.is_multiple_of(2) { "short" } else { "long" }.to_owned());
        NamedVm { name: format!("vm-{n}"), spec: VmSpec { tenant, ..VmSpec::new(size(2, 8.0)) } }
    };
    let learnt = |turned| {
        let file = LifetimeFile::decode(&model(turned)).unwrap();
        Arc::new(super::lifetimes::Lifetimes::new(file)) as Arc<dyn PredictLifetimes>
    };
    let now = ballast_runtime::unix_now();

    for lifetimes in [LifetimeRule::None, LifetimeRule::Nilas, LifetimeRule::ExpectedExit] {
        let mut inventory = Inventory::new(Policy { lifetimes, ..Policy::POWER });
        inventory.set_lifetimes(now, Some(learnt(false)));
        let host = |n: u32| {
            let spec = HostSpec::new(format!("c{}", n / 12), size(64, 256.0));
            NamedHost { name: format!("s{n:05}"), spec }
        };
        inventory.set_hosts(now, &(0..5_000).map(host).collect::<Vec<_>>(), &[]).unwrap();
        for n in 0..100_000_u64 {
            let host = format!("s{:05}", n % 5_000);
            let since =
                now.since(ballast_types::Instant::ZERO).saturating_sub(std::time::Duration::from_secs(n));
            inventory.observe(ballast_types::Instant::ZERO + since, &vm(n), &host).unwrap();
        }

        let start = Instant::now();
        inventory.set_lifetimes(now, Some(learnt(true)));
        let swap = start.elapsed();
        let mut took: Vec<_> = (0..2_000_u64)
            .map(|n| {
                let start = Instant::now();
                inventory.catch_up(now);
                inventory.place(now, &[vm(200_000 + n)]).unwrap();
                start.elapsed()
            })
            .collect();
        took.sort_unstable();
        let (median, p99) = (took[1_000], took[1_980]);
        eprintln!("{lifetimes:?}: another model {swap:?}; a placement {median:?}, p99 {p99:?}");
    }
}
