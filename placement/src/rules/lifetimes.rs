//! Rules that put VMs that end together on one host: LA-Binary and NILAS.
//!
//! Both put hosts into few classes; best fit decides within one. Of a VM of which nobody knows when it will end they say
//! nothing.
//!
//! Source: LAVA, arXiv 2412.09840, sections 2 and 4.

use ballast_types::Instant;
use core::time::Duration;

use super::exits::{Exits, in_words, left_s};
use crate::rule::{Ask, Event, Rule};
use crate::{Cluster, HostId, Ties};

/// Edges of the classes of NILAS, in seconds: by so much a VM outlives its host.
const EDGES_S: [f64; 10] =
    [1_800.0, 3_600.0, 5_400.0, 7_200.0, 10_800.0, 14_400.0, 21_600.0, 43_200.0, 86_400.0, 604_800.0];
/// LA-Binary tells VMs that live less than two hours from others.
const LONG: Duration = Duration::from_secs(7_200);

/// The less a VM outlives its host the better, in classes; of one class hosts with VMs are better than empty ones.
#[derive(Clone, Debug)]
pub struct Nilas {
    exits: Exits,
}

impl Nilas {
    /// For a cluster whose VMs it is told of afterwards, under a ranking with these ties.
    pub fn new(cluster: &Cluster, ties: Ties) -> Self {
        Self { exits: Exits::new(cluster, ties) }
    }

    /// By how much the VM outlives a host with this exit.
    fn beyond_s(ask: &Ask<'_>, host: Option<Instant>) -> f64 {
        let exit = ask.vm.exit().map_or(0.0, |exit| left_s(ask.now, exit));
        (exit - host.map_or(0.0, |host| left_s(ask.now, host))).max(0.0)
    }

    fn class(ask: &Ask<'_>, host: Option<Instant>) -> i64 {
        let cost = EDGES_S.partition_point(|edge| *edge <= Self::beyond_s(ask, host));
        -(2 * cost as i64 + i64::from(host.is_none()))
    }
}

impl Rule for Nilas {
    fn name(&self) -> &'static str {
        "nilas"
    }

    fn is_silent(&self, ask: &Ask<'_>) -> bool {
        ask.vm.exit().is_none()
    }

    fn score(&self, ask: &Ask<'_>, host: HostId) -> i64 {
        if self.is_silent(ask) { 0 } else { Self::class(ask, self.exits.of(host)) }
    }

    fn best_class(&self, ask: &Ask<'_>, admits: &mut dyn FnMut(HostId) -> bool) -> Option<Option<i64>> {
        // The later a host is empty, the less the VM outlives it; an empty one it outlives by all of its life.
        let used = self.exits.latest_first().find(|(_, host)| admits(*host)).map(|(exit, _)| Some(exit));
        let exit = used.or_else(|| self.exits.empty().find(|host| admits(*host)).map(|_| None));
        Some(exit.map(|exit| Self::class(ask, exit)))
    }

    fn explain(&self, ask: &Ask<'_>, host: HostId) -> String {
        let Some(exit) = ask.vm.exit() else { return "nobody knows when the VM will end".to_owned() };
        let vm = in_words(left_s(ask.now, exit));
        match self.exits.of(host) {
            Some(host) => {
                let host = in_words(left_s(ask.now, host));
                format!("the host is expected to be free in {host}; this VM lives {vm}")
            }
            None => format!("the host is empty; this VM lives {vm}"),
        }
    }

    fn handle_event(&mut self, _now: Instant, cluster: &Cluster, event: &Event<'_>) {
        self.exits.handle_event(cluster, event);
    }
}

/// VMs that live two hours or more go together, and so do others: to hosts of their class, then to others with VMs, then
/// to empty ones.
#[derive(Clone, Debug)]
pub struct LaBinary {
    exits: Exits,
}

impl LaBinary {
    /// For a cluster whose VMs it is told of afterwards, under a ranking with these ties.
    pub fn new(cluster: &Cluster, ties: Ties) -> Self {
        Self { exits: Exits::new(cluster, ties) }
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
        ask.vm.exit().is_none()
    }

    fn score(&self, ask: &Ask<'_>, host: HostId) -> i64 {
        let (Some(vm), Some(host)) = (ask.vm.exit(), self.exits.of(host)) else { return 0 };
        1 + i64::from(Self::is_long(ask, vm) == Self::is_long(ask, host))
    }

    fn best_class(&self, ask: &Ask<'_>, admits: &mut dyn FnMut(HostId) -> bool) -> Option<Option<i64>> {
        let is_long = Self::is_long(ask, ask.vm.exit()?);
        let edge = ask.now + LONG;
        let mut long = self.exits.from(edge);
        let mut short = self.exits.before(edge);
        let (has_long, has_short) = (long.any(&mut *admits), short.any(&mut *admits));
        let (own, other) = if is_long { (has_long, has_short) } else { (has_short, has_long) };
        Some(if own {
            Some(2)
        } else if other {
            Some(1)
        } else {
            self.exits.empty().any(admits).then_some(0)
        })
    }

    fn explain(&self, ask: &Ask<'_>, host: HostId) -> String {
        match self.score(ask, host) {
            _ if self.is_silent(ask) => "nobody knows when the VM will end".to_owned(),
            2 => "its VMs and this one live two hours or more, or less, alike".to_owned(),
            1 => "its VMs are of the other class of lifetimes".to_owned(),
            _ => "the host is empty".to_owned(),
        }
    }

    fn handle_event(&mut self, _now: Instant, cluster: &Cluster, event: &Event<'_>) {
        self.exits.handle_event(cluster, event);
    }
}
