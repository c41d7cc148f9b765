//! The real placement daemon as a scheduler's extender, before an API server that plays recorded streams.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use ballast_testbed::lab::Lab;
use ballast_testbed::lab::kubernetes::{ApiServer, recorded};
use ballast_testbed::lab::place::PlaceLab;
use ballast_testbed::processes::Usage;
use ballast_types::wire::KubernetesStatus;
use serde_json::{Value, json};

ballast_testbed::wall_time![
    a_scheduler_is_answered_by_a_cluster_that_is_followed,
    watches_that_break_go_on_and_versions_that_are_gone_are_listed_anew,
    what_is_stale_has_no_opinion,
    labels_are_written_where_that_is_configured_and_whoever_owns_one_wins,
    in_shadow_nothing_is_decided_and_all_is_recorded,
    without_an_api_server_it_is_not_ready_and_has_no_opinion,
    a_question_of_16_mib_takes_50_ms_of_the_loop_and_64_mib_at_most,
];

/// Nothing turns stale in these tests, however slow the machine.
const PATIENT: &str = "stale_after_s = 3600\n";

fn extender(api: &ApiServer, more: &str) -> PlaceLab {
    let lab = PlaceLab::start(&format!("[kubernetes]\napi = {:?}\n{more}", api.url));
    lab.wait("both are watched", |_| api.watching("nodes") == 1 && api.watching("pods") == 1);
    lab
}

fn status(lab: &PlaceLab) -> KubernetesStatus {
    lab.status().kubernetes.expect("an extender")
}

fn question() -> Value {
    serde_json::from_str(&recorded("question.names.json")).expect("a question")
}

fn ask(lab: &PlaceLab, path: &str, question: &Value) -> Value {
    let (code, text) = lab.post(path, question);
    assert_eq!(code, 200, "{text}");
    serde_json::from_str(&text).expect("JSON")
}

fn scores(answer: &Value) -> BTreeMap<String, i64> {
    let one = |it: &Value| Some((it["Host"].as_str()?.to_owned(), it["Score"].as_i64()?));
    answer.as_array().expect("a list").iter().map(|it| one(it).expect("Host and Score")).collect()
}

fn line(events: &str, n: usize) -> String {
    format!("{}\n", events.lines().nth(n).expect("a line"))
}

