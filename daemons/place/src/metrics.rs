//! The metrics of a placement daemon.

mod admission;
mod kubernetes;

use std::sync::atomic::AtomicU64;

use ballast_runtime::metrics::{Metric, MetricLine, Samples, each, flag, lines, one, spread};
use ballast_types::wire::{AgentsStatus, DrainStatus, LifetimeModelStatus, PlaceStatus};

use crate::agents::Agents;
use crate::counters::{Counters, Sure, count};
use crate::fault::REASONS;

pub(crate) use kubernetes::{Followed, metrics as kubernetes};

pub(crate) const PREFIX: &str = "ballast_place";

/// What a placement daemon shows.
pub(crate) struct Shown<'a> {
    pub(crate) status: &'a PlaceStatus,
    pub(crate) counters: &'a Counters,
    pub(crate) agents: &'a Agents,
}

/// What the reference says of its metrics: without, and with `[kubernetes]`.
#[must_use]
pub fn metrics_references() -> [Vec<MetricLine>; 2] {
    [lines(PREFIX, &metrics()), lines(PREFIX, &kubernetes())]
}

/// Every metric, but for those of the scheduler extender.
pub(crate) fn metrics<'a>() -> Vec<Metric<Shown<'a>>> {
    model()
        .into_iter()
        .chain(lifetimes())
        .chain(answers())
        .chain(hosts())
        .chain(scores())
        .chain(agents())
        .chain([drain()])
        .chain(admission::metrics())
        .chain(overcommit())
        .collect()
}

fn model<'a>() -> [Metric<Shown<'a>>; 6] {
    [
        one("model_loaded", "1 while there is a model; 0: every answer is conservative", |it| {
            flag(it.status.predict.model.is_some())
        }),
        one("model_age_seconds", "Since the past that the model knows ends", |it| {
            Some(it.status.predict.model.as_ref()?.age_s as f64)
        }),
        one("model_subscriptions", "Subscriptions whose past the model knows", |it| {
            Some(it.status.predict.model.as_ref()?.subscriptions as f64)
        }),
        each("model_info", &["checksum", "version"], "1, with the model in force", |it| {
            let model = it.status.predict.model.iter();
            model.map(|model| (vec![model.checksum.clone(), model.version.to_string()], 1.0)).collect()
        }),
        one("model_loads_total", "Models taken", |it| Some(it.status.predict.loads as f64)),
        one("model_failed_loads_total", "Model files that could not be used", |it| {
            Some(it.status.predict.failed_loads as f64)
        }),
    ]
}

fn lifetimes<'a>() -> [Metric<Shown<'a>>; 4] {
    fn of<'s>(shown: &'s Shown<'_>) -> Option<&'s LifetimeModelStatus> {
        shown.status.predict.model.as_ref()?.lifetime.as_ref()
    }
    [
        one("lifetime_curves", "Curves of lifetimes that the model has; absent where it knows none", |it| {
            Some(of(it)?.curves as f64)
        }),
        one("lifetime_model_age_seconds", "Since the last start or end of a VM that the model knows", |it| {
            Some(of(it)?.age_s as f64)
        }),
        one("lifetime_history_bytes", "Length of the table of when VMs started and ended", |it| {
            Some(it.status.lifetime_history.as_ref()?.bytes as f64)
        }),
        each(
            "lifetime_history_rows_total",
            &["outcome"],
            "Rows for that table by what became of them",
            |it| {
                let Some(history) = &it.status.lifetime_history else { return vec![] };
                labelled([("written", history.written), ("dropped", history.dropped)])
            },
        ),
    ]
}

fn answers<'a>() -> [Metric<Shown<'a>>; 9] {
    [
        one("requests_total", "Requests answered", |it| total(&it.counters.requests)),
        one("refused_requests_total", "Requests refused for what was in them", |it| {
            total(&it.counters.refused)
        }),
        one("conservative_answers_total", "VMs whose class or P95 was not sure enough to act on", |it| {
            total(&it.counters.conservative)
        }),
        one("answers_without_model_total", "VMs answered for without a model", |it| {
            total(&it.counters.unmodelled)
        }),
        each(
            "class_predictions_total",
            &["class", "confident"],
            "VMs by predicted class, and whether that was sure enough to act on",
            |it| by(&["user-facing", "non-user-facing"], &it.counters.classes),
        ),
        each(
            "p95_predictions_total",
            &["bucket", "confident"],
            "VMs by predicted bucket of their P95 use, and whether that was sure enough to act on",
            |it| by(&["1", "2", "3", "4"], &it.counters.buckets),
        ),
        spread("predict_latency_seconds", "From a whole request to its answer", |it| {
            Some(&it.counters.latency.0)
        }),
        spread("score_latency_seconds", "From a whole request to /v1/score to its answer", |it| {
            Some(&it.counters.score_latency.0)
        }),
        spread(
            "place_latency_seconds",
            "From a whole request to /v1/place to its answer, when it is on disk",
            |it| Some(&it.counters.place_latency.0),
        ),
    ]
}

