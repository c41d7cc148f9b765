//! What a placement daemon says of the Kubernetes cluster that it follows.

use serde::{Deserialize, Serialize};

/// The scheduler extender, in [`super::PlaceStatus`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KubernetesStatus {
    /// Where the API server is.
    pub api: String,
    /// Whether too little was heard of it lately: then every score is neutral, and every node passes.
    pub stale: bool,
    /// How nodes are followed.
    pub nodes: FollowStatus,
    /// How pods are followed.
    pub pods: FollowStatus,
    /// How many nodes the cluster has.
    pub total_nodes: u64,
    /// Those of them that are marked unschedulable.
    pub cordoned_nodes: u64,
    /// Pods that hold a share of a node.
    pub bound_pods: u64,
    /// Those of them whose node is not known.
    pub lost_pods: u64,
    /// Questions of `/filter` answered.
    pub filter_requests: u64,
    /// Questions of `/prioritize` answered.
    pub prioritize_requests: u64,
    /// Questions of either that were answered without an opinion: stale, in shadow, or the pod could not be read.
    pub neutral_requests: u64,
    /// Questions refused for what was in them.
    pub refused_requests: u64,
    /// Labels of pods whose value means nothing, so that the careful answer stands.
    pub refused_hints: u64,
    /// Ballast's choices compared with the scheduler's; `null` outside shadow mode.
    pub shadow: Option<ShadowStatus>,
}

/// How objects of one kind are followed, in [`KubernetesStatus`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FollowStatus {
    /// Since the API server was last heard of them, in milliseconds; `null` before they were listed.
    pub age_ms: Option<u64>,
    /// How many lists were taken.
    pub lists: u64,
    /// How many watches were begun.
    pub watches: u64,
    /// Objects received from watches.
    pub received: u64,
    /// Those of them that were known already.
    pub repeated: u64,
    /// Those of them that were older than what was known.
    pub late: u64,
    /// Objects that could not be read.
    pub refused: u64,
    /// What is wrong now, if anything is.
    pub problem: Option<String>,
}

/// What shadow mode has found, in [`KubernetesStatus`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShadowStatus {
    /// Pods that went where they would have been put, or to a node as good.
    pub agreed: u64,
    /// Pods that went elsewhere.
    pub differed: u64,
    /// Pods that were asked for and are not bound yet.
    pub waiting: u64,
}
