//! The scheduler extender's protocol: what kube-scheduler asks, and how it is answered
//! (`k8s.io/kube-scheduler/extender/v1`, `ExtenderArgs`, `ExtenderFilterResult`, `HostPriorityList`).
//!
//! Today's Go types carry no JSON names, so the keys are `Pod`, `Nodes`, `NodeNames`; those before 1.17 said
//! `pod`, `nodes`, `nodenames`. Go reads either. Here any case is read, and an answer has the case of its
//! question.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use axum::http::StatusCode;
use serde::de::{DeserializeOwned, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap as _, SerializeSeq as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::demand::{Amount, allocatable};
use ballast_runtime::http::Refused;
use ballast_runtime::kubernetes::object::{Node, Pod};

/// The best score that an extender may give; the least is 0 (`MaxExtenderPriority`).
pub(crate) const BEST: i64 = 10;
/// Of what nothing is known: every node alike.
pub(crate) const NEUTRAL: i64 = 5;

/// A pod or node has some 10 kB. Of a hostile one its text takes thirty times its length in memory.
const OBJECT_BYTES_MAX: usize = 512 << 10;

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
    Whole(Vec<WholeNode<'a>>),
}

/// A node as it came, and what matters of it.
#[derive(Debug)]
pub(crate) struct WholeNode<'a> {
    raw: &'a RawValue,
    name: String,
    /// What pods may have of it, where the node tells that.
    pub(crate) allocatable: Option<Amount>,
}

impl<'a> Args<'a> {
    /// Reads a question about at most so many nodes.
    pub(crate) fn read(body: &'a [u8], nodes_max: usize) -> Result<Self, Refused> {
        let Fields { keys, pod, names, nodes } =
            serde_json::from_slice(body).map_err(|error| invalid("body is not valid", &error))?;
        let missing = |why: &str| Refused(StatusCode::BAD_REQUEST, why.to_owned());
        let pod = pod.ok_or_else(|| missing("Pod is missing"))?;

        let pod = object("Pod", pod)?;
        let nodes = if let Some(names) = names {
            let names = at_most::<Text<'_>>("NodeNames", names, nodes_max)?;
            Nodes::Names(names.into_iter().map(|name| name.0).collect())
        } else {
            let nodes = nodes.ok_or_else(|| missing("Nodes and NodeNames are missing: one is needed"))?;
            #[derive(Deserialize)]
            struct List<'n> {
                #[serde(borrow)]
                items: Option<&'n RawValue>,
            }

            let list: List<'a> =
                serde_json::from_str(nodes.get()).map_err(|error| invalid("Nodes", &error))?;
            let items = list.items.filter(|items| items.get() != "null");
            let items = items.map_or(Ok(vec![]), |items| at_most("Nodes.items", items, nodes_max))?;
            Nodes::Whole(items.into_iter().enumerate().map(WholeNode::read).collect::<Result<_, _>>()?)
        };

