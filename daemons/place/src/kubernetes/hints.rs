//! What is known of a pod before it runs: from its labels, else from predictions, else the careful answer.

use std::time::Duration;

use ballast_placement::Expected;
use ballast_predict::{Features, Prediction, Request};
use ballast_types::{Utilisation, VmClass};

use super::demand::Amount;
use ballast_runtime::kubernetes::object::Pod;

/// No pod that anybody plans for lives longer: ten years.
const LIFETIME_MAX_S: u64 = 10 * 365 * 86_400;

/// Says what is to be expected of a VM.
pub(crate) type Predict<'a> = &'a dyn Fn(&Request) -> Prediction;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Hints {
    pub(crate) expected: Expected,
    /// How long it will live, where told.
    pub(crate) lifetime: Option<Duration>,
}

/// A label whose value means nothing: the careful answer stands instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefusedHint {
    pub(crate) label: String,
    /// Its value, at most 63 characters of it.
    pub(crate) value: String,
    pub(crate) allowed: &'static str,
}

/// What to reckon with for a pod, and which of its labels were refused. `prefix` is what the labels' names
/// begin with, such as `ballast.dev/`.
pub(crate) fn hints(
    pod: &Pod,
    amount: Amount,
    prefix: &str,
    predict: Predict<'_>,
) -> (Hints, Vec<RefusedHint>) {
    let mut refused = vec![];
    let class = told(pod, prefix, CLASS, &mut refused);
    let p95 = told(pod, prefix, P95, &mut refused);
    let lifetime = told(pod, prefix, LIFETIME, &mut refused).flatten();

    let asks = class.is_none() || p95.is_none();
    let said = asks.then(|| predict(&request(pod, amount, prefix)));
    let (sure_class, sure_p95) = said.as_ref().map_or((None, None), Prediction::sure);
    // What was refused is no knowledge, and is not asked of the model either.
    let expected = Expected::of(class.unwrap_or(sure_class), p95.unwrap_or(sure_p95));
    (Hints { expected, lifetime }, refused)
}

/// A hint: the label's name without the prefix, how its value is read, what is allowed.
type Hint<T> = (&'static str, fn(&str) -> Option<T>, &'static str);

const CLASS: Hint<VmClass> = ("class", VmClass::named, "user-facing or non-user-facing");
const P95: Hint<Utilisation> = ("p95", p95, "0 to 100, percent of the CPU requested");
const LIFETIME: Hint<Duration> = ("lifetime", lifetime, "a whole number and s, m, h or d, up to ten years");

/// What the pod's label says, if there is one; nothing where that means nothing.
fn told<T>(
    pod: &Pod,
    prefix: &str,
    (name, read, allowed): Hint<T>,
    refused: &mut Vec<RefusedHint>,
) -> Option<Option<T>> {
    let label = format!("{prefix}{name}");
    let value = pod.metadata.labels.get(&label)?;
    let meant = read(value);
    if meant.is_none() {
        let value = value.chars().take(63).collect();
        refused.push(RefusedHint { label, value, allowed });
    }
    Some(meant)
}

/// The label that says what a pod is, in the word of its class.
pub(super) fn criticality(prefix: &str) -> String {
    format!("{prefix}criticality")
}

/// Labels know no `%`: percent as a plain number.
fn p95(value: &str) -> Option<Utilisation> {
    let plain = value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let percent: f64 = Some(value).filter(|_| plain)?.parse().ok()?;
    (0.0..=100.0).contains(&percent).then(|| Utilisation::from_ratio(percent / 100.0))?
}

/// `90s`, `15m`, `3h`, `2d`.
fn lifetime(value: &str) -> Option<Duration> {
    let unit = value.chars().next_back()?;
    let number = value.strip_suffix(unit)?;
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = Some(number).filter(|_| digits)?.parse().ok()?;
    let unit_s = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return None,
    };
    let seconds = number.checked_mul(unit_s).filter(|s| (1..=LIFETIME_MAX_S).contains(s))?;
    Some(Duration::from_secs(seconds))
}

/// What is asked of predictions. The model knows VMs of whole cores: less than one counts as one.
fn request(pod: &Pod, amount: Amount, prefix: &str) -> Request {
    let features = Features {
        cores: (amount.milli_cpu as f64 / 1e3).clamp(1.0, 65_536.0),
        memory_gb: (amount.bytes as f64 / 1e9).clamp(0.001, 1e6),
        vm_type: None,
        past: None,
    };
    Request { vm_id: None, subscription: Some(subscription(pod, prefix)), features }
}

