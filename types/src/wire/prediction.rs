//! What a placement daemon predicts of the VMs that it has placed, on its way to the agent that acts on it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{VmClass, VmId};

/// So many VMs fit a body of 64 KiB, with the longest of names.
const VMS_MAX: usize = 400;
/// Nobody renews more often than once a second, nor less often than once an hour.
const VALID_MS: core::ops::RangeInclusive<u64> = 1_000..=3_600_000;

/// `PUT /v1/predictions`, placement daemon to agent: desired state, complete in itself. What is not named is
/// predicted no more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predictions {
    /// Higher with each message, also over restarts of the sender.
    pub seq: u64,
    /// How long this holds unless it is renewed: from 1 s to an hour.
    pub valid_for_ms: u64,
    /// By the VMs' ids, at most 400; one that is not there yet is remembered until it comes.
    pub vms: BTreeMap<VmId, VmPrediction>,
}

/// What is predicted of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmPrediction {
    /// Who it works for.
    pub class: VmClass,
    /// The 95th percentile of its CPU use, in percent of its cores, rounded up.
    pub p95_percent: u8,
    /// Lower is throttled first.
    pub throttle_order: u8,
}

impl Predictions {
    /// The most VMs that are told.
    pub const VMS_MAX: usize = VMS_MAX;

    /// Whether every value is allowed.
    ///
    /// # Errors
    /// Names the field, its value and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        if !VALID_MS.contains(&self.valid_for_ms) {
            return Err(format!("valid_for_ms = {}: 1000 to 3600000", self.valid_for_ms));
        }
        if self.vms.len() > VMS_MAX {
            return Err(format!("vms: {} of them: at most {VMS_MAX}", self.vms.len()));
        }
        match self.vms.iter().find(|(_, vm)| vm.p95_percent > 100) {
            Some((id, vm)) => Err(format!("vms.{id}.p95_percent = {}: 0 to 100", vm.p95_percent)),
            None => Ok(()),
        }
    }
}

/// What an agent holds of predictions, in [`AgentStatus`](super::AgentStatus).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldPredictions {
    /// The number of the newest message.
    pub seq: u64,
    /// How many VMs it names.
    pub vms: u64,
    /// How many of those are not on this server.
    pub absent: u64,
    /// When it ends unless it is renewed, in milliseconds since boot.
    pub until_ms: u64,
}
