//! The real agent on a Kubernetes node: a kubelet and an API server that are played, cores that the rig plays.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ballast_sim::plant::PlantSpec;
use ballast_testbed::lab::kubelet::{Kubelet, PodDouble, pod_list};
use ballast_testbed::lab::kubernetes::ApiServer;
use ballast_testbed::lab::{Lab, steady};
use ballast_testbed::rig::server_root;
use ballast_types::wire::Report;
use ballast_types::{CoreId, ServerId, VmClass, VmId};
use serde_json::json;

ballast_testbed::wall_time![
    the_exclusive_cpus_of_low_pods_are_slowed_and_nobody_elses,
    caps_follow_the_kubelet_and_a_killed_agent_leaves_nothing_behind,
    what_is_in_doubt_or_not_heard_slows_nobody,
    shared_cpus_are_limited_only_where_the_kubelet_is_told_to_leave_them,
];

/// Nothing turns stale in these tests, however slow the machine.
const PATIENT: &str = "stale_after_s = 3600\n";
/// Watts that no server here can keep under by software: all that may be slowed goes to its floor.
const UNREACHABLE: u64 = 60;

struct Node {
    lab: Lab,
    api: ApiServer,
    kubelet: Kubelet,
    pods: Vec<PodDouble>,
    shared: String,
    root: PathBuf,
    /// Which CPUs each pod's VM runs on.
    cores: BTreeMap<String, Vec<u32>>,
}

/// A server whose cores are, in order: 40 % a user-facing pod's own, 15 % each shared by a user-facing and by a low
/// pod, and 30 % a low pod's own.
fn plant() -> PlantSpec {
    let mut spec = steady(1, 1000, (0.5, 0.95));
    let server = &mut spec.servers[0];
    let (web, batch) = (server.vms[0].clone(), server.vms[server.vms.len() - 1].clone());
    assert_eq!((web.class, batch.class), (VmClass::UserFacing, VmClass::NonUserFacing));
    let n = server.cores.len();
    let ids = |from: usize, to: usize| (n * from / 100..n * to / 100).map(|id| CoreId(id as u16)).collect();
    let parts = [("web", 0, 40), ("api", 40, 55), ("sweep", 55, 70), ("low", 70, 100)];
    let vm = |(name, from, to): (&str, usize, usize)| {
        let mut vm = if name == "low" { batch.clone() } else { web.clone() };
        // For the plant: whoever must not be slowed is user-facing.
        (vm.id, vm.cores) = (VmId::new(name).unwrap(), ids(from, to));
        vm
    };
    server.vms = parts.into_iter().map(vm).collect();
    spec
}

fn node(keys: &str, tables: &str, limited: bool) -> Node {
    let spec = plant();
    let cores = |vm: &str| -> Vec<u32> {
        let vm = spec.servers[0].vms.iter().find(|it| it.id.as_str() == vm).unwrap();
        vm.cores.iter().map(|core| core.0.into()).collect()
    };
    let low = json!({"ballast.dev/class": "non-user-facing"});
    let pod = |name: &str, n: u32, qos, labels, cpus| PodDouble {
        name: name.into(),
        uid: format!("0a1b2c3d-0000-4000-8000-00000000000{n}"),
        vm: VmId::new(name).unwrap(),
        qos,
        labels,
        cpus,
    };
    let pods = vec![
        pod("low", 1, "Guaranteed", low.clone(), cores("low")),
        pod("web", 2, "Guaranteed", json!({}), cores("web")),
        pod("api", 3, "Burstable", json!({}), vec![]),
        pod("sweep", 4, "BestEffort", low, vec![]),
    ];
    let of = ["low", "web", "api", "sweep"].map(|name| (name.to_owned(), cores(name)));
    let shared = [cores("api"), cores("sweep")].concat();
    let shared = shared.iter().map(u32::to_string).collect::<Vec<_>>().join(",");

    let api = ApiServer::start();
    api.model().kinds.get_mut("pods").unwrap().pages = vec![pod_list(&pods)];
    let lab = Lab::new(spec, "");
    let root = server_root(&lab.tree(), &ServerId::new("s01").unwrap());
    let kubelet = Kubelet::start(&root, &shared, &pods, limited);
    let config = fs::read_to_string(lab.config("s01")).unwrap();
    let (config, _) = config.split_once("[[vm]]").unwrap();
    // Hardware would slow everybody.
    let own = format!(
        "[server_limit]\nenabled = false\n[groups]\nrescan_ms = 200\n{tables}[kubernetes]\n\
         api = {:?}\n{keys}",
        api.url
    );
    fs::write(lab.config("s01"), format!("{config}{own}")).unwrap();

    Node { lab, api, kubelet, pods, shared, root, cores: of.into() }
}

