//! Admission in service: the real daemon is asked for deployments, is killed, and reads its priors.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use ballast_runtime::Target;
use ballast_testbed::lab::caller::Caller;
use ballast_testbed::lab::place::PlaceLab;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

ballast_testbed::wall_time![
    killed_among_commits_it_keeps_what_it_has_answered_and_counts_nothing_twice,
    damaged_priors_end_a_start_and_change_nothing_at_a_reload,
];

/// As `ballast fit` and `ballast admit tune` write them.
pub(crate) const PRIORS: &str = "kappa = 0.6992\ndelta = 0.02081\n\
    [mu]\nshape = 0.3138\nrate = 0.1211\n[lambda]\nshape = 1.8415\nrate = 0.5193\n\
    [sigma]\nshape = 0.4220\nrate = 0.5254\n\
    [tuned]\nsla = 1e-4\ncapacity_cores = 100.0\nmarginal = false\nzeroth = 0.5\nfirst_moment = 0.7\n\
    second_moment = 0.2\n";

/// A daemon with priors and so many cores, which refuses.
fn lab(more: &str) -> PlaceLab {
    let mut lab = PlaceLab::start("");
    assert!(lab.end().success(), "{}", lab.log());
    fs::write(lab.path("law.toml"), PRIORS).expect("priors");
    let config = fs::read_to_string(lab.path("place.toml")).expect("a config");
    let admission = format!("[admission]\npriors = {:?}\nshadow = false\n{more}", lab.path("law.toml"));
    fs::write(lab.path("place.toml"), config + &admission).expect("a config");
    lab.restart();
    let host = json!({"chassis": "c", "cores": 4000, "memory_gb": 4000});
    assert_eq!(lab.call("PUT", "/v1/hosts/s1", &host).0, 204);
    lab
}

fn commit(name: &str) -> Value {
    json!({"deployment": name, "cores": 3, "commit": true})
}

/// Commits deployments, and places a VM of each second one, until nobody answers: whether each commit was answered.
fn work(target: &Target, who: &str, answered: &AtomicU64) -> BTreeMap<String, bool> {
    let (caller, mut fates) = (Caller::of(target), BTreeMap::new());
    for n in 0.. {
        let name = format!("{who}-{n}");
        let (status, text) = caller.post(&target.url("/v1/admit"), &commit(&name));
        assert!(status == 0 || text.contains("\"committed\":true"), "{status}: {text}");
        fates.insert(name.clone(), status == 200);
        let vm = json!({"vm_id": name, "deployment": name, "cores": 2, "memory_gb": 1});
        if status == 0 || (n % 2 == 0 && caller.post(&target.url("/v1/place"), &vm).0 == 0) {
            break;
        }
        answered.fetch_add(1, Ordering::Relaxed);
    }
    fates
}

fn killed_among_commits_it_keeps_what_it_has_answered_and_counts_nothing_twice() {
    let mut lab = lab("policy = \"zeroth\"\ncapacity = 1e6\n");
    let mut all = 0;
    for (round, many) in [5, 37, 18].into_iter().enumerate() {
        let fates = lab.kill_among(&format!("r{round}"), many, work);
        lab.restart();

        for (name, answered) in &fates {
            // A deployment that has taken a part of its room is still the same commit.
            let (status, again) = lab.call("POST", "/v1/admit", &commit(name));
            assert_eq!((status, &again["committed"]), (200, &json!(true)), "{name}: {again}");
            assert!(!answered || again["repeated"] == true, "{name} was answered: {again}\n{}", lab.log());
        }
        all += fates.len() as u64;
        let status = lab.status();
        let admission = status.admission.expect("admission");
        assert_eq!(admission.deployments, all);
        assert_eq!(admission.committed_cores + status.inventory.allocated_cores, 3.0 * all as f64);
    }
    let (_, forecast) = lab.call("GET", "/v1/forecast?hours=0", &Value::Null);
    assert_eq!(forecast["ahead"][0]["expected_cores"], 3.0 * all as f64, "{forecast}");
    assert!(lab.end().success(), "{}", lab.log());
}

fn damaged_priors_end_a_start_and_change_nothing_at_a_reload() {
    let mut lab = lab("");
    let month = |lab: &PlaceLab| lab.call("GET", "/v1/forecast?hours=730", &Value::Null).1["ahead"].clone();
    assert_eq!(lab.call("POST", "/v1/admit", &commit("web")).1["committed"], true);
    let expected = |lab: &PlaceLab| month(lab)[0]["expected_cores"].as_f64().expect("a number");
    let before = expected(&lab);

    fs::write(lab.path("law.toml"), PRIORS.replace("[tuned]", "[tune]")).expect("priors");
    lab.signal(Signal::SIGHUP);
    let alarm = |lab: &PlaceLab| {
        let alarms = lab.status().alarms;
        alarms
            .iter()
            .any(|it| it.message.contains("the priors stay as they were") && it.message.contains("tune"))
    };
    lab.wait("the alarm", alarm);
    assert!((expected(&lab) / before - 1.0).abs() < 0.01);
    assert!(lab.end().success(), "{}", lab.log());
    assert_eq!(lab.refused_restart().code(), Some(78), "{}", lab.log());
    assert!(lab.log().contains("admission.priors: ") && lab.log().contains("law.toml: "), "{}", lab.log());

    fs::write(lab.path("law.toml"), PRIORS.replace("kappa = 0.6992", "kappa = 0.9")).expect("priors");
    lab.restart();
    assert!((expected(&lab) / before - 1.0).abs() > 0.1, "the commit is there, and the law is another");
    assert!(lab.end().success(), "{}", lab.log());
}
