//! What is predicted of a pod, written on it as a label; off unless configured.
//!
//! Written by server-side apply, so that the API server itself keeps what others have written: who owns the label
//! wins. A pod of which nothing is known gets none, unless it has one that is no longer true.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Mutex;

use axum::http::StatusCode;
use ballast_runtime::lock;
use ballast_types::VmClass;
use ballast_types::wire::{Alarm, AlarmId};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::hints;
use super::mirror::{Holds, ObservedPod};
use ballast_runtime::kubernetes::follow::{Api, Backoff, Connection};

/// Answers that another try changes nothing about: it is gone, somebody else's, or not to be written.
const FINAL: [StatusCode; 3] =
    [StatusCode::NOT_FOUND, StatusCode::CONFLICT, StatusCode::UNPROCESSABLE_ENTITY];

pub(super) struct Labels {
    label: String,
    state: Mutex<LabelState>,
    wake: Notify,
}

#[derive(Default)]
struct LabelState {
    /// By uid: `namespace/name`, and what its label is to say.
    waiting: BTreeMap<String, (String, VmClass)>,
    /// By uid: what was written, or refused for good. Whoever takes the label off again is not contradicted
    /// before the next list.
    settled: BTreeMap<String, VmClass>,
    problem: Option<String>,
}

impl Labels {
    pub(super) fn new(prefix: &str) -> Self {
        Self { label: hints::criticality(prefix), state: Mutex::default(), wake: Notify::default() }
    }

    /// All pods are told anew: what was settled is tried once more.
    pub(super) fn listed(&self) {
        lock(&self.state).settled.clear();
    }

    pub(super) fn look_at(&self, pod: &ObservedPod) {
        let (mut state, uid) = (lock(&self.state), &pod.ident.uid);
        let Holds::Share { read: Ok(read), .. } = &pod.holds else {
            state.waiting.remove(uid);
            state.settled.remove(uid);
            return;
        };
        let class = read.spec.class;
        let is_due = match &read.criticality {
            Some(says) => says != class.name(),
            None => read.spec.known,
        };
        if is_due && state.settled.get(uid) != Some(&class) {
            state.waiting.insert(uid.clone(), (pod.ident.name.clone(), class));
            self.wake.notify_one();
        } else {
            state.waiting.remove(uid);
        }
    }

    pub(super) fn forget(&self, uid: &str) {
        let mut state = lock(&self.state);
        state.waiting.remove(uid);
        state.settled.remove(uid);
    }

    pub(super) fn alarm(&self) -> Option<Alarm> {
        let state = lock(&self.state);
        let why = state.problem.as_ref().filter(|_| !state.waiting.is_empty())?;
        let message = format!("kubernetes: {} labels are not written: {why}", state.waiting.len());
        Some(Alarm::new(AlarmId::KubernetesUnlabelled, message))
    }

    /// Writes what is to be written, for ever.
    pub(super) async fn write(&self, api: &Api) {
        let (mut connection, mut backoff) = (Connection::default(), Backoff::default());
        let mut last = String::new();
        loop {
            let Some((uid, (name, class))) = self.after(&last) else {
                self.wake.notified().await;
                continue;
            };
            // One that cannot be labelled keeps no other waiting.
            last.clone_from(&uid);
            let (namespace, pod) = name.split_once('/').unwrap_or_default();
            let labels = json!({&self.label: class.name()});
            let metadata = json!({"name": pod, "namespace": namespace, "uid": uid, "labels": labels});
            let body = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata});
            let path = format!("namespaces/{namespace}/pods/{pod}");
            match connection.apply(api, &path, body.to_string()).await {
                Ok(()) => tracing::debug!(pod = name, class = class.name(), "the label is written"),
                Err(failure) if failure.status.is_some_and(|status| FINAL.contains(&status)) => {
                    tracing::debug!(pod = name, "the label is not written: {failure}");
                }
                Err(failure) => {
                    lock(&self.state).problem = Some(failure.to_string());
                    sleep(failure.after.unwrap_or_default().max(backoff.longer())).await;
                    continue;
                }
            }