impl Node {
    /// Starts the agent, which is told to keep under far less than it can, for good.
    fn start(&mut self) {
        self.lab.start("s01");
        self.lab.wait("ready", |lab| lab.get("s01", "/readyz").0 == 200);
        self.cap();
    }

    fn cap(&self) {
        let tell = |seq: u32, boot: Option<&str>, ms: Option<u64>| -> Report {
            let body = json!({"chassis_id": "lab", "epoch": 1, "seq": seq, "level": "cap",
                "echo_boot_id": boot,
                "echo_agent_ms": ms, "chassis_power_w": 500, "chassis_limit_w": 440, "cap_w": UNREACHABLE,
                "fallback_w": UNREACHABLE, "valid_for_ms": 2000});
            let (status, text) = self.lab.order("POST", "s01", "/v1/alert", &body.to_string());
            assert_eq!(status, 200, "{text}");
            serde_json::from_str(&text).expect("a report")
        };
        // A first epoch is remembered once an echo has shown that it is no message from long ago.
        let report = tell(1, None, None);
        tell(2, Some(report.boot_id.as_str()), Some(report.agent_ms));
        let memory = self.lab.home("s01").join("state/memory.json");
        let fallback = format!("\"fallback_w\": {UNREACHABLE}");
        self.lab.wait("it remembers its fallback", |_| {
            fs::read_to_string(&memory).is_ok_and(|text| text.contains(&fallback))
        });
    }

    /// Ends the agent in order; it leaves no journal.
    fn end(&mut self) {
        self.lab.end("s01");
        assert!(!self.lab.journal("s01").exists(), "it left its journal");
    }

    /// Which CPUs may not run as fast as they could.
    fn slowed(&self) -> BTreeSet<u32> {
        let cpus = self.cores.values().flatten();
        let is_slowed = |cpu: &&u32| {
            let read = |name: &str| -> u64 {
                let file = format!("sys/devices/system/cpu/cpufreq/policy{cpu}/{name}");
                fs::read_to_string(self.root.join(file)).unwrap().trim().parse().unwrap_or(0)
            };
            let now = read("scaling_max_freq");
            // The rig replaces the file when it shows what is in force.
            now > 0 && now < read("cpuinfo_max_freq")
        };
        cpus.filter(is_slowed).copied().collect()
    }

    fn of(&self, pod: &str) -> BTreeSet<u32> {
        self.cores[pod].iter().copied().collect()
    }

    /// Every file below `kubepods.slice` but those of the rig: what it says, and when it was written last.
    fn kubepods(&self) -> BTreeMap<PathBuf, (String, SystemTime)> {
        fn walk(dir: &Path, found: &mut BTreeMap<PathBuf, (String, SystemTime)>) {
            for entry in fs::read_dir(dir).unwrap().flatten() {
                let kind = entry.file_type().unwrap();
                if kind.is_dir() {
                    walk(&entry.path(), found);
                } else if kind.is_file() {
                    let written = entry.metadata().unwrap().modified().unwrap();
                    found.insert(entry.path(), (fs::read_to_string(entry.path()).unwrap(), written));
                }
            }
        }
        let mut found = BTreeMap::new();
        walk(&self.root.join("sys/fs/cgroup/kubepods.slice"), &mut found);
        found
    }

    fn alarms(&self) -> String {
        let alarms = self.lab.agent("s01").map(|status| status.alarms).unwrap_or_default();
        alarms.iter().map(|alarm| format!("{:?}: {}\n", alarm.id, alarm.message)).collect()
    }

    fn class(&self, pod: &str) -> Option<VmClass> {
        let id = format!("default:{pod}");
        self.lab.agent("s01")?.vms.iter().find(|vm| vm.vm.as_str() == id).map(|vm| vm.class)
    }
}

