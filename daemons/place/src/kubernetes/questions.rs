//! What a scheduler asks, and what is said to it.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use tokio::task::spawn_blocking;

use super::demand::Amount;
use super::extender::{Args, Failure, NEUTRAL, Nodes, scores};
use super::mirror::{Read, Verdict};
use super::{Kube, add};
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

/// The paths of [`endpoints`].
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
    kube.counters.latency.observe(start.elapsed().as_secs_f64());
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

impl Kube {
    /// The answer to `/filter`, in JSON.
    pub(super) fn answer_filter(&self, body: &[u8]) -> Result<Vec<u8>, Refused> {
        let args = self.question(body)?;
        let failures = self.filter(&args);
        add(&self.counters.filter, 1);
        serde_json::to_vec(&args.filtered(&failures)).map_err(failed)
    }

    /// The answer to `/prioritize`, in JSON.
    pub(super) fn answer_prioritize(&self, body: &[u8]) -> Result<Vec<u8>, Refused> {
        let args = self.question(body)?;
        let scores = self.prioritize(&args);
        add(&self.counters.prioritize, 1);
        serde_json::to_vec(&args.prioritized(&scores)).map_err(failed)
    }

    fn question<'a>(&self, body: &'a [u8]) -> Result<Args<'a>, Refused> {
        Args::read(body, self.nodes_max()).inspect_err(|_| add(&self.counters.refused, 1))
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
    pub(super) fn filter(&self, args: &Args<'_>) -> Vec<Option<Failure>> {
        let names = args.names();
        let asked = self.asked(args).filter(|_| self.shadow.is_none());
        let state = lock(&self.state);
        let Some(Read { amount, .. }) = asked.filter(|_| !self.is_stale(&state, clock::now())) else {
            add(&self.counters.neutral, 1);
            return vec![None; names.len()];
        };

        let tolerates = args.pod.tolerates_cordon();
        let mut failures = Vec::with_capacity(names.len());

        for (n, name) in names.into_iter().enumerate() {
            failures.push(match state.mirror.verdict(name, amount, tolerates) {
                Verdict::Fits => None,
                Verdict::Full(why) => Some(Failure::Now(why)),
                Verdict::Never(why) => Some(Failure::Never(why)),
                Verdict::Unknown => {
                    add(&self.counters.unknown_nodes, 1);
                    match &args.nodes {
                        Nodes::Whole(nodes) => never_fits(nodes[n].allocatable, amount),
                        Nodes::Names(_) => None,
                    }
                }
            });
        }

        let failed = failures.iter().flatten().count();
        add(&self.counters.failed_nodes, failed as u64);

        failures
    }

    /// How good each node is for the pod, from 0 to 10. Nodes that are not known are neutral; those that
    /// cannot have it 0.
    pub(super) fn prioritize(&self, args: &Args<'_>) -> Vec<i64> {
        let names = args.names();
        let neutral = || {
            add(&self.counters.neutral, 1);
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

        if let Some(shadow) = &self.shadow {
            let known = fitting.iter().map(|name| state.mirror.known(name).unwrap_or_else(|| (*name).into()));
            lock(shadow).keep(&args.pod.metadata.uid, known.zip(standings).collect());
            return neutral();
        }

        let mut fitting = scores(&standings).into_iter();
        let score = |verdict: &Verdict| match verdict {
            Verdict::Fits => fitting.next().unwrap_or(NEUTRAL),
            Verdict::Unknown => NEUTRAL,
            Verdict::Full(_) | Verdict::Never(_) => 0,
        };

        verdicts.iter().map(score).collect()
    }
}

/// Of a node that is not known but was sent: whether the pod is larger than all that it has.
fn never_fits(allocatable: Option<Amount>, asked: Amount) -> Option<Failure> {
    let has = allocatable.filter(|has| has.milli_cpu > 0 && has.bytes > 0)?;
    super::mirror::too_little(has, asked, "allocatable").map(Failure::Never)
}

#[cfg(test)]
mod tests {
    use ballast_placement::Policy;
    use ballast_predict::Prediction;
    use serde_json::{Value, json};

    use super::super::follow::Sink;
    use super::super::object::{Node, Pod};
    use super::*;
    use crate::config::{ConfigFile as _, PlaceConfig};
    use ballast_runtime::events::Events;

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
        assert_eq!(kube.filter(&args), vec![None; 24]);
        let given = kube.prioritize(&args);
        let Read { spec, .. } = kube.reading().request(&args.pod).unwrap();
        let state = lock(&kube.state);
        let best = state.inventory.score(clock::unix_now(), "p", &spec, 1).unwrap().hosts[0].host;
        let best = args.names().iter().position(|name| *name == state.inventory.host_name(best));
        assert_eq!((given[best.unwrap()], given.iter().min()), (10, Some(&0)));
        assert_eq!(given.len(), 24);
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
