//! A Kubernetes node's pods, as VMs: which there are and of which class, by the API server; which CPUs are whose, by
//! the kubelet.
//!
//! ```text
//!   API server ──list, watch──▶ node_pods ─┐
//!   kubelet ──podresources socket──▶ kubelet thread ─▶ assigned ─▶ VMs with given CPUs
//!           ──cpu_manager_state───▶        │
//! ```
//!
//! Nothing here writes. A pod's class is a permission to slow it: what is not known, not heard any more, or in doubt
//! slows nobody.

mod assigned;
mod node_pods;
pub mod podresources;

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use ballast_hw::kubelet::{CpuState, POD_RESOURCES};
use ballast_hw::{Cgroup, CpuList, Root};
use ballast_runtime::kubernetes::follow::{Api, follow};
use ballast_runtime::kubernetes::object::Pod;
use ballast_runtime::threads::{every, supervise};
use ballast_runtime::{clock, lock};
use ballast_types::wire::{Alarm, AlarmId, VmSpec};
use ballast_types::{Instant, OnExtreme, VmId};

use crate::config::AgentConfig;
use assigned::{Assigned, assigned};
use node_pods::{NodePod, NodePods};
use podresources::ListPodResourcesResponse;

/// Objects on a page of a list: a node has 110 pods as a rule.
const PAGE: u64 = 500;
/// What the kubelet said counts for so many looks, beside the time that it has to answer: one look may be late.
const LOOKS: u32 = 3;
const ANSWER: Duration = Duration::from_secs(2);
/// The first answers are waited for so long at the most.
const FIRST_ANSWERS: Duration = Duration::from_secs(2);

/// A pod as a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodVm {
    pub(crate) id: VmId,
    pub(crate) spec: VmSpec,
    /// The CPUs that nobody else has; none where it shares its CPUs.
    pub(crate) cpus: CpuList,
    /// What told its class.
    pub(crate) by: String,
}

/// What the kubelet said last.
#[derive(Default)]
struct Said {
    at: Option<Instant>,
    listed: Option<ListPodResourcesResponse>,
    state: Option<CpuState>,
    /// Why one of the two is missing.
    problems: Vec<String>,
}

/// The pods of this node.
pub(crate) struct Pods {
    root: Root,
    known: NodePods,
    said: Arc<Mutex<Said>>,
    /// For how long that counts.
    valid_for: Duration,
    alarms: Vec<Alarm>,
    /// Why CPUs were not slowed at the last look: the kubelet's two sources are not read at one instant, so a
    /// reason is an alarm when it comes at two looks.
    disputed: BTreeSet<String>,
}

