//! A placement daemon's line in `ballast status`.

use ballast_types::wire::{DrainStatus, KubernetesStatus, PlaceStatus};

/// The model in force, its age, and what was asked; and a line more where there are hosts, or a cluster is
/// followed.
pub(super) fn line(place: &PlaceStatus) -> String {
    let hosts = &place.inventory;
    let mut all = predictions(place);
    all.extend(place.drain.as_ref().map(drain));
    all.extend(place.kubernetes.as_ref().map(kubernetes));

    if hosts.hosts == 0 {
        return all;
    }
    let closed = hosts.cordoned_hosts + hosts.draining_hosts;
    let share = |part: f64, whole: f64| if whole > 0.0 { 100.0 * part / whole } else { 0.0 };

    format!(
        "{all}\n  {} hosts in {} chassis ({closed} closed), {} VMs: {:.1} % of cores, {:.1} % of memory; \
         scores deviate by {:.3} over chassis, {:.3} over servers",
        hosts.hosts,
        hosts.chassis.len(),
        hosts.vms,
        share(hosts.allocated_cores, hosts.cores),
        share(hosts.allocated_memory_gb, hosts.memory_gb),
        hosts.chassis_score_std,
        hosts.server_score_std,
    )
}

fn drain(drain: &DrainStatus) -> String {
    let DrainStatus { id, due, late, waiting, hosts_without_room } = drain;
    format!(
        "\n  drain {id}: {due} VMs due, {late} of them late, {waiting} wait; {hosts_without_room} hosts \
         whose next VM finds no room"
    )
}

fn kubernetes(cluster: &KubernetesStatus) -> String {
    let fresh = if cluster.stale { "stale, without an opinion" } else { "followed" };
    let shadow = cluster
        .shadow
        .as_ref()
        .map(|shadow| format!("; in shadow {} agreed, {} differed", shadow.agreed, shadow.differed));
    format!(
        "\n  Kubernetes {fresh}: {} nodes ({} cordoned), {} pods; {} filtered, {} prioritized{}",
        cluster.total_nodes,
        cluster.cordoned_nodes,
        cluster.bound_pods,
        cluster.filter_requests,
        cluster.prioritize_requests,
        shadow.unwrap_or_default(),
    )
}

fn predictions(place: &PlaceStatus) -> String {
    let predict = &place.predict;
    let model = predict.model.as_ref().map_or_else(
        || "no model (every answer is conservative)".to_owned(),
        |model| {
            let checksum: String = model.checksum.chars().take(12).collect();
            let age = age(model.age_s);
            format!("model {checksum} of {} subscriptions, {age} old", model.subscriptions)
        },
    );
    format!(
        "place {}: {model}; {} requests, {} refused; {} VMs, {} conservative",
        place.name, predict.requests, predict.refused_requests, predict.predictions, predict.conservative,
    )
}

fn age(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7_199 => format!("{} min", seconds / 60),
        7_200..=172_799 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_told_in_one_unit() {
        for (seconds, text) in
            [(5, "5 s"), (120, "2 min"), (7_200, "2 h"), (86_400, "24 h"), (200_000, "2 days")]
        {
            assert_eq!(age(seconds), text);
        }
    }
}
