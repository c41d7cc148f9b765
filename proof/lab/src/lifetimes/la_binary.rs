//! LA-Binary: VMs with long lives on other hosts than VMs with short ones.
//!
//! Source: LAVA, arXiv 2412.09840, section 2, after Barbalho et al., MLSys 2023.

use core::time::Duration;

use ballast_placement::rules::{Guest, Nilas};
use ballast_placement::{Ask, Cluster, Event, HostId, Rule, Ties, VmKey};
use ballast_types::Instant;

/// VMs that live less than two hours are short.
const LONG: Duration = Duration::from_secs(7_200);

/// There are two classes of VMs: those that live two hours or more, and the rest. A VM goes to a host of its class, then to
/// a host of the other class, then to an empty one. A VM's first expected end is never corrected.
#[derive(Clone, Debug)]
pub(super) struct LaBinary {
    /// Knows whether lifetimes have come true of late.
    nilas: Nilas,
    /// The VMs of every host, with their ends.
    exits: Vec<Vec<(VmKey, Instant)>>,
}

impl LaBinary {
    /// A rule for an empty cluster. The cluster's VMs follow as events.
    pub(super) fn new(cluster: &Cluster, ties: Ties) -> Self {
        Self { nilas: Nilas::classes(cluster, ties), exits: Vec::new() }
    }

    fn is_long(ask: &Ask<'_>, exit: Instant) -> bool {
        exit.since(ask.now) >= LONG
    }
}

impl Rule for LaBinary {
    fn name(&self) -> &'static str {
        "la-binary"
    }

    fn is_silent(&self, ask: &Ask<'_>) -> bool {
        self.nilas.is_silent(ask)
    }

    fn score(&self, ask: &Ask<'_>, host: HostId) -> i64 {
        let exits = self.exits.get(host.0 as usize).into_iter().flatten();
        match (exits.map(|(_, exit)| *exit).max(), self.nilas.exit(ask)) {
            (Some(host), Some(vm)) => 1 + i64::from(Self::is_long(ask, vm) == Self::is_long(ask, host)),
            _ => 0,
        }
    }

    fn explain(&self, ask: &Ask<'_>, host: HostId) -> String {
        match self.score(ask, host) {
            _ if self.is_silent(ask) => self.nilas.explain(ask, host),
            2 => "its VMs and this one live two hours or more, or less, alike".to_owned(),
            1 => "its VMs are of the other class of lifetimes".to_owned(),
            _ => "the host is empty".to_owned(),
        }
    }

    fn handle_event(&mut self, now: Instant, cluster: &Cluster, event: &Event<'_>) {
        if matches!(event, Event::Resized { .. } | Event::Repredicted { .. }) {
            return;
        }
        self.nilas.handle_event(now, cluster, event);
        let [left, came] = event.guests();
        if let Some((vm, host)) = left {
            self.exits[host.0 as usize].retain(|(other, _)| *other != vm.id);
        }
        if let Some((vm, host)) = came {
            let at = host.0 as usize;
            self.exits.resize(self.exits.len().max(at + 1), Vec::new());
            let since = cluster.resident(vm.id).map_or(now, |resident| resident.since);
            let guest = Guest::asked(&Ask { now: since, vm, cluster });
            self.exits[at].push((vm.id, guest.exit(cluster.curves(), since)));
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.nilas.poll_timeout()
    }
}