impl Pods {
    /// Begins to follow the API server and to ask the kubelet, on threads of their own for as long as the process
    /// runs; `changed` is told when another look is worth it. `None` unless this is a Kubernetes node. Fails where the
    /// config asks for what the kubelet owns, or a thread cannot be started.
    pub(crate) fn start(
        config: &AgentConfig,
        root: &Root,
        changed: &mpsc::Sender<()>,
    ) -> anyhow::Result<Option<Self>> {
        let Some(kubernetes) = &config.kubernetes else { return Ok(None) };
        kubernetes.check_kubelet(root)?;
        let known = NodePods::new(Arc::new(kubernetes.clone()), changed.clone());
        let node = kubernetes.node.clone().unwrap_or_else(|| config.server.to_string());
        let api = Api {
            url: kubernetes.api.clone(),
            token_file: kubernetes.token_file.clone(),
            ca_file: kubernetes.ca_file.clone(),
            page: PAGE,
            fields: Some(format!("spec.nodeName={node}")),
            // A bookmark comes about once a minute.
            silent: kubernetes.stale_after.max(Duration::from_secs(120)),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let sink = known.clone();
        supervise("kubernetes", runtime, move |runtime| {
            runtime.block_on(follow::<Pod>(&api, &sink));
        })?;

        let said = Arc::<Mutex<Said>>::default();
        let kubelet = Kubelet {
            root: root.clone(),
            dir: kubernetes.kubelet_dir.clone(),
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
            said: Arc::clone(&said),
            changed: changed.clone(),
        };
        every("kubelet", config.groups.rescan, move || kubelet.look())?;

        let valid_for = config.groups.rescan * LOOKS + ANSWER;
        let (root, alarms, disputed) = (root.clone(), vec![], BTreeSet::new());
        let this = Self { root, known, said, valid_for, alarms, disputed };
        // What a previous instance has slowed stays so, where both answer: else it were lifted, and slowed again.
        let until = clock::now() + FIRST_ANSWERS;
        while !this.is_told() && clock::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        Ok(Some(this))
    }

    fn is_told(&self) -> bool {
        self.known.pods(clock::now()).1.is_none() && lock(&self.said).at.is_some()
    }

    /// What is wrong, as of the last look.
    pub(crate) fn alarms(&self) -> impl Iterator<Item = &Alarm> {
        self.alarms.iter()
    }

    /// Every pod that runs here, each with the CPUs that are surely its own.
    pub(crate) fn look(&mut self) -> Vec<PodVm> {
        let now = clock::now();
        let (known, silent) = self.known.pods(now);
        let paths: BTreeMap<&str, String> =
            known.keys().filter_map(|uid| Some((&**uid, Cgroup::path_of_pod(&self.root, uid)?))).collect();

        let mut alarms = vec![];
        alarms.extend(silent.map(|why| Alarm::about(AlarmId::KubernetesStale, "pods", why)));
        let (mut assigned, unknown) = self.assigned(now, &known);
        if let Some(why) = unknown {
            let message =
                format!("the kubelet does not say which CPUs it gave to whom, so no pod is slowed: {why}");
            alarms.push(Alarm::new(AlarmId::PodsUnknown, message));
        }
        // A pod by this name may be another one by now: then its group is another, too.
        for (uid, cpus) in mem::take(&mut assigned.pods) {
            if paths.contains_key(&*uid) {
                assigned.pods.insert(uid, cpus);
            } else {
                let key = known.get(&uid).map_or(&*uid, |pod| &pod.key);
                assigned.disputed.insert(format!("their pod {key} has no cgroup of the kubelet's"), cpus);
            }
        }
        let before = mem::take(&mut self.disputed);
        for (why, cpus) in &assigned.disputed {
            if before.contains(why) {
                let message = format!("the CPUs {cpus} are not slowed: {why}");
                alarms.push(Alarm::about(AlarmId::PodCpusDisputed, cpus, message));
            }
            self.disputed.insert(why.clone());
        }
        // Its words may tell an age: it is logged when it begins.
        let began =
            |it: &&Alarm| !self.alarms.iter().any(|old| (old.id, &old.subject) == (it.id, &it.subject));
        for alarm in alarms.iter().filter(began) {
            tracing::warn!("{}", alarm.message);
        }
        self.alarms = alarms;

        let vm = |pod: &NodePod| {
            let cpus = assigned.pods.get(&pod.uid).cloned().unwrap_or_default();
            Some(pod_vm(pod, paths.get(&*pod.uid)?.clone(), cpus))
        };
        known.values().filter_map(vm).collect()
    }

    /// Whose CPUs are whose; and why nobody knows, if nobody does.
    fn assigned(&self, now: Instant, known: &BTreeMap<String, NodePod>) -> (Assigned, Option<String>) {
        let said = lock(&self.said);
        let Some(age) = said.at.map(|at| now - at.min(now)) else {
            return (Assigned::default(), Some("it was not asked yet".into()));
        };
        if age > self.valid_for {
            return (Assigned::default(), Some(format!("the last answer is {} s old", age.as_secs())));
        }
        if said.listed.is_none() && said.state.is_none() {
            return (Assigned::default(), Some(said.problems.join("; ")));
        }
        (assigned(said.listed.as_ref(), said.state.as_ref(), known), None)
    }
}

fn pod_vm(pod: &NodePod, path: String, cpus: CpuList) -> PodVm {
    let own = u16::try_from(cpus.len()).unwrap_or(u16::MAX);
    let spec = VmSpec {
        // Told, so that neither its own use nor a prediction makes it another.
        class: Some(pod.class),
        throttle_order: 0,
        cores: if own > 0 { own } else { pod.cpus },
        cgroup: Some(path),
        // The kubelet ends pods.
        on_extreme: OnExtreme::None,
        tenant: Some(pod.namespace.clone()).filter(|it| !it.is_empty()),
        pinned: false,
    };
    PodVm { id: pod.id.clone(), spec, cpus, by: format!("the kubelet, class by {}", pod.by) }
}

/// Asks the kubelet.
struct Kubelet {
    root: Root,
    dir: String,
    runtime: tokio::runtime::Runtime,
    said: Arc<Mutex<Said>>,
    changed: mpsc::Sender<()>,
}

impl Kubelet {
    /// One look at both sources; `false` when nobody wants it any more.
    fn look(&self) -> bool {
        let socket = self.root.path(&format!("{}/{POD_RESOURCES}", self.dir));
        let listed = self.runtime.block_on(podresources::list(&socket)).map_err(|error| format!("{error:#}"));
        let state = CpuState::read(&self.root, &self.dir)
            .map_err(|error| error.to_string())
            .and_then(|state| state.ok_or_else(|| "there is no cpu_manager_state".to_owned()));

        let mut said = lock(&self.said);
        let problems: Vec<_> =
            [listed.as_ref().err(), state.as_ref().err()].into_iter().flatten().cloned().collect();
        for problem in problems.iter().filter(|it| !said.problems.contains(it)) {
            tracing::info!("the kubelet's CPUs: {problem}");
        }
        let (listed, state) = (listed.ok(), state.ok());
        let is_new = (&said.listed, &said.state) != (&listed, &state);
        *said = Said { at: Some(clock::now()), listed, state, problems };
        drop(said);
        !is_new || self.changed.send(()).is_ok()
    }
}
