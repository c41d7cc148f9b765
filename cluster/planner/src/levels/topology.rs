//! What feeds what.

use std::collections::{BTreeMap, BTreeSet};

use ballast_types::Watts;
use serde::Deserialize;

/// A rack, a row, a UPS: whatever has a breaker of its own above chassis.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Its name; no other node has it.
    pub name: String,
    /// What it is: nodes of one level are compared with each other.
    pub level: String,
    /// What its breaker is provisioned for.
    #[serde(rename = "provisioned_w")]
    pub provisioned: Watts,
    /// What feeds it, if that is a node too.
    pub parent: Option<String>,
    /// The chassis that it feeds itself.
    #[serde(default)]
    pub chassis: Vec<String>,
}

/// A tree of nodes that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    #[error("no node: at least one is needed")]
    Empty,
    #[error("node {node:?}: {key} = {value}: {allowed}")]
    Value { node: String, key: &'static str, value: String, allowed: &'static str },
    /// A chassis has one feed.
    #[error("chassis {chassis:?} is fed by node {first:?} and by node {second:?}: by one")]
    FedTwice { chassis: String, first: String, second: String },
}

/// Nodes, each after its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    pub(super) nodes: Vec<Node>,
    pub(super) parents: Vec<Option<usize>>,
}

impl Topology {
    /// Puts nodes in order.
    pub fn new(mut nodes: Vec<Node>) -> Result<Self, TopologyError> {
        if nodes.is_empty() {
            return Err(TopologyError::Empty);
        }
        check(&nodes)?;

        // Parents first: who has no parent left to wait for is next.
        let mut this = Self { nodes: vec![], parents: vec![] };
        let mut places = BTreeMap::new();

        while !nodes.is_empty() {
            let waiting = nodes.len();
            for node in std::mem::take(&mut nodes) {
                let parent = node.parent.as_ref().map(|parent| places.get(parent).copied());
                if parent == Some(None) {
                    nodes.push(node);
                } else {
                    places.insert(node.name.clone(), this.nodes.len());
                    this.parents.push(parent.flatten());
                    this.nodes.push(node);
                }
            }

            if nodes.len() == waiting {
                let node = &nodes[0];
                let parent = node.parent.clone().unwrap_or_default();
                return Err(value(node, "parent", parent, "a node that it does not feed itself"));
            }
        }

        let mut feeds = vec![false; this.nodes.len()];

        for place in (0..this.nodes.len()).rev() {
            feeds[place] |= !this.nodes[place].chassis.is_empty();
            if !feeds[place] {
                let node = &this.nodes[place];
                return Err(value(node, "chassis", "[]".into(), "it feeds none, nor does a node under it"));
            }

            if let Some(parent) = this.parents[place] {
                feeds[parent] = true;
            }
        }

        Ok(this)
    }

    /// Which node feeds each chassis, by place.
    pub(super) fn feeds(&self) -> BTreeMap<&str, usize> {
        let all = self.nodes.iter().enumerate();
        all.flat_map(|(at, node)| node.chassis.iter().map(move |name| (name.as_str(), at))).collect()
    }
}

fn check(nodes: &[Node]) -> Result<(), TopologyError> {
    let names: BTreeSet<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    let (mut seen, mut fed) = (BTreeSet::new(), BTreeMap::new());
    for node in nodes {
        if node.name.is_empty() || !seen.insert(&node.name) {
            return Err(value(node, "name", format!("{:?}", node.name), "a name that no other node has"));
        }

        if node.level.is_empty() {
            return Err(value(node, "level", "\"\"".into(), "rack, row, ups or the like"));
        }
        if node.provisioned <= Watts::ZERO {
            return Err(value(node, "provisioned_w", node.provisioned.to_string(), "above 0"));
        }
        if let Some(parent) = node.parent.as_ref().filter(|parent| !names.contains(parent.as_str())) {
            return Err(value(node, "parent", format!("{parent:?}"), "the name of a node"));
        }
        for chassis in &node.chassis {
            if let Some(first) = fed.insert(chassis, &node.name) {
                let (chassis, first) = (chassis.clone(), first.clone());
                return Err(TopologyError::FedTwice { chassis, first, second: node.name.clone() });
            }
        }
    }

    Ok(())
}

fn value(node: &Node, key: &'static str, value: String, allowed: &'static str) -> TopologyError {
    TopologyError::Value { node: node.name.clone(), key, value, allowed }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, parent: Option<&str>, chassis: &[&str]) -> Node {
        Node {
            name: name.into(),
            level: "rack".into(),
            provisioned: Watts::from_whole(100),
            parent: parent.map(str::to_owned),
            chassis: chassis.iter().map(|&name| name.to_owned()).collect(),
        }
    }

    #[test]
    fn parents_come_first_whatever_the_order() {
        let nodes = vec![
            node("rack", Some("row"), &["c1"]),
            node("row", Some("ups"), &["c2"]),
            node("ups", None, &[]),
        ];
        let topology = Topology::new(nodes).unwrap();
        let names: Vec<_> = topology.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(
            (names, topology.parents.clone()),
            (vec!["ups", "row", "rack"], vec![None, Some(0), Some(1)])
        );
        assert_eq!(topology.feeds(), [("c1", 2), ("c2", 1)].into());
    }

    #[test]
    fn impossible_trees_are_refused_by_name() {
        let dead = Node { provisioned: Watts::ZERO, ..node("a", None, &["c"]) };
        let plain = Node { level: String::new(), ..node("a", None, &["c"]) };
        for (nodes, says) in [
            (vec![], "no node: at least one is needed"),
            (vec![dead], "node \"a\": provisioned_w = 0.0 W: above 0"),
            (vec![plain], "node \"a\": level = \"\": rack, row, ups or the like"),
            (vec![node("a", None, &["c"]), node("a", None, &[])], "a name that no other node has"),
            (vec![node("a", Some("x"), &["c"])], "node \"a\": parent = \"x\": the name of a node"),
            (
                vec![node("a", Some("b"), &["c"]), node("b", Some("a"), &[])],
                "a node that it does not feed itself",
            ),
            (vec![node("a", Some("a"), &["c"])], "a node that it does not feed itself"),
            (
                vec![node("a", None, &["c"]), node("b", None, &["c"])],
                "chassis \"c\" is fed by node \"a\" and by node \"b\": by one",
            ),
            (vec![node("a", None, &[])], "node \"a\": chassis = []: it feeds none"),
        ] {
            let error = Topology::new(nodes).unwrap_err().to_string();
            assert!(error.contains(says), "{says}: {error}");
        }
    }
}
