//! What is done to a cluster while a trace is played on it.

use ballast_placement::drain::DrainOrder;
use ballast_placement::{HostId, Policy, Resources};
use serde::Serialize;

/// How long it takes to move a VM. Meanwhile it holds its room on both hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Moving {
    /// Whatever its size, in milliseconds.
    pub base_ms: u64,
    /// And for every GB of its memory.
    pub per_gb_ms: u64,
}

impl Default for Moving {
    /// 10 s, and 1 s for every GB: memory that is copied at 8 Gbit/s.
    fn default() -> Self {
        Self { base_ms: 10_000, per_gb_ms: 1000 }
    }
}

impl Moving {
    /// How long the move of such a VM takes, in milliseconds.
    pub(super) fn takes_ms(self, size: Resources) -> u64 {
        let by_memory = u128::from(size.memory.kb()) * u128::from(self.per_gb_ms);
        let by_memory = u64::try_from(by_memory.div_ceil(1_000_000)).unwrap_or(u64::MAX);
        self.base_ms.saturating_add(by_memory)
    }
}

/// What is done at one time.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// No VM comes to these hosts any more, and those that are there are moved to others, on every host one after the
    /// other, in the order of [`Drains`]. One that finds no room waits, and is tried again whenever something becomes free.
    Drain(Vec<HostId>),
    /// VMs may come to these hosts again. A move that is on its way is ended.
    Open(Vec<HostId>),
    /// So many open hosts that have VMs are drained, those with the fewest cores in use, of equal ones the highest id first;
    /// each opens again once it is empty.
    Defragment(u32),
    /// These hosts now have so much and offer it. VMs that take more stay.
    Resize(Vec<HostId>, Resources),
    /// From now on hosts are chosen by this policy.
    Policy(Policy),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Each with its time after the first arrival, in milliseconds. At equal times they are done as they stand, after VMs have
    /// left and moves have ended, and before others come.
    pub actions: Vec<(u64, Action)>,
    pub moving: Moving,
    /// Who is moved first, and how many VMs are on their way together.
    pub drains: Drains,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drains {
    /// By which VMs go one after the other.
    pub order: DrainOrder,
    /// So many VMs may be on their way together; without a limit every host sends one at a time.
    pub limit: Option<u32>,
    /// Hosts are drained by themselves when too few are empty.
    pub below: Option<Below>,
}

/// When fewer hosts than this are empty, and none is being drained, the open hosts with VMs that have the most cores free
/// are drained, and open again once they are empty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Below {
    /// The share of hosts that are to be empty.
    pub empty_share: f64,
    /// So many hosts are drained together.
    pub hosts: u32,
}

impl Default for Drains {
    fn default() -> Self {
        Self { order: DrainOrder::Largest, limit: None, below: None }
    }
}
