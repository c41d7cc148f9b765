//! The packing rule: the host that the VM leaves the least of.

use core::cmp::Reverse;
use core::iter::Peekable;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, btree_map, btree_set};

use ballast_types::Instant;

use crate::rule::{Ask, Event, Rule, Search, Walk};
use crate::ties::TieKey;
use crate::{Cluster, HostId, Resources, Ties};

/// Best fit: the smallest max(free core share, free memory share) after placement, as shares of what the host offers. Other
/// resources do not count, where they fit.
///
/// Hosts of one size are kept in order: rows by free cores, each by free memory and tie. A search goes up the
/// rows from the first that has the cores, looks in each for the first that has the memory, and ends
/// at the row whose cores alone leave more than the best host found: it sees few rows, and its cost grows
/// with the logarithm of the number of hosts.
#[derive(Clone, Debug)]
pub struct BestFit {
    ties: Ties,
    sizes: Vec<Size>,
    /// By host: its size, and where it stands in that; `None` of one that is gone.
    positions: Vec<Option<HostPosition>>,
}

/// Hosts of one size.
#[derive(Clone, Debug)]
struct Size {
    capacity: Resources,
    /// By free thousandths of a core, then by free kB and tie.
    rows: BTreeMap<u32, Row>,
}

#[derive(Clone, Copy, Debug)]
struct HostPosition {
    size: u32,
    tie: TieKey,
    free: Resources,
}

/// The larger of two free shares, as a fraction.
#[derive(Clone, Copy, Debug)]
struct Cost {
    numerator: u64,
    denominator: u64,
}

impl Cost {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        if self.denominator == other.denominator {
            return self.numerator.cmp(&other.numerator);
        }
        let cross = |a: &Self, b: &Self| u128::from(a.numerator) * u128::from(b.denominator);
        cross(self, other).cmp(&cross(other, self))
    }
}

/// Thousandths of a core and kB; 1 for what a host has none of, since nothing of it is ever free.
fn wide(capacity: Resources) -> (u64, u64) {
    (u64::from(capacity.cores.milli()).max(1), capacity.memory.kb().max(1))
}

impl Size {
    fn insert(&mut self, host: TieKey, free: Resources) {
        self.rows.entry(free.cores.milli()).or_default().insert((free.memory.kb(), host));
    }

    fn remove(&mut self, host: TieKey, free: Resources) {
        let cores = free.cores.milli();
        if let Some(row) = self.rows.get_mut(&cores) {
            row.remove(&(free.memory.kb(), host));
            if row.is_empty() {
                self.rows.remove(&cores);
            }
        }
    }

    /// The best admitted host, and what the VM would leave of it.
    fn search(&self, requested: Resources, admits: &mut dyn FnMut(HostId) -> bool) -> Option<(u64, TieKey)> {
        let (cores_wide, memory_wide) = wide(self.capacity);
        let (cores, memory) = (requested.cores.milli(), requested.memory.kb());
        let mut best: Option<(u64, TieKey)> = None;

        for (free_cores, row) in self.rows.range(cores..) {
            let by_cores = u64::from(free_cores - cores) * memory_wide;
            if best.is_some_and(|(cost, _)| cost < by_cores) {
                break;
            }
            let mut from = (memory, TieKey::LOWEST);

            while let Some((free_memory, host)) = row.range(from..).next() {
                let cost = by_cores.max((free_memory - memory) * cores_wide);
                match best {
                    Some((best, _)) if best < cost => break,
                    // Hosts of the same free memory come by tie: the others are no better.
                    Some((best, lowest)) if best == cost && lowest < *host => {
                        from = (free_memory + 1, TieKey::LOWEST);
                    }
                    _ if admits(host.host()) => {
                        best = Some((cost, *host));
                        from = (free_memory + 1, TieKey::LOWEST);
                    }
                    _ => from = (*free_memory, host.next()),
                }
            }
        }

        best
    }
}

impl BestFit {
    /// For a cluster as it is now, under a ranking with these ties.
    pub fn new(cluster: &Cluster, ties: Ties) -> Self {
        let mut this = Self { ties, sizes: Vec::new(), positions: Vec::with_capacity(cluster.len()) };
        cluster.ids().for_each(|host| this.update(cluster, host));
        this
    }

