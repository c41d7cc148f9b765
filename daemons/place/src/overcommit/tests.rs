//! A daemon whose agent is played: what it tells is measured, goes stale, closes the host and opens it.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::thread;

use ballast_placement::Policy;
use ballast_types::VmId;
use ballast_types::wire::OverflowHour;
use serde_json::{Value, json};

use super::*;
use crate::api::Api;
use crate::config::{Estimator, parse_hosts};
use crate::routes::tests::{api_with, call, get};

const CONFIG: OvercommitConfig =
    OvercommitConfig { target_ppm: 10_000, estimator: Estimator::Auto, pools: false };

/// An agent at this socket that answers everything with what stands in `answer`.
fn agent(socket: &Path, answer: Arc<Mutex<String>>) {
    let listener = UnixListener::bind(socket).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).unwrap();
            let body = lock(&answer).clone();
            let length = body.len();
            let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
            // Whoever has read enough hangs up.
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
        }
    });
}

/// A VM of four cores that used half a core of them for most of three days, and all of them for `busy_s` seconds.
fn used(until_unix_s: u64, busy_s: u64) -> VmCpuUse {
    VmCpuUse { cores: 4, until_unix_s, throttled_s: 0, seconds: vec![(500, 250_000), (4000, busy_s)] }
}

fn usage(now_unix_s: u64, vms: &[&str], hours: &[(u64, u32)]) -> Usage {
    let vms = vms.iter().map(|vm| (VmId::new(vm).unwrap(), used(now_unix_s - 60, 100))).collect();
    let now = now_unix_s / 3600 * 3600;
    let hour = |(ago, over_s): &(u64, u32)| {
        let from_unix_s = now - ago * 3600;
        OverflowHour { from_unix_s, measured_s: 3600, over_s: *over_s }
    };
    Usage { now_unix_s, vms, hours: hours.iter().map(hour).collect() }
}

/// One host of eight cores whose VMs may have sixteen, and two VMs of four cores there.
async fn site() -> (tempfile::TempDir, Api, Arc<Overcommit>) {
    let (dir, mut api) = api_with(None, Policy { cpu_target_ppm: Some(10_000), ..Policy::POWER });
    let overcommit = Overcommit::open(CONFIG, dir.path(), DiskFaults::default()).unwrap();
    api.overcommit = Some(Arc::clone(&overcommit));
    let host =
        json!({"chassis": "c1", "cores": 8, "memory_gb": 64, "overcommit": {"cores": 2.0, "memory": 1.0}});
    assert_eq!(call(&api, "PUT", "/v1/hosts/s1", &host).await.0, 204);
    for vm in ["a", "b"] {
        assert_eq!(call(&api, "POST", "/v1/place", &vm_of(vm)).await.0, 200);
    }
    (dir, api, overcommit)
}

fn vm_of(name: &str) -> Value {
    json!({"vm_id": name, "cores": 4, "memory_gb": 4, "subscription": "s"})
}

async fn score(api: &Api) -> Value {
    let (status, scores) = call(api, "POST", "/v1/score", &vm_of("new")).await;
    assert_eq!(status, 200, "{scores}");
    scores
}

async fn is_refused(api: &Api) -> bool {
    let scores = score(api).await;
    assert_eq!(scores["fitting"] == 0, scores["refused"]["cpu-promise"] == 1, "{scores}");
    scores["fitting"] == 0
}

