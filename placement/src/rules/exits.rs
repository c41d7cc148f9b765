//! When hosts are expected to be empty: the latest of their VMs' exits.

use std::collections::{BTreeMap, BTreeSet};

use ballast_types::Instant;

use crate::rule::Event;
use crate::ties::TieKey;
use crate::{Cluster, HostId, Ties, VmRequest};

/// Of a VM of which nobody knows when it will end.
const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// The exits of all VMs, by host, and hosts in the order of the latest of theirs.
#[derive(Clone, Debug)]
pub(super) struct Exits {
    ties: Ties,
    /// How many VMs of a host are expected to end then.
    hosts: Vec<BTreeMap<Instant, u32>>,
    /// Hosts with VMs, by the latest exit.
    order: BTreeSet<(Instant, TieKey)>,
    empty: BTreeSet<TieKey>,
}

impl Exits {
    /// Of a cluster's hosts; who is there is told afterwards.
    pub(super) fn new(cluster: &Cluster, ties: Ties) -> Self {
        let empty = cluster.ids().map(|host| ties.key(cluster, host)).collect();
        let hosts = cluster.ids().last().map_or(0, |host| host.0 as usize + 1);
        Self { ties, hosts: vec![BTreeMap::new(); hosts], order: BTreeSet::new(), empty }
    }

    /// When the last VM of a host is expected to end; `None` where there is none.
    pub(super) fn of(&self, host: HostId) -> Option<Instant> {
        self.hosts.get(host.0 as usize)?.last_key_value().map(|(exit, _)| *exit)
    }

    /// Hosts with VMs from the latest exit down.
    pub(super) fn latest_first(&self) -> impl Iterator<Item = (Instant, HostId)> {
        self.order.iter().rev().map(|(exit, tie)| (*exit, tie.host()))
    }

    /// Hosts with VMs that are expected to be empty at this time or later.
    pub(super) fn from(&self, exit: Instant) -> impl Iterator<Item = HostId> {
        self.order.range((exit, TieKey::LOWEST)..).map(|(_, tie)| tie.host())
    }

    /// Hosts with VMs that are expected to be empty before this time.
    pub(super) fn before(&self, exit: Instant) -> impl Iterator<Item = HostId> {
        self.order.range(..(exit, TieKey::LOWEST)).map(|(_, tie)| tie.host())
    }

    pub(super) fn empty(&self) -> impl Iterator<Item = HostId> {
        self.empty.iter().map(|tie| tie.host())
    }

    /// Learns what happened; says of which hosts the exit may be another.
    pub(super) fn handle_event(&mut self, cluster: &Cluster, event: &Event<'_>) {
        if let Event::HostChanged { host, .. } = *event {
            let hosts = self.hosts.len().max(host.0 as usize + 1);
            self.hosts.resize(hosts, BTreeMap::new());
            let tie = self.ties.key(cluster, host);
            match (cluster.contains(host), self.of(host)) {
                (true, None) => drop(self.empty.insert(tie)),
                (false, _) => drop(self.empty.remove(&tie)),
                _ => {}
            }
        }

        let [left, came] = event.guests();
        left.into_iter().for_each(|(vm, host)| self.change(cluster, vm, host, false));
        came.into_iter().for_each(|(vm, host)| self.change(cluster, vm, host, true));
    }

    fn change(&mut self, cluster: &Cluster, vm: &VmRequest, host: HostId, comes: bool) {
        let at = host.0 as usize;
        let (before, exit) = (self.of(host), vm.exit().unwrap_or(NEVER));
        if comes {
            *self.hosts[at].entry(exit).or_default() += 1;
        } else if let Some(count) = self.hosts[at].get_mut(&exit) {
            *count -= 1;
            if *count == 0 {
                self.hosts[at].remove(&exit);
            }
        }

        let after = self.of(host);
        if before != after {
            let tie = self.ties.key(cluster, host);
            match before {
                Some(exit) => self.order.remove(&(exit, tie)),
                None => self.empty.remove(&tie),
            };
            match after {
                Some(exit) => self.order.insert((exit, tie)),
                None => self.empty.insert(tie),
            };
        }
    }
}

/// How much longer a VM is expected to live than until now; nothing where its time is over.
pub(super) fn left_s(now: Instant, exit: Instant) -> f64 {
    exit.since(now).as_secs_f64()
}

/// In words for people.
pub(super) fn in_words(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3600.0),
        s if s < 3.2e9 => format!("{:.1} days", s / 86_400.0),
        _ => "for ever".to_owned(),
    }
}