    /// The number of a size; an empty one is given anew.
    fn size(&mut self, capacity: Resources) -> u32 {
        let known = self.sizes.iter().position(|size| size.capacity == capacity);
        let size = known.or_else(|| self.sizes.iter().position(|size| size.rows.is_empty()));
        let size = size.unwrap_or(self.sizes.len());
        if size == self.sizes.len() {
            self.sizes.push(Size { capacity, rows: BTreeMap::new() });
        }
        self.sizes[size].capacity = capacity;
        size as u32
    }

    /// What is free on the host may have changed, or the host itself.
    fn update(&mut self, cluster: &Cluster, host: HostId) {
        let at = host.0 as usize;
        if self.positions.len() <= at {
            self.positions.resize(at + 1, None);
        }

        let before = self.positions[at];
        let (free, room) = (cluster.free(host), cluster.host(host).room);
        let stays = before.is_some_and(|it| it.free == free && self.sizes[it.size as usize].capacity == room);
        if stays && cluster.contains(host) {
            return;
        }

        if let Some(HostPosition { size, tie, free }) = before {
            self.sizes[size as usize].remove(tie, free);
        }
        self.positions[at] = cluster.contains(host).then(|| {
            let known = before.filter(|it| self.sizes[it.size as usize].capacity == room);
            let (size, tie) = match known {
                Some(known) => (known.size, known.tie),
                None => (self.size(room), self.ties.key(cluster, host)),
            };
            self.sizes[size as usize].insert(tie, free);
            HostPosition { size, tie, free }
        });
    }
}

/// Free core share and free memory share once the VM is there.
pub(super) fn left(ask: &Ask<'_>, host: HostId) -> (f64, f64) {
    let free = ask.cluster.free(host).checked_sub(ask.vm.resources).unwrap_or_default();
    shares(ask.cluster.host(host).room, free.cores.milli(), free.memory.kb())
}

/// So much as shares of a host: thousandths of a core, and kB.
pub(super) fn shares(capacity: Resources, cores: u32, memory: u64) -> (f64, f64) {
    let (cores_wide, memory_wide) = wide(capacity);
    (f64::from(cores) / cores_wide as f64, memory as f64 / memory_wide as f64)
}

/// Minus the larger share that is left, in 2⁻⁴⁷.
pub(super) fn score((cores, memory): (f64, f64)) -> i64 {
    -((cores.max(memory) * (1u64 << 47) as f64) as i64)
}

/// The score of a host, as every rule has it that best fit is part of.
pub(super) fn score_of(ask: &Ask<'_>, host: HostId) -> i64 {
    score(left(ask, host))
}

/// Hosts of one size of which a VM leaves as many cores.
pub(super) struct Left {
    cores: f64,
    memory_wide: f64,
    /// So much memory may be left, and cores still are what counts.
    covered_kb: u64,
    by_cores: i64,
}

impl Left {
    pub(super) fn of(room: Resources, cores_milli: u32) -> Self {
        let (cores_wide, memory_wide) = wide(room);
        let (cores, memory_wide) = (f64::from(cores_milli) / cores_wide as f64, memory_wide as f64);
        // A kB less than it comes to: divisions round.
        let covered_kb = ((cores * memory_wide) as u64).saturating_sub(1);
        Self { cores, memory_wide, covered_kb, by_cores: score((cores, 0.0)) }
    }

    /// The larger share that is left, where so much memory is.
    pub(super) fn share(&self, memory_kb: u64) -> f64 {
        if memory_kb <= self.covered_kb {
            self.cores
        } else {
            self.cores.max(memory_kb as f64 / self.memory_wide)
        }
    }

    /// The score of a host of which so much memory is left.
    pub(super) fn score(&self, memory_kb: u64) -> i64 {
        if memory_kb <= self.covered_kb { self.by_cores } else { score((self.share(memory_kb), 0.0)) }
    }
}

/// The shares that are left, for people.
pub(super) fn explain(ask: &Ask<'_>, host: HostId) -> String {
    let (cores, memory) = left(ask, host);
    format!("leaves {:.1} % of its cores, {:.1} % of its memory", cores * 100.0, memory * 100.0)
}

type Row = BTreeSet<(u64, TieKey)>;

/// The hosts of a row with as much free memory, from one of them on.
struct Group<'a> {
    capacity: Resources,
    cores: u32,
    row: &'a Row,
    memory: u64,
    hosts: btree_set::Range<'a, (u64, TieKey)>,
    /// The free memory of the next ones, which have a lower score.
    then: Option<u64>,
}

