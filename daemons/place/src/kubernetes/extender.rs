//! The scheduler extender's protocol: what kube-scheduler asks, and how it is answered
//! (`k8s.io/kube-scheduler/extender/v1`, `ExtenderArgs`, `ExtenderFilterResult`, `HostPriorityList`).
//!
//! Today's Go types carry no JSON names, so the keys are `Pod`, `Nodes`, `NodeNames`; those before 1.17 said
//! `pod`, `nodes`, `nodenames`. Go reads either. Here any case is read, and an answer has the case of its
//! question.

use std::borrow::Cow;
use std::collections::BTreeMap;

use axum::http::StatusCode;
use serde::ser::{SerializeMap as _, SerializeSeq as _};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use super::object::{Node, Pod};
use ballast_runtime::http::Refused;

/// The best score that an extender may give; the least is 0 (`MaxExtenderPriority`).
pub(crate) const BEST: i64 = 10;
/// Of what nothing is known: every node alike.
pub(crate) const NEUTRAL: i64 = 5;

/// How the keys are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keys {
    /// `NodeNames`.
    Go,
    /// `nodenames`.
    Lower,
}

impl Keys {
    fn of(self, go: &'static str, lower: &'static str) -> &'static str {
        match self {
            Self::Go => go,
            Self::Lower => lower,
        }
    }
}

/// A question: which nodes can have this pod, or how good are they for it?
#[derive(Debug)]
pub(crate) struct Args<'a> {
    pub(crate) pod: Pod,
    pub(crate) nodes: Nodes<'a>,
    keys: Keys,
}

#[derive(Debug)]
pub(crate) enum Nodes<'a> {
    /// By name: `nodeCacheCapable: true`.
    Names(Vec<Cow<'a, str>>),
    /// As they are.
    Whole(Vec<(&'a RawValue, Node)>),
}

impl<'a> Args<'a> {
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, Refused> {
        let refused = |why: String| Refused(StatusCode::BAD_REQUEST, why);
        Self::parse(body).map_err(refused)
    }

    fn parse(body: &'a [u8]) -> Result<Self, String> {
        let fields: BTreeMap<String, &'a RawValue> =
            serde_json::from_slice(body).map_err(|error| format!("body is not valid: {error}"))?;
        let field = |name: &str| {
            let mut named = fields.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
            named.find(|(_, value)| value.get() != "null")
        };

        let wrong = |name: &str, error: serde_json::Error| format!("{name}: {error}");
        let (key, pod) = field("pod").ok_or("Pod is missing")?;
        let keys = if key.starts_with('P') { Keys::Go } else { Keys::Lower };
        let pod = serde_json::from_str(pod.get()).map_err(|error| wrong("Pod", error))?;
        let nodes = if let Some((_, names)) = field("nodenames") {
            #[derive(Deserialize)]
            struct Name<'n>(#[serde(borrow)] Cow<'n, str>);
            let names: Vec<Name<'_>> =
                serde_json::from_str(names.get()).map_err(|error| wrong("NodeNames", error))?;
            Nodes::Names(names.into_iter().map(|name| name.0).collect())
        } else {
            let (_, list) = field("nodes").ok_or("Nodes and NodeNames are missing: one is needed")?;
            #[derive(Deserialize)]
            struct List<'n> {
                #[serde(borrow)]
                items: Option<Vec<&'n RawValue>>,
            }

            let list: List<'_> = serde_json::from_str(list.get()).map_err(|error| wrong("Nodes", error))?;
            let read = |(n, raw): (usize, &'a RawValue)| {
                let node = serde_json::from_str(raw.get());
                Ok((raw, node.map_err(|error| wrong(&format!("Nodes.items[{n}]"), error))?))
            };

            let items = list.items.unwrap_or_default().into_iter().enumerate();

            Nodes::Whole(items.map(read).collect::<Result<_, String>>()?)
        };

        Ok(Self { pod, nodes, keys })
    }

    /// The names of the nodes, in their order.
    pub(crate) fn names(&self) -> Vec<&str> {
        match &self.nodes {
            Nodes::Names(names) => names.iter().map(|name| &**name).collect(),
            Nodes::Whole(nodes) => nodes.iter().map(|(_, node)| &*node.metadata.name).collect(),
        }
    }

    /// The answer to `/filter`: why each node fails, if it does.
    pub(crate) fn filtered(&self, failures: &[Option<Failure>]) -> impl Serialize + use<'_, 'a> {
        let names = self.names().into_iter().zip(failures);
        let (mut failed, mut never) = (BTreeMap::new(), BTreeMap::new());
        for (name, failure) in names {
            match failure {
                Some(Failure::Now(why)) => drop(failed.insert(name, why.clone())),
                Some(Failure::Never(why)) => drop(never.insert(name, why.clone())),
                None => {}
            }
        }
        let passes: Vec<bool> = failures.iter().map(Option::is_none).collect();
        Filtered { args: self, passes, failed, never }
    }

    /// The answer to `/prioritize`: a score for each node.
    pub(crate) fn prioritized(&self, scores: &[i64]) -> impl Serialize + use<'_, 'a> {
        Prioritized { args: self, scores: scores.to_vec() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Pods would have to leave first: `FailedNodes`.
    Now(String),
    /// No pod's leaving would help: `FailedAndUnresolvableNodes`.
    Never(String),
}

struct Filtered<'q, 'a> {
    args: &'q Args<'a>,
    passes: Vec<bool>,
    failed: BTreeMap<&'q str, String>,
    never: BTreeMap<&'q str, String>,
}

impl Serialize for Filtered<'_, '_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct List<'n> {
            metadata: BTreeMap<(), ()>,
            items: Vec<&'n RawValue>,
        }

        let keys = self.args.keys;
        let passes = self.passes.iter().copied();
        let (mut whole, mut names) = (None, None);

        match &self.args.nodes {
            Nodes::Names(all) => {
                let passing = all.iter().zip(passes).filter(|(_, passes)| *passes);
                names = Some(passing.map(|(name, _)| &**name).collect::<Vec<_>>());
            }
            Nodes::Whole(all) => {
                let passing = all.iter().zip(passes).filter(|(_, passes)| *passes);
                let items = passing.map(|((raw, _), _)| *raw).collect();
                whole = Some(List { metadata: BTreeMap::new(), items });
            }
        }

        let mut map = to.serialize_map(Some(5))?;
        map.serialize_entry(keys.of("Nodes", "nodes"), &whole)?;
        map.serialize_entry(keys.of("NodeNames", "nodenames"), &names)?;
        map.serialize_entry(keys.of("FailedNodes", "failedNodes"), &self.failed)?;
        let never = keys.of("FailedAndUnresolvableNodes", "failedAndUnresolvableNodes");
        map.serialize_entry(never, &self.never)?;
        map.serialize_entry(keys.of("Error", "error"), "")?;

        map.end()
    }
}

