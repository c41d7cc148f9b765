//! What the API server says of this node's pods: which there are, and what class each is of.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use ballast_runtime::kubernetes::follow::{Failure, Sink};
use ballast_runtime::kubernetes::object::{Object as _, Pod, Quantities};
use ballast_runtime::kubernetes::quantity::milli;
use ballast_runtime::{clock, lock};
use ballast_types::{Instant, VmClass, VmId};

use crate::config::KubernetesConfig;

/// The static pod that the kubelet shows to the API server as this one, by UID.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// One pod of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodePod {
    /// As the kubelet knows it: a static pod has another one there than at the API server.
    pub(super) uid: String,
    /// Its namespace and name with a slash between: the kubelet's socket tells no UID.
    pub(super) key: String,
    pub(super) id: VmId,
    pub(super) namespace: String,
    pub(super) class: VmClass,
    /// What told the class.
    pub(super) by: String,
    /// How many CPUs it is meant to use: its limit, else its request, rounded up.
    pub(super) cpus: u16,
}

/// All of them, as far as they were told.
#[derive(Default)]
struct PodsState {
    /// By the UID at the API server.
    pods: BTreeMap<String, NodePod>,
    heard: Option<Instant>,
    problem: Option<String>,
}

/// What the API server has told; follows it while a thread runs.
#[derive(Clone)]
pub(super) struct NodePods {
    told: Arc<Mutex<PodsState>>,
    config: Arc<KubernetesConfig>,
    changed: mpsc::Sender<()>,
}

impl NodePods {
    /// `changed` is told when another look is worth it.
    pub(super) fn new(config: Arc<KubernetesConfig>, changed: mpsc::Sender<()>) -> Self {
        Self { told: Arc::default(), config, changed }
    }

    /// Every pod now, by the kubelet's UID, and what is wrong. While nothing is heard of the API server, a pod is
    /// still told from others, but no class counts: a label may have changed since. Two pods with one UID are
    /// user-facing: one of them claims to be the other.
    pub(super) fn pods(&self, now: Instant) -> (BTreeMap<String, NodePod>, Option<String>) {
        let told = lock(&self.told);
        let stale_after = self.config.stale_after;
        let age = told.heard.map(|heard| now - heard.min(now));
        let silent = match age {
            None => Some("kubernetes: the pods of this node were never listed".to_owned()),
            Some(age) if age > stale_after => {
                Some(format!("kubernetes: nothing was heard of this node's pods for {} s", age.as_secs()))
            }
            Some(_) => None,
        };
        let mut pods = BTreeMap::<String, NodePod>::new();
        for pod in told.pods.values() {
            let mut pod = pod.clone();
            if silent.is_some() {
                (pod.class, pod.by) = (VmClass::UserFacing, "silence of the API server".into());
            }
            if pods.contains_key(&pod.uid) {
                (pod.class, pod.by) = (VmClass::UserFacing, "two pods with one UID".into());
            }
            pods.insert(pod.uid.clone(), pod);
        }

        let why = told.problem.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        (pods, silent.map(|it| format!("{it}{why}: every pod counts as user-facing")))
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, NodePod>)) {
        let mut told = lock(&self.told);
        change(&mut told.pods);
        drop(told);
        // Nobody hears it any more once the agent ends.
        let _ = self.changed.send(());
    }

    fn pod(&self, pod: &Pod) -> Option<NodePod> {
        let (class, by) = class(pod, &self.config);
        let meta = pod.meta();
        let uid = meta.annotations.get(MIRROR).unwrap_or(&meta.uid).clone();
        let key = pod.key();
        let id = id(&key, &uid)?;
        Some(NodePod { uid, key, id, namespace: meta.namespace.clone(), class, by, cpus: cpus(pod) })
    }
}

impl Sink<Pod> for NodePods {
    /// The UID at the API server, and the pod while it runs.
    type Observed = (String, Option<NodePod>);

    fn read(&self, pod: &Pod) -> Self::Observed {
        let running = (!pod.is_over()).then(|| self.pod(pod)).flatten();
        (pod.meta().uid.clone(), running)
    }

