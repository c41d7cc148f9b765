//! The real placement daemon: predictions, models that come, go and are damaged, a clean end.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use ballast_predict::{ModelFile, Reply, Request};
use ballast_testbed::lab::Lab;
use ballast_testbed::lab::caller::Caller;
use ballast_testbed::lab::place::{PlaceLab, model};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

ballast_testbed::wall_time![
    without_a_model_answers_are_careful_and_with_one_they_are_the_models,
    a_model_is_replaced_under_load_without_losing_a_request,
    a_damaged_model_leaves_the_old_one_in_force_and_is_an_alarm,
];

fn vm(subscription: &str) -> Value {
    json!({"vm_id": "vm-1", "subscription": subscription, "cores": 4, "memory_gb": 16})
}

/// A subscription that a model knows, with what the model says of its next VM.
fn known(file: &ModelFile) -> (Value, Reply) {
    let names = (0..10_000).map(|n| format!("sub-{n:05}"));
    let name = names.into_iter().find(|name| file.history.past(name).is_some());
    let question = vm(&name.expect("a subscription"));
    let request: Request = serde_json::from_value(question.clone()).expect("a request");
    (question, file.answer(&request).expect("an answer"))
}

fn without_a_model_answers_are_careful_and_with_one_they_are_the_models() {
    let mut lab = PlaceLab::start("require_model = true\n");
    let (status, answer) = lab.predict(&vm("sub-00001"));
    assert_eq!(status, 200);
    assert_eq!(
        answer,
        json!({"model": "none", "vm_id": "vm-1", "class": "user-facing", "class_confidence": 0.0,
            "class_confident": false, "p95_bucket": 4, "p95_percent": 100, "p95_confidence": 0.0,
            "p95_confident": false})
    );

    assert_eq!(lab.get("/readyz").0, 503);
    let alarms = lab.status().alarms;
    assert!(alarms[0].message.contains("there is no model, every answer is conservative"), "{alarms:?}");
    let (_, metrics) = lab.get("/metrics");

    for line in ["ballast_place_model_loaded 0.0", "ballast_place_answers_without_model_total 1"] {
        assert!(metrics.lines().any(|l| l == line), "{line}\n{metrics}");
    }

    let bytes = model(1);
    lab.put(&bytes);
    lab.wait("the model is taken", |lab| lab.checksum() != "none");
    assert_eq!(lab.get("/readyz").0, 200);
    let (question, expected) = known(&ModelFile::decode(&bytes).unwrap());
    let (_, answer) = lab.predict(&question);
    assert_eq!(answer["model"], lab.checksum());
    assert_eq!(serde_json::from_value::<Reply>(answer).unwrap(), expected);
    let (_, answers) = lab.predict(&json!({"vms": [question.clone(), vm("nobody's"), question]}));
    let answers: Vec<Reply> = serde_json::from_value(answers["vms"].clone()).unwrap();
    assert_eq!((answers.len(), &answers[0], &answers[2]), (3, &expected, &expected));

    // What is wrong is refused by name and place, and answers go on.
    let mut wrong = vm("sub-00001");
    wrong["cores"] = json!(-4);
    let (status, why) = lab.predict(&json!({"vms": [vm("sub-00001"), wrong]}));
    assert_eq!(status, 400);
    assert_eq!(why, json!({"error": "vms[1].cores = -4: 1 to 65536"}));
    let huge = json!({"vms": [], "more": "x".repeat(2 << 20)});

    // Whoever is still sending may see the connection cut before the answer.
    assert!([413, 0].contains(&lab.post("/v1/predict", &huge).0));
    assert_eq!(lab.predict(&vm("sub-00001")).0, 200);

    let text = Lab::ballast(&["status", &lab.url("")]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.starts_with(&format!("place lab: model {}", &lab.checksum()[..12])), "{text}");
    assert!(lab.end().success(), "{}", lab.log());
}

