//! The metrics of the scheduler extender.

use ballast_types::wire::KubernetesStatus;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Unit;

use super::{Labelled, Scrape};
use crate::counters::count;
use crate::kubernetes::Counters;

type Counts = Family<Vec<(&'static str, &'static str)>, Counter>;

/// Adds the metrics of an extender.
pub(super) fn kubernetes(scrape: &mut Scrape, status: &KubernetesStatus, counters: &Counters) {
    let stale = f64::from(u8::from(status.stale));
    let help = "1 while too little is heard of the cluster: every score is neutral";
    scrape.gauge("kubernetes_stale", help, None, stale);
    let ages = Labelled::default();
    let families = [(); 6].map(|()| Counts::default());

    for (kind, feed) in [("nodes", &status.nodes), ("pods", &status.pods)] {
        if let Some(ms) = feed.age_ms {
            ages.get_or_create(&vec![("kind", kind.to_owned())]).set(ms as f64 / 1000.0);
        }
        let values = [feed.lists, feed.watches, feed.received, feed.repeated, feed.late, feed.refused];
        for (family, value) in families.iter().zip(values) {
            family.get_or_create(&vec![("kind", kind)]).inc_by(value);
        }
    }

    let help = "Since the API server was last heard of them; absent before they were listed";
    scrape.0.register_with_unit("kubernetes_age", help, Unit::Seconds, ages);
    let helps = [
        ("kubernetes_lists", "Lists taken"),
        ("kubernetes_watches", "Watches begun"),
        ("kubernetes_told_objects", "Objects told by watches"),
        ("kubernetes_repeated_objects", "Objects told that were known already"),
        ("kubernetes_late_objects", "Objects told that were older than what was known"),
        ("kubernetes_refused_objects", "Objects that could not be read"),
    ];

    for ((name, help), family) in helps.into_iter().zip(families) {
        scrape.0.register(name, help, family);
    }
    for (name, help, value) in [
        ("kubernetes_nodes", "Nodes there are", status.total_nodes),
        ("kubernetes_cordoned_nodes", "Nodes marked unschedulable", status.cordoned_nodes),
        ("kubernetes_pods", "Pods that hold a share of a node", status.bound_pods),
        ("kubernetes_lost_pods", "Pods whose node is not known", status.lost_pods),
    ] {
        scrape.gauge(name, help, None, value as f64);
    }

    for (name, help, value) in [
        ("kubernetes_filter_requests", "Questions of /filter answered", &counters.filter),
        ("kubernetes_prioritize_requests", "Questions of /prioritize answered", &counters.prioritize),
        ("kubernetes_neutral_answers", "Questions answered without an opinion", &counters.neutral),
        ("kubernetes_refused_requests", "Questions refused for what was in them", &counters.refused),
        ("kubernetes_refused_hints", "Labels of pods that mean nothing", &counters.refused_hints),
        ("kubernetes_failed_nodes", "Nodes that /filter took out", &counters.failed_nodes),
        ("kubernetes_unknown_nodes", "Nodes that /filter was asked about in vain", &counters.unknown_nodes),
        ("kubernetes_rebuilt", "Times that the inventory was not as the cluster", &counters.rebuilt),
    ] {
        scrape.counter(name, help, count(value));
    }

    let help = "From a whole question of /prioritize to its answer";
    let (unit, latency) = (Unit::Seconds, counters.latency.clone());
    scrape.0.register_with_unit("kubernetes_prioritize_latency", help, unit, latency);

    if let Some(shadow) = &status.shadow {
        scrape.counter(
            "kubernetes_shadow_agreed",
            "Pods that went where they would have been put",
            shadow.agreed,
        );

        scrape.counter("kubernetes_shadow_differed", "Pods that went elsewhere", shadow.differed);
        let help = "How the chosen node stood, from 0 (the best) to 1 (the last)";
        scrape.0.register("kubernetes_shadow_standing", help, counters.standing.clone());
    }
}