    fn listed(&self, all: Vec<Self::Observed>) {
        let running = all.into_iter().filter_map(|(uid, pod)| Some((uid, pod?))).collect();
        self.change(|pods| *pods = running);
        self.alive();
    }

    fn is(&self, (uid, pod): Self::Observed) {
        self.change(|pods| match pod {
            Some(pod) => drop(pods.insert(uid, pod)),
            None => drop(pods.remove(&uid)),
        });
    }

    fn gone(&self, (uid, _): Self::Observed) {
        self.change(|pods| drop(pods.remove(&uid)));
    }

    fn alive(&self) {
        let mut told = lock(&self.told);
        (told.heard, told.problem) = (Some(clock::now()), None);
    }

    fn watches(&self) {}

    fn failed(&self, failure: &Failure, again: Duration) {
        tracing::warn!(again_s = again.as_secs_f64(), "following this node's pods: {failure}");
        lock(&self.told).problem = Some(failure.to_string());
    }
}

/// A pod's class and what tells it: its label, its priority class, its quality of service, in this order. What is
/// not known is user-facing, and so is a label that says anything else.
fn class(pod: &Pod, config: &KubernetesConfig) -> (VmClass, String) {
    let label = format!("{}class", config.label_prefix);
    if let Some(value) = pod.metadata.labels.get(&label) {
        return match VmClass::named(value) {
            Some(class) => (class, format!("label {label}")),
            None => (VmClass::UserFacing, format!("label {label} = {value:.63?}, which is no class")),
        };
    }
    let priority = &pod.spec.priority_class_name;
    if config.batch_priority_classes.contains(priority) {
        return (VmClass::NonUserFacing, format!("priority class {priority}"));
    }
    if pod.status.qos_class == "BestEffort" && config.best_effort == VmClass::NonUserFacing {
        return (VmClass::NonUserFacing, "quality of service BestEffort".into());
    }
    (VmClass::UserFacing, "default: nothing tells its class".into())
}

/// `namespace:name`; where that is too long for an id, the start of the name with the UID.
fn id(key: &str, uid: &str) -> Option<VmId> {
    let name = key.split_once('/').map_or(key, |(_, name)| name);
    let short = || format!("{}:{uid}", name.chars().take(27).collect::<String>());
    VmId::new(&key.replacen('/', ":", 1)).or_else(|_| VmId::new(&short())).ok()
}

