//! What a scheduler asks, and what is said to it.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use ballast_placement::inventory::{Inventory, VmSpec};
use tokio::task::spawn_blocking;

use super::Kube;
use super::demand::Amount;
use super::extender::{Args, NEUTRAL, Nodes, scores};
use super::mirror::{Read, Verdict};
use crate::counters::count_more;
use ballast_runtime::http::{Endpoint, Refused, router};
use ballast_runtime::{clock, lock};

/// A question of so many bytes is read in less than a millisecond.
const SHORT: usize = 64 << 10;
/// No cluster has more nodes; so many may be asked about before the first list has come.
const NODES_MAX: usize = 100_000;
/// Nodes that a small cluster may have got since the last word of the API server.
const NODES_SINCE: usize = 100;

/// What a scheduler asks. Neither changes anything.
pub(crate) fn endpoints() -> Vec<Endpoint<Arc<Kube>>> {
    vec![
        Endpoint::post("/filter", filter)
            .takes("Kubernetes' `ExtenderArgs`; only with `[kubernetes]`, as the next one")
            .answers("`ExtenderFilterResult`: the nodes that can have the pod"),
        Endpoint::post("/prioritize", prioritize)
            .takes("`ExtenderArgs`")
            .answers("`HostPriorityList`: a score from 0 to 10 for each node"),
    ]
}

pub(crate) fn routes(kube: Arc<Kube>) -> Router {
    router(endpoints())
        // The access has seen to it that none is too long.
        .layer(DefaultBodyLimit::disable())
        .with_state(kube)
}

async fn filter(State(kube): State<Arc<Kube>>, body: Bytes) -> Result<Response, Refused> {
    answer(kube, body, Kube::answer_filter).await
}

async fn prioritize(State(kube): State<Arc<Kube>>, body: Bytes) -> Result<Response, Refused> {
    let start = Instant::now();
    let answer = answer(Arc::clone(&kube), body, Kube::answer_prioritize).await?;
    kube.counters.latency.0.observe(start.elapsed().as_secs_f64());
    Ok(answer)
}

/// Answers a question. A long one is read beside the thread that answers everybody, and one at a time: two would take
/// twice the memory.
async fn answer(
    kube: Arc<Kube>,
    body: Bytes,
    answer: fn(&Kube, &[u8]) -> Result<Vec<u8>, Refused>,
) -> Result<Response, Refused> {
    let answered = if body.len() <= SHORT {
        answer(&kube, &body)
    } else {
        let turn = Arc::clone(&kube.long_question).lock_owned().await;
        let beside = spawn_blocking(move || {
            let answered = answer(&kube, &body);
            drop(turn);
            answered
        });
        beside.await.map_err(failed)?
    };
    Ok(([(header::CONTENT_TYPE, "application/json")], answered?).into_response())
}