/// Groups in the order of their scores. A row is opened when its cores alone leave no more than the best group does, and
/// the next group of a row when the one before is come to.
struct Groups<'a> {
    requested: Resources,
    rows: Vec<(Resources, Peekable<btree_map::Range<'a, u32, Row>>)>,
    groups: Vec<Group<'a>>,
    /// The next host of every group: score, tie and group.
    next: BinaryHeap<(i64, Reverse<TieKey>, usize)>,
}

impl<'a> Groups<'a> {
    fn score(&self, capacity: Resources, cores: u32, memory: u64) -> i64 {
        let cores = cores - self.requested.cores.milli();
        score(shares(capacity, cores, memory - self.requested.memory.kb()))
    }

    fn open_rows(&mut self) {
        let lowest = self.requested.memory.kb();
        for size in 0..self.rows.len() {
            let capacity = self.rows[size].0;
            while let Some((cores, row)) = self.rows[size].1.peek().copied() {
                let most = self.score(capacity, *cores, lowest);
                if self.next.peek().is_some_and(|(best, ..)| *best > most) {
                    break;
                }
                self.rows[size].1.next();
                self.open(capacity, *cores, row, lowest);
            }
        }
    }

    /// Opens the first group from so much free memory on, and those after it that tie.
    fn open(&mut self, capacity: Resources, cores: u32, row: &'a Row, mut memory: u64) {
        let mut last = None;
        while let Some((free, tie)) = row.range((memory, TieKey::LOWEST)..).next() {
            let score = self.score(capacity, cores, *free);
            if last.is_some_and(|last| last != score) {
                self.groups.last_mut().into_iter().for_each(|group| group.then = Some(*free));
                return;
            }
            let hosts = row.range((*free, tie.next())..);
            self.next.push((score, Reverse(*tie), self.groups.len()));
            self.groups.push(Group { capacity, cores, row, memory: *free, hosts, then: None });
            (last, memory) = (Some(score), free + 1);
        }
    }
}

impl Iterator for Groups<'_> {
    type Item = (i64, HostId);

    fn next(&mut self) -> Option<Self::Item> {
        self.open_rows();
        let (score, Reverse(tie), number) = self.next.pop()?;
        let group = &mut self.groups[number];
        let next = group.hosts.next().filter(|(memory, _)| *memory == group.memory);
        if let Some((_, tie)) = next {
            self.next.push((score, Reverse(*tie), number));
        }
        let (capacity, cores, row) = (group.capacity, group.cores, group.row);
        if let Some(then) = group.then.take() {
            self.open(capacity, cores, row, then);
        }
        Some((score, tie.host()))
    }
}

impl Rule for BestFit {
    fn name(&self) -> &'static str {
        "best-fit"
    }

    /// Minus the share that is left, in 2⁻⁴⁷: shares that differ by less tie here. The search compares them exactly.
    fn score(&self, ask: &Ask<'_>, host: HostId) -> i64 {
        score_of(ask, host)
    }

    fn explain(&self, ask: &Ask<'_>, host: HostId) -> String {
        explain(ask, host)
    }

    fn search(&self, ask: &Ask<'_>, admits: &mut dyn FnMut(HostId) -> bool) -> Search {
        let requested = ask.vm.resources;
        let mut best: Option<(Cost, TieKey)> = None;
        for size in self.sizes.iter().filter(|size| size.capacity.hold(requested)) {
            let Some((numerator, host)) = size.search(requested, admits) else { continue };
            let (cores, memory) = wide(size.capacity);
            let cost = Cost { numerator, denominator: cores * memory };
            if best.is_none_or(|(least, lowest)| cost.cmp(&least).then(host.cmp(&lowest)).is_lt()) {
                best = Some((cost, host));
            }
        }
        Search::Best(best.map(|(_, host)| host.host()))
    }

    fn walk<'a>(&'a self, ask: &Ask<'a>) -> Option<Walk<'a>> {
        let requested = ask.vm.resources;
        let sizes = self.sizes.iter().filter(|size| size.capacity.hold(requested));
        let rows = sizes.map(|size| (size.capacity, size.rows.range(requested.cores.milli()..).peekable()));
        Some(Box::new(Groups {
            requested,
            rows: rows.collect(),
            groups: Vec::new(),
            next: BinaryHeap::new(),
        }))
    }

    fn handle_event(&mut self, _now: Instant, cluster: &Cluster, event: &Event<'_>) {
        event.hosts().for_each(|host| self.update(cluster, host));
    }
}
