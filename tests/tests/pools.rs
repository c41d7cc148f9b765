//! A host that promises more CPUs than it has, with real daemons: VMs share two pools by class, batch alone is slowed.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ballast_sim::demo::overcommitted;
use ballast_sim::plant::ByCause;
use ballast_testbed::lab::Lab;
use ballast_testbed::rig::truth_file;
use ballast_types::KiloHertz;
use ballast_types::wire::AgentStatus;
use serde_json::Value;

use crate::floating::cap;

ballast_testbed::wall_time![
    twice_the_cpus_batch_sheds_and_user_facing_vms_feel_nothing,
    four_times_the_cpus_batch_sheds_and_user_facing_vms_feel_nothing,
    pools_follow_their_vms_and_an_end_puts_everything_back,
];

const POOLS: &str = "[pools]\nenabled = true\nstep_s = 1\n[server_limit]\nenabled = false\n";

/// How long a server is watched, in the plant's time.
const WATCHED: Duration = Duration::from_secs(20);

fn twice_the_cpus_batch_sheds_and_user_facing_vms_feel_nothing() {
    sheds_and_spares(2);
}

fn four_times_the_cpus_batch_sheds_and_user_facing_vms_feel_nothing() {
    sheds_and_spares(4);
}

struct Watched {
    batch_w: f64,
    user_facing_p95_ms: f64,
    user_facing_throttled: ByCause,
}

/// A server whose agent has a cap that only the floor comes near, or none at all.
fn watched(ratio: u16, cap_w: Option<u64>) -> Watched {
    let mut lab = Lab::with(overcommitted(1, ratio), "", POOLS);
    let model = lab.spec().servers[0].model;
    lab.start("s01");
    lab.wait("its VMs are in pools", |lab| {
        let vms = lab.agent("s01").map(|status| status.vms).unwrap_or_default();
        vms.len() == usize::from(ratio) * 10 && vms.iter().all(|vm| vm.shares_cores == Some(20))
    });
    if let Some(watts) = cap_w {
        cap(&lab, watts);
        lab.wait("batch is at its floor", |lab| {
            let at_floor = |status: AgentStatus| status.report.min_khz == Some(KiloHertz::from_mhz(1200));
            lab.agent("s01").is_some_and(at_floor)
        });
    }

    let truth = |lab: &Lab| -> Value {
        let text = fs::read_to_string(truth_file(&lab.tree())).expect("truth.json");
        serde_json::from_str(&text).expect("JSON")
    };
    let (from, began) = (truth(&lab), Instant::now());
    lab.wait("it was watched", |_| began.elapsed() >= WATCHED);
    let to = truth(&lab);
    lab.end("s01");

    // What batch draws beyond idle: all that the server does, less user-facing work at the highest frequency.
    let passed = |of: &dyn Fn(&Value) -> f64| of(&to) - of(&from);
    let seconds = passed(&|truth| truth["elapsed_s"].as_f64().unwrap());
    let web_s = passed(&|truth| {
        let web = truth["vms"].as_array().unwrap().iter().filter(|vm| vm["class"] == "user-facing");
        web.map(|vm| vm["cpu_s"].as_f64().unwrap()).sum()
    });
    let server_w = passed(&|truth| truth["servers"][0]["energy_j"].as_f64().unwrap()) / seconds;
    let web_w = web_s / seconds * model.dynamic_w() / 40.0;
    Watched {
        batch_w: server_w - model.idle_w - web_w,
        user_facing_p95_ms: to["user_facing_p95_ms"].as_f64().unwrap(),
        user_facing_throttled: lab.end_rig().plant().truth().user_facing_throttled_core_s,
    }
}

#[expect(clippy::print_stderr, reason = "what was measured is for the book")]
fn sheds_and_spares(ratio: u16) {
    let [free, capped] = [None, Some(150)].map(|cap| watched(ratio, cap));
    let shed = 1.0 - capped.batch_w / free.batch_w;
    let slower = capped.user_facing_p95_ms / free.user_facing_p95_ms - 1.0;
    let said = format!(
        "{ratio}:1, batch {:.1} W and {:.1} W ({:.1} % shed), user-facing P95 {:.2} ms and {:.2} ms",
        free.batch_w,
        capped.batch_w,
        shed * 100.0,
        free.user_facing_p95_ms,
        capped.user_facing_p95_ms
    );
    eprintln!("{said}");
    assert!(shed >= 0.65 && slower <= 0.03, "{said}");
    assert_eq!(capped.user_facing_throttled, ByCause::default(), "{said}");
}

fn pools_follow_their_vms_and_an_end_puts_everything_back() {
    let mut lab = Lab::with(overcommitted(1, 2), "", POOLS);
    let before = lab.limits();
    lab.start("s01");
    let cpus = |lab: &Lab| -> BTreeMap<PathBuf, String> {
        lab.limits().into_iter().filter(|(path, _)| path.ends_with("cpuset.cpus")).collect()
    };
    let has = |lab: &Lab, vm: &str, list: &str| {
        let is = |(path, text): (&PathBuf, &String)| {
            path.to_string_lossy().contains(&format!("/{vm}.scope/")) && text == list
        };
        cpus(lab).iter().any(is)
    };
    lab.wait("half of the cores each", |lab| has(lab, "web0", "0-19") && has(lab, "batch9", "20-39"));

    // Half of the user-facing VMs go: by and by batch has two thirds. One that is pinned has cores of its own.
    for n in 5..10 {
        let (status, text) = lab.order("DELETE", "s01", &format!("/v1/vms/web{n}"), "");
        assert_eq!(status, 204, "{text}");
    }
    lab.wait("a move by one core", |lab| has(lab, "web0", "0-18"));
    lab.wait("a third of the cores", |lab| has(lab, "web0", "0-13") && has(lab, "batch0", "14-39"));
    let pinned = "{\"cores\": 4, \"class\": \"non-user-facing\", \"pinned\": true, \
                  \"cgroup\": \"machine.slice/batch3.scope\"}";
    let (status, text) = lab.order("PUT", "s01", "/v1/vms/batch3", pinned);
    assert_eq!(status, 204, "{text}");
    lab.wait("cores of its own", |lab| has(lab, "batch3", "36-39") && !has(lab, "batch0", "14-39"));

    let status = lab.agent("s01").unwrap();
    let of = |name: &str| status.vms.iter().find(|vm| vm.vm.as_str() == name).unwrap();
    assert_eq!((of("web0").cores, of("web0").shares_cores.is_some()), (4, true));
    assert_eq!((of("batch3").cores, of("batch3").shares_cores), (4, None));

    // An agent that is killed leaves the pools; the next one goes on, and its end puts everything back.
    lab.kill("s01");
    assert!(has(&lab, "batch3", "36-39"));
    lab.start("s01");
    lab.wait("its VMs", |lab| lab.agent("s01").is_some_and(|status| status.vms.len() == 15));
    lab.end("s01");
    lab.wait_restored(&before, "");
}
