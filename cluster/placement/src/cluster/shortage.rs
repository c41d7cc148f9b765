//! What there is too little of.

use serde::Serialize;

use super::Cluster;
use crate::units::Totals;
use crate::{HostState, Resources};

/// A cluster with less than one in so many of its cores or its memory free is full.
const FULL: u64 = 100;

/// Why VMs found no host, though each of them has hosts that are large enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shortage {
    /// The open hosts that could take the VMs have too few cores together.
    Cores,
    /// The open hosts that could take the VMs have too little memory together.
    Memory,
    /// The open hosts have too little together of a resource beside these two, such as GPUs.
    Extras,
    /// There is enough of all, but not where it is needed.
    Fragmentation,
}

impl Shortage {
    /// For people.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Cores => "too few cores",
            Self::Memory => "too little memory",
            Self::Extras => "too little of a resource beside cores and memory",
            Self::Fragmentation => "fragmentation",
        }
    }
}

impl Cluster {
    /// What there is too little of for VMs that found no host; every host is looked at. In this order:
    ///
    /// 1. what all open hosts together have less of than is asked for, or less than 1 %: such a cluster
    ///    is full, however the rest lies;
    /// 2. nothing, but pieces too small ([`Shortage::Fragmentation`]), where no host has the cores, or none the memory;
    /// 3. the resource of which the smaller share is free, where the hosts with room for the other have too little of
    ///    it: cores that are free where all memory is taken help nobody. Else it is pieces again.
    pub fn shortage(&self, vms: &[Resources]) -> Shortage {
        let asked = vms.iter().fold(Totals::default(), |sum, vm| sum + *vm);
        let hosts = || self.records().filter(|host| host.state == HostState::Open);
        let whole = hosts().fold(Totals::default(), |sum, host| sum + host.host.room);
        let free = self.open;
        let is_short = |asked: u64, free: u64, whole: u64| asked > free || free.saturating_mul(FULL) < whole;
        if is_short(asked.milli_cores, free.milli_cores, whole.milli_cores) {
            return Shortage::Cores;
        }
        if is_short(asked.memory_kb, free.memory_kb, whole.memory_kb) {
            return Shortage::Memory;
        }
        if asked.extras.iter().zip(free.extras).any(|(asked, free)| *asked > free) {
            return Shortage::Extras;
        }

        let cores = vms.iter().map(|vm| vm.cores).min().unwrap_or_default();
        let memory = vms.iter().map(|vm| vm.memory).min().unwrap_or_default();
        let (has_cores, has_memory) =
            (|free: &Resources| free.cores >= cores, |free: &Resources| free.memory >= memory);
        let open = || hosts().map(|host| host.free);
        if !open().any(|free| has_cores(&free)) || !open().any(|free| has_memory(&free)) {
            return Shortage::Fragmentation;
        }

        let share = |part: u64, whole: u64| u128::from(part) * u128::from(whole);
        let cores_usable = open().filter(has_memory).map(|free| u64::from(free.cores.milli())).sum::<u64>();
        let memory_usable = open().filter(has_cores).map(|free| free.memory.kb()).sum::<u64>();
        let cores_are_scarcer =
            share(free.milli_cores, whole.memory_kb) <= share(free.memory_kb, whole.milli_cores);
        match cores_are_scarcer {
            true if asked.milli_cores > cores_usable => Shortage::Cores,
            false if asked.memory_kb > memory_usable => Shortage::Memory,
            _ => Shortage::Fragmentation,
        }
    }
}