fn failed(error: impl Display) -> Refused {
    Refused(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

/// What the rules say of a node, in words.
fn why(inventory: &Inventory, spec: &VmSpec, node: &str) -> String {
    let verdicts = inventory.explain(clock::unix_now(), spec, node).unwrap_or_default();
    verdicts.iter().map(|it| format!("{}: {}", it.rule, it.reason)).collect::<Vec<_>>().join("; ")
}

impl Kube {
    /// The answer to `/filter`, in JSON.
    pub(super) fn answer_filter(&self, body: &[u8]) -> Result<Vec<u8>, Refused> {
        let args = self.question(body)?;
        let verdicts = self.filter(&args);
        count_more(&self.counters.filter, 1);
        serde_json::to_vec(&args.filtered(&verdicts)).map_err(failed)
    }

    /// The answer to `/prioritize`, in JSON.
    pub(super) fn answer_prioritize(&self, body: &[u8]) -> Result<Vec<u8>, Refused> {
        let args = self.question(body)?;
        let scores = self.prioritize(&args);
        count_more(&self.counters.prioritize, 1);
        serde_json::to_vec(&args.prioritized(&scores)).map_err(failed)
    }

    fn question<'a>(&self, body: &'a [u8]) -> Result<Args<'a>, Refused> {
        Args::read(body, self.nodes_max()).inspect_err(|_| count_more(&self.counters.refused, 1))
    }

    /// How many nodes a question may be about: more than are known, because some may have come since.
    fn nodes_max(&self) -> usize {
        let state = lock(&self.state);
        match state.nodes.heard {
            Some(_) => 2 * state.mirror.nodes().0 + NODES_SINCE,
            None => NODES_MAX,
        }
    }

    /// What the pod of a question asks for; `None` where it cannot be read.
    fn asked(&self, args: &Args<'_>) -> Option<Read> {
        let read = self.reading().request(&args.pod);
        match &read {
            Ok(read) => self.tell_refused(read),
            Err(why) => tracing::debug!(pod = args.pod.key(), "not read: {why}"),
        }
        read.ok()
    }

    /// Why each node cannot have the pod, where that is certain.
    pub(super) fn filter(&self, args: &Args<'_>) -> Vec<Verdict> {
        let names = args.names();
        let asked = self.asked(args).filter(|_| self.shadow.is_none());
        let state = lock(&self.state);
        let Some(Read { amount, .. }) = asked.filter(|_| !self.is_stale(&state, clock::now())) else {
            count_more(&self.counters.neutral, 1);
            return vec![Verdict::Fits; names.len()];
        };

        let tolerates = args.pod.tolerates_cordon();
        let verdicts = names.into_iter().enumerate().map(|(n, name)| {
            let verdict = state.mirror.verdict(name, amount, tolerates);
            if verdict != Verdict::Unknown {
                return verdict;
            }
            count_more(&self.counters.unknown_nodes, 1);
            match &args.nodes {
                Nodes::Whole(nodes) => never_fits(nodes[n].allocatable, amount),
                Nodes::Names(_) => verdict,
            }
        });
        let verdicts: Vec<Verdict> = verdicts.collect();
        let failed = verdicts.iter().filter(|verdict| verdict.fails()).count();
        count_more(&self.counters.failed_nodes, failed as u64);

        verdicts
    }

    /// How good each node is for the pod, from 0 to 10. Nodes that are not known are neutral; those that
    /// cannot have it 0.
    pub(super) fn prioritize(&self, args: &Args<'_>) -> Vec<i64> {
        let names = args.names();
        let neutral = || {
            count_more(&self.counters.neutral, 1);
            vec![NEUTRAL; names.len()]
        };

        let asked = self.asked(args);
        let (mut state, now) = (lock(&self.state), clock::now());
        state.inventory.catch_up(clock::unix_now());
        let Some(Read { spec, amount, .. }) = asked.filter(|_| !self.is_stale(&state, now)) else {
            return neutral();
        };
        let tolerates = args.pod.tolerates_cordon();
        let verdicts = names.iter().map(|name| state.mirror.verdict(name, amount, tolerates));
        let verdicts: Vec<_> = verdicts.collect();
        let fitting = names.iter().zip(&verdicts).filter(|(_, verdict)| **verdict == Verdict::Fits);
        let fitting: Vec<&str> = fitting.map(|(name, _)| *name).collect();
        let Ok(standings) = state.inventory.standings(clock::unix_now(), &spec, &fitting) else {
            // The inventory is being made anew.
            return neutral();
        };

        let best = fitting.iter().zip(&standings).min_by_key(|(name, standing)| (**standing, **name));
        let is_told = self.shadow.is_some() || tracing::enabled!(tracing::Level::DEBUG);
        let why = best.filter(|_| is_told).map(|(best, _)| {
            let why = why(&state.inventory, &spec, best);
            tracing::debug!(pod = args.pod.key(), best, "{why}");
            why
        });

        if let Some(shadow) = &self.shadow {
            let known = fitting.iter().map(|name| state.mirror.known(name).unwrap_or_else(|| (*name).into()));
            lock(shadow).keep(
                &args.pod.metadata.uid,
                known.zip(standings).collect(),
                why.unwrap_or_default(),
            );
            return neutral();
        }

        let mut fitting = scores(&standings).into_iter();
        let scores = verdicts.iter().map(|verdict| match verdict {
            Verdict::Fits => fitting.next().unwrap_or(NEUTRAL),
            Verdict::Unknown => NEUTRAL,
            Verdict::Full(_) | Verdict::Never(_) => 0,
        });
        scores.collect()
    }
}