/// Whose pod it is, in predictions: its label `subscription`; else `namespace/owner`, such that all that one
/// deployment or cron job ever makes is of one name; else `namespace/name`.
pub(crate) fn subscription(pod: &Pod, prefix: &str) -> String {
    match pod.metadata.labels.get(&format!("{prefix}subscription")) {
        Some(told) => told.clone(),
        None => workload(pod),
    }
}

/// `namespace/owner`: pods of one name were asked for together.
pub(crate) fn workload(pod: &Pod) -> String {
    let Some(owner) = pod.metadata.owner_references.iter().find(|owner| owner.controller) else {
        return pod.key();
    };
    let labels = &pod.metadata.labels;
    let name = &*owner.name;
    let base = match &*owner.kind {
        // A deployment names its replica sets by its own name and the hash that it gives to the pods.
        "ReplicaSet" => {
            labels.get("pod-template-hash").and_then(|hash| name.strip_suffix(&**hash)?.strip_suffix('-'))
        }
        // A cron job names its jobs by its own name and the minute that they were due in.
        "Job" => name.rsplit_once('-').filter(|(_, minute)| is_minute(minute)).map(|(base, _)| base),
        _ => None,
    };

    let base = base.filter(|base| !base.is_empty()).unwrap_or(name);

    format!("{}/{base}", pod.metadata.namespace)
}