fn cpus(pod: &Pod) -> u16 {
    let cpu = |from: &Quantities| milli(&from.get("cpu")?.text()).ok();
    let of = |resources: (&Quantities, &Quantities)| cpu(resources.0).or_else(|| cpu(resources.1));
    let containers =
        pod.spec.containers.iter().filter_map(|it| of((&it.resources.limits, &it.resources.requests)));
    let all = containers.fold(0u64, u64::saturating_add);
    u16::try_from(all.div_ceil(1000)).unwrap_or(u16::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use ballast_runtime::kubernetes::object::List;
    use serde_json::{Value, json};

    use super::*;
    use crate::config::{AgentConfig, ConfigFile as _};

    fn known(more: &str) -> NodePods {
        let text = format!("server = \"s\"\nchassis = \"c\"\nmeter.offset_w = 60\n[kubernetes]\n{more}");
        let config = AgentConfig::parse("agent.toml", &text).unwrap().kubernetes.unwrap();
        NodePods::new(Arc::new(config), mpsc::channel().0)
    }
    fn pod(name: &str, uid: &str, more: &Value) -> Pod {
        let mut pod = json!({"metadata": {"name": name, "namespace": "n", "uid": uid}});
        for (key, value) in more.as_object().unwrap() {
            match pod.get_mut(key) {
                Some(there) => there.as_object_mut().unwrap().extend(value.as_object().unwrap().clone()),
                None => pod[key] = value.clone(),
            }
        }
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn the_label_comes_before_the_priority_class_and_this_before_the_quality_of_service() {
        let config = known("batch_priority_classes = [\"low\"]\nbest_effort = \"non-user-facing\"\n").config;
        let labelled = |value: &str| json!({"ballast.dev/class": value});
        use VmClass::{NonUserFacing as Nuf, UserFacing as Uf};
        for (labels, priority, qos, expected) in [
            (labelled("non-user-facing"), "", "Guaranteed", Nuf),
            (labelled("user-facing"), "low", "BestEffort", Uf),
            // No class: the careful answer, and nothing else is asked.
            (labelled("batch"), "low", "BestEffort", Uf),
            (json!({}), "low", "Guaranteed", Nuf),
            (json!({}), "high", "BestEffort", Nuf),
            (json!({}), "", "Burstable", Uf),
            (json!({}), "", "", Uf),
        ] {
            let more = json!({"metadata": {"labels": labels}, "spec": {"priorityClassName": priority},
                "status": {"qosClass": qos}});
            let pod = pod("p", "u", &more);
            assert_eq!(class(&pod, &config).0, expected, "{pod:?}");
        }
        // Without a word in the config neither of the two makes a pod batch.
        let more = json!({"spec": {"priorityClassName": "low"}, "status": {"qosClass": "BestEffort"}});
        assert_eq!(class(&pod("p", "u", &more), &known("").config).0, Uf);
    }

    #[test]
    fn silence_makes_every_pod_user_facing_and_no_pod_passes_for_another() {
        let known = known("stale_after_s = 100\n");
        assert!(known.pods(clock::now()).1.unwrap().contains("were never listed"));
        let low = || json!({"metadata": {"labels": {"ballast.dev/class": "non-user-facing"}}});
        let list: List<Pod> = List { metadata: Default::default(), items: vec![pod("a", "1", &low())] };
        known.listed(list.items.iter().map(|it| known.read(it)).collect());
        let now = clock::now();
        let class = |uid: &str, now| known.pods(now).0.get(uid).map(|it| it.class);
        let later = |s| now + Duration::from_secs(s);
        assert_eq!(class("1", later(99)), Some(VmClass::NonUserFacing), "what was told holds for a while");
        assert_eq!(class("1", later(102)), Some(VmClass::UserFacing));
        assert!(known.pods(later(102)).1.unwrap().contains("every pod counts as user-facing"));
        assert_eq!(class("2", now), None, "a pod of another UID was never told");

        // A static pod is known by its mirror's annotation; whoever says so of another pod slows nobody.
        let mirror = json!({"metadata": {"annotations": {MIRROR: "1"}, "labels":
            {"ballast.dev/class": "non-user-facing"}}});
        known.is(known.read(&pod("b", "9", &mirror)));
        assert_eq!(class("1", now), Some(VmClass::UserFacing));
        known.gone(known.read(&pod("b", "9", &json!({}))));
        assert_eq!(class("1", now), Some(VmClass::NonUserFacing));
        known.is(known.read(&pod("a", "1", &json!({"status": {"phase": "Succeeded"}}))));
        assert_eq!(class("1", now), None);
    }

    #[test]
    fn ids_and_sizes_of_pods() {
        assert_eq!(id("shop/web-0", "u").unwrap().as_str(), "shop:web-0");
        let uid = "5d8c2a3e-7a4f-4a37-9a43-2f6f2b0f4c11";
        let long = id(&format!("n/{}", "x".repeat(200)), uid).unwrap();
        assert!(long.as_str().len() <= 64 && long.as_str().ends_with(uid), "{long}");
        let containers = |each: &[(&str, &str)]| {
            let one = |(request, limit): &(&str, &str)| {
                let mut resources = json!({"requests": {"cpu": request}});
                if !limit.is_empty() {
                    resources["limits"] = json!({"cpu": limit});
                }
                json!({"name": "c", "resources": resources})
            };
            json!({"spec": {"containers": each.iter().map(one).collect::<Vec<_>>()}})
        };
        for (each, expected) in [
            (&[("2", "2")][..], 2),
            (&[("250m", ""), ("1", "1500m")], 2),
            (&[("x", "")], 1),
            (&[], 1),
            (&[("99999999", "")], u16::MAX),
        ] {
            assert_eq!(cpus(&pod("p", "u", &containers(each))), expected, "{each:?}");
        }
    }
}
