use std::fs;
use std::path::Path;

use ballast_placement::admission::{Belief, Order, Priors, PseudoObservations, Tuned};
use ballast_placement::{MemoryKb, MilliCores, Policy, Resources};
use ballast_types::{Instant, SplitMix64};
use serde_json::{Value, json};

use super::book::AdmissionBook;
use super::record::{DeploymentRecord, Newcomer};
use crate::api::Api;
use crate::config::{AdmissionConfig, AdmissionPolicy, PriorsFile};
use crate::inventory::DurableInventory;
use crate::routes::tests::{api_admitting, ask, call, get};

fn priors() -> Priors {
    let mut priors = Priors::new(Belief::SUB_B);
    priors.tuned = Some(Tuned {
        sla: 1e-4,
        capacity_cores: 100.0,
        marginal: false,
        zeroth: 0.5,
        first_moment: 0.8,
        second_moment: 0.2,
    });
    let quiet = PseudoObservations { n: 50.0, lives_h: 5e4, further_cores: 1.0, scale_outs: 1.0 };
    priors.labels.insert("quiet".into(), quiet);
    priors
}

fn config(policy: AdmissionPolicy, file: &Path) -> AdmissionConfig {
    let priors = Some(PriorsFile { path: file.to_owned(), priors: Some(priors()) });
    AdmissionConfig { policy, shadow: false, capacity: Some(100.0), priors }
}

const SECOND: AdmissionPolicy = AdmissionPolicy::Moments(Order::Second);

/// A daemon with two hosts of 50 cores.
async fn daemon(config: &AdmissionConfig) -> (tempfile::TempDir, Api) {
    let (dir, api) = api_admitting(None, Policy::POWER, Some(config));
    for name in ["s1", "s2"] {
        let host = json!({"chassis": "c", "cores": 50, "memory_gb": 400});
        let (status, why) = call(&api, "PUT", &format!("/v1/hosts/{name}"), &host).await;
        assert_eq!(status, 204, "{why}");
    }
    (dir, api)
}

fn vm(name: &str, deployment: &str, cores: u32) -> Value {
    json!({"vm_id": name, "deployment": deployment, "cores": cores, "memory_gb": 1})
}

