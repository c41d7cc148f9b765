//! What an agent tells of the CPU use of its server's VMs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::VmId;

/// `GET /v1/usage` of an agent: what its VMs used in the last days, by its records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Its wall clock, in seconds since 1970.
    pub now_unix_s: u64,
    /// The newest instance of every VM that is on record.
    pub vms: BTreeMap<VmId, VmCpuUse>,
    /// The last hours, oldest first; the newest is under way. An agent that was started anew knows none from before.
    pub hours: Vec<OverflowHour>,
}

/// What one VM used, in [`Usage`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmCpuUse {
    /// How many CPUs it had.
    pub cores: u16,
    /// Until when there are records, in seconds since 1970.
    pub until_unix_s: u64,
    /// Seconds in which it was throttled: it would have used more.
    pub throttled_s: u64,
    /// Seconds that were measured, by use: each a use in millicores that is no less than theirs and at most 5 % more, and
    /// how many they are.
    pub seconds: Vec<(u32, u64)>,
}

/// How often a server's VMs together used all of its CPUs in an hour, in [`Usage`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverflowHour {
    /// When it began, in seconds since 1970.
    pub from_unix_s: u64,
    /// Seconds in which every VM was measured.
    pub measured_s: u32,
    /// Those of them in which VMs of more cores than the server has used 99 % of its CPUs or more.
    pub over_s: u32,
}

impl Usage {
    /// No answer is longer, in bytes.
    pub const BYTES_MAX: usize = 4 << 20;
}