        Ok(Self { pod, nodes, keys })
    }

    /// The names of the nodes, in their order.
    pub(crate) fn names(&self) -> Vec<&str> {
        match &self.nodes {
            Nodes::Names(names) => names.iter().map(|name| &**name).collect(),
            Nodes::Whole(nodes) => nodes.iter().map(|node| &*node.name).collect(),
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

impl<'a> WholeNode<'a> {
    fn read((n, raw): (usize, &'a RawValue)) -> Result<Self, Refused> {
        let node: Node = object(&format!("Nodes.items[{n}]"), raw)?;
        let allocatable = allocatable(&node).ok();
        Ok(Self { raw, name: node.metadata.name, allocatable })
    }
}

fn invalid(what: &str, error: &serde_json::Error) -> Refused {
    Refused(StatusCode::BAD_REQUEST, format!("{what}: {error}"))
}

/// Reads a pod or a node.
fn object<T: DeserializeOwned>(what: &str, raw: &RawValue) -> Result<T, Refused> {
    let bytes = raw.get().len();
    if bytes > OBJECT_BYTES_MAX {
        let why = format!("{what}: {bytes} bytes: at most {OBJECT_BYTES_MAX}");
        return Err(Refused(StatusCode::PAYLOAD_TOO_LARGE, why));
    }
    serde_json::from_str(raw.get()).map_err(|error| invalid(what, &error))
}

/// Reads a list of at most so many items. Those beyond are counted and not kept.
fn at_most<'a, T: Deserialize<'a>>(what: &str, raw: &'a RawValue, most: usize) -> Result<Vec<T>, Refused> {
    let list = AtMost { most, item: PhantomData };
    let read = list.deserialize(&mut serde_json::Deserializer::from_str(raw.get()));
    let (items, count) = read.map_err(|error| invalid(what, &error))?;
    if count > most {
        let why = format!("{what}: {count} nodes: at most {most}, which goes by how many the cluster has");
        return Err(Refused(StatusCode::PAYLOAD_TOO_LARGE, why));
    }
    Ok(items)
}

/// A text, borrowed where it needs no unescaping.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// The fields that matter, in any case. `null` is as good as absent.
struct Fields<'a> {
    keys: Keys,
    pod: Option<&'a RawValue>,
    names: Option<&'a RawValue>,
    nodes: Option<&'a RawValue>,
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
        let mut fields = Fields { keys: Keys::Lower, pod: None, names: None, nodes: None };
        while let Some(Text(key)) = map.next_key()? {
            let field = match () {
                () if key.eq_ignore_ascii_case("pod") => &mut fields.pod,
                () if key.eq_ignore_ascii_case("nodenames") => &mut fields.names,
                () if key.eq_ignore_ascii_case("nodes") => &mut fields.nodes,
                () => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };

            let value: &RawValue = map.next_value()?;
            if value.get() != "null" {
                *field = Some(value);
                if key.starts_with('P') {
                    fields.keys = Keys::Go;
                }
            }
        }
        Ok(fields)
    }
}

/// Reads a list: its first so many items, and how many there are.
struct AtMost<T> {
    most: usize,
    item: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for AtMost<T> {
    type Value = (Vec<T>, usize);

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for AtMost<T> {
    type Value = (Vec<T>, usize);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut items = vec![];
        while items.len() < self.most {
            let Some(item) = list.next_element()? else { break };
            items.push(item);
        }

        let mut count = items.len();
        while list.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok((items, count))
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
                let items = passing.map(|(node, _)| node.raw).collect();
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
        let args = Args::read(body.as_bytes(), 10).map_err(|it| it.1).unwrap();
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
        let args = Args::read(lower.as_bytes(), 10).map_err(|it| it.1).unwrap();
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
        let args = Args::read(body.as_bytes(), 10).map_err(|it| it.1).unwrap();
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
            let Err(Refused(status, why)) = Args::read(body.as_bytes(), 10) else { panic!("{body}") };
            assert!(status == 400 && why.starts_with(says), "{body}: {why}");
        }
        let deep = format!("{{\"Pod\":{}", "[".repeat(100_000));
        assert!(Args::read(deep.as_bytes(), 10).is_err());
    }

    #[test]
    fn a_question_about_more_nodes_than_there_are_or_of_a_huge_object_is_too_large() {
        let many = |item: &str| [item; 11].join(",");
        let pod = format!("{{\"spec\":{{\"nodeName\":\"{}\"}}}}", "x".repeat(OBJECT_BYTES_MAX));
        for (body, says) in [
            (
                format!("{{\"Pod\":{{}},\"NodeNames\":[{}]}}", many("\"n\"")),
                "NodeNames: 11 nodes: at most 10",
            ),
            (
                format!("{{\"Pod\":{{}},\"Nodes\":{{\"items\":[{}]}}}}", many("{}")),
                "Nodes.items: 11 nodes: at most 10",
            ),
            (format!("{{\"Pod\":{pod},\"NodeNames\":[]}}"), "Pod: 524"),
        ] {
            let Err(Refused(status, why)) = Args::read(body.as_bytes(), 10) else { panic!("{says}") };
            assert!(status == 413 && why.starts_with(says), "{why}");
        }
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