async fn admit(api: &Api, body: Value) -> Value {
    let (status, answer) = call(api, "POST", "/v1/admit", &body).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

#[tokio::test]
async fn a_deployment_is_asked_for_committed_placed_and_over() {
    let (_dir, api) = daemon(&config(SECOND, Path::new("none"))).await;
    let small = admit(&api, json!({"deployment": "web", "cores": 4})).await;
    assert_eq!((&small["admit"], &small["committed"]), (&json!(true), &json!(false)), "{small}");
    assert_eq!(small["binds"]["capacity"], 100.0);
    let large = admit(&api, json!({"deployment": "web", "cores": 90, "commit": true})).await;
    assert_eq!((&large["admit"], &large["committed"]), (&json!(false), &json!(false)), "{large}");
    assert!(large["risk"].as_f64() > small["risk"].as_f64() && large["risk"].as_f64() > Some(0.2), "{large}");

    // A label whose deployments do not grow makes it narrower; one that nobody knows changes nothing.
    let labelled = |label| json!({"deployment": "web", "cores": 4, "label": label});
    let quiet = admit(&api, labelled("quiet")).await;
    assert!(quiet["risk"].as_f64() < small["risk"].as_f64().map(|risk| 0.5 * risk), "{quiet} {small}");
    assert_eq!(admit(&api, labelled("loud")).await["risk"], small["risk"]);
    let vms = json!([{"cores": 4, "memory_gb": 1, "subscription": "quiet"}]);
    assert_eq!(admit(&api, json!({"deployment": "web", "vms": vms})).await["risk"], quiet["risk"]);

    // Twice is as good as once; a different request is another one.
    let web = json!({"deployment": "web", "cores": 4, "label": "quiet", "commit": true});
    let first = admit(&api, web.clone()).await;
    assert_eq!((&first["committed"], &first["repeated"]), (&json!(true), &json!(false)));
    let again = admit(&api, web.clone()).await;
    assert_eq!((&again["committed"], &again["repeated"]), (&json!(true), &json!(true)));
    for other in
        [json!({"cores": 5}), json!({"memory_gb": 5}), json!({"label": "loud"}), json!({"label": null})]
    {
        let mut body = web.clone();
        body.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        let (status, why) = call(&api, "POST", "/v1/admit", &body).await;
        assert_eq!(status, 409, "{why}");
    }
    let status = api.look().admission.unwrap();
    assert_eq!((status.committed_cores, status.deployments, status.admitted, status.refused), (4.0, 1, 1, 1));

    // Its VMs take the room that is kept for them; what goes beyond it is a scale-out.
    let observed = || {
        let book = api.inventory.admission().unwrap();
        book.deployments.member(f64::MAX, "deployment/web").map(|it| (it.cores, it.observed.scale_outs))
    };
    let vms = json!({"vms": [vm("w1", "web", 1), vm("w2", "web", 2)]});
    assert_eq!(call(&api, "POST", "/v1/place", &vms).await.0, 200);
    assert_eq!(observed(), Some((4.0, 0.0)));
    assert_eq!(call(&api, "POST", "/v1/place", &vm("w3", "web", 3)).await.0, 200);
    assert_eq!(observed(), Some((6.0, 1.0)));
    assert_eq!(api.look().admission.unwrap().committed_cores, 0.0);
    let (status, why) = call(&api, "POST", "/v1/admit", &web).await;
    assert_eq!((status, why.to_string().contains("it is there, with 6 cores")), (409, true), "{why}");
    assert_eq!(admit(&api, json!({"deployment": "web", "cores": 99})).await["admit"], true);
    assert_eq!(call(&api, "DELETE", "/v1/admit/web", &Value::Null).await.0, 404);

    // Another is refused where it is placed, and only counted if it were a scale-out.
    let (status, why) = call(&api, "POST", "/v1/place", &vm("d1", "db", 40)).await;
    assert_eq!(status, 409);
    assert!(why.to_string().contains("deployment db is not admitted: with it 46.0 of 100.0 cores"), "{why}");
    assert_eq!(call(&api, "POST", "/v1/place", &vm("w4", "web", 47)).await.0, 200);
    assert_eq!(call(&api, "POST", "/v1/place", &vm("w5", "web", 48)).await.0, 409);
    let (_, metrics) = ask(&api, "GET", "/metrics", String::new()).await;
    for sample in [
        "admissions_total{outcome=\"refused\"} 2",
        "refusals_total{reason=\"not-admitted\"} 1",
        "scale_outs_total{outcome=\"placed\"} 2",
        "scale_outs_total{outcome=\"failed\"} 1",
        "admission_capacity_cores 100",
    ] {
        assert!(metrics.contains(&format!("ballast_place_{sample}")), "{sample}\n{metrics}");
    }
    for name in ["w1", "w2", "w3", "w4"] {
        assert_eq!(call(&api, "DELETE", &format!("/v1/vms/{name}"), &Value::Null).await.0, 204);
    }
    assert_eq!(observed(), None);
    // One that was committed without a label has that of its VMs.
    admit(&api, json!({"deployment": "batch", "cores": 2, "commit": true})).await;
    let mut batch = vm("b1", "batch", 2);
    batch["subscription"] = json!("quiet");
    assert_eq!(call(&api, "POST", "/v1/place", &batch).await.0, 200);
    let label = || api.inventory.admission()?.deployments.member(f64::MAX, "deployment/batch")?.label;
    assert_eq!(label().as_deref(), Some("quiet"));
    assert_eq!(call(&api, "DELETE", "/v1/vms/b1", &Value::Null).await.0, 204);

    let forecast = get(&api, "/v1/forecast?hours=0,24").await;
    assert_eq!(forecast["ahead"][1], json!({"after_h": 24.0, "expected_cores": 0.0, "sd": 0.0}));
}

#[tokio::test]
async fn several_newcomers_come_beside_each_other_and_no_request_is_admitted_by_halves() {
    let (_dir, api) = daemon(&config(AdmissionPolicy::Moments(Order::Zeroth), Path::new("none"))).await;
    // Each of the three is below 50 cores, all together are not; a VM without a deployment is one of its own.
    let third = json!({"vm_id": "c", "cores": 20, "memory_gb": 1});
    let (status, why) =
        call(&api, "POST", "/v1/place", &json!({"vms": [vm("a", "x", 20), vm("b", "y", 20), third]})).await;
    assert_eq!(status, 409, "{why}");
    assert_eq!(api.look().inventory.vms, 0);
    assert_eq!(api.look().admission.unwrap().deployments, 0);
    let fifty = admit(&api, json!({"deployment": "x", "cores": 50})).await;
    assert_eq!(
        (&fifty["admit"], &fifty["binds"], &fifty["risk"]),
        (&json!(false), &Value::Null, &Value::Null)
    );
    let forecast = get(&api, "/v1/forecast").await;
    assert_eq!((&forecast["cores"], &forecast["ahead"][27]["expected_cores"]), (&json!(0.0), &json!(0.0)));
}

#[tokio::test]
async fn a_threshold_above_the_capacity_admits_no_more_than_there_is() {
    let mut all = config(AdmissionPolicy::Moments(Order::Zeroth), Path::new("none"));
    all.priors.as_mut().unwrap().priors.as_mut().unwrap().tuned.as_mut().unwrap().zeroth = 1.01;
    let (_dir, api) = daemon(&all).await;
    let over = admit(&api, json!({"deployment": "a", "cores": 100.5, "commit": true})).await;
    assert_eq!((&over["admit"], &over["committed"]), (&json!(false), &json!(false)), "{over}");
    assert_eq!(admit(&api, json!({"deployment": "a", "cores": 100})).await["admit"], true);
}

#[tokio::test]
async fn shadow_mode_refuses_nothing_and_says_what_it_would_have() {
    let shadow = AdmissionConfig { shadow: true, ..config(SECOND, Path::new("none")) };
    let (_dir, api) = daemon(&shadow).await;
    let answer = admit(&api, json!({"deployment": "db", "cores": 90})).await;
    assert_eq!((&answer["admit"], &answer["would_refuse"]), (&json!(true), &json!(true)), "{answer}");
    assert_eq!(call(&api, "POST", "/v1/place", &vm("d", "db", 50)).await.0, 200);
    let status = api.look().admission.unwrap();
    assert_eq!((status.would_refuse, status.refused, status.admitted), (1, 0, 0));
}

#[tokio::test]
async fn the_reserve_decides_without_priors_and_counts_what_is_committed() {
    let policy = AdmissionPolicy::Reserve(0.2);
    let (_dir, api) = daemon(&AdmissionConfig { priors: None, ..config(policy, Path::new("none")) }).await;
    let web = admit(&api, json!({"deployment": "web", "cores": 50, "commit": true})).await;
    assert_eq!((&web["committed"], &web["risk"]), (&json!(true), &Value::Null));
    let over = admit(&api, json!({"deployment": "db", "cores": 31})).await;
    assert_eq!(over["admit"], false, "{over}");
    assert_eq!(admit(&api, json!({"deployment": "db", "cores": 30})).await["admit"], true);
    assert_eq!(call(&api, "DELETE", "/v1/admit/web", &Value::Null).await.0, 204);
    assert_eq!(admit(&api, json!({"deployment": "db", "cores": 31})).await["admit"], true);

    // Of 800 GB 160 are kept, and a commitment has its memory, too.
    let much = |name: &str, gb: u32| {
        let vms = json!([{"cores": 1, "memory_gb": gb}]);
        json!({"deployment": name, "vms": vms, "commit": true})
    };
    assert_eq!(admit(&api, much("a", 400)).await["committed"], true);
    assert_eq!(admit(&api, much("b", 400)).await["committed"], false);
    assert_eq!(admit(&api, much("b", 240)).await["committed"], true);
    let over = admit(&api, json!({"deployment": "c", "cores": 1, "memory_gb": 1})).await;
    let why = "reserve: 1 GB requested, 800 free, of which 160 are kept and 640 promised";
    assert_eq!((&over["admit"], &over["why"]), (&json!(false), &json!(why)));

    // The VM that is there has taken its own memory, and no more.
    assert_eq!(call(&api, "DELETE", "/v1/admit/a", &Value::Null).await.0, 204);
    let uneven = json!([{"cores": 1, "memory_gb": 300}, {"cores": 20, "memory_gb": 10}]);
    let uneven = json!({"deployment": "a", "vms": uneven, "commit": true});
    assert_eq!(admit(&api, uneven).await["committed"], true);
    let mut large = vm("a-2", "a", 20);
    large["memory_gb"] = json!(10);
    assert_eq!(call(&api, "POST", "/v1/place", &large).await.0, 200);
    assert_eq!(admit(&api, much("c", 91)).await["committed"], false);
    assert_eq!(admit(&api, much("c", 90)).await["committed"], true);
    let (status, why) = call(&api, "GET", "/v1/forecast", &Value::Null).await;
    assert_eq!((status, why.to_string().contains("there are no priors")), (409, true));
}

#[tokio::test]
async fn wrong_requests_are_refused_by_their_field_and_without_the_section_nothing_is_asked() {
    let (_dir, api) = daemon(&config(SECOND, Path::new("none"))).await;
    for (body, says) in [
        (json!({"cores": 1}), "missing field `deployment`"),
        (json!({"deployment": "", "cores": 1}), "deployment: \\\"\\\": a text of 1 to 256 bytes"),
        (json!({"deployment": "a\nb", "cores": 1}), "without control characters"),
        (json!({"deployment": "a"}), "vms or cores is missing"),
        (json!({"deployment": "a", "cores": 0}), "cores = 0: 0.001 to 65536"),
        (json!({"deployment": "a", "cores": -4}), "cores = -4"),
        (json!({"deployment": "a", "cores": 1, "vms": [{}]}), "one of them, not both"),
        (json!({"deployment": "a", "vms": []}), "vms: none: 1 to 1000"),
        (json!({"deployment": "a", "vms": [{"cores": 1}]}), "vms[0].memory_gb is missing"),
        (
            json!({"deployment": "a", "cores": 1, "commit": "yes"}),
            "commit: invalid type: string \\\"yes\\\", expected a boolean",
        ),
        (json!([1]), "body: an object"),
    ] {
        let (status, why) = call(&api, "POST", "/v1/admit", &body).await;
        assert!(status == 400 && why.to_string().contains(says), "{body}: {status} {why}");
    }
    for hours in ["", "x", "-1", "nan", "1,,2", "1e9", &["1"; 101].join(",")] {
        let (status, why) = call(&api, "GET", &format!("/v1/forecast?hours={hours}"), &Value::Null).await;
        assert_eq!(status, 400, "{hours}: {why}");
    }

    let (_dir, off) = api_admitting(None, Policy::POWER, None);
    assert_eq!(call(&off, "POST", "/v1/admit", &json!({"deployment": "a", "cores": 1})).await.0, 404);
    assert_eq!(call(&off, "GET", "/v1/forecast", &Value::Null).await.0, 404);
    assert_eq!(off.look().admission, None);
}

#[tokio::test]
async fn damaged_priors_are_refused_and_the_old_ones_stay() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("law.toml");
    let whole = toml::to_string(&priors()).unwrap();
    let load = |text: &str| {
        fs::write(&file, text).unwrap();
        PriorsFile { path: file.clone(), priors: None }.load()
    };
    assert_eq!(load(&whole), Ok(()));
    for (from, to, says) in [
        ("kappa", "kapa", "unknown field `kapa`"),
        ("delta = 0.02081", "delta = nan", "delta = NaN: 0 to 10"),
        ("second_moment = 0.2", "second_moment = 0", "tuned.second_moment = 0: 1e-9 to 1.0"),
        ("scale_outs = 1.0", "scale_outs = -1.0", "labels.\"quiet\".scale_outs = -1: 0.0 to"),
        (
            "lives_h = 50000.0",
            "lives_h = 1e12",
            "labels.\"quiet\": mu.rate = 1000000000000.1211: 1e-6 to 1e12",
        ),
        ("[tuned]", "[tune]", "unknown field `tune`"),
    ] {
        assert!(whole.contains(from), "{whole}");
        let why = load(&whole.replace(from, to)).unwrap_err();
        assert!(why.contains("law.toml: ") && why.contains(says), "{says}: {why}");
    }
    let untuned = &whole[..whole.find("[tuned]").unwrap()];
    assert!(load(untuned).unwrap_err().contains("[tuned] is missing"));
    for cut in (0..whole.len()).step_by(7) {
        let why = load(&whole[..cut]);
        assert!(why.is_err() || whole[cut..].starts_with("[labels"), "{cut}");
    }

    // In service: what was seen of deployments outlives a new file, and a bad file changes nothing.
    fs::write(&file, &whole).unwrap();
    let (_dir, api) = daemon(&config(SECOND, &file)).await;
    assert_eq!(call(&api, "POST", "/v1/place", &vm("a", "web", 4)).await.0, 200);
    let month = || async {
        get(&api, "/v1/forecast?hours=730").await["ahead"][0]["expected_cores"].as_f64().unwrap()
    };
    let before = month().await;
    fs::write(&file, "kappa = ").unwrap();
    api.reload_priors();
    let alarms = api.look().alarms;
    assert!(alarms.iter().any(|it| it.message.contains("the priors stay as they were: ")), "{alarms:?}");
    assert!((month().await / before - 1.0).abs() < 1e-3);
    fs::write(&file, whole.replace("kappa = 0.6992", "kappa = 0.9")).unwrap();
    api.reload_priors();
    assert!(!api.look().alarms.iter().any(|it| it.message.contains("priors")));
    assert!((month().await / before - 1.0).abs() > 0.1);
    assert_eq!(get(&api, "/v1/forecast?hours=0").await["ahead"][0]["expected_cores"], 4.0);
}