struct Prioritized<'q, 'a> {
    args: &'q Args<'a>,
    scores: Vec<i64>,
}

impl Serialize for Prioritized<'_, '_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Go<'n> {
            host: &'n str,
            score: i64,
        }
        #[derive(Serialize)]
        struct Lower<'n> {
            host: &'n str,
            score: i64,
        }

        let mut list = to.serialize_seq(Some(self.scores.len()))?;

        for (host, score) in self.args.names().into_iter().zip(self.scores.iter().copied()) {
            match self.args.keys {
                Keys::Go => list.serialize_element(&Go { host, score })?,
                Keys::Lower => list.serialize_element(&Lower { host, score })?,
            }
        }

        list.end()
    }
}

/// Standings (0 is the best; equal ones stand alike) as scores from 0 to [`BEST`]: the best have [`BEST`] and
/// nobody else, the last 0.
pub(crate) fn scores(standings: &[usize]) -> Vec<i64> {
    let last = standings.iter().copied().max().unwrap_or(0);
    let score = |standing: &usize| match last {
        0 => BEST,
        _ => BEST * (last - standing) as i64 / last as i64,
    };
    standings.iter().map(score).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn answer(answer: &impl Serialize) -> Value {
        serde_json::from_str(&serde_json::to_string(answer).unwrap()).unwrap()
    }

    #[test]
    fn names_are_answered_by_names_in_the_case_of_the_question() {
        let failures = [None, Some(Failure::Now("full".into())), Some(Failure::Never("cordoned".into()))];
        // As kube-scheduler writes it since 1.17, and as it did before.
        let go = json!({"Pod": {"metadata": {"name": "p", "creationTimestamp": null}}, "Nodes": null,
            "NodeNames": ["n1", "n2", "n\"3"]});
        let body = go.to_string();
        let args = Args::read(body.as_bytes()).map_err(|it| it.1).unwrap();
        assert_eq!(
            answer(&args.filtered(&failures)),
            json!({"Nodes": null, "NodeNames": ["n1"], "FailedNodes": {"n2": "full"},
                "FailedAndUnresolvableNodes": {"n\"3": "cordoned"}, "Error": ""})
        );

        assert_eq!(
            answer(&args.prioritized(&[10, 0, 5])),
            json!([{"Host": "n1", "Score": 10}, {"Host": "n2", "Score": 0}, {"Host": "n\"3", "Score": 5}])
        );

        let lower =
            json!({"pod": {"metadata": {"name": "p"}}, "nodenames": ["n1", "n2", "n\"3"]}).to_string();
        let args = Args::read(lower.as_bytes()).map_err(|it| it.1).unwrap();
        assert_eq!(
            answer(&args.filtered(&failures)),
            json!({"nodes": null, "nodenames": ["n1"], "failedNodes": {"n2": "full"},
                "failedAndUnresolvableNodes": {"n\"3": "cordoned"}, "error": ""})
        );

        assert_eq!(answer(&args.prioritized(&[1, 2, 3]))[2], json!({"host": "n\"3", "score": 3}));
    }

    #[test]
    fn whole_nodes_come_back_as_they_came() {
        let node = |name: &str| {
            json!({"metadata": {"name": name, "newer": {"x": 1.50}}, "status": {"allocatable": {"cpu": "4"},
                "images": [{"names": ["a"], "sizeBytes": 1}]}})
        };
        let body = json!({"Pod": {}, "Nodes": {"metadata": {}, "items": [node("n1"), node("n2")]},
            "NodeNames": null});
        let body = body.to_string();
        let args = Args::read(body.as_bytes()).map_err(|it| it.1).unwrap();
        assert_eq!(args.names(), ["n1", "n2"]);
        let filtered = answer(&args.filtered(&[Some(Failure::Now("full".into())), None]));
        assert_eq!(filtered["Nodes"], json!({"metadata": {}, "items": [node("n2")]}));
        assert_eq!(filtered["NodeNames"], Value::Null);
    }

    #[test]
    fn what_is_no_question_is_refused_by_field() {
        for (body, says) in [
            ("", "body is not valid: "),
            ("[]", "body is not valid: "),
            ("{}", "Pod is missing"),
            (r#"{"Pod":null,"NodeNames":[]}"#, "Pod is missing"),
            (r#"{"Pod":{}}"#, "Nodes and NodeNames are missing"),
            (r#"{"Pod":{},"Nodes":null,"NodeNames":null}"#, "Nodes and NodeNames are missing"),
            (r#"{"Pod":7,"NodeNames":[]}"#, "Pod: "),
            (r#"{"Pod":{"spec":{"containers":{}}},"NodeNames":[]}"#, "Pod: "),
            (r#"{"Pod":{},"NodeNames":[1]}"#, "NodeNames: "),
            (r#"{"Pod":{},"Nodes":{"items":[{"metadata":7}]}}"#, "Nodes.items[0]: "),
        ] {
            let Err(Refused(status, why)) = Args::read(body.as_bytes()) else { panic!("{body}") };
            assert!(status == 400 && why.starts_with(says), "{body}: {why}");
        }
        let deep = format!("{{\"Pod\":{}", "[".repeat(100_000));
        assert!(Args::read(deep.as_bytes()).is_err());
    }

    #[test]
    fn the_best_have_ten_and_ties_are_equal() {
        for (standings, expected) in [
            (&[][..], &[][..]),
            (&[0], &[10]),
            (&[0, 0, 0], &[10, 10, 10]),
            (&[1, 0], &[0, 10]),
            (&[2, 0, 1, 1], &[0, 10, 5, 5]),
            (&[0, 1, 2, 3, 4, 5, 6], &[10, 8, 6, 5, 3, 1, 0]),
        ] {
            assert_eq!(scores(standings), expected, "{standings:?}");
        }
        let many: Vec<usize> = (0..5_000).collect();
        let scores = scores(&many);
        assert_eq!((scores[0], scores[1], scores[4_999]), (10, 9, 0));
    }
}