            backoff.reset();
            self.settle(&uid, class);
        }
    }

    /// The next pod behind this one; behind the last comes the first.
    fn after(&self, uid: &str) -> Option<(String, (String, VmClass))> {
        let waiting = &lock(&self.state).waiting;
        let behind = (Bound::Excluded(uid), Bound::Unbounded);
        let next = waiting.range::<str, _>(behind).next().or_else(|| waiting.first_key_value())?;
        Some((next.0.clone(), next.1.clone()))
    }

    fn settle(&self, uid: &str, class: VmClass) {
        let mut state = lock(&self.state);
        state.problem = None;
        // By now it may be gone, or another.
        if state.waiting.get(uid).is_some_and(|(_, due)| *due == class) {
            state.waiting.remove(uid);
            state.settled.insert(uid.to_owned(), class);
        }
    }
}

#[cfg(test)]
mod tests {
    use ballast_predict::{Prediction, Request};
    use serde_json::Value;

    use super::super::mirror::Reading;
    use super::*;
    use ballast_runtime::kubernetes::object::Pod;
    use ballast_types::Instant;

    #[test]
    fn what_is_known_is_written_once_and_what_is_not_true_any_more_is_replaced() {
        let labels = Labels::new("ballast.dev/");
        let sure =
            |class| move |_: &Request| Prediction { class, class_confident: true, ..Prediction::unknown() };
        let (batch, user) = (&sure(VmClass::NonUserFacing), &sure(VmClass::UserFacing));
        let unsure = &|_: &Request| Prediction::unknown();
        let pod = |phase: &str, labels: Value, predict: &dyn Fn(&Request) -> Prediction| {
            let pod: Pod =
                serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u",
                "labels": labels}, "spec": {"nodeName": "a"}, "status": {"phase": phase}}))
                .unwrap();
            Reading { chassis_label: "c", label_prefix: "ballast.dev/", predict, now: Instant::ZERO }
                .pod(&pod)
        };
        let says = |word: &str| json!({"ballast.dev/criticality": word});
        let none = || json!({});
        // What is told of the pod, what is to be written then, and whether that is done.
        for (told, due, is_done) in [
            (pod("Running", none(), unsure), None, false),
            (pod("Running", none(), batch), Some(VmClass::NonUserFacing), false),
            (pod("Running", says("non-user-facing"), batch), None, false),
            (pod("Running", none(), user), Some(VmClass::UserFacing), true),
            (pod("Running", none(), user), None, false),
            // Another model: what was written is not true any more.
            (pod("Running", says("non-user-facing"), unsure), None, false),
            (pod("Succeeded", none(), user), None, false),
            (pod("Running", says("non-user-facing"), unsure), Some(VmClass::UserFacing), true),
            (
                pod("Running", json!({"ballast.dev/class": "non-user-facing"}), user),
                Some(VmClass::NonUserFacing),
                true,
            ),
        ] {
            labels.look_at(&told);
            let waiting = lock(&labels.state).waiting.get("u").map(|(_, class)| *class);
            assert_eq!(waiting, due, "{told:?}");
            if is_done {
                labels.settle("u", due.unwrap());
            }
        }
        labels.listed();
        labels.look_at(&pod("Running", none(), batch));
        assert_eq!(lock(&labels.state).waiting.len(), 1, "after a new list it is tried once more");
        lock(&labels.state).problem = Some("403".into());
        assert!(labels.alarm().is_some());

        // All have their turn, the one that fails too.
        lock(&labels.state).waiting.insert("v".into(), ("n/q".into(), VmClass::UserFacing));
        let after = |uid: &str| labels.after(uid).unwrap().0;
        assert_eq!([after(""), after("u"), after("v")], ["u", "v", "u"]);

        labels.forget("u");
        labels.forget("v");
        assert!(lock(&labels.state).waiting.is_empty());
        assert!(labels.alarm().is_none(), "nothing is unwritten");
    }
}
