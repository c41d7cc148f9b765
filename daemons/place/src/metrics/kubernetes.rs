//! The metrics of the scheduler extender.

use ballast_runtime::metrics::{Metric, Samples, each, flag, one, spread};
use ballast_types::wire::{FollowStatus, KubernetesStatus};

use super::{labelled, total};
use crate::kubernetes::Counters;

pub(crate) struct Followed<'a> {
    pub(crate) status: &'a KubernetesStatus,
    pub(crate) counters: &'a Counters,
}

pub(crate) fn metrics<'a>() -> Vec<Metric<Followed<'a>>> {
    cluster().into_iter().chain(feeds()).chain(questions()).chain(shadow()).collect()
}

fn cluster<'a>() -> [Metric<Followed<'a>>; 5] {
    [
        one("kubernetes_stale", "1 while too little is heard of the cluster: every score is neutral", |it| {
            flag(it.status.stale)
        }),
        one("kubernetes_nodes", "Nodes there are", |it| Some(it.status.total_nodes as f64)),
        one("kubernetes_cordoned_nodes", "Nodes marked unschedulable", |it| {
            Some(it.status.cordoned_nodes as f64)
        }),
        one("kubernetes_pods", "Pods that hold a share of a node", |it| Some(it.status.bound_pods as f64)),
        one("kubernetes_lost_pods", "Pods whose node is not known", |it| Some(it.status.lost_pods as f64)),
    ]
}

fn feeds<'a>() -> [Metric<Followed<'a>>; 7] {
    [
        each(
            "kubernetes_age_seconds",
            &["kind"],
            "Since the API server was last heard of nodes or pods; absent before they were listed",
            |it| {
                let feeds = [("nodes", it.status.nodes.age_ms), ("pods", it.status.pods.age_ms)].into_iter();
                feeds.filter_map(|(kind, ms)| Some((vec![kind.to_owned()], ms? as f64 / 1000.0))).collect()
            },
        ),
        each("kubernetes_lists_total", &["kind"], "Lists taken", |it| told(it, |feed| feed.lists)),
        each("kubernetes_watches_total", &["kind"], "Watches begun", |it| told(it, |feed| feed.watches)),
        each("kubernetes_told_objects_total", &["kind"], "Objects told by watches", |it| {
            told(it, |feed| feed.received)
        }),
        each("kubernetes_repeated_objects_total", &["kind"], "Objects told that were known already", |it| {
            told(it, |feed| feed.repeated)
        }),
        each(
            "kubernetes_late_objects_total",
            &["kind"],
            "Objects told that were older than what was known",
            |it| told(it, |feed| feed.late),
        ),
        each("kubernetes_refused_objects_total", &["kind"], "Objects that could not be read", |it| {
            told(it, |feed| feed.refused)
        }),
    ]
}

fn told(it: &Followed<'_>, read: fn(&FollowStatus) -> u64) -> Samples {
    labelled([("nodes", read(&it.status.nodes)), ("pods", read(&it.status.pods))])
}

fn questions<'a>() -> [Metric<Followed<'a>>; 9] {
    [
        one("kubernetes_filter_requests_total", "Questions of /filter answered", |it| {
            total(&it.counters.filter)
        }),
        one("kubernetes_prioritize_requests_total", "Questions of /prioritize answered", |it| {
            total(&it.counters.prioritize)
        }),
        one("kubernetes_neutral_answers_total", "Questions answered without an opinion", |it| {
            total(&it.counters.neutral)
        }),
        one("kubernetes_refused_requests_total", "Questions refused for what was in them", |it| {
            total(&it.counters.refused)
        }),
        one("kubernetes_refused_hints_total", "Labels of pods that mean nothing", |it| {
            total(&it.counters.refused_hints)
        }),
        one("kubernetes_failed_nodes_total", "Nodes that /filter took out", |it| {
            total(&it.counters.failed_nodes)
        }),
        one("kubernetes_unknown_nodes_total", "Nodes that /filter was asked about in vain", |it| {
            total(&it.counters.unknown_nodes)
        }),
        one("kubernetes_rebuilt_total", "Times that the inventory was not as the cluster", |it| {
            total(&it.counters.rebuilt)
        }),
        spread(
            "kubernetes_prioritize_latency_seconds",
            "From a whole question of /prioritize to its answer",
            |it| Some(&it.counters.latency.0),
        ),
    ]
}

/// What only shadow mode has.
fn shadow<'a>() -> [Metric<Followed<'a>>; 3] {
    [
        one(
            "kubernetes_shadow_agreed_total",
            "Pods that went where they would have been put; only in shadow mode",
            |it| Some(it.status.shadow.as_ref()?.agreed as f64),
        ),
        one("kubernetes_shadow_differed_total", "Pods that went elsewhere; only in shadow mode", |it| {
            Some(it.status.shadow.as_ref()?.differed as f64)
        }),
        spread(
            "kubernetes_shadow_standing",
            "How the chosen node stood, from 0 (the best) to 1 (the last); only in shadow mode",
            |it| it.status.shadow.as_ref().map(|_| &it.counters.standing.0),
        ),
    ]
}
