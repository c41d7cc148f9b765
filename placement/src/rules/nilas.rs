//! VMs that end together on one host: NILAS.
//!
//! Source: LAVA, arXiv 2412.09840, section 4.

use ballast_types::Instant;

use super::best_fit;
use super::exits::Exits;
use super::guests::{Guest, in_words, left_s};
use crate::rule::{Ask, Event, Rule, Search};
use crate::ties::TieKey;
use crate::{Cluster, HostId, Ties};

/// Edges of the classes, in seconds: by so much a VM outlives its host.
const EDGES_S: [f64; 10] =
    [1_800.0, 3_600.0, 5_400.0, 7_200.0, 10_800.0, 14_400.0, 21_600.0, 43_200.0, 86_400.0, 604_800.0];
/// The scores of best fit within a class take fewer bits.
const CLASS: i64 = 1 << 48;

/// The less a VM outlives its host the better, in classes; of one class hosts with VMs are better than empty ones. Of a VM
/// of which nobody knows when it will end the rule says nothing.
///
/// What curves say of VMs is looked up again when a VM comes or goes, when a host was expected to be empty, and as VMs
/// grow older.
#[derive(Clone, Debug)]
pub struct Nilas {
    exits: Exits,
    /// Whether best fit decides within a class; else a later tier does.
    packs: bool,
}

impl Nilas {
    /// For a cluster whose VMs it is told of afterwards, under a ranking with these ties: classes, within which a later tier
    /// decides.
    pub fn classes(cluster: &Cluster, ties: Ties) -> Self {
        Self { exits: Exits::new(cluster, ties), packs: false }
    }

    /// The same, and best fit within a class: one search finds both.
    pub fn packing(cluster: &Cluster, ties: Ties) -> Self {
        Self { packs: true, ..Self::classes(cluster, ties) }
    }

    /// By how much a VM with this exit outlives a host with that.
    fn beyond_s(now: Instant, vm: Instant, host: Option<Instant>) -> f64 {
        (left_s(now, vm) - host.map_or(0.0, |host| left_s(now, host))).max(0.0)
    }

    /// 0 is the best; odd classes are those of empty hosts.
    pub(super) fn class(now: Instant, vm: Instant, host: Option<Instant>) -> i64 {
        let cost = EDGES_S.partition_point(|edge| *edge <= Self::beyond_s(now, vm, host));
        2 * cost as i64 + i64::from(host.is_none())
    }

    /// When the VM is expected to end; `None` where nobody knows.
    pub(super) fn exit(ask: &Ask<'_>) -> Option<Instant> {
        ask.vm.end.map(|_| Guest::asked(ask).exit(ask.cluster.curves(), ask.now))
    }

    /// The best class among admitted hosts.
    fn best(&self, ask: &Ask<'_>, vm: Instant, admits: &mut dyn FnMut(HostId) -> bool) -> Option<i64> {
        // The later a host is empty, the less the VM outlives it; an empty one it outlives by all of its life.
        match self.exits.latest(ask, before(vm, EDGES_S[0] - 1.0), admits) {
            Some(exit) => Some(Self::class(ask.now, vm, Some(exit))),
            None => self.exits.has_empty(admits).then(|| Self::class(ask.now, vm, None)),
        }
    }

    /// Best fit among the hosts of a class; all better ones are not admitted.
    fn pack(
        &self,
        ask: &Ask<'_>,
        vm: Option<(Instant, i64)>,
        admits: &mut dyn FnMut(HostId) -> bool,
    ) -> Option<HostId> {
        let asked = ask.vm.resources;
        let (cores, memory) = (asked.cores.milli(), asked.memory.kb());
        let is_empty = vm.is_none_or(|(_, class)| class % 2 == 1);
        let is_used = vm.is_none_or(|(_, class)| class % 2 == 0);
        let mut best: Option<(i64, TieKey)> = None;

        for size in self.exits.index().sizes() {
            let score = |free_milli: u32, free_kb| {
                best_fit::score(best_fit::shares(size.room, free_milli - cores, free_kb))
            };
            if is_used {
                for row in size.rows(cores) {
                    if best.is_some_and(|(best, _)| score(row.free_milli, 0) < best) {
                        break;
                    }
                    let from = vm.map_or(0, |(vm, class)| {
                        row.hosts.partition_point(|host| {
                            Self::class(ask.now, vm, Some(Instant::from_nanos(host.key))) > class
                        })
                    });
                    for host in &row.hosts[from..] {
                        if host.free_kb < memory {
                            continue;
                        }
                        let found = score(row.free_milli, host.free_kb - memory);
                        let wins =
                            best.is_none_or(|(best, tie)| found > best || found == best && host.tie < tie);
                        if wins && admits(host.tie.host()) {
                            best = Some((found, host.tie));
                        }
                    }
                }
            }
            if is_empty && size.room.hold(asked) {
                let found = score(size.room.cores.milli(), size.room.memory.kb() - memory);
                let wins = |tie: &TieKey| {
                    best.is_none_or(|(best, lowest)| found > best || found == best && *tie < lowest)
                };
                if let Some(tie) =
                    size.empty.iter().take_while(|tie| wins(tie)).find(|tie| admits(tie.host()))
                {
                    best = Some((found, *tie));
                }
            }
        }
        best.map(|(_, tie)| tie.host())
    }
}

/// So many seconds earlier.
fn before(exit: Instant, seconds: f64) -> Instant {
    Instant::from_nanos(exit.as_nanos().saturating_sub((seconds * 1e9) as u64))
}

impl Rule for Nilas {
    fn name(&self) -> &'static str {
        "nilas"
    }

    fn is_silent(&self, ask: &Ask<'_>) -> bool {
        !self.packs && ask.vm.end.is_none()
    }

    fn score(&self, ask: &Ask<'_>, host: HostId) -> i64 {
        let class = Self::exit(ask).map_or(0, |vm| -Self::class(ask.now, vm, self.exits.of(host)));
        if self.packs { class * CLASS + best_fit::score(best_fit::left(ask, host)) } else { class }
    }

    fn search(&self, ask: &Ask<'_>, admits: &mut dyn FnMut(HostId) -> bool) -> Search {
        if !self.packs {
            return Search::Unordered;
        }
        let Some(vm) = Self::exit(ask) else { return Search::Best(self.pack(ask, None, admits)) };
        let class = self.best(ask, vm, admits);
        Search::Best(class.and_then(|class| self.pack(ask, Some((vm, class)), admits)))
    }

    fn best_class(&self, ask: &Ask<'_>, admits: &mut dyn FnMut(HostId) -> bool) -> Option<Option<i64>> {
        let vm = Self::exit(ask).filter(|_| !self.packs)?;
        Some(self.best(ask, vm, admits).map(|class| -class))
    }

    fn explain(&self, ask: &Ask<'_>, host: HostId) -> String {
        let left = if self.packs { format!("; {}", best_fit::explain(ask, host)) } else { String::new() };
        let Some(exit) = Self::exit(ask) else { return format!("nobody knows when the VM will end{left}") };
        let vm = in_words(left_s(ask.now, exit));
        match self.exits.of(host) {
            Some(host) => {
                let host = in_words(left_s(ask.now, host));
                format!("the host is expected to be free in {host}; this VM lives {vm}{left}")
            }
            None => format!("the host is empty; this VM lives {vm}{left}"),
        }
    }

    fn handle_event(&mut self, now: Instant, cluster: &Cluster, event: &Event<'_>) {
        self.exits.handle_event(now, cluster, event);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.exits.poll_timeout()
    }
}
