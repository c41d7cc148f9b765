//! VMs that live long apart from others: LA-Binary.
//!
//! Source: LAVA, arXiv 2412.09840, section 2, after Barbalho et al., MLSys 2023.

use core::time::Duration;

use ballast_types::Instant;

use super::exits::Exits;
use super::guests::Guest;
use crate::rule::{Ask, Event, Rule};
use crate::{Cluster, HostId, Ties};

/// VMs that live less than two hours are short.
const LONG: Duration = Duration::from_secs(7_200);

/// VMs that live two hours or more go together, and so do others: to hosts of their class, then to others with VMs, then
/// to empty ones. What was first known of a VM's end stands for ever.
#[derive(Clone, Debug)]
pub struct LaBinary {
    exits: Exits,
}

impl LaBinary {
    /// For a cluster whose VMs it is told of afterwards, under a ranking with these ties.
    pub fn new(cluster: &Cluster, ties: Ties) -> Self {
        Self { exits: Exits::once(cluster, ties) }
    }

    fn is_long(ask: &Ask<'_>, exit: Instant) -> bool {
        exit.since(ask.now) >= LONG
    }

    fn vm_is_long(ask: &Ask<'_>) -> bool {
        Self::is_long(ask, Guest::asked(ask).exit(ask.cluster.curves(), ask.now))
    }
}

impl Rule for LaBinary {
    fn name(&self) -> &'static str {
        "la-binary"
    }

    fn is_silent(&self, ask: &Ask<'_>) -> bool {
        self.exits.exit(ask).is_none()
    }

    fn score(&self, ask: &Ask<'_>, host: HostId) -> i64 {
        match self.exits.of(host) {
            Some(host) if !self.is_silent(ask) => {
                1 + i64::from(Self::vm_is_long(ask) == Self::is_long(ask, host))
            }
            _ => 0,
        }
    }

    fn best_class(&self, ask: &Ask<'_>, admits: &mut dyn FnMut(HostId) -> bool) -> Option<Option<i64>> {
        let (is_long, edge) = (Self::vm_is_long(ask), (ask.now + LONG).as_nanos());
        let (cores, memory) = (ask.vm.resources.cores.milli(), ask.vm.resources.memory.kb());
        let (mut own, mut other) = (false, false);
        for row in self.exits.index().sizes().iter().flat_map(|size| size.rows(cores)) {
            let (short, long) = row.hosts.split_at(row.hosts.partition_point(|host| host.key < edge));
            let (mine, others) = if is_long { (long, short) } else { (short, long) };
            own = mine.iter().any(|host| host.free_kb >= memory && admits(host.tie.host()));
            if own {
                break;
            }
            other |= !other && others.iter().any(|host| host.free_kb >= memory && admits(host.tie.host()));
        }
        Some(match (own, other) {
            (true, _) => Some(2),
            (false, true) => Some(1),
            (false, false) => self.exits.has_empty(admits).then_some(0),
        })
    }

    fn explain(&self, ask: &Ask<'_>, host: HostId) -> String {
        match self.score(ask, host) {
            _ if self.is_silent(ask) => self.exits.why_unknown().to_owned(),
            2 => "its VMs and this one live two hours or more, or less, alike".to_owned(),
            1 => "its VMs are of the other class of lifetimes".to_owned(),
            _ => "the host is empty".to_owned(),
        }
    }

    fn handle_event(&mut self, now: Instant, cluster: &Cluster, event: &Event<'_>) {
        self.exits.handle_event(now, cluster, event);
    }
}