fn a_scheduler_is_answered_by_a_cluster_that_is_followed() {
    let api = ApiServer::start();
    let mut lab = extender(&api, PATIENT);
    lab.wait("it is ready", |lab| lab.get("/readyz").0 == 200);
    let first = status(&lab);
    assert_eq!((first.stale, first.total_nodes, first.cordoned_nodes), (false, 4, 1));
    assert_eq!((first.bound_pods, first.lost_pods), (8, 0));

    // node-e comes by the watch: it is not known yet, and node-x never is.
    let answer = ask(&lab, "/filter", &question());
    let all = json!(["node-a", "node-b", "node-e", "node-x"]);
    assert_eq!(
        answer,
        json!({"Nodes": null, "NodeNames": all, "FailedNodes": {},
        "FailedAndUnresolvableNodes": {}, "Error": ""})
    );

    let scored = scores(&ask(&lab, "/prioritize", &question()));
    assert_eq!((scored["node-e"], scored["node-x"]), (5, 5), "of what is not known nothing is said");

    let known = [scored["node-a"], scored["node-b"]];
    assert!(known.contains(&10), "{scored:?}");

    let (pods, nodes) = (recorded("pods.watch.jsonl"), recorded("nodes.watch.jsonl"));
    api.send("nodes", &nodes);
    api.send("pods", &pods);

    // Two lines of each are bookmarks.
    let told = [&pods, &nodes].map(|events| (events.lines().count() - 2) as u64);
    lab.wait("all is told", |lab| {
        let now = status(lab);
        [now.pods.received, now.nodes.received] == told
    });

    let now = status(&lab);
    assert_eq!((now.total_nodes, now.bound_pods, now.lost_pods), (4, 9, 2));
    assert_eq!((now.pods.late, now.pods.refused, now.pods.lists, now.pods.watches), (0, 0, 1, 1));
    let answer = ask(&lab, "/filter", &question());
    assert_eq!(answer["FailedAndUnresolvableNodes"], json!({"node-b": "cordoned"}));
    assert_eq!(answer["NodeNames"], json!(["node-a", "node-e", "node-x"]));
    let scored = scores(&ask(&lab, "/prioritize", &question()));
    assert_eq!((scored["node-b"], scored["node-x"]), (0, 5));
    let mut known = [scored["node-a"], scored["node-e"]];
    known.sort_unstable();
    assert!(known == [0, 10] || known == [10, 10], "{scored:?}");
    let mut large = question();
    large["Pod"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("5");
    large["Pod"]["spec"]["containers"][1]["resources"]["requests"]["memory"] = json!("20Gi");
    let answer = ask(&lab, "/filter", &large);
    let never = answer["FailedAndUnresolvableNodes"]["node-a"].as_str().expect("a reason");
    assert!(never.contains("bytes of memory asked"), "{never}");
    large["Pod"]["spec"]["containers"][1]["resources"]["requests"]["memory"] = json!("1Gi");
    let answer = ask(&lab, "/filter", &large);
    assert_eq!(answer["FailedNodes"], json!({"node-a": "5250m CPU asked, 4800m free"}));

    // Whole nodes, and keys as they were before Kubernetes 1.17: an unknown node is judged by its own object.
    let mut whole: Value = serde_json::from_str(&recorded("question.nodes.json")).expect("JSON");
    let mut small = whole["nodes"]["items"][0].clone();
    small["metadata"]["name"] = json!("node-small");
    small["status"]["allocatable"]["cpu"] = json!("500m");
    whole["nodes"]["items"].as_array_mut().expect("items").push(small);
    let answer = ask(&lab, "/filter", &whole);
    assert_eq!(answer["Nodes"]["items"], json!([whole["nodes"]["items"][0]]), "as it was sent");
    let never = &answer["FailedAndUnresolvableNodes"];
    assert_eq!(never, &json!({"node-b": "cordoned", "node-small": "750m CPU asked, 500m allocatable"}));

    assert_eq!(ask(&lab, "/prioritize", &whole)[2], json!({"Host": "node-small", "Score": 5}));

    // A wrong hint is told once; the job's pod had one as well.
    let mut wrong = question();
    wrong["Pod"]["metadata"]["labels"]["ballast.dev/class"] = json!("batch");

    for _ in 0..3 {
        ask(&lab, "/prioritize", &wrong);
    }

    // A thread of its own writes the log.
    lab.wait("the wrong hint is told", |lab| lab.log().contains("label ballast.dev/class"));
    assert_eq!(lab.log().matches("label ballast.dev/class").count(), 1, "{}", lab.log());
    assert_eq!(lab.log().matches("pods of shop/report: label ballast.dev/p95").count(), 1);
    assert!(status(&lab).refused_hints > 3);

    assert_eq!(lab.post("/filter", &json!({"Pod": {}})).0, 400);
    let (_, metrics) = lab.get("/metrics");
    for line in [
        "ballast_place_kubernetes_stale 0.0",
        "ballast_place_kubernetes_nodes 4.0",
        "ballast_place_kubernetes_lost_pods 2.0",
        "ballast_place_kubernetes_refused_requests_total 1",
        "ballast_place_kubernetes_lists_total{kind=\"pods\"} 1",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line}\n{metrics}");
    }

    let text = Lab::ballast(&["status", &lab.url("")]);
    let text = String::from_utf8(text.stdout).expect("text");
    assert!(text.contains("Kubernetes followed: 4 nodes (1 cordoned), 9 pods"), "{text}");
    assert!(lab.end().success(), "{}", lab.log());

    // As kube-scheduler's own informers ask.
    let model = api.model();
    let [list, page, watch] = &model.kinds["pods"].requests[..] else { panic!("three requests") };
    let selector = "status.phase!=Succeeded,status.phase!=Failed";
    assert!([list, page, watch].iter().all(|query| query["fieldSelector"] == selector));
    assert_eq!((&*list["limit"], list.get("resourceVersion")), ("500", None));
    assert!(page["continue"].starts_with("eyJ2"));
    assert_eq!((&*watch["resourceVersion"], &*watch["allowWatchBookmarks"]), ("10100", "true"));
}