#[tokio::test]
async fn what_the_agent_tells_makes_room_and_what_it_no_longer_tells_takes_it() {
    let (dir, api, overcommit) = site().await;
    assert!(is_refused(&api).await, "nothing was measured");

    let answer = Arc::new(Mutex::new(String::new()));
    let socket = dir.path().join("agent.sock");
    agent(&socket, Arc::clone(&answer));
    let hosts = "[[hosts]]\nname = \"s1\"\nchassis = \"c1\"\ncores = 8\nmemory_gb = 64\n";
    api.agents
        .follow(&parse_hosts(&format!("{hosts}agent = \"unix:{}\"\n", socket.display()), false).unwrap());
    let round = async |text: String| {
        *lock(&answer) = text;
        lock(&overcommit.hosts).values_mut().for_each(|state| state.asked = None);
        overcommit.round(&api.agents, &api.inventory, None).await;
    };
    let text = |usage: &Usage| serde_json::to_string(usage).unwrap();
    let now = clock::unix_ms() / 1000;

    // Both are calm: a newcomer of whom nothing is known comes, with the risk in words and numbers.
    round(text(&usage(now, &["a", "b", "elsewhere"], &[]))).await;
    let scores = score(&api).await;
    let best = &scores["hosts"][0];
    assert!(best["cpu_risk"].as_f64().is_some_and(|risk| risk < 0.01), "{scores}");
    let said = best["verdicts"].as_array().unwrap().iter().find(|it| it["rule"] == "cpu-promise").unwrap();
    let reason = said["reason"].as_str().unwrap();
    assert!(
        reason.contains("more than its 8 cores for 0.0") && reason.contains("0 were not measured"),
        "{reason}"
    );
    let status = get(&api, "/v1/status").await;
    let told = json!({"target": 0.01, "estimator": "convolution", "allowed_risk": 0.01,
        "measured_hosts": 1, "measured_vms": 3, "unmeasured_hosts": 0, "closed_hosts": 0});
    assert_eq!(status["overcommit"], told);
    let (_, placed) = call(&api, "POST", "/v1/place", &vm_of("c")).await;
    assert!(placed["cpu_risk"].as_f64().is_some_and(|risk| risk > 0.0 && risk < 0.01), "{placed}");
    assert_eq!(call(&api, "DELETE", "/v1/vms/c", &json!({})).await.0, 204);

    // Garbage, too much, and silence: what was told holds for a while, and no longer.
    for bad in ["{".to_owned(), "[]".into(), " ".repeat(Usage::BYTES_MAX + 1)] {
        round(bad).await;
        assert!(!is_refused(&api).await);
    }
    lock(&overcommit.hosts).get_mut("s1").unwrap().heard = None;
    round("{".to_owned()).await;
    assert!(is_refused(&api).await);
    assert!(
        overcommit.alarms().iter().any(|it| it.message.contains("does not tell")),
        "{:?}",
        overcommit.alarms()
    );

    // What cannot be, is too old, too little or throttled for too long is not measured.
    let bad: [fn(&mut VmCpuUse, u64); 7] = [
        |vm, now| vm.until_unix_s = now - 3 * 3600,
        |vm, now| vm.until_unix_s = now + 3600,
        |vm, _| vm.seconds = vec![(500, 71_999)],
        |vm, _| vm.seconds.push((1, u64::MAX)),
        |vm, _| vm.throttled_s = u64::MAX,
        |vm, _| vm.cores = 0,
        |vm, _| vm.throttled_s = 86_400,
    ];
    for (n, spoil) in bad.iter().enumerate() {
        let mut usage = usage(now, &["a", "b"], &[]);
        usage.vms.values_mut().for_each(|vm| spoil(vm, now));
        round(text(&usage)).await;
        assert!(is_refused(&api).await, "{n}");
    }
    round(text(&usage(now, &["a", "b"], &[]))).await;
    assert!(!is_refused(&api).await);
}