fn the_exclusive_cpus_of_low_pods_are_slowed_and_nobody_elses() {
    let mut node = node(PATIENT, "", false);
    let (limits, kubepods) = (node.lab.limits(), node.kubepods());
    assert!(kubepods.len() >= 20, "{kubepods:?}");
    node.lab.start("s01");
    node.lab.wait("its draw is told, and what it could shed", |lab| {
        lab.agent("s01").is_some_and(|it| it.report.power_w.is_some() && it.report.sheddable_w.as_f64() > 0.0)
    });
    let before = node.lab.agent("s01").unwrap().report;
    node.cap();
    node.lab.wait("all pods are known", |lab| lab.agent("s01").is_some_and(|it| it.vms.len() == 4));
    node.lab.wait("the low pod is at its floor", |_| node.slowed() == node.of("low"));

    // The draw stays above the cap, and nobody else is slowed for it.
    let sheddable = |lab: &Lab| lab.agent("s01").is_some_and(|it| it.report.sheddable_w.as_f64() == 0.0);
    node.lab.wait("nothing is left to shed", |lab| sheddable(lab));
    assert_eq!(node.slowed(), node.of("low"));
    let (drew, could) = (before.power_w.unwrap().as_f64(), before.sheddable_w.as_f64());
    let draws = |lab: &Lab| lab.agent("s01").and_then(|it| it.report.power_w).map_or(drew, |it| it.as_f64());
    node.lab.wait("what it could shed is shed", |lab| drew - draws(lab) >= 0.8 * could);
    let status = node.lab.agent("s01").unwrap();
    let vm = |name: &str| status.vms.iter().find(|it| it.vm.as_str() == format!("default:{name}")).unwrap();
    assert!(vm("low").impact.throttled_core_ms > 0 && vm("low").cores as usize == node.cores["low"].len());
    assert_eq!(vm("low").origin.as_deref(), Some("found by the kubelet, class by label ballast.dev/class"));
    for other in ["web", "api", "sweep"] {
        assert_eq!(vm(other).impact.throttled_core_ms, 0, "{other}");
        assert_eq!(vm(other).min_khz, None, "{other}");
    }
    assert_eq!((vm("sweep").class, vm("sweep").cores), (VmClass::NonUserFacing, 0), "it shares its CPUs");
    node.lab.wait("the energy of each pod is told", |lab| {
        let vms = lab.agent("s01").unwrap().vms;
        vms.iter().all(|vm| vm.estimated_w.is_some_and(|watts| watts.as_f64() > 0.0))
    });
    // Others may not name VMs here.
    let (code, why) = node.lab.order("PUT", "s01", "/v1/vms/x", r#"{"cores":1}"#);
    assert!(code >= 400 && why.contains("the VMs of this server are its pods"), "{code} {why}");

    node.end();
    node.lab.wait_restored(&limits, "");
    assert_eq!(node.kubepods(), kubepods, "nothing below kubepods is ever written");
    let truth = node.lab.end_rig().plant().truth().clone();
    assert_eq!(truth.user_facing_throttled_core_s.total(), 0.0, "pods of other classes");
    assert!(truth.batch_throttled_core_s.software > 0.0);
}

fn caps_follow_the_kubelet_and_a_killed_agent_leaves_nothing_behind() {
    let mut node = node(PATIENT, "", false);
    let (limits, kubepods) = (node.lab.limits(), node.kubepods());
    node.start();
    node.lab.wait("the low pod is slowed", |_| node.slowed() == node.of("low"));

    // The kubelet is started anew: its socket goes and comes, and its state is enough meanwhile.
    node.kubelet.stop();
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(node.slowed(), node.of("low"), "{}", node.alarms());
    node.kubelet.serve();

    // It gives half of the CPUs to the pool.
    let mut pods = node.pods.clone();
    let kept = pods[0].cpus.len() / 2;
    let back = pods[0].cpus.split_off(kept);
    let shared = back.iter().fold(node.shared.clone(), |all, cpu| format!("{all},{cpu}"));
    node.kubelet.assign(&shared, &pods);
    let half: BTreeSet<u32> = pods[0].cpus.iter().copied().collect();
    node.lab.wait("the cap has followed", |_| node.slowed() == half);

    // Killed, it leaves its caps; the next one takes them over, and puts all back at its end.
    node.lab.kill("s01");
    assert_eq!(node.slowed(), half);
    node.lab.start("s01");
    node.lab.wait("it is capped again", |lab| {
        lab.agent("s01").is_some_and(|it| it.vms.len() == 4) && node.slowed() == half
    });

    // The pod's label changes, and the pod is nobody's to slow.
    pods[0].labels = json!({"ballast.dev/class": "user-facing"});
    let event = json!({"type": "MODIFIED", "object": pods[0].object(2)});
    node.lab.wait("it watches", |_| node.api.watching("pods") >= 1);
    node.api.send("pods", &format!("{event}\n"));
    node.lab.wait("nobody is slowed", |_| node.slowed().is_empty());

    node.end();
    node.lab.wait_restored(&limits, "");
    assert_eq!(node.kubepods(), kubepods);
}

fn what_is_in_doubt_or_not_heard_slows_nobody() {
    let mut node = node(PATIENT, "", false);
    // Wholly another kubelet's answer, as recorded: none of its pods is known here.
    let recorded =
        fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/kubernetes/podresources.list.bin")).unwrap();
    node.kubelet.tell_message(&recorded);
    node.start();
    node.lab.wait("the disagreement is told", |_| node.alarms().contains("PodCpusDisputed"));
    assert!(node.alarms().contains("the API server does not know their pod"), "{}", node.alarms());
    assert_eq!(node.slowed(), BTreeSet::new());

    node.kubelet.tell(&node.pods);
    node.lab.wait("the low pod is slowed", |_| node.slowed() == node.of("low"));
    assert!(!node.alarms().contains("PodCpus"), "{}", node.alarms());

    // Two pods claim a CPU.
    let mut pods = node.pods.clone();
    let contested = pods[0].cpus[0];
    pods[1].cpus.push(contested);
    node.kubelet.assign(&node.shared, &pods);
    let rest: BTreeSet<u32> = pods[0].cpus[1..].iter().copied().collect();
    node.lab.wait("the CPU that two pods claim is not slowed", |_| node.slowed() == rest);
    node.lab.wait("it is named", |_| {
        node.alarms().contains(&format!("the CPUs {contested} are not slowed: two pods claim them"))
    });

    // Neither source can be read.
    node.kubelet.stop();
    fs::write(node.root.join("var/lib/kubelet/cpu_manager_state"), "{").unwrap();
    node.lab.wait("nobody is slowed", |_| node.slowed().is_empty());
    assert!(node.alarms().contains("PodsUnknown"), "{}", node.alarms());
    assert_eq!(node.class("low"), Some(VmClass::NonUserFacing));
    node.end();
}

fn shared_cpus_are_limited_only_where_the_kubelet_is_told_to_leave_them() {
    let tables = "[throttle]\nactuator = \"cpu-max\"\n";
    let keys = &format!("{PATIENT}cpu_max = true\n");
    let mut node = node(keys, tables, true);
    let limits = node.lab.limits();
    let config = node.root.join("var/lib/kubelet/config.yaml");
    fs::write(&config, "kind: KubeletConfiguration\ncpuManagerPolicy: static\n").unwrap();
    node.lab.start("s01");
    node.lab.wait("it refuses to start", |lab| lab.log("s01").contains("says cpuCFSQuota: false"));
    node.lab.kill("s01");

    fs::write(&config, "kind: KubeletConfiguration\ncpuManagerPolicy: static\ncpuCFSQuota: false\n").unwrap();
    node.start();
    let quota = |node: &Node, pod: &PodDouble| {
        let file = node.root.join("sys/fs/cgroup").join(pod.cgroup()).join("cpu.max");
        fs::read_to_string(file).is_ok_and(|text| !text.starts_with("max") && !text.is_empty())
    };
    node.lab.wait("the low pods are limited", |_| quota(&node, &node.pods[0]) && quota(&node, &node.pods[3]));
    assert!(!quota(&node, &node.pods[1]) && !quota(&node, &node.pods[2]), "user-facing pods");
    assert_eq!(node.slowed(), BTreeSet::new());

    // A killed agent's limits are put back by its journal alone.
    node.lab.kill("s01");
    assert!(quota(&node, &node.pods[3]));
    let config = node.lab.config("s01");
    let released = Lab::ballast(&["agent", "release", "--config", config.to_str().unwrap()]);
    assert!(released.status.success(), "{}", String::from_utf8_lossy(&released.stderr));
    assert!(!node.pods.iter().any(|pod| quota(&node, pod)));

    node.lab.start("s01");
    node.lab.wait("they are limited again", |_| quota(&node, &node.pods[0]));
    node.end();
    node.lab.wait_restored(&limits, "");
}
