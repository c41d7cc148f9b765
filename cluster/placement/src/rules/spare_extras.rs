//! Hosts with GPUs and the like are kept for VMs that ask for them.

use core::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use ballast_types::Instant;

use crate::rule::{Ask, Event, Rule, Walk};
use crate::ties::TieKey;
use crate::units::EXTRAS;
use crate::{Cluster, HostId, Ties};

/// The fewer kinds of resources beside cores and memory a host offers that the VM does not ask for, the better: a VM without
/// a GPU goes to a host with one only where no other has room. It puts hosts into few classes; a later tier decides
/// within them.
#[derive(Clone, Debug)]
pub struct SpareExtras {
    ties: Ties,
    /// By the kinds that they offer.
    hosts: [BTreeSet<TieKey>; 1 << EXTRAS],
    /// How many offer any.
    offering: u32,
    /// What every host offers, and its place; `None` of one that is gone.
    positions: Vec<Option<(u8, TieKey)>>,
}

fn score(offered: u8, asked: u8) -> i64 {
    -i64::from((offered & !asked).count_ones())
}

impl SpareExtras {
    /// For a cluster as it is now, under a ranking with these ties.
    pub fn new(cluster: &Cluster, ties: Ties) -> Self {
        let hosts = core::array::from_fn(|_| BTreeSet::new());
        let mut this = Self { ties, hosts, offering: 0, positions: Vec::with_capacity(cluster.len()) };
        cluster.ids().for_each(|host| this.update(cluster, host));
        this
    }

    fn update(&mut self, cluster: &Cluster, host: HostId) {
        let at = host.0 as usize;
        if self.positions.len() <= at {
            self.positions.resize(at + 1, None);
        }

        if let Some((offered, tie)) = self.positions[at] {
            self.hosts[usize::from(offered)].remove(&tie);
            self.offering -= u32::from(offered > 0);
        }
        self.positions[at] = cluster.contains(host).then(|| {
            let (offered, tie) = (cluster.host(host).room.extras.kinds(), self.ties.key(cluster, host));
            self.hosts[usize::from(offered)].insert(tie);
            self.offering += u32::from(offered > 0);
            (offered, tie)
        });
    }
}

impl Rule for SpareExtras {
    fn name(&self) -> &'static str {
        "spare-extras"
    }

    fn is_silent(&self, _ask: &Ask<'_>) -> bool {
        self.offering == 0
    }

    fn score(&self, ask: &Ask<'_>, host: HostId) -> i64 {
        score(ask.cluster.host(host).room.extras.kinds(), ask.vm.resources.extras.kinds())
    }

    fn explain(&self, ask: &Ask<'_>, host: HostId) -> String {
        match -self.score(ask, host) {
            _ if self.is_silent(ask) => String::new(),
            0 => "the VM asks for every resource that the host offers beside cores and memory".to_owned(),
            kinds => format!("kept for others: {kinds} kinds of resources that the VM does not ask for"),
        }
    }

    fn walk<'a>(&'a self, ask: &Ask<'a>) -> Option<Walk<'a>> {
        let asked = ask.vm.resources.extras.kinds();
        let mut lists: Vec<_> =
            (0u8..).zip(&self.hosts).map(|(offered, of)| (score(offered, asked), of.iter())).collect();
        let head =
            |list: usize, (score, hosts): &mut (i64, std::collections::btree_set::Iter<'a, TieKey>)| {
                Some((*score, Reverse(*hosts.next()?), list))
            };
        let mut heads: BinaryHeap<_> =
            lists.iter_mut().enumerate().filter_map(|(n, list)| head(n, list)).collect();

        Some(Box::new(core::iter::from_fn(move || {
            let (score, Reverse(tie), list) = heads.pop()?;
            heads.extend(head(list, &mut lists[list]));
            Some((score, tie.host()))
        })))
    }

    fn handle_event(&mut self, _now: Instant, cluster: &Cluster, event: &Event<'_>) {
        if let Event::HostChanged { host, .. } = *event {
            self.update(cluster, host);
        }
    }
}
