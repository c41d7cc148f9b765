//! Where a VM keeps hosts busy the least: expected extra host time.

use ballast_types::Instant;

use super::exits::{Exits, in_words, left_s};
use crate::rule::{Ask, Event, Rule};
use crate::{Cluster, HostId, Ties};

/// The weight of what a VM leaves of a host: unused cores and memory for as long as the VM lives.
const FRAGMENTATION: f64 = 0.5;
/// The weight of a host's life beyond the VM's: a host that is busy for long is kept for VMs that live long.
const UMBRELLA: f64 = 0.06;
/// Lives differ by this at least before their ratio means anything.
const SOFT_S: f64 = 72.0;

/// Expected extra host time of a VM with a known end, in seconds; the least is the best:
///
/// * by how much it outlives the host; an empty host it keeps busy all its life;
/// * and of its life the share that it leaves of the host, times 0.5;
/// * and of its life 0.06 for every ten times that the host lives longer, at most 1,000 times. An empty host has none.
///
/// The constants were measured on synthetic pools, which nothing else uses. Of a VM of which nobody knows when it will end
/// all hosts but the share that it leaves are alike: best fit.
#[derive(Clone, Debug)]
pub struct ExpectedExit {
    exits: Exits,
}

impl ExpectedExit {
    /// For a cluster whose VMs it is told of afterwards, under a ranking with these ties.
    pub fn new(cluster: &Cluster, ties: Ties) -> Self {
        Self { exits: Exits::new(cluster, ties) }
    }

    /// The larger share of cores or memory that the VM leaves of a host's room.
    fn left(ask: &Ask<'_>, host: HostId) -> f64 {
        let free = ask.cluster.free(host).checked_sub(ask.vm.resources).unwrap_or_default();
        let room = ask.cluster.host(host).room;
        let cores = f64::from(free.cores.milli()) / f64::from(room.cores.milli().max(1));
        cores.max(free.memory.kb() as f64 / room.memory.kb().max(1) as f64)
    }

    fn cost_s(&self, ask: &Ask<'_>, host: HostId) -> f64 {
        let Some(exit) = ask.vm.exit() else { return Self::left(ask, host) };
        let life = left_s(ask.now, exit);
        let fragmentation = FRAGMENTATION * life * Self::left(ask, host);
        let Some(host) = self.exits.of(host) else { return life + fragmentation };

        let busy = left_s(ask.now, host);
        let longer = libm::log10((busy + SOFT_S) / (life + SOFT_S)).clamp(0.0, 3.0);
        (life - busy).max(0.0) + fragmentation + UMBRELLA * life * longer
    }
}

impl Rule for ExpectedExit {
    fn name(&self) -> &'static str {
        "expected-exit"
    }

    /// Minus the cost, in millionths of a second.
    fn score(&self, ask: &Ask<'_>, host: HostId) -> i64 {
        -((self.cost_s(ask, host) * 1e6) as i64)
    }

    fn explain(&self, ask: &Ask<'_>, host: HostId) -> String {
        let left = Self::left(ask, host) * 100.0;
        let Some(exit) = ask.vm.exit() else {
            return format!("nobody knows when the VM will end; the host keeps {left:.1} %");
        };
        let cost = in_words(self.cost_s(ask, host));
        let vm = in_words(left_s(ask.now, exit));
        let host = self.exits.of(host).map_or("is empty".to_owned(), |host| {
            format!("is expected to be free in {}", in_words(left_s(ask.now, host)))
        });
        format!("the host {host}; this VM lives {vm} and leaves {left:.1} %: {cost} of extra host time")
    }

    fn handle_event(&mut self, _now: Instant, cluster: &Cluster, event: &Event<'_>) {
        self.exits.handle_event(cluster, event);
    }
}
