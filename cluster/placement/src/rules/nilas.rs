//! VMs that end together on one host: NILAS.
//!
//! Source: LAVA, arXiv 2412.09840, section 4.

use ballast_types::Instant;

use super::best_fit::{self, Left};
use super::exits::Exits;
use super::guests::{Guest, in_words, left_s};
use super::index::Best;
use crate::rule::{Ask, Event, Rule, Search};
use crate::{Cluster, HostId, Ties};

/// Edges of the classes, in minutes: by so much a VM outlives its host.
const EDGES_MIN: [u64; 10] = [30, 60, 90, 120, 180, 240, 360, 720, 1_440, 10_080];
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

    /// 0 is the best; odd classes are those of empty hosts.
    fn class(now: Instant, vm: Instant, host: Option<Instant>) -> i64 {
        let free = host.map_or(now, |host| host.max(now));
        let beyond = vm.max(now).as_nanos().saturating_sub(free.as_nanos());
        let cost = EDGES_MIN.partition_point(|edge| nanos(*edge) <= beyond);
        2 * cost as i64 + i64::from(host.is_none())
    }

    /// Hosts with VMs whose exits are then or later are of this class, or of a better one.
    fn from(now: Instant, vm: Instant, class: i64) -> u64 {
        let edge = EDGES_MIN.get((class / 2) as usize).map_or(u64::MAX, |edge| nanos(*edge));
        let after = vm.max(now).as_nanos().saturating_sub(edge);
        // One that was to be empty by now is as good as one that is to be so now.
        if after < now.as_nanos() { 0 } else { after.saturating_add(1) }
    }

    /// The VMs and holds of a host. One that was placed on an empty host is the last.
    pub fn guests(&self, host: HostId) -> &[Guest] {
        self.exits.guests(host)
    }

    /// When the VM is expected to end; `None` where that is not known.
    pub fn exit(&self, ask: &Ask<'_>) -> Option<Instant> {
        self.exits.exit(ask)
    }

    /// The best class among admitted hosts.
    fn best(&self, ask: &Ask<'_>, vm: Instant, admits: &mut dyn FnMut(HostId) -> bool) -> Option<i64> {
        // The later a host is empty, the less the VM outlives it; an empty one it outlives by all of its life.
        match self.exits.latest(ask, Instant::from_nanos(Self::from(ask.now, vm, 0)), admits) {
            Some(exit) => Some(Self::class(ask.now, vm, Some(exit))),
            None => self.exits.has_empty(admits).then(|| Self::class(ask.now, vm, None)),
        }
    }

    /// Best fit among the hosts of a class; all better ones are not admitted.
    fn pack(
        &self,
        ask: &Ask<'_>,
        vm: Instant,
        class: i64,
        admits: &mut dyn FnMut(HostId) -> bool,
    ) -> Option<HostId> {
        let asked = ask.vm.resources;
        let (cores, memory) = (asked.cores.milli(), asked.memory.kb());
        let from = Self::from(ask.now, vm, class);
        let is_empty = class % 2 == 1;
        let mut best = Best::new(admits);

        for size in self.exits.index().sizes().iter().filter(|size| size.room.hold(asked)) {
            if is_empty {
                best.offer_empty(size, asked);
                continue;
            }
            for row in size.rows(cores) {
                let left = Left::of(size.room, row.free_milli - cores);
                if !best.may_win(left.score(0)) {
                    break;
                }
                let by_memory = row.by_memory(memory);
                // Nobody in the row has less memory left than the first.
                let Some((least_kb, ..)) = by_memory.first() else { continue };
                if !best.may_win(left.score(least_kb - memory)) {
                    continue;
                }

                let of_class = &row.hosts[row.hosts.partition_point(|host| host.key < from)..];
                // Few of a class are looked at all; of many the first with little memory is soon found.
                if of_class.len() * of_class.len() <= row.hosts.len() {
                    for host in of_class.iter().filter(|host| host.free_kb >= memory) {
                        best.offer(left.score(host.free_kb - memory), host.tie);
                    }
                } else {
                    for (kb, tie, _) in by_memory.iter().filter(|(.., key)| *key >= from) {
                        let score = left.score(kb - memory);
                        if !best.may_win(score) {
                            break;
                        }
                        best.offer(score, *tie);
                    }
                }
            }
        }
        best.host.map(|(_, tie)| tie.host())
    }
}

const fn nanos(minutes: u64) -> u64 {
    minutes * 60_000_000_000
}

impl Rule for Nilas {
    fn name(&self) -> &'static str {
        "nilas"
    }

    fn is_silent(&self, ask: &Ask<'_>) -> bool {
        !self.packs && self.exits.exit(ask).is_none()
    }

    fn score(&self, ask: &Ask<'_>, host: HostId) -> i64 {
        let class = self.exits.exit(ask).map_or(0, |vm| -Self::class(ask.now, vm, self.exits.of(host)));
        if self.packs { class * CLASS + best_fit::score_of(ask, host) } else { class }
    }

    fn search(&self, ask: &Ask<'_>, admits: &mut dyn FnMut(HostId) -> bool) -> Search {
        if !self.packs {
            return Search::Unordered;
        }
        let Some(vm) = self.exits.exit(ask) else {
            return Search::Best(self.exits.index().best_fit(ask.vm.resources, admits));
        };
        let class = self.best(ask, vm, admits);
        Search::Best(class.and_then(|class| self.pack(ask, vm, class, admits)))
    }

    fn best_class(&self, ask: &Ask<'_>, admits: &mut dyn FnMut(HostId) -> bool) -> Option<Option<i64>> {
        let vm = self.exits.exit(ask).filter(|_| !self.packs)?;
        Some(self.best(ask, vm, admits).map(|class| -class))
    }

    fn explain(&self, ask: &Ask<'_>, host: HostId) -> String {
        let left = if self.packs { format!("; {}", best_fit::explain(ask, host)) } else { String::new() };
        let Some(exit) = self.exits.exit(ask) else { return format!("{}{left}", self.exits.why_unknown()) };
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