fn watches_that_break_go_on_and_versions_that_are_gone_are_listed_anew() {
    let api = ApiServer::start();
    let mut lab = extender(&api, PATIENT);
    let pods = recorded("pods.watch.jsonl");
    let told = |lab: &PlaceLab, n| lab.wait("so many are told", |lab| status(lab).pods.received == n);
    let again = |lab: &PlaceLab, n| {
        lab.wait("it watches again", |lab| api.watching("pods") == 1 && status(lab).pods.watches == n);
        api.model().kinds["pods"].requests.last().expect("a request")["resourceVersion"].clone()
    };

    // Whole lines, half a one, and the connection is lost: the half counts for nothing.
    let half = line(&pods, 2);
    api.send("pods", &(line(&pods, 0) + &line(&pods, 1) + &half[..half.len() / 2]));
    told(&lab, 2);
    api.end("pods", true);
    assert_eq!(again(&lab, 2), "10107");

    // The server begins too early, and ends in order: what is known already is not told twice.
    api.send("pods", &(line(&pods, 1) + &half + &line(&pods, 3) + &line(&pods, 5)));
    told(&lab, 5);
    assert_eq!(status(&lab).pods.repeated, 1);
    lab.wait("the bookmark is taken", |_| {
        api.end("pods", false);
        let model = api.model();
        model.kinds["pods"].requests.last().is_some_and(|query| query["resourceVersion"] == "10131")
    });

    assert_eq!(api.lists("pods"), 1);
    lab.wait("it watches again", |_| api.watching("pods") == 1);

    // Too old, said in the stream; then by the answer itself, and the server is ill for a while.
    api.send("pods", &recorded("gone.watch.jsonl"));
    lab.wait("it lists anew", |lab| status(lab).pods.lists == 2 && api.watching("pods") == 1);
    assert_eq!(status(&lab).bound_pods, 8, "as the list has it");
    api.model().kinds.get_mut("pods").expect("pods").refusals = vec![410, 500, 503, 429];
    api.end("pods", false);
    lab.wait("it lists once more", |lab| status(lab).pods.lists == 3 && api.watching("pods") == 1);

    // A line that is none: only a list helps.
    api.send("pods", "{\"type\":\"ADDED\"}\n");
    lab.wait("and again", |lab| status(lab).pods.lists == 4 && api.watching("pods") == 1);
    assert_eq!((status(&lab).nodes.lists, status(&lab).nodes.watches), (1, 1), "nodes are left alone");

    assert!(!status(&lab).stale && lab.log().contains("too old resource version"), "{}", lab.log());
    assert!(lab.end().success());
}

