//! Recorded streams (`tests/kubernetes`), and what can go wrong with them.

use ballast_placement::inventory::Inventory;
use ballast_placement::{Policy, Totals};
use ballast_predict::Prediction;
use ballast_types::Instant;
use proptest::prelude::*;
use serde::de::DeserializeOwned;

use super::*;
use ballast_runtime::kubernetes::object::{List, Notice};

fn recorded(name: &str) -> String {
    let path = format!("{}/../../tests/kubernetes/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

fn reading() -> Reading<'static> {
    Reading {
        chassis_label: "ballast.dev/chassis",
        label_prefix: "ballast.dev/",
        predict: &|_| Prediction::unknown(),
        now: Instant::ZERO,
    }
}

fn list<T: DeserializeOwned>(name: &str) -> Vec<T> {
    serde_json::from_str::<List<T>>(&recorded(name)).unwrap().items
}

fn listed_nodes() -> Vec<ObservedNode> {
    list::<Node>("nodes.list.json").iter().map(|node| reading().node(node)).collect()
}

fn listed_pods() -> Vec<ObservedPod> {
    let both = ["pods.list.1.json", "pods.list.2.json"].into_iter().flat_map(list::<Pod>);
    both.map(|pod| reading().pod(&pod)).collect()
}

#[derive(Clone, Debug)]
enum WatchEvent {
    Node(Notice<ObservedNode>),
    Pod(Notice<ObservedPod>),
}

fn seen<T: DeserializeOwned, S>(name: &str, read: impl Fn(&T) -> S) -> Vec<Notice<S>> {
    let notice = |line: &str| match Notice::<T>::read(line.as_bytes()).unwrap() {
        Notice::Is(object) => Notice::Is(read(&object)),
        Notice::Gone(object) => Notice::Gone(read(&object)),
        Notice::Bookmark(version) => Notice::Bookmark(version),
        Notice::Error(status) => Notice::Error(status),
    };
    recorded(name).lines().map(notice).collect()
}

fn node_lines() -> Vec<WatchEvent> {
    let all = seen::<Node, _>("nodes.watch.jsonl", |node| reading().node(node));
    all.into_iter().map(WatchEvent::Node).collect()
}

fn pod_lines() -> Vec<WatchEvent> {
    let all = seen::<Pod, _>("pods.watch.jsonl", |pod| reading().pod(pod));
    all.into_iter().map(WatchEvent::Pod).collect()
}

fn tell(mirror: &mut Mirror, line: WatchEvent) -> Option<Effect> {
    Some(match line {
        WatchEvent::Node(Notice::Is(node)) => mirror.node_is(node),
        WatchEvent::Node(Notice::Gone(node)) => mirror.node_gone(&node),
        WatchEvent::Pod(Notice::Is(pod)) => mirror.pod_is(pod),
        WatchEvent::Pod(Notice::Gone(pod)) => mirror.pod_gone(&pod),
        WatchEvent::Node(_) | WatchEvent::Pod(_) => return None,
    })
}

fn listed() -> Mirror {
    let mut mirror = Mirror::default();
    mirror.list_nodes(listed_nodes());
    mirror.list_pods(listed_pods());
    mirror
}

fn show(change: &Change) -> String {
    let host = |host: &NamedHost| {
        let HostSpec { chassis, capacity, state, .. } = &host.spec;
        let (cores, kb) = (capacity.cores.milli(), capacity.memory.kb());
        format!("{} {chassis} {cores}m {kb} kB {state:?}", host.name)
    };

    let placed = |placed: &Placed| {
        let VmSpec { deployment, tenant, resources, class, p95, lifetime, .. } = &placed.vm.spec;
        let (cores, kb) = (resources.cores.milli(), resources.memory.kb());
        let (of, tenant) = (deployment.as_deref().unwrap_or("-"), tenant.as_deref().unwrap_or("-"));
        let p95 = p95.ten_thousandths() / 100;
        let days = lifetime.map_or(String::new(), |it| format!(" {} d", it.as_secs() / 86_400));

        format!(
            "{} of {of}, {tenant} on {}: {cores}m {kb} kB {class:?} {p95} %{days}",
            placed.vm.name, placed.host
        )
    };

    match change {
        Change::All(Snapshot { hosts, vms }) => {
            let lines = hosts.iter().map(host).chain(vms.iter().map(placed));
            lines.collect::<Vec<_>>().join("\n")
        }
        Change::SetHost(named) => format!("set {}", host(named)),
        Change::RemoveHost(name) => format!("remove host {name}"),
        Change::Put(it) => format!("put {}", placed(it)),
        Change::Remove(name) => format!("remove {name}"),
    }
}

/// The whole state, as an inventory is told of it.
fn state(mirror: &mut Mirror) -> String {
    mirror.all();
    show(&mirror.changes()[0])
}

fn obey(inventory: &mut Inventory, changes: &[Change]) {
    for change in changes {
        crate::kubernetes::apply(inventory, Instant::ZERO, change).unwrap();
    }
}

#[test]
fn lists_make_the_whole_inventory() {
    let mut mirror = Mirror::default();
    mirror.list_nodes(listed_nodes());
    assert_eq!(mirror.changes(), [], "nothing before both were listed");
    mirror.list_pods(listed_pods());
    let changes = mirror.changes();
    let [all] = &*changes else { panic!("{changes:?}") };
    let expected = "\
node-a c1 8000m 16664715 kB Open
node-b c1 8000m 16664715 kB Open
node-c c2 3920m 8101810 kB Open
node-d node:node-d 4000m 8192000 kB Cordoned
kube-system/coredns-66bc5c9577-4jvzm of kube-system/coredns, kube-system on node-a: 100m 73401 kB \
UserFacing 100 %
kube-system/kube-proxy-node-a of kube-system/kube-proxy, kube-system on node-a: 100m 0 kB UserFacing 100 %
kube-system/kube-proxy-node-b of kube-system/kube-proxy, kube-system on node-b: 100m 0 kB UserFacing 100 %
kube-system/kube-proxy-node-c of kube-system/kube-proxy, kube-system on node-c: 100m 0 kB UserFacing 100 %
kube-system/kube-proxy-node-d of kube-system/kube-proxy, kube-system on node-d: 100m 0 kB UserFacing 100 %
shop/db-0 of shop/db, shop on node-b: 3000m 8858371 kB UserFacing 100 % 30 d
shop/web-6d4cf56db6-r8w2n of shop/web, shop on node-a: 750m 671089 kB UserFacing 65 %
team-x/sandbox of team-x/sandbox, team-x on node-d: 350m 254830 kB UserFacing 100 %";
    assert_eq!(show(all), expected);
    assert_eq!((mirror.nodes(), mirror.pods()), ((4, 1), (8, 0)));

    // 2026-03-02T08:12:44Z, whenever the daemon starts.
    let Change::All(Snapshot { vms, .. }) = all else { panic!("{all:?}") };
    let proxy = vms.iter().find(|it| it.vm.name == "kube-system/kube-proxy-node-a").unwrap();
    assert_eq!(proxy.since, Instant::from_millis(1_772_439_164_000));
}

#[test]
fn a_recorded_watch_makes_these_changes() {
    let mut mirror = listed();
    mirror.changes();
    let mut lines = vec![];

    for line in pod_lines().into_iter().chain(node_lines()) {
        tell(&mut mirror, line);
        lines.extend(mirror.changes().iter().map(show));
    }

    let expected = "\
put shop/web-6d4cf56db6-zz9pl of shop/web, shop on node-b: 750m 671089 kB UserFacing 65 %
put shop/report-29385120-x7k2p of shop/report, shop on node-c: 1500m 1000000 kB NonUserFacing 100 %
put team-x/best-effort of team-x/best-effort, team-x on node-c: 1m 0 kB UserFacing 100 %
remove shop/report-29385120-x7k2p
remove shop/web-6d4cf56db6-r8w2n
remove shop/db-0
put shop/db-0 of shop/db, shop on node-a: 3000m 8858371 kB UserFacing 100 % 30 d
set node-b c1 8000m 16664715 kB Cordoned
set node-e c2 16000m 32768000 kB Open
remove kube-system/kube-proxy-node-c
remove team-x/best-effort
remove host node-c
set node-d c3 4000m 8192000 kB Open";
    // A node's status moves every five minutes, and a pod's when it starts: neither is a change.
    assert_eq!(lines.join("\n"), expected);
    assert_eq!((mirror.nodes(), mirror.pods()), ((4, 1), (9, 2)), "two pods of a node that has gone");
}

#[test]
fn a_node_that_has_gone_comes_back_to_its_pods() {
    let mut mirror = listed();
    mirror.changes();
    let nodes = listed_nodes();
    let gone = nodes[2].clone();
    assert_eq!(mirror.node_gone(&gone), Effect::Taken);
    assert_eq!(mirror.verdict("node-c", Amount::default(), true), Verdict::Unknown);
    assert_eq!(mirror.node_is(gone.clone()), Effect::Late, "its uid was told gone");
    let mut back = gone;
    back.ident.uid = "another".into();
    assert_eq!(mirror.node_is(back), Effect::Taken);
    let changes: Vec<_> = mirror.changes().iter().map(show).collect();
    let proxy = "kube-system/kube-proxy-node-c";
    assert_eq!(changes.len(), 4, "{changes:?}");
    assert_eq!(changes[..2], [format!("remove {proxy}"), "remove host node-c".into()]);
    assert!(changes[2].starts_with("set node-c c2") && changes[3].starts_with(&format!("put {proxy} of")));
}

#[test]
fn what_is_told_twice_or_late_changes_nothing() {
    let mut mirror = listed();
    let lines: Vec<WatchEvent> = pod_lines().into_iter().chain(node_lines()).collect();
    for line in lines.clone() {
        tell(&mut mirror, line);
    }
    let after = state(&mut mirror);

    // The whole stream once more, and backwards: a server that begins too early, and one that has lost its
    // head.
    for (what, again) in [("again", lines.clone()), ("backwards", lines.into_iter().rev().collect())] {
        let told: Vec<_> = again.into_iter().filter_map(|line| tell(&mut mirror, line)).collect();
        let changed = mirror.changes();
        assert!(told.contains(&Effect::Late), "{what}: {told:?}");
        let pods: Vec<_> = changed.iter().map(show).filter(|it| !it.starts_with("set ")).collect();
        assert_eq!(pods, [""; 0], "{what}");
    }

    let pods_only =
        |text: &str| text.lines().filter(|line| line.contains(" on ")).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(pods_only(&state(&mut mirror)), pods_only(&after));
}

#[test]
fn pods_end_lose_their_node_or_are_replaced() {
    let pod = |uid: &str, version: &str, node: &str, phase: &str| {
        let pod = serde_json::json!({"metadata": {"name": "p", "namespace": "n",
            "uid": uid, "resourceVersion": version},
            "spec": {"nodeName": node, "containers": [{"name": "c",
                "resources": {"requests": {"cpu": "1"}}}]},
            "status": {"phase": phase}});
        reading().pod(&serde_json::from_value(pod).unwrap())
    };

    let fresh = || {
        let mut mirror = Mirror::default();
        mirror.list_nodes(listed_nodes());
        mirror.list_pods(vec![pod("u", "1", "node-a", "Running")]);
        mirror.changes();

        mirror
    };

    let put = |node: &str| format!("put n/p of n/p, n on {node}: 1000m 0 kB UserFacing 100 %");
    let remove = || "remove n/p".to_owned();

    for (what, told, expected, changes) in [
        ("repeated", pod("u", "1", "node-a", "Running"), Effect::Repeated, vec![]),
        ("newer, and nothing else", pod("u", "2", "node-a", "Running"), Effect::Taken, vec![]),
        ("unbound: from before it was bound", pod("u", "0", "", "Pending"), Effect::Late, vec![]),
        ("ended well", pod("u", "2", "node-a", "Succeeded"), Effect::Taken, vec![remove()]),
        ("failed", pod("u", "2", "node-a", "Failed"), Effect::Taken, vec![remove()]),
        ("another of its name waits", pod("v", "2", "", "Pending"), Effect::Taken, vec![remove()]),
        (
            "another of its name is bound",
            pod("v", "2", "node-b", "Pending"),
            Effect::Taken,
            vec![remove(), put("node-b")],
        ),
        ("on a node that is not known", pod("v", "2", "node-z", "Pending"), Effect::Taken, vec![remove()]),
        (
            "without a uid",
            pod("", "2", "node-a", "Running"),
            Effect::Refused("object \"n/p\": metadata.uid is missing".into()),
            vec![],
        ),
    ] {
        let mut mirror = fresh();
        assert_eq!(mirror.pod_is(told), expected, "{what}");
        assert_eq!(mirror.changes().iter().map(show).collect::<Vec<_>>(), changes, "{what}");
    }

    let mut mirror = fresh();
    let gone = mirror.pod_gone(&pod("v", "2", "node-a", "Running"));
    assert_eq!(gone, Effect::Late, "another of its name had gone");
    assert_eq!(mirror.pod_is(pod("u", "2", "node-a", "Succeeded")), Effect::Taken);
    let again = mirror.pod_is(pod("u", "1", "node-a", "Running"));
    assert_eq!(again, Effect::Late, "what has ended does not run again");
    assert_eq!(mirror.pods(), (0, 0));
    let mut refused = pod("w", "1", "node-a", "Running");
    refused.holds = Holds::Share { node: "node-a".into(), read: Err("cpu: no".into()) };
    assert_eq!(mirror.pod_is(refused), Effect::Refused("pod n/p: cpu: no".into()));
}

#[test]
fn nodes_hold_what_the_scheduler_says_that_they_hold() {
    let mirror = listed();
    let verdict = |node: &str, milli_cpu, bytes, tolerates| {
        mirror.verdict(node, Amount { milli_cpu, bytes }, tolerates)
    };
    let (full, never) = (|why: &str| Verdict::Full(why.into()), |why: &str| Verdict::Never(why.into()));
    // 8 cores and 16,274,136 Ki less coredns, kube-proxy and web: to the byte.
    let free = 16_274_136 * 1024 - (70 << 20) - (640 << 20);

    for (node, milli_cpu, bytes, tolerates, expected) in [
        ("node-a", 7_050, free, false, Verdict::Fits),
        ("node-a", 7_051, 0, false, full("7051m CPU asked, 7050m free")),
        ("node-a", 0, free + 1, false, full(&format!("{} bytes of memory asked, {free} free", free + 1))),
        ("node-a", 8_000, 0, false, full("8000m CPU asked, 7050m free")),
        ("node-a", 8_001, 0, false, never("8001m CPU asked, 8000m allocatable")),
        ("node-a", 0, 0, false, Verdict::Fits),
        ("node-d", 1, 1, false, never("cordoned")),
        ("node-d", 1, 1, true, Verdict::Fits),
        ("node-x", u64::MAX, u64::MAX, false, Verdict::Unknown),
    ] {
        assert_eq!(verdict(node, milli_cpu, bytes, tolerates), expected, "{node} {milli_cpu} {bytes}");
    }
}

#[test]
fn a_node_that_does_not_tell_what_it_has_is_not_known() {
    let mut mirror = listed();
    mirror.changes();
    let mut node: Node = list("nodes.list.json").swap_remove(0);
    node.metadata.resource_version = "20000".into();
    node.status.allocatable.remove("cpu");
    assert_eq!(mirror.node_is(reading().node(&node)), Effect::Taken);
    assert_eq!(mirror.verdict("node-a", Amount::default(), false), Verdict::Unknown);
    assert_eq!(mirror.known("node-a"), None);
    assert_eq!(show(mirror.changes().last().unwrap()), "remove host node-a");
    node.status
        .allocatable
        .insert("cpu".into(), ballast_runtime::kubernetes::object::Quantity::Text("x".into()));
    node.metadata.resource_version = "20001".into();
    let Effect::Refused(why) = mirror.node_is(reading().node(&node)) else { panic!() };
    assert!(why.starts_with("node node-a: status.allocatable.cpu: \"x\" is no quantity"), "{why}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// However the two streams are interleaved, repeated within their order and cut by new lists: the changes
    /// lead an inventory to what a list would have made of it, and when all pods have gone nothing is taken.
    #[test]
    fn the_inventory_is_always_as_the_cluster(
        turns in prop::collection::vec((any::<bool>(), 0_usize..3), 0..60),
        relist in 0_usize..60,
    ) {
        let mut mirror = listed();
        let mut inventory = Inventory::new(Policy::POWER);
        obey(&mut inventory, &mirror.changes());
        let mut streams = [node_lines().into_iter(), pod_lines().into_iter()];

        for (n, (which, repeats)) in turns.into_iter().enumerate() {
            let Some(line) = streams[usize::from(which)].next() else { continue };
            for _ in 0..=repeats {
                tell(&mut mirror, line.clone());
            }
            if n == relist {
                mirror.all();
            }
            obey(&mut inventory, &mirror.changes());
            mirror.all();
            let mut fresh = Inventory::new(Policy::POWER);
            obey(&mut fresh, &mirror.changes());
            prop_assert_eq!(inventory.snapshot(), fresh.snapshot());
        }

        let pods = mirror.pods.iter();
        let pods: Vec<_> = pods.map(|(name, pod)| (name.to_string(), pod.uid.clone())).collect();

        for (name, uid) in pods {
            let ident = Ident { name, uid, version: "9".into() };
            let gone = ObservedPod { ident, holds: Holds::Nothing, since: Instant::ZERO };
            prop_assert_eq!(mirror.pod_gone(&gone), Effect::Taken);
        }

        obey(&mut inventory, &mirror.changes());
        prop_assert_eq!((mirror.pods(), inventory.cluster().allocated()), ((0, 0), Totals::default()));
        prop_assert!(mirror.loads.is_empty());
    }
}
