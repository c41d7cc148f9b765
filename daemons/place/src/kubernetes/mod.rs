//! The Kubernetes scheduler extender: `/filter` and `/prioritize` over an inventory that follows the cluster.
//!
//! ```text
//!   API server ──list, watch──▶ follow ──▶ mirror ──▶ inventory ◀── questions: POST /filter, /prioritize
//!                               (thread)   (pure)
//! ```
//!
//! Questions change nothing: who decides is the scheduler, and what it has decided comes back by the watch.
//! What is not known for certain is not held against a node.

mod demand;
mod extender;
mod feed;
mod hints;
mod labels;
mod mirror;
mod questions;
mod shadow;
#[cfg(feature = "testing")]
pub(crate) mod testing;

use std::collections::HashSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};

use ballast_placement::Policy;
use ballast_placement::inventory::{Inventory, InventoryError, PredictLifetimes};
use ballast_predict::{Prediction, Request};
use ballast_types::Instant;
use ballast_types::wire::{Alarm, AlarmId, Event, EventKind, KubernetesStatus, ShadowStatus};
use prometheus_client::metrics::histogram::{Histogram, linear_buckets};

use crate::config::KubernetesConfig;
use crate::counters::{Latency, count_more};
use ballast_runtime::events::Events;
use ballast_runtime::kubernetes::follow::{Api, follow};
use ballast_runtime::kubernetes::object::{Node, Pod};
use ballast_runtime::threads::supervise;
use ballast_runtime::{clock, lock};
use feed::Feed;
use hints::RefusedHint;
use labels::Labels;
use mirror::{Change, Holds, Mirror, ObservedPod, Read, Reading};
pub(crate) use questions::{endpoints, routes};
use shadow::{Outcome, Shadow};

/// So many refused labels are told each by itself; of more only the count is.
const TOLD_MAX: usize = 1_000;
/// A histogram of how chosen nodes stood: ten buckets from 0 (the best) to 0.9.
pub(crate) struct Standing(pub(crate) Histogram);

impl Default for Standing {
    fn default() -> Self {
        Self(Histogram::new(linear_buckets(0.0, 0.1, 10)))
    }
}

/// Says what is to be expected of a VM.
pub(crate) type Predictor = Box<dyn Fn(&Request) -> Prediction + Send + Sync>;

/// The extender, and the cluster that it follows.
pub(crate) struct Kube {
    config: KubernetesConfig,
    predictor: Predictor,
    events: Events,
    state: Mutex<State>,
    shadow: Option<Mutex<Shadow>>,
    /// What writes labels, if anything does.
    labels: Option<Labels>,
    /// Labels that were told, by workload and label.
    told: Mutex<HashSet<(String, String)>>,
    /// Held by the one long question that is read.
    long_question: Arc<tokio::sync::Mutex<()>>,
    pub(crate) counters: Counters,
}

/// What was asked and answered since the start.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) filter: AtomicU64,
    pub(crate) prioritize: AtomicU64,
    pub(crate) neutral: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) refused_hints: AtomicU64,
    pub(crate) failed_nodes: AtomicU64,
    /// Nodes that were asked about and are not known.
    pub(crate) unknown_nodes: AtomicU64,
    /// Times that the inventory had to be made anew, because it was not as the cluster.
    pub(crate) rebuilt: AtomicU64,
    pub(crate) agreed: AtomicU64,
    pub(crate) differed: AtomicU64,
    /// From a whole question of `/prioritize` to its answer.
    pub(crate) latency: Latency<50>,
    /// How the chosen node stood, from 0 (the best) to 1 (the last).
    pub(crate) standing: Standing,
}

pub(crate) struct State {
    mirror: Mirror,
    inventory: Inventory,
    nodes: Feed,
    pods: Feed,
}

