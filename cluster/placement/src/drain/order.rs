//! Who goes first.

use core::cmp::{Ordering, Reverse};

use ballast_types::Instant;
use serde::{Deserialize, Serialize};

use crate::{MemoryKb, MilliCores, Resources};

/// In which order VMs leave the hosts that are drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrainOrder {
    /// Every host by itself: the most cores, then the most memory first.
    Largest,
    /// Host after host, the VM that came first goes first.
    Arrival,
    /// Host after host, the VM with the most of its life ahead goes first: as LARS is published.
    PerHost,
    /// One list over all hosts, the VM with the most of its life ahead goes first.
    #[default]
    Global,
}

/// A VM on a host that is drained.
#[derive(Clone, Debug, PartialEq)]
pub struct DrainVm<V, H> {
    /// What the site calls the VM.
    pub vm: V,
    /// The host that it is on.
    pub host: H,
    /// When the VM came, which moves leave as it is.
    pub since: Instant,
    /// The room that it takes on both hosts while it is moved.
    pub resources: Resources,
    /// How much longer it is expected to live; longest of all where nobody knows.
    pub remaining_s: Option<f32>,
}

/// The lowest goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    turn: i64,
    host: u32,
    remaining: Reverse<u32>,
    size: Reverse<(MilliCores, MemoryKb)>,
    since: Instant,
}

impl DrainOrder {
    /// Whether each host is drained by itself, whatever the others do.
    pub(super) fn is_by_host(self) -> bool {
        self == Self::Largest
    }

    /// Where a VM of the host of this number stands. The lowest `turn` goes before all others.
    pub(super) fn key<V, H>(self, turn: i64, host: u32, remaining_s: Option<f32>, vm: &DrainVm<V, H>) -> Key {
        // Numbers from 0 on are in the order of their bits.
        let remaining = remaining_s.map_or(u32::MAX, |left_s| left_s.max(0.0).to_bits());
        let by_life = matches!(self, Self::PerHost | Self::Global);
        let size = (vm.resources.cores, vm.resources.memory);
        Key {
            turn,
            host: if self == Self::Global { 0 } else { host },
            remaining: Reverse(if by_life { remaining } else { 0 }),
            size: Reverse(if self.is_by_host() { size } else { Default::default() }),
            since: if self.is_by_host() { Instant::ZERO } else { vm.since },
        }
    }

    /// Of two that stand alike.
    pub(super) fn among_equals<V: Ord>(self, a: &V, b: &V) -> Ordering {
        if self.is_by_host() { b.cmp(a) } else { a.cmp(b) }
    }
}