fn a_model_is_replaced_under_load_without_losing_a_request() {
    let models = [model(1), model(2)];
    let mut lab = PlaceLab::start("");
    lab.put(&models[0]);
    lab.wait("the first model", |lab| lab.checksum() != "none");
    let (first, url) = (lab.checksum(), lab.url("/v1/predict"));
    let (stop, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let seen = thread::scope(|scope| {
        let ask = || {
            let (caller, url) = (Caller::new(), url.as_str());
            let mut seen = BTreeMap::<String, u64>::new();
            while !stop.load(Ordering::Relaxed) {
                let (status, text) = caller.post(url, &vm("sub-00001"));
                assert_eq!(status, 200, "every request is answered: {text}");
                let answer: Value = serde_json::from_str(&text).unwrap();
                *seen.entry(answer["model"].as_str().unwrap().into()).or_default() += 1;
                answered.fetch_add(1, Ordering::Relaxed);
            }

            seen
        };

        let askers: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
        let mut before = first.clone();

        for turn in 1..=4 {
            lab.put(&models[turn % 2]);
            if turn % 2 == 0 {
                lab.signal(Signal::SIGHUP);
            }
            lab.wait("the next model", |lab| lab.checksum() != before);
            before = lab.checksum();
            let so_far = answered.load(Ordering::Relaxed);
            lab.wait("answers by it", |_| answered.load(Ordering::Relaxed) > so_far + 20);
        }

        stop.store(true, Ordering::Relaxed);
        let seen = askers.into_iter().flat_map(|asker| asker.join().expect("an asker"));

        seen.fold(BTreeMap::<String, u64>::new(), |mut all, (model, n)| {
            *all.entry(model).or_default() += n;
            all
        })
    });

    assert_eq!(seen.len(), 2, "both models, and nothing else: {seen:?}");
    let status = lab.status();

    // A SIGHUP that comes when the file was taken already has it read again.
    assert!((5..=7).contains(&status.predict.loads), "{}", status.predict.loads);
    assert_eq!(status.predict.requests, seen.values().sum::<u64>());
    assert!(lab.end().success(), "{}", lab.log());
}

fn a_damaged_model_leaves_the_old_one_in_force_and_is_an_alarm() {
    let (good, next) = (model(1), model(2));
    let mut lab = PlaceLab::start("");
    lab.put(&good);
    lab.wait("the model", |lab| lab.checksum() != "none");
    let before = lab.checksum();
    let mut damaged = next.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;

    for (bytes, says) in [
        (&damaged[..], "does not fit"),
        (&next[..next.len() / 2], "truncated"),
        (b"not a model", "not a Ballast model file"),
    ] {
        lab.put(bytes);
        lab.wait("the alarm", |lab| {
            let alarms = lab.status().alarms;
            alarms
                .iter()
                .any(|alarm| alarm.message.contains("the old one stays") && alarm.message.contains(says))
        });

        assert_eq!(lab.checksum(), before);
        assert_eq!(lab.predict(&vm("sub-00001")).1["model"], before);
    }

    fs::remove_file(lab.path("model")).unwrap();
    lab.wait("the alarm", |lab| lab.status().alarms.iter().any(|a| a.message.contains("No such file")));
    assert_eq!(lab.checksum(), before);
    let failed = lab.status().predict.failed_loads;
    assert_eq!(failed, 5, "none at the start, three that were damaged, none at the end");
    let (_, metrics) = lab.get("/metrics");
    let line = format!("ballast_place_model_failed_loads_total {failed}");
    assert!(metrics.lines().any(|l| l == line), "{line}\n{metrics}");
    lab.put(&next);
    lab.wait("the repaired model", |lab| lab.checksum() != before);
    assert!(!lab.status().alarms.iter().any(|alarm| alarm.message.contains("cannot be used")));
    assert!(lab.end().success(), "{}", lab.log());
}