impl Kube {
    /// Begins to follow the cluster, on a thread of its own for as long as the process runs.
    pub(crate) fn start(
        config: &KubernetesConfig,
        policy: Policy,
        predictor: Predictor,
        events: Events,
    ) -> anyhow::Result<Arc<Self>> {
        let this = Arc::new(Self::new(config, policy, predictor, events));
        let api = Api {
            url: config.api.clone(),
            token_file: config.token_file.clone(),
            ca_file: config.ca_file.clone(),
            page: config.page_size,
            fields: None,
            silent: config.stale_after,
        };

        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let kube = Arc::clone(&this);
        let following = async move || {
            let write = async {
                if let Some(labels) = &kube.labels {
                    labels.write(&api).await;
                }
            };
            tokio::join!(follow::<Node>(&api, &*kube), follow::<Pod>(&api, &*kube), write);
        };
        supervise("kubernetes", runtime, move |runtime| runtime.block_on(following()))?;

        Ok(this)
    }

    fn new(config: &KubernetesConfig, policy: Policy, predictor: Predictor, events: Events) -> Self {
        let (mirror, inventory) = (Mirror::default(), Inventory::new(policy));
        let state = State { mirror, inventory, nodes: Feed::default(), pods: Feed::default() };
        Self {
            config: config.clone(),
            predictor,
            events,
            state: Mutex::new(state),
            shadow: config.shadow.then(Mutex::default),
            labels: config.write_labels.then(|| Labels::new(&config.label_prefix)),
            told: Mutex::default(),
            long_question: Arc::default(),
            counters: Counters::default(),
        }
    }

    /// Why it cannot do its work yet: scores mean something once nodes and pods were listed.
    pub(crate) fn unready(&self) -> Option<String> {
        let state = lock(&self.state);
        let unheard = [("nodes", &state.nodes), ("pods", &state.pods)];
        let (what, feed) = unheard.into_iter().find(|(_, feed)| feed.heard.is_none())?;
        let why = feed.status.problem.clone().unwrap_or_else(|| "the first list is awaited".into());
        Some(format!("kubernetes: {what} are not known yet: {why}"))
    }

    pub(crate) fn status(&self) -> KubernetesStatus {
        let (state, now, count) = (lock(&self.state), clock::now(), crate::counters::count);
        let ((total_nodes, cordoned_nodes), (bound_pods, lost_pods)) =
            (state.mirror.nodes(), state.mirror.pods());
        let Counters { filter, prioritize, neutral, refused, refused_hints, agreed, differed, .. } =
            &self.counters;

        KubernetesStatus {
            api: self.config.api.clone(),
            stale: self.is_stale(&state, now),
            nodes: state.nodes.status(now),
            pods: state.pods.status(now),
            total_nodes: total_nodes as u64,
            cordoned_nodes: cordoned_nodes as u64,
            bound_pods: bound_pods as u64,
            lost_pods: lost_pods as u64,
            filter_requests: count(filter),
            prioritize_requests: count(prioritize),
            neutral_requests: count(neutral),
            refused_requests: count(refused),
            refused_hints: count(refused_hints),
            shadow: self.shadow.as_ref().map(|shadow| ShadowStatus {
                agreed: count(agreed),
                differed: count(differed),
                waiting: lock(shadow).waiting() as u64,
            }),
        }
    }

    /// What an operator should look at.
    pub(crate) fn alarms(&self) -> Vec<Alarm> {
        let (state, now) = (lock(&self.state), clock::now());
        let mut alarms: Vec<Alarm> = self.labels.iter().filter_map(Labels::alarm).collect();
        for (what, feed) in [("nodes", &state.nodes), ("pods", &state.pods)] {
            if feed.is_stale(now, self.config.stale_after) {
                let age = feed.age(now).map_or_else(
                    || format!("kubernetes: {what} were never listed"),
                    |age| format!("kubernetes: nothing was heard of {what} for {} s", age.as_secs()),
                );

                let why = feed.status.problem.as_ref().map(|why| format!(" ({why})"));
                let message = format!("{age}{}: every score is neutral", why.unwrap_or_default());
                alarms.push(Alarm::about(AlarmId::KubernetesStale, what, message));
            }

            if let Some(why) = &feed.refused {
                let n = feed.status.refused;
                let message = format!("kubernetes: {n} {what} could not be read, the last: {why}");
                alarms.push(Alarm::about(AlarmId::KubernetesUnreadable, what, message));
            }
        }

        alarms
    }

    fn is_stale(&self, state: &State, now: Instant) -> bool {
        let after = self.config.stale_after;
        state.nodes.is_stale(now, after) || state.pods.is_stale(now, after)
    }