/// Of a node that is not known but was sent: whether the pod is larger than all that it has.
fn never_fits(allocatable: Option<Amount>, asked: Amount) -> Verdict {
    let allocatable = allocatable.filter(|amount| amount.milli_cpu > 0 && amount.bytes > 0);
    let why = allocatable.and_then(|amount| super::mirror::too_little(amount, asked, "allocatable"));
    why.map_or(Verdict::Unknown, Verdict::Never)
}

#[cfg(test)]
mod tests {
    use ballast_placement::Policy;
    use ballast_predict::Prediction;
    use serde_json::{Value, json};

    use super::*;
    use crate::config::{ConfigFile as _, PlaceConfig};
    use crate::lifetimes::Lifetimes;
    use crate::lifetimes_tests::model;
    use ballast_placement::LifetimeRule;
    use ballast_predict::lifetime::LifetimeFile;
    use ballast_runtime::events::Events;
    use ballast_runtime::kubernetes::follow::Sink;
    use ballast_runtime::kubernetes::object::{Node, Pod};

    /// A cluster of so many nodes, twenty pods on each.
    fn cluster(nodes: usize) -> Kube {
        let config = PlaceConfig::parse("place.toml", "name = \"a\"\n[kubernetes]\n").unwrap();
        let predict = Box::new(|_: &_| Prediction::unknown());
        let kube = Kube::new(&config.kubernetes.unwrap(), Policy::POWER, predict, Events::default());
        let node = |n: usize| -> Node {
            serde_json::from_value(json!({"metadata": {"name": format!("node-{n:05}"), "uid": n.to_string(),
                "resourceVersion": "1", "labels": {"ballast.dev/chassis": format!("c{}", n / 12)}},
                "status": {"allocatable": {"cpu": "40", "memory": "128Gi"}}}))
            .unwrap()
        };

        let pod = |n: usize| -> Pod {
            // Of sizes and classes that differ from node to node, so that ranks do.
            let milli = 300 + (n * 7919) % 1400;
            serde_json::from_value(json!({"metadata": {"name": format!("p{n}"), "namespace": "n",
                "uid": n.to_string(),
                "resourceVersion": "1", "labels": {"ballast.dev/p95": (n % 97).to_string(),
                    "ballast.dev/class":
                        if n.is_multiple_of(3) { "user-facing" } else { "non-user-facing" }}},
                "spec": {"nodeName": format!("node-{:05}", n / 20), "containers": [{"name": "c",
                    "resources": {"requests": {"cpu": format!("{milli}m"),
                        "memory": format!("{milli}Mi")}}}]}}))
            .unwrap()
        };

        Sink::<Node>::listed(&kube, (0..nodes).map(|n| kube.read(&node(n))).collect());
        Sink::<Pod>::listed(&kube, (0..20 * nodes).map(|n| kube.read(&pod(n))).collect());

        kube
    }