/// Records but for the time, which goes on.
fn apart_from_time(book: &AdmissionBook) -> Vec<DeploymentRecord> {
    let still = |mut it: DeploymentRecord| {
        (it.until_h, it.observed.core_hours, it.observed.age_h) = (0.0, 0.0, 0.0);
        it
    };
    book.records().into_iter().map(still).collect()
}

#[tokio::test]
async fn after_any_changes_a_restart_finds_what_was_seen() {
    let config = config(AdmissionPolicy::Reserve(0.0), Path::new("none"));
    for seed in 0..6 {
        let (dir, api) = daemon(&config).await;
        let mut random = SplitMix64::new(seed);
        for _ in 0..120 {
            let mut below = |n: u64| random.draw() % n;
            let (name, deployment) = (format!("v{}", below(12)), format!("d{}", below(4)));
            let mut body = vm(&name, &deployment, 1 + below(3) as u32);
            match below(6) {
                0 => drop(call(&api, "DELETE", &format!("/v1/vms/{name}"), &Value::Null).await),
                1 => {
                    // Resized, moved, or of another deployment from now on.
                    body["host"] = json!(format!("s{}", 1 + below(2)));
                    drop(call(&api, "PUT", &format!("/v1/vms/{name}"), &body).await);
                }
                2 => {
                    let commit = json!({"deployment": deployment, "cores": 1 + below(9), "commit": true});
                    drop(call(&api, "POST", "/v1/admit", &commit).await);
                }
                3 => drop(call(&api, "DELETE", &format!("/v1/admit/{deployment}"), &Value::Null).await),
                _ => drop(call(&api, "POST", "/v1/place", &body).await),
            }
        }

        // What it counts are the cores of the VMs, and what is committed.
        let book = api.inventory.admission().unwrap();
        let placed = api.inventory.look().cluster().allocated().milli_cores as f64 / 1e3;
        let counted: f64 = book.records().iter().map(|it| it.cores).sum();
        assert!((counted - placed - book.committed_cores()).abs() < 1e-6, "{seed}: {counted} {placed}");

        let copy = tempfile::tempdir().unwrap();
        fs::copy(dir.path().join("inventory.redb"), copy.path().join("inventory.redb")).unwrap();
        let open = |admission| DurableInventory::open(copy.path(), Policy::POWER, None, admission).unwrap();
        let (again, thread) = open(Some(&config));
        assert_eq!(apart_from_time(&again.admission().unwrap()), apart_from_time(&book), "{seed}");
        again.stop();
        thread.join().unwrap();

        // Without the section all is forgotten but the VMs; with it again they are deployments, and commitments are not.
        let (off, thread) = open(None);
        off.stop();
        thread.join().unwrap();
        let (anew, _) = open(Some(&config));
        let anew = anew.admission().unwrap();
        assert!((anew.deployments.cores() - placed).abs() < 1e-6, "{seed}");
        assert_eq!(anew.committed_cores(), 0.0);
    }
}