/// Minutes since 1970: eight digits since 1989 and until 2160.
fn is_minute(text: &str) -> bool {
    text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const PREFIX: &str = "ballast.dev/";

    #[expect(clippy::needless_pass_by_value, reason = "`json!` gives values")]
    fn pod(metadata: Value) -> Pod {
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    #[expect(clippy::needless_pass_by_value, reason = "`json!` gives values")]
    fn labelled(labels: Value) -> Pod {
        pod(json!({"name": "web-1", "namespace": "shop", "labels": labels}))
    }

    fn unknown(_: &Request) -> Prediction {
        Prediction::unknown()
    }

    fn of(pod: &Pod, predict: Predict<'_>) -> (VmClass, u16, Option<u64>, usize) {
        let (hints, refused) = hints(pod, Amount::default(), PREFIX, predict);
        let lifetime = hints.lifetime.map(|it| it.as_secs());
        (hints.expected.class, hints.expected.p95.ten_thousandths(), lifetime, refused.len())
    }

    #[test]
    fn labels_come_first_then_predictions_then_care() {
        use VmClass::{NonUserFacing as Batch, UserFacing as User};
        let sure = |_: &Request| Prediction {
            class: Batch,
            class_confident: true,
            p95_percent: 50,
            p95_confident: true,
            ..Prediction::unknown()
        };
        for (labels, predict, expected) in [
            (json!({}), &unknown as Predict<'_>, (User, 10_000, None, 0)),
            (json!({}), &sure, (Batch, 5_000, None, 0)),
            (json!({"ballast.dev/class": "user-facing"}), &sure, (User, 5_000, None, 0)),
            (json!({"ballast.dev/p95": "12.5"}), &sure, (Batch, 1_250, None, 0)),
            (
                json!({"ballast.dev/class": "non-user-facing", "ballast.dev/p95": "0",
                    "ballast.dev/lifetime": "2d"}),
                &unknown,
                (Batch, 0, Some(172_800), 0),
            ),
            // A label that means nothing is not asked of the model either: the careful answer stands.
            (json!({"ballast.dev/class": "batch"}), &sure, (User, 5_000, None, 1)),
            (
                json!({"ballast.dev/p95": "101", "ballast.dev/lifetime": "soon"}),
                &sure,
                (Batch, 10_000, None, 2),
            ),
            (json!({"class": "non-user-facing", "other.dev/p95": "1"}), &unknown, (User, 10_000, None, 0)),
        ] {
            let pod = labelled(labels);
            assert_eq!(of(&pod, predict), expected, "{:?}", pod.metadata.labels);
        }

        // Known is what a label says that was not refused, or what the model is sure of.
        let confident = |_: &Request| Prediction { p95_confident: true, ..Prediction::unknown() };
        let known =
            |labels, predict| hints(&labelled(labels), Amount::default(), PREFIX, predict).0.expected.known;
        assert!(!known(json!({}), &unknown) && known(json!({}), &confident));
        assert!(known(json!({"ballast.dev/class": "user-facing"}), &unknown));
        let bad = || json!({"ballast.dev/p95": "101", "ballast.dev/lifetime": "soon"});
        assert!(!known(bad(), &unknown) && !known(bad(), &confident));

        let (_, refused) =
            hints(&labelled(json!({"ballast.dev/p95": "-1"})), Amount::default(), PREFIX, &unknown);
        let (label, value) = ("ballast.dev/p95".to_owned(), "-1".to_owned());
        assert_eq!(refused, [RefusedHint { label, value, allowed: P95.2 }]);
    }

    #[test]
    fn lifetimes_and_percentages() {
        for (text, seconds) in [("90s", 90), ("15m", 900), ("3h", 10_800), ("3650d", LIFETIME_MAX_S)] {
            assert_eq!(lifetime(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "s", "0s", "5", "5w", "-5s", "1.5h", "3651d", "99999999999999999999d", "1h30m", "5é"]
        {
            assert_eq!(lifetime(text), None, "{text}");
        }

        for text in ["", ".", "NaN", "inf", "-0", "+5", "1e1", "100.1", "50%", "1.2.3", " 5"] {
            assert_eq!(p95(text), None, "{text}");
        }
    }

    #[test]
    fn the_pods_of_one_workload_have_one_name() {
        let owned = |kind: &str, owner: &str, labels: Value| {
            let owners =
                json!([{"kind": "Node", "name": "n"}, {"kind": kind, "name": owner, "controller": true}]);
            pod(json!({"name": "p", "namespace": "shop", "labels": labels, "ownerReferences": owners}))
        };

        let hash = json!({"pod-template-hash": "6d4cf56db6"});
        for (pod, name) in [
            (owned("ReplicaSet", "web-6d4cf56db6", hash.clone()), "shop/web"),
            (owned("ReplicaSet", "own-set", hash.clone()), "shop/own-set"),
            (owned("ReplicaSet", "6d4cf56db6", hash), "shop/6d4cf56db6"),
            (owned("Job", "report-29385120", json!({})), "shop/report"),
            (owned("Job", "report-7", json!({})), "shop/report-7"),
            (owned("StatefulSet", "db", json!({})), "shop/db"),
            (pod(json!({"name": "lone", "namespace": "shop"})), "shop/lone"),
        ] {
            assert_eq!(subscription(&pod, PREFIX), name);
        }

        let told = owned("StatefulSet", "db", json!({"ballast.dev/subscription": "team-7"}));
        assert_eq!((subscription(&told, PREFIX), workload(&told)), ("team-7".into(), "shop/db".into()));
    }

    #[test]
    fn the_model_is_asked_for_a_vm_that_it_can_know() {
        let (mut asked, pod) = (vec![], labelled(json!({})));
        for (milli_cpu, bytes) in [(0, 0), (2_500, 8_000_000_000), (u64::MAX, u64::MAX)] {
            let request = request(&pod, Amount { milli_cpu, bytes }, PREFIX);
            request.features.check().unwrap();
            asked.push((request.features.cores, request.features.memory_gb));
        }
        assert_eq!(asked, [(1.0, 0.001), (2.5, 8.0), (65_536.0, 1e6)]);
    }

    proptest! {
        #[test]
        fn whatever_a_label_says_nothing_panics_and_doubt_is_careful(
            class in "\\PC{0,70}", p95 in "[-+.0-9eE%NaNinf]{0,20}", lifetime in "[-0-9]{0,25}[smhdé]{0,2}",
        ) {
            let pod = labelled(json!({
                "ballast.dev/class": class, "ballast.dev/p95": p95, "ballast.dev/lifetime": lifetime
            }));
            let (hints, refused) = hints(&pod, Amount::default(), PREFIX, &unknown);
            for hint in refused {
                match &*hint.label {
                    "ballast.dev/class" => prop_assert_eq!(hints.expected.class, VmClass::UserFacing),
                    "ballast.dev/p95" => prop_assert_eq!(hints.expected.p95, Utilisation::FULL),
                    _ => prop_assert_eq!(hints.lifetime, None),
                }
            }
        }
    }
}
