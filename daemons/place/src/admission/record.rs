//! A deployment, as it is written down.

use ballast_placement::Resources;
use ballast_placement::admission::Observed;
use serde::{Deserialize, Serialize};

/// What has been seen of a deployment, and what is kept for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DeploymentRecord {
    /// [`key`] of its VMs.
    pub(crate) key: String,
    /// Its tenant or template, where that is known.
    pub(crate) label: Option<String>,
    /// When it came, in hours since 1970.
    pub(crate) begun_h: f64,
    /// Up to when it was watched, in hours since 1970.
    pub(crate) until_h: f64,
    /// What it had then, with what is committed.
    pub(crate) cores: f64,
    pub(crate) observed: Observed,
    pub(crate) commitment: Option<Commitment>,
}

/// Room for VMs that were admitted, and are not placed yet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Commitment {
    pub(crate) admitted_cores: f64,
    /// What of it no VM has taken yet.
    pub(crate) cores: f64,
    /// The memory that was admitted; 0 where nobody said it.
    pub(crate) admitted_memory_kb: u64,
    /// What of that no VM has taken yet.
    pub(crate) memory_kb: u64,
    /// Until when it stands, in hours since 1970.
    pub(crate) until_h: f64,
}

/// A deployment that is not there yet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Newcomer {
    pub(crate) key: String,
    pub(crate) label: Option<String>,
    pub(crate) vms: Vec<Resources>,
}

impl Newcomer {
    pub(super) fn cores(&self) -> f64 {
        self.vms.iter().map(|it| it.cores.cores()).sum()
    }

    pub(super) fn memory_kb(&self) -> u64 {
        self.vms.iter().map(|it| it.memory.kb()).sum()
    }
}

/// What a VM belongs to: its deployment, or itself alone.
pub(crate) fn key(deployment: Option<&str>, vm: &str) -> String {
    deployment.map_or_else(|| format!("vm/{vm}"), |name| format!("deployment/{name}"))
}

/// As people call it: a deployment by its name.
pub(super) fn name(key: &str) -> &str {
    key.strip_prefix("deployment/").unwrap_or(key)
}