#[test]
fn time_that_goes_back_stands_still_and_commitments_end() {
    let hour = |h: u64| Instant::from_millis(3_600_000 * h);
    let mut book =
        AdmissionBook::new(&config(SECOND, Path::new("none")), hour(500_000), vec![], std::iter::empty());
    book.tick(hour(500_010));
    let four = Resources::new(MilliCores::from_milli(4_000).unwrap(), MemoryKb::ZERO);
    let web = Newcomer { key: "deployment/web".into(), label: None, vms: vec![four] };
    book.commit(&web).ok().unwrap();
    assert!(book.note(hour(499_000), None).is_some(), "it is written down");
    assert_eq!(book.committed("deployment/web").unwrap().0.until_h, 500_034.0);

    // Written down, and read by a start whose clock is behind: time stands still, and once the clock has caught up as much
    // of it has passed as of the commitment's.
    let again =
        |at| AdmissionBook::new(&config(SECOND, Path::new("none")), at, book.records(), std::iter::empty());
    let mut early = again(hour(499_000));
    assert_eq!([hour(499_000), hour(500_009)].map(|it| early.behind_h(it)), [Some(1_010.0), None]);
    early.tick(hour(500_010));
    let member = early.deployments.member(500_010.0, "deployment/web").unwrap();
    assert_eq!((member.cores, member.observed.age_h, member.observed.core_hours), (4.0, 0.0, 0.0));
    assert_eq!(again(hour(500_034)).records(), [], "its time is over");

    assert!(book.note(hour(500_033), None).is_none());
    assert!(book.note(hour(500_034), None).is_some());
    assert_eq!((book.committed_cores(), book.deployments.len()), (0.0, 0));
}