fn hosts<'a>() -> [Metric<Shown<'a>>; 8] {
    [
        each("hosts", &["state"], "Hosts by whether VMs may come", |it| {
            let status = &it.status.inventory;
            let closed = status.cordoned_hosts + status.draining_hosts;
            labelled([
                ("open", status.hosts.saturating_sub(closed)),
                ("cordoned", status.cordoned_hosts),
                ("draining", status.draining_hosts),
            ])
        }),
        one("used_hosts", "Hosts with a VM", |it| Some(it.status.inventory.used_hosts as f64)),
        one("overcommitted_hosts", "Hosts whose VMs take more than they have", |it| {
            Some(it.status.inventory.overcommitted_hosts as f64)
        }),
        one("placed_vms", "VMs that are placed", |it| Some(it.status.inventory.vms as f64)),
        one("host_cores", "Cores that the hosts have", |it| Some(it.status.inventory.cores)),
        one("host_allocated_cores", "Cores that the VMs take of those", |it| {
            Some(it.status.inventory.allocated_cores)
        }),
        one("host_memory_bytes", "Memory that the hosts have", |it| {
            Some(it.status.inventory.memory_gb * 1e9)
        }),
        one("host_allocated_memory_bytes", "Memory that the VMs take of that", |it| {
            Some(it.status.inventory.allocated_memory_gb * 1e9)
        }),
    ]
}

fn scores<'a>() -> [Metric<Shown<'a>>; 6] {
    [
        one("chassis_score_stddev", "How unevenly power is spread over chassis", |it| {
            Some(it.status.inventory.chassis_score_std)
        }),
        one("server_score_stddev", "How unevenly what can be throttled is spread over servers", |it| {
            Some(it.status.inventory.server_score_std)
        }),
        each("chassis_score", &["chassis"], "1 less the P95 load of a chassis's cores", |it| {
            let chassis = it.status.inventory.chassis.iter();
            chassis.map(|it| (vec![it.chassis.clone()], it.score)).collect()
        }),
        one("placements_total", "VMs placed", |it| Some(it.status.inventory.placed as f64)),
        one("removals_total", "VMs removed", |it| Some(it.status.inventory.removed as f64)),
        each(
            "refusals_total",
            &["reason"],
            "Questions and changes about hosts and VMs that were refused",
            |it| counted(REASONS, &it.counters.refusals),
        ),
    ]
}

/// What is promised of overcommitted hosts.
fn overcommit<'a>() -> [Metric<Shown<'a>>; 4] {
    [
        each("overcommit_info", &["estimator"], "1, with how VMs' use of CPU is added up", |it| {
            let told = it.status.overcommit.iter();
            told.map(|it| (vec![it.estimator.clone()], 1.0)).collect()
        }),
        one(
            "overcommit_allowed_risk_ratio",
            "The share of time that may be said of a host with a newcomer",
            |it| it.status.overcommit.as_ref().map(|told| told.allowed_risk),
        ),
        each("overcommit_hosts", &["state"], "Hosts by whether their VMs' use of CPU is known", |it| {
            let Some(told) = &it.status.overcommit else { return vec![] };
            labelled([("measured", told.measured_hosts), ("unmeasured", told.unmeasured_hosts)])
        }),
        one("overcommit_closed_hosts", "Hosts that take nobody, since their VMs demanded too much", |it| {
            Some(it.status.overcommit.as_ref()?.closed_hosts as f64)
        }),
    ]
}

fn agents<'a>() -> [Metric<Shown<'a>>; 4] {
    [
        each("agents", &["state"], "Hosts by whether their agent has what is predicted of its VMs", |it| {
            let AgentsStatus { current, behind, silent_hosts, .. } = it.status.agents;
            labelled([("current", current), ("behind", behind), ("silent", silent_hosts)])
        }),
        each("agent_messages_total", &["outcome"], "Messages to agents by what became of them", |it| {
            let AgentsStatus { told, failed, .. } = it.status.agents;
            labelled([("told", told), ("failed", failed)])
        }),
        one("untellable_vms", "VMs that no agent can be told of", |it| {
            Some(it.status.agents.untellable_vms as f64)
        }),
        spread("agent_latency_seconds", "From a change that was answered until the agent has it", |it| {
            Some(&it.agents.latency.0)
        }),
    ]
}

fn drain<'a>() -> Metric<Shown<'a>> {
    let help = "Of the drain under way: VMs by whether their move is due, late or waits, and hosts whose \
                next VM finds no room";
    each("drain_moves", &["state"], help, |it| {
        let DrainStatus { due, late, waiting, hosts_without_room, .. } =
            it.status.drain.clone().unwrap_or_default();
        labelled([("due", due), ("late", late), ("waiting", waiting), ("without-room", hosts_without_room)])
    })
}

fn by(names: &[&str], counts: &[Sure]) -> Samples {
    let samples = names.iter().zip(counts).flat_map(|(name, counts)| {
        let counts = ["false", "true"].into_iter().zip(counts);
        counts.map(|(sure, counter)| (vec![(*name).to_owned(), sure.to_owned()], count(counter) as f64))
    });
    samples.collect()
}

fn total(counter: &AtomicU64) -> Option<f64> {
    Some(count(counter) as f64)
}

fn labelled<const N: usize>(values: [(&str, u64); N]) -> Samples {
    values.map(|(label, value)| (vec![label.to_owned()], value as f64)).to_vec()
}

fn counted<const N: usize>(labels: [&str; N], counters: &[AtomicU64; N]) -> Samples {
    let values = labels.into_iter().zip(counters);
    values.map(|(label, counter)| (vec![label.to_owned()], count(counter) as f64)).collect()
}