fn what_is_stale_has_no_opinion() {
    let api = ApiServer::start();
    let mut lab = extender(&api, "stale_after_s = 2\n");
    let mut full = question();
    full["Pod"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("7500m");

    // Nobody says anything: both watches are silent for two seconds, and what is known counts for nothing.
    lab.wait("it is stale", |lab| status(lab).stale);
    let scored = scores(&ask(&lab, "/prioritize", &full));
    assert_eq!(scored.values().collect::<Vec<_>>(), [&5; 4]);
    assert_eq!(ask(&lab, "/filter", &full)["NodeNames"].as_array().map(Vec::len), Some(4));
    lab.wait("both are alarms", |lab| {
        let alarms = lab.status().alarms;
        let told = |what: &str| alarms.iter().any(|alarm| alarm.message.contains(what));
        told("nothing was heard of pods for") && told("nothing was heard of nodes for")
    });

    assert!(lab.get("/metrics").1.contains("ballast_place_kubernetes_stale 1.0"));

    // A bookmark for each: good again. They come as long as the test asks, which may be slow.
    let (pods, nodes) = (recorded("pods.watch.jsonl"), recorded("nodes.watch.jsonl"));
    let speak = || {
        api.send("pods", &line(&pods, 5));
        api.send("nodes", &line(&nodes, 2));
    };

    lab.wait("it is fresh, and says so", |lab| {
        speak();
        let scored = scores(&ask(lab, "/prioritize", &full));
        scored["node-a"] == 0 && scored["node-x"] == 5
    });

    lab.wait("the filter works again", |lab| {
        speak();
        ask(lab, "/filter", &full)["FailedNodes"].get("node-a").is_some()
    });

    assert!(lab.end().success(), "{}", lab.log());
}

fn in_shadow_nothing_is_decided_and_all_is_recorded() {
    let api = ApiServer::start();
    let mut lab = extender(&api, &format!("shadow = true\n{PATIENT}"));
    let pods = recorded("pods.watch.jsonl");

    // Pods that are bound to their nodes below.
    let asked = |n: usize| -> Value {
        let event: Value = serde_json::from_str(&line(&pods, n)).expect("an event");
        let mut pod = event["object"].clone();
        pod["spec"].as_object_mut().expect("a spec").remove("nodeName");

        json!({"Pod": pod, "NodeNames": ["node-a", "node-b", "node-c", "node-d"]})
    };

    lab.wait("it is fresh", |lab| !status(lab).stale);

    for n in [0, 3] {
        assert_eq!(scores(&ask(&lab, "/prioritize", &asked(n))).into_values().collect::<Vec<_>>(), [5; 4]);

        assert_eq!(ask(&lab, "/filter", &asked(n))["NodeNames"].as_array().map(Vec::len), Some(4));
    }

    assert_eq!(status(&lab).shadow.expect("a shadow").waiting, 2);
    api.send("pods", &(line(&pods, 0) + &line(&pods, 1) + &line(&pods, 3)));
    lab.wait("both are compared", |lab| {
        let shadow = status(lab).shadow.expect("a shadow");
        shadow.agreed + shadow.differed == 2 && shadow.waiting == 0
    });

    let log = lab.log();
    let placements: Vec<_> = log.lines().filter(|line| line.contains("shadow_placement")).collect();
    assert!(placements.len() == 2 && placements[0].contains("web-6d4cf56db6-zz9pl"), "{log}");
    let (_, metrics) = lab.get("/metrics");
    assert!(metrics.contains("ballast_place_kubernetes_shadow_standing_count 2"), "{metrics}");
    assert!(lab.end().success(), "{}", lab.log());
}

fn without_an_api_server_it_is_not_ready_and_has_no_opinion() {
    let mut lab = PlaceLab::start("[kubernetes]\napi = \"http://127.0.0.1:9\"\n");
    lab.wait("it has tried", |lab| status(lab).pods.problem.is_some());
    let (code, why) = lab.get("/readyz");
    assert!(code == 503 && why.contains("kubernetes: nodes are not known yet"), "{why}");
    let scored = scores(&ask(&lab, "/prioritize", &question()));
    assert_eq!(scored.values().collect::<Vec<_>>(), [&5; 4]);
    assert!(lab.end().success(), "{}", lab.log());
}

/// Processor time of the thread that answers everybody.
fn of_loop(lab: &PlaceLab) -> Duration {
    let process = lab.process();
    let told = fs::read_to_string(format!("/proc/{process}/task/{process}/schedstat")).expect("a thread");
    let nanoseconds = told.split(' ').next().and_then(|it| it.parse().ok());
    Duration::from_nanos(nanoseconds.expect("nanoseconds"))
}

#[expect(clippy::print_stderr, reason = "what was measured is for the book")]
fn a_question_of_16_mib_takes_50_ms_of_the_loop_and_64_mib_at_most() {
    const NODES: usize = 1_600;
    const MIB: usize = 1 << 20;
    let mut page: Value = serde_json::from_str(&recorded("nodes.list.json")).expect("JSON");
    let node = |n: usize| {
        let mut node = page["items"][0].clone();
        node["metadata"]["name"] = json!(format!("node-{n:05}"));
        node["metadata"]["uid"] = json!(format!("uid-{n}"));
        node
    };
    let mut nodes: Vec<Value> = (0..NODES).map(node).collect();
    page["items"] = json!(nodes);

    // As long as kubelets make theirs, by the names of images.
    let images = 16 * MIB / NODES - nodes[0].to_string().len() - 60;
    for node in &mut nodes {
        node["status"]["images"] = json!([{"names": ["x".repeat(images)]}]);
    }
    let mut question: Value = serde_json::from_str(&recorded("question.nodes.json")).expect("JSON");
    question["nodes"]["items"] = json!(nodes);
    let bytes = question.to_string().len();
    assert!(bytes > 15 * MIB && bytes <= 16 * MIB, "{bytes}");

    let api = ApiServer::start();
    api.model().kinds.get_mut("nodes").expect("nodes").pages = vec![page.to_string()];
    let lab = extender(&api, PATIENT);
    lab.wait("it is ready", |lab| lab.get("/readyz").0 == 200);

    let before = (Usage::of(lab.process()).expect("a process").rss_kib, of_loop(&lab));
    let answer = ask(&lab, "/filter", &question);
    assert!(answer["Nodes"]["items"].is_array());
    let after = (Usage::of(lab.process()).expect("a process").peak_rss_kib, of_loop(&lab));

    let (mib, took) = ((after.0 - before.0) / 1024, after.1 - before.1);
    eprintln!("{bytes} bytes: {mib} MiB more than the {} MiB before, {took:?} of the loop", before.0 / 1024);
    assert!(mib <= 64, "{mib} MiB");
    // Not optimised, reading alone takes longer.
    let most = Duration::from_millis(if cfg!(debug_assertions) { 500 } else { 50 });
    assert!(took <= most, "{took:?} of the loop");
}

fn labels_are_written_where_that_is_configured_and_whoever_owns_one_wins() {
    // Of the pods that are listed one has a class; off by default, nothing is written.
    let api = ApiServer::start();
    let lab = extender(&api, PATIENT);
    lab.wait("it is ready", |lab| lab.get("/readyz").0 == 200);
    drop(lab);
    assert_eq!(api.model().patches, []);

    // What the server cannot take now is tried again, what is somebody else's is not.
    api.model().patch_refusals = vec![403, 500, 409];
    let lab = extender(&api, &format!("{PATIENT}write_labels = true\n"));
    lab.wait("an alarm", |lab| {
        lab.get("/v1/status").1.contains("labels are not written: the API server says 403")
    });
    lab.wait("it is refused for good", |_| api.model().patches.len() == 3);
    lab.wait("the alarm is over", |lab| !lab.get("/v1/status").1.contains("labels are not written"));
    let (name, patch) = api.model().patches[2].clone();
    let metadata = &patch["metadata"];
    assert_eq!(metadata["labels"], json!({"ballast.dev/criticality": "user-facing"}));
    let written =
        format!("{}/{}", metadata["namespace"].as_str().unwrap(), metadata["name"].as_str().unwrap());
    assert!(written == name && metadata["uid"].as_str().is_some_and(|uid| uid.len() == 36), "{patch}");

    // Those that come by the watch.
    api.send("pods", &recorded("pods.watch.jsonl"));
    let batch = json!({"ballast.dev/criticality": "non-user-facing"});
    lab.wait("the next", |_| {
        api.model().patches.iter().any(|(_, patch)| patch["metadata"]["labels"] == batch)
    });
}
