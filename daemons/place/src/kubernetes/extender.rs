//! The scheduler extender's protocol: what kube-scheduler asks, and how it is answered
//! (`k8s.io/kube-scheduler/extender/v1`, `ExtenderArgs`, `ExtenderFilterResult`, `HostPriorityList`).
//!
//! Today's Go types carry no JSON names, so the keys are `Pod`, `Nodes`, `NodeNames`; those before 1.17 said
//! `pod`, `nodes`, `nodenames`. Go accepts both, and this module does, too.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use axum::http::StatusCode;
use serde::de::{DeserializeOwned, DeserializeSeed, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::demand::{Amount, allocatable};
use super::mirror::Verdict;
use ballast_runtime::http::Refused;
use ballast_runtime::kubernetes::object::{Node, Pod};

/// The best score that an extender may give; the least is 0 (`MaxExtenderPriority`).
pub(crate) const BEST: i64 = 10;
/// Of what nothing is known: every node alike.
pub(crate) const NEUTRAL: i64 = 5;

/// A pod or node has some 10 kB. Of a hostile one its text takes thirty times its length in memory.
const OBJECT_BYTES_MAX: usize = 512 << 10;

/// A question: which nodes can have this pod, or how good are they for it?
#[derive(Debug)]
pub(crate) struct Args<'a> {
    pub(crate) pod: Pod,
    pub(crate) nodes: Nodes<'a>,
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
        let Fields { pod, names, nodes } =
            serde_json::from_slice(body).map_err(|error| invalid("body is not valid", &error))?;
        let pod = object("Pod", pod.ok_or_else(|| missing("Pod is missing"))?)?;
        let nodes = if let Some(names) = names {
            let names = at_most::<Text<'_>>("NodeNames", names, nodes_max)?;
            Nodes::Names(names.into_iter().map(|name| name.0).collect())
        } else {
            let nodes = nodes.ok_or_else(|| missing("Nodes and NodeNames are missing: one is needed"))?;
            let list: Items<'a> =
                serde_json::from_str(nodes.get()).map_err(|error| invalid("Nodes", &error))?;
            let items = list.items.map_or(Ok(vec![]), |items| at_most("Nodes.items", items, nodes_max))?;
            Nodes::Whole(items.into_iter().enumerate().map(WholeNode::read).collect::<Result<_, _>>()?)
        };
        Ok(Self { pod, nodes })
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        match &self.nodes {
            Nodes::Names(names) => names.iter().map(|name| &**name).collect(),
            Nodes::Whole(nodes) => nodes.iter().map(|node| &*node.name).collect(),
        }
    }

    /// The answer to `/filter`: why each node fails, if it does.
    pub(crate) fn filtered(&self, verdicts: &[Verdict]) -> Filtered<'_> {
        let (mut failed, mut never) = (BTreeMap::new(), BTreeMap::new());
        for (name, verdict) in self.names().into_iter().zip(verdicts) {
            match verdict {
                Verdict::Full(why) => drop(failed.insert(name, why.clone())),
                Verdict::Never(why) => drop(never.insert(name, why.clone())),
                Verdict::Fits | Verdict::Unknown => {}
            }
        }
        let (mut nodes, mut node_names) = (None, None);
        match &self.nodes {
            Nodes::Names(all) => node_names = Some(passing(all, verdicts).map(|name| &**name).collect()),
            Nodes::Whole(all) => {
                let items = passing(all, verdicts).map(|node| node.raw).collect();
                nodes = Some(List { metadata: BTreeMap::new(), items });
            }
        }
        Filtered { nodes, node_names, failed_nodes: failed, failed_and_unresolvable_nodes: never, error: "" }
    }

    /// The answer to `/prioritize`: a score for each node.
    pub(crate) fn prioritized(&self, scores: &[i64]) -> Vec<HostPriority<'_>> {
        let scores = self.names().into_iter().zip(scores);
        scores.map(|(host, score)| HostPriority { host, score: *score }).collect()
    }
}

fn passing<'n, T>(nodes: &'n [T], verdicts: &[Verdict]) -> impl Iterator<Item = &'n T> {
    nodes.iter().zip(verdicts).filter(|(_, verdict)| !verdict.fails()).map(|(node, _)| node)
}

impl<'a> WholeNode<'a> {
    fn read((n, raw): (usize, &'a RawValue)) -> Result<Self, Refused> {
        let node: Node = object(&format!("Nodes.items[{n}]"), raw)?;
        let allocatable = allocatable(&node).ok();
        Ok(Self { raw, name: node.metadata.name, allocatable })
    }
}

fn missing(why: &str) -> Refused {
    Refused(StatusCode::BAD_REQUEST, why.to_owned())
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

/// The fields that are read. `null` equals absent.
#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow, alias = "Pod")]
    pod: Option<&'a RawValue>,
    #[serde(borrow, rename = "NodeNames", alias = "nodenames")]
    names: Option<&'a RawValue>,
    #[serde(borrow, alias = "Nodes")]
    nodes: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Items<'a> {
    #[serde(borrow)]
    items: Option<&'a RawValue>,
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

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Filtered<'a> {
    nodes: Option<List<'a>>,
    node_names: Option<Vec<&'a str>>,
    failed_nodes: BTreeMap<&'a str, String>,
    failed_and_unresolvable_nodes: BTreeMap<&'a str, String>,
    error: &'static str,
}

#[derive(Serialize)]
struct List<'a> {
    metadata: BTreeMap<(), ()>,
    items: Vec<&'a RawValue>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct HostPriority<'a> {
    host: &'a str,
    score: i64,
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
    fn names_are_answered_by_names_whatever_the_case_of_the_question() {
        let failures = [Verdict::Fits, Verdict::Full("full".into()), Verdict::Never("cordoned".into())];
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
            json!({"Nodes": null, "NodeNames": ["n1"], "FailedNodes": {"n2": "full"},
                "FailedAndUnresolvableNodes": {"n\"3": "cordoned"}, "Error": ""})
        );

        assert_eq!(answer(&args.prioritized(&[1, 2, 3]))[2], json!({"Host": "n\"3", "Score": 3}));
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
        let filtered = answer(&args.filtered(&[Verdict::Full("full".into()), Verdict::Unknown]));
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
