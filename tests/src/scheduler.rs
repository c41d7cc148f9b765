//! What the placement daemon is asked, and what an API server tells it.

use ballast_place::testing::{self, Extender};
use ballast_placement::Inventory;
use serde_json::Value;

use super::{parts, says_something};

/// Bodies of `/v1/predict` and `/v1/score`.
pub fn place_questions(bytes: &[u8]) {
    const HOSTS: &str = r#"{"hosts":[{"name":"s[1-4]","chassis":"c1","cores":40,"memory_gb":160}]}"#;
    thread_local!(static INVENTORY: Inventory = testing::hosts(HOSTS, true).expect("a file of hosts"));

    testing::question(bytes).map_or_else(says_something, |vms| assert!((1..=1000).contains(&vms)));
    INVENTORY.with(|inventory| {
        testing::score(inventory, bytes).map_or_else(says_something, |fitting| assert!(fitting <= 4));
    });
}

/// A file of hosts, as TOML and as JSON.
pub fn host_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for is_json in [false, true] {
        testing::hosts(text, is_json).map_or_else(says_something, drop);
    }
}

const NODES: &[u8] = include_bytes!("../kubernetes/nodes.list.json");

/// A scheduler's question, to an extender that knows a few nodes.
pub fn extender(bytes: &[u8]) {
    thread_local!(static EXTENDER: Extender = {
        let extender = Extender::default();
        extender.list_nodes(NODES).expect("a list of nodes");
        extender.list_pods(br#"{"metadata":{},"items":[]}"#).expect("a list of pods");
        extender
    });

    EXTENDER.with(|extender| {
        match extender.filter(bytes) {
            Ok(answer) => {
                let answer: Value = serde_json::from_slice(&answer).expect("an answer is JSON");
                assert!(answer.is_object(), "{answer}");
            }
            Err(error) => says_something(error),
        }
        match extender.prioritize(bytes) {
            Ok(answer) => {
                let answer: Value = serde_json::from_slice(&answer).expect("an answer is JSON");
                let scores = answer.as_array().expect("a list of scores").iter();
                let score = |host: &Value| host["Score"].as_i64().or(host["score"].as_i64());
                assert!(scores.map(score).all(|it| it.is_some_and(|it| (0..=10).contains(&it))), "{answer}");
            }
            Err(error) => says_something(error),
        }
    });
}

/// Lists and watches of nodes and pods, parted by zero bytes; then the questions that follow.
pub fn watch(bytes: &[u8]) {
    let extender = Extender::default();
    let mut parts = parts(bytes);
    let mut part = || parts.next().unwrap_or_default();

    extender.list_nodes(part()).unwrap_or_else(says_something);
    extender.list_pods(part()).unwrap_or_else(says_something);
    let (nodes, pods) = (part(), part());
    extender.watch_nodes(nodes, 1 + bytes.len() % 64).unwrap_or_else(says_something);
    extender.watch_pods(pods, usize::MAX).unwrap_or_else(says_something);

    let question = part();
    extender.prioritize(question).map_or_else(says_something, drop);
    extender.filter(question).map_or_else(says_something, drop);
}
