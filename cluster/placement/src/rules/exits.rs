//! When hosts are expected to be empty: the latest of their VMs' ends.

use ballast_types::Instant;

use super::guests::{Guest, Guests, Looks, NEVER};
use super::index::Index;
use crate::rule::{Ask, Event};
use crate::{Cluster, ExpectedEnd, HostId, Ties, VmRequest};

/// The exit of every host, with what is free of it. What curves say is looked up again as VMs grow older.
#[derive(Clone, Debug)]
pub(super) struct Exits {
    guests: Guests,
    /// Keys are exits in nanoseconds.
    index: Index,
    looks: Looks,
}

impl Exits {
    /// Of a cluster's hosts; who is there is told afterwards.
    pub(super) fn new(cluster: &Cluster, ties: Ties) -> Self {
        let index = Index::new(cluster, ties);
        Self { guests: Guests::new(cluster), index, looks: Looks::default() }
    }

    /// When the last VM of a host is expected to end; `None` where there is none.
    pub(super) fn of(&self, host: HostId) -> Option<Instant> {
        self.index.key(host).map(Instant::from_nanos)
    }

    pub(super) fn guests(&self, host: HostId) -> &[Guest] {
        self.guests.of(host)
    }

    /// When the VM is expected to end; `None` where nobody knows.
    pub(super) fn exit(&self, ask: &Ask<'_>) -> Option<Instant> {
        self.guests.end(ask.vm).map(|_| Guest::asked(ask).exit(ask.cluster.curves(), ask.now))
    }

    pub(super) fn why_unknown(&self) -> &'static str {
        self.guests.why_unknown()
    }

    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    /// The latest exit of the hosts with VMs that have room and are admitted, and none later than `enough`: then any that
    /// is as late.
    pub(super) fn latest(
        &self,
        ask: &Ask<'_>,
        enough: Instant,
        admits: &mut dyn FnMut(HostId) -> bool,
    ) -> Option<Instant> {
        let (cores, memory) = (ask.vm.resources.cores.milli(), ask.vm.resources.memory.kb());
        let mut best: Option<u64> = None;
        for row in self.index.sizes().iter().flat_map(|size| size.rows(cores)) {
            for host in row.hosts.iter().rev() {
                if best.is_some_and(|best| host.key <= best) {
                    break;
                }
                if host.free_kb >= memory && admits(host.tie.host()) {
                    best = Some(host.key);
                    break;
                }
            }
            if best.is_some_and(|best| best >= enough.as_nanos()) {
                break;
            }
        }
        best.map(Instant::from_nanos)
    }

    /// Whether a host without VMs is admitted.
    pub(super) fn has_empty(&self, admits: &mut dyn FnMut(HostId) -> bool) -> bool {
        self.index.sizes().iter().flat_map(|size| &size.empty).any(|tie| admits(tie.host()))
    }

    pub(super) fn handle_event(&mut self, now: Instant, cluster: &Cluster, event: &Event<'_>) {
        self.guests.handle_event(now, cluster, event);
        match *event {
            // One more that ends at a known time.
            Event::Placed { vm: VmRequest { end: Some(ExpectedEnd::At(exit)), .. }, host }
            | Event::Held { vm: VmRequest { end: Some(ExpectedEnd::At(exit)), .. }, host }
                if !self.looks.is_set(host) =>
            {
                let latest = self.of(host).map_or(*exit, |latest| latest.max(*exit));
                self.index.update(cluster, host, Some(latest.as_nanos()));
            }
            _ => event.hosts().for_each(|host| self.look(now, cluster, host)),
        }
        if matches!(event, Event::Deadline) {
            while let Some(host) = self.looks.pop(now) {
                self.look(now, cluster, host);
            }
        }
    }

    /// What a host's guests come to now.
    fn look(&mut self, now: Instant, cluster: &Cluster, host: HostId) {
        let exit = self.guests.of(host).iter().map(|guest| guest.exit(cluster.curves(), now)).max();
        self.index.update(cluster, host, exit.map(|exit| exit.as_nanos()));

        let again = self.guests.look_again(host, now);
        // One that was expected to be empty by now is looked at as soon as may be.
        let passes = exit.filter(|exit| *exit < NEVER && *exit > now);
        self.looks.set(host, again.map(|again| passes.map_or(again, |exit| exit.min(again))));
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.looks.next()
    }
}