    fn question(nodes: usize) -> String {
        let mut question: Value = serde_json::from_str(include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/kubernetes/question.names.json"
        )))
        .unwrap();
        question["NodeNames"] = (0..nodes).map(|n| format!("node-{n:05}")).collect();
        question.to_string()
    }

    #[test]
    fn scores_follow_the_policys_standings() {
        let kube = cluster(24);
        let body = question(24);
        let args = Args::read(body.as_bytes(), 24).map_err(|it| it.1).unwrap();
        assert_eq!(kube.filter(&args), vec![Verdict::Fits; 24]);
        let given = kube.prioritize(&args);
        let Read { spec, .. } = kube.reading().request(&args.pod).unwrap();
        let state = lock(&kube.state);
        let best = state.inventory.score(clock::unix_now(), "p", &spec, 1).unwrap().hosts[0].host;
        let best = args.names().iter().position(|name| *name == state.inventory.host_name(best));
        assert_eq!((given[best.unwrap()], given.iter().min()), (10, Some(&0)));
        assert_eq!(given.len(), 24);
    }

    #[test]
    fn a_pod_goes_where_pods_end_with_it_and_the_reason_is_told() {
        let config = PlaceConfig::parse("place.toml", "name = \"a\"\n[kubernetes]\nshadow = true\n").unwrap();
        let policy = Policy { lifetimes: LifetimeRule::Nilas, ..Policy::POWER };
        let predict = Box::new(|_: &_| Prediction::unknown());
        let kube = Kube::new(&config.kubernetes.unwrap(), policy, predict, Events::default());
        let lifetimes = Lifetimes::new(LifetimeFile::decode(&model(false)).unwrap());
        kube.set_lifetimes(Some(Arc::new(lifetimes)));

        let node = |n: usize| -> Node {
            let name = format!("node-{n}");
            serde_json::from_value(json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"},
                "status": {"allocatable": {"cpu": "40", "memory": "128Gi"}}}))
            .unwrap()
        };
        let now = jiff::Timestamp::now().to_string();
        let pod = |name: &str, tenant: &str, labels: Value, node: &str| -> Pod {
            serde_json::from_value(json!({"metadata": {"name": name, "namespace": tenant, "uid": name,
                "resourceVersion": "1", "labels": labels, "creationTimestamp": now},
                "spec": {"nodeName": node, "containers": [{"name": "c",
                    "resources": {"requests": {"cpu": "2", "memory": "8G"}}}]}}))
            .unwrap()
        };

        // The model knows these tenants: ten hours, and ten minutes. A label is believed instead.
        let told = json!({"ballast.dev/lifetime": "30m"});
        let pods = [
            pod("p0", "long", json!({}), "node-0"),
            pod("p1", "short", json!({}), "node-1"),
            pod("p2", "long", told, "node-2"),
        ];
        Sink::<Node>::listed(&kube, (0..4).map(|n| kube.read(&node(n))).collect());
        Sink::<Pod>::listed(&kube, pods.iter().map(|pod| kube.read(pod)).collect());

        for (tenant, best, says) in [
            ("long", "node-0", "nilas: node-0 is expected to be free in 10"),
            ("short", "node-0", "nilas: node-0 is expected to be free in 10"),
        ] {
            let mut question: Value = serde_json::from_str(&question(4)).unwrap();
            question["NodeNames"] = (0..4).map(|n| format!("node-{n}")).collect();
            question["Pod"]["metadata"] = json!({"name": "new", "namespace": tenant, "uid": tenant});
            let body = question.to_string();
            let args = Args::read(body.as_bytes(), 4).map_err(|it| it.1).unwrap();
            kube.prioritize(&args);
            let outcome = lock(kube.shadow.as_ref().unwrap()).bound(tenant, "node-3").unwrap();
            assert!(&*outcome.best == best && outcome.why.contains(says), "{tenant}: {outcome:?}");
        }
    }

    #[test]
    #[expect(clippy::print_stderr, reason = "it is there to print")]
    #[ignore = "prints how long a question takes: run it in release, on a quiet machine"]
    fn how_long_a_question_takes() {
        for nodes in [720, 5_000] {
            let (kube, body) = (cluster(nodes), question(nodes));
            let time = |what: &str, ask: &dyn Fn(&Args<'_>) -> String| {
                let mut took: Vec<_> = (0..300)
                    .map(|_| {
                        let start = Instant::now();
                        let args = Args::read(body.as_bytes(), nodes).map_err(|it| it.1).unwrap();
                        assert!(ask(&args).len() > nodes);
                        start.elapsed()
                    })
                    .collect();
                took.sort_unstable();
                eprintln!("{what}, {nodes} nodes: median {:?}, p99 {:?}", took[150], took[297]);
            };

            let text = |answer: &dyn Fn() -> serde_json::Result<String>| answer().unwrap();
            time("/prioritize", &|args| {
                let scores = kube.prioritize(args);
                text(&|| serde_json::to_string(&args.prioritized(&scores)))
            });

            time("/filter", &|args| {
                let failures = kube.filter(args);
                text(&|| serde_json::to_string(&args.filtered(&failures)))
            });
        }
    }
}