#[tokio::test]
async fn a_host_that_breaks_the_promise_twice_is_closed_until_it_keeps_it_whoever_is_restarted() {
    let (dir, api, overcommit) = site().await;
    let now = clock::unix_ms() / 1000;
    let take = |overcommit: &Overcommit, hours: &[(u64, u32)]| {
        overcommit.take("s1", Ok(usage(now, &["a", "b"], hours)), &api.inventory, now);
        overcommit.write();
    };
    take(&overcommit, &[(4, 100)]);
    assert!(!is_refused(&api).await, "once is not twice");
    take(&overcommit, &[(4, 100), (3, 360)]);
    assert!(is_refused(&api).await);
    let alarms = overcommit.alarms();
    assert!(
        alarms.iter().any(|it| it.id == AlarmId::HostOverflows && it.message.contains("10.00 %")),
        "{alarms:?}"
    );

    // The agent was started anew, and tells of no hour; then the daemon was, before it has heard anybody.
    take(&overcommit, &[]);
    assert!(is_refused(&api).await);
    overcommit.take("s1", Ok(Usage { now_unix_s: now, ..Usage::default() }), &api.inventory, now);
    drop(overcommit);
    let again = Overcommit::open(CONFIG, dir.path(), DiskFaults::default()).unwrap();
    tell(&api.inventory, "s1", Measured::default());
    for vm in ["a", "b"] {
        assert_eq!(call(&api, "DELETE", &format!("/v1/vms/{vm}"), &json!({})).await.0, 204);
    }
    assert!(!is_refused(&api).await);
    again.tell_closed(&api.inventory);
    assert!(is_refused(&api).await, "even an empty host stays closed");
    assert_eq!(again.status(1).closed_hosts, 1);

    take(&again, &[(3, 360), (2, 36)]);
    assert!(!is_refused(&api).await, "it kept the promise");

    std::fs::write(dir.path().join(FILE), "{\"s1\"").unwrap();
    let why = Overcommit::open(CONFIG, dir.path(), DiskFaults::default()).err().unwrap();
    assert!(format!("{why:#}").contains("overcommit.json: remove it to open every host"), "{why:#}");
}

#[tokio::test]
async fn auto_allows_what_was_measured_to_keep_the_target() {
    let (dir, api, overcommit) = site().await;
    let begin = clock::unix_ms() / 1000 / 86_400 * 86_400;
    // Three VMs of which two are busy at once for 0.4 % of the time, if they are independent. They are not.
    let busy = |now_unix_s, hours: Vec<OverflowHour>| {
        let vms = ["a", "b", "c"].map(|vm| (VmId::new(vm).unwrap(), used(now_unix_s - 60, 10_000)));
        Usage { now_unix_s, vms: vms.into(), hours }
    };
    overcommit.take("s1", Ok(usage(begin, &["a", "b"], &[])), &api.inventory, begin);
    assert_eq!(call(&api, "POST", "/v1/place", &vm_of("c")).await.0, 200);
    let mut hours = vec![];
    let mut at = |minutes: u64| {
        let now = begin + 60 * minutes;
        if minutes.is_multiple_of(60) {
            // Each other hour 4 %: twice the target in the mean, and never two bad ones on end.
            let over_s = if minutes.is_multiple_of(120) { 144 } else { 0 };
            hours.push(OverflowHour { from_unix_s: now - 3600, measured_s: 3600, over_s });
        }
        overcommit.take("s1", Ok(busy(now, hours.clone())), &api.inventory, now);
    };
    (0..99 * 60).step_by(5).for_each(&mut at);
    let allowed = |overcommit: &Overcommit| {
        overcommit.choose(begin + 6 * 86_400);
        overcommit.allowed().unwrap()
    };
    assert_eq!(allowed(&overcommit), 0.01, "99 hours say nothing");
    let fits = async |api: &Api| {
        let small = json!({"vm_id": "new", "cores": 1, "memory_gb": 1});
        call(api, "POST", "/v1/score", &small).await.1["fitting"] == 1
    };
    assert!(fits(&api).await);
    (99 * 60..8 * 1440).step_by(5).for_each(&mut at);
    assert!((allowed(&overcommit) - 0.002).abs() < 1e-12, "{}", allowed(&overcommit));

    assert!(!fits(&api).await, "who is here stays, and nobody comes");
    assert_eq!(overcommit.status(1).closed_hosts, 0);

    // A restart knows it, and the estimator that is taken at its word does not ask.
    overcommit.write();
    let again = Overcommit::open(CONFIG, dir.path(), DiskFaults::default()).unwrap();
    assert_eq!(allowed(&again), allowed(&overcommit));
    let at_its_word = OvercommitConfig { estimator: Estimator::Convolution, ..CONFIG };
    let again = Overcommit::open(at_its_word, dir.path(), DiskFaults::default()).unwrap();
    again.choose(begin);
    assert_eq!(again.allowed(), None);
    std::fs::write(dir.path().join(CALIBRATION), "{}").unwrap();
    let why = Overcommit::open(CONFIG, dir.path(), DiskFaults::default()).err().unwrap();
    assert!(format!("{why:#}").contains("calibration.json: remove it to take"), "{why:#}");
}