    fn reading(&self) -> Reading<'_> {
        Reading {
            chassis_label: &self.config.chassis_label,
            label_prefix: &self.config.label_prefix,
            predict: &*self.predictor,
            now: clock::unix_now(),
        }
    }

    /// Goes on with what another model says of the pods' lifetimes.
    pub(crate) fn set_lifetimes(&self, lifetimes: Option<Arc<dyn PredictLifetimes>>) {
        lock(&self.state).inventory.set_lifetimes(clock::unix_now(), lifetimes);
    }

    fn apply(&self, mut state: MutexGuard<'_, State>) {
        let now = clock::unix_now();
        let changes = state.mirror.changes();
        if let [Change::All(snapshot)] = &*changes {
            // Without the lock: questions are answered meanwhile. Nobody else changes the state but the model's thread.
            let mut fresh = state.inventory.emptied();
            drop(state);

            if let Err(error) = fresh.replace(now, snapshot) {
                self.alarm(format!("kubernetes: the cluster cannot be placed on: {error}"));
            }
            let mut state = lock(&self.state);
            if !same(fresh.lifetimes(), state.inventory.lifetimes()) {
                fresh.set_lifetimes(now, state.inventory.lifetimes().cloned());
            }
            state.inventory = fresh;
            return;
        }

        let applied = changes.iter().try_for_each(|change| apply(&mut state.inventory, now, change));
        if let Err(error) = applied {
            count_more(&self.counters.rebuilt, 1);
            self.alarm(format!("kubernetes: the inventory is made anew, it was not as the cluster: {error}"));
            state.mirror.all();
            self.apply(state);
        }
    }

    fn alarm(&self, message: String) {
        self.push(EventKind::Alarm { message });
    }

    fn push(&self, kind: EventKind) {
        self.events.push(Event { at_ns: clock::now(), kind });
    }

    /// Counts labels that mean nothing, and tells each once for its workload.
    fn tell_refused(&self, read: &Read) {
        count_more(&self.counters.refused_hints, read.refused.len() as u64);
        for RefusedHint { label, value, allowed } in &read.refused {
            let workload = read.spec.deployment.clone().unwrap_or_default();
            let mut told = lock(&self.told);
            if told.len() < TOLD_MAX && told.insert((workload.clone(), label.clone())) {
                self.alarm(format!(
                    "pods of {workload}: label {label} = {value:?}: {allowed}; the careful answer stands"
                ));
            }
        }
    }

    /// Counts and tells labels that mean nothing; compares, where a pod has its node, with what would have
    /// been chosen.
    fn look_at(&self, pod: &ObservedPod) {
        self.labels.iter().for_each(|labels| labels.look_at(pod));
        let Holds::Share { node, read } = &pod.holds else { return };
        if let Ok(read) = read {
            self.tell_refused(read);
        }
        let Some(shadow) = &self.shadow else { return };
        let Some(outcome) = lock(shadow).bound(&pod.ident.uid, node) else { return };
        let Outcome { best, standing, of, why } = outcome;
        let agreed = standing == Some(1);
        count_more(if agreed { &self.counters.agreed } else { &self.counters.differed }, 1);

        if let Some(standing) = standing {
            let last = (of - 1).max(1) as f64;
            self.counters.standing.0.observe((standing - 1) as f64 / last);
        }

        self.push(EventKind::ShadowPlacement {
            pod: pod.ident.name.clone(),
            chosen: node.clone(),
            best: best.to_string(),
            standing: standing.map(|it| it as u64),
            of: of as u64,
            why,
        });
    }
}

fn same(one: Option<&Arc<dyn PredictLifetimes>>, other: Option<&Arc<dyn PredictLifetimes>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (one, other) => one.is_none() && other.is_none(),
    }
}

fn apply(inventory: &mut Inventory, now: Instant, change: &Change) -> Result<(), InventoryError> {
    match change {
        Change::All(snapshot) => inventory.replace(now, snapshot),
        Change::SetHost(host) => inventory.set_host(now, &host.name, &host.spec),
        Change::RemoveHost(name) => inventory.remove_host(now, name, false).map(drop),
        Change::Put(placed) => inventory.observe(placed.since, &placed.vm, &placed.host),
        Change::Remove(name) => inventory.remove(now, name).map(drop),
    }
}
